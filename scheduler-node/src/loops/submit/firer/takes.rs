//! When this node takes decided fire times on that others have left.
//!
//! A take passes over the fire times whose database is away, or takes no tasks. While it does not find as many others
//! as it may take, it reads all of them, however many they are. So takes rest then, for nine times as long as they
//! took, and use a tenth of the time. After takes of more than 0.56 s the rest is 5 s, and they use more of it.

use std::time::{Duration, Instant};

use common::delay::rest;

/// The longest rest. The fire times of other databases that were left wait for it too.
pub(super) const LONGEST_REST: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Takes {
    rests_until: Option<Instant>,
}

impl Takes {
    /// Whether a take may begin at `now`. `passes_over`: whether a database is away, or takes no tasks.
    pub(super) fn may_begin(&self, passes_over: bool, now: Instant) -> bool {
        !passes_over || self.rests_until.is_none_or(|until| until <= now)
    }

    /// Notes a take that ended at `now`. `has_read_all`: it found fewer than it may take, or ran out of its time.
    pub(super) fn ended(&mut self, passes_over: bool, has_read_all: bool, took: Duration, now: Instant) {
        self.rests_until = (passes_over && has_read_all).then(|| now + rest(took).min(LONGEST_REST));
    }

    /// Has takes rest until then.
    #[cfg(test)]
    pub(super) fn rest_until(&mut self, until: Instant) {
        self.rests_until = Some(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_rest_while_a_database_is_away_and_each_reads_all_that_it_passes_over() {
        let (mut takes, now) = (Takes::default(), Instant::now());
        let (quick, slow) = (Duration::from_millis(100), Duration::from_secs(60));
        assert!(takes.may_begin(true, now));
        takes.ended(true, true, quick, now);
        assert!(!takes.may_begin(true, now + 8 * quick) && takes.may_begin(true, now + 9 * quick));
        assert!(takes.may_begin(false, now), "the database is back");
        takes.ended(true, true, slow, now);
        assert!(takes.may_begin(true, now + LONGEST_REST));
        for (passes_over, has_read_all) in [(true, false), (false, true)] {
            takes.ended(passes_over, has_read_all, slow, now);
            assert!(takes.may_begin(true, now));
        }
    }
}
