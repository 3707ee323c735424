//! How many tasks a queue with a rate may start: a token bucket of permits.

use std::time::{Duration, Instant};

/// The most that a bucket saves: one permit, or at high rates the permits of this time. One round trip to the
/// database takes a few milliseconds, and permits of that time must not be lost.
const SAVED: Duration = Duration::from_millis(50);

/// A token bucket that starts empty: the starts of the previous owner are unknown.
#[derive(Clone, Debug)]
pub struct Bucket {
    permits: f64,
    at: Instant,
}

impl Bucket {
    pub fn empty(now: Instant) -> Self {
        Self { permits: 0.0, at: now }
    }

    /// How many tasks may be started now, at `per_second`.
    pub fn permits(&mut self, per_second: f64, now: Instant) -> usize {
        let dripped = now.saturating_duration_since(self.at).as_secs_f64() * per_second;
        self.permits = (self.permits + dripped).min((SAVED.as_secs_f64() * per_second).max(1.0));
        self.at = self.at.max(now);
        // Rounds down.
        self.permits.max(0.0) as usize
    }

    /// Takes the permits of the tasks that were started.
    pub fn take(&mut self, started: usize) {
        self.permits -= started as f64;
    }

    /// When to ask again: at the next permit, or at high rates once a few permits have come together. The longest
    /// wait is `most`.
    pub fn ask_again_at(&self, per_second: f64, most: Duration) -> Instant {
        let wanted = (SAVED.as_secs_f64() * per_second / 4.0).max(1.0);
        let wait = (wanted - self.permits).max(0.0) / per_second;
        self.at + Duration::try_from_secs_f64(wait).unwrap_or(most).min(most)
    }
}

#[cfg(test)]
mod tests;
