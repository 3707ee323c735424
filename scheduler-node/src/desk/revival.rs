//! What keeps dead tasks dead when they are retried, alone or in bulk: their queue was deleted, or places them on
//! another shard by now.

use std::sync::Arc;

use common::{
    ids::{QueueName, ShardId},
    shard::route::bound_to,
    task::TaskState,
    wire::Problem,
};

use super::{Desk, refusal};
use crate::store::{Database, rows::TaskRecord};

impl Desk {
    /// Whether there is no such queue any more, so that its dead tasks have to stay dead. Messages of delay exchanges
    /// need no queue. An error: the node does not know the queue and cannot read it.
    pub(super) async fn is_queue_deleted(&self, queue: &QueueName) -> Result<bool, Problem> {
        let unread = self.read_unknown([queue]).await;
        if self.parts().books.load().find(queue).is_some() {
            return Ok(false);
        }
        if unread.contains(queue) { Err(refusal::unread(queue)) } else { Ok(true) }
    }

    /// The one shard to which the queue binds a task by now, as far as this node knows. `None`: any shard will do, or
    /// this node does not know.
    pub(super) fn bound_shard(
        &self,
        queue: &QueueName,
        partition_key: Option<&str>,
        key: Option<&str>,
    ) -> Option<ShardId> {
        let shard_count = self.parts().store.places().shard_count()?;
        let placement = self.parts().books.load().get(queue).policy.placement;
        bound_to(queue, placement, partition_key, key, shard_count.into())
    }

    /// Whether a dead task's queue binds it to another shard than its own by now, as far as this node knows.
    pub(super) fn is_placed_anew(&self, task: &TaskRecord) -> bool {
        let bound = self.bound_shard(&task.queue, task.partition_key.as_deref(), task.key.as_deref());
        task.state == TaskState::Dead && bound.is_some_and(|shard| shard != task.id.shard())
    }

    /// Refuses to bring back a dead task whose queue was deleted: under the default policy its message would go where
    /// no consumer reads, and count as done. A message of a delay exchange needs no queue. A deletion at this moment
    /// may be missed. The statement that brings the task back asks for the placement only, so this comes before it.
    pub(super) async fn require_queue_of_dead(&self, task: &TaskRecord) -> Result<(), Problem> {
        if task.state != TaskState::Dead {
            return Ok(());
        }
        let is_deleted = self.is_queue_deleted(&task.queue).await;
        if matches!(is_deleted, Ok(false)) {
            return Ok(());
        }
        let id = task.id;
        let read = |database: Arc<Database>| async move { database.task_read_forwarded(id).await };
        if self.in_place(id, read, |_| false).await?? {
            return Ok(());
        }
        Err(is_deleted.err().unwrap_or_else(|| queue_deleted(task)))
    }
}

/// The reason why a dead task cannot be retried: its queue counts and orders its tasks on another shard by now.
pub(super) fn placed_anew(task: &TaskRecord) -> Problem {
    let detail = format!(
        "the `placement` of queue `{}` has changed since this task was submitted, and its tasks are on another shard \
         now; submit the task again",
        task.queue
    );
    Problem::conflict(detail).with_state(task.state)
}

/// The reason why a dead task cannot be retried: there is no queue for it. The field tells it from [`placed_anew`].
fn queue_deleted(task: &TaskRecord) -> Problem {
    let detail = format!("queue `{}` of this task was deleted; create it with its policy, then retry", task.queue);
    Problem { field: Some("queue".into()), ..Problem::conflict(detail) }.with_state(task.state)
}
