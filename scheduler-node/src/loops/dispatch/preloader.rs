//! Keeps the heap filled with the keys that come due next in the shards this node owns.
//!
//! It runs when a shard is adopted, when a nudge comes and when the heap runs low. It also runs at intervals, to
//! repair what a lost nudge missed. If it stops, this node does not wake tasks that were submitted elsewhere or are
//! due beyond the horizon.

mod behind;
#[cfg(feature = "failpoints")]
mod watermark;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use common::{
    delay::{
        heap::{Entry, WakeKind},
        horizon::{Horizon, ReadIntervals, ReadKind, ReadResult},
    },
    ids::ShardId,
    task::TaskState,
    time::UnixMicros,
};
use tokio_util::sync::CancellationToken;

use self::behind::{Behind, KEYS_PER_SHARD, MOST_KEYS_OF_A_SHARD, full};
use crate::{
    clock,
    metrics::Metrics,
    store::{Database, Error, Statements, preload::Key},
    supervise::at_work,
    working_set::database::NodeDatabase,
};

/// The pause before a failed read is tried again.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(500);

/// The longest sleep between two checks of what to read.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// How far back a nudged shard is read: a nudge is about rows that are due about now.
const NUDGE_LOOK_BACK: Duration = Duration::from_secs(5);

/// The most shards of one statement. It takes some 100 MB of keys, if so many tasks of each are overdue.
const SHARDS_AT_ONCE: usize = 256;

/// So many statements of one read may run out of time, in 5 s each. Then the shards that are left are read one by one,
/// between other reads.
const SLOW_STATEMENTS: usize = 2;

/// Shards that are behind are read for this long in one pass: nudges wait meanwhile.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(5);

/// Where the beginning of a shard cannot be read in time, what came due in the last minute is read: more than a node
/// needs to follow what is submitted now.
const LATELY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Preloader<S = Arc<Database>> {
    database: NodeDatabase<S>,
    horizon: Horizon,
    reach: ReadIntervals,
    heap_entries: usize,
    /// Shards with more keys than one read takes, or that a read from the first task on left out. Each is read on by
    /// itself and delays no other shard.
    behind: BTreeMap<ShardId, Behind>,
    /// The shards of one statement that reads from the first task on: half as many after one that ran out of time.
    at_once: usize,
    /// Whether a shard was not read from its first task on, so that what is overdue may be unknown.
    is_blind: bool,
    metrics: Arc<Metrics>,
}

impl<S: Statements> Preloader<S> {
    pub fn new(database: NodeDatabase<S>, horizon: Duration, heap_entries: usize, metrics: Arc<Metrics>) -> Self {
        let reach = ReadIntervals::of(horizon);
        let (horizon, behind) = (Horizon::new(reach), BTreeMap::new());
        Self { database, horizon, reach, heap_entries, behind, at_once: SHARDS_AT_ONCE, is_blind: false, metrics }
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
            self.is_blind = false;
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
            let keys = match window.after {
                None => {
                    self.is_blind = false;
                    self.read_all(swept, window.until, now).await?
                }
                Some(after) => self.read_or_lately(swept, after, window.until, now).await?,
            };
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
        let began = clock::instant();
        for (shard, behind) in due {
            if !self.has_room() || clock::instant().saturating_duration_since(began) >= CATCH_UP_WITHIN {
                break;
            }
            let until = now.plus(self.reach.horizon);
            let read = self.read(&[shard], behind.from, until, behind.keys, now).await;
            let keys = match read {
                Err(error) if error.is_out_of_time() && behind.from < now.minus(LATELY) => {
                    self.warn_of_slowness(1);
                    self.behind.insert(shard, Behind::new(now.minus(LATELY), now));
                    continue;
                }
                read => read?,
            };
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
            // Where it takes too long, the reads find what was claimed, one after another.
            let left = match self.database.sql.task_takeover(&adopted, MOST_KEYS_OF_A_SHARD).await {
                Err(error) if error.is_out_of_time() => Vec::new(),
                left => left?,
            };
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
            self.behind.retain(|shard, _| !adopted.contains_key(shard));
            let keys = self.read_all(&shards, now.plus(self.reach.horizon), now).await?;
            Ok((shards.len(), keys, now))
        };
        match taken.await {
            Ok((shards, keys, now)) => {
                tracing::debug!(database = %self.database.name(), shards, "adopted shards are loaded");
                self.note_behind(&keys, false, now);
                Ok(())
            }
            Err(error) => {
                self.database.owned_shards.put_back_adopted(adopted.into_keys());
                Err(error)
            }
        }
    }

