//! A node: the loops of the product between the simulated database and the simulated broker.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use arc_swap::ArcSwap;
use common::{
    delay::{ClaimSize, Lead},
    ids::{DatabaseIndex, QueueName, ShardId},
    queue::{Placement, Queue, QueueBook, Settle},
    retry::RetryPolicy,
    shard::range::ShardRange,
};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    broker::SimulatedBroker,
    database::SimulatedDatabase,
    plan::{Rule, SHARDS},
    world::World,
};
use crate::{
    alarm::Alarm,
    audit::{Audit, AuditMetrics},
    broker::Publish,
    by_database::ByDatabase,
    clock,
    history::History,
    loops::{
        dispatch::{
            claims::ClaimHandler,
            dispatcher::{Dispatcher, Pace},
            preloader::Preloader,
            publisher::{Publisher, longest_hold},
            ready_starter::ReadyStarter,
        },
        nudger::Nudger,
        outcome::{
            releaser::Releaser,
            reporter::{ReportLines, Reporter},
            settler::{Settlements, Settler},
        },
        upkeep::queue_reader::Books,
    },
    metrics::Metrics,
    receipt::{ReceiptKeys, Receipts},
    store::Places,
    traces::Traces,
    working_set::{
        database::{NodeDatabase, NodeDatabases},
        delay_rules::DelayRules,
        lanes::Lanes,
        owned_shards::OwnedShards,
    },
};

/// The limit of the limited queue.
pub const MAX_RUNNING: usize = 2;

/// How far ahead the heaps are filled.
const HORIZON: Duration = Duration::from_secs(10);
const PACE: Pace = Pace { batch: 4, window: 16 };

/// The nodes' lease. It bounds how long a claimed message may wait for its publish.
pub const LEASE_TTL: Duration = Duration::from_secs(3);

/// The attempts of each task. No run takes so many.
pub const MAX_ATTEMPTS: i32 = 25;

/// The time without a sign of life after which an attempt has failed.
const TIMEOUT_MS: i64 = 4_000;

/// Counted, and read by no test: one for all runs, because making them takes longer than a run.
static METRICS: LazyLock<Arc<Metrics>> =
    LazyLock::new(|| Arc::new(Metrics::register(&Registry::new()).expect("a fresh registry takes them")));
static AUDIT: LazyLock<Audit> =
    LazyLock::new(|| Audit::new(AuditMetrics::register(&Registry::new()).expect("a fresh registry takes them")).0);

/// One start of a node's process.
#[derive(Debug)]
pub struct Node {
    pub database: NodeDatabase<SimulatedDatabase>,
    pub reporter: Reporter<SimulatedDatabase>,
    /// The loops end when this is dropped.
    loops: Mutex<JoinSet<()>>,
    _keys: watch::Sender<Option<Arc<ReceiptKeys>>>,
}

/// What all loops of a node share.
struct Parts {
    databases: NodeDatabases<SimulatedDatabase>,
    broker: SimulatedBroker,
    books: Books,
    lanes: Arc<Lanes>,
    receipts: Receipts,
    reporter: Reporter<SimulatedDatabase>,
    places: Places,
}

impl Node {
    pub fn start(world: &Arc<World>, node: usize, incarnation: u32) -> Self {
        let places = Places::new(ByDatabase::default());
        places.presume(&[ShardRange::new(ShardId::new(0), ShardId::new(SHARDS - 1)).expect("in order")], SHARDS);
        let database = NodeDatabase {
            sql: SimulatedDatabase::new(world, node, incarnation),
            owned_shards: Arc::new(OwnedShards::new(1_000)),
            ready_queues: Arc::default(),
            inbox: Arc::default(),
            outdated: Arc::default(),
            set_aside: Default::default(),
            suspects: Default::default(),
            without_partition: Default::default(),
            nudge: Arc::default(),
            unstored: Default::default(),
            hearing: Default::default(),
            unwritten: Default::default(),
        };
        let databases = NodeDatabases::new(vec![database.clone()], places.clone());
        let books: Books = Arc::new(ArcSwap::from_pointee(QueueBook::new(1, Rule::ALL.map(queue))));
        let (keys, receipts) = watch::channel(Some(Arc::default()));
        let reporter = Reporter {
            databases: databases.clone(),
            books: Arc::clone(&books),
            releaser: Releaser::new(Nudger::new(databases.clone(), HORIZON)),
            metrics: Arc::clone(&METRICS),
            traces: Traces::default(),
            receipts: receipts.clone(),
            lines: ReportLines::default(),
            default_exchange: true,
            audit: AUDIT.clone(),
        };
        let parts = Parts {
            databases,
            broker: SimulatedBroker { world: Arc::clone(world), node, incarnation },
            books,
            lanes: Arc::default(),
            receipts,
            reporter: reporter.clone(),
            places,
        };
        Self { database, reporter, loops: Mutex::new(parts.loops()), _keys: keys }
    }
}

