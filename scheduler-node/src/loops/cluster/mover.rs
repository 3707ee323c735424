//! Moves shards of this node to other databases.
//!
//! It reads the moves that were asked for, and works on those of shards that this node owns: in their sources until the
//! cut, in their targets afterwards. Each step is durable in the fence rows, and what comes next is decided from them
//! ([`common::shard::next_step`]), so the next owner goes on wherever this one ends. If the loop stops, no shard moves
//! and nothing else changes.

mod copy;
mod cut;
mod gates;
#[cfg(test)]
mod tests;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::AtomicI64},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use common::{
    ids::{DatabaseIndex, DatabaseName, Epoch, NodeId, ShardId},
    shard::{MoveState, MoveStep, ShardStatus, next_step},
    time::UnixMicros,
};
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

use self::{gates::Gates, work::Work};
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

/// The shards that a node works on at the same time. Two keep a database busy while another reads or waits. A move that
/// does not get on, or for which there is nothing to do yet, rests and gives its place to others.
const SHARDS_AT_ONCE: usize = 2;

/// Moves that do not get on, before no other one of their sources and targets begins. Most wait for a database, so more
/// of them would only ask it more often.
const HELD_UP_MOST: usize = 16;

/// What is left in the source is deleted this long after the cut: by then each node's map shows the target. The time
/// counts on this node, from its first sight of the end of the cut: the clock of the first database may be set.
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
    /// When this node has first seen that the cut of a move has ended.
    cuts_ended: Mutex<BTreeMap<(ShardId, UnixMicros), Instant>>,
    /// One cut at a time: each stops the claims of a shard.
    cuts: Semaphore,
    /// The shards whose moves do not get on.
    held_up: Mutex<BTreeSet<ShardId>>,
    /// Counts what moves write into arriving shards and fences. One atomic addition makes each number unique. A shard
    /// has one mover at a time, which reads here at least the numbers of its own writes before.
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
            cuts_ended: Mutex::default(),
            cuts: Semaphore::new(1),
            held_up: Mutex::default(),
            writes: AtomicI64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    pub async fn run(self, stop: CancellationToken) {
        tokio::join!(self.move_shards(&stop), Gates::default().run(&self.shared, &stop));
    }

    async fn move_shards(&self, stop: &CancellationToken) {
        let mut works = JoinSet::new();
        let mut begun = Begun::default();
        let mut glances = self.shared.databases.home().sql.glances();
        while !stop.is_cancelled() {
            while let Some(ended) = works.try_join_next() {
                begun.rest(ended);
            }
            {
                let _work = at_work();
                self.shared.look().await;
            }
            begun.resting.retain(|shard, _| self.shared.is_to_move(*shard));
            while let Some(plan) = self.shared.next(&begun) {
                works.spawn(begun.begin(&self.shared, &plan, stop).run());
            }
            self.shared.tell(&begun);
            tokio::select! {
                () = tokio::time::sleep(begun.pause()) => {}
                Ok(()) = glances.changed() => {}
                Some(ended) = works.join_next() => begun.rest(ended),
                () = stop.cancelled() => {}
            }
        }
        while works.join_next().await.is_some() {}
    }
}

/// The shards whose moves have begun.
#[derive(Debug, Default)]
struct Begun {
    /// Each of them has a place.
    busy: BTreeSet<ShardId>,
    /// They have given their places to others.
    resting: BTreeMap<ShardId, Resting>,
}

/// A move that takes no place before `until`.
#[derive(Debug)]
struct Resting {
    shard: ShardId,
    until: Instant,
    /// A move that does not get on goes on with this. `None`: the rows say where it goes on.
    work: Option<Work>,
}

impl Begun {
    fn begin(&mut self, shared: &Arc<Shared>, plan: &MoveRow, stop: &CancellationToken) -> Work {
        self.busy.insert(plan.shard);
        let rested = self.resting.remove(&plan.shard).and_then(|resting| resting.work);
        // Another owner may have worked on the move since, or ended it. Then the work does not know how far it is.
        let is_up_to_date =
            |work: &Work| work.own_since == shared.own_since(plan) && work.requested_at == plan.requested_at;
        let rested = rested.filter(is_up_to_date);
        let mut work = rested.unwrap_or_else(|| Work::new(Arc::clone(shared), plan, stop.clone()));
        work.unit = Some(at_work());
        work
    }

    fn rest(&mut self, ended: Result<Resting, JoinError>) {
        let resting = ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        self.busy.remove(&resting.shard);
        self.resting.insert(resting.shard, resting);
    }

