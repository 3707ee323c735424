//! Queues whose looks fail again and again: the log names each of them now and then.

use std::time::{Duration, Instant};

use common::ids::QueueName;

use super::ReadyStarter;
use crate::{
    clock,
    store::{Error, Fault, Statements},
};

/// The failure in a row from which a queue is named: a lock or a migration may cause one or two.
const LOGGED_FAILURE: u32 = 3;

/// The interval between two warnings about one queue.
const WARN_EVERY: Duration = Duration::from_secs(600);

/// The most queues that are named in that time: a fault of the whole database fails each of thousands.
const NAMED_MOST: usize = 20;

/// The failures of one queue's looks.
#[derive(Clone, Debug, Default)]
pub(super) struct Failing {
    in_a_row: u32,
    warned_at: Option<Instant>,
}

impl Failing {
    fn is_named(&self, now: Instant) -> bool {
        self.warned_at.is_some_and(|at| now.saturating_duration_since(at) < WARN_EVERY)
    }

    /// Notes a failure. Returns whether to warn of it.
    fn begin(&mut self, now: Instant) -> bool {
        self.in_a_row = self.in_a_row.saturating_add(1);
        let warns = !self.is_named(now) && self.in_a_row >= LOGGED_FAILURE;
        if warns {
            self.warned_at = Some(now);
        }
        warns
    }
}

impl<S: Statements> ReadyStarter<S> {
    /// Notes how a look at a queue ended. `None`: it passed. An outage says nothing about the queue, and the prober
    /// tells of it.
    pub(super) fn note_look(&self, queue: &QueueName, failing: &mut Failing, error: Option<&Error>) {
        let Some(error) = error else {
            failing.in_a_row = 0;
            return;
        };
        let is_of_queue = error.fault() != Fault::Outage || error.is_unreadable_file();
        let now = clock::instant();
        let named = || self.progress.lock().values().filter(|progress| progress.failing.is_named(now)).count();
        let warns = is_of_queue && failing.begin(now) && named() < NAMED_MOST;
        let (database, error) = (self.claims.database.name(), error as &dyn std::error::Error);
        if warns {
            tracing::warn!(%database, %queue, error, "tasks that wait for room cannot be started, again and again; retrying");
        } else {
            tracing::debug!(%database, %queue, error, "could not start tasks that wait for room");
        }
    }
}
