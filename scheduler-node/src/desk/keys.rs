//! Finds or reads the task that a business key names at the moment, and tells the place of a key.

use std::sync::Arc;

use common::{
    ids::{QueueName, TaskId},
    queue::{self, Placement},
    shard::route::bound_to,
    task::TaskKey,
    wire::{Problem, check_key},
};

use super::Desk;
use crate::store::{self, Database, rows::TaskRecord};

impl Desk {
    /// The id of the newest task with this key. An unfinished task comes first, then the newest finished one
    /// that is still kept.
    pub(crate) async fn find(&self, queue: &str, partition_key: Option<&str>, key: &str) -> Result<TaskId, Problem> {
        let (queue, places) = self.places_of(queue, partition_key, key).await?;
        let find = |database: Arc<Database>| {
            let queue = &queue;
            async move { database.task_find(queue, partition_key, key).await }
        };
        let found = self.in_places(places, find).await?;
        found.ok_or_else(|| no_task(&queue, partition_key, key))
    }

    /// Reads the task that [`Self::find`] names.
    pub(super) async fn read_by_key(
        &self,
        queue: &str,
        partition_key: Option<&str>,
        key: &str,
    ) -> Result<TaskRecord, Problem> {
        let (queue, places) = self.places_of(queue, partition_key, key).await?;
        let read = |database: Arc<Database>| {
            let queue = &queue;
            async move { database.task_read_key(queue, partition_key, key).await }
        };
        let found = self.in_places(places, read).await?;
        found.ok_or_else(|| no_task(&queue, partition_key, key))
    }

    /// Checks a business key. Returns it with its present place.
    pub(super) async fn place_of_key(
        &self,
        queue: &str,
        partition_key: Option<&str>,
        key: &str,
    ) -> Result<PlacedKey, Problem> {
        let (queue, places) = self.places_of(queue, partition_key, key).await?;
        let database = self.parts().store.of(places.present.shard()).cloned();
        Ok(PlacedKey { queue, partition_key: partition_key.map(str::to_owned), key: key.to_owned(), database })
    }

    /// The id of the task that a key names, as [`Self::find`] tells it.
    pub(super) async fn find_placed(&self, key: &PlacedKey) -> Result<TaskId, Problem> {
        self.find(key.queue.as_str(), key.partition_key.as_deref(), &key.key).await
    }

    /// Looks in the present place of a key, and then in the former one as far as its database answers.
    async fn in_places<T, F>(&self, places: KeyPlaces, look: impl Fn(Arc<Database>) -> F) -> Result<Option<T>, Problem>
    where
        F: Future<Output = Result<Option<T>, store::Error>>,
    {
        let found = self.in_place(places.present, &look, Option::is_none).await??;
        match places.former.filter(|_| found.is_none()) {
            Some(former) => {
                Ok(self.in_place(former, &look, Option::is_none).await.and_then(|found| Ok(found?)).ok().flatten())
            }
            None => Ok(found),
        }
    }

    /// Checks a business key. Returns its queue and the places of its tasks.
    async fn places_of(
        &self,
        queue: &str,
        partition_key: Option<&str>,
        key: &str,
    ) -> Result<(QueueName, KeyPlaces), Problem> {
        queue::check_name(queue)?;
        check_key("key", key)?;
        if let Some(partition_key) = partition_key {
            check_key("partition_key", partition_key)?;
        }
        let queue = QueueName::new(queue);
        self.require_queue(&queue)?;
        let shard_count = self.shard_count().await?;
        let place = |placement| {
            let shard = bound_to(&queue, placement, partition_key, Some(key), shard_count.into());
            TaskId::mint(uuid::Uuid::nil(), shard.expect("a key is bound to a shard"))
        };
        let (present, other) = match self.parts().books.load().get(&queue).policy.placement {
            Placement::Single => (Placement::Single, Placement::Spread),
            Placement::Spread => (Placement::Spread, Placement::Single),
        };
        let (present, former) = (place(present), place(other));
        // One database is searched as a whole.
        let database = |id: TaskId| self.parts().store.of(id.shard()).map(|database| database.name());
        let former = Some(former).filter(|former| database(*former) != database(present));
        Ok((queue, KeyPlaces { present, former }))
    }
}

/// Ids in the shards where tasks with a key are.
struct KeyPlaces {
    present: TaskId,
    /// Where they were before the queue's placement changed: tasks that had finished stay there, and this node may
    /// not have read the change yet.
    former: Option<TaskId>,
}

/// A key that outlives its request.
pub(super) struct PlacedKey {
    queue: QueueName,
    partition_key: Option<String>,
    key: String,
    /// The present place of its tasks. `None`: this node has not read it yet.
    pub(super) database: Option<Arc<Database>>,
}

impl PlacedKey {
    pub(super) fn key(&self) -> TaskKey<'_> {
        (&self.queue, self.partition_key.as_deref(), &self.key)
    }
}

fn no_task(queue: &QueueName, partition_key: Option<&str>, key: &str) -> Problem {
    let of_partition = partition_key.map(|key| format!(" of partition `{key}`")).unwrap_or_default();
    Problem::not_found(format!("queue `{queue}` has no task with the key `{key}`{of_partition}"))
}
