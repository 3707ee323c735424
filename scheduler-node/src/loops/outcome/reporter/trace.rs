//! The hop of a report in its task's trace.

use common::ids::MessageId;

use super::{Happening, Reporter, write::Fact};
use crate::{
    store::settle::StandingRow,
    traces::{Done, Hop, Settled, Step},
};

/// A verdict on its way to the database, of a task whose trace is recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traced {
    pub(super) hop: Hop,
    message: MessageId,
    silent: bool,
}

impl Reporter {
    /// The hop of a report: a child of the hop that the report names, otherwise of its attempt's publish.
    pub(super) fn traced(&self, row: &StandingRow, happening: &Happening) -> Option<Traced> {
        let (attempt, reported) = match happening {
            Happening::Deadline => (row.attempt, None),
            Happening::Rejected { attempt, .. } | Happening::Returned { attempt, .. } => (*attempt, None),
            Happening::Reported { attempt, body, .. } => (*attempt, body.trace),
        };
        let message = MessageId { id: row.id, attempt };
        let hop = self.traces.settling(reported, row.trace, message)?;
        Some(Traced { hop, message, silent: matches!(happening, Happening::Deadline) })
    }

    /// Records the hop of a verdict that is written. A heartbeat is no hop.
    pub(super) fn trace(&self, fact: &Fact) {
        let Some(Traced { hop, message, silent }) = fact.traced else { return };
        if fact.outcome.is_some() || fact.failed.is_some() {
            let settled = Settled { message, silent, outcome: fact.outcome, failed: fact.failed };
            self.traces.record(&hop, Step { queue: Some(&fact.queue.name), done: Done::Settled(settled) });
        }
    }
}
