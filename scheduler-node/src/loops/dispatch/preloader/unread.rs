//! The shards that are left to single reads: joint reads of them from their first task on take too long, or they have
//! what cannot be read. It says which shard comes next, and how long single reads may take.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use common::{delay::rest, ids::ShardId, time::UnixMicros};

use super::{LATELY, round::Rounds};

/// Single reads have at least this much of a pass. Nudges wait meanwhile.
const SINGLE_READS_WITHIN: Duration = Duration::from_secs(1);

/// The most that single reads have of a pass: about as long as two joint reads.
const SINGLE_READS_LONGEST: Duration = Duration::from_secs(10);

/// The most that counts as lost: about as long as the joint reads of one pass, if all run out of time.
const LOST_LONGEST: Duration = Duration::from_secs(20);

/// The shortest rest of shards that cannot be read: their reads mostly fail at once. If 256 fail, as those of a node
/// that does not know a state of a later version, each has its turn within the minute of which reads are tried then.
pub(super) const SHORTEST_REST: Duration = Duration::from_millis(100);

/// Shards for single reads, one after another, with a rest after each that fails: they use a tenth of the time.
#[derive(Debug, Default)]
struct Resting {
    shards: VecDeque<ShardId>,
    until: Option<UnixMicros>,
}

impl Resting {
    fn add(&mut self, shard: ShardId, until: UnixMicros) {
        if !self.shards.contains(&shard) {
            self.shards.push_back(shard);
        }
        // A shard that fails quickly does not end the rest of one that took long.
        self.until = self.until.max(Some(until));
    }

    fn next(&mut self, now: UnixMicros) -> Option<ShardId> {
        if self.until.is_none_or(|until| until <= now) { self.shards.pop_front() } else { None }
    }

    /// When to ask [`Self::next`] again, if there are shards.
    fn ask_again_at(&self) -> Option<UnixMicros> {
        (!self.shards.is_empty()).then(|| self.until.unwrap_or(UnixMicros::FIRST))
    }
}

#[derive(Debug, Default)]
pub(super) struct Unread {
    /// The shards that this round has still to read.
    shards: VecDeque<ShardId>,
    /// Shards whose single reads ran out of time.
    slow: Resting,
    /// Shards whose reads fail because of what they have. No joint read includes them.
    unreadable: Resting,
    /// Since when shards are owned, fail, or are not read in time, of which no read from the first task on has ended.
    unread_since: BTreeMap<ShardId, UnixMicros>,
    /// Whether joint reads from the first task on run out of time.
    joint_reads_time_out: bool,
    /// Whether the last read was of a shard that had rested.
    has_read_rested: bool,
    rounds: Rounds,
    /// The time of joint reads that ran out of time, less what single reads have had since.
    lost: Duration,
    /// The oldest claimable task that the last read of each shard has found, while `joint_reads_time_out`.
    oldest: BTreeMap<ShardId, UnixMicros>,
    /// When what came due lately was last read in a shard whose single read failed.
    lately_at: BTreeMap<ShardId, UnixMicros>,
}

impl Unread {
    pub(super) fn joint_reads_time_out(&self) -> bool {
        self.joint_reads_time_out
    }

    /// Notes shards of which no task has been read since then: adopted ones, and those whose joint read timed out.
    pub(super) fn note_unread_since(&mut self, shards: &[ShardId], since: UnixMicros) {
        for shard in shards {
            self.unread_since.entry(*shard).or_insert(since);
        }
    }

    /// A joint read from the first task on has had these shards, except for those that were left to single reads.
    pub(super) fn read_together(&mut self, shards: &[ShardId]) {
        for shard in shards {
            if !self.is_left(*shard) {
                self.unread_since.remove(shard);
            }
        }
    }

    /// A full read has ended. Where joint reads had all shards, the next slowness is a new one.
    pub(super) fn end_full_read(&mut self) {
        if !self.joint_reads_time_out {
            self.rounds.joint_reads_pass();
        }
    }

    /// Those of `shards` that a joint read may include.
    pub(super) fn readable(&self, shards: &[ShardId]) -> Vec<ShardId> {
        shards.iter().copied().filter(|shard| !self.unreadable.shards.contains(shard)).collect()
    }

    /// Whether a shard is left to a single read.
    fn is_left(&self, shard: ShardId) -> bool {
        [&self.shards, &self.slow.shards, &self.unreadable.shards].iter().any(|shards| shards.contains(&shard))
    }

    /// Adds shards. The first of them begin a round.
    pub(super) fn add(&mut self, shards: &[ShardId]) {
        if self.shards.is_empty() || !self.joint_reads_time_out || self.rounds.is_over() {
            self.rounds.begin();
        }
        self.joint_reads_time_out = true;
        self.add_nudged(shards);
    }

