//! The tables of the database, in memory, and the locks on their rows.

use std::collections::{BTreeMap, BTreeSet};

use common::{
    ids::{Epoch, ShardId, TaskId},
    task::TaskState,
    time::UnixMicros,
};

use super::row::Row;

/// The unfinished tasks, by id.
pub type Rows = BTreeMap<TaskId, Row>;

/// What is committed, and which rows a running statement has locked.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub rows: Rows,
    /// The finished tasks, with their final states and last attempts.
    pub archive: BTreeMap<TaskId, (TaskState, i32)>,
    pub fences: BTreeMap<ShardId, Epoch>,
    locked: BTreeSet<TaskId>,
    /// The statements that hold a fence FOR SHARE.
    shares: BTreeMap<ShardId, usize>,
}

/// The rows and fences that a statement has locked.
#[derive(Clone, Debug, Default)]
pub struct Locks {
    pub rows: Vec<TaskId>,
    /// The fences whose presented epochs are in force.
    pub fences: BTreeMap<ShardId, Epoch>,
}

impl Table {
    /// Locks FOR SHARE the fences whose presented epochs are in force. `is_locking`: whether it locks at all.
    pub fn share(&mut self, presented: &BTreeMap<ShardId, Epoch>, is_locking: bool) -> BTreeMap<ShardId, Epoch> {
        let held: BTreeMap<ShardId, Epoch> = presented
            .iter()
            .filter(|(shard, epoch)| self.fences.get(shard) == Some(epoch))
            .map(|(s, e)| (*s, *e))
            .collect();
        if is_locking {
            for shard in held.keys() {
                *self.shares.entry(*shard).or_default() += 1;
            }
        }
        held
    }

    /// Locks a row. Returns whether it was free.
    pub fn lock(&mut self, id: TaskId) -> bool {
        self.locked.insert(id)
    }

    /// Whether a running statement holds the fence.
    pub fn is_shared(&self, shard: ShardId) -> bool {
        self.shares.get(&shard).is_some_and(|shares| *shares > 0)
    }

    pub fn unlock(&mut self, locks: &Locks, is_locking: bool) {
        for id in &locks.rows {
            self.locked.remove(id);
        }
        if is_locking {
            for shard in locks.fences.keys() {
                *self.shares.entry(*shard).or_default() -= 1;
            }
        }
    }

    /// Takes a fence, as `shard_acquire.sql` does once no statement holds it.
    pub fn acquire(&mut self, shard: ShardId) -> Epoch {
        let epoch = self.fences.entry(shard).or_insert(Epoch::NONE);
        *epoch = Epoch::from_store(epoch.number() + 1);
        *epoch
    }

    /// Moves a task to the archive. An earlier end stays.
    pub fn archive(&mut self, id: TaskId, state: TaskState) {
        if let Some(row) = self.rows.remove(&id) {
            self.archive.entry(id).or_insert((state, row.attempt));
        }
    }

    /// The tasks that owners before `fences` have left claimed, of those that wake from `from` until `until`.
    pub fn left_claimed(
        &self,
        fences: &BTreeMap<ShardId, Epoch>,
        from: UnixMicros,
        until: UnixMicros,
        most: i64,
    ) -> Vec<TaskId> {
        let shards: Vec<ShardId> = fences.keys().copied().collect();
        let is_left = |row: &Row| {
            row.state == TaskState::Dispatching && row.claim_epoch.is_some_and(|epoch| epoch < fences[&row.id.shard()])
        };
        let rows = self.preload(&shards, from, until, most);
        rows.iter().filter(|row| is_left(row)).map(|row| row.id).collect()
    }

    /// The keys of a shard that wake from `from` until `until`, the earliest first.
    pub fn preload(&self, shards: &[ShardId], from: UnixMicros, until: UnixMicros, most: i64) -> Vec<Row> {
        let mut keys = Vec::new();
        for shard in shards {
            let wakes = |row: &&Row| {
                row.id.shard() == *shard && row.state != TaskState::Ready && row.wake_at >= from && row.wake_at <= until
            };
            let mut rows: Vec<Row> = self.rows.values().filter(wakes).cloned().collect();
            rows.sort_by_key(|row| row.wake_at);
            rows.truncate(usize::try_from(most).unwrap_or(usize::MAX));
            keys.extend(rows);
        }
        keys
    }
}
