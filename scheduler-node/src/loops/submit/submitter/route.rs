//! Chooses the shard of a task.

use std::time::Duration;

use common::{
    ids::{ShardId, TaskId},
    shard::route::{Routing, route},
    task::{NewTask, ValidTask},
};
use tokio::sync::watch;

use crate::{
    clock,
    loops::upkeep::{prober::NodeFitness, queue_reader::Books},
    working_set::database::NodeDatabases,
};

#[derive(Debug)]
pub(super) struct Routes {
    pub(super) databases: NodeDatabases,
    pub(super) books: Books,
    pub(super) fitness: watch::Receiver<NodeFitness>,
    pub(super) horizon: Duration,
}

impl Routes {
    /// Gives each task its id, and with it its shard. Also returns the revision of the queues by which it did so.
    pub(super) fn place(&self, tasks: Vec<ValidTask>, shard_count: u16) -> (Vec<NewTask>, i64) {
        let (router, routed) = self.router(shard_count);
        (tasks.into_iter().map(|task| NewTask { id: router(&task), task }).collect(), routed)
    }

    /// Returns a function that mints the id of a task, and the revision of the queues that it knows.
    fn router(&self, shard_count: u16) -> (impl Fn(&ValidTask) -> TaskId + '_, i64) {
        let now = self.databases.home().sql.clock().at_most(clock::instant()).unwrap_or_else(clock::now);
        let book = self.books.load_full();
        let routed = book.revision();
        let fitness = self.fitness.borrow().clone();
        let owned: Vec<ShardId> = self
            .databases
            .all()
            .iter()
            .filter(|database| fitness.is_fit(database.name()))
            .flat_map(|database| database.owned_shards.claimable_shards().to_vec())
            .collect();
        let router = move |task: &ValidTask| {
            let fit =
                |shard: ShardId| self.databases.of(shard).is_some_and(|(_, database)| fitness.is_fit(database.name()));
            let mut shard = ShardId::new(0);
            // A task that may live anywhere goes to a database that answers; a few random choices find one.
            for _ in 0..8 {
                shard = route(&Routing {
                    queue: &task.queue,
                    placement: book.get(&task.queue).policy.placement,
                    partition_key: task.partition_key.as_deref(),
                    key: task.keyed.as_ref().map(|keyed| keyed.key.as_str()),
                    due_at: task.due_at,
                    now,
                    horizon: self.horizon,
                    owned: &owned,
                    shard_count: shard_count.into(),
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
