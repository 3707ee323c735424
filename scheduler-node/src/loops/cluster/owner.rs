//! Brings the shards that this node owns in line with the assignment.
//!
//! It looks whenever the cluster changes, and once a second. The acts that a look finds necessary run beside the
//! loop, one act per shard at a time:
//! - acquire: owner keys -> fences -> are the keys still this node's? -> adopt. Shards of one database that are ready
//!   at the same moment share their requests to etcd and take their fences in one statement. Shards whose fences a
//!   claim holds wait in a statement of their own, so that they delay no other shard.
//! - release: does etcd still assign it away? -> wait for a turn -> stop claiming -> drain -> delete the owner key
//!   -> forget.
//! - reregister: the key was lost -> is the fence still held? -> create the key.
//!
//! A shard that has moved to another database is forgotten in the former one and acquired in its new place, unless the
//! loop that moved it has adopted it there. From a shard in the last part of a move nothing is claimed.
//!
//! Without etcd it neither releases nor acquires anything: this node goes on until a fence refuses it. If it stops,
//! each shard stays with its owner and nothing moves.

mod act;
mod database;
mod leave;
mod log;
mod note;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use common::{
    cluster::{Action, ClusterView, ownership},
    ids::{Epoch, NodeId, ShardId},
    shard::{ShardMap, ShardStatus, map::Place},
};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::session_keeper::{MemberFitness, Session};
use crate::{
    by_database::ByDatabase,
    coordination::{Coordination, KEYS_PER_TRANSACTION, LeaseId, OwnerKey, Views},
    store::Places,
    working_set::owned_shards::Stop,
};
use act::{ActResult, Actor};
pub use database::{Fence, OwnerDatabase};
pub use leave::leave;
use log::Log;

/// The interval between two passes when no change of the cluster is seen.
const PASS_INTERVAL: Duration = Duration::from_secs(1);

/// Requests to etcd under way: enough to move many shards in a few round trips, few enough to leave room for the
/// lease.
const REQUESTS_IN_FLIGHT: usize = 16;

/// Shards that are released together: their drains and their requests to etcd take about as long as one shard's. With
/// more of them, more tasks would wait for the slowest drain.
const RELEASED_TOGETHER: usize = 16;

/// The longest drain. The next owner publishes tasks that are still in flight again in place.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest drain without the database or the broker, when tasks in flight are not going to end.
const HOPELESS_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause after a fence could not be taken. It doubles with each further failure, up to `FENCE_RETRY_LONGEST`.
const FENCE_RETRY: Duration = Duration::from_millis(500);
const FENCE_RETRY_LONGEST: Duration = Duration::from_secs(5);

/// The first three attempts wait for a fence that a claim holds, and after them every fourth. The others take it only
/// if it is free, because a statement that waits delays all claims in the database.
const WAITS_AT_FIRST: u32 = 3;
const WAIT_EVERY: u32 = 4;

/// The pause after etcd did not do what an act asked for. It doubles with each further failure, up to
/// `ETCD_RETRY_LONGEST`: no longer, because a shard may wait for its owner when etcd is back.
const ETCD_RETRY: Duration = Duration::from_millis(500);
const ETCD_RETRY_LONGEST: Duration = Duration::from_secs(2);

/// Acquires and releases shards; the module says how.
#[derive(Debug)]
pub struct Owner<F> {
    actor: Actor,
    /// All databases that the node uses, also those that join later.
    joined: ByDatabase<OwnerDatabase<F>>,
    /// In the same order, as far as this loop has seen them.
    databases: Vec<OwnerDatabaseState<F>>,
    places: Places,
    map_changes: watch::Receiver<u64>,
    views: Views,
    session: watch::Receiver<Session>,
    fitness: watch::Receiver<MemberFitness>,
    leaving: CancellationToken,
    acts: FuturesUnordered<BoxFuture<'static, ActResult>>,
    /// Shards with an act under way.
    busy: BTreeSet<ShardId>,
    /// The revisions of the view and of the map at the last look.
    seen: (i64, u64),
    /// Shards whose acts have ended while the view and the map show them as before. They rest until one of the two
    /// changes, or until the next pass.
    resting: BTreeSet<ShardId>,
    /// etcd did not do what an act asked for. Present until no act is necessary.
    etcd_retry: Option<Retry>,
    /// etcd refused the last act; only the first refusal is logged. A write that succeeds resets it, and so does the
    /// end of all acts.
    refused: bool,
    log: Log,
}

