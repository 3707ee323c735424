//! Brings messages into their queue's format, and discards those that do not fit it.

use common::{
    field::FieldError,
    ids::QueueName,
    queue::{Format, Queue},
    task::{Delivery, report::ResultBody},
    wire::format::{self, Shaped},
};

use super::{Dispatch, Publisher, returned::Ending};
use crate::{broker::Publish, history::Step, loops::outcome::reporter::AttemptEvent, store::Statements};

impl<S: Statements, B: Publish> Publisher<S, B> {
    /// Brings each message into its queue's format. A message that does not fit would not fit the next time either,
    /// so it is discarded.
    pub(super) async fn shape(&self, batch: Vec<Dispatch>, queue: &Queue) -> Vec<(Dispatch, Option<Shaped>)> {
        let mut fit = Vec::with_capacity(batch.len());
        let mut unfit = Vec::new();
        for dispatch in batch {
            // A message forwarded as it came is sent raw.
            let of = if dispatch.delivery.envelope.is_some() { Format::Raw } else { queue.policy.format };
            match format::shape(of, &dispatch.delivery) {
                Ok(shaped) => fit.push((dispatch, shaped)),
                Err(error) => unfit.push((dispatch, error)),
            }
        }
        if let Some((_, error)) = unfit.first() {
            let tasks = unfit.len();
            tracing::warn!(queue = %queue.name, tasks, %error, "payloads do not fit their queue's format; the tasks \
                                                                are dead");
            self.give_up(&queue.name, unfit).await;
        }
        fit
    }

    /// Discards tasks as a consumer does that reports `discard`.
    async fn give_up(&self, queue: &QueueName, unfit: Vec<(Dispatch, FieldError)>) {
        let mut ending = Ending::new();
        for (Dispatch { database, delivery, .. }, why) in unfit {
            let Delivery { id, attempt, .. } = delivery;
            self.history.record(Step::Unfit { task: id, attempt });
            let body = Box::new(ResultBody::discard(why.to_string()));
            let event = AttemptEvent::Reported { attempt, body, from: None };
            ending.entry(database).or_default().push((id, event));
        }
        self.end_undelivered(queue, ending).await;
    }
}
