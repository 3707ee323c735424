//! Moves shards of this node to other databases.
//!
//! It reads the moves that were asked for, and works on those of shards that this node owns: in their sources until the
//! cut, in their targets afterwards. Each step is durable in the fence rows, and what comes next is decided from them
//! ([`common::shard::next_step`]), so the next owner goes on wherever this one ends. If the loop stops, no shard moves
//! and nothing else changes.

mod copy;
mod cut;
#[cfg(test)]
mod tests;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::AtomicI64},
    time::Duration,
};

use arc_swap::ArcSwap;
use common::{
    ids::{DatabaseIndex, DatabaseName, NodeId, ShardId},
    shard::{MoveState, MoveStep, next_step},
};
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use self::work::Work;
use super::session_keeper::Session;
use crate::{
    coordination::{Coordination, Views},
    metrics::Metrics,
    store::{move_requests::MoveRow, moves::MoveFence},
    supervise::at_work,
    working_set::database::{NodeDatabase, NodeDatabases},
};

/// The longest interval between two looks at the moves that were asked for; a glance causes one sooner. Nearly always
/// there are none.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The shards that a node works on at the same time. Two keep a database busy while another reads or waits.
const SHARDS_AT_ONCE: usize = 2;

/// What is left in the source is deleted this long after the cut: by then each node's map shows the target.
const CLEAN_AFTER: Duration = Duration::from_secs(5);

/// Moves shards; the module says how.
#[derive(Debug)]
pub struct Mover {
    shared: Arc<Shared>,
}

/// What the work on all moves shares.
#[derive(Debug)]
struct Shared {
    me: NodeId,
    databases: NodeDatabases,
    coordination: Coordination,
    views: Views,
    session: watch::Receiver<Session>,
    metrics: Arc<Metrics>,
    /// The moves as they were read last.
    plans: ArcSwap<BTreeMap<ShardId, MoveRow>>,
    /// One cut at a time: each stops the claims of a shard.
    cuts: Semaphore,
    /// The shards whose moves do not get on.
    held_up: Mutex<BTreeSet<ShardId>>,
    /// Counts the writes into arriving shards. One atomic addition makes each number unique. A shard has one mover at a
    /// time, which reads here at least the numbers of its own writes before.
    writes: AtomicI64,
}

impl Mover {
    pub fn new(
        me: NodeId,
        databases: NodeDatabases,
        coordination: Coordination,
        views: Views,
        session: watch::Receiver<Session>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let shared = Shared {
            me,
            databases,
            coordination,
            views,
            session,
            metrics,
            plans: ArcSwap::default(),
            cuts: Semaphore::new(1),
            held_up: Mutex::default(),
            writes: AtomicI64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    pub async fn run(self, stop: CancellationToken) {
        let mut works: JoinSet<ShardId> = JoinSet::new();
        let mut busy = BTreeSet::new();
        let mut glances = self.shared.databases.home().sql.glances();
        while !stop.is_cancelled() {
            while let Some(ended) = works.try_join_next() {
                match ended {
                    Ok(shard) => drop(busy.remove(&shard)),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                }
            }
            {
                let _work = at_work();
                self.shared.look().await;
            }
            for plan in self.shared.wanted(&busy) {
                if busy.len() >= SHARDS_AT_ONCE {
                    break;
                }
                busy.insert(plan.shard);
                let work = Work::new(Arc::clone(&self.shared), &plan, stop.clone());
                works.spawn(work.run());
            }
            self.shared.tell(&busy);
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                Ok(()) = glances.changed() => {}
                Some(ended) = works.join_next() => match ended {
                    Ok(shard) => drop(busy.remove(&shard)),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                () = stop.cancelled() => {}
            }
        }
        while works.join_next().await.is_some() {}
    }
}

impl Shared {
    /// Reads the moves, unless a glance shows that there are none. While the home database is away, those read last
    /// stay in force.
    async fn look(&self) {
        let is_idle = self.databases.home().sql.glance().is_some_and(|glance| !glance.has_moves);
        if is_idle && self.plans.load().is_empty() {
            return;
        }
        match self.databases.home().sql.move_list().await {
            Ok(plans) => {
                self.plans.store(Arc::new(plans.into_iter().map(|plan| (plan.shard, plan)).collect()));
            }
            Err(error) => tracing::debug!(error = &error as &dyn std::error::Error, "could not read the moves"),
        }
    }

    /// The moves on which this node could work now, in the order of their shards.
    fn wanted(&self, busy: &BTreeSet<ShardId>) -> Vec<MoveRow> {
        let plans = self.plans.load();
        let is_ripe = |plan: &MoveRow| plan.since_cut.is_none_or(|since| since >= CLEAN_AFTER);
        let wanted = plans.values().filter(|plan| !busy.contains(&plan.shard) && is_ripe(plan) && self.owns(plan));
        wanted.cloned().collect()
    }

    fn owns(&self, plan: &MoveRow) -> bool {
        [&plan.source, &plan.target].into_iter().any(|name| {
            let database = self.named(name);
            database.is_some_and(|(_, database)| database.owned_shards.own_since(plan.shard).is_some())
        })
    }

    fn named(&self, name: &DatabaseName) -> Option<(DatabaseIndex, &NodeDatabase)> {
        self.databases.indexed().find(|(_, database)| database.name() == name)
    }

    /// Why no shard may reach `target` yet: a node that does not use it could neither write nor own the shard's tasks.
    fn is_not_ready(&self, target: &DatabaseName) -> Option<String> {
        self.views.borrow().not_used_by(target)
    }

    /// The shards that are to leave or to reach a database.
    fn planned(&self, database: &DatabaseName) -> Vec<ShardId> {
        let plans = self.plans.load();
        let concerned = plans.values().filter(|plan| [&plan.source, &plan.target].contains(&database));
        concerned.map(|plan| plan.shard).collect()
    }

    fn tell(&self, busy: &BTreeSet<ShardId>) {
        let mut held_up = self.held_up.lock();
        held_up.retain(|shard| busy.contains(shard));
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.moves_under_way.set(gauge(busy.len()));
        self.metrics.moves_held_up.set(gauge(held_up.len()));
    }
}

/// The fences of a shard in its source and its target.
#[derive(Clone, Debug)]
struct Fences {
    source: Option<MoveFence>,
    target: Option<MoveFence>,
}

impl Fences {
    fn next(&self, is_called_off: bool, is_copied: bool) -> MoveStep {
        let status = |fence: &Option<MoveFence>| fence.as_ref().map(|fence| fence.status);
        next_step(MoveState { source: status(&self.source), target: status(&self.target), is_called_off, is_copied })
    }
}
