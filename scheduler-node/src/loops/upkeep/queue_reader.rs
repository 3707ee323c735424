//! Keeps this node's copy of all queues. A change made on any node is read here within half a second, and at once
//! when a claim was refused because the copy is old.
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

/// The interval between two reads of all queues, changed or not: a delete by a node of the previous version leaves
/// no trace.
const READ_ALL_EVERY: Duration = Duration::from_secs(600);

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
    if let Some(first) = unreadable.first() {
        let (queues, queue, unreadable) = (unreadable.len(), &first.name, &first.unreadable);
        tracing::error!(queues, %queue, ?unreadable, "the policies of queues cannot be read; these count as paused until valid ones are put");
    }
}

#[cfg(test)]
mod tests {
    use common::{ids::QueueName, queue::QueuePolicy};

    use super::*;
    use crate::{
        coordination::tests::SOON, loops::upkeep::looker, store::tests::fixture, supervise::spawn_child,
        working_set::failures::tests::Log,
    };

    /// Waits until a copy of the queues shows a queue that is made after the reader has begun.
    async fn shows_what_is_made_later(with_glances: bool) {
        let test = fixture::database().await;
        let store = fixture::store(vec![Arc::clone(&test.database)]);
        let (books, stop) = (Books::default(), CancellationToken::new());
        let reader = QueueReader::new(store, Arc::clone(&books), Arc::default());
        let mut loops = vec![spawn_child(reader.run(stop.clone()))];
        if with_glances {
            loops.push(spawn_child(looker::run(Arc::clone(&test.database), stop.clone())));
        }
        let until = async |is_so: &(dyn Fn(&QueueBook) -> bool + Sync)| {
            let poll = async {
                while !is_so(&books.load()) {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(SOON, poll).await.expect("the copy follows");
        };
        until(&|book| book.is_read()).await;
        let name = QueueName::new("later");
        test.database.queue_put(&name, &QueuePolicy::default(), None, 10).await.unwrap();
        until(&|book| book.iter().any(|queue| queue.name == name)).await;
        stop.cancel();
        for ended in loops {
            ended.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_change_is_read_when_a_glance_shows_it() {
        shows_what_is_made_later(true).await;
    }

    #[tokio::test]
    async fn a_change_is_read_without_glances_too() {
        shows_what_is_made_later(false).await;
    }

    #[tokio::test]
    async fn policies_that_cannot_be_read_have_one_line_in_the_log_however_often_they_are_read() {
        let (log, test, books) = (Log::keep(), fixture::database().await, Books::default());
        for name in ["a", "b"] {
            test.database.queue_put(&QueueName::new(name), &QueuePolicy::default(), None, 10).await.unwrap();
        }
        let write = "UPDATE duetime.queue SET policy = policy || '{\"max_running\": \"ten\"}'";
        sqlx::query(write).execute(&test.pool).await.unwrap();
        for _ in 0..10 {
            assert_eq!(test.database.queue_page("", 10, None).await.unwrap().len(), 2);
            read_all(&test.database, &books).await.unwrap();
        }
        assert!(books.load().iter().all(|queue| queue.paused));
        assert_eq!((log.count("cannot be read"), log.count("queues=2 queue=a")), (1, 1));
    }
}
