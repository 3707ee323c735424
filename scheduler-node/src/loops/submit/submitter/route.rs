//! Chooses the shard of a task.

use std::time::Duration;

use common::{
    ids::{QueueName, ShardId, TaskId},
    shard::route::{Routing, route},
    task::NewTask,
    time::UnixMicros,
    wire::task::ValidTask,
};
use tokio::sync::watch;

use crate::{
    clock,
    loops::upkeep::{prober::Fitness, queue_reader::Books},
    working_set::database::NodeDatabases,
};

#[derive(Debug)]
pub(super) struct Routes {
    pub(super) databases: NodeDatabases,
    pub(super) books: Books,
    pub(super) fitness: watch::Receiver<Fitness>,
    pub(super) shard_count: u32,
    pub(super) horizon: Duration,
}

impl Routes {
    /// Gives each task its id, and with it its shard. Also returns the revision of the queues by which it did so.
    pub(super) fn place(&self, tasks: Vec<ValidTask>) -> (Vec<NewTask>, i64) {
        let (router, routed) = self.router();
        let place = |task: ValidTask| {
            let key = task.keyed.as_ref().map(|keyed| keyed.key.as_str());
            let id = router(&task.queue, task.partition_key.as_deref(), key, task.due_at);
            task.into_new(id)
        };
        (tasks.into_iter().map(place).collect(), routed)
    }

    /// Gives new ids to tasks that got theirs from an older placement and are written nowhere.
    pub(super) fn place_again(&self, tasks: Vec<NewTask>) -> (Vec<NewTask>, i64) {
        let (router, routed) = self.router();
        let place = |task: NewTask| {
            let key = task.keyed.as_ref().map(|keyed| keyed.key.as_str());
            let id = router(&task.queue, task.partition_key.as_deref(), key, task.due_at);
            NewTask { id, ..task }
        };
        (tasks.into_iter().map(place).collect(), routed)
    }

    /// Returns a function that mints an id from queue, partition key, key and due time, and the revision of the
    /// queues that it knows.
    fn router(&self) -> (impl Fn(&QueueName, Option<&str>, Option<&str>, UnixMicros) -> TaskId + '_, i64) {
        let now = clock::now();
        let book = self.books.load_full();
        let routed = book.revision();
        let fitness = self.fitness.borrow().clone();
        let owned: Vec<ShardId> = self
            .databases
            .all()
            .iter()
            .filter(|database| fitness.is_fit(database.name()))
            .flat_map(|database| database.owned_shards.claimable().into_keys())
            .collect();
        let router = move |queue: &QueueName, partition_key: Option<&str>, key: Option<&str>, due_at: UnixMicros| {
            let fit =
                |shard: ShardId| self.databases.of(shard).is_some_and(|(_, database)| fitness.is_fit(database.name()));
            let mut shard = ShardId::new(0);
            // A task that may live anywhere goes to a database that answers; a few random choices find one.
            for _ in 0..8 {
                shard = route(&Routing {
                    queue,
                    placement: book.get(queue).policy.placement,
                    partition_key,
                    key,
                    due_at,
                    now,
                    horizon: self.horizon,
                    owned: &owned,
                    shard_count: self.shard_count,
                    dice: rand::random(),
                });
                if fit(shard) {
                    break;
                }
            }
            TaskId::mint(uuid::Uuid::now_v7(), shard)
        };
        (router, routed)
    }
}
