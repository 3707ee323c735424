//! Whole nodes, reduced to their part in the cluster, on a real etcd and a database of which only the fence is
//! simulated.
#![expect(clippy::print_stdout, reason = "figures for a person who reads the test's output")]

mod chaos;
mod faults;
mod moves;
mod outage;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::{
    cluster::ClusterView,
    delay::Hearing,
    ids::{DatabaseName, Epoch, NodeId, ShardId, Term},
    shard::ShardRange,
    time::UnixMicros,
};
use integration_tests::sandbox::Etcd;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{Fence, Owner, OwnerDatabase, leave};
use crate::{
    by_database::ByDatabase,
    coordination::{
        Coordination, Mirror, Views,
        tests::{KEPT, TTL, coordination_for, eventually, member, node, own_etcd, shared_etcd, soon},
    },
    loops::cluster::{
        assigner::Assigner,
        elector::{Elector, Mastership},
        session_keeper::{MemberFitness, Session, SessionKeeper, SessionState},
    },
    store::{self, Effect, Places, StoreOp},
    supervise::spawn_child,
    working_set::owned_shards::OwnedShards,
};

const SHARDS: u32 = 24;

fn main_database() -> DatabaseName {
    DatabaseName::new("main")
}

fn databases() -> [DatabaseName; 2] {
    [main_database(), DatabaseName::new("east")]
}

/// A node that reaches everything.
fn fit() -> MemberFitness {
    MemberFitness { used: databases().into(), ..MemberFitness::default() }
}

/// The fence rows, as all nodes see them.
#[derive(Debug, Default)]
struct Fences {
    rows: Mutex<BTreeMap<ShardId, Epoch>>,
    /// Those that a claim holds.
    held: watch::Sender<BTreeSet<ShardId>>,
}

/// One node's access to the fence rows.
#[derive(Debug)]
struct Line {
    fences: Arc<Fences>,
    down: AtomicBool,
    /// Whether the next look at the fences fails, as on a connection that has died.
    next_look_fails: AtomicBool,
    /// A permit lets one statement through.
    slow: Option<Semaphore>,
    statements: Mutex<Vec<usize>>,
}

impl Fence for Line {
    async fn acquire_free(&self, shards: &[ShardId], _: &NodeId) -> Result<Vec<(ShardId, Epoch)>, store::Error> {
        let held = self.fences.held.borrow().clone();
        let free: Vec<ShardId> = shards.iter().filter(|shard| !held.contains(shard)).copied().collect();
        self.take(&free).await
    }

    async fn acquire(&self, shards: &[ShardId], _: &NodeId) -> Result<Vec<(ShardId, Epoch)>, store::Error> {
        let mut held = self.fences.held.subscribe();
        held.wait_for(|held| shards.iter().all(|shard| !held.contains(shard))).await.unwrap();
        self.take(shards).await
    }

    async fn still_held(&self, fences: &BTreeMap<ShardId, Epoch>) -> Result<Vec<ShardId>, store::Error> {
        self.reached(StoreOp::ShardHeld)?;
        if self.next_look_fails.swap(false, Ordering::Relaxed) {
            return Err(Self::unreached(StoreOp::ShardHeld));
        }
        let rows = self.fences.rows.lock();
        let is_held = |(shard, epoch): &(&ShardId, &Epoch)| rows.get(*shard).is_none_or(|row| row <= *epoch);
        Ok(fences.iter().filter(is_held).map(|(shard, _)| *shard).collect())
    }
}

impl Line {
    fn new(fences: Arc<Fences>, slow: Option<Semaphore>) -> Self {
        let (down, next_look_fails) = Default::default();
        Self { fences, down, next_look_fails, slow, statements: Mutex::default() }
    }

