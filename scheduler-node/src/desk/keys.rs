//! Finds the task that a business key names at the moment.

use std::sync::Arc;

use common::{
    ids::{QueueName, TaskId},
    queue,
    shard::route::bound_to,
    wire::{Problem, check_key},
};

use super::Desk;
use crate::store::Database;

impl Desk {
    /// The id of the newest task with this key. An unfinished task comes first, then the newest finished one
    /// that is still kept.
    pub(crate) async fn find(&self, queue: &str, partition_key: Option<&str>, key: &str) -> Result<TaskId, Problem> {
        queue::check_name(queue)?;
        check_key("key", key)?;
        if let Some(partition_key) = partition_key {
            check_key("partition_key", partition_key)?;
        }
        let queue = QueueName::new(queue);
        self.require_queue(&queue)?;
        let placement = self.parts().books.load().get(&queue).policy.placement;
        let shard_count = self.shard_count().await?;
        let shard = bound_to(&queue, placement, partition_key, Some(key), shard_count.into())
            .expect("a key is bound to a shard");
        let find = |database: Arc<Database>| {
            let queue = &queue;
            async move { database.task_find(queue, partition_key, key).await }
        };
        let any_id = TaskId::mint(uuid::Uuid::nil(), shard);
        let found = self.in_place(any_id, find, Option::is_none).await??;
        found.ok_or_else(|| {
            let of_partition = partition_key.map(|key| format!(" of partition `{key}`")).unwrap_or_default();
            Problem::not_found(format!("queue `{queue}` has no task with the key `{key}`{of_partition}"))
        })
    }
}