    /// Adds shards whose read after a nudge ran out of time. That says nothing about joint reads from the first task
    /// on.
    pub(super) fn add_nudged(&mut self, shards: &[ShardId]) {
        let new: Vec<ShardId> = shards.iter().copied().filter(|shard| !self.is_left(*shard)).collect();
        self.shards.extend(new);
    }

    pub(super) fn keep(&mut self, is_owned: impl Fn(ShardId) -> bool) {
        for shards in [&mut self.shards, &mut self.slow.shards, &mut self.unreadable.shards] {
            shards.retain(|shard| is_owned(*shard));
        }
        self.unread_since.retain(|shard, _| is_owned(*shard));
        self.oldest.retain(|shard, _| is_owned(*shard));
        self.lately_at.retain(|shard, _| is_owned(*shard));
    }

    /// The clock was set back: moments that it showed lie ahead.
    pub(super) fn set_back(&mut self, now: UnixMicros) {
        (self.slow.until, self.unreadable.until) = (None, None);
        self.unread_since.values_mut().for_each(|since| *since = now.min(*since));
    }

    /// The time in which each unreadable shard mostly has its turn again, where their reads fail at once. The one from
    /// [`Self::next`] counts too.
    pub(super) fn between_turns(&self) -> Duration {
        let shards = u32::try_from(self.unreadable.shards.len() + 1).unwrap_or(u32::MAX);
        // Twice the rest, as each reads for a while too.
        (SHORTEST_REST * 2).saturating_mul(shards)
    }

    /// The shard to read next, if it is time to. Shards that have rested and the others take turns: on a slow machine a
    /// round may never end, so neither kind waits for the end of the other.
    pub(super) fn next(&mut self, now: UnixMicros) -> Option<ShardId> {
        let is_turn_of_others = self.has_read_rested && !self.shards.is_empty();
        let rested = if is_turn_of_others { None } else { self.slow.next(now).or_else(|| self.unreadable.next(now)) };
        self.has_read_rested = rested.is_some();
        rested.or_else(|| self.shards.pop_front())
    }

    /// A joint read ran out of time after so long.
    pub(super) fn note_lost(&mut self, took: Duration) {
        self.lost = LOST_LONGEST.min(self.lost + took);
    }

    /// How much of this pass single reads have: as much as joint reads have lost, within a bound, so that much of the
    /// time goes to reads that help.
    pub(super) fn single_reads_within(&mut self) -> Duration {
        let within = self.lost.clamp(SINGLE_READS_WITHIN, SINGLE_READS_LONGEST);
        self.lost = self.lost.saturating_sub(within);
        within
    }

    /// [`Self::next`] had no more shards in this pass.
    pub(super) fn none_left(&mut self) {
        self.lost = Duration::ZERO;
    }

    /// When to ask [`Self::next`] again.
    pub(super) fn ask_again_at(&self) -> UnixMicros {
        let at_once = (!self.shards.is_empty()).then_some(UnixMicros::FIRST);
        let rested = self.slow.ask_again_at().into_iter().chain(self.unreadable.ask_again_at());
        at_once.into_iter().chain(rested).min().unwrap_or(UnixMicros::LAST)
    }

    /// The shard from [`Self::next`] was read.
    pub(super) fn read(&mut self, shard: ShardId, took: Duration, oldest: Option<UnixMicros>) {
        self.unread_since.remove(&shard);
        self.rounds.note(took);
        self.oldest.remove(&shard);
        self.lately_at.remove(&shard);
        let is_last = self.shards.is_empty() && self.slow.shards.is_empty();
        if self.joint_reads_time_out && is_last && self.rounds.end() {
            self.joint_reads_time_out = false;
            self.oldest.clear();
        } else if self.joint_reads_time_out {
            self.oldest.extend(oldest.map(|oldest| (shard, oldest)));
        }
    }

    /// The shard from [`Self::next`] ran out of time after so long, at `ended`.
    pub(super) fn ran_out_of_time(&mut self, shard: ShardId, took: Duration, ended: UnixMicros) {
        self.slow.add(shard, ended.plus(rest(took)));
        self.rounds.note(took);
        // Whether that task still waits is unknown, perhaps for as long as an old transaction is open.
        self.oldest.remove(&shard);
    }

    /// A single read of the shard has failed after so long, at `ended`, because of what the shard has. It counts as
    /// unread until a read from its first task on ends, also if one did before: its tasks do not come up meanwhile.
    pub(super) fn note_unreadable(&mut self, shard: ShardId, took: Duration, ended: UnixMicros) {
        let until = ended.plus(rest(took).max(SHORTEST_REST));
        let rests_until = self.slow.until.filter(|_| self.slow.shards.contains(&shard));
        for shards in [&mut self.shards, &mut self.slow.shards] {
            shards.retain(|other| *other != shard);
        }
        self.unreadable.add(shard, rests_until.map_or(until, |rests_until| rests_until.max(until)));
        self.unread_since.entry(shard).or_insert(ended);
    }

