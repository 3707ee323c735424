//! How long something takes while nothing stands before it: the quickest of the last one to two periods.
//!
//! What takes longer has waited. TCP Vegas tells so from the round-trip times of a connection (Brakmo and Peterson,
//! IEEE JSAC 1995).

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

/// The quickest is that of this period or the one before. What has become slower is known as such after two of them.
pub const PERIOD: Duration = Duration::from_secs(60);

/// The quickest of the present period, and of the one before.
#[derive(Clone, Debug, Default)]
pub struct Quickest {
    began: Option<Instant>,
    last: Option<Duration>,
    present: Option<Duration>,
}

impl Quickest {
    /// Adds one that took so long, and returns how long the quickest took.
    pub fn with(&mut self, took: Duration, now: Instant) -> Duration {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= PERIOD) {
            *self = Self { began: Some(now), last: self.present, present: None };
        }
        let present = self.present.map_or(took, |quickest| quickest.min(took));
        self.present = Some(present);
        self.last.map_or(present, |quickest| quickest.min(present))
    }
}
