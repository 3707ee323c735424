//! Where the searches for expired tasks begin.
//!
//! Each task with an expiry leaves a dead entry in the index of expiries when it is claimed or ends. An old
//! transaction keeps them from being vacuumed.

use std::time::Instant;

use common::{delay::LowWater, ids::ShardId, time::UnixMicros};

use crate::store::{Error, settle::Expired};

/// The number of expired tasks in one statement.
pub(super) const EXPIRED_PER_PASS: i64 = 500;

/// The memory of the searches for expired tasks of a database.
#[derive(Debug, Default)]
pub(super) struct Searches {
    low_water: LowWater,
    /// The shards of the last search, in order.
    shards: Vec<ShardId>,
}

/// A search that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// The expiry from which it looks. `None`: from the head.
    pub(super) from: Option<UnixMicros>,
    began: Instant,
}

impl Searches {
    /// Begins a search in these shards, which are in order. The first one after a gain looks from the head: tasks of a
    /// new shard may have expired long ago. If it runs out of time, the next ones still find what the others have left.
    pub(super) fn begin(&mut self, shards: &[ShardId], now: Instant) -> Search {
        if shards.iter().any(|shard| self.shards.binary_search(shard).is_err()) {
            self.low_water.look_from_head();
        }
        self.shards = shards.to_vec();
        Search { from: self.low_water.from(now), began: now }
    }

    /// Records the end of a search at `now`, on the database's clock at `database_now`.
    pub(super) fn end(
        &mut self,
        search: &Search,
        found: &Result<Vec<Expired>, Error>,
        database_now: UnixMicros,
        now: Instant,
    ) {
        let took = now.saturating_duration_since(search.began);
        match (found, search.from) {
            (Ok(expired), None) => self.low_water.note(oldest_left(expired), database_now, took, now),
            (Ok(expired), Some(_)) => self.low_water.note_from_mark(oldest_left(expired), database_now),
            (Err(error), None) if error.is_out_of_time() => self.low_water.ran_out_of_time(database_now, took, now),
            (Err(_), _) => {}
        }
    }
}

/// A lower bound for the expiries of the tasks that a search has left. `None`: it has found all.
fn oldest_left(expired: &[Expired]) -> Option<UnixMicros> {
    let is_full = i64::try_from(expired.len()).is_ok_and(|count| count >= EXPIRED_PER_PASS);
    expired.iter().map(|task| task.expires_at).max().filter(|_| is_full)
}

#[cfg(test)]
mod tests;
