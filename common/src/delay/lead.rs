//! How long before its due instant a task is claimed.
//!
//! A claim that ends after the due instant makes its tasks late, and a claimed task can no longer be cancelled.
//! Claims therefore begin a tenth of a second ahead, or as early as recent claims needed, and no earlier. The estimate
//! is a peak that fades: it jumps to every claim that is slower, and halves with time, as the "Peak EWMA" of Twitter's
//! Finagle does with the latency of a server.
//!
//! A claim begins when its first task is two thirds of that time away, and takes all that are due within the whole
//! time. So tasks of a third of it, a stride, share one claim.
//!
//! A crowd of tasks with one due instant fills many claims, and each waits for those before it. The first of them
//! begins earlier by as much as the whole crowd takes, within the same bound.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use crate::time::UnixMicros;

/// The lead while all recent claims were quick. The first slow claim after a quiet time comes without a sign, and two
/// thirds of this cover it. A third makes claims large and few.
const LEAST: Duration = Duration::from_millis(100);

/// The half-life of a slow claim's effect. What makes a claim slow comes again: a checkpoint, a vacuum, a busy disk.
/// Under load such a moment comes every few seconds, otherwise once a minute, and its effect must last until
/// the next. A claim ten times as slow as the others is forgotten within two minutes.
const HALF_LIFE: Duration = Duration::from_secs(30);

/// The time that one node's claims take for each task of a crowd: measured with three nodes on two cores that
/// PostgreSQL shares with them. Slower claims come late, and the tasks of quicker ones wait.
const EACH: Duration = Duration::from_micros(100);

/// The lead of one database's claims; every claim adjusts it.
#[derive(Clone, Debug)]
pub struct Lead {
    longest: Duration,
    /// The slowest recent claim, faded up to the instant `at`.
    peak: Duration,
    at: Instant,
}

impl Lead {
    /// Creates a lead of at most `longest`.
    pub const fn new(longest: Duration, now: Instant) -> Self {
        Self { longest, peak: Duration::ZERO, at: now }
    }

    /// Records how long a claim took. A longer time than `longest` counts as `longest`.
    pub fn took(&mut self, claim: Duration, now: Instant) {
        self.peak = claim.min(self.longest).max(self.faded(now));
        self.at = now;
    }

    /// How far ahead to claim: tasks that are due within this time. It covers the slowest claim and the time until
    /// the next one.
    pub fn ahead(&self, now: Instant) -> Duration {
        (self.faded(now) * 3 / 2).max(LEAST).min(self.longest)
    }

    /// How far ahead to claim the first of tasks, of which so many are `due` at each moment, earliest first. It is
    /// `ahead`, and more when they are so many that the last of them would be claimed too late. Of them, `most` count.
    pub fn ahead_of(&self, due: impl IntoIterator<Item = (UnixMicros, usize)>, most: usize, now: Instant) -> Duration {
        let mut due = due.into_iter().peekable();
        let Some((first, _)) = due.peek().copied() else { return self.ahead(now) };
        let mut count = 0_usize;
        let beyond = due.map(|(at, tasks)| {
            count = count.saturating_add(tasks).min(most);
            let before = EACH * u32::try_from(count.saturating_sub(1)).unwrap_or(u32::MAX);
            before.saturating_sub(at.since(first))
        });
        (self.ahead(now) + beyond.max().unwrap_or_default()).min(self.longest)
    }

    /// The most that a task is ever claimed ahead.
    pub const fn longest(&self) -> Duration {
        self.longest
    }

    /// The time whose tasks share one claim. Slow claims become fewer and larger.
    pub fn stride(&self, now: Instant) -> Duration {
        self.ahead(now) / 3
    }

    fn faded(&self, now: Instant) -> Duration {
        let half_lives = now.saturating_duration_since(self.at).div_duration_f64(HALF_LIFE);
        self.peak.mul_f64((-half_lives).exp2())
    }
}