    /// The moment from which to read what came due lately in a shard whose single read failed. Its turns may be further
    /// apart than [`LATELY`], so each begins as long before the last one.
    pub(super) fn lately_from(&self, shard: ShardId, now: UnixMicros) -> UnixMicros {
        self.lately_at.get(&shard).map_or(now, |at| now.min(*at)).minus(LATELY)
    }

    /// What came due lately in the shard was read at that moment. `None`: it was not. Then the next turn has the last
    /// minute only: a range that grows with each turn would never be read.
    pub(super) fn note_lately(&mut self, shard: ShardId, at: Option<UnixMicros>) {
        match at {
            Some(at) => self.lately_at.insert(shard, at),
            None => self.lately_at.remove(&shard),
        };
    }

    /// Puts the shard from [`Self::next`] back: the database is away.
    pub(super) fn put_back(&mut self, shard: ShardId) {
        self.shards.push_front(shard);
    }

    /// How far behind the oldest claimable task may be: one that the last read of a shard has found, which may have
    /// been claimed since, or one of a shard that could not be read from its first task on.
    pub(super) fn overdue(&self, now: UnixMicros) -> Duration {
        let moments = self.oldest.values().chain(self.unread_since.values());
        moments.min().map_or(Duration::ZERO, |oldest| now.since(*oldest))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::round::QUICK_ROUND, *};

    const NOW: UnixMicros = UnixMicros::new(1_000_000_000);
    const SHARDS: [ShardId; 3] = [ShardId::new(1), ShardId::new(2), ShardId::new(3)];

