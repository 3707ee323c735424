//! The loops that keep this node's view of the stores true, and the audit.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Shared;
use crate::{
    audit::{Audit, AuditMetrics},
    broker::Broker,
    loops::{
        nudger::{self, Nudger},
        outcome::archiver::Archiver,
        upkeep::{
            auditor::Auditor,
            gauges::Gauges,
            prober::{self, Prober},
            queue_reader::QueueReader,
            receipt_reader::ReceiptReader,
            token_reader::TokenReader,
        },
    },
    receipt::Receipts,
    store::migrate::Misfit,
    supervise::{Crew, LoopKind},
    working_set::database::DatabaseIndex,
};

impl Shared {
    /// Starts the loops that watch the stores and that tell nodes of one another's rows.
    pub(super) fn watch(&self, crew: &mut Crew, broker: &Broker, nudger: Nudger) -> mpsc::Receiver<Misfit> {
        let stop = &self.stop.work;
        let (misfit, misfits) = mpsc::channel(1);
        for (index, database) in self.databases.indexed() {
            let prober = Prober {
                database: database.clone(),
                shard_count: self.config.shard_count(),
                fitness: Arc::clone(&self.fitness),
                metrics: Arc::clone(&self.metrics),
                misfit: misfit.clone(),
            };
            let archiver = Archiver {
                database: database.clone(),
                books: Arc::clone(&self.books),
                metrics: Arc::clone(&self.metrics),
                audit: (index == DatabaseIndex::HOME).then_some(self.config.audit),
            };
            crew.spawn(LoopKind::Prober, prober.run(stop.clone()));
            crew.spawn(LoopKind::Archiver, archiver.run(stop.clone()));
            crew.spawn(LoopKind::NudgeListener, nudger::listen(self.databases.clone(), index, stop.clone()));
        }
        let reader = QueueReader::new(self.store.clone(), Arc::clone(&self.books), Arc::clone(&self.outdated));
        let gauger = Gauges {
            databases: self.databases.clone(),
            lanes: Arc::clone(&self.lanes),
            books: Arc::clone(&self.books),
            metrics: Arc::clone(&self.metrics),
            pulse: self.pulse.clone(),
        };
        crew.spawn(LoopKind::QueueReader, reader.run(stop.clone()));
        let reader = TokenReader { store: self.store.clone(), access: Arc::clone(&self.access) };
        crew.spawn(LoopKind::TokenReader, reader.run(stop.clone()));
        crew.spawn(LoopKind::Gauges, gauger.run(stop.clone()));
        crew.spawn(LoopKind::Nudger, nudger.run(stop.clone()));
        let watching = prober::watch_broker(broker.state(), Arc::clone(&self.fitness), stop.clone());
        crew.spawn(LoopKind::Prober, watching);
        misfits
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
