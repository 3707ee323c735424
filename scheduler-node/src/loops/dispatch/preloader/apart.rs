//! The statements that read keys. One that fails because of what a shard has is taken apart, until that shard alone is
//! left out: a damaged page, or a row that this version does not know, delays no other shard.

use std::time::Duration;

use common::{
    delay::heap::{Entry, WakeKind},
    ids::ShardId,
    task::TaskState,
    time::UnixMicros,
};

use super::{Preloader, SHARDS_AT_ONCE, UNREAD_WITHIN, behind::KEYS_PER_SHARD};
use crate::{
    clock,
    store::{Error, Fault, Statements, preload::Key},
};

/// The longest that shards are read one by one in one pass: about as long as two common reads.
const UNREAD_WITHIN_MOST: Duration = Duration::from_secs(10);

/// The most that counts as taken in vain: about as long as the common reads of one pass, if all run out of time.
const WASTED_MOST: Duration = Duration::from_secs(20);

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

impl<S: Statements> Preloader<S> {
    pub(super) async fn read(
        &mut self,
        shards: &[ShardId],
        range: KeyRange,
        now: UnixMicros,
    ) -> Result<Vec<Key>, Error> {
        let mut keys = Vec::new();
        for part in shards.chunks(SHARDS_AT_ONCE) {
            keys.extend(self.read_part(part, range, now).await?);
        }
        Ok(keys)
    }

    /// For how long shards are read one by one in this pass. Where common reads run out of time, it is as long as these
    /// have taken in vain, within a bound, so that much of the time goes to reads that help.
    pub(super) fn unread_within(&mut self) -> Duration {
        let within = self.wasted.clamp(UNREAD_WITHIN, UNREAD_WITHIN_MOST);
        self.wasted = self.wasted.saturating_sub(within);
        within
    }

    /// Reads keys into the heap by one statement, or by several if one fails because of what a shard has. Such a shard
    /// rests, and is read alone from then on: there are no keys of it.
    pub(super) async fn read_part(
        &mut self,
        shards: &[ShardId],
        range: KeyRange,
        now: UnixMicros,
    ) -> Result<Vec<Key>, Error> {
        let readable = self.unread.readable(shards);
        let (mut keys, mut parts) = (Vec::new(), vec![&readable[..]]);
        let began = clock::instant();
        while let Some(part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let asked = clock::instant();
            match self.ask(part, range, now).await {
                Ok(found) => keys.extend(found),
                Err(error) if is_unreadable(&error) => {
                    let has_time = clock::instant().saturating_duration_since(began) < UNREAD_WITHIN;
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
                        self.wasted = WASTED_MOST.min(self.wasted + clock::instant().saturating_duration_since(asked));
                    }
                    return Err(error);
                }
            }
        }
        Ok(keys)
    }

    /// Reads keys into the heap by one statement, whatever its shards.
    pub(super) async fn ask(&self, shards: &[ShardId], range: KeyRange, now: UnixMicros) -> Result<Vec<Key>, Error> {
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
        Ok(keys)
    }

    /// Notes that a read of a shard alone has passed. It may have keys behind them that cannot be read, or others that
    /// were left out.
    pub(super) fn note_readable(&mut self, shard: ShardId) {
        if !self.behind.contains_key(&shard) && !self.unread.readable(&[shard]).is_empty() {
            self.unreadable.remove(&shard);
        }
    }

    /// Leaves a shard alone for a while whose own read failed after so long, at `ended`, because of what it has.
    pub(super) fn leave(&mut self, shard: ShardId, took: Duration, ended: UnixMicros, error: &Error) {
        self.unread.fails(shard, took, ended);
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
