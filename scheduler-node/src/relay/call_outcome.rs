//! The outcome of one call to a target.

use common::{relay::answer::Answer, wire::report::ResultBody};

/// The outcome of one call.
#[derive(Debug)]
pub(super) struct CallOutcome {
    pub(super) report: ResultBody,
    /// Whether the outcome gives no sign of a fault of the target.
    pub(super) is_well: bool,
}

impl CallOutcome {
    pub(super) fn new(answer: Answer) -> Self {
        let report = ResultBody { retry_in_ms: answer.retry_in_ms, ..ResultBody::new(answer.status) };
        Self { report, is_well: answer.is_well }
    }

    /// The outcome of a call that could not be made.
    pub(super) fn not_called(why: String) -> Self {
        let report = ResultBody { status_msg: Some(why), ..ResultBody::new(Answer::NONE.status) };
        Self { report, is_well: Answer::NONE.is_well }
    }
}
