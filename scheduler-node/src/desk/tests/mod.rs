//! A desk with real databases, without a cluster or a broker.

mod bulk;
mod changed_limits;
mod collect;
pub(crate) mod drain;
mod firer;
mod firer_decisions;
mod firer_overdue;
mod firer_takes;
mod keys;
mod limits;
mod looked_up;
mod loss;
mod moves;
mod queues;
mod reading;
mod receive;
mod schedules;
pub(crate) mod shards;
mod submit;
mod tasks;
mod tokens;
mod views;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use common::{
    ids::{Attempt, ClusterId, Epoch, Incarnation, NodeId, NodeName, ShardId, TaskId},
    shard::ShardRange,
    wire::TaskRequest,
};
use futures::FutureExt;
use prometheus::Registry;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{Desk, Parts};
use crate::{
    access::Access,
    audit::{Audit, AuditMetrics, AuditRecord},
    broker::{BrokerState, ExchangeTroubles},
    config::Auth,
    coordination::{Coordination, Views, tests::coordination},
    loops::{
        cluster::{realm_keeper::RealmStanding, session_keeper::Session},
        dispatch::claim_on_insert::ClaimOnInsert,
        nudger::Nudger,
        outcome::{
            releaser::Releaser,
            reporter::{ReportLines, Reporter},
        },
        submit::{
            keyed_submitter::KeyedSubmitter,
            submitter::{self, SubmitJobs, Submitter},
        },
        upkeep::{prober::NodeFitness, queue_reader::Books},
    },
    metrics::Metrics,
    readiness::{Readiness, Sources},
    store::{
        Database, Store,
        tests::fixture::{self, TestDatabase},
    },
    supervise::spawn_child,
    traces::Traces,
    working_set::{
        database::{NodeDatabase, NodeDatabases},
        owned_shards::OwnedShards,
        set_aside::SetAside,
    },
};

const HORIZON: Duration = Duration::from_secs(10);

/// One node's desk, and the parts that a test inspects.
pub(crate) struct Counter {
    pub(crate) desk: Desk,
    pub(crate) access: Arc<Access>,
    /// The entries of the audit log.
    pub(crate) notes: mpsc::Receiver<AuditRecord>,
    pub(crate) databases: NodeDatabases,
    pub(crate) books: Books,
    pub(crate) store: Store,
}

/// The settings in which a counter differs from a plain one.
#[derive(Clone, Copy)]
struct Setup {
    auto_create: bool,
    queues_max: u32,
    queues_max_per_caller: u32,
}

const PLAIN: Setup = Setup { auto_create: true, queues_max: 5_000, queues_max_per_caller: 1_000 };

fn counter(databases: Vec<Arc<Database>>, setup: Setup) -> Counter {
    counter_of(databases, setup, Arc::new(Access::new(&Auth::default())))
}

fn counter_of(databases: Vec<Arc<Database>>, setup: Setup, access: Arc<Access>) -> Counter {
    counter_in(databases, setup, access, nowhere(), watch::channel(Arc::default()).1)
}

/// An etcd that does not answer.
pub(crate) fn nowhere() -> Coordination {
    let nowhere = coordination(&["http://127.0.0.1:1".to_owned()], "/nowhere").now_or_never();
    nowhere.expect("opens no connection yet")
}

/// A counter whose node belongs to a cluster.
fn counter_in(
    stores: Vec<Arc<Database>>,
    setup: Setup,
    access: Arc<Access>,
    coordination: Coordination,
    views: Views,
) -> Counter {
    let registry = Registry::new();
    let metrics = Arc::new(Metrics::register(&registry).expect("a fresh registry takes them"));
    let database = |database: &Arc<Database>| NodeDatabase {
        sql: Arc::clone(database),
        owned_shards: Arc::new(OwnedShards::new(1_000)),
        ready_queues: Arc::default(),
        inbox: Arc::default(),
        outdated: Arc::default(),
        set_aside: SetAside::default(),
        suspects: Default::default(),
        without_partition: Default::default(),
        nudge: Arc::default(),
        unstored: Default::default(),
        hearing: Default::default(),
        unwritten: Default::default(),
    };
    let databases = stores.iter().map(database).collect();
    let store = fixture::store(stores);
    let databases = NodeDatabases::new(databases, store.places().clone());
    let books = Books::default();
    let (fitness, fit) = watch::channel(NodeFitness::default());
    let nudger = Nudger::new(databases.clone(), HORIZON);
    let submitter = Submitter::new(databases.clone(), Arc::clone(&books), fit.clone(), HORIZON);
    let claim_on_insert = ClaimOnInsert {
        databases: databases.clone(),
        lanes: Arc::default(),
        books: Arc::clone(&books),
        // A blocked broker takes no messages, so every task stays where it was written.
        broker: watch::channel(BrokerState::Up { blocked: true }).1,
        publisher: mpsc::channel(1).0,
        window: 1_000,
        metrics: Arc::clone(&metrics),
    };
    for (index, database) in databases.indexed() {
        let SubmitJobs { jobs, puts } = submitter.add_line();
        let run = submitter::run(index, jobs, claim_on_insert.clone(), nudger.clone(), CancellationToken::new());
        spawn_child(run);
        let (database, books, releaser) = (database.clone(), Arc::clone(&books), Releaser::new(nudger.clone()));
        let keyed_submitter = KeyedSubmitter { database, books, releaser, metrics: Arc::clone(&metrics) };
        spawn_child(keyed_submitter.run(puts, CancellationToken::new()));
    }
    let (audit, notes) = Audit::new(AuditMetrics::register(&registry).expect("registered once"));
    let reporter = Reporter {
        databases: databases.clone(),
        books: Arc::clone(&books),
        releaser: Releaser::new(nudger.clone()),
        metrics: Arc::clone(&metrics),
        traces: Traces::default(),
        receipts: watch::channel(None).1,
        lines: ReportLines::default(),
        default_exchange: true,
        audit: audit.clone(),
    };
    let readiness = Readiness::new(Sources {
        fitness: fit,
        broker: watch::channel(BrokerState::Up { blocked: false }).1,
        session: watch::channel(Session::of_test()).1,
        cluster: watch::channel(Some(ClusterId::new(uuid::Uuid::from_u128(1)))).1,
        realm: watch::channel(RealmStanding::default()).1,
        admitted: watch::channel(Some(ClusterId::new(uuid::Uuid::from_u128(1)))).1,
        leaving: CancellationToken::new(),
        exchanges: ExchangeTroubles::default(),
        set_aside: SetAside::default(),
        pulse: crate::supervise::Pulse::default(),
    });
    drop(fitness);
    let desk = Desk::new(Parts {
        me: NodeId { name: NodeName::new("a"), incarnation: Incarnation::new(uuid::Uuid::new_v4()) },
        store: store.clone(),
        submitter,
        nudger,
        reporter,
        books: Arc::clone(&books),
        access: Arc::clone(&access),
        audit,
        max_payload_bytes: 1_000,
        auto_create: setup.auto_create,
        queues_max: setup.queues_max,
        queues_max_per_caller: setup.queues_max_per_caller,
        views,
        frozen_until: watch::channel(None).1,
        coordination,
        metrics,
        traces: Traces::default(),
        readiness,
    });
    Counter { desk, access, notes, databases, books, store }
}

