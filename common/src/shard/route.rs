//! Which shard a new task lives on. Fixed for ever once chosen, because the shard is part of the task's id.

use std::time::Duration;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::{
    ids::{QueueName, ShardId},
    queue::Placement,
    time::UnixMicros,
};

/// What decides about the shard of a new task.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'a> {
    pub queue: &'a QueueName,
    pub placement: Placement,
    pub partition_key: Option<&'a str>,
    pub key: Option<&'a str>,
    pub due_at: UnixMicros,
    pub now: UnixMicros,
    /// How far ahead the heap is filled.
    pub horizon: Duration,
    /// The shards that this node owns and claims from.
    pub owned: &'a [ShardId],
    /// At least 1, at most 65,536.
    pub shard_count: u32,
    /// Any number, evenly spread: picks among shards that are equally good.
    pub dice: u64,
}

/// The shard for a new task. The first rule that applies counts:
///
/// 1. a queue with `placement = single`: by the queue;
/// 2. a partition key: by the partition key alone, so that tasks of several queues meet on one shard;
/// 3. a business key: by queue and key;
/// 4. due within the horizon: one of the shards this node owns, so that it goes straight into the local heap;
/// 5. else any shard.
///
/// The hashes are xxh3 and never change: tasks that must be atomic together find one another by them.
pub fn route(routing: &Routing<'_>) -> ShardId {
    let count = routing.shard_count.clamp(1, 65_536);
    if routing.placement == Placement::Single {
        return of_hash(xxh3_64(routing.queue.as_str().as_bytes()), count);
    }
    if let Some(partition_key) = routing.partition_key {
        return of_hash(xxh3_64(partition_key.as_bytes()), count);
    }
    if let Some(key) = routing.key {
        return of_hash(hash_of_key(routing.queue, key), count);
    }
    let near = routing.due_at <= routing.now.plus(routing.horizon);
    if near && !routing.owned.is_empty() {
        return routing.owned[of_dice(routing.dice, routing.owned.len())];
    }
    of_hash(routing.dice, count)
}

/// The shard of a task that has a key, the same whenever and wherever it is submitted.
pub fn of_keyed(
    queue: &QueueName,
    placement: Placement,
    partition_key: Option<&str>,
    key: &str,
    shard_count: u32,
) -> ShardId {
    route(&Routing {
        queue,
        placement,
        partition_key,
        key: Some(key),
        due_at: UnixMicros::LAST,
        now: UnixMicros::new(0),
        horizon: Duration::ZERO,
        owned: &[],
        shard_count,
        dice: 0,
    })
}

/// A queue's name has no NUL, so a NUL keeps `a` + `bc` apart from `ab` + `c`.
fn hash_of_key(queue: &QueueName, key: &str) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(queue.as_str().as_bytes());
    hasher.update(&[0]);
    hasher.update(key.as_bytes());
    hasher.digest()
}

fn of_hash(hash: u64, count: u32) -> ShardId {
    let number = hash % u64::from(count);
    ShardId::new(u16::try_from(number).expect("below 65,536"))
}

fn of_dice(dice: u64, len: usize) -> usize {
    usize::try_from(dice % len as u64).expect("below a length")
}

#[cfg(test)]
mod tests;
