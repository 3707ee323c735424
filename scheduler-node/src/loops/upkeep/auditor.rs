//! Writes the audit notes, in batches. While the database is away, notes wait; notes without room are dropped and
//! counted.
//!
//! If it stops, the node answers as before, and the audit misses what was done.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    audit::{AuditMetrics, AuditRecord, DropReason},
    store::{Error, Store},
    supervise::at_work,
    working_set::{
        retry::{Refused, until_done},
        set_aside::{Kept, Kind, SetAside, why},
    },
};

/// The time a first note waits for others: a note is readable a tenth of a second after its answer.
const GATHER: Duration = Duration::from_millis(50);

/// The number of notes in one statement, which takes 1 to 3 ms.
const BATCH: usize = 500;

/// The time to write the remaining notes when the node stops.
const LAST_WORD: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct Auditor {
    pub store: Store,
    /// The name of this node in its notes.
    pub node: String,
    pub metrics: AuditMetrics,
    pub set_aside: SetAside,
}

impl Auditor {
    pub async fn run(self, mut notes: mpsc::Receiver<AuditRecord>, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                _ = notes.recv_many(&mut batch, BATCH) => {}
                () = stop.cancelled() => break,
            }
            tokio::select! {
                () = tokio::time::sleep(GATHER) => {}
                () = stop.cancelled() => break,
            }
            fill(&mut batch, &mut notes);
            if !self.write_until(&batch, &stop).await {
                break;
            }
            batch.clear();
        }
        notes.close();
        self.finish(batch, notes).await;
    }

    /// Writes a batch. Returns `false` if `stop` came before the batch was written.
    async fn write_until(&self, batch: &[AuditRecord], stop: &CancellationToken) -> bool {
        let _work = at_work();
        let home = self.store.home();
        let writing = until_done("audit records", batch, |part| self.write(part));
        let Some(done) = stop.run_until_cancelled(writing).await else { return false };
        for Refused { item, error } in done.refused {
            let kept = Kept {
                name: Some(item.id.to_string()),
                body: format!("{:?}", item.event).into_bytes(),
                ..Kept::default()
            };
            self.set_aside.keep(home, Kind::Audit, kept, &why(&error)).await;
            self.metrics.dropped(DropReason::Unwritable, 1);
        }
        true
    }

    /// Writes the remaining notes; every sender is gone.
    async fn finish(&self, mut batch: Vec<AuditRecord>, mut notes: mpsc::Receiver<AuditRecord>) {
        let last_word = CancellationToken::new();
        let until = Instant::now() + LAST_WORD;
        loop {
            fill(&mut batch, &mut notes);
            if batch.is_empty() {
                return;
            }
            let writing = self.write_until(&batch, &last_word);
            match tokio::time::timeout_at(until.into(), writing).await {
                Ok(_) => batch.clear(),
                Err(_) => return self.metrics.dropped(DropReason::Stopped, batch.len() + notes.len()),
            }
        }
    }

    async fn write(&self, batch: &[AuditRecord]) -> Result<(), Error> {
        self.store.home().audit_add(batch, &self.node).await?;
        self.metrics.written.inc_by(batch.len() as u64);
        Ok(())
    }
}

fn fill(batch: &mut Vec<AuditRecord>, notes: &mut mpsc::Receiver<AuditRecord>) {
    while batch.len() < BATCH
        && let Ok(note) = notes.try_recv()
    {
        batch.push(note);
    }
}

#[cfg(test)]
mod tests;