    fn may_begin(&self, shard: ShardId) -> bool {
        let has_rested = |resting: &Resting| resting.until <= Instant::now();
        !self.busy.contains(&shard) && self.resting.get(&shard).is_none_or(has_rested)
    }

    /// The time until a move has rested, or until the next look.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        let left = self.resting.values().map(|resting| resting.until.saturating_duration_since(now));
        left.filter(|left| !left.is_zero()).fold(LOOK_EVERY, Duration::min)
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
                self.note_cuts(&plans);
                self.plans.store(Arc::new(plans.into_iter().map(|plan| (plan.shard, plan)).collect()));
            }
            Err(error) => tracing::debug!(error = &error as &dyn std::error::Error, "could not read the moves"),
        }
    }

    /// Takes note of the cuts that have ended, and forgets those of moves that have.
    fn note_cuts(&self, plans: &[MoveRow]) {
        let mut noted = self.cuts_ended.lock();
        let (before, now) = (std::mem::take(&mut *noted), Instant::now());
        let ended = plans.iter().filter(|plan| plan.has_cut).map(|plan| (plan.shard, plan.requested_at));
        noted.extend(ended.map(|of_move| (of_move, before.get(&of_move).copied().unwrap_or(now))));
    }

    /// Whether the cut of the move has ended long enough ago to delete what it has left in its source.
    fn may_clean(&self, plan: &MoveRow) -> bool {
        let ended = self.cuts_ended.lock().get(&(plan.shard, plan.requested_at)).copied();
        plan.has_cut && ended.is_some_and(|ended| ended.elapsed() >= CLEAN_AFTER)
    }

    /// The move to begin, if there is one and a place for it.
    ///
    /// A closed shard waits for no place, because its tasks wait. A move that did not get on goes before one that has
    /// not begun, because its shard may be leaving, and then its writes cost more. But only one of these takes a place
    /// while others wait: it may only ask a silent database again.
    fn next(&self, begun: &Begun) -> Option<MoveRow> {
        let plans = self.plans.load();
        let held_up = self.held_up.lock();
        let is_ripe = |plan: &MoveRow| !plan.has_cut || self.may_clean(plan);
        let wanted = plans.values().filter(|plan| begun.may_begin(plan.shard) && is_ripe(plan) && self.owns(plan));
        let wanted: Vec<&MoveRow> = wanted.collect();
        if let Some(closed) = wanted.iter().find(|plan| self.is_closed(plan.shard)) {
            return Some((*closed).clone());
        }
        if begun.busy.len() >= SHARDS_AT_ONCE {
            return None;
        }
        let (again, others): (Vec<&MoveRow>, Vec<_>) = wanted.iter().partition(|plan| held_up.contains(&plan.shard));
        let longest = again.into_iter().min_by_key(|plan| begun.resting.get(&plan.shard).map(|resting| resting.until));
        let plans_held_up = || held_up.iter().filter_map(|shard| plans.get(shard));
        let is_like_one = |plan: &MoveRow| plans_held_up().any(|other| has_same_ends(plan, other));
        let first = others.into_iter().find(|plan| held_up.len() < HELD_UP_MOST || !is_like_one(plan));
        let is_one_under_way = begun.busy.iter().any(|shard| held_up.contains(shard));
        if is_one_under_way { first.or(longest) } else { longest.or(first) }.cloned()
    }

    /// Whether the last part of the move is under way, as far as the map shows.
    fn is_closed(&self, shard: ShardId) -> bool {
        self.databases.places().of(shard).is_some_and(|place| place.status == ShardStatus::Gone)
    }

    /// Whether this node has the shard, and a move of it is asked for.
    fn is_to_move(&self, shard: ShardId) -> bool {
        self.plans.load().get(&shard).is_some_and(|plan| self.owns(plan))
    }

    fn owns(&self, plan: &MoveRow) -> bool {
        self.own_since(plan).is_some()
    }

    /// The epoch since which no other node has owned the shard. It is in a third database where an old map led to the
    /// plan.
    fn own_since(&self, plan: &MoveRow) -> Option<Epoch> {
        self.databases.indexed().find_map(|(_, database)| database.owned_shards.own_since(plan.shard))
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

    fn tell(&self, begun: &Begun) {
        let mut held_up = self.held_up.lock();
        held_up.retain(|shard| begun.busy.contains(shard) || begun.resting.contains_key(shard));
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.moves_under_way.set(gauge(begun.busy.union(&held_up).count()));
        self.metrics.moves_held_up.set(gauge(held_up.len()));
    }
}

fn has_same_ends(plan: &MoveRow, other: &MoveRow) -> bool {
    plan.source == other.source && plan.target == other.target
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
