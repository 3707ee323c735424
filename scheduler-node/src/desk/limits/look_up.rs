//! Looks up the stored tasks that may answer for tasks beyond a limit.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{ids::DatabaseIndex, shard::route::bound_to, task::TaskKey};
use futures::future::join_all;
use tokio::time::timeout_at;

use crate::{
    clock,
    desk::Desk,
    store::{
        Database, Patience,
        rivals::{AskedKey, KeyLook, Rival},
    },
};

/// The longest time for the look-ups of one request. Submissions of other queues may wait behind it, also while a
/// database is silent.
const LOOKED_UP_WITHIN: Duration = Duration::from_secs(2);

/// The most keys of one statement: some 0.1 s where the archive has 400 partitions, and 0.2 s by version. So a slow
/// database answers for a part of the keys in time.
const KEYS_AT_A_TIME: usize = 100;

/// What the databases tell of some keys.
#[derive(Debug, Default)]
pub(super) struct LookedUp<'a> {
    /// The stored tasks that have one of the keys.
    pub(super) found: BTreeMap<TaskKey<'a>, Rivals>,
    /// Keys of which it is not known whether a stored task has them.
    pub(super) unread: BTreeSet<TaskKey<'a>>,
}

/// The stored tasks with which those of a request with their key are compared.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rivals {
    /// For tasks that give no version.
    pub(super) plain: Option<Rival>,
    /// For those that give one. More of the finished tasks answer for them.
    pub(super) versioned: Option<Rival>,
}

impl Desk {
    /// Looks up each of these keys, by version where the second part says so, in the database that has its shard. A
    /// database that is silent keeps no other from answering.
    pub(super) async fn look_up<'a>(&self, keys: &[(TaskKey<'a>, bool)]) -> LookedUp<'a> {
        let until = clock::instant() + LOOKED_UP_WITHIN;
        let mut looks = Vec::new();
        if let Ok(Ok(shard_count)) = timeout_at(until.into(), self.shard_count()).await {
            for keys in self.by_database(self.with_shards(keys, shard_count)).into_values() {
                looks.push(self.look_in_place(keys, until));
            }
        }
        let mut found: BTreeMap<TaskKey<'a>, Rivals> = BTreeMap::new();
        let mut unread: BTreeSet<(TaskKey<'a>, bool)> = keys.iter().copied().collect();
        for (asked, rival) in join_all(looks).await.into_iter().flatten() {
            unread.remove(&(asked.key, asked.by_version));
            if rival.is_some() {
                let rivals = found.entry(asked.key).or_default();
                *(if asked.by_version { &mut rivals.versioned } else { &mut rivals.plain }) = rival;
            }
        }
        LookedUp { found, unread: unread.into_iter().map(|(key, _)| key).collect() }
    }

    fn with_shards<'a>(&self, keys: &[(TaskKey<'a>, bool)], shard_count: u16) -> Vec<AskedKey<'a>> {
        let book = self.parts().books.load_full();
        let asked = |(key, by_version): &(TaskKey<'a>, bool)| {
            let (queue, partition_key, text) = *key;
            let known = book.get(queue);
            let shard = bound_to(queue, known.policy.placement, partition_key, Some(text), shard_count.into());
            let shard = shard.expect("a key is bound to a shard");
            AskedKey { key: *key, shard, window_ms: known.policy.dedup_window_ms, by_version: *by_version }
        };
        keys.iter().map(asked).collect()
    }

    /// The keys by the present places of their shards. Those of a shard without a place are left out.
    fn by_database<'a>(&self, keys: Vec<AskedKey<'a>>) -> BTreeMap<DatabaseIndex, Vec<AskedKey<'a>>> {
        let map = self.parts().store.places().load();
        let mut parts: BTreeMap<DatabaseIndex, Vec<AskedKey<'a>>> = BTreeMap::new();
        for asked in keys {
            if let Some(place) = map.of(asked.shard) {
                parts.entry(place.database).or_default().push(asked);
            }
        }
        parts
    }

    /// Looks up keys of one database. If the shard of a key has moved, looks it up where the shard is by then. A key
    /// without an answer is not among the answers; `None`: no task has the key.
    ///
    /// The database itself says whether it has the shard, so only a move costs a read of the map. That read waits for
    /// each silent database.
    async fn look_in_place<'a>(&self, keys: Vec<AskedKey<'a>>, until: Instant) -> Vec<(AskedKey<'a>, Option<Rival>)> {
        let (mut left, mut answers) = (keys, Vec::new());
        let (mut refusals, mut refused_at) = (0, None);
        loop {
            let mut looks = Vec::new();
            for (index, keys) in self.by_database(left) {
                if let Some(database) = self.parts().store.databases().get(index) {
                    looks.push(look_in(Arc::clone(database), keys, until));
                }
            }
            let mut moved = Vec::new();
            for (asked, look) in join_all(looks).await.into_iter().flatten() {
                match look {
                    KeyLook::Elsewhere => moved.push(asked),
                    KeyLook::Free => answers.push((asked, None)),
                    KeyLook::Taken(rival) => answers.push((asked, Some(rival))),
                }
            }
            if moved.is_empty() {
                return answers;
            }
            let since = *refused_at.get_or_insert_with(clock::instant);
            let again = self.parts().store.places().reread_after_move(refusals, since, Patience::Short);
            if !timeout_at(until.into(), again).await.unwrap_or(false) {
                return answers;
            }
            refusals += 1;
            left = moved;
        }
    }
}

/// Looks keys up in one database. A statement that fails by what may be the fault of one row is divided, so that the
/// other keys have their answers.
async fn look_in<'a>(database: Arc<Database>, keys: Vec<AskedKey<'a>>, until: Instant) -> Vec<(AskedKey<'a>, KeyLook)> {
    let mut parts: VecDeque<&[AskedKey<'a>]> = keys.chunks(KEYS_AT_A_TIME).collect();
    let mut answers = Vec::with_capacity(keys.len());
    while let Some(part) = parts.pop_front() {
        let Ok(looks) = timeout_at(until.into(), database.task_rivals(part)).await else {
            tracing::debug!(database = %database.name(), "keys were not looked up in time");
            break;
        };
        match looks {
            Ok(looks) => answers.extend(part.iter().copied().zip(looks)),
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    keys = part.len(),
                    "keys cannot be looked up"
                );
                if !error.may_blame_a_row() {
                    break;
                }
                if part.len() > 1 {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([first, second]);
                }
            }
        }
    }
    answers
}
