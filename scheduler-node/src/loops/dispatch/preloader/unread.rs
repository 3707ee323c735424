//! The shards that could not be read from their first task on together with others.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use common::{delay::rest, ids::ShardId, time::UnixMicros};

/// A round that reads each of them within this time shows that they can be read together again: a statement has 5 s.
const QUICK_ROUND: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Unread {
    /// The shards that this round has still to read.
    shards: VecDeque<ShardId>,
    /// Shards that ran out of time alone.
    slow_shards: VecDeque<ShardId>,
    /// When the next of these may be read: they use a tenth of the time.
    slow_at: Option<UnixMicros>,
    /// Since when shards are owned of which no read from the first task on has ended.
    never_read: BTreeMap<ShardId, UnixMicros>,
    /// Whether reads of many shards from the first task on run out of time.
    is_slow: bool,
    /// How long the shards of this round took so far.
    took: Duration,
    /// The oldest claimable task that this round has found.
    oldest: Option<UnixMicros>,
}

impl Unread {
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// Notes shards that were adopted, which nothing has read.
    pub(super) fn begin(&mut self, shards: &[ShardId], now: UnixMicros) {
        for shard in shards {
            self.never_read.entry(*shard).or_insert(now);
        }
    }

    /// Shards were read from the first task on, together.
    pub(super) fn read_together(&mut self, shards: &[ShardId]) {
        for shard in shards {
            self.never_read.remove(shard);
        }
    }

    /// Adds shards. The first of them begin a round.
    pub(super) fn add(&mut self, shards: &[ShardId]) {
        self.is_slow = true;
        if self.shards.is_empty() {
            (self.took, self.oldest) = (Duration::ZERO, None);
        }
        let is_new = |shard: &&ShardId| !self.shards.contains(shard) && !self.slow_shards.contains(shard);
        let new: Vec<ShardId> = shards.iter().filter(is_new).copied().collect();
        self.shards.extend(new);
    }

    pub(super) fn keep(&mut self, is_owned: impl Fn(ShardId) -> bool) {
        self.shards.retain(|shard| is_owned(*shard));
        self.slow_shards.retain(|shard| is_owned(*shard));
        self.never_read.retain(|shard, _| is_owned(*shard));
    }

    /// The clock was set back: moments that it showed lie ahead.
    pub(super) fn set_back(&mut self, now: UnixMicros) {
        self.slow_at = None;
        self.never_read.values_mut().for_each(|since| *since = now.min(*since));
    }

    /// The shard to read next, if it is time to.
    pub(super) fn next(&mut self, now: UnixMicros) -> Option<ShardId> {
        let may_be_slow = self.slow_at.is_none_or(|at| at <= now);
        self.shards.pop_front().or_else(|| if may_be_slow { self.slow_shards.pop_front() } else { None })
    }

    /// When to ask [`Self::next`] again.
    pub(super) fn ask_again_at(&self) -> UnixMicros {
        match (self.shards.is_empty(), self.slow_shards.is_empty()) {
            (false, _) => UnixMicros::FIRST,
            (true, false) => self.slow_at.unwrap_or(UnixMicros::FIRST),
            (true, true) => UnixMicros::LAST,
        }
    }

    /// The shard from [`Self::next`] was read.
    pub(super) fn read(&mut self, shard: ShardId, took: Duration, oldest: Option<UnixMicros>) {
        self.never_read.remove(&shard);
        self.took += took;
        self.oldest = self.oldest.into_iter().chain(oldest).min();
        if self.shards.is_empty() && self.slow_shards.is_empty() && self.took < QUICK_ROUND {
            self.is_slow = false;
        }
    }

    /// The shard from [`Self::next`] ran out of time after so long, at `ended`.
    pub(super) fn ran_out_of_time(&mut self, shard: ShardId, took: Duration, ended: UnixMicros) {
        self.slow_shards.push_back(shard);
        self.took += took;
        self.slow_at = Some(ended.plus(rest(took)));
    }

    /// The shard from [`Self::next`] was not read: the database is away.
    pub(super) fn failed(&mut self, shard: ShardId) {
        self.shards.push_front(shard);
    }

    /// How far behind the oldest claimable task may be: one that a round has found, which may have been claimed since,
    /// or one of an adopted shard that could not be read from its first task on.
    pub(super) fn overdue(&self, now: UnixMicros) -> Duration {
        let found = self.oldest.filter(|_| self.is_slow);
        let unread = self.never_read.values().min().copied();
        found.into_iter().chain(unread).min().map_or(Duration::ZERO, |oldest| now.since(oldest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMicros = UnixMicros::new(1_000_000_000);
    const SHARDS: [ShardId; 3] = [ShardId::new(1), ShardId::new(2), ShardId::new(3)];

    #[test]
    fn a_slow_shard_lets_the_others_go_first_and_rests() {
        let mut unread = Unread::default();
        assert_eq!((unread.next(NOW), unread.ask_again_at()), (None, UnixMicros::LAST));
        unread.begin(&SHARDS, NOW);
        unread.add(&SHARDS);
        unread.add(&SHARDS[..2]);
        assert_eq!(unread.next(NOW), Some(SHARDS[0]));
        unread.ran_out_of_time(SHARDS[0], Duration::from_secs(5), NOW);
        for shard in &SHARDS[1..] {
            assert_eq!(unread.next(NOW), Some(*shard));
            unread.read(*shard, Duration::ZERO, None);
        }
        assert_eq!(unread.next(NOW), None);
        let later = NOW.plus(Duration::from_secs(45));
        assert_eq!((unread.ask_again_at(), unread.overdue(later)), (later, Duration::from_secs(45)));
        assert_eq!(unread.next(later), Some(SHARDS[0]));
        unread.read(SHARDS[0], Duration::from_secs(1), None);
        unread.add(&SHARDS);
        unread.ran_out_of_time(SHARDS[0], Duration::from_secs(5), later);
        assert_eq!(unread.overdue(later.plus(Duration::from_secs(99))), Duration::ZERO, "it has been read once");
    }

    #[test]
    fn a_round_without_a_slow_shard_ends_the_slowness_and_tells_what_is_overdue_until_then() {
        let mut unread = Unread::default();
        let oldest = NOW.minus(Duration::from_secs(60));
        for slow in [true, false] {
            unread.add(&SHARDS);
            if slow {
                let shard = unread.next(NOW).expect("one is left");
                unread.ran_out_of_time(shard, Duration::from_secs(5), NOW);
            }
            while let Some(shard) = unread.next(NOW.plus(Duration::from_secs(45))) {
                assert!(unread.is_slow());
                unread.read(shard, Duration::from_millis(100), Some(oldest));
            }
            assert_eq!(unread.is_slow(), slow);
            assert_eq!(unread.overdue(NOW), Duration::from_secs(if slow { 60 } else { 0 }));
        }
    }
}
