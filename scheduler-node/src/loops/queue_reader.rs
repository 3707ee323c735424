//! Keeps this node's copy of all queues: a change made on any node is read here within half a second, and at once when a claim was
//! refused because the copy is old.
//!
//! Reads one small number often and all queues only when it has changed. If the home database is away the copy stays as it is.

use std::sync::Arc;

use arc_swap::ArcSwap;
use common::queue::QueueBook;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::reread::{Reread, reread};
use crate::store::{Error, Store};

/// Every queue and its policy as this node knows them.
pub type Books = Arc<ArcSwap<QueueBook>>;

#[derive(Debug)]
pub struct QueueReader {
    store: Store,
    books: Books,
    /// A claim was refused because it did not know a queue's policy.
    outdated: Arc<Notify>,
    /// The revision that was read last.
    known: Option<i64>,
}

impl QueueReader {
    pub fn new(store: Store, books: Books, outdated: Arc<Notify>) -> Self {
        Self { store, books, outdated, known: None }
    }

    pub async fn run(self, stop: CancellationToken) {
        let outdated = Arc::clone(&self.outdated);
        reread(self, &outdated, stop).await;
    }
}

impl Reread for QueueReader {
    const OF: &'static str = "queues";

    async fn read(&mut self) -> Result<(), Error> {
        let home = self.store.home();
        let revision = home.queue_revision().await?;
        if self.known == Some(revision) {
            return Ok(());
        }
        let (mut revision, mut queues) = home.queue_read().await?;
        if self.books.load().revision() > revision {
            // A newer book was put in force while this one was read. Older still: the database was set back, and counts.
            (revision, queues) = home.queue_read().await?;
        }
        tracing::debug!(revision, queues = queues.len(), "queues read");
        self.books.store(Arc::new(QueueBook::new(revision, queues)));
        self.known = Some(revision);
        Ok(())
    }
}
