//! Writes down who did what, in batches. While the database is away notes wait; what there is no room for is dropped and counted.
//!
//! If it stops, the node answers as before and deeds are missing in the audit.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    audit::{AuditMetrics, Dropped, Noted},
    store::{Error, Store},
};

/// How long a first note waits for others: a note is readable a tenth of a second after its answer.
const GATHER: Duration = Duration::from_millis(50);

/// Notes of one statement: 1 to 3 ms.
const BATCH: usize = 500;

/// Between two tries while the database is away.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// For what is left when the node stops.
const LAST_WORD: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct Auditor {
    pub store: Store,
    /// The name under which this node notes.
    pub node: String,
    pub metrics: AuditMetrics,
}

impl Auditor {
    pub async fn run(self, mut notes: mpsc::Receiver<Noted>, stop: CancellationToken) {
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

    /// `false`: told to stop before it was written.
    async fn write_until(&self, batch: &[Noted], stop: &CancellationToken) -> bool {
        let mut told = false;
        while let Err(error) = self.write(batch).await {
            if !told {
                told = true;
                tracing::warn!(error = &error as &dyn std::error::Error, "the audit cannot be written; notes wait");
            }
            tokio::select! {
                () = tokio::time::sleep(AGAIN_AFTER) => {}
                () = stop.cancelled() => return false,
            }
        }
        true
    }

    /// Writes what is left; nobody notes any more.
    async fn finish(&self, mut batch: Vec<Noted>, mut notes: mpsc::Receiver<Noted>) {
        let until = Instant::now() + LAST_WORD;
        loop {
            fill(&mut batch, &mut notes);
            if batch.is_empty() {
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, self.write(&batch)).await {
                Ok(Ok(())) => batch.clear(),
                Ok(Err(_)) if left > AGAIN_AFTER => tokio::time::sleep(AGAIN_AFTER).await,
                _ => return self.metrics.dropped(Dropped::Stopped, batch.len() + notes.len()),
            }
        }
    }

    async fn write(&self, batch: &[Noted]) -> Result<(), Error> {
        match self.store.home().audit_add(batch, &self.node).await {
            Ok(()) => self.metrics.written.inc_by(batch.len() as u64),
            Err(error) if is_unwritable(&error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "the database does not take these notes");
                self.metrics.dropped(Dropped::Unwritable, batch.len());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

fn fill(batch: &mut Vec<Noted>, notes: &mut mpsc::Receiver<Noted>) {
    while batch.len() < BATCH
        && let Ok(note) = notes.try_recv()
    {
        batch.push(note);
    }
}

/// What is wrong with a value does not get better: it would hold up all that comes after it.
fn is_unwritable(error: &Error) -> bool {
    error.sqlstate().is_some_and(|code| ["22", "23"].iter().any(|class| code.starts_with(class)))
}

#[cfg(test)]
mod tests;