/// A database and the acts under way in it.
#[derive(Debug)]
struct OwnerDatabaseState<F> {
    database: OwnerDatabase<F>,
    /// Owner keys that wait for the fence.
    created: Fencing,
    /// Those whose fences were not free.
    contested: Fencing,
    /// Those whose fences were not free while a statement waited for others.
    put_off: Vec<OwnerKey>,
    /// Shards whose fences could not be taken.
    retries: BTreeMap<ShardId, Retry>,
}

/// Owner keys that wait for a statement that takes their fences.
#[derive(Debug, Default)]
struct Fencing {
    keys: Vec<OwnerKey>,
    is_under_way: bool,
}

/// Attempts failed; the next one comes at `at` or later.
#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Instant,
    failures: u32,
    /// How many of them found that a claim held the fence.
    held: u32,
}

impl Retry {
    /// Pauses for `first`, or for twice the pause of `before`, up to `longest`.
    fn after(before: Option<Self>, first: Duration, longest: Duration) -> Self {
        let (failures, held) = before.map_or((0, 0), |before| (before.failures, before.held));
        let pause = (first * (1_u32 << failures.min(8))).min(longest);
        Self { at: Instant::now() + pause, failures: failures + 1, held }
    }

    fn held(self) -> Self {
        Self { held: self.held + 1, ..self }
    }

    /// Whether the next attempt waits for a fence that a claim holds.
    fn waits(before: Option<&Self>) -> bool {
        let held = before.map_or(0, |before| before.held);
        held < WAITS_AT_FIRST || held.is_multiple_of(WAIT_EVERY)
    }

    fn is_due(self) -> bool {
        self.at <= Instant::now()
    }
}

impl<F: Fence> Owner<F> {
    /// `joined`: all databases that the node uses, also those that join later. Cancelling `leaving` ends all acquiring.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the node, used once")]
    pub fn new(
        me: NodeId,
        coordination: Coordination,
        joined: ByDatabase<OwnerDatabase<F>>,
        places: Places,
        views: Views,
        session: watch::Receiver<Session>,
        fitness: watch::Receiver<MemberFitness>,
        leaving: CancellationToken,
    ) -> Self {
        let requests = || Arc::new(Semaphore::new(REQUESTS_IN_FLIGHT));
        let actor = Actor { me, coordination, requests: requests(), last_requests: requests() };
        Self {
            actor,
            joined,
            databases: Vec::new(),
            map_changes: places.changes(),
            places,
            views,
            session,
            fitness,
            leaving,
            acts: FuturesUnordered::new(),
            busy: BTreeSet::new(),
            seen: (0, 0),
            resting: BTreeSet::new(),
            etcd_retry: None,
            refused: false,
            log: Log::default(),
        }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        let mut pass = tokio::time::interval(PASS_INTERVAL);
        pass.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let leaving = self.leaving.clone();
        let mut left = false;
        loop {
            let done = tokio::select! {
                () = stop.cancelled() => break,
                Some(done) = self.acts.next() => Some(done),
                Ok(()) = self.views.changed() => None,
                Ok(()) = self.session.changed() => None,
                Ok(()) = self.fitness.changed() => None,
                Ok(()) = self.map_changes.changed() => None,
                () = leaving.cancelled(), if !left => {
                    left = true;
                    None
                }
                _ = pass.tick() => {
                    self.log.flush();
                    self.try_again();
                    None
                }
            };
            self.take(done);
            self.activate();
        }
        self.log.flush();
    }

    /// Notes the result of an act, and of every other act that has ended by now.
    fn take(&mut self, mut done: Option<ActResult>) {
        while let Some(one) = done {
            self.note(one);
            done = self.acts.next().now_or_never().flatten();
        }
    }

    fn try_again(&mut self) {
        self.resting.clear();
        for state in &mut self.databases {
            state.created.keys.append(&mut state.put_off);
        }
    }

    fn activate(&mut self) {
        let view = self.views.borrow_and_update().clone();
        let seen = (view.revision, *self.map_changes.borrow_and_update());
        if std::mem::replace(&mut self.seen, seen) != seen {
            self.resting.clear();
        }
        let map = self.places.load();
        self.join();
        self.follow(&map);
        seeded!(EtcdHoldsPermission, self.lose_without_lease());
        let owned = self.owned();
        let known = (view.revision > 0).then_some(&*view);
        let leaving = self.leaving.is_cancelled();
        let actions = ownership::step(&self.actor.me, &owned, known, &self.unfit(&map), leaving);
        self.act(actions, &owned);
        self.take_fences();
        self.gauge(&view);
        if self.busy.is_empty() {
            self.log.flush();
        }
    }

