//! Where this node's looks at due schedules begin while they pass over some.
//!
//! A look passes over the schedules whose last tasks this node cannot learn of. While it does not find as many others
//! as it may read, it reads all of them, however many they are. So after such a look the next ones begin 5 s before the
//! moment of that look, for nine times as long as it took, 5 s at the most.

use std::time::{Duration, Instant};

use common::{delay::rest, time::UnixMicros};

/// A look that took less passed over few: another one soon after it hardly takes longer.
const QUICK: Duration = Duration::from_millis(50);

/// The longest time without a look from the head. What came due before, and could not be decided then, waits for it.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// How far before the last look from the head the others begin. A schedule may be written with a `wake_at` that has
/// passed, or its transaction may be open for a while. Then it waits for a look from the head at the most.
const LOOK_BACK: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Looks {
    /// The `wake_at` from which to look, and until when.
    short: Option<(UnixMicros, Instant)>,
}

impl Looks {
    /// The `wake_at` from which to look at `now`. `None`: from the head. `passes_over`: whether the look passes over
    /// schedules.
    pub(super) fn from(&self, passes_over: bool, now: Instant) -> Option<UnixMicros> {
        self.short.filter(|(_, until)| passes_over && now < *until).map(|(from, _)| from)
    }

    /// Notes a look from the head that ended at `now`, and began on the database's clock at `began_at`. `has_read_all`:
    /// it found fewer than it may read, or ran out of its time.
    pub(super) fn ended(&mut self, has_read_all: bool, began_at: Option<UnixMicros>, took: Duration, now: Instant) {
        let is_slow = has_read_all && took > QUICK;
        let until = now + rest(took).min(LONGEST_REST);
        self.short = began_at.filter(|_| is_slow).map(|began_at| (began_at.minus(LOOK_BACK), until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_slow_look_that_passes_over_schedules_the_next_ones_begin_shortly_before_it_for_a_while() {
        let (mut looks, now, at) = (Looks::default(), Instant::now(), UnixMicros::FIRST.plus(LOOK_BACK * 2));
        let (slow, out_of_time) = (Duration::from_millis(100), Duration::from_secs(60));
        assert_eq!(looks.from(true, now), None);
        looks.ended(true, Some(at), slow, now);
        assert_eq!(looks.from(true, now + 8 * slow), Some(at.minus(LOOK_BACK)));
        assert_eq!(looks.from(true, now + 9 * slow), None);
        assert_eq!(looks.from(false, now), None, "it passes over none any more");
        looks.ended(true, Some(at), out_of_time, now);
        assert_eq!(looks.from(true, now + LONGEST_REST), None);
        for (has_read_all, took) in [(false, slow), (true, QUICK)] {
            looks.ended(has_read_all, Some(at), took, now);
            assert_eq!(looks.from(true, now), None);
        }
    }
}