    fn reached(&self, op: StoreOp) -> Result<(), store::Error> {
        if !self.down.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Self::unreached(op))
    }

    fn unreached(op: StoreOp) -> store::Error {
        store::Error { database: main_database(), op, effect: Effect::None, source: None }
    }

    async fn take(&self, shards: &[ShardId]) -> Result<Vec<(ShardId, Epoch)>, store::Error> {
        if let Some(slow) = &self.slow {
            slow.acquire().await.unwrap().forget();
        }
        self.reached(StoreOp::ShardAcquire)?;
        self.statements.lock().push(shards.len());
        let mut rows = self.fences.rows.lock();
        let mut next = |shard: &ShardId| {
            let epoch = Epoch::from_store(rows.get(shard).map_or(1, |epoch| epoch.number() + 1));
            rows.insert(*shard, epoch);
            (*shard, epoch)
        };
        Ok(shards.iter().map(&mut next).collect())
    }
}

/// The cluster loops of one node.
struct TestNode {
    me: NodeId,
    coordination: Coordination,
    owned_shards: Arc<OwnedShards>,
    /// Its share of a second database, which has no shards at first.
    east: Arc<OwnedShards>,
    /// Of both databases.
    hearings: [Arc<Mutex<Hearing>>; 2],
    places: Places,
    line: Arc<Line>,
    views: Views,
    session: watch::Receiver<Session>,
    mastership: watch::Receiver<Mastership>,
    frozen_until: watch::Receiver<Option<UnixMicros>>,
    fitness: watch::Sender<MemberFitness>,
    leaving: CancellationToken,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

/// The cluster that the nodes of a test share.
struct World {
    endpoints: Vec<String>,
    prefix: String,
    /// The time to live of the nodes' leases.
    lease_ttl: Duration,
    fences: Arc<Fences>,
}

impl World {
    async fn shared() -> Self {
        let (endpoints, prefix) = shared_etcd().await;
        Self { endpoints, prefix, lease_ttl: KEPT, fences: Arc::default() }
    }

    fn on(endpoints: Vec<String>) -> Self {
        Self { endpoints, prefix: "/duetime".to_owned(), lease_ttl: KEPT, fences: Arc::default() }
    }

    /// The leases of crashed nodes run out within the test. So can those of living ones, when a busy machine stands
    /// still.
    fn with_short_leases(self) -> Self {
        Self { lease_ttl: TTL, ..self }
    }

    async fn start(&self, name: &str) -> TestNode {
        self.start_as(node(name), None).await
    }

    async fn start_as(&self, me: NodeId, slow: Option<Semaphore>) -> TestNode {
        let coordination = coordination_for(&self.endpoints, &self.prefix, self.lease_ttl).await;
        let database = main_database();
        let owned_shards = Arc::new(OwnedShards::new(100));
        let line = Arc::new(Line::new(Arc::clone(&self.fences), slow));
        let (leaving, stop) = (CancellationToken::new(), CancellationToken::new());
        let (fitness, found) = watch::channel(fit());
        let (mirror, views) = Mirror::new(coordination.clone());
        let (keeper, session) =
            SessionKeeper::new(coordination.clone(), member(&me), views.clone(), found.clone(), leaving.clone());
        let metrics = Arc::clone(coordination.metrics());
        let (elector, mastership) = Elector::new(me.clone(), views.clone(), session.clone(), metrics);
        let places = Places::new(ByDatabase::default());
        places.presume(&[ShardRange::all(SHARDS)], u16::try_from(SHARDS).unwrap());
        let assigner = Assigner::new(
            coordination.clone(),
            databases().into_iter().collect(),
            places.clone(),
            views.clone(),
            mastership.clone(),
            session.clone(),
            watch::Sender::default().subscribe(),
        );
        let frozen_until = assigner.frozen_until();
        let east = Arc::new(OwnedShards::new(100));
        let hearings: [Arc<Mutex<Hearing>>; 2] = Default::default();
        let of = |name, owned_shards: &Arc<OwnedShards>, hearing: &Arc<Mutex<Hearing>>| OwnerDatabase {
            name,
            owned_shards: Arc::clone(owned_shards),
            hearing: Arc::clone(hearing),
            fence: Arc::clone(&line),
        };
        let [of_main, of_east] = &hearings;
        let databases = [of(database, &owned_shards, of_main), of(DatabaseName::new("east"), &east, of_east)];
        let owner = Owner::new(
            me.clone(),
            coordination.clone(),
            databases.into_iter().collect(),
            places.clone(),
            views.clone(),
            session.clone(),
            found,
            leaving.clone(),
        );
        let tasks = vec![
            spawn_child(mirror.run(stop.clone())),
            spawn_child(keeper.run(stop.clone())),
            spawn_child(elector.run(stop.clone())),
            spawn_child(assigner.run(stop.clone())),
            spawn_child(owner.run(stop.clone())),
        ];
        TestNode {
            me,
            coordination,
            owned_shards,
            east,
            hearings,
            places,
            line,
            views,
            session,
            mastership,
            frozen_until,
            fitness,
            leaving,
            stop,
            tasks,
        }
    }
}

impl TestNode {
    /// Ends the node without leaving, as a power failure does.
    fn crash(self) {
        drop(self);
    }

