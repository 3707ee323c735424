//! A seeded bug: ids grow with time, so a read that begins above the last id seems to miss nothing. It misses what was
//! minted earlier and committed later.

use std::{collections::BTreeMap, sync::LazyLock};

use common::ids::{ShardId, TaskId};
use parking_lot::Mutex;

use crate::store::preload::Key;

/// The keys above the last id that this process has read of their shard.
pub(super) fn above(mut keys: Vec<Key>) -> Vec<Key> {
    static LAST: LazyLock<Mutex<BTreeMap<ShardId, TaskId>>> = LazyLock::new(Mutex::default);
    if seeded!(IdWatermark) {
        let mut last = LAST.lock();
        keys.retain(|key| last.get(&key.id.shard()).is_none_or(|last| key.id > *last));
        for key in &keys {
            let of = last.entry(key.id.shard()).or_insert(key.id);
            *of = key.id.max(*of);
        }
    }
    keys
}
