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
use crate::store::{Database, rows::TaskRecord};

impl Desk {
    /// The id of the newest task with this key. An unfinished task comes first, then the newest finished one
    /// that is still kept.
    pub(crate) async fn find(&self, queue: &str, partition_key: Option<&str>, key: &str) -> Result<TaskId, Problem> {
        let (queue, places) = &self.places_of(queue, partition_key, key).await?;
        let task = (queue, partition_key, key);
        if places.other.is_some() {
            return self.read_in_places(places, task).await.map(|task| task.id);
        }
        // All tasks with the key are in one database, so the id is enough.
        let find = |database: Arc<Database>| async move { database.task_find(queue, partition_key, key).await };
        let found = self.in_place(places.present, find, Option::is_none).await??;
        found.ok_or_else(|| no_task(task))
    }

    /// Reads the task that [`Self::find`] names.
    pub(super) async fn read_by_key(
        &self,
        queue: &str,
        partition_key: Option<&str>,
        key: &str,
    ) -> Result<TaskRecord, Problem> {
        let (queue, places) = self.places_of(queue, partition_key, key).await?;
        self.read_in_places(&places, (&queue, partition_key, key)).await
    }

    /// Reads it in the present place of the key, and in the other one as far as its database answers. A queue changes
    /// its placement only without unfinished tasks. So these are in one place, and it is the other one if this node has
    /// not read the change yet. Unless it knows better, that database has to answer.
    async fn read_in_places(&self, places: &KeyPlaces, key: TaskKey<'_>) -> Result<TaskRecord, Problem> {
        let found = self.read_in(places.present, key).await?;
        let Some(other) = places.other.filter(|_| !found.as_ref().is_some_and(is_live)) else {
            return found.ok_or_else(|| no_task(key));
        };
        let is_present = self.read_changes().await && self.placement_of(key.0) == places.placement;
        if is_present && let Some(finished) = found {
            return Ok(finished);
        }
        let there = match self.read_in(other, key).await {
            // No more than a finished task may be there.
            Err(_) if is_present => None,
            there => there?,
        };
        let newest = found.into_iter().chain(there).max_by_key(|task| (is_live(task), task.created_at));
        newest.ok_or_else(|| no_task(key))
    }

    async fn read_in(
        &self,
        place: TaskId,
        (queue, partition_key, key): TaskKey<'_>,
    ) -> Result<Option<TaskRecord>, Problem> {
        let read = |database: Arc<Database>| async move { database.task_read_key(queue, partition_key, key).await };
        Ok(self.in_place(place, read, Option::is_none).await??)
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

    /// The placement of a queue, as far as this node knows.
    fn placement_of(&self, queue: &QueueName) -> Placement {
        self.parts().books.load().get(queue).policy.placement
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
        let placement = self.placement_of(&queue);
        let other = match placement {
            Placement::Single => Placement::Spread,
            Placement::Spread => Placement::Single,
        };
        let (present, other) = (place(placement), place(other));
        // One database is searched as a whole.
        let database = |id: TaskId| self.parts().store.of(id.shard()).map(|database| database.name());
        let other = Some(other).filter(|other| database(*other) != database(present));
        Ok((queue, KeyPlaces { placement, present, other }))
    }
}

/// Ids in the shards where tasks with a key are.
struct KeyPlaces {
    placement: Placement,
    /// Where they are with that placement.
    present: TaskId,
    /// Where they are with the other one: tasks that had finished before a change stay there.
    other: Option<TaskId>,
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

fn is_live(task: &TaskRecord) -> bool {
    !task.state.is_final()
}

fn no_task((queue, partition_key, key): TaskKey<'_>) -> Problem {
    let of_partition = partition_key.map(|key| format!(" of partition `{key}`")).unwrap_or_default();
    Problem::not_found(format!("queue `{queue}` has no task with the key `{key}`{of_partition}"))
}
