//! Brings messages into their queue's format, and discards those that do not fit it.

use common::{
    field::FieldError,
    queue::{Format, Queue},
    task::{Delivery, report::ResultBody},
    wire::format::{self, Shaped},
};

use futures::future::join_all;

use super::{Dispatch, LONGEST_HOLD, Publisher};
use crate::{broker::Publish, history::Step, store::Statements};

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
            join_all(unfit.iter().map(|(dispatch, error)| self.give_up(dispatch, error))).await;
        }
        fit
    }

    /// Discards a task as a consumer does that reports `discard`.
    async fn give_up(&self, dispatch: &Dispatch, why: &FieldError) {
        let Delivery { id, attempt, .. } = dispatch.delivery;
        self.history.record(Step::Unfit { task: id, attempt });
        let database = &self.databases[dispatch.database];
        match self.reporter.report(id, attempt, ResultBody::discard(why.to_string())).await {
            Ok(_) => database.owned_shards.end([id]),
            Err(error) => {
                tracing::debug!(task = %id, error = &error as &dyn std::error::Error, "could not store the outcome; retrying");
                database.look_again([id], LONGEST_HOLD);
            }
        }
    }
}
