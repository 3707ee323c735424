//! Shards that the node gains: what their owners before have started of a queue's rate is unknown.

use std::collections::BTreeMap;

use common::{ids::ShardId, shard::route::bound_to};

use super::ReadyStarter;
use crate::{store::Statements, working_set::owned_shards::Held};

impl<S: Statements> ReadyStarter<S> {
    /// Empties the buckets of the queues that may have tasks in shards that were gained since: tasks that were started
    /// there just before are unknown. A shard that stops, goes on or leaves empties none.
    pub(super) fn follow_gains(&self, owned: &mut BTreeMap<ShardId, Held>) {
        let now = self.claims.database.owned_shards.held();
        let is_gain = |(shard, held): &(&ShardId, &Held)| {
            owned.get(*shard).is_none_or(|before| before.own_since != held.own_since)
        };
        let gains: BTreeMap<ShardId, Held> = now.iter().filter(is_gain).map(|(shard, held)| (*shard, *held)).collect();
        *owned = now;
        if gains.is_empty() {
            return;
        }
        self.claims.database.ready_queues.floors.doubt();
        let (book, shards) = (self.books.load(), self.places.shard_count());
        // One that came from another database of this node has brought its part of the rate along.
        let is_any = shards.is_none() || gains.values().any(|held| held.epoch == held.own_since);
        let mut all = self.progress.lock();
        for (queue, progress) in all.iter_mut().filter(|(_, progress)| progress.bucket.is_some()) {
            let placement = book.get(queue).policy.placement;
            let shard = shards.and_then(|shards| bound_to(queue, placement, None, None, u32::from(shards)));
            if shard.map_or(is_any, |shard| gains.contains_key(&shard)) {
                progress.bucket = None;
            }
        }
    }
}