    /// Ends the node without leaving, and its lease at once, as if its time were up.
    async fn vanish(self) {
        let (coordination, lease) = (self.coordination.clone(), self.session.borrow().lease());
        drop(self);
        coordination.lease_revoke(lease.expect("the node has joined")).await.unwrap();
    }

    /// Stops the node as SIGTERM does.
    async fn leave(mut self) -> bool {
        let helds = [Arc::clone(&self.owned_shards)];
        let done = leave(&self.me, &self.leaving, &self.coordination, self.views.clone(), &helds).await;
        self.stop.cancel();
        for task in self.tasks.drain(..) {
            soon("the end of a loop", task).await.unwrap();
        }
        done
    }

    fn owned(&self) -> BTreeMap<ShardId, Epoch> {
        self.owned_shards.owned()
    }

    /// Whether deadlines wait for reports in the first database, and in the second.
    fn hears_first(&self) -> [bool; 2] {
        self.hearings.each_ref().map(|hearing| hearing.lock().must_ask())
    }

    fn view(&self) -> Arc<ClusterView> {
        self.views.borrow().clone()
    }

    fn is_master(&self) -> bool {
        self.mastership.borrow().term.is_some()
    }

    fn standing(&self) -> SessionState {
        self.session.borrow().standing.clone()
    }

    fn has_joined(&self) -> bool {
        self.session.borrow().joined().is_some()
    }

    /// Its place in the queue for master.
    fn term(&self) -> Option<Term> {
        self.session.borrow().candidacy()
    }

    fn keyed(&self) -> usize {
        self.view().owners.values().filter(|owner| owner.node == self.me).count()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Whether each shard is owned by one of `nodes`, their counts differ by at most one, and etcd agrees.
fn is_balanced(nodes: &[&TestNode]) -> bool {
    let owned: Vec<_> = nodes.iter().map(|node| node.owned()).collect();
    let counts: Vec<usize> = owned.iter().map(BTreeMap::len).collect();
    let all: BTreeMap<ShardId, Epoch> = owned.into_iter().flatten().collect();
    let even = counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1;
    let keyed = nodes.iter().zip(&counts).all(|(node, count)| node.keyed() == *count);
    even && keyed && all.len() == SHARDS as usize && counts.iter().sum::<usize>() == all.len()
}

async fn balanced(nodes: &[&TestNode]) {
    let names: Vec<String> = nodes.iter().map(|node| node.me.to_string()).collect();
    eventually(&format!("an even share for {names:?}"), || is_balanced(nodes)).await;
}

fn epochs(nodes: &[&TestNode]) -> Vec<BTreeMap<ShardId, Epoch>> {
    nodes.iter().map(|node| node.owned()).collect()
}
