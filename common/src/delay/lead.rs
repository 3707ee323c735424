//! How long before its due instant a task is claimed.
//!
//! A claim that ends after the due instant makes its tasks late, and a task that is claimed can no longer be cancelled. So claims
//! begin as early as they lately had to, and no earlier. What they lately had to is a peak that fades: it jumps to every claim that
//! is slower and halves with time, as the "Peak EWMA" of Twitter's Finagle does with the latency of a server.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

/// What a claim may take even when all of late were quicker: the first slow one after a quiet time is not yet known.
const LEAST_PEAK: Duration = Duration::from_millis(20);

/// In this time the memory of a slow claim halves: under load one in some hundred is slow, and it is to be remembered until the
/// next; ten times as slow as the others, it is forgotten within half a minute.
const HALF_LIFE: Duration = Duration::from_secs(5);

/// Learns from every claim of one database.
#[derive(Clone, Debug)]
pub struct Lead {
    longest: Duration,
    /// The slowest claim of late, as of an instant.
    peak: Duration,
    at: Instant,
}

impl Lead {
    /// Never longer than that.
    pub const fn new(longest: Duration, now: Instant) -> Self {
        Self { longest, peak: Duration::ZERO, at: now }
    }

    /// A claim took this long. One that took longer than any lead may be says no more than that.
    pub fn took(&mut self, claim: Duration, now: Instant) {
        self.peak = claim.min(self.longest).max(self.faded(now));
        self.at = now;
    }

    /// To be claimed now: what comes due within this time. Time for the slowest claim, and for what comes due until the next one.
    pub fn ahead(&self, now: Instant) -> Duration {
        (self.faded(now).max(LEAST_PEAK) * 3 / 2).min(self.longest)
    }

    /// Between the beginnings of two claims: what comes due meanwhile goes out in one. Slow claims become fewer and larger by it.
    pub fn stride(&self, now: Instant) -> Duration {
        self.ahead(now) / 3
    }

    fn faded(&self, now: Instant) -> Duration {
        let half_lives = now.saturating_duration_since(self.at).div_duration_f64(HALF_LIFE);
        self.peak.mul_f64((-half_lives).exp2())
    }
}