    /// Takes in the databases that have joined the node. The map was read before, so each place in it is one of them.
    fn join(&mut self) {
        let new = self.joined.iter().skip(self.databases.len()).cloned();
        let state = |database| OwnerDatabaseState {
            database,
            created: Fencing::default(),
            contested: Fencing::default(),
            put_off: Vec::new(),
            retries: BTreeMap::new(),
        };
        self.databases.extend(new.map(state));
    }

    /// Forgets shards that have moved to another database. Claims from a shard stop in the last part of a move, and go
    /// on if its source has opened it again.
    fn follow(&mut self, map: &ShardMap) {
        for (index, state) in self.databases.iter().enumerate() {
            let owned_shards = &state.database.owned_shards;
            for (shard, epoch) in owned_shards.owned() {
                let Some(place) = map.of(shard) else { continue };
                if place.database.get() != index {
                    // The mover adopts a shard in its target before the map shows it there, under an epoch above that
                    // of the map. The epoch of an acquired fence says nothing: it may have been taken beside that of
                    // the target, and the map is newer than the acquire.
                    let is_acquired = owned_shards.own_since(shard) == Some(epoch);
                    if (place.epoch > epoch || is_acquired) && owned_shards.forget_epoch(shard, epoch) {
                        self.log.moved.insert(shard);
                    }
                } else if place.status != ShardStatus::Gone {
                    // Another node has opened it: what the mover of this one opens, it adopts anew, and nothing stops.
                    if owned_shards.is_stopped(shard, Stop::Closed) {
                        state.database.hear_first(&[shard], &self.places);
                    }
                    owned_shards.resume_claiming(shard, epoch, Stop::Closed);
                } else {
                    owned_shards.stop_claiming_under(shard, epoch, Stop::Closed);
                }
            }
        }
    }

    fn owned(&self) -> BTreeMap<ShardId, Epoch> {
        self.databases.iter().flat_map(|state| state.database.owned_shards.owned()).collect()
    }

    /// The shards whose fence this node holds in the database that has them. A closed shard is in none.
    fn owned_at_place(&self) -> BTreeSet<ShardId> {
        let map = self.places.load();
        let held = self.databases.iter().enumerate().flat_map(|(index, state)| {
            state.database.owned_shards.owned().into_keys().map(move |shard| (index, shard))
        });
        let is_open = |place: Place, index| place.database.get() == index && place.status != ShardStatus::Gone;
        let open = held.filter(|(index, shard)| map.of(*shard).is_some_and(|place| is_open(place, *index)));
        open.map(|(_, shard)| shard).collect()
    }

    /// Shards whose database this node does not use or cannot reach.
    fn unfit(&self, map: &ShardMap) -> BTreeSet<ShardId> {
        let fitness = self.fitness.borrow();
        let unfit = self.databases.iter().map(|state| !fitness.is_fit_for(&state.database.name));
        let unfit: Vec<bool> = unfit.collect();
        let is_unfit = |index: usize| unfit.get(index).copied().unwrap_or(true);
        map.iter().filter(|(_, place)| is_unfit(place.database.get())).map(|(shard, _)| shard).collect()
    }

    fn act(&mut self, actions: Vec<Action>, owned: &BTreeMap<ShardId, Epoch>) {
        let lease = self.session.borrow_and_update().lease();
        if actions.is_empty() {
            (self.etcd_retry, self.refused) = (None, false);
        }
        let concerned: BTreeSet<ShardId> = actions.iter().map(|action| action.shard()).collect();
        for state in &mut self.databases {
            state.retries.retain(|shard, _| concerned.contains(shard));
        }
        let is_pausing = self.etcd_retry.is_some_and(|retry| !retry.is_due());
        let (mut leaving, mut lost_keys) = (Vec::new(), BTreeMap::<usize, Vec<_>>::new());
        let mut wanted: BTreeMap<usize, Vec<ShardId>> = BTreeMap::new();
        for action in actions {
            let shard = action.shard();
            // A shard of no database that was read.
            let Some(index) = self.index_of(shard) else { continue };
            if self.busy.contains(&shard) {
                continue;
            }
            match (action, lease) {
                (Action::Drop { .. }, _) => self.lose(shard),
                _ if is_pausing || self.resting.contains(&shard) => {}
                (Action::Release { .. }, _) if owned.contains_key(&shard) => leaving.push(shard),
                (Action::Release { .. }, _) => self.begin(shard, self.actor.clone().release_key(index, shard)),
                (Action::Reregister { epoch, .. }, _) => lost_keys.entry(index).or_default().push((shard, epoch)),
                (Action::Acquire { .. }, _) => wanted.entry(index).or_default().push(shard),
            }
        }
        if let Some(lease) = lease {
            self.reregister(lost_keys, lease);
            self.acquire(wanted, lease);
        }
        if !leaving.is_empty() {
            self.busy.extend(&leaving);
            self.acts.push(self.actor.clone().look(leaving).boxed());
        }
    }

