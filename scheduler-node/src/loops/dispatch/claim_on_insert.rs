//! Claims tasks that are due at once in the very insert that writes them, which saves a write and a round trip for
//! each.
//!
//! It takes only tasks that the dispatcher would claim at once as well: a shard of this node, an open lane, room in
//! the window, and no due task that waits. All other tasks are written as `scheduled` and go through the heap. The
//! guard is that of a claim: the insert presents the epoch of the shard to the fence.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use common::{
    ids::{Attempt, Epoch, QueueName, TaskId},
    outbox::Dispatch,
    task::{Delivery, NewTask},
    time::UnixMicros,
};
use tokio::sync::{mpsc, watch};

use crate::{
    broker::BrokerState,
    clock,
    loops::{dispatch::publisher, upkeep::queue_reader::Books},
    metrics::Metrics,
    store::submit::InsertResult,
    working_set::{
        database::{DatabaseIndex, LOOK_AGAIN, NodeDatabases},
        lanes::Lanes,
    },
};

#[derive(Clone, Debug)]
pub struct ClaimOnInsert {
    pub databases: NodeDatabases,
    pub lanes: Arc<Lanes>,
    pub books: Books,
    pub broker: watch::Receiver<BrokerState>,
    pub publisher: mpsc::Sender<Dispatch>,
    /// The most tasks in flight.
    pub window: usize,
    pub metrics: Arc<Metrics>,
}

/// Tasks of one insert that the insert may claim. They are in flight until [`ClaimOnInsert::written`] or
/// [`ClaimOnInsert::lost`].
#[derive(Debug)]
pub struct InsertClaims {
    database: DatabaseIndex,
    /// The epoch to present for each task of the insert, in the order of the tasks.
    pub epochs: Vec<Option<Epoch>>,
    /// The revision of the queues by which the tasks may be claimed.
    pub known: i64,
    at: Instant,
}

impl ClaimOnInsert {
    pub fn begin(&self, index: DatabaseIndex, tasks: &[NewTask]) -> InsertClaims {
        let at = clock::instant();
        let database = &self.databases[index];
        let book = self.books.load();
        let takes_messages = self.broker.borrow().takes_messages() && book.is_read();
        let epochs = match database.sql.clock().at(at).filter(|_| takes_messages) {
            Some(now) => {
                let closed = self.lanes.not_claimed(&book, at);
                let ids: Vec<Option<TaskId>> =
                    tasks.iter().map(|task| may_go(task, &closed).then_some(task.id)).collect();
                database.owned_shards.begin_new(&ids, now, self.window)
            }
            None => vec![None; tasks.len()],
        };
        InsertClaims { database: index, epochs, known: book.revision(), at }
    }

    /// Handles a committed insert: takes the claimed tasks out of `tasks`, to be handed to the publisher. The
    /// remaining tasks are `scheduled`.
    pub fn written(
        &self,
        begun: InsertClaims,
        written: &InsertResult,
        tasks: Vec<NewTask>,
    ) -> (Vec<Dispatch>, Vec<NewTask>) {
        let database = &self.databases[begun.database];
        let publish_at = database.sql.clock().instant_of(written.asked_at).unwrap_or(begun.at);
        let mut dispatches = Vec::new();
        let mut scheduled = Vec::new();
        let mut refused = Vec::new();
        for (task, epoch) in tasks.into_iter().zip(begun.epochs) {
            if written.rules_changed.contains(&task.queue) {
                refused.extend(epoch.map(|_| task.id));
                continue;
            }
            let is_claimed = written.held.contains(&task.id.shard()) && !written.turned.contains(&task.queue);
            if epoch.is_some() && is_claimed {
                let delivery = delivery(task, written.asked_at);
                dispatches.push(Dispatch { database: begun.database, delivery, publish_at, claimed_at: begun.at });
                continue;
            }
            refused.extend(epoch.map(|_| task.id));
            scheduled.push(task);
        }
        database.owned_shards.end(refused);
        if !written.turned.is_empty() || !written.rules_changed.is_empty() {
            database.outdated.notify_one();
        }
        self.metrics.claimed.with_label_values(&["submit"]).inc_by(dispatches.len() as u64);
        (dispatches, scheduled)
    }

    /// Handles an insert that failed or whose commit is unknown: a rescue looks at its tasks.
    pub fn lost(&self, begun: &InsertClaims, tasks: &[NewTask]) {
        let database = &self.databases[begun.database];
        database
            .look_again(tasks.iter().zip(&begun.epochs).filter_map(|(task, epoch)| epoch.map(|_| task.id)), LOOK_AGAIN);
    }

    pub async fn publish(&self, dispatches: Vec<Dispatch>) {
        publisher::hand_over(&self.publisher, dispatches).await;
    }
}

fn may_go(task: &NewTask, closed: &BTreeSet<QueueName>) -> bool {
    task.due_now && task.expires_at.is_none() && !closed.contains(&task.queue)
}

fn delivery(NewTask { id, task }: NewTask, due_at: UnixMicros) -> Delivery {
    Delivery {
        id,
        attempt: Attempt::new(1),
        attempts_base: Attempt::NONE,
        queue: task.queue,
        due_at,
        content: task.content,
        priority: task.priority,
        key: None,
        partition_key: task.partition_key,
        version: 0,
        max_attempts: task.max_attempts,
        timeout_ms: task.timeout_ms,
        redelivered: false,
        envelope: task.envelope,
    }
}
