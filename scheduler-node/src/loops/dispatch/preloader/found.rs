//! What the decisions after a read need of its keys. The keys themselves are in the heap by then: those of all shards
//! of a cluster would take some hundred megabytes.

use std::{collections::BTreeMap, time::Duration};

use common::{ids::ShardId, task::TaskState, time::UnixMicros};

use crate::store::preload::Key;

#[derive(Debug, Default)]
pub(super) struct Found {
    /// How many keys each shard has, and the last moment of them. Shards without keys are missing.
    shards: BTreeMap<ShardId, (i64, UnixMicros)>,
    /// When the first of all wakes.
    pub(super) earliest: Option<UnixMicros>,
    /// When the oldest claimable task was to wake. Only tasks that wait for their due time count: deadlines and rescues
    /// have their own times.
    pub(super) oldest_claimable: Option<UnixMicros>,
}

impl Found {
    pub(super) fn of(keys: &[Key]) -> Self {
        let mut found = Self::default();
        for key in keys {
            found.count(key.id.shard(), 1, key.wake_at);
            found.earliest = earlier(found.earliest, Some(key.wake_at));
            let claimable = (key.state == TaskState::Scheduled).then_some(key.wake_at);
            found.oldest_claimable = earlier(found.oldest_claimable, claimable);
        }
        found
    }

    /// Adds what another read has found.
    pub(super) fn add(&mut self, other: Self) {
        for (shard, (keys, last)) in other.shards {
            self.count(shard, keys, last);
        }
        self.earliest = earlier(self.earliest, other.earliest);
        self.oldest_claimable = earlier(self.oldest_claimable, other.oldest_claimable);
    }

    fn count(&mut self, shard: ShardId, keys: i64, last: UnixMicros) {
        let of_shard = self.shards.entry(shard).or_insert((0, last));
        *of_shard = (of_shard.0 + keys, of_shard.1.max(last));
    }

    /// The shards that filled their part of a read and may have more, each with the last moment read. Beyond that
    /// moment the read is incomplete.
    pub(super) fn full(&self, most: i64) -> impl Iterator<Item = (ShardId, UnixMicros)> {
        self.shards.iter().filter(move |(_, (keys, _))| *keys >= most).map(|(shard, (_, last))| (*shard, *last))
    }

    /// How far behind the oldest claimable task is.
    pub(super) fn overdue(&self, now: UnixMicros) -> Duration {
        self.oldest_claimable.map_or(Duration::ZERO, |oldest| now.since(oldest))
    }
}

fn earlier(one: Option<UnixMicros>, other: Option<UnixMicros>) -> Option<UnixMicros> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use common::ids::TaskId;

    use super::*;

    fn at(micros: i64) -> UnixMicros {
        UnixMicros::new(micros)
    }

    fn key(shard: u16, state: TaskState, wake_at: i64) -> Key {
        let id = TaskId::mint(uuid::Uuid::now_v7(), ShardId::new(shard));
        Key { id, wake_at: at(wake_at), state, claim_epoch: None }
    }

    #[test]
    fn a_shard_that_filled_its_part_is_behind_from_its_last_moment_on() {
        let keys = [(1, 7), (1, 5), (2, 9)].map(|(shard, wake_at)| key(shard, TaskState::Scheduled, wake_at));
        assert_eq!(Found::of(&keys).full(2).collect::<Vec<_>>(), [(ShardId::new(1), at(7))]);
    }

    #[test]
    fn overdue_is_what_waits_for_its_moment_and_missed_it() {
        let now = at(10);
        let others = [(TaskState::Delivered, 1), (TaskState::Dispatching, 2), (TaskState::Scheduled, 12)];
        let others = Found::of(&others.map(|(state, wake_at)| key(0, state, wake_at)));
        assert_eq!((others.overdue(now), others.earliest), (Duration::ZERO, Some(at(1))));
        let late = Found::of(&[7, 4].map(|wake_at| key(0, TaskState::Scheduled, wake_at)));
        assert_eq!(late.overdue(now), Duration::from_micros(6));
    }

    #[test]
    fn what_is_found_in_parts_is_what_is_found_together() {
        let keys = [(1, TaskState::Scheduled, 7), (2, TaskState::Delivered, 3), (1, TaskState::Scheduled, 5)];
        let keys = keys.map(|(shard, state, wake_at)| key(shard, state, wake_at));
        let mut parts = Found::default();
        for part in keys.chunks(1) {
            parts.add(Found::of(part));
        }
        let facts = |found: &Found| (found.shards.clone(), found.earliest, found.oldest_claimable);
        assert_eq!(facts(&parts), facts(&Found::of(&keys)));
        assert_eq!((parts.earliest, parts.oldest_claimable), (Some(at(3)), Some(at(5))));
    }
}