    /// Creates lost keys again, many in one request.
    fn reregister(&mut self, lost_keys: BTreeMap<usize, Vec<(ShardId, Epoch)>>, lease: LeaseId) {
        for (index, owned) in lost_keys {
            for owned in owned.chunks(KEYS_PER_TRANSACTION) {
                self.busy.extend(owned.iter().map(|(shard, _)| *shard));
                let (actor, database) = (self.actor.clone(), self.databases[index].database.clone());
                self.acts.push(actor.reregister(index, owned.to_vec(), database, lease).boxed());
            }
        }
    }

    fn begin(&mut self, shard: ShardId, act: impl Future<Output = ActResult> + Send + 'static) {
        self.busy.insert(shard);
        self.acts.push(act.boxed());
    }

    /// What an owner does for which the lease, and not the fence, is the permission to dispatch.
    #[cfg(feature = "failpoints")]
    fn lose_without_lease(&mut self) {
        let renewed = self.session.borrow().last_renewal;
        if renewed.is_some_and(|at| at.elapsed() > self.actor.coordination.lease_ttl()) {
            self.owned().into_keys().for_each(|shard| self.lose(shard));
        }
    }

    fn lose(&mut self, shard: ShardId) {
        for state in &self.databases {
            state.database.owned_shards.forget(&[shard]);
        }
        self.log.dropped.insert(shard);
    }

    /// Creates the keys of shards, by the index of their database, many in one request.
    fn acquire(&mut self, wanted: BTreeMap<usize, Vec<ShardId>>, lease: LeaseId) {
        for (index, mut shards) in wanted {
            let retries = &self.databases[index].retries;
            shards.retain(|shard| retries.get(shard).is_none_or(|retry| retry.is_due()));
            for shards in shards.chunks(KEYS_PER_TRANSACTION) {
                self.busy.extend(shards);
                self.acts.push(self.actor.clone().create(index, shards.to_vec(), lease).boxed());
            }
        }
    }

    /// Takes the fences of waiting keys. For each database one statement at a time takes those that are free, and
    /// another waits for the others. Keys that become ready meanwhile go into the next.
    fn take_fences(&mut self) {
        for (index, state) in self.databases.iter_mut().enumerate() {
            for (fencing, waits) in [(&mut state.created, false), (&mut state.contested, true)] {
                if !fencing.is_under_way && !fencing.keys.is_empty() {
                    fencing.is_under_way = true;
                    let (keys, fence) = (std::mem::take(&mut fencing.keys), Arc::clone(&state.database.fence));
                    self.acts.push(self.actor.clone().fence(index, keys, fence, waits).boxed());
                }
            }
        }
    }

    fn index_of(&self, shard: ShardId) -> Option<usize> {
        let index = self.places.of(shard)?.database.get();
        (index < self.databases.len()).then_some(index)
    }

    fn gauge(&self, view: &ClusterView) {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let metrics = self.actor.coordination.metrics();
        let owned = self.owned();
        metrics.shards_owned.set(gauge(owned.len()));
        metrics.drained.set(i64::from(view.drained.contains(&self.actor.me)));
        // Counts shards without an owner key, and those whose key this node has without the fence in their place:
        // nothing in them is dispatched.
        let at_place = self.owned_at_place();
        let is_unowned = |shard: &ShardId| match view.owners.get(shard) {
            Some(owner) => owner.node == self.actor.me && !at_place.contains(shard),
            None => true,
        };
        let all = (0..self.places.shard_count().unwrap_or(0)).map(ShardId::new);
        metrics.shards_unowned.set(gauge(all.filter(is_unowned).count()));
    }
}
