//! Which shard a task is for.

use std::time::Duration;

use common::{
    ids::{ShardId, TaskId},
    shard::route::{Routing, route},
    task::NewTask,
    wire::task::ValidTask,
};
use tokio::sync::watch;

use crate::{
    clock,
    loops::{prober::Fitness, queue_reader::Books, site::Sites},
};

#[derive(Debug)]
pub(super) struct Routes {
    pub(super) sites: Sites,
    pub(super) books: Books,
    pub(super) fitness: watch::Receiver<Fitness>,
    pub(super) shard_count: u32,
    pub(super) horizon: Duration,
}

impl Routes {
    pub(super) fn place(&self, tasks: Vec<ValidTask>) -> Vec<NewTask> {
        let now = clock::now();
        let book = self.books.load();
        let fitness = self.fitness.borrow().clone();
        let fit = |shard: ShardId| self.sites.of(shard).is_some_and(|(_, site)| fitness.is_fit(site.name()));
        let owned: Vec<ShardId> = self
            .sites
            .all()
            .iter()
            .filter(|site| fitness.is_fit(site.name()))
            .flat_map(|site| site.held.claimable().into_keys())
            .collect();
        tasks
            .into_iter()
            .map(|task| {
                let mut shard = ShardId::new(0);
                // A task that may live anywhere goes where the database answers; a few throws find one.
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
                        shard_count: self.shard_count,
                        dice: rand::random(),
                    });
                    if fit(shard) {
                        break;
                    }
                }
                task.into_new(TaskId::mint(uuid::Uuid::now_v7(), shard))
            })
            .collect()
    }
}
