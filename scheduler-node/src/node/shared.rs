//! The parts that the loops of all rooms share.

use std::sync::Arc;

use common::ids::{Incarnation, NodeId};
use prometheus::Registry;
use tokio::sync::{Notify, watch};

use crate::{
    access::Access,
    config::Config,
    loops::upkeep::{prober::NodeFitness, queue_reader::Books},
    metrics::{self, Metrics},
    settings,
    store::{Database, Store, StoreMetrics},
    supervise::{Pulse, Stop},
    traces::{Exporter, Traces},
    working_set::{
        database::{NodeDatabase, NodeDatabases},
        lanes::Lanes,
        owned_shards::OwnedShards,
        set_aside::SetAside,
    },
};

/// The parts that the loops of all rooms share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) registry: Registry,
    pub(super) me: NodeId,
    pub(super) store: Store,
    pub(super) databases: NodeDatabases,
    pub(super) books: Books,
    /// Wakes the queue reader: this node's copy of the queues is older than one of their policies.
    pub(super) outdated: Arc<Notify>,
    pub(super) access: Arc<Access>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) fitness: Arc<watch::Sender<NodeFitness>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) set_aside: SetAside,
    pub(super) pulse: Pulse,
    pub(super) traces: Traces,
    pub(super) stop: Stop,
}

impl Shared {
    pub(super) fn new(config: Config) -> anyhow::Result<(Self, Option<Exporter>)> {
        let registry = Registry::new();
        metrics::register_process(&registry)?;
        let me = NodeId { name: config.node.name.clone(), incarnation: Incarnation::new(uuid::Uuid::new_v4()) };
        let names: Vec<&str> = config.databases.iter().map(|database| database.name.as_str()).collect();
        let metrics = Arc::new(Metrics::register(&registry, &names)?);
        let set_aside = SetAside::register(&registry)?;
        let (traces, exporter) = Traces::new(&config.telemetry, &me, &registry)?;
        let families = StoreMetrics::families(&registry)?;
        let stores: Vec<Arc<Database>> = config
            .databases
            .iter()
            .map(|database| {
                let store_metrics = Arc::new(StoreMetrics::new(families.clone(), database.name.as_str()));
                let options = settings::database(database, &me.to_string());
                Arc::new(Database::new(database.name.clone(), database.shards, options, store_metrics))
            })
            .collect();
        let outdated: Arc<Notify> = Arc::default();
        let database = |database: &Arc<Database>| NodeDatabase {
            sql: Arc::clone(database),
            owned_shards: Arc::new(OwnedShards::new(config.scheduler.heap_entries)),
            ready_queues: Arc::default(),
            inbox: Arc::default(),
            outdated: Arc::clone(&outdated),
            set_aside: set_aside.clone(),
        };
        let databases = NodeDatabases::new(stores.iter().map(database).collect());
        let unproven = NodeFitness::unproven(config.databases.iter().map(|database| database.name.clone()));
        let shared = Self {
            registry,
            me,
            store: Store::new(stores),
            databases,
            books: Books::default(),
            outdated,
            access: Arc::new(Access::new(&config.auth)),
            lanes: Arc::default(),
            fitness: Arc::new(watch::channel(unproven).0),
            metrics,
            set_aside,
            pulse: Pulse::default(),
            traces,
            stop: Stop::default(),
            config,
        };
        Ok((shared, exporter))
    }
}
