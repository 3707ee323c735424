//! Rounds of single reads over all shards. They show when joint reads may pass again.

use std::time::Duration;

use super::SHARDS_AT_ONCE;

/// Single reads that take less, of the shards of one joint read, show that it may pass again: a statement has 5 s.
pub(super) const QUICK_ROUND: Duration = Duration::from_secs(2);

/// What every read of a round takes counts as the way to the database, up to this. A joint read goes it once.
const WAY_LONGEST: Duration = Duration::from_millis(100);

/// Each try of joint reads in vain doubles the number of quick rounds before the next, up to so many times. A round
/// begins about each 30 s, so joint reads are tried again within about half an hour.
const MOST_DOUBLINGS: u32 = 6;

/// The single reads of a round, so far.
#[derive(Debug, Default)]
struct Round {
    reads: u32,
    took: Duration,
    shortest: Option<Duration>,
    longest: Duration,
    /// Whether its last shard was read. Reads of nudged shards may follow, which are no part of it.
    is_over: bool,
}

impl Round {
    fn is_quick(&self) -> bool {
        let way = self.shortest.unwrap_or_default().min(WAY_LONGEST);
        let joint_reads = self.reads.div_ceil(u32::try_from(SHARDS_AT_ONCE).unwrap_or(u32::MAX));
        // One slow shard must not hide among the shards of many joint reads.
        self.longest < QUICK_ROUND && self.took.saturating_sub(way * self.reads) < QUICK_ROUND * joint_reads
    }
}

#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// The last one, which may be under way.
    round: Round,
    /// The quick rounds since joint reads were last tried.
    quick: u32,
    /// How often joint reads were tried again since they last passed.
    tries: u32,
}

impl Rounds {
    pub(super) fn begin(&mut self) {
        self.round = Round::default();
    }

    /// Notes a single read that took so long.
    pub(super) fn note(&mut self, took: Duration) {
        let round = &mut self.round;
        round.reads += 1;
        round.took += took;
        round.shortest = Some(round.shortest.map_or(took, |shortest| shortest.min(took)));
        round.longest = round.longest.max(took);
    }

    /// The last shard of the round was read. Returns whether to try joint reads again. Where each shard takes some time
    /// they run out of it although no round is slow, so tries in vain become rarer.
    pub(super) fn end(&mut self) -> bool {
        let was_over = std::mem::replace(&mut self.round.is_over, true);
        if was_over || !self.round.is_quick() {
            return false;
        }
        self.quick += 1;
        if self.quick < 1_u32 << self.tries.min(MOST_DOUBLINGS) {
            return false;
        }
        (self.quick, self.tries) = (0, self.tries + 1);
        true
    }

    pub(super) fn is_over(&self) -> bool {
        self.round.is_over
    }

    /// Joint reads of all shards have passed.
    pub(super) fn joint_reads_pass(&mut self) {
        (self.quick, self.tries) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The quick rounds until joint reads are tried again.
    fn rounds_before_a_try(rounds: &mut Rounds) -> u32 {
        let mut count = 0;
        loop {
            rounds.begin();
            rounds.note(WAY_LONGEST);
            count += 1;
            if rounds.end() {
                return count;
            }
            assert!(!rounds.end(), "a nudged shard that is read after the round counts as a round");
        }
    }

    #[test]
    fn joint_reads_that_run_out_of_time_again_and_again_are_tried_ever_more_rarely_until_they_pass() {
        let mut rounds = Rounds::default();
        for expected in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(rounds_before_a_try(&mut rounds), expected);
        }
        rounds.joint_reads_pass();
        assert_eq!(rounds_before_a_try(&mut rounds), 1);
    }
}
