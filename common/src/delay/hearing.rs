//! Whether the reports that came during an outage have had time to be read.
//!
//! Consumers report and reject while a database, or all nodes, are away or stopped. Those messages wait at the broker.
//! A deadline that passed meanwhile says nothing about the consumer, so after the outage the messages come first. After
//! a long one they may be many, so the broker is asked what is left before the first deadline ends an attempt.
//! A move that keeps a shard closed for long is an outage of its tasks: where the shard opens, messages come first.

use std::time::{Duration, Instant};

/// How long messages come first: 20,000 of them are read and written in less.
const HEAR_FIRST: Duration = Duration::from_secs(10);

/// How long messages come first while many are left. Some million are read in that time; many that are left even then
/// tell of readers that are too slow at all times.
const HEAR_LONGEST: Duration = Duration::from_secs(1_800);

/// While many messages are left, an outage that ends within this time goes on with the same wait.
const SHORT_GAP: Duration = Duration::from_secs(60);

/// Shards that open one after another have messages come first for this long, although each wait is one for all shards
/// of the database. Then the deadlines of the others have their turn: a move may fail as often as it is tried. What an
/// outage has them wait is no part of it.
const OPENINGS_LONGEST: Duration = Duration::from_secs(300);

/// Deadlines have had their turn once nothing has prolonged the wait for this long. After [`HEAR_FIRST`] that leaves
/// some seconds for the question how many messages are left, and for the attempts that end then.
const HAD_THEIR_TURN: Duration = Duration::from_secs(30);

/// A process that has not run for longer was stopped. It runs each second, and a busy machine delays that by less.
const STOPPED_AFTER: Duration = Duration::from_secs(3);

/// Whether messages come and can be written, and since when. By default they always could.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hearing {
    is_away: bool,
    since: Option<Instant>,
    /// When the first of the shards opened between which there was no outage, and deadlines have not had their turn.
    first_opening: Option<Instant>,
    /// When messages came again last. What the broker was asked before says nothing about what waits since.
    came_again_at: Option<Instant>,
    /// When messages came again, until the broker has told that few are left.
    asked_since: Option<Instant>,
    /// Whether many were left when the broker told last.
    had_many: bool,
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
            self.begin_again(now);
        }
    }

    /// A shard that was closed for long opens, and the messages that were held come first. Where the first of those
    /// that deadlines wait for opened [`OPENINGS_LONGEST`] ago, this prolongs no wait: what was held about this one has
    /// the rest of it.
    pub fn shard_opens(&mut self, now: Instant) {
        if self.had_their_turn(now) {
            self.first_opening = None;
        }
        let first = *self.first_opening.get_or_insert(now);
        if now.saturating_duration_since(first) < OPENINGS_LONGEST {
            self.come_again(now);
        }
    }

    /// Messages come again, as after an outage of the broker.
    pub fn begin_again(&mut self, now: Instant) {
        self.first_opening = None;
        self.come_again(now);
    }

    /// Deadlines wait once more, and the broker must tell once more.
    fn come_again(&mut self, now: Instant) {
        // A short gap while many are left does not begin the longest wait anew.
        let is_short = self.since.is_some_and(|since| now.saturating_duration_since(since) < SHORT_GAP);
        if !(self.had_many && is_short) {
            self.asked_since = Some(now);
        }
        self.since = Some(now);
        self.came_again_at = Some(now);
    }

    /// Whether deadlines have ended attempts since the last wait, or could have.
    fn had_their_turn(&self, now: Instant) -> bool {
        self.since.is_none_or(|since| now.saturating_duration_since(since) >= HAD_THEIR_TURN)
    }

    /// Whether the broker must tell how many messages are left, before a deadline ends an attempt.
    pub fn must_ask(&self) -> bool {
        self.asked_since.is_some()
    }

    /// Whether many messages are left, as the broker has told.
    pub fn has_many(&self) -> bool {
        self.had_many
    }

    /// The broker, asked at `asked_at`, has told whether many messages are left. While they are many, they come first,
    /// and so do the last few of them. An answer that was asked for before messages came again last does not count.
    /// Returns whether they have come first for so long that deadlines no longer wait for them.
    pub fn told(&mut self, are_many: bool, asked_at: Instant, now: Instant) -> bool {
        let Some(began) = self.asked_since else { return false };
        if self.came_again_at.is_some_and(|came| asked_at < came) {
            return false;
        }
        // No deadline may have come for long, so the longest wait counts from the first answer that many are left.
        let asked_since = if are_many && !self.had_many { now } else { began };
        self.asked_since = Some(asked_since);
        let gives_up = are_many && now.saturating_duration_since(asked_since) >= HEAR_LONGEST;
        if gives_up || !are_many {
            self.asked_since = None;
        }
        if !gives_up && (are_many || self.had_many) {
            self.since = Some(now);
        }
        self.had_many = are_many && !gives_up;
        gives_up
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
