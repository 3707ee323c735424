//! Keeps this node's copy of all queues. A change made on any node is read here within half a second, and at once
//! when a claim was refused because the copy is old. Submissions that are handed back for that read it themselves.
//!
//! Each glance at the home database shows one small number, and when that has changed, the queues that were written
//! since are read. While the home database is away the copy stays as it is.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use common::queue::QueueBook;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::poll_revision::{PollRevision, poll_revision};
use crate::store::{Error, Statements, Store};

/// Every queue and its policy as this node knows them.
pub type Books = Arc<ArcSwap<QueueBook>>;

/// The interval between two checks whether the queues have been read for the first time.
const BOOK_EVERY: Duration = Duration::from_millis(20);

/// The interval between two reads of all queues, changed or not: a delete by a node of the previous version leaves
/// no trace.
const READ_ALL_EVERY: Duration = Duration::from_secs(600);

/// The most queues that one line of the log names.
const NAMED_MOST: usize = 20;

#[derive(Debug)]
pub struct QueueReader {
    store: Store,
    books: Books,
    /// Wakes the reader: a claim was refused because it did not know a queue's policy.
    outdated: Arc<Notify>,
    /// When all queues were read last.
    read_all_at: Option<Instant>,
}

impl QueueReader {
    pub fn new(store: Store, books: Books, outdated: Arc<Notify>) -> Self {
        Self { store, books, outdated, read_all_at: None }
    }

    pub async fn run(self, stop: CancellationToken) {
        let outdated = Arc::clone(&self.outdated);
        let databases = self.store.databases().clone();
        poll_revision(self, databases, &outdated, stop).await;
    }
}

impl PollRevision for QueueReader {
    const OF: &'static str = "queues";

    async fn is_current(&self) -> bool {
        let is_recent = self.read_all_at.is_some_and(|at| at.elapsed() < READ_ALL_EVERY);
        let seen = self.store.home().glance().map(|glance| glance.queue_revision);
        is_recent && seen == Some(self.books.load().revision())
    }

    async fn read(&mut self) -> Result<(), Error> {
        let home = self.store.home();
        if self.read_all_at.is_none_or(|at| at.elapsed() >= READ_ALL_EVERY) {
            read_all(home, &self.books).await?;
            self.read_all_at = Some(Instant::now());
            return Ok(());
        }
        catch_up(home, &self.books).await
    }
}

/// Reads what changed since the book was read, and puts the new book in force.
pub async fn catch_up(home: &impl Statements, books: &Books) -> Result<(), Error> {
    let book = books.load_full();
    if !book.is_read() {
        return read_all(home, books).await;
    }
    let read = home.queue_changes(book.revision()).await?;
    let Some(changes) = read.changes else { return read_all(home, books).await };
    if changes.is_empty() && read.revision == book.revision() {
        return Ok(());
    }
    tracing::debug!(revision = read.revision, queues = changes.len(), "changed queues read");
    put_in_force(books, QueueBook::clone(&book).with(read.revision, changes));
    Ok(())
}

async fn read_all(home: &impl Statements, books: &Books) -> Result<(), Error> {
    let (mut revision, mut queues) = home.queue_read().await?;
    if books.load().revision() > revision {
        // Another reader put a newer book in force meanwhile. If the second read is older too, the database was set
        // back, and its state counts.
        (revision, queues) = home.queue_read().await?;
        if books.load().revision() > revision {
            let book = Arc::new(QueueBook::new(revision, queues));
            tell_unreadable(&books.swap(Arc::clone(&book)), &book);
            return Ok(());
        }
    }
    tracing::debug!(revision, queues = queues.len(), "queues read");
    put_in_force(books, QueueBook::new(revision, queues));
    Ok(())
}

/// Waits until this node knows the queues.
pub async fn until_read(books: &Books) {
    while !books.load().is_read() {
        tokio::time::sleep(BOOK_EVERY).await;
    }
}

/// Puts a book in force, unless a newer one is in force already: two reads may run at the same time.
fn put_in_force(books: &Books, book: QueueBook) {
    let book = Arc::new(book);
    let before = books.rcu(|now| if now.revision() > book.revision() { Arc::clone(now) } else { Arc::clone(&book) });
    if before.revision() <= book.revision() {
        tell_unreadable(&before, &book);
    }
}

/// Tells of queues that this version cannot read in full and that have changed since `before`. A client can read them
/// as often as it likes, so those reads tell nothing.
fn tell_unreadable(before: &QueueBook, now: &QueueBook) {
    let (changed, _) = now.since(before);
    let unreadable: Vec<_> = changed.iter().filter(|queue| !queue.unreadable.is_empty()).collect();
    if !unreadable.is_empty() {
        let named = unreadable.iter().take(NAMED_MOST);
        let named: Vec<String> =
            named.map(|queue| format!("{} ({})", queue.name, queue.unreadable.join(", "))).collect();
        tracing::error!(
            queues = unreadable.len(),
            named = named.join(", "),
            "the policies of queues cannot be read; these count as paused until valid ones are put"
        );
    }
}

#[cfg(test)]
mod tests;
