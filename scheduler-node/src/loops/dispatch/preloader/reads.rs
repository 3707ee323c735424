//! Reads keys into the heap: of several shards in one statement (a joint read), or of one (a single read). A joint read
//! that fails because of what a shard has is split, until that shard alone is left out: a damaged page, or a row that
//! this version does not know, delays no other shard.

use std::{sync::Arc, time::Duration};

use common::{
    delay::heap::{Entry, WakeKind},
    ids::ShardId,
    task::TaskState,
    time::UnixMicros,
};

use super::{LATELY, Preloader, SHARDS_AT_ONCE, behind::KEYS_PER_SHARD, found::Found};
use crate::{
    clock,
    store::{Error, Fault, Statements},
};

/// A joint read that fails because of one shard is split for this long; then its shards are left to single reads.
const SPLIT_WITHIN: Duration = Duration::from_secs(1);

/// The keys that a read takes of each of its shards.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRange {
    /// Keys that wake before this moment are left out.
    pub(super) from: UnixMicros,
    /// Keys that wake after this moment are left out.
    pub(super) until: UnixMicros,
    /// The most keys of one shard. Those that wake first are taken.
    pub(super) most: i64,
}

impl KeyRange {
    /// As many keys as a read mostly takes of a shard.
    pub(super) const fn new(from: UnixMicros, until: UnixMicros) -> Self {
        Self { from, until, most: KEYS_PER_SHARD }
    }
}

/// Whether a read fails because of what it would read, so that the same read without it may pass. An outage, a lock and
/// a statement that ran out of its time say nothing about single rows.
pub(super) fn is_unreadable(error: &Error) -> bool {
    matches!(error.fault(), Fault::Bug | Fault::Data) || error.is_unreadable_file()
}

/// The moment from which a read has all tasks.
fn first(now: UnixMicros) -> UnixMicros {
    if seeded!(OverdueForgotten) { now } else { UnixMicros::FIRST }
}

impl<S: Statements> Preloader<S> {
    pub(super) async fn read(&mut self, shards: &[ShardId], range: KeyRange, now: UnixMicros) -> Result<Found, Error> {
        let mut found = Found::default();
        for part in shards.chunks(SHARDS_AT_ONCE) {
            found.add(self.read_part(part, range, now).await?);
        }
        Ok(found)
    }

    /// Reads the keys of `shards` from the first task on. That takes too long for shards with very many overdue tasks,
    /// or with dead rows that an old transaction keeps. Then what came due lately is read, and the rest is left to
    /// single reads. On a slow machine even what came due lately takes too long, and the single reads find it.
    pub(super) async fn read_all(
        &mut self,
        shards: &[ShardId],
        until: UnixMicros,
        now: UnixMicros,
    ) -> Result<Found, Error> {
        let (mut found, mut lately_passes) = (Found::default(), true);
        // Where joint reads have run out of time before, single reads have shown since what was overdue. A shard that
        // none has reached counts for too little: nothing tells it from one that is slow and follows what comes due.
        let since = if self.unread.joint_reads_time_out() { now } else { now.minus(self.may_be_overdue()) };
        for part in shards.chunks(SHARDS_AT_ONCE) {
            if !self.unread.joint_reads_time_out() {
                match self.read_part(part, KeyRange::new(first(now), until), now).await {
                    Err(error) if error.is_out_of_time() => {}
                    read => {
                        found.add(read?);
                        self.unread.read_together(part);
                        continue;
                    }
                }
                self.warn_of_slowness(part.len());
                let database = self.database.name();
                tracing::info!(%database, "reads of many shards take too long; reading them one by one");
            }
            self.unread.add(part);
            if lately_passes {
                match self.read_part(part, KeyRange::new(now.minus(LATELY), until), now).await {
                    Err(error) if error.is_out_of_time() => self.warn_of_slowness(part.len()),
                    read => {
                        found.add(read?);
                        continue;
                    }
                }
                // The other parts would take as long in vain, and nudges wait meanwhile.
                lately_passes = false;
            }
            self.unread.note_unread_since(part, since);
        }
        Ok(found)
    }

    /// Makes single reads from the first task on of the shards that are left to them.
    pub(super) async fn read_unread(&mut self, now: UnixMicros) -> Result<(), Error> {
        let owned_shards = Arc::clone(&self.database.owned_shards);
        self.unread.keep(|shard| owned_shards.is_claimable(shard));
        self.unreadable.retain(|shard| owned_shards.is_claimable(*shard));
        let within = self.unread.single_reads_within();
        let (began, mut passed) = (clock::instant(), Duration::ZERO);
        while let Some(shard) = self.unread.next(now.plus(passed)) {
            let asked = clock::instant();
            let read = self.ask(&[shard], KeyRange::new(first(now), now.plus(self.reach.horizon)), now).await;
            let lately = match &read {
                Err(error) if is_unreadable(error) || error.is_out_of_time() => self.read_lately(shard, now).await,
                _ => Ok(()),
            };
            // Both reads count, so that a shard whose second one is slow uses no more than a tenth of the time either.
            let took = clock::instant().saturating_duration_since(asked);
            passed = clock::instant().saturating_duration_since(began);
            match read {
                Ok(found) => {
                    let was_slow = self.unread.joint_reads_time_out();
                    self.unread.read(shard, took, found.oldest_claimable);
                    if was_slow && !self.unread.joint_reads_time_out() {
                        tracing::info!(database = %self.database.name(), "shards are read together again");
                    }
                    self.note_behind(&found, false, now);
                    self.note_readable(shard);
                }
                Err(error) if error.is_out_of_time() => {
                    self.unread.ran_out_of_time(shard, took, now.plus(passed));
                    self.warn_of_slowness(1);
                }
                Err(error) if is_unreadable(&error) => self.leave(shard, took, now.plus(passed), &error),
                Err(error) => {
                    self.unread.put_back(shard);
                    return Err(error);
                }
            }
            lately?;
            if passed >= within {
                return Ok(());
            }
        }
        self.unread.none_left();
        Ok(())
    }

