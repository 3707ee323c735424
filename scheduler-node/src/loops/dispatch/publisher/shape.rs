//! Brings messages into their queue's format, and discards those that do not fit it.

use common::{
    field::FieldError,
    ids::QueueName,
    queue::{Format, Queue, Unroutable},
    task::{Delivery, verdict::FailureReason},
    wire::format::{self, Shaped},
};

use super::{Dispatch, Publisher, returned::Ending};
use crate::{
    broker::Publish, history::Step, loops::outcome::reporter::AttemptEvent, store::Statements,
    working_set::lanes::Unreached,
};

/// A message in its queue's format; `None`: it is sent as it was submitted.
pub(super) type Fit = (Dispatch, Option<Shaped>);

/// A message that does not fit its queue's format, and why.
pub(super) type Unfit = (Dispatch, FieldError);

/// Brings each message into its queue's format. The second part has those that do not fit it.
pub(super) fn shape(batch: Vec<Dispatch>, queue: &Queue) -> (Vec<Fit>, Vec<Unfit>) {
    let (mut fit, mut unfit) = (Vec::with_capacity(batch.len()), Vec::new());
    for dispatch in batch {
        // A message forwarded as it came is sent raw.
        let of = if dispatch.delivery.envelope.is_some() { Format::Raw } else { queue.policy.format };
        match format::shape(of, &dispatch.delivery) {
            Ok(shaped) => fit.push((dispatch, shaped)),
            Err(error) => unfit.push((dispatch, error)),
        }
    }
    (fit, unfit)
}

impl<S: Statements, B: Publish> Publisher<S, B> {
    /// Discards tasks whose messages were not sent: they would not fit the next time either.
    pub(super) async fn give_up(&self, queue: &QueueName, unfit: Vec<Unfit>) {
        if let Some((_, error)) = unfit.first() {
            let tasks = unfit.len();
            if self.lanes.note_unreached(queue, Unreached::Unfit) {
                tracing::warn!(%queue, tasks, %error, "payloads do not fit their queue's format; the tasks are dead");
            } else {
                tracing::debug!(%queue, tasks, %error, "payloads did not fit their queue's format again");
            }
        }
        let mut ending = Ending::new();
        for (Dispatch { database, delivery, .. }, why) in unfit {
            let Delivery { id, attempt, .. } = delivery;
            self.history.record(Step::Unfit { task: id, attempt });
            let (rule, reason, why) = (Unroutable::SetAside, FailureReason::Discarded, why.to_string());
            let event = AttemptEvent::Returned { attempt, rule, reason, why };
            ending.entry(database).or_default().push((id, event));
        }
        self.end_undelivered(queue, ending).await;
    }
}