    #[test]
    fn a_slow_shard_lets_the_others_go_first_and_rests() {
        let mut unread = Unread::default();
        assert_eq!((unread.next(NOW), unread.ask_again_at()), (None, UnixMicros::LAST));
        unread.note_unread_since(&SHARDS, NOW);
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
    fn a_shard_that_fails_is_read_alone_after_a_rest_and_counts_as_unread_until_it_is_read() {
        let mut unread = Unread::default();
        let [bad, others @ ..] = SHARDS;
        unread.note_unread_since(&SHARDS, NOW);
        unread.note_unreadable(bad, Duration::ZERO, NOW);
        unread.read_together(&SHARDS);
        assert_eq!(unread.readable(&SHARDS), others);
        assert!(!unread.joint_reads_time_out(), "the others are read together");
        let later = NOW.plus(SHORTEST_REST);
        assert_eq!((unread.next(NOW), unread.ask_again_at()), (None, later));
        assert_eq!(unread.overdue(later), SHORTEST_REST);
        let of_two = unread.between_turns();
        assert_eq!(unread.next(later), Some(bad));
        assert_eq!(unread.between_turns() * 2, of_two, "more shards take longer");
        unread.note_unreadable(bad, Duration::from_secs(5), later);
        assert_eq!(unread.ask_again_at(), later.plus(Duration::from_secs(45)), "slow failures use a tenth of the time");
        unread.add(&SHARDS);
        for shard in others {
            assert_eq!(unread.next(later), Some(shard), "it rests");
            unread.read(shard, Duration::ZERO, None);
        }
        assert_eq!(unread.next(later), None);
        assert!(!unread.joint_reads_time_out(), "it does not keep the others from being read together");
        let healed = later.plus(Duration::from_secs(45));
        assert_eq!(unread.next(healed), Some(bad));
        unread.read(bad, Duration::ZERO, None);
        assert_eq!((unread.readable(&SHARDS), unread.overdue(healed)), (SHARDS.to_vec(), Duration::ZERO));
        unread.note_unreadable(bad, Duration::ZERO, healed);
        assert_eq!(unread.overdue(healed.plus(SHORTEST_REST)), SHORTEST_REST, "although it was read before");
    }

    #[test]
    fn shards_that_have_rested_and_the_others_keep_each_other_from_no_read() {
        let [first, second, third] = SHARDS;
        let rested = NOW.plus(Duration::from_secs(45));
        for is_slow in [true, false] {
            let mut unread = Unread::default();
            if is_slow {
                unread.ran_out_of_time(first, Duration::from_secs(5), NOW);
            } else {
                unread.note_unreadable(first, Duration::from_secs(5), NOW);
            }
            unread.add(&[second, third]);
            assert_eq!(unread.next(NOW), Some(second), "the first one rests");
            unread.read(second, Duration::ZERO, None);
            unread.add(&SHARDS);
            assert_eq!(unread.next(rested), Some(first), "the round over the others need not end");
            unread.note_unreadable(first, Duration::ZERO, rested);
            assert_eq!(unread.next(rested.plus(SHORTEST_REST)), Some(third), "it is their turn");
            unread.read(third, Duration::ZERO, None);
            assert_eq!(unread.next(rested.plus(SHORTEST_REST)), Some(first));
        }
    }

    #[test]
    fn a_failure_that_comes_quickly_ends_the_rest_of_no_shard_that_took_long() {
        let five = Duration::from_secs(5);
        let mut unread = Unread::default();
        unread.ran_out_of_time(SHARDS[0], five, NOW);
        unread.note_unreadable(SHARDS[0], Duration::ZERO, NOW);
        assert_eq!(unread.ask_again_at(), NOW.plus(five * 9), "it was slow");
        let mut unread = Unread::default();
        unread.note_unreadable(SHARDS[0], five, NOW);
        unread.note_unreadable(SHARDS[1], Duration::ZERO, NOW);
        assert_eq!(unread.ask_again_at(), NOW.plus(five * 9), "another failed slowly");
    }

    #[test]
    fn what_was_overdue_counts_until_the_next_read_of_its_shard_although_no_round_ends() {
        let mut unread = Unread::default();
        let minute = Duration::from_secs(60);
        for (oldest, overdue) in [(Some(NOW.minus(minute)), minute), (None, Duration::ZERO)] {
            unread.add(&SHARDS);
            for _ in 1..SHARDS.len() {
                let shard = unread.next(NOW).expect("some are left");
                unread.read(shard, Duration::ZERO, oldest.filter(|_| shard == SHARDS[0]));
            }
            assert_eq!(unread.overdue(NOW), overdue);
        }
    }

    #[test]
    fn what_came_due_since_the_last_turn_of_a_slow_shard_is_read_however_long_ago_that_was() {
        let (slow, later) = (SHARDS[0], NOW.plus(LATELY * 2));
        let mut unread = Unread::default();
        assert_eq!(unread.lately_from(slow, NOW), NOW.minus(LATELY), "its first turn");
        unread.note_lately(slow, Some(NOW));
        unread.ran_out_of_time(slow, Duration::from_secs(10), NOW);
        assert_eq!(unread.lately_from(slow, later), NOW.minus(LATELY));
        let set_back = NOW.minus(LATELY);
        assert_eq!(unread.lately_from(slow, set_back), set_back.minus(LATELY));
        unread.note_lately(slow, None);
        assert_eq!(unread.lately_from(slow, later), later.minus(LATELY), "the range was too long");
        unread.note_lately(slow, Some(NOW));
        unread.read(slow, Duration::ZERO, None);
        assert_eq!(unread.lately_from(slow, later), later.minus(LATELY), "all of it was read");
    }

    #[test]
    fn a_few_nudged_shards_neither_begin_nor_end_the_slowness() {
        let mut unread = Unread::default();
        let few = &SHARDS[..1];
        unread.add_nudged(few);
        assert!(!unread.joint_reads_time_out());
        assert_eq!(unread.next(NOW), Some(few[0]));
        unread.read(few[0], QUICK_ROUND, None);
        let oldest = NOW.minus(Duration::from_secs(60));
        unread.add(&SHARDS);
        while let Some(shard) = unread.next(NOW) {
            unread.read(shard, QUICK_ROUND, Some(oldest));
        }
        unread.add_nudged(few);
        assert_eq!(unread.next(NOW), Some(few[0]));
        unread.read(few[0], Duration::ZERO, None);
        assert!(unread.joint_reads_time_out(), "the last round over all was slow");
        assert_eq!(unread.overdue(NOW), Duration::from_secs(60), "the others are not read again");
    }

    #[test]
    fn a_round_of_many_shards_over_a_long_way_is_quick_unless_one_of_them_is_slow() {
        let [way, jitter, slow] = [10, 1, 2_500].map(Duration::from_millis);
        for (shards, slowest, is_slow) in
            [(256, way, false), (256, slow, true), (4_096, way, false), (4_096, slow, true)]
        {
            let mut unread = Unread::default();
            unread.add(&(0..shards).map(ShardId::new).collect::<Vec<_>>());
            while let Some(shard) = unread.next(NOW) {
                let took = if shard == SHARDS[0] { slowest } else { way + jitter };
                unread.read(shard, took, None);
            }
            assert_eq!(unread.joint_reads_time_out(), is_slow, "{shards} shards, the slowest of them {slowest:?}");
        }
        let mut unread = Unread::default();
        unread.add(&SHARDS[..2]);
        while let Some(shard) = unread.next(NOW) {
            unread.read(shard, QUICK_ROUND, None);
        }
        assert!(unread.joint_reads_time_out(), "no way is so long");
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
                assert!(unread.joint_reads_time_out());
                unread.read(shard, Duration::from_millis(100), Some(oldest));
            }
            assert_eq!(unread.joint_reads_time_out(), slow);
            assert_eq!(unread.overdue(NOW), Duration::from_secs(if slow { 60 } else { 0 }));
        }
    }
}
