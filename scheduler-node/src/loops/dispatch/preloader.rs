//! Keeps the heap filled with the keys that come due next in the shards this node owns.
//!
//! It runs when a shard is adopted, when a nudge comes and when the heap runs low. It also runs at intervals, to
//! repair what a lost nudge missed. If it stops, this node does not wake tasks that were submitted elsewhere or are
//! due beyond the horizon.

mod parts;
#[cfg(feature = "failpoints")]
mod watermark;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use common::{
    delay::{
        heap::{Entry, WakeKind},
        horizon::{Horizon, ReadIntervals, ReadKind, ReadResult, Window},
    },
    ids::{Epoch, ShardId, TaskId},
    task::TaskState,
    time::UnixMicros,
};
use tokio_util::sync::CancellationToken;

use self::parts::Parts;
use crate::{
    clock,
    metrics::Metrics,
    store::{Database, Error, Statements, preload::Key},
    supervise::at_work,
    working_set::database::NodeDatabase,
};

/// The most keys that one read takes of one shard: bounds the answer while a million are overdue.
const KEYS_PER_SHARD: i64 = 2_000;

/// The most keys that one read takes of one shard when that many wake at one moment: some 5 MB.
const MOST_KEYS_OF_A_SHARD: i64 = 64_000;

/// The pause before the next read of a shard of which even that many keys wake at one moment. It counts from their
/// due time; by its end some are claimed.
const PAUSE_AT_ONE_MOMENT: Duration = Duration::from_millis(250);

/// The pause before a failed read is tried again.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(500);

/// The longest sleep between two checks of what to read.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// How far back a nudged shard is read: a nudge is about rows that are due about now.
const NUDGE_LOOK_BACK: Duration = Duration::from_secs(5);

/// Where the beginning of a shard cannot be read in time, what came due in the last minute is read: more than a node
/// needs to follow what is submitted now.
const LATELY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Preloader<S = Arc<Database>> {
    database: NodeDatabase<S>,
    horizon: Horizon,
    reach: ReadIntervals,
    heap_entries: usize,
    /// Shards with more keys than one read takes. Each is read on by itself and delays no other shard.
    behind: BTreeMap<ShardId, Behind>,
    metrics: Arc<Metrics>,
}

/// The progress of reading a shard that is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Behind {
    /// Everything before this moment is read.
    from: UnixMicros,
    /// The number of keys to take.
    keys: i64,
    /// The moment before which the shard is not read again.
    at: UnixMicros,
}

impl Behind {
    const fn new(from: UnixMicros, now: UnixMicros) -> Self {
        Self { from, keys: KEYS_PER_SHARD, at: now }
    }

    /// The next read after one that found no end; `last` is the latest moment it saw. A read without progress
    /// doubles the number of keys, up to a bound.
    fn read_on(self, last: UnixMicros, now: UnixMicros) -> Self {
        let got_on = last > self.from;
        let keys = if got_on { KEYS_PER_SHARD } else { (self.keys * 2).min(MOST_KEYS_OF_A_SHARD) };
        let is_stuck = !got_on && self.keys == MOST_KEYS_OF_A_SHARD;
        let at = if is_stuck { last.max(now.plus(PAUSE_AT_ONE_MOMENT)) } else { now };
        Self { from: last, keys, at }
    }
}

