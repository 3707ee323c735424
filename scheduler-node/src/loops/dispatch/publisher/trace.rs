//! The hop of a publish in its task's trace.

use std::collections::HashMap;

use common::{
    ids::{MessageId, QueueName, TaskId},
    outcome::Outcome,
};

use super::{Dispatch, Place, Publisher};
use crate::{
    broker::{self, Publish},
    store::Statements,
    traces::{Done, Hop, Published, Step},
};

impl<S: Statements, B: Publish> Publisher<S, B> {
    /// Begins a hop for each message of a task whose trace is recorded.
    pub(super) fn begin_hops(&self, batch: &mut [Dispatch]) -> HashMap<TaskId, Hop> {
        let hop =
            |dispatch: &mut Dispatch| Some((dispatch.delivery.id, self.traces.publishing(&mut dispatch.delivery)?));
        batch.iter_mut().filter_map(hop).collect()
    }

    /// Records the hops of published messages. A confirmed copy is the hop of its attempt, and the parent of its
    /// consumer's hop. A copy without a confirm is a sibling of it, because the attempt is published again. A copy
    /// that was not even sent has no hop.
    pub(super) fn end_hops(
        &self,
        queue: &QueueName,
        exchange: &str,
        places: &HashMap<TaskId, Place>,
        published: &[broker::Published],
    ) {
        for one in published {
            let place = &places[&one.id];
            let (Some(hop), Some(sent_at)) = (place.hop, one.sent_at) else { continue };
            let (hop, error) = match &one.outcome {
                Outcome::Done(()) => (hop, None),
                Outcome::Refused(why) => (hop.apart(), Some(format!("{why:?}"))),
                Outcome::Unknown(why) => (hop.apart(), Some(why.clone())),
            };
            let done = Done::Published(Published {
                message: MessageId { id: one.id, attempt: one.attempt },
                exchange,
                late_by: sent_at.saturating_duration_since(place.publish_at),
                redelivered: place.redelivered,
                error,
            });
            self.traces.record(&hop, Step { queue: Some(queue), done });
        }
    }
}
