//! Where this node's looks at due schedules begin while they pass over some.
//!
//! A look passes over the schedules whose last tasks this node cannot learn of. While it does not find as many others
//! as it may read, it reads all of them, however many they are. So after a slow look from the head, or a later one that
//! ran out of its time, the next ones begin later: for nine times as long as it took, 5 s at the most. After looks of
//! more than 0.56 s, those from the head use more than a tenth of the time.
//!
//! The next ones begin where all before has been read: 5 s before a look that found fewer than it may read, or where a
//! look found its first schedule. A look that runs out of its time has read nothing, so they begin before the last one
//! that has read all. A later look that runs out of its time has the next begin 5 s before itself.

use std::time::{Duration, Instant};

use common::{delay::rest, time::UnixMicros};

/// A look that took less passed over few: another one soon after it hardly takes longer.
const QUICK: Duration = Duration::from_millis(50);

/// The longest rest after a slow look. What came due before, and could not be decided then, waits for a look from the
/// head. A short look that runs out of its time begins another rest, so the look from the head may come later.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// How far before a look the next ones begin. A schedule may be written with a `wake_at` that has passed, or its
/// transaction may be open for a while. Then it waits for a look from the head at the most.
const LOOK_BACK: Duration = Duration::from_secs(5);

/// What a look read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Read {
    /// All that it did not pass over.
    All,
    /// As many as it may, with this first `wake_at`.
    Full(UnixMicros),
    /// Nothing: it ran out of its time.
    OutOfTime,
}

#[derive(Debug, Default)]
pub(super) struct Looks {
    /// The `wake_at` from which to look, and until when.
    short: Option<(UnixMicros, Instant)>,
    /// All that had come due by then has been read, or was held or left alone, as far as looks ended in time: the begin
    /// of the last look that read all. Before that of the first look, nothing is known.
    read_until: Option<UnixMicros>,
}

impl Looks {
    /// The `wake_at` from which to look at `now`. `None`: from the head. `passes_over`: whether the look passes over
    /// schedules.
    pub(super) fn from(&self, passes_over: bool, now: Instant) -> Option<UnixMicros> {
        self.short.filter(|(_, until)| passes_over && now < *until).map(|(from, _)| from)
    }

    /// Notes a look that ended at `now`. `from`: where it began; `began_at`: when, on the database's clock.
    pub(super) fn ended(
        &mut self,
        from: Option<UnixMicros>,
        read: Read,
        began_at: UnixMicros,
        took: Duration,
        now: Instant,
    ) {
        let before = began_at.minus(LOOK_BACK);
        let read_until = self.read_until.get_or_insert(began_at);
        let next = match read {
            Read::All => {
                *read_until = began_at;
                from.unwrap_or(before)
            }
            Read::Full(first) => first.min(before),
            Read::OutOfTime if from.is_none() => before.min(read_until.minus(LOOK_BACK)),
            // Further looks from there would, too. What is left out waits for a look from the head that ends in time.
            Read::OutOfTime => before,
        };
        let until = match (from, self.short) {
            // One that ran out of its time has used up that rest. The next would begin at the head again.
            (Some(_), Some((_, until))) if !matches!(read, Read::OutOfTime) => Some(until),
            _ => (took > QUICK).then(|| now + rest(took).min(LONGEST_REST)),
        };
        self.short = until.map(|until| (next, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> UnixMicros {
        UnixMicros::FIRST.plus(Duration::from_secs(seconds))
    }

    #[test]
    fn after_a_slow_look_that_passes_over_schedules_the_next_ones_begin_shortly_before_it_for_a_while() {
        let (mut looks, now) = (Looks::default(), Instant::now());
        assert_eq!(looks.from(true, now), None);
        looks.ended(None, Read::All, at(100), SLOW, now);
        assert_eq!(looks.from(true, now + 8 * SLOW), Some(at(95)));
        assert_eq!(looks.from(true, now + 9 * SLOW), None);
        assert_eq!(looks.from(false, now), None, "it passes over none any more");
        looks.ended(Some(at(95)), Read::All, at(101), LONG, now);
        assert_eq!(looks.from(true, now + 8 * SLOW), Some(at(95)));
        assert_eq!(looks.from(true, now + 9 * SLOW), None, "only a look from the head counts");
        looks.ended(None, Read::All, at(110), LONG, now);
        assert_eq!(looks.from(true, now + LONGEST_REST), None);
        looks.ended(None, Read::All, at(120), QUICK, now);
        assert_eq!(looks.from(true, now), None);
    }

    /// Otherwise each of them would read past all that it passes over, a hundred times a second.
    #[test]
    fn after_a_slow_look_that_is_full_the_next_ones_begin_at_the_first_schedule_that_it_found() {
        let (mut looks, now) = (Looks::default(), Instant::now());
        looks.ended(None, Read::Full(at(50)), at(100), SLOW, now);
        assert_eq!(looks.from(true, now), Some(at(50)));
        looks.ended(looks.from(true, now), Read::Full(at(60)), at(100), SLOW, now);
        assert_eq!(looks.from(true, now + 8 * SLOW), Some(at(60)));
        assert_eq!(looks.from(true, now + 9 * SLOW), None);
        looks.ended(None, Read::Full(at(99)), at(100), SLOW, now);
        assert_eq!(looks.from(true, now), Some(at(95)), "a row that comes late is found");
    }

    /// Otherwise what came due while they did would never be read.
    #[test]
    fn after_looks_from_the_head_that_run_out_of_time_the_next_ones_begin_before_the_last_one_that_read_all() {
        let (mut looks, mut now) = (Looks::default(), Instant::now());
        for began in [100, 130, 160] {
            assert_eq!(looks.from(true, now), None);
            looks.ended(None, Read::OutOfTime, at(began), LONG, now);
            assert_eq!(looks.from(true, now), Some(at(95)));
            now += LONG;
        }
        looks.ended(None, Read::All, at(200), LONG, now);
        now += LONG;
        looks.ended(None, Read::OutOfTime, at(300), LONG, now);
        assert_eq!(looks.from(true, now), Some(at(195)));
        now += LONGEST_REST;
        looks.ended(Some(at(195)), Read::OutOfTime, at(310), LONG, now);
        assert_eq!(looks.from(true, now), Some(at(305)), "that was too far back");
        looks.ended(Some(at(305)), Read::All, at(320), SLOW, now);
        now += LONG;
        looks.ended(None, Read::OutOfTime, at(400), LONG, now);
        assert_eq!(looks.from(true, now), Some(at(315)));
        // A clock that was set back.
        now += LONG;
        looks.ended(None, Read::OutOfTime, at(50), LONG, now);
        assert_eq!(looks.from(true, now), Some(at(45)));
    }
}
