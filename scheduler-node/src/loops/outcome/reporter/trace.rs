//! The hop of a report in its task's trace.

use common::{
    ids::{MessageId, QueueName},
    task::{TaskState, verdict::FailureReason},
};

use super::{AttemptEvent, Reporter};
use crate::{
    store::{Statements, settle::StandingRow},
    traces::{Done, Hop, Settled, Step},
};

/// A verdict on its way to the database, of a task whose trace is recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traced {
    pub(super) hop: Hop,
    message: MessageId,
    silent: bool,
}

impl<S: Statements> Reporter<S> {
    /// The hop of a report: a child of the hop that the report names, otherwise of its attempt's publish.
    pub(super) fn traced(&self, row: &StandingRow, event: &AttemptEvent) -> Option<Traced> {
        let (attempt, reported) = match event {
            AttemptEvent::Deadline => (row.attempt, None),
            AttemptEvent::Rejected { attempt, .. } | AttemptEvent::Returned { attempt, .. } => (*attempt, None),
            AttemptEvent::Reported { attempt, body, .. } => (*attempt, body.trace),
        };
        let message = MessageId { id: row.id, attempt };
        let hop = self.traces.settling(reported, row.trace, message)?;
        Some(Traced { hop, message, silent: matches!(event, AttemptEvent::Deadline) })
    }

    /// Records the hop of a verdict that is written. A heartbeat, which neither ends nor fails an attempt, is no hop.
    pub(super) fn trace(
        &self,
        traced: Traced,
        queue: &QueueName,
        outcome: Option<TaskState>,
        failed: Option<FailureReason>,
    ) {
        let Traced { hop, message, silent } = traced;
        if outcome.is_some() || failed.is_some() {
            let settled = Settled { message, silent, outcome, failed };
            self.traces.record(&hop, Step { queue: Some(queue), done: Done::Settled(settled) });
        }
    }
}
