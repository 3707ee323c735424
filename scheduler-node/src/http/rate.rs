//! The rate limit of each caller's requests.

use std::{collections::HashMap, sync::Arc, time::Instant};

use common::{access::Caller, limit::Bucket};
use parking_lot::Mutex;

/// Most callers remembered at one time. Those that sent nothing for a second are forgotten first.
const CALLERS: usize = 4_096;

/// A token bucket for each limited caller.
#[derive(Debug)]
pub(super) struct CallerRates {
    /// The rate of callers whose token has no limit of its own; 0: no limit.
    per_second: u32,
    buckets: Mutex<HashMap<Arc<str>, Bucket>>,
}

impl CallerRates {
    pub(super) fn new(per_second: u32) -> Self {
        Self { per_second, buckets: Mutex::default() }
    }

    /// Whether `caller` may send one more request at `now`.
    pub(super) fn has_room(&self, caller: &Caller, now: Instant) -> bool {
        let per_second = caller.limits.requests_per_second.unwrap_or(self.per_second);
        if per_second == 0 {
            return true;
        }
        let mut buckets = self.buckets.lock();
        if buckets.len() >= CALLERS && !buckets.contains_key(&caller.name) {
            // A bucket that is full again is as good as none.
            buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        buckets.entry(Arc::clone(&caller.name)).or_default().take(per_second, now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use common::{
        access::{Role, Scope},
        limit::TokenLimits,
    };

    use super::*;

    fn caller(name: &str, requests_per_second: Option<u32>) -> Caller {
        let limits = TokenLimits { requests_per_second, ..TokenLimits::NONE };
        Caller { id: None, name: name.into(), role: Role::Producer, queues: Scope::ALL, limits }
    }

    #[test]
    fn each_caller_has_its_own_rate_and_a_burst_of_a_second() {
        let (rates, start) = (CallerRates::new(10), Instant::now());
        let (shop, mail) = (caller("shop", None), caller("mail", None));
        let passed = |caller, at, sent: usize| (0..sent).filter(|_| rates.has_room(caller, at)).count();
        assert_eq!(passed(&shop, start, 50), 10);
        assert_eq!(passed(&mail, start, 3), 3, "another caller is not held back");
        assert_eq!(passed(&shop, start + Duration::from_millis(500), 50), 5);
        assert_eq!(passed(&shop, start + Duration::from_secs(60), 50), 10, "nothing is saved up beyond a second");
    }

    #[test]
    fn the_rate_of_a_token_counts_instead_of_the_configured_one() {
        let start = Instant::now();
        for configured in [0, 10] {
            let rates = CallerRates::new(configured);
            let shop = caller("shop", Some(3));
            assert_eq!((0..50).filter(|_| rates.has_room(&shop, start)).count(), 3, "{configured}");
        }
    }

    #[test]
    fn without_a_limit_everything_passes_and_nothing_is_remembered() {
        let rates = CallerRates::new(0);
        assert!((0..1_000).all(|_| rates.has_room(&caller("shop", None), Instant::now())));
        assert!(rates.buckets.lock().is_empty());
    }
}
