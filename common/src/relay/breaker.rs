//! A circuit breaker: when to leave a target alone.

use std::time::{Duration, Instant};

/// The first pause; each failed probe doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause: a target that is back is found within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How many calls the breaker allows at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    All,
    /// One call, to find out whether the target is back.
    Probe,
    /// No call before that moment.
    NoneUntil(Instant),
}

/// A breaker that opens after so many failures in a row. Once the pause is over, one call at a time probes the
/// target.
#[derive(Clone, Debug)]
pub struct Breaker {
    /// The failures in a row that open the breaker.
    limit: u32,
    failures: u32,
    /// Set while the breaker is open.
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    until: Instant,
    pause: Duration,
}

impl Breaker {
    pub const fn new(limit: u32) -> Self {
        Self { limit, failures: 0, open: None }
    }

    pub fn room(&self, now: Instant) -> Room {
        match self.open {
            None => Room::All,
            Some(open) if now < open.until => Room::NoneUntil(open.until),
            Some(_) => Room::Probe,
        }
    }

    /// Records the end of a call that was begun with this room. A call from before the breaker opened says nothing
    /// about the target now.
    pub fn ended(&mut self, begun_as: Room, is_healthy: bool, now: Instant) {
        match (self.open, is_healthy) {
            (None, true) => self.failures = 0,
            (None, false) => {
                self.failures += 1;
                if self.failures >= self.limit {
                    self.open = Some(Open { until: now + FIRST_PAUSE, pause: FIRST_PAUSE });
                }
            }
            (Some(_), true) if begun_as == Room::Probe => *self = Self::new(self.limit),
            (Some(open), false) if begun_as == Room::Probe => {
                let pause = (open.pause * 2).min(LONGEST_PAUSE);
                self.open = Some(Open { until: now + pause, pause });
            }
            (Some(_), _) => {}
        }
    }
}

#[cfg(test)]
mod tests;
