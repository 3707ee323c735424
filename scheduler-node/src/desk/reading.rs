//! Reads the queues for requests that miss some, and adds queues on their first use, one request at a time. Each try
//! takes seconds while the first database is away, so requests share what it came to.

use std::time::{Duration, Instant};

use common::{ids::QueueName, queue::QueuePolicy};
use tokio::sync::{Mutex, MutexGuard};

use super::Desk;
use crate::{
    clock,
    loops::upkeep::queue_reader::catch_up,
    store::{Error, Fault, queues::QueueQuota},
};

/// How long a failure also answers for requests that miss a queue and come after it: as long as their senders are asked
/// to wait (`Retry-After`). A queue that was just set elsewhere stays unknown for no longer than that. If its rules for
/// submissions differ from the default ones, the database of a task hands the task back all the same.
const FAILURE_ANSWERS: Duration = Duration::from_secs(1);

/// The number of queues that one statement creates. The limits may be exceeded by at most this many for each node.
const CREATED_AT_ONCE: usize = 100;

/// The turn of requests that read or add queues, and what the last of them came to.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Held across a try, so that many requests that miss the same queue read it once.
    pub(super) turn: Mutex<()>,
    /// Held for a moment only, so that a failure answers beside a try that is under way.
    pub(super) last: parking_lot::Mutex<LastTries>,
}

/// The last read of the queues and the last failure to add some.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastTries {
    pub(super) read: Option<Try>,
    pub(super) addition: Option<Try>,
}

/// A try that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Try {
    pub(super) began: Instant,
    pub(super) ended: Instant,
    pub(super) succeeded: bool,
}

impl Try {
    /// Whether the try is done, as an answer to a request from `asked_at`. It answers if it began after that. A failure
    /// also answers if it ended less than `failure_answers` before.
    fn answer(self, asked_at: Instant, failure_answers: Duration) -> Option<bool> {
        (self.began >= asked_at || self.failed_lately(asked_at, failure_answers)).then_some(self.succeeded)
    }

    fn failed_lately(self, asked_at: Instant, failure_answers: Duration) -> bool {
        !self.succeeded && asked_at.saturating_duration_since(self.ended) < failure_answers
    }
}

impl Desk {
    /// Reads the queues that changed into this node's book.
    pub(super) async fn read_anew(&self) -> Result<(), Error> {
        let turn = self.inner.reading.turn.lock().await;
        self.read_alone(&turn).await
    }

    /// Reads the queues, unless this node knows them as of `revision` or later. Requests that wait for the same read
    /// share it, whether it succeeds or fails. Returns whether this node could read them.
    pub(super) async fn read_as_of(&self, revision: i64) -> bool {
        self.read_unless(|| self.knows(revision), Duration::ZERO).await
    }

    /// Reads the queues if they have changed, because `missing` are not in the book. Requests share reads as those of
    /// [`Self::read_as_of`] do, and failures a little longer. Returns whether this node could read them.
    pub(super) async fn read_missing(&self, missing: &[QueueName]) -> bool {
        // An earlier request may have read them.
        let is_known = || {
            let book = self.parts().books.load();
            missing.iter().all(|queue| book.find(queue).is_some())
        };
        self.read_unless(is_known, FAILURE_ANSWERS).await
    }

    /// Reads the queues that have changed. Requests share reads, and failures a little longer. Returns whether this
    /// node could read them.
    pub(super) async fn read_changes(&self) -> bool {
        self.read_unless(|| false, FAILURE_ANSWERS).await
    }

    /// Whether this node knows the queues as of `revision` or later.
    pub(super) fn knows(&self, revision: i64) -> bool {
        self.parts().books.load().revision() >= revision
    }

    /// Reads the queues unless the caller knows what it asks for, or another read answers for it.
    pub(super) async fn read_unless(&self, is_known: impl Fn() -> bool, failure_answers: Duration) -> bool {
        let asked_at = clock::instant();
        if is_known() {
            return true;
        }
        // Tries of other requests may hold the turn for seconds.
        if self.last_tries().read.is_some_and(|read| read.failed_lately(asked_at, failure_answers)) {
            return false;
        }
        let turn = self.inner.reading.turn.lock().await;
        if is_known() {
            return true;
        }
        if let Some(is_read) = self.last_tries().read.and_then(|read| read.answer(asked_at, failure_answers)) {
            return is_read;
        }
        let read = self.read_alone(&turn).await;
        if let Err(error) = &read {
            tracing::debug!(error = error as &dyn std::error::Error, "the queues cannot be read");
        }
        read.is_ok()
    }

    /// Creates those of `missing` that do not exist, as far as there is room. Returns whether the database could say
    /// which ones. Requests share a failure, unless the names may be at fault.
    pub(super) async fn create_missing(&self, missing: Vec<QueueName>) -> bool {
        let asked_at = clock::instant();
        let turn = self.inner.reading.turn.lock().await;
        let book = self.parts().books.load_full();
        let mut missing: Vec<QueueName> = missing.into_iter().filter(|queue| book.find(queue).is_none()).collect();
        let mut per_caller = self.parts().queues_max_per_caller;
        if let Some((used, most)) = self.queues_of_token() {
            // The token's own limit takes the place of the configured one.
            missing.truncate(usize::try_from(most - used).unwrap_or(0));
            per_caller = u32::MAX;
        }
        if missing.is_empty() {
            return true;
        }
        if self.last_tries().addition.is_some_and(|failed| failed.answer(asked_at, FAILURE_ANSWERS).is_some()) {
            return false;
        }
        let began = clock::instant();
        let added = self.add(&missing, per_caller).await;
        if let Err(error) = &added
            && matches!(error.fault(), Fault::Outage | Fault::Contention)
        {
            let failed = Try { began, ended: clock::instant(), succeeded: false };
            self.inner.reading.last.lock().addition = Some(failed);
        }
        let created = match added {
            Ok(()) => self.read_alone(&turn).await,
            failed => failed,
        };
        if let Err(error) = &created {
            tracing::debug!(error = error as &dyn std::error::Error, "could not create the queues of a submission");
        }
        created.is_ok()
    }

    async fn add(&self, missing: &[QueueName], per_caller: u32) -> Result<(), Error> {
        let quota = QueueQuota { caller: &self.caller, all: self.parts().queues_max, per_caller };
        for some in missing.chunks(CREATED_AT_ONCE) {
            self.parts().store.home().queue_add(some, &QueuePolicy::default(), Some(quota)).await?;
        }
        Ok(())
    }

    fn last_tries(&self) -> LastTries {
        *self.inner.reading.last.lock()
    }

    /// Reads the queues that changed, and notes what came of it. The caller has the turn.
    async fn read_alone(&self, _turn: &MutexGuard<'_, ()>) -> Result<(), Error> {
        let began = clock::instant();
        let read = self.catch_up().await;
        let ended = Try { began, ended: clock::instant(), succeeded: read.is_ok() };
        self.inner.reading.last.lock().read = Some(ended);
        read
    }

    /// Reads the queues that changed, without a note for other requests. Only tests do so without the turn.
    pub(super) async fn catch_up(&self) -> Result<(), Error> {
        catch_up(self.parts().store.home(), &self.parts().books).await
    }
}
