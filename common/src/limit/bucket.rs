//! A rate limit: a token bucket that holds the requests of one second, so that a short burst passes.

use std::time::Instant;

/// A token bucket that starts full.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    /// The requests left, and the moment at which that was computed; `None` before the first use.
    left: Option<(f64, Instant)>,
}

impl Bucket {
    /// Takes one request at `now`, if `per_second` allows it.
    pub fn take(&mut self, per_second: u32, now: Instant) -> bool {
        let most = f64::from(per_second);
        let (left, at) = self.left.unwrap_or((most, now));
        let dripped = now.saturating_duration_since(at).as_secs_f64() * most;
        let left = (left + dripped).min(most);
        let passes = left >= 1.0;
        self.left = Some((if passes { left - 1.0 } else { left }, at.max(now)));
        passes
    }

    /// Gives a request back that was taken and is not made.
    pub fn give_back(&mut self) {
        if let Some((left, _)) = &mut self.left {
            // The next request finds no more than the bucket holds.
            *left += 1.0;
        }
    }

    /// Whether the bucket is as full as a new one.
    pub fn is_full(&self, now: Instant) -> bool {
        self.left.is_none_or(|(_, at)| now.saturating_duration_since(at).as_secs_f64() >= 1.0)
    }
}