    async fn follow_nudges(&mut self, now: UnixMicros) -> Result<(), Error> {
        let nudged: Vec<ShardId> = self.database.owned_shards.take_nudged().into_iter().collect();
        if nudged.is_empty() {
            return Ok(());
        }
        let (after, until) = (now.minus(NUDGE_LOOK_BACK), now.plus(self.reach.horizon));
        let keys = self.read(&nudged, after, until, KEYS_PER_SHARD, now).await?;
        self.note_behind(&keys, false, now);
        Ok(())
    }

    /// Reads the keys of `shards` from the first task on. Some may take too long: a shard with very many overdue tasks,
    /// or with dead rows that an old transaction keeps. Then the shards that are left are behind from the beginning.
    async fn read_all(&mut self, shards: &[ShardId], until: UnixMicros, now: UnixMicros) -> Result<Vec<Key>, Error> {
        let first = if seeded!(OverdueForgotten) { now } else { UnixMicros::new(0) };
        let (mut keys, mut left, mut slow) = (Vec::new(), shards, 0);
        while !left.is_empty() && slow < SLOW_STATEMENTS {
            let (part, others) = left.split_at(self.at_once.min(left.len()));
            match self.read_part(part, first, until, KEYS_PER_SHARD, now).await {
                Ok(found) => {
                    keys.extend(found);
                    left = others;
                }
                Err(error) if error.is_out_of_time() => {
                    slow += 1;
                    self.at_once = (part.len() / 2).max(1);
                }
                Err(error) => return Err(error),
            }
        }
        self.is_blind |= slow > 0;
        if slow == 0 {
            self.at_once = (self.at_once * 2).min(SHARDS_AT_ONCE);
        } else {
            self.warn_of_slowness(left.len());
        }
        self.behind.extend(left.iter().map(|shard| (*shard, Behind::new(first, now))));
        Ok(keys)
    }

    /// Reads from `after` on, or what came due lately where that takes too long.
    async fn read_or_lately(
        &self,
        shards: &[ShardId],
        after: UnixMicros,
        until: UnixMicros,
        now: UnixMicros,
    ) -> Result<Vec<Key>, Error> {
        let lately = now.minus(LATELY);
        match self.read(shards, after, until, KEYS_PER_SHARD, now).await {
            Err(error) if error.is_out_of_time() && after < lately => {
                self.warn_of_slowness(shards.len());
                self.read(shards, lately, until, KEYS_PER_SHARD, now).await
            }
            read => read,
        }
    }

    fn warn_of_slowness(&self, shards: usize) {
        tracing::warn!(
            database = %self.database.name(), shards,
            "reading tasks that come due takes too long; what is due now goes first. Does an old transaction keep dead \
             rows from being vacuumed?"
        );
    }

    async fn read(
        &self,
        shards: &[ShardId],
        from: UnixMicros,
        until: UnixMicros,
        most: i64,
        now: UnixMicros,
    ) -> Result<Vec<Key>, Error> {
        let mut keys = Vec::new();
        for part in shards.chunks(SHARDS_AT_ONCE) {
            keys.extend(self.read_part(part, from, until, most, now).await?);
        }
        Ok(keys)
    }

    /// Reads keys into the heap by one statement.
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

    /// What is overdue does not fall while some of it may be unknown.
    fn tell_overdue(&self, by: Duration) {
        let overdue_s = self.metrics.overdue_s.with_label_values(&[self.database.name().as_str()]);
        let least = if self.is_blind { overdue_s.get() } else { 0.0 };
        overdue_s.set(by.as_secs_f64().max(least));
    }
}

/// How far behind the oldest claimable task is. Only tasks that wait for their due time count: deadlines and
/// rescues have their own times.
fn overdue(keys: &[Key], now: UnixMicros) -> Duration {
    let claimable = keys.iter().filter(|key| key.state == TaskState::Scheduled);
    claimable.map(|key| key.wake_at).min().map_or(Duration::ZERO, |oldest| now.since(oldest))
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
}
