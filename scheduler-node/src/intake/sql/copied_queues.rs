//! Copies the queues into the database of an inbox: `duetime.submit` and `duetime.cancel` read their policies there.
//!
//! A queue that the database refuses keeps no other from being copied.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::QueueName,
    queue::{Queue, QueueBook},
};

use super::SqlIntake;
use crate::{
    store::{Error, inbox::CopyDeletion},
    supervise::at_work,
    working_set::{
        database::DatabaseIndex,
        retry::{Refused, try_each},
    },
};

/// The pause before what the database refuses is tried again. A migration may be under way for some seconds, and an
/// operator who removes the cause need not tell the node.
const REFUSED_AGAIN: Duration = Duration::from_secs(30);

/// The interval between two comparisons of a whole copy. A node that had not read a change may have written an older
/// policy over a newer one, and ended.
const COMPARE_EVERY: Duration = Duration::from_secs(60);

/// The interval between two warnings about one queue.
const WARN_EVERY: Duration = Duration::from_secs(600);

/// What a node knows of one database's copy of the queues.
#[derive(Debug, Default)]
pub(super) struct CopiedQueues {
    /// The queues of the copy, but for the refused ones. `None`: it may have any.
    book: Option<Arc<QueueBook>>,
    /// The queues that the database refuses, each with the time of the last warning about it.
    refused: BTreeMap<QueueName, Option<Instant>>,
    /// The revision of the queues that were tried last. `None`: an outage or a lock was in the way.
    tried: Option<i64>,
    /// When what the database refuses is tried again.
    pub again_at: Option<Instant>,
    /// When the whole copy is compared again. `None`: it was not compared yet.
    pub compare_at: Option<Instant>,
}

impl CopiedQueues {
    /// Forgets what this node knows of the copy where it is to be compared as a whole.
    fn forget_at_intervals(&mut self) {
        let now = Instant::now();
        if self.compare_at.is_none_or(|at| at <= now) {
            *self = Self { refused: std::mem::take(&mut self.refused), ..Self::default() };
            self.compare_at = Some(now + COMPARE_EVERY);
        }
    }

    /// Whether there is nothing to do for now.
    fn rests(&self, book: &QueueBook) -> bool {
        self.tried == Some(book.revision()) && self.again_at.is_none_or(|at| Instant::now() < at)
    }

    /// The queues to copy: those that have changed, and those that were refused before.
    fn wanted(&self, book: &QueueBook, mut changed: Vec<Arc<Queue>>) -> Vec<Arc<Queue>> {
        let names: BTreeSet<&QueueName> = changed.iter().map(|queue| &queue.name).collect();
        let again = self.refused.keys().filter(|name| !names.contains(name));
        let again: Vec<Arc<Queue>> = again.filter_map(|name| book.find(name).cloned()).collect();
        changed.extend(again);
        changed
    }
}

impl SqlIntake {
    /// Copies changed queues to this database. `copied`: what this node knows of the copy.
    pub(super) async fn copy_queues(&self, copied: &mut CopiedQueues) -> Result<(), Error> {
        let _work = at_work();
        let (source, book) = (self.source(), self.books.load_full());
        // The first database is the source of the queues.
        if self.index == DatabaseIndex::HOME || !book.is_read() {
            return Ok(());
        }
        // Without it, this node may have missed changes.
        if self.fitness.borrow().is_fit(self.databases.home().name()) {
            copied.forget_at_intervals();
        }
        if copied.rests(&book) {
            return Ok(());
        }
        copied.tried = None;
        let nothing = QueueBook::default();
        let (changed, gone) = book.since(copied.book.as_deref().unwrap_or(&nothing));
        let wanted = copied.wanted(&book, changed);
        let known = book.revision();
        let tried = try_each(&wanted, |part| source.queue_copy(part, CopyDeletion::These(&[]), known)).await;
        let mut refused: Vec<(&QueueName, Error)> =
            tried.refused.into_iter().map(|Refused { item, error }| (&item.name, error)).collect();
        let mut failed = None;
        for (part, error) in tried.left {
            if error.may_blame_a_row() {
                refused.extend(part.iter().map(|queue| (&queue.name, error.clone())));
            } else {
                failed = Some(error);
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        self.note_refused(&refused, copied);
        let deleted = match copied.book {
            None => {
                let all: Vec<QueueName> = book.iter().map(|queue| queue.name.clone()).collect();
                source.queue_copy(&[], CopyDeletion::AllBut(&all), known).await
            }
            Some(_) if gone.is_empty() => Ok(()),
            Some(_) => source.queue_copy(&[], CopyDeletion::These(&gone), known).await,
        };
        if deleted.as_ref().is_err_and(|error| !error.may_blame_a_row()) {
            return deleted;
        }
        let is_refused = deleted.is_err() || !refused.is_empty();
        copied.again_at = is_refused.then(|| Instant::now() + REFUSED_AGAIN);
        copied.tried = Some(known);
        if deleted.is_ok() {
            copied.book = Some(book);
        }
        deleted
    }

    /// Notes the queues that the database refuses, and warns of one of them: the one that the log has not named for the
    /// longest time. A fault of the whole database refuses thousands.
    fn note_refused(&self, refused: &[(&QueueName, Error)], copied: &mut CopiedQueues) {
        let before = std::mem::take(&mut copied.refused);
        let warned_at = |queue: &QueueName| before.get(queue).copied().flatten();
        copied.refused = refused.iter().map(|(queue, _)| ((*queue).clone(), warned_at(queue))).collect();
        let database = self.source().name();
        for (queue, error) in refused {
            tracing::debug!(%database, %queue, error = error as &dyn std::error::Error, "the database refuses the copy of a queue");
        }
        let Some((queue, error)) = refused.iter().min_by_key(|(queue, _)| warned_at(queue)) else { return };
        if warned_at(queue).is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            copied.refused.insert((*queue).clone(), Some(Instant::now()));
            tracing::warn!(%database, %queue, queues = refused.len(), error = error as &dyn std::error::Error, "a database refuses the copy of queues, this one among them; submissions in SQL there follow their old policies; retrying");
        }
    }
}
