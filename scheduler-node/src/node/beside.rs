//! Loops beside the life of a task: the schedules, the audit, and the keys of receipts.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    audit::{Audit, AuditMetrics},
    loops::{
        cluster::elector::Mastership,
        submit::{firer::Firer, submitter::Submitter},
        upkeep::{auditor::Auditor, receipt_reader::ReceiptReader},
    },
    receipt::Receipts,
    supervise::{Crew, LoopKind},
};

use super::Shared;

impl Shared {
    /// The keys that receipts are made with, as soon as they are read.
    pub(super) fn receipts(&self, crew: &mut Crew) -> Receipts {
        let (reader, receipts) = ReceiptReader::new(self.store.clone());
        crew.spawn(LoopKind::ReceiptReader, reader.run(self.stop.work.clone()));
        receipts
    }

    /// What makes tasks by the calendar. It submits, so it ends with what comes in.
    pub(super) fn fire(&self, crew: &mut Crew, submitter: &Submitter, mastership: watch::Receiver<Mastership>) {
        let firer = Firer::new(
            self.store.clone(),
            submitter.clone(),
            Arc::clone(&self.books),
            mastership,
            self.fitness.subscribe(),
            Arc::clone(&self.metrics),
            self.set_aside.clone(),
        );
        crew.spawn(LoopKind::Firer, firer.run(self.stop.intake.clone()));
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
