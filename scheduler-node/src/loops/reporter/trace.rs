//! Where what was heard of an attempt stands in its task's trace.

use common::wire::amqp::MessageId;

use super::{Happening, Reporter, write::Fact};
use crate::{
    store::settle::StandingRow,
    traces::{Done, Hop, Settled, Step},
};

/// A verdict on its way into the database, of a task whose trace is recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traced {
    pub(super) hop: Hop,
    message: MessageId,
    silent: bool,
}

impl Reporter {
    /// Below what the report names, else below the publish of the attempt that it is about.
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

    /// The verdict is written. A heartbeat is no hop.
    pub(super) fn trace(&self, fact: &Fact) {
        let Some(Traced { hop, message, silent }) = fact.traced else { return };
        if fact.outcome.is_some() || fact.failed.is_some() {
            let settled = Settled { message, silent, outcome: fact.outcome, failed: fact.failed };
            self.traces.record(&hop, Step { queue: Some(&fact.queue.name), done: Done::Settled(settled) });
        }
    }
}
