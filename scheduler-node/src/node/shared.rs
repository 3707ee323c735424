//! The parts that the loops of all rooms share.

use std::sync::Arc;

use common::{
    delay::Hearing,
    ids::{ClusterId, Incarnation, NodeId},
};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::sync::{Notify, watch};

use super::reload;
use crate::{
    access::Access,
    config::{self, Config},
    history::{self, History},
    loops::{
        cluster::realm_keeper::RealmStanding,
        upkeep::{prober::NodeFitness, queue_reader::Books},
    },
    metrics::{self, Metrics},
    settings,
    store::{Database, Store, StoreFamilies, StoreMetrics},
    supervise::{Pulse, Stop},
    traces::{Exporter, Traces},
    working_set::{
        database::{NodeDatabase, NodeDatabases},
        delay_rules::DelayRules,
        lanes::Lanes,
        owned_shards::OwnedShards,
        set_aside::SetAside,
    },
};

/// The parts that the loops of all rooms share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) registry: Registry,
    families: StoreFamilies,
    pub(super) me: NodeId,
    pub(super) store: Store,
    pub(super) databases: NodeDatabases,
    pub(super) books: Books,
    /// Wakes the queue reader: this node's copy of the queues is older than one of their policies.
    pub(super) outdated: Arc<Notify>,
    pub(super) access: Arc<Access>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) fitness: Arc<watch::Sender<NodeFitness>>,
    /// The cluster of the databases, once one of them has answered.
    pub(super) cluster: watch::Sender<Option<ClusterId>>,
    pub(super) realm: watch::Sender<RealmStanding>,
    /// The cluster too, once a database serves this node's realm.
    pub(super) admitted: watch::Sender<Option<ClusterId>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) set_aside: SetAside,
    pub(super) delay_rules: DelayRules,
    pub(super) pulse: Pulse,
    pub(super) traces: Traces,
    pub(super) history: History,
    /// Writes the history until the node ends.
    pub(super) writer: Option<history::Writer>,
    pub(super) stop: Stop,
}

impl Shared {
    pub(super) fn new(config: Config) -> anyhow::Result<(Self, Option<Exporter>)> {
        let registry = Registry::new();
        metrics::register_process(&registry)?;
        let me = NodeId { name: config.node.name.clone(), incarnation: Incarnation::new(uuid::Uuid::new_v4()) };
        let metrics = Arc::new(Metrics::register(&registry)?);
        let set_aside = SetAside::register(&registry)?;
        let (traces, exporter) = Traces::new(&config.telemetry, &me, &registry)?;
        let (history, writer) = History::open(config.telemetry.history_file.as_deref(), &me, &registry)?;
        let families = StoreMetrics::families(&registry)?;
        let open = |section| open(section, &me, &families, &history);
        let store = Store::new(config.databases.iter().map(open).collect());
        let databases = NodeDatabases::new(Vec::new(), store.places().clone());
        let unproven = NodeFitness::unproven(config.databases.iter().map(|database| database.name.clone()));
        let shared = Self {
            families,
            registry,
            me,
            store,
            databases,
            books: Books::default(),
            outdated: Arc::default(),
            access: Arc::new(Access::new(&config.auth)),
            lanes: Arc::default(),
            fitness: Arc::new(watch::channel(unproven).0),
            cluster: watch::Sender::default(),
            realm: watch::Sender::default(),
            admitted: watch::Sender::default(),
            metrics,
            set_aside,
            delay_rules: DelayRules::new(reload::rules(&config.delay_exchanges)),
            pulse: Pulse::default(),
            traces,
            history,
            writer,
            stop: Stop::default(),
            config,
        };
        for database in shared.store.databases().iter() {
            shared.databases.add(shared.of_node(database));
        }
        Ok((shared, exporter))
    }

    pub(super) fn open(&self, section: &config::Database) -> Arc<Database> {
        open(section, &self.me, &self.families, &self.history)
    }

    /// What this node holds of a database.
    pub(super) fn of_node(&self, database: &Arc<Database>) -> NodeDatabase {
        NodeDatabase {
            sql: Arc::clone(database),
            owned_shards: Arc::new(
                OwnedShards::new(self.config.scheduler.heap_entries).with_history(self.history.clone()),
            ),
            ready_queues: Arc::default(),
            inbox: Arc::default(),
            outdated: Arc::clone(&self.outdated),
            set_aside: self.set_aside.clone(),
            suspects: Default::default(),
            without_partition: Default::default(),
            nudge: Arc::default(),
            unstored: Default::default(),
            hearing: Arc::new(Mutex::new(Hearing::away())),
            unwritten: Arc::default(),
        }
    }
}

/// Connects lazily, and lets no statement through before the database has been found to fit.
fn open(section: &config::Database, me: &NodeId, families: &StoreFamilies, history: &History) -> Arc<Database> {
    let metrics = Arc::new(StoreMetrics::new(families.clone(), section.name.as_str()));
    let options = settings::database(section, &me.to_string());
    let database = Database::new(section.name.clone(), options, metrics).with_history(history.clone());
    let database = if section.require_synchronous_standby { database.require_standby() } else { database };
    Arc::new(database.await_schema())
}
