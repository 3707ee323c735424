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

/// The pause before a queue asks again whether it is its turn to be named: it is compared with all others then.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// The failures of one queue's looks.
#[derive(Clone, Debug, Default)]
pub(super) struct Failing {
    in_a_row: u32,
    asked_at: Option<Instant>,
    warned_at: Option<Instant>,
}

impl Failing {
    fn is_lasting(&self) -> bool {
        self.in_a_row >= LOGGED_FAILURE
    }

    fn is_named(&self, now: Instant) -> bool {
        self.warned_at.is_some_and(|at| now.saturating_duration_since(at) < WARN_EVERY)
    }

    /// Notes a failure. Returns whether the queue asks to be named.
    fn begin(&mut self, now: Instant) -> bool {
        self.in_a_row = self.in_a_row.saturating_add(1);
        let has_asked = self.asked_at.is_some_and(|at| now.saturating_duration_since(at) < ASK_AGAIN);
        let asks = self.is_lasting() && !self.is_named(now) && !has_asked;
        if asks {
            self.asked_at = Some(now);
        }
        asks
    }

    /// Notes that the queue is named, if it is its turn beside the `others`: of many, each is named before any is named
    /// again. Returns the number of queues that fail then.
    fn take_turn<'a>(&mut self, others: impl Iterator<Item = &'a Self>, now: Instant) -> Option<usize> {
        let (mut failing, mut named) = (1, 0);
        for other in others {
            if other.is_lasting() && other.warned_at < self.warned_at {
                return None;
            }
            failing += usize::from(other.is_lasting());
            named += usize::from(other.is_named(now));
        }
        if named >= NAMED_MOST {
            return None;
        }
        self.warned_at = Some(now);
        Some(failing)
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
        let turn = if is_of_queue && failing.begin(now) {
            let all = self.progress.lock();
            let others = all.iter().filter(|(name, _)| *name != queue).map(|(_, progress)| &progress.failing);
            failing.take_turn(others, now)
        } else {
            None
        };
        let (database, error) = (self.claims.database.name(), error as &dyn std::error::Error);
        if let Some(queues) = turn {
            tracing::warn!(%database, %queue, queues, error, "tasks that wait for room cannot be started, again and again; retrying");
        } else {
            tracing::debug!(%database, %queue, error, "could not start tasks that wait for room");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_queues_that_fail_each_is_named_before_any_is_named_again() {
        const QUEUES: usize = 50;
        let (mut queues, mut named) = (vec![Failing::default(); QUEUES], [0_usize; QUEUES]);
        let mut now = clock::instant();
        for minute in 0..30 {
            for (place, times) in named.iter_mut().enumerate() {
                let mut own = queues[place].clone();
                let others = queues.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, other)| other);
                if own.begin(now) && own.take_turn(others, now).is_some() {
                    *times += 1;
                }
                queues[place] = own;
            }
            let sum: usize = named.iter().sum();
            assert!(sum <= NAMED_MOST * (1 + minute / 10), "{sum} after {minute} minutes");
            now += ASK_AGAIN;
        }
        assert!(named.iter().all(|times| (1..=2).contains(times)), "{named:?}");
    }
}
