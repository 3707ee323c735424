//! Finds the task that a business key names at the moment, or reads it.

use std::sync::Arc;

use common::{
    ids::{QueueName, TaskId},
    queue,
    shard::route::bound_to,
    wire::{Problem, check_key},
};

use super::Desk;
use crate::store::{Database, rows::TaskRecord};

impl Desk {
    /// The id of the newest task with this key. An unfinished task comes first, then the newest finished one
    /// that is still kept.
    pub(crate) async fn find(&self, queue: &str, partition_key: Option<&str>, key: &str) -> Result<TaskId, Problem> {
        let (queue, any_id) = self.place_of(queue, partition_key, key).await?;
        let find = |database: Arc<Database>| {
            let queue = &queue;
            async move { database.task_find(queue, partition_key, key).await }
        };
        let found = self.in_place(any_id, find, Option::is_none).await??;
        found.ok_or_else(|| no_task(&queue, partition_key, key))
    }

    /// Reads the task that [`Self::find`] names.
    pub(super) async fn read_by_key(
        &self,
        queue: &str,
        partition_key: Option<&str>,
        key: &str,
    ) -> Result<TaskRecord, Problem> {
        let (queue, any_id) = self.place_of(queue, partition_key, key).await?;
        let read = |database: Arc<Database>| {
            let queue = &queue;
            async move { database.task_read_key(queue, partition_key, key).await }
        };
        let found = self.in_place(any_id, read, Option::is_none).await??;
        found.ok_or_else(|| no_task(&queue, partition_key, key))
    }

    /// Checks a business key. Returns its queue, and an id in the shard of its tasks.
    async fn place_of(
        &self,
        queue: &str,
        partition_key: Option<&str>,
        key: &str,
    ) -> Result<(QueueName, TaskId), Problem> {
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
        Ok((queue, TaskId::mint(uuid::Uuid::nil(), shard)))
    }
}

fn no_task(queue: &QueueName, partition_key: Option<&str>, key: &str) -> Problem {
    let of_partition = partition_key.map(|key| format!(" of partition `{key}`")).unwrap_or_default();
    Problem::not_found(format!("queue `{queue}` has no task with the key `{key}`{of_partition}"))
}