/// A counter with a fresh database of its own.
pub(crate) async fn fresh() -> (Counter, TestDatabase) {
    let test = fixture::database().await;
    (counter(vec![Arc::clone(&test.database)], PLAIN), test)
}

fn lower_half() -> ShardRange {
    ShardRange::new(ShardId::new(0), ShardId::new(63)).expect("in order")
}

fn upper_half() -> ShardRange {
    ShardRange::new(ShardId::new(64), ShardId::new(127)).expect("in order")
}

/// A counter with two databases, each with half of the shards.
pub(crate) async fn with_two_databases() -> (Counter, [TestDatabase; 2]) {
    with_two_databases_among(watch::channel(Arc::default()).1).await
}

/// The same in a cluster.
async fn with_two_databases_among(views: Views) -> (Counter, [TestDatabase; 2]) {
    let tests = [fixture::database().await, fixture::database().await];
    tests[0].keep_shards(lower_half()).await;
    tests[1].keep_shards(upper_half()).await;
    let databases = vec![fixture::named("main", &tests[0].url), fixture::named("east", &tests[1].url)];
    let access = Arc::new(Access::new(&Auth::default()));
    (counter_in(databases, PLAIN, access, nowhere(), views), tests)
}

/// The same with a third database, which does not exist.
pub(crate) async fn with_two_of_three_databases() -> (Counter, [TestDatabase; 2]) {
    let tests = [fixture::database().await, fixture::database().await];
    tests[0].keep_shards(lower_half()).await;
    tests[1].keep_shards(upper_half()).await;
    let databases = [fixture::named("main", &tests[0].url), fixture::named("east", &tests[1].url)];
    (counter(databases.into_iter().chain([fixture::unreachable_database("west")]).collect(), PLAIN), tests)
}

/// A counter with three databases, of which the third has no shards.
pub(crate) async fn with_three_databases() -> (Counter, [TestDatabase; 3]) {
    let tests = [fixture::database().await, fixture::database().await, fixture::database().await];
    tests[0].keep_shards(lower_half()).await;
    tests[1].keep_shards(upper_half()).await;
    sqlx::raw_sql("DELETE FROM duetime.shard").execute(&tests[2].pool).await.expect("deleted");
    let named = |(name, test): (&str, &TestDatabase)| fixture::named(name, &test.url);
    (counter(["main", "east", "west"].into_iter().zip(&tests).map(named).collect(), PLAIN), tests)
}

/// A counter whose second database does not exist.
async fn with_one_of_two_gone() -> (Counter, TestDatabase) {
    let test = fixture::database().await;
    test.keep_shards(lower_half()).await;
    let databases = vec![fixture::named("main", &test.url), fixture::unreachable_database("east")];
    (counter(databases, PLAIN), test)
}

/// Makes the queues of a database unreadable, or readable again. All else of it goes on.
pub(crate) async fn hide_queues(test: &TestDatabase, are_hidden: bool) {
    let rename = match are_hidden {
        true => "ALTER TABLE duetime.meta RENAME COLUMN queue_revision TO hidden",
        false => "ALTER TABLE duetime.meta RENAME COLUMN hidden TO queue_revision",
    };
    sqlx::raw_sql(rename).execute(&test.pool).await.unwrap();
}

pub(crate) fn request(json: &str) -> TaskRequest {
    TaskRequest::parse(json).expect("a task")
}

/// Takes a task through a claim, as its owner would.
pub(crate) async fn claim(counter: &Counter, id: TaskId) -> Attempt {
    let node = NodeId { name: NodeName::new("a"), incarnation: Incarnation::new(uuid::Uuid::new_v4()) };
    let database = counter.store.of(id.shard()).expect("shards exist");
    let fences: BTreeMap<ShardId, Epoch> =
        database.shard_acquire(&[id.shard()], &node).await.unwrap().into_iter().collect();
    let claimed = database.task_claim(&[id], &fences, Duration::ZERO, &BTreeSet::new(), i64::MAX).await.unwrap();
    claimed.deliveries.first().expect("it was due").attempt
}
