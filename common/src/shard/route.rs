//! Which shard a new task lives on. The choice is final, because the shard is part of the task's id.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::{
    ids::{QueueName, ShardId},
    queue::Placement,
    time::UnixMicros,
};

/// The inputs that determine the shard of a new task.
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
    /// The number of shards, 1 to 65,536.
    pub shard_count: u32,
    /// An evenly distributed number, which picks among equally good shards.
    pub dice: u64,
}

/// The shard for a new task. The first rule that applies counts:
///
/// 1. a queue with `placement = single`: by the queue;
/// 2. a partition key: by the partition key alone, so that tasks of several queues meet on one shard;
/// 3. a business key: by queue and key;
/// 4. due within the horizon: one of the shards that this node owns, so that the task goes straight into the local
///    heap;
/// 5. else any shard.
pub fn route(routing: &Routing<'_>) -> ShardId {
    let Routing { queue, placement, partition_key, key, shard_count, .. } = *routing;
    if let Some(shard) = bound_to(queue, placement, partition_key, key, shard_count) {
        return shard;
    }
    let near = routing.due_at <= routing.now.plus(routing.horizon);
    if near && !routing.owned.is_empty() {
        return routing.owned[of_dice(routing.dice, routing.owned.len())];
    }
    of_hash(routing.dice, shard_count)
}

/// The one shard on which such a task must live, whenever and wherever it is submitted: the first three rules of
/// [`route`]. `None`: any shard will do.
///
/// A hash is the first 8 bytes of SHA-256. PostgreSQL has SHA-256 as well, and `duetime.shard_of` computes the same
/// shard. The hashes never change: tasks that must be atomic together meet on one shard by them.
pub fn bound_to(
    queue: &QueueName,
    placement: Placement,
    partition_key: Option<&str>,
    key: Option<&str>,
    shard_count: u32,
) -> Option<ShardId> {
    let queue = queue.as_str();
    let hash = match (placement, partition_key, key) {
        (Placement::Single, ..) => hash(&[queue]),
        (_, Some(partition_key), _) => hash(&[partition_key]),
        // A queue's name has no NUL, so a NUL keeps `a` + `bc` apart from `ab` + `c`.
        (_, None, Some(key)) => hash(&[queue, "\0", key]),
        (_, None, None) => return None,
    };
    Some(of_hash(hash, shard_count))
}

/// The hash of the concatenated parts.
fn hash(parts: &[&str]) -> u64 {
    let mut hasher = Sha256::new();
    parts.iter().for_each(|part| hasher.update(part));
    let bytes: [u8; 32] = hasher.finalize().into();
    bytes[..8].iter().fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

fn of_hash(hash: u64, shard_count: u32) -> ShardId {
    let number = hash % u64::from(shard_count.clamp(1, 65_536));
    ShardId::new(u16::try_from(number).expect("below 65,536"))
}

fn of_dice(dice: u64, len: usize) -> usize {
    usize::try_from(dice % len as u64).expect("below a length")
}

#[cfg(test)]
mod tests;
