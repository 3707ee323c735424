//! Keeps this node's copy of all queues: a change made on any node is in force here within half a second.
//!
//! Reads one small number often and all queues only when it has changed. If the home database is away the copy stays as it is.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use common::queue::QueueBook;
use tokio_util::sync::CancellationToken;

use crate::store::{Error, Store};

/// Every queue and its policy as this node knows them.
pub type Books = Arc<ArcSwap<QueueBook>>;

/// Well below the second within which a policy is to be in force everywhere.
const READ_EVERY: Duration = Duration::from_millis(400);

#[derive(Debug)]
pub struct QueueReader {
    pub store: Store,
    pub books: Books,
}

impl QueueReader {
    pub async fn run(self, stop: CancellationToken) {
        let mut known = None;
        let mut told = false;
        loop {
            match self.read(&mut known).await {
                Ok(()) => told = false,
                Err(error) if !told => {
                    told = true;
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the queues cannot be read; what was read last counts"
                    );
                }
                Err(_) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(READ_EVERY) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn read(&self, known: &mut Option<i64>) -> Result<(), Error> {
        let home = self.store.home();
        let revision = home.queue_revision().await?;
        if *known == Some(revision) {
            return Ok(());
        }
        let (mut revision, mut queues) = home.queue_read().await?;
        if self.books.load().revision() > revision {
            // A newer book was put in force while this one was read. Older still: the database was set back, and counts.
            (revision, queues) = home.queue_read().await?;
        }
        tracing::debug!(revision, queues = queues.len(), "queues read");
        self.books.store(Arc::new(QueueBook::new(revision, queues)));
        *known = Some(revision);
        Ok(())
    }
}
