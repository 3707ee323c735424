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
mod tests {
    use std::sync::Arc;

    use common::wire::AuditFilter;
    use prometheus::Registry;
    use sqlx::Executor;

    use super::*;
    use crate::{
        audit::{Audit, Deed},
        store::tests::fixture::{self, TestDatabase},
    };

    fn deed(what: &'static str) -> Deed {
        Deed {
            who: "ops".into(),
            what: what.into(),
            target: "mail".to_owned(),
            address: None,
            status: 200,
            detail: None,
            request_id: None,
        }
    }

    fn auditor(test: &TestDatabase) -> (Auditor, Audit, mpsc::Receiver<Noted>) {
        let metrics = AuditMetrics::register(&Registry::new()).expect("registered once");
        let (audit, notes) = Audit::new(metrics.clone());
        let store = Store::new(vec![Arc::clone(&test.database)]);
        (Auditor { store, node: "a".to_owned(), metrics }, audit, notes)
    }

    async fn written(test: &TestDatabase) -> usize {
        test.database
            .audit_list(&AuditFilter { limit: Some(1_000), ..AuditFilter::default() })
            .await
            .unwrap()
            .deeds
            .len()
    }

    #[tokio::test]
    async fn what_was_noted_before_the_stop_is_written_after_it() {
        let test = fixture::database().await;
        let (auditor, audit, notes) = auditor(&test);
        for _ in 0..BATCH + 7 {
            audit.note(deed("task.cancel"));
        }
        let (stop, metrics) = (CancellationToken::new(), auditor.metrics.clone());
        stop.cancel();
        auditor.run(notes, stop).await;
        assert_eq!(written(&test).await, BATCH + 7);
        assert_eq!(metrics.written.get(), (BATCH + 7) as u64);
    }

    #[tokio::test]
    async fn notes_wait_until_they_can_be_written() {
        let test = fixture::database().await;
        let (auditor, audit, notes) = auditor(&test);
        test.pool.execute("ALTER TABLE duetime.audit RENAME TO away").await.unwrap();
        audit.note(deed("task.cancel"));
        auditor.write(&[]).await.expect_err("there is nothing to write to");
        let (stop, metrics) = (CancellationToken::new(), auditor.metrics.clone());
        let restore = async {
            audit.note(deed("task.run"));
            test.pool.execute("ALTER TABLE duetime.away RENAME TO audit").await.unwrap();
            while metrics.written.get() < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stop.cancel();
        };
        tokio::join!(auditor.run(notes, stop.clone()), restore);
        assert_eq!(written(&test).await, 2);
    }
}
