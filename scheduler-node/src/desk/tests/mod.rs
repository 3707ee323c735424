//! A desk with real databases, without a cluster or a broker.

mod bulk;
mod collect;
pub(crate) mod drain;
mod limits;
mod queues;
mod receive;
mod schedules;
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
    ids::{Attempt, Epoch, Incarnation, NodeId, NodeName, ShardId, TaskId},
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
        cluster::session_keeper::{Session, SessionState},
        dispatch::claim_on_insert::ClaimOnInsert,
        nudger::Nudger,
        outcome::{releaser::Releaser, reporter::Reporter},
        submit::{
            keyed_submitter::KeyedSubmitter,
            submitter::{self, Submitter},
        },
        upkeep::{prober::NodeFitness, queue_reader::Books},
    },
    metrics::Metrics,
    readiness::Readiness,
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
    let nowhere = coordination(&["http://127.0.0.1:1".to_owned()], "/nowhere").now_or_never();
    let coordination = nowhere.expect("opens no connection yet");
    counter_in(databases, setup, access, coordination, watch::channel(Arc::default()).1)
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
    let names: Vec<String> = stores.iter().map(|database| database.name().to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let metrics = Arc::new(Metrics::register(&registry, &names).expect("a fresh registry takes them"));
    let database = |database: &Arc<Database>| NodeDatabase {
        sql: Arc::clone(database),
        owned_shards: Arc::new(OwnedShards::new(1_000)),
        ready_queues: Arc::default(),
        inbox: Arc::default(),
        outdated: Arc::default(),
        set_aside: SetAside::default(),
    };
    let databases = NodeDatabases::new(stores.iter().map(database).collect());
    let books = Books::default();
    let (fitness, fit) = watch::channel(NodeFitness::default());
    let nudger = Nudger::new(databases.clone(), HORIZON);
    let (submitter, intake) =
        Submitter::new(databases.clone(), Arc::clone(&books), fit.clone(), u32::from(fixture::SHARDS), HORIZON);
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
    for ((index, _), jobs) in databases.indexed().zip(intake.jobs) {
        let run = submitter::run(index, jobs, claim_on_insert.clone(), nudger.clone(), CancellationToken::new());
        spawn_child(run);
    }
    for (database, puts) in databases.all().iter().zip(intake.puts) {
        let (database, books, releaser) = (database.clone(), Arc::clone(&books), Releaser { nudger: nudger.clone() });
        let keyed_submitter = KeyedSubmitter { database, books, releaser, metrics: Arc::clone(&metrics) };
        spawn_child(keyed_submitter.run(puts, CancellationToken::new()));
    }
    let (audit, notes) = Audit::new(AuditMetrics::register(&registry).expect("registered once"));
    let reporter = Reporter {
        databases: databases.clone(),
        books: Arc::clone(&books),
        releaser: Releaser { nudger: nudger.clone() },
        metrics: Arc::clone(&metrics),
        traces: Traces::default(),
        receipts: watch::channel(None).1,
        default_exchange: true,
        audit: audit.clone(),
    };
    let joined = Session { standing: SessionState::Joined, lease: None, candidacy: None, last_renewal: None };
    let readiness = Readiness::new(
        fit,
        watch::channel(BrokerState::Up { blocked: false }).1,
        watch::channel(joined).1,
        CancellationToken::new(),
        ExchangeTroubles::default(),
        SetAside::default(),
        crate::supervise::Pulse::default(),
    );
    drop(fitness);
    let store = Store::new(stores);
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
async fn with_two_databases() -> (Counter, [TestDatabase; 2]) {
    let tests = [fixture::database().await, fixture::database().await];
    let databases =
        vec![fixture::named("main", &tests[0].url, lower_half()), fixture::named("east", &tests[1].url, upper_half())];
    (counter(databases, PLAIN), tests)
}

/// A counter whose second database does not exist.
async fn with_one_of_two_gone() -> (Counter, TestDatabase) {
    let test = fixture::database().await;
    let databases =
        vec![fixture::named("main", &test.url, lower_half()), fixture::unreachable_database("east", upper_half())];
    (counter(databases, PLAIN), test)
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
