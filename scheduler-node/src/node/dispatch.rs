//! The broker, and the loops that speak to it for all databases.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Shared;
use crate::{
    alarm::Alarm,
    audit::Audit,
    broker::{Broker, BrokerMetrics, ClusterGate},
    by_database::ByDatabase,
    loops::{
        dispatch::{
            claim_on_insert::ClaimOnInsert,
            publisher::{self, Publisher},
        },
        nudger::Nudger,
        outcome::{
            releaser::Releaser,
            reporter::{ReportLines, Reporter},
            settler::Settlements,
        },
    },
    receipt::Receipts,
    settings,
    supervise::{Crew, LoopKind},
};

/// Claimed tasks between the dispatchers and the publisher.
const DISPATCHES: usize = 8_192;

impl Shared {
    /// Connects to the broker. The connections end when they are closed, last of all.
    pub(super) fn connect_broker(&self, crew: &mut Crew) -> anyhow::Result<Broker> {
        let metrics = Arc::new(BrokerMetrics::register(&self.registry)?);
        // A node publishes nothing before it owns shards. It must not hold reports that it could not write.
        let cluster = ClusterGate { publishing: self.cluster.subscribe(), consuming: self.admitted.subscribe() };
        let (broker, keeper) =
            Broker::new(settings::amqp(&self.config.amqp, Some(&self.config.delay_exchanges), Some(cluster)), metrics);
        crew.spawn(LoopKind::BrokerKeeper, keeper);
        Ok(broker)
    }

    pub(super) fn reporter(&self, nudger: &Nudger, keys: &Receipts, audit: &Audit) -> Reporter {
        Reporter {
            databases: self.databases.clone(),
            books: Arc::clone(&self.books),
            releaser: Releaser::new(nudger.clone()),
            metrics: Arc::clone(&self.metrics),
            traces: self.traces.clone(),
            receipts: keys.clone(),
            lines: ReportLines::default(),
            default_exchange: self.config.amqp.default_exchange,
            audit: audit.clone(),
        }
    }

    /// Starts the publisher. Returns the shortcut for tasks that are due at once, and where confirms go.
    pub(super) fn publish(
        &self,
        crew: &mut Crew,
        broker: &Broker,
        reporter: &Reporter,
    ) -> (ClaimOnInsert, ByDatabase<Settlements>) {
        let (claimed, dispatches) = mpsc::channel(DISPATCHES);
        let settlements = ByDatabase::default();
        let claim_on_insert = ClaimOnInsert {
            databases: self.databases.clone(),
            lanes: Arc::clone(&self.lanes),
            books: Arc::clone(&self.books),
            broker: broker.state(),
            publisher: claimed,
            window: self.config.scheduler.window,
            metrics: Arc::clone(&self.metrics),
        };
        let publisher = Publisher {
            databases: self.databases.clone(),
            broker: broker.clone(),
            alarm: Alarm::default(),
            books: Arc::clone(&self.books),
            lanes: Arc::clone(&self.lanes),
            settlements: settlements.clone(),
            reporter: reporter.clone(),
            metrics: Arc::clone(&self.metrics),
            traces: self.traces.clone(),
            history: self.history.clone(),
            receipts: reporter.receipts.clone(),
            longest_hold: publisher::longest_hold(self.config.etcd.lease_ttl()),
            delay_rules: self.delay_rules.clone(),
        };
        crew.spawn(LoopKind::Publisher, publisher.run(dispatches));
        (claim_on_insert, settlements)
    }
}
