//! Finds the task that a business key names at the moment.

use common::{
    ids::{QueueName, TaskId},
    queue,
    shard::route::bound_to,
    wire::{Problem, check_key},
};

use super::Desk;

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
        let shard = bound_to(&queue, placement, partition_key, Some(key), self.parts().store.shard_count())
            .expect("a key is bound to a shard");
        let database = self.parts().store.of(shard).expect("routes lead to shards that exist");
        let found = database.task_find(&queue, partition_key, key).await?;
        found.ok_or_else(|| {
            let of_partition = partition_key.map(|key| format!(" of partition `{key}`")).unwrap_or_default();
            Problem::not_found(format!("queue `{queue}` has no task with the key `{key}`{of_partition}"))
        })
    }
}