impl Node {
    /// Ends the process wherever it is.
    pub fn kill(&self) {
        self.loops.lock().abort_all();
    }
}

impl Parts {
    fn loops(self) -> JoinSet<()> {
        let mut loops = JoinSet::new();
        let (world, node) = (&self.broker.world, self.broker.node);
        let stop = CancellationToken::new();
        let database = self.databases.home().clone();
        let (settlements, confirms) = Settlements::channel(PACE.window);
        let (publisher, dispatches) = mpsc::channel(64);
        let claims = ClaimHandler {
            database: database.clone(),
            index: DatabaseIndex::HOME,
            publisher,
            metrics: Arc::clone(&METRICS),
            longest_hold: longest_hold(LEASE_TTL),
        };
        loops.spawn(while_it_runs(Arc::clone(world), node, self.settler().run(confirms, stop.clone())));
        loops.spawn(while_it_runs(Arc::clone(world), node, database.sql.clone().follow_clock()));
        let preloader = Preloader::new(database, HORIZON, 1_000, Arc::clone(&METRICS));
        loops.spawn(while_it_runs(Arc::clone(world), node, preloader.run(stop.clone())));
        loops.spawn(while_it_runs(Arc::clone(world), node, self.ready_starter(claims.clone(), PACE).run(stop.clone())));
        loops.spawn(while_it_runs(Arc::clone(world), node, self.dispatcher(claims, PACE).run(stop)));
        loops.spawn(while_it_runs(Arc::clone(world), node, self.publisher(settlements).run(dispatches)));
        loops
    }

    fn settler(&self) -> Settler<SimulatedDatabase> {
        Settler {
            databases: self.databases.clone(),
            index: DatabaseIndex::HOME,
            releaser: self.reporter.releaser.clone(),
            window: PACE.window,
            lanes: Arc::clone(&self.lanes),
            metrics: Arc::clone(&METRICS),
        }
    }

    fn dispatcher(&self, claims: ClaimHandler<SimulatedDatabase>, pace: Pace) -> Dispatcher<SimulatedDatabase> {
        Dispatcher {
            claims,
            pace,
            lead: Arc::new(Mutex::new(Lead::new(Duration::from_millis(100), clock::instant()))),
            size: Arc::new(Mutex::new(ClaimSize::new(pace.batch))),
            lanes: Arc::clone(&self.lanes),
            books: Arc::clone(&self.books),
            broker: self.broker.state(),
            sounded: None,
            reporter: self.reporter.clone(),
        }
    }

    fn ready_starter(&self, claims: ClaimHandler<SimulatedDatabase>, pace: Pace) -> ReadyStarter<SimulatedDatabase> {
        ReadyStarter {
            claims,
            pace,
            lanes: Arc::clone(&self.lanes),
            books: Arc::clone(&self.books),
            broker: self.broker.state(),
            places: self.places.clone(),
            progress: Arc::default(),
        }
    }

    fn publisher(&self, settlements: Settlements) -> Publisher<SimulatedDatabase, SimulatedBroker> {
        Publisher {
            databases: self.databases.clone(),
            broker: self.broker.clone(),
            alarm: Alarm::of_the_runtime(),
            books: Arc::clone(&self.books),
            lanes: Arc::clone(&self.lanes),
            settlements: [settlements].into_iter().collect(),
            reporter: self.reporter.clone(),
            metrics: Arc::clone(&METRICS),
            traces: Traces::default(),
            history: History::default(),
            receipts: self.receipts.clone(),
            longest_hold: longest_hold(LEASE_TTL),
            delay_rules: DelayRules::new([]),
        }
    }
}

fn queue(rule: Rule) -> Queue {
    let mut queue = Queue::with_defaults(QueueName::new(rule.queue()));
    let policy = &mut queue.policy;
    policy.retry = RetryPolicy::Exponential { base_ms: 500, factor: 2.0, max_ms: 2_000, jitter: 0.5 };
    policy.timeout_ms = TIMEOUT_MS;
    policy.max_attempts = MAX_ATTEMPTS;
    if rule != Rule::Confirm {
        policy.settle = Settle::Result;
    }
    policy.ordered = rule == Rule::Ordered;
    if rule == Rule::Limited {
        policy.max_running = Some(i64::try_from(MAX_RUNNING).expect("it is small"));
        policy.placement = Placement::Single;
    }
    queue
}

/// Runs a loop, except while the process stands still.
async fn while_it_runs(world: Arc<World>, node: usize, work: impl Future<Output = ()>) {
    tokio::pin!(work);
    loop {
        world.until(node, |life| !life.is_frozen).await;
        tokio::select! {
            biased;
            () = world.until(node, |life| life.is_frozen) => {}
            () = &mut work => return,
        }
    }
}
