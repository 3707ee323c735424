//! Where the publish of an attempt stands in its task's trace.

use std::collections::HashMap;

use common::{
    ids::{QueueName, TaskId},
    outcome::Outcome,
    wire::amqp::MessageId,
};

use super::{Dispatch, Place, Publisher};
use crate::{
    broker,
    traces::{Done, Hop, Published, Step},
};

impl Publisher {
    /// Puts each message of a task whose trace is recorded in its place there.
    pub(super) fn begin_hops(&self, batch: &mut [Dispatch]) -> HashMap<TaskId, Hop> {
        let hop =
            |dispatch: &mut Dispatch| Some((dispatch.delivery.id, self.traces.publishing(&mut dispatch.delivery)?));
        batch.iter_mut().filter_map(hop).collect()
    }

    /// One confirmed copy is the hop of its attempt, which its consumer hangs below. A copy that is not known to have arrived is beside it,
    /// for the attempt is published again; one that was not even sent is nothing.
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
