//! How many requests a second each caller may send.

use std::{collections::HashMap, sync::Arc, time::Instant};

use parking_lot::Mutex;

/// Callers remembered at one time. Those that have sent nothing for a second are forgotten first.
const CALLERS: usize = 4_096;

/// A bucket for each caller. It holds the requests of one second, so that a short burst passes.
#[derive(Debug)]
pub(super) struct Rates {
    /// 0: no limit.
    per_second: u32,
    buckets: Mutex<HashMap<Arc<str>, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Rates {
    pub(super) fn new(per_second: u32) -> Self {
        Self { per_second, buckets: Mutex::default() }
    }

    /// Whether `caller` may send one more request at `now`.
    pub(super) fn has_room(&self, caller: &Arc<str>, now: Instant) -> bool {
        if self.per_second == 0 {
            return true;
        }
        let most = f64::from(self.per_second);
        let mut buckets = self.buckets.lock();
        if buckets.len() >= CALLERS && !buckets.contains_key(caller) {
            // A bucket that is full again is as good as none.
            buckets.retain(|_, bucket| now.duration_since(bucket.at).as_secs_f64() < 1.0);
        }
        let bucket = buckets.entry(Arc::clone(caller)).or_insert(Bucket { left: most, at: now });
        let filled = now.saturating_duration_since(bucket.at).as_secs_f64() * most;
        bucket.left = (bucket.left + filled).min(most);
        bucket.at = now;
        if bucket.left < 1.0 {
            return false;
        }
        bucket.left -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_caller_has_its_own_rate_and_a_burst_of_a_second() {
        let (rates, start) = (Rates::new(10), Instant::now());
        let (shop, mail): (Arc<str>, Arc<str>) = ("shop".into(), "mail".into());
        let passed = |caller, at, sent: usize| (0..sent).filter(|_| rates.has_room(caller, at)).count();
        assert_eq!(passed(&shop, start, 50), 10);
        assert_eq!(passed(&mail, start, 3), 3, "another caller is not held back");
        assert_eq!(passed(&shop, start + Duration::from_millis(500), 50), 5);
        assert_eq!(passed(&shop, start + Duration::from_secs(60), 50), 10, "nothing is saved up beyond a second");
    }

    #[test]
    fn without_a_limit_everything_passes_and_nothing_is_remembered() {
        let rates = Rates::new(0);
        assert!((0..1_000).all(|_| rates.has_room(&"shop".into(), Instant::now())));
        assert!(rates.buckets.lock().is_empty());
    }
}
