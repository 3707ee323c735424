//! One call to a target that has ended.

use common::{relay::call::CallOutcome, task::report::ResultBody};

/// The report of a call, and what it tells of the target.
#[derive(Debug)]
pub(super) struct FinishedCall {
    pub(super) report: ResultBody,
    /// Whether the outcome gives no sign of a fault of the target.
    pub(super) is_healthy: bool,
}

impl FinishedCall {
    pub(super) fn new(answer: CallOutcome) -> Self {
        let report = ResultBody { retry_in_ms: answer.retry_in_ms, ..ResultBody::new(answer.status) };
        Self { report, is_healthy: answer.is_healthy }
    }

    /// The outcome of a call that could not be made.
    pub(super) fn not_called(why: String) -> Self {
        let report = ResultBody { status_msg: Some(why), ..ResultBody::new(CallOutcome::UNREACHED.status) };
        Self { report, is_healthy: CallOutcome::UNREACHED.is_healthy }
    }
}
