//! Divides a read of many shards into statements that end in time.

use std::time::{Duration, Instant};

use common::ids::ShardId;

use crate::{clock, store::Error};

/// The most keys of one statement, some 100 MB in the node: as many as it takes with 256 shards.
const MOST_KEYS_OF_A_STATEMENT: i64 = 512_000;

/// Parts that run out of time are divided for this long. A node with dozens of slow shards then goes on without what
/// they would have told, so that its other tasks are not late.
const PATIENCE: Duration = Duration::from_secs(20);

/// The shards of one read that are still to be read.
pub(super) struct Parts {
    rest: Vec<Vec<ShardId>>,
    patient_until: Instant,
}

impl Parts {
    /// `most_per_shard`: the most keys that a statement takes of each shard.
    pub(super) fn new(shards: &[ShardId], most_per_shard: i64) -> Self {
        let most = usize::try_from(MOST_KEYS_OF_A_STATEMENT / most_per_shard.max(1)).unwrap_or(usize::MAX);
        let rest = shards.chunks(most.max(1)).map(<[ShardId]>::to_vec).collect();
        Self { rest, patient_until: clock::instant() + PATIENCE }
    }

    pub(super) fn next(&mut self) -> Option<Vec<ShardId>> {
        self.rest.pop()
    }

    /// Divides a part whose statement ran out of time. Each shard has its own overdue tasks, and its own rows that are
    /// dead and cannot be vacuumed yet, so a half takes half as long. Gives the part back if it stays undivided.
    pub(super) fn divide(&mut self, mut part: Vec<ShardId>, error: Error) -> Result<Option<Vec<ShardId>>, Error> {
        if !error.is_out_of_time() {
            return Err(error);
        }
        if part.len() < 2 || clock::instant() > self.patient_until {
            return Ok(Some(part));
        }
        self.rest.push(part.split_off(part.len() / 2));
        self.rest.push(part);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_statement_takes_more_keys_than_it_may_and_none_of_the_shards_is_left_out() {
        let shards: Vec<ShardId> = (0..4_096).map(ShardId::new).collect();
        for most_per_shard in [1, 2_000, 64_000, i64::MAX] {
            let mut parts = Parts::new(&shards, most_per_shard);
            let mut seen = Vec::new();
            while let Some(part) = parts.next() {
                let keys = i64::try_from(part.len()).unwrap().saturating_mul(most_per_shard);
                assert!(part.len() == 1 || keys <= MOST_KEYS_OF_A_STATEMENT, "{} shards", part.len());
                seen.extend(part);
            }
            seen.sort_unstable();
            assert_eq!(seen, shards);
        }
    }
}
