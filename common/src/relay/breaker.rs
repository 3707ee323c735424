//! When to leave a target alone: a circuit breaker.

use std::time::{Duration, Instant};

/// The first pause; each failed probe doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// A target that is back is found within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How many calls may be out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    All,
    /// To find out whether the target is back.
    Probe,
    /// None before then.
    NoneUntil(Instant),
}

/// Open after so many failures in a row, then probed by one call at a time.
#[derive(Clone, Debug)]
pub struct Breaker {
    /// Failures in a row that open it.
    limit: u32,
    failures: u32,
    /// There while it is open.
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

    /// A call ended that was begun with this room. What began before it opened says nothing about now.
    pub fn ended(&mut self, begun_as: Room, is_well: bool, now: Instant) {
        match (self.open, is_well) {
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
