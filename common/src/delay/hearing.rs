//! Whether the reports that came during an outage have had time to be read.
//!
//! Consumers report and reject while a database, or all nodes, are away or stopped. Those messages wait at the broker.
//! A deadline that passed meanwhile says nothing about the consumer, so after the outage the messages come first.

use std::time::{Duration, Instant};

/// How long messages come first: 20,000 of them are read and written in less.
const HEAR_FIRST: Duration = Duration::from_secs(10);

/// A process that has not run for longer was stopped. It runs each second, and a busy machine delays that by less.
const STOPPED_AFTER: Duration = Duration::from_secs(3);

/// Whether messages come and can be written, and since when. By default they always could.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hearing {
    is_away: bool,
    since: Option<Instant>,
    /// When the process ran last.
    ran_at: Option<Instant>,
}

impl Hearing {
    /// That of a node that has just started: its database has not answered yet.
    pub fn away() -> Self {
        Self { is_away: true, ..Self::default() }
    }

    /// The database is away.
    pub fn end(&mut self) {
        self.is_away = true;
    }

    /// The database answers.
    pub fn begin(&mut self, now: Instant) {
        if std::mem::take(&mut self.is_away) {
            self.since = Some(now);
        }
    }

    /// Messages come again, as after an outage of the broker.
    pub fn begin_again(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// The process runs. If it was stopped before, messages come again only now.
    pub fn runs(&mut self, now: Instant) {
        let ran_at = self.ran_at.replace(now);
        if ran_at.is_some_and(|ran_at| now.saturating_duration_since(ran_at) > STOPPED_AFTER) {
            self.begin_again(now);
        }
    }

    /// How long deadlines still wait.
    pub fn wait(&self, now: Instant) -> Duration {
        match self.since {
            _ if self.is_away => HEAR_FIRST,
            Some(since) => (since + HEAR_FIRST).saturating_duration_since(now),
            None => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests;
