//! Brings the shards that this node owns in line with the assignment.
//!
//! It looks whenever the cluster changes, and once a second. The acts that a look finds necessary run beside the
//! loop, one act per shard at a time:
//! - acquire: owner key -> fence -> is the key still this node's? -> adopt. Keys of one database that are ready at
//!   the same moment take their fences in one statement.
//! - release: does etcd still assign it away? -> wait for a turn -> stop claiming -> drain -> delete the owner key
//!   -> forget.
//! - register again: the key was lost, the fence was not.
//!
//! Without etcd it neither releases nor acquires anything: this node goes on until a fence refuses it. If it stops,
//! each shard stays with its owner and nothing moves.

mod act;
mod leave;
mod log;
mod note;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    sync::Arc,
    time::Duration,
};

use common::{
    cluster::{Action, ClusterView, ownership},
    ids::{DatabaseName, Epoch, NodeId, ShardId},
    shard::ShardRange,
};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::session_keeper::{Fitness, Session};
use crate::{
    coordination::{Coordination, LeaseId, OwnerKey, Views},
    store,
    working_set::owned_shards::OwnedShards,
};
use act::{Actor, Done};
pub use leave::leave;
use log::Log;

/// The interval between two passes when no change of the cluster is seen.
const PASS_INTERVAL: Duration = Duration::from_secs(1);

/// Requests to etcd under way: enough to move a hundred shards in a few round trips, few enough to leave room for
/// the lease.
const REQUESTS_IN_FLIGHT: usize = 16;

/// The longest drain. The next owner publishes tasks that are still in flight again in place.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest drain without the database or the broker, when tasks in flight are not going to end.
const HOPELESS_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause after a fence could not be taken. It doubles with each further failure, up to `FENCE_RETRY_LONGEST`.
const FENCE_RETRY: Duration = Duration::from_millis(500);
const FENCE_RETRY_LONGEST: Duration = Duration::from_secs(5);

/// The source of epochs.
pub trait Fence: fmt::Debug + Send + Sync + 'static {
    /// Takes the fences of `shards` for `node`. After that no claim under an older epoch commits.
    fn acquire(
        &self,
        shards: &[ShardId],
        node: &NodeId,
    ) -> impl Future<Output = Result<Vec<(ShardId, Epoch)>, store::Error>> + Send;
}

impl Fence for store::Database {
    async fn acquire(&self, shards: &[ShardId], node: &NodeId) -> Result<Vec<(ShardId, Epoch)>, store::Error> {
        self.shard_acquire(shards, node).await
    }
}

/// One database as the owner sees it.
#[derive(Debug)]
pub struct OwnerDatabase<F> {
    pub name: DatabaseName,
    pub shards: ShardRange,
    pub owned_shards: Arc<OwnedShards>,
    pub fence: Arc<F>,
}

/// Acquires and releases shards; the module says how.
#[derive(Debug)]
pub struct Owner<F> {
    actor: Actor,
    databases: Vec<OwnerDatabaseState<F>>,
    views: Views,
    session: watch::Receiver<Session>,
    fitness: watch::Receiver<Fitness>,
    leaving: CancellationToken,
    acts: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Shards with an act under way.
    busy: BTreeSet<ShardId>,
    log: Log,
}

/// A database and the acts under way in it.
#[derive(Debug)]
struct OwnerDatabaseState<F> {
    database: OwnerDatabase<F>,
    /// Owner keys that wait for the fence.
    created: Vec<OwnerKey>,
    fencing: bool,
    retry: Option<Retry>,
}

/// A fence could not be taken; the next attempt comes at `at` or later.
#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Instant,
    pause: Duration,
}