    /// Reads what came due lately in a shard whose first tasks cannot be read, or not in time: old rows must not stop
    /// the others. That begins before its last turn. If it cannot be read either, it reads without what comes due
    /// later, and then what came due since its last turn, as far as its reads fail at once.
    async fn read_lately(&mut self, shard: ShardId, now: UnixMicros) -> Result<(), Error> {
        let about_now = self.horizon.about_now(now);
        let lately = KeyRange::new(self.unread.lately_from(shard, now), now.plus(self.reach.horizon));
        let due = KeyRange { until: about_now.until, ..lately };
        let since_last_turn = about_now.from.min(now.minus(self.unread.between_turns()));
        let mut read_at = None;
        for (range, is_all) in [(lately, true), (due, true), (KeyRange { from: since_last_turn, ..due }, false)] {
            match self.ask(&[shard], range, now).await {
                Ok(found) => {
                    // It repeats what it read before, as a repair does.
                    self.note_behind(&found, true, now);
                    read_at = is_all.then_some(now);
                    break;
                }
                Err(error) if is_unreadable(&error) => {}
                Err(error) if error.is_out_of_time() => break,
                Err(error) => return Err(error),
            }
        }
        self.unread.note_lately(shard, read_at);
        Ok(())
    }

    /// Reads a range, or what came due lately where that takes too long.
    pub(super) async fn read_or_lately(
        &mut self,
        shards: &[ShardId],
        range: KeyRange,
        now: UnixMicros,
    ) -> Result<Found, Error> {
        let lately = now.minus(LATELY);
        match self.read(shards, range, now).await {
            Err(error) if error.is_out_of_time() && range.from < lately => {
                self.warn_of_slowness(shards.len());
                self.read(shards, KeyRange { from: lately, ..range }, now).await
            }
            read => read,
        }
    }

    /// Makes a joint read, or several if it fails because of what a shard has. Such a shard rests, and is left to
    /// single reads from then on: there are no keys of it.
    pub(super) async fn read_part(
        &mut self,
        shards: &[ShardId],
        range: KeyRange,
        now: UnixMicros,
    ) -> Result<Found, Error> {
        let readable = self.unread.readable(shards);
        let (mut found, mut parts) = (Found::default(), vec![&readable[..]]);
        let began = clock::instant();
        while let Some(part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let asked = clock::instant();
            match self.ask(part, range, now).await {
                Ok(more) => found.add(more),
                Err(error) if is_unreadable(&error) => {
                    let has_time = clock::instant().saturating_duration_since(began) < SPLIT_WITHIN;
                    match part {
                        [shard] => self.leave(*shard, Duration::ZERO, now, &error),
                        several if has_time => {
                            let (before, after) = several.split_at(several.len() / 2);
                            parts.extend([after, before]);
                        }
                        several => self.unread.add(several),
                    }
                }
                Err(error) => {
                    if error.is_out_of_time() {
                        self.unread.note_lost(clock::instant().saturating_duration_since(asked));
                    }
                    return Err(error);
                }
            }
        }
        Ok(found)
    }

    /// Reads keys into the heap by one statement, whatever its shards.
    pub(super) async fn ask(&self, shards: &[ShardId], range: KeyRange, now: UnixMicros) -> Result<Found, Error> {
        let keys = self.database.sql.task_preload(shards, range.from, range.until, range.most).await?;
        #[cfg(feature = "failpoints")]
        let keys = super::watermark::above(keys);
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
        Ok(Found::of(&keys))
    }

    /// Notes that a single read of a shard has passed. It may have keys behind them that cannot be read, or others that
    /// were left out.
    pub(super) fn note_readable(&mut self, shard: ShardId) {
        if !self.behind.contains_key(&shard) && !self.unread.readable(&[shard]).is_empty() {
            self.unreadable.remove(&shard);
        }
    }

    /// Leaves a shard alone for a while whose single read failed after so long, at `ended`, because of what it has.
    pub(super) fn leave(&mut self, shard: ShardId, took: Duration, ended: UnixMicros, error: &Error) {
        self.unread.note_unreadable(shard, took, ended);
        self.log_unreadable(shard, error);
    }

    /// Warns of each shard once, until it is read again.
    pub(super) fn log_unreadable(&mut self, shard: ShardId, error: &Error) {
        let is_news = self.unreadable.insert(shard);
        let (database, error) = (self.database.name(), error as &dyn std::error::Error);
        if is_news {
            tracing::warn!(
                %database, %shard, error,
                "the tasks of a shard cannot be read; it is tried again at intervals, and the others are read"
            );
        } else {
            tracing::debug!(%database, %shard, error, "the tasks of a shard cannot be read");
        }
    }
}