impl<S: Statements> Preloader<S> {
    pub fn new(database: NodeDatabase<S>, horizon: Duration, heap_entries: usize, metrics: Arc<Metrics>) -> Self {
        let reach = ReadIntervals::of(horizon);
        Self { database, horizon: Horizon::new(reach), reach, heap_entries, behind: BTreeMap::new(), metrics }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            // Registers before the check, so that a shard adopted in between is not missed.
            let owned_shards = Arc::clone(&self.database.owned_shards);
            let wanted = owned_shards.preload_wanted.notified();
            let sleep = match self.activate().await {
                Ok(sleep) => sleep,
                Err(error) => {
                    tracing::debug!(database = %self.database.name(), error = &error as &dyn std::error::Error, "could not read tasks that come due");
                    PAUSE_AFTER_ERROR
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = wanted => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Makes one pass over adopted shards, nudged shards and regular reads. Returns for how long nothing will be
    /// wanted.
    async fn activate(&mut self) -> Result<Duration, Error> {
        let _work = at_work();
        self.take_over().await?;
        let Some(now) = self.database.sql.clock().at(clock::instant()) else { return Ok(PAUSE_AFTER_ERROR) };
        if self.horizon.follow(now) {
            self.behind.clear();
        }
        self.follow_nudges(now).await?;
        let owned: Vec<ShardId> = self.database.owned_shards.claimable().into_keys().collect();
        if owned.is_empty() {
            self.horizon.reset();
            self.behind.clear();
            self.tell_overdue(Duration::ZERO);
            return Ok(LONGEST_SLEEP);
        }
        self.catch_up(now).await?;
        let has_room = self.has_room();
        if let Some(window) = self.horizon.next(now, has_room) {
            if window.pass != ReadKind::Repair {
                self.database.owned_shards.reopen();
            }
            let swept: &[ShardId] = if seeded!(NoSweeper) && window.pass != ReadKind::Ahead { &[] } else { &owned };
            let keys = self.read(swept, window.after, window.until, KEYS_PER_SHARD, now).await?;
            if window.pass != ReadKind::Ahead {
                self.tell_overdue(overdue(&keys, now));
            }
            self.note_behind(&keys, window.pass == ReadKind::Repair, now);
            let earliest = keys.iter().map(|key| key.wake_at).min();
            let found = ReadResult { earliest, complete_until: self.database.owned_shards.complete_until() };
            let ended = self.database.sql.clock().at(clock::instant()).unwrap_or(now);
            self.horizon.note(window, found, now, ended);
        }
        let now = self.database.sql.clock().at(clock::instant()).unwrap_or(now);
        let has_room = self.has_room();
        let catch_up_at = self.behind.values().map(|behind| behind.at).min().filter(|_| has_room);
        let next = self.horizon.ask_again_at(now, has_room).min(catch_up_at.unwrap_or(UnixMicros::LAST));
        Ok(next.since(now).clamp(Duration::from_millis(5), LONGEST_SLEEP))
    }

    /// Whether the heap is at most half full, so that reading on is worthwhile.
    fn has_room(&self) -> bool {
        self.database.owned_shards.heap_len() <= self.heap_entries / 2
    }

    /// Notes shards that filled their part of a read and so have more. A repair repeats older reads, so it sets no
    /// shard back.
    fn note_behind(&mut self, keys: &[Key], is_repair: bool, now: UnixMicros) {
        for (shard, last) in full(keys, KEYS_PER_SHARD) {
            let behind = self.behind.entry(shard).or_insert_with(|| Behind::new(last, now));
            if last < behind.from && !is_repair {
                *behind = Behind::new(last, now);
            }
        }
    }

    /// Reads one page of each shard that is behind.
    async fn catch_up(&mut self, now: UnixMicros) -> Result<(), Error> {
        let owned_shards = Arc::clone(&self.database.owned_shards);
        self.behind.retain(|shard, _| owned_shards.is_claimable(*shard));
        let due: Vec<(ShardId, Behind)> = self
            .behind
            .iter()
            .filter(|(_, behind)| behind.at <= now)
            .map(|(shard, behind)| (*shard, *behind))
            .collect();
        for (shard, behind) in due {
            if !self.has_room() {
                break;
            }
            let until = now.plus(self.reach.horizon);
            let keys = self.read(&[shard], Some(behind.from), until, behind.keys, now).await?;
            match full(&keys, behind.keys).remove(&shard) {
                Some(last) => self.behind.insert(shard, behind.read_on(last, now)),
                None => self.behind.remove(&shard),
            };
        }
        Ok(())
    }

    /// Reads newly adopted shards: first what their owner before left claimed, then everything up to the horizon.
    async fn take_over(&mut self) -> Result<(), Error> {
        let adopted = self.database.owned_shards.take_adopted();
        if adopted.is_empty() {
            return Ok(());
        }
        let taken = async {
            self.database.sql.ping().await?;
            let left = self.left_claimed(&adopted).await?;
            let now = self.database.sql.clock().at(clock::instant()).unwrap_or(UnixMicros::new(0));
            if !left.is_empty() {
                tracing::info!(database = %self.database.name(), tasks = left.len(), "publishing again the tasks that the previous owner left claimed");
            }
            self.database.owned_shards.offer(left.into_iter().map(|id| Entry {
                wake_at: now,
                id,
                kind: WakeKind::Rescue,
            }));
            let shards: Vec<ShardId> = adopted.keys().copied().collect();
            let keys = self.read(&shards, None, now.plus(self.reach.horizon), KEYS_PER_SHARD, now).await?;
            Ok((shards.len(), keys, now))
        };
        match taken.await {
            Ok((shards, keys, now)) => {
                tracing::debug!(database = %self.database.name(), shards, "adopted shards are loaded");
                self.behind.retain(|shard, _| !adopted.contains_key(shard));
                self.note_behind(&keys, false, now);
                Ok(())
            }
            Err(error) => {
                self.database.owned_shards.put_back_adopted(adopted.into_keys());
                Err(error)
            }
        }
    }

    /// The tasks that the owners before left claimed in `adopted`. A shard with so many overdue tasks that they cannot be
    /// found in time is left out: its reads find them, one after another.
    async fn left_claimed(&self, adopted: &BTreeMap<ShardId, Epoch>) -> Result<Vec<TaskId>, Error> {
        let mut parts = Parts::new(&adopted.keys().copied().collect::<Vec<_>>(), KEYS_PER_SHARD);
        let mut left = Vec::new();
        while let Some(part) = parts.next() {
            let fences = part.iter().map(|shard| (*shard, adopted[shard])).collect();
            match self.database.sql.task_takeover(&fences, MOST_KEYS_OF_A_SHARD).await {
                Ok(found) => left.extend(found),
                Err(error) => drop(parts.divide(part, error)?),
            }
        }
        Ok(left)
    }

    async fn follow_nudges(&mut self, now: UnixMicros) -> Result<(), Error> {
        let nudged: Vec<ShardId> = self.database.owned_shards.take_nudged().into_iter().collect();
        if nudged.is_empty() {
            return Ok(());
        }
        let window = Window {
            pass: ReadKind::Repair,
            after: Some(now.minus(NUDGE_LOOK_BACK)),
            until: now.plus(self.reach.horizon),
        };
        let keys = self.read(&nudged, window.after, window.until, KEYS_PER_SHARD, now).await?;
        self.note_behind(&keys, false, now);
        Ok(())
    }

    /// Reads keys into the heap. A read from the beginning that takes too long is made in parts, and of a shard that
    /// takes too long alone only what came due lately is read.
    async fn read(
        &self,
        shards: &[ShardId],
        after: Option<UnixMicros>,
        until: UnixMicros,
        most: i64,
        now: UnixMicros,
    ) -> Result<Vec<Key>, Error> {
        let overdue = if seeded!(OverdueForgotten) { now } else { UnixMicros::new(0) };
        let from = after.unwrap_or(overdue);
        let mut parts = Parts::new(shards, most);
        let mut keys = Vec::new();
        while let Some(part) = parts.next() {
            match self.read_part(&part, from, until, most, now).await {
                Ok(found) => keys.extend(found),
                Err(error) if after.is_none() => {
                    if let Some(slow) = parts.divide(part, error)? {
                        tracing::warn!(
                            database = %self.database.name(), shards = slow.len(),
                            "reading from the first task on takes too long; reading what came due in the last minute. \
                             Does an old transaction keep dead rows from being vacuumed?"
                        );
                        keys.extend(self.read_part(&slow, now.minus(LATELY), until, most, now).await?);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(keys)
    }

    async fn read_part(
        &self,
        shards: &[ShardId],
        from: UnixMicros,
        until: UnixMicros,
        most: i64,
        now: UnixMicros,
    ) -> Result<Vec<Key>, Error> {
        let keys = self.database.sql.task_preload(shards, from, until, most).await?;
        #[cfg(feature = "failpoints")]
        let keys = watermark::above(keys);
        let owned = self.database.owned_shards.claimable_since();
        self.database.owned_shards.offer(keys.iter().filter_map(|key| {
            let own_since = *owned.get(&key.id.shard())?;
            let older = key.claim_epoch.is_none_or(|claimed| claimed < own_since);
            let (kind, wake_at) = match key.state {
                TaskState::Scheduled => (WakeKind::Claim, key.wake_at),
                TaskState::Dispatching if older => (WakeKind::Rescue, now),
                TaskState::Dispatching => (WakeKind::Rescue, key.wake_at),
                TaskState::Waiting => (WakeKind::Look, key.wake_at),
                TaskState::Delivered | TaskState::Running => (WakeKind::Deadline, key.wake_at),
                _ => return None,
            };
            Some(Entry { wake_at, id: key.id, kind })
        }));
        Ok(keys)
    }

    fn tell_overdue(&self, by: Duration) {
        self.metrics.overdue_s.with_label_values(&[self.database.name().as_str()]).set(by.as_secs_f64());
    }
}

/// How far behind the oldest claimable task is. Only tasks that wait for their due time count: deadlines and
/// rescues have their own times.
fn overdue(keys: &[Key], now: UnixMicros) -> Duration {
    let claimable = keys.iter().filter(|key| key.state == TaskState::Scheduled);
    claimable.map(|key| key.wake_at).min().map_or(Duration::ZERO, |oldest| now.since(oldest))
}

/// The shards that filled their part of a read and may have more, each with the last moment read. Beyond that
/// moment the read is incomplete.
fn full(keys: &[Key], most: i64) -> BTreeMap<ShardId, UnixMicros> {
    let mut counts: BTreeMap<ShardId, (i64, UnixMicros)> = BTreeMap::new();
    for key in keys {
        let count = counts.entry(key.id.shard()).or_insert((0, key.wake_at));
        *count = (count.0 + 1, count.1.max(key.wake_at));
    }
    counts.into_iter().filter(|(_, (count, _))| *count >= most).map(|(shard, (_, last))| (shard, last)).collect()
}

#[cfg(test)]
mod tests {
    mod reads;

    use super::*;
    use common::ids::TaskId;

    #[test]
    fn overdue_is_what_waits_for_its_moment_and_missed_it() {
        let key = |state, wake_at| {
            let id = TaskId::mint(uuid::Uuid::now_v7(), ShardId::new(0));
            Key { id, wake_at: UnixMicros::new(wake_at), state, claim_epoch: None }
        };
        let now = UnixMicros::new(10);
        let others = [key(TaskState::Delivered, 1), key(TaskState::Dispatching, 2), key(TaskState::Scheduled, 12)];
        assert_eq!(overdue(&others, now), Duration::ZERO);
        let late = [key(TaskState::Scheduled, 7), key(TaskState::Scheduled, 4)];
        assert_eq!(overdue(&late, now), Duration::from_micros(6));
    }

    fn at_ms(millis: i64) -> UnixMicros {
        UnixMicros::new(millis * 1_000)
    }

    #[test]
    fn a_shard_that_filled_its_part_is_behind_from_its_last_moment_on() {
        let key = |shard, wake_at| {
            let id = TaskId::mint(uuid::Uuid::now_v7(), ShardId::new(shard));
            Key { id, wake_at: at_ms(wake_at), state: TaskState::Scheduled, claim_epoch: None }
        };
        let keys = [key(1, 5), key(1, 7), key(2, 9)];
        assert_eq!(full(&keys, 2), BTreeMap::from([(ShardId::new(1), at_ms(7))]));
    }

    #[test]
    fn more_keys_of_one_moment_than_a_read_takes_are_read_in_larger_parts_and_then_only_when_they_are_due() {
        let (now, due) = (at_ms(1_000), at_ms(9_000));
        let mut behind = Behind::new(due, now);
        let mut reads = 0;
        while behind.at == now {
            behind = behind.read_on(due, now);
            reads += 1;
            assert!(reads < 10, "the same keys are read repeatedly");
        }
        assert_eq!((behind.keys, behind.at), (MOST_KEYS_OF_A_SHARD, due));
        let then = at_ms(9_010);
        assert_eq!(behind.read_on(due, then).at, then.plus(PAUSE_AT_ONE_MOMENT));
        let got_on = behind.read_on(at_ms(9_500), then);
        assert_eq!(got_on, Behind::new(at_ms(9_500), then));
    }
}
