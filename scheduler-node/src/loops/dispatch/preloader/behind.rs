//! The progress of shards that have more keys than one read takes.

use std::{collections::BTreeMap, time::Duration};

use common::{ids::ShardId, time::UnixMicros};

/// The most keys that one read takes of one shard: bounds the answer while a million are overdue.
pub(super) const KEYS_PER_SHARD: i64 = 2_000;

/// The most keys that one read takes of one shard when that many wake at one moment: some 5 MB.
pub(super) const MOST_KEYS_OF_A_SHARD: i64 = 64_000;

/// The pause before the next read of a shard of which even that many keys wake at one moment. It counts from their
/// due time; by its end some are claimed.
const PAUSE_AT_ONE_MOMENT: Duration = Duration::from_millis(250);

/// The progress of reading a shard that is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Behind {
    /// Everything before this moment is read.
    pub(super) from: UnixMicros,
    /// The number of keys to take.
    pub(super) keys: i64,
    /// The moment before which the shard is not read again.
    pub(super) at: UnixMicros,
}

impl Behind {
    pub(super) const fn new(from: UnixMicros, now: UnixMicros) -> Self {
        Self { from, keys: KEYS_PER_SHARD, at: now }
    }

    /// The next read after one that found no end; `last` is the latest moment it saw. A read without progress
    /// doubles the number of keys, up to a bound.
    pub(super) fn read_on(self, last: UnixMicros, now: UnixMicros) -> Self {
        let got_on = last > self.from;
        let keys = if got_on { KEYS_PER_SHARD } else { (self.keys * 2).min(MOST_KEYS_OF_A_SHARD) };
        let is_stuck = !got_on && self.keys == MOST_KEYS_OF_A_SHARD;
        let at = if is_stuck { last.max(now.plus(PAUSE_AT_ONE_MOMENT)) } else { now };
        Self { from: last, keys, at }
    }

    /// Reads on from an earlier moment. The shard keeps its place among those that wait, and a rest ends.
    pub(super) fn set_back(self, last: UnixMicros, now: UnixMicros) -> Self {
        Self { at: self.at.min(now), ..Self::new(last, now) }
    }
}

/// The shards to read on now, those that have waited longest first: there may be time or room for a few only.
pub(super) fn due(behind: &BTreeMap<ShardId, Behind>, now: UnixMicros) -> Vec<(ShardId, Behind)> {
    let mut due: Vec<(ShardId, Behind)> =
        behind.iter().filter(|(_, behind)| behind.at <= now).map(|(shard, behind)| (*shard, *behind)).collect();
    due.sort_by_key(|(_, behind)| behind.at);
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_ms(millis: i64) -> UnixMicros {
        UnixMicros::new(millis * 1_000)
    }

    #[test]
    fn the_shard_that_has_waited_longest_is_read_on_first_also_after_a_full_read() {
        let [low, high, resting] = [1, 2, 3].map(ShardId::new);
        let first = Behind::new(at_ms(5), at_ms(100));
        let rests = Behind { at: at_ms(900), ..first };
        let mut behind = BTreeMap::from([(low, first.read_on(at_ms(6), at_ms(200))), (high, first), (resting, rests)]);
        let order = |behind: &BTreeMap<ShardId, Behind>, now| -> Vec<ShardId> {
            due(behind, now).into_iter().map(|(shard, _)| shard).collect()
        };
        assert_eq!(order(&behind, at_ms(150)), [high]);
        assert_eq!(order(&behind, at_ms(300)), [high, low]);
        behind.values_mut().for_each(|behind| *behind = behind.set_back(at_ms(4), at_ms(300)));
        assert_eq!(order(&behind, at_ms(300)), [high, low, resting]);
        assert!(behind.values().all(|behind| behind.from == at_ms(4)));
    }

    #[test]
    fn more_keys_of_one_moment_than_a_read_takes_are_read_in_larger_parts_and_then_only_when_they_are_due() {
        let (now, due) = (at_ms(1_000), at_ms(9_000));
        let mut behind = Behind::new(due, now);
        let mut reads = 0;
        while behind.at == now {
            behind = behind.read_on(due, now);
            reads += 1;
            assert!(reads < 10, "the same keys are read repeatedly");
        }
        assert_eq!((behind.keys, behind.at), (MOST_KEYS_OF_A_SHARD, due));
        let then = at_ms(9_010);
        assert_eq!(behind.read_on(due, then).at, then.plus(PAUSE_AT_ONE_MOMENT));
        let got_on = behind.read_on(at_ms(9_500), then);
        assert_eq!(got_on, Behind::new(at_ms(9_500), then));
    }
}
