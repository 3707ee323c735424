//! How many messages come due.

use std::time::{Duration, Instant};

/// The rate is that of so long a time: the last one that has passed.
pub const SPAN: Duration = Duration::from_millis(100);

/// The messages of a span from which on they wait for one another. Fewer leave the node time to send each at once.
pub const MANY: usize = 150;

/// How many messages came in the last span, and in the present one.
#[derive(Debug, Default)]
pub(super) struct Rate {
    pub(super) began: Option<Instant>,
    pub(super) last: usize,
    pub(super) present: usize,
}

impl Rate {
    pub(super) fn count(&mut self, messages: usize, now: Instant) {
        if messages == 0 {
            return;
        }
        if self.age(now).is_none_or(|age| age >= SPAN) {
            *self = Self { began: Some(now), last: self.last_at(now), present: 0 };
        }
        self.present += messages;
    }

    /// Whether so many messages come that they wait for one another.
    pub(super) fn is_of_many(&self, now: Instant) -> bool {
        self.last_at(now) >= MANY
    }

    /// The messages of the last span that has passed.
    fn last_at(&self, now: Instant) -> usize {
        match self.age(now) {
            Some(age) if age < SPAN => self.last,
            Some(age) if age < 2 * SPAN => self.present,
            _ => 0,
        }
    }

    /// How long ago the present span began.
    fn age(&self, now: Instant) -> Option<Duration> {
        self.began.map(|began| now.saturating_duration_since(began))
    }
}