impl<F: Fence> Owner<F> {
    /// Cancelling `leaving` ends all acquiring.
    pub fn new(
        me: NodeId,
        coordination: Coordination,
        databases: Vec<OwnerDatabase<F>>,
        views: Views,
        session: watch::Receiver<Session>,
        fitness: watch::Receiver<Fitness>,
        leaving: CancellationToken,
    ) -> Self {
        let requests = || Arc::new(Semaphore::new(REQUESTS_IN_FLIGHT));
        let actor = Actor { me, coordination, requests: requests(), last_requests: requests() };
        let state = |database| OwnerDatabaseState { database, created: Vec::new(), fencing: false, retry: None };
        Self {
            actor,
            databases: databases.into_iter().map(state).collect(),
            views,
            session,
            fitness,
            leaving,
            acts: FuturesUnordered::new(),
            busy: BTreeSet::new(),
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
                () = leaving.cancelled(), if !left => {
                    left = true;
                    None
                }
                _ = pass.tick() => {
                    self.log.flush();
                    None
                }
            };
            self.take(done);
            self.activate();
        }
        self.log.flush();
    }

    /// Notes the result of an act, and of every other act that has ended by now.
    fn take(&mut self, mut done: Option<Done>) {
        while let Some(one) = done {
            self.note(one);
            done = self.acts.next().now_or_never().flatten();
        }
    }

    fn activate(&mut self) {
        let view = self.views.borrow_and_update().clone();
        let owned = self.owned();
        let known = (view.revision > 0).then_some(&*view);
        let leaving = self.leaving.is_cancelled();
        let actions = ownership::step(&self.actor.me, &owned, known, &self.unfit(), leaving);
        self.act(actions, &owned);
        self.take_fences();
        self.gauge(&view);
        if self.busy.is_empty() {
            self.log.flush();
        }
    }

    fn owned(&self) -> BTreeMap<ShardId, Epoch> {
        self.databases.iter().flat_map(|state| state.database.owned_shards.owned()).collect()
    }

    /// Shards whose database this node cannot reach.
    fn unfit(&self) -> BTreeSet<ShardId> {
        let fitness = self.fitness.borrow();
        let unfit = self.databases.iter().filter(|state| fitness.unfit.contains(&state.database.name));
        unfit.flat_map(|state| state.database.shards.iter()).collect()
    }

    fn act(&mut self, actions: Vec<Action>, owned: &BTreeMap<ShardId, Epoch>) {
        let lease = self.session.borrow_and_update().lease;
        let mut leaving = Vec::new();
        for action in actions {
            let shard = action.shard();
            // A shard of no configured database: the nodes are configured differently.
            let Some(index) = self.index_of(shard) else { continue };
            if self.busy.contains(&shard) {
                continue;
            }
            match (action, lease) {
                (Action::Drop { .. }, _) => self.lose(index, shard),
                (Action::Release { .. }, _) if owned.contains_key(&shard) => leaving.push(shard),
                (Action::Release { .. }, _) => self.begin(shard, self.actor.clone().release_key(index, shard)),
                (Action::Reregister { epoch, .. }, Some(lease)) => {
                    self.begin(shard, self.actor.clone().reregister(shard, epoch, lease));
                }
                (Action::Acquire { .. }, Some(lease)) => self.acquire(index, shard, lease),
                (Action::Reregister { .. } | Action::Acquire { .. }, None) => {}
            }
        }
        if !leaving.is_empty() {
            self.busy.extend(&leaving);
            self.acts.push(self.actor.clone().look(leaving).boxed());
        }
    }

    fn begin(&mut self, shard: ShardId, act: impl Future<Output = Done> + Send + 'static) {
        self.busy.insert(shard);
        self.acts.push(act.boxed());
    }

    fn lose(&mut self, index: usize, shard: ShardId) {
        self.databases[index].database.owned_shards.forget(&[shard]);
        self.log.dropped.insert(shard);
    }

    fn acquire(&mut self, index: usize, shard: ShardId, lease: LeaseId) {
        if self.databases[index].retry.is_none_or(|retry| retry.at <= Instant::now()) {
            self.begin(shard, self.actor.clone().create(index, shard, lease));
        }
    }

    /// Takes the fences of waiting keys, one statement at a time for each database. Keys that become ready
    /// meanwhile go into the next.
    fn take_fences(&mut self) {
        let now = Instant::now();
        for (index, state) in self.databases.iter_mut().enumerate() {
            if state.fencing || state.created.is_empty() {
                continue;
            }
            let keys = std::mem::take(&mut state.created);
            if state.retry.is_some_and(|retry| retry.at > now) {
                for key in keys {
                    self.busy.remove(&key.shard);
                }
                continue;
            }
            state.fencing = true;
            let fence = Arc::clone(&state.database.fence);
            self.acts.push(self.actor.clone().fence(index, keys, fence).boxed());
        }
    }

    fn index_of(&self, shard: ShardId) -> Option<usize> {
        self.databases.iter().position(|state| state.database.shards.contains(shard))
    }

    fn gauge(&self, view: &ClusterView) {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let metrics = self.actor.coordination.metrics();
        let owned = self.owned();
        metrics.shards_owned.set(gauge(owned.len()));
        metrics.drained.set(i64::from(view.drained.contains(&self.actor.me)));
        // Counts shards without an owner key, and those whose key this node has without the fence: nothing in them
        // is dispatched.
        let is_unowned = |shard: &ShardId| match view.owners.get(shard) {
            Some(owner) => owner.node == self.actor.me && !owned.contains_key(shard),
            None => true,
        };
        let shards = self.databases.iter().flat_map(|state| state.database.shards.iter());
        metrics.shards_unowned.set(gauge(shards.filter(is_unowned).count()));
    }
}
