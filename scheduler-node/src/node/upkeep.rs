//! The loops that keep this node's view of the stores true, and the audit.

use std::sync::Arc;

use tokio::{
    signal::unix::Signal,
    sync::{mpsc, watch},
};

use super::Shared;
use crate::{
    audit::{Audit, AuditMetrics},
    broker::Broker,
    coordination::Views,
    loops::{
        cluster::session_keeper::Session,
        nudger::Nudger,
        upkeep::{
            auditor::Auditor,
            config_reader::{self, ConfigReader, ReadConfig, Reading},
            gauges::Gauges,
            map_reader::MapReader,
            prober,
            queue_reader::QueueReader,
            receipt_reader::ReceiptReader,
            room,
            token_reader::TokenReader,
        },
    },
    readiness::{Readiness, Sources},
    receipt::Receipts,
    supervise::{Crew, LoopKind},
};

impl Shared {
    /// Starts the loops that watch all stores together and that tell nodes of one another's rows.
    pub(super) fn watch(&self, crew: &mut Crew, broker: &Broker, views: &Views, nudger: Nudger) {
        let stop = &self.stop.work;
        let reader = QueueReader::new(self.store.clone(), Arc::clone(&self.books), Arc::clone(&self.outdated));
        let gauger = Gauges {
            databases: self.databases.clone(),
            lanes: Arc::clone(&self.lanes),
            books: Arc::clone(&self.books),
            metrics: Arc::clone(&self.metrics),
            pulse: self.pulse.clone(),
        };
        crew.spawn(LoopKind::QueueReader, reader.run(stop.clone()));
        let reader = MapReader { places: self.store.places().clone() };
        crew.spawn(LoopKind::MapReader, reader.run(stop.clone()));
        let reader = TokenReader::new(self.store.clone(), Arc::clone(&self.access));
        crew.spawn(LoopKind::TokenReader, reader.run(stop.clone()));
        crew.spawn(LoopKind::Gauges, gauger.run(stop.clone()));
        crew.spawn(LoopKind::Nudger, nudger.run(stop.clone()));
        let watching = prober::watch_broker(broker.state(), Arc::clone(&self.fitness), stop.clone());
        crew.spawn(LoopKind::Prober, watching);
        let following = room::follow(self.fitness.subscribe(), views.clone(), broker.clone(), stop.clone());
        crew.spawn(LoopKind::Prober, following);
    }

    /// What `/readyz` answers from.
    pub(super) fn readiness(&self, crew: &mut Crew, broker: &Broker, session: watch::Receiver<Session>) -> Readiness {
        let readiness = Readiness::new(Sources {
            fitness: self.fitness.subscribe(),
            broker: broker.state(),
            session,
            cluster: self.cluster.subscribe(),
            realm: self.realm.subscribe(),
            admitted: self.admitted.subscribe(),
            leaving: self.stop.leaving.clone(),
            exchanges: broker.exchange_troubles(),
            set_aside: self.set_aside.clone(),
            pulse: self.pulse.clone(),
        });
        crew.spawn(LoopKind::Prober, readiness.clone().follow(self.stop.work.clone()));
        readiness
    }

    /// Follows changes of the configuration. Ends with what comes in: a node that stops follows no change.
    pub(super) fn follow_config(&self, crew: &mut Crew, read: ReadConfig, hangups: Signal) -> mpsc::Receiver<Reading> {
        let (sender, readings) = mpsc::channel(config_reader::READINGS);
        let reader = ConfigReader::new(read, self.config.clone());
        crew.spawn(LoopKind::ConfigReader, reader.run(hangups, sender, self.stop.intake.clone()));
        readings
    }

    /// The keys that receipts are made with, as soon as they are read.
    pub(super) fn receipts(&self, crew: &mut Crew) -> Receipts {
        let (reader, receipts) = ReceiptReader::new(self.store.clone());
        crew.spawn(LoopKind::ReceiptReader, reader.run(self.stop.work.clone()));
        receipts
    }

    /// Where deeds are noted. It ends with the work, after the last request was answered.
    pub(super) fn audit(&self, crew: &mut Crew) -> anyhow::Result<Audit> {
        let metrics = AuditMetrics::register(&self.registry)?;
        let (audit, notes) = Audit::new(metrics.clone());
        let (store, node, set_aside) = (self.store.clone(), self.me.name.to_string(), self.set_aside.clone());
        let auditor = Auditor { store, node, metrics, set_aside };
        crew.spawn(LoopKind::Auditor, auditor.run(notes, self.stop.work.clone()));
        Ok(audit)
    }
}
