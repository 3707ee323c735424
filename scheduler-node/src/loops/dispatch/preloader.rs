//! Keeps the heap filled with the keys that come due next in the shards this node owns.
//!
//! It runs when a shard is adopted and when a nudge comes. It also runs at intervals, to fill a heap that runs low and
//! to repair what a lost nudge missed. If it stops, this node does not wake tasks that were submitted elsewhere or are
//! due beyond the horizon.

mod behind;
mod found;
mod reads;
mod round;
mod unread;
#[cfg(feature = "failpoints")]
mod watermark;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    delay::{
        heap::{Entry, WakeKind},
        horizon::{Horizon, ReadIntervals, ReadKind, ReadResult},
        rest,
    },
    ids::{Epoch, ShardId},
    time::UnixMicros,
};
use tokio_util::sync::CancellationToken;

use self::{
    behind::{Behind, KEYS_PER_SHARD, MOST_KEYS_OF_A_SHARD, due},
    found::Found,
    reads::{KeyRange, is_unreadable},
    unread::{SHORTEST_REST, Unread},
};
use crate::{
    clock,
    metrics::Metrics,
    store::{Database, Error, Fault, Statements},
    supervise::at_work,
    working_set::{database::NodeDatabase, failures::Failures},
};

/// The pause before a failed read is tried again.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(500);

/// The longest sleep between two checks of what to read.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// How far back a nudged shard is read: a nudge is about rows that are due about now.
const NUDGE_LOOK_BACK: Duration = Duration::from_secs(5);

/// The most shards of one statement. It takes some 100 MB of keys, if so many tasks of each are overdue.
const SHARDS_AT_ONCE: usize = 256;

/// Shards that are behind are read on for this long in one pass. Nudges and repairs wait meanwhile.
const READ_ON_WITHIN: Duration = Duration::from_secs(1);

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
    unread: Unread,
    /// How far behind the oldest claimable task was by the last read that showed it, and when that was.
    overdue: (Duration, Instant),
    /// The passes that failed although the database answers.
    failed_passes: Failures,
    /// The shards of which reads have failed because of what they have, and none has shown since that this is over.
    unreadable: BTreeSet<ShardId>,
    metrics: Arc<Metrics>,
}

impl<S: Statements> Preloader<S> {
    pub fn new(database: NodeDatabase<S>, horizon: Duration, heap_entries: usize, metrics: Arc<Metrics>) -> Self {
        let reach = ReadIntervals::of(horizon);
        let (horizon, behind, unread) = (Horizon::new(reach), BTreeMap::new(), Unread::default());
        let overdue = (Duration::ZERO, clock::instant());
        let (failed_passes, unreadable) = Default::default();
        Self { database, horizon, reach, heap_entries, behind, unread, overdue, failed_passes, unreadable, metrics }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            // Registers before the check, so that a shard adopted in between is not missed.
            let owned_shards = Arc::clone(&self.database.owned_shards);
            let wanted = owned_shards.preload_wanted.notified();
            let sleep = self.pass().await;
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = wanted => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Makes one pass. Returns for how long nothing will be wanted.
    async fn pass(&mut self) -> Duration {
        self.activate().await.unwrap_or_else(|error| {
            let (database, reason) = (self.database.name(), &error as &dyn std::error::Error);
            // The prober tells of a database that does not answer. One that does may pass the prober's checks.
            let is_answered = error.fault() != Fault::Outage || error.sqlstate().is_some();
            if is_answered && self.failed_passes.begin() {
                tracing::warn!(%database, error = reason, "could not read tasks that come due; retrying");
            } else {
                tracing::debug!(%database, error = reason, "could not read tasks that come due");
            }
            self.tell_unread();
            PAUSE_AFTER_ERROR
        })
    }

    /// Reads adopted shards, nudged shards and what is regularly read. Returns for how long nothing will be wanted.
    async fn activate(&mut self) -> Result<Duration, Error> {
        let work = at_work();
        self.take_over().await?;
        work.beat();
        let Some(now) = self.database.sql.clock().at(clock::instant()) else {
            self.tell_unread();
            return Ok(PAUSE_AFTER_ERROR);
        };
        if self.horizon.follow(now) {
            self.behind.clear();
            self.unread.set_back(now);
            // The next read moves all other entries to the times of their rows. The row of a task in doubt wakes much
            // later than its rescue.
            self.database.owned_shards.rescue_doubts();
        }
        self.follow_nudges(now).await?;
        let owned = self.database.owned_shards.claimable_shards();
        if owned.is_empty() {
            self.horizon.reset();
            self.behind.clear();
            self.unread = Unread::default();
            self.unreadable.clear();
            self.tell_overdue(Duration::ZERO);
            return Ok(LONGEST_SLEEP);
        }
        self.catch_up(now).await?;
        work.beat();
        self.read_unread(now).await?;
        work.beat();
        // These reads may have taken long. A repair must not end before the present.
        let now = self.database.sql.clock().at(clock::instant()).unwrap_or(now);
        let has_room = self.has_room();
        if let Some(window) = self.horizon.next(now, has_room) {
            if window.pass != ReadKind::Repair {
                self.database.owned_shards.reopen();
            }
            let swept: &[ShardId] = if seeded!(NoSweeper) && window.pass != ReadKind::Ahead { &[] } else { &owned };
            let found = match window.after {
                None => {
                    let found = self.read_all(swept, window.until, now).await?;
                    self.unread.end_full_read();
                    found
                }
                Some(after) => self.read_or_lately(swept, KeyRange::new(after, window.until), now).await?,
            };
            if window.pass != ReadKind::Ahead {
                self.tell_overdue(found.overdue(now).max(self.unread.overdue(now)));
            }
            self.note_behind(&found, window.pass == ReadKind::Repair, now);
            let complete_until = self.database.owned_shards.complete_until();
            let result = ReadResult { earliest: found.earliest, complete_until };
            let ended = self.database.sql.clock().at(clock::instant()).unwrap_or(now);
            self.horizon.note(window, result, now, ended);
            if window.pass != ReadKind::Ahead {
                self.read_about_now(swept, ended).await?;
            }
        }
        let now = self.database.sql.clock().at(clock::instant()).unwrap_or(now);
        let has_room = self.has_room();
        let catch_up_at = self.behind.values().map(|behind| behind.at).min().filter(|_| has_room);
        let next = self.horizon.ask_again_at(now, has_room).min(catch_up_at.unwrap_or(UnixMicros::LAST));
        let next = next.min(self.unread.ask_again_at());
        Ok(next.since(now).clamp(Duration::from_millis(5), LONGEST_SLEEP))
    }

    /// Whether the heap is at most half full, so that reading on is worthwhile.
    fn has_room(&self) -> bool {
        self.database.owned_shards.heap_len() <= self.heap_entries / 2
    }

    /// Notes shards that filled their part of a read and so have more. A repair repeats older reads, so it sets no
    /// shard back.
    fn note_behind(&mut self, found: &Found, is_repair: bool, now: UnixMicros) {
        for (shard, last) in found.full(KEYS_PER_SHARD) {
            let behind = self.behind.entry(shard).or_insert_with(|| Behind::new(last, now));
            if last < behind.from && !is_repair {
                *behind = behind.set_back(last, now);
            }
        }
    }

    /// Reads what comes due about now where other reads may not come to it: in shards that are behind, and in all while
    /// the heap has no room for reads ahead. Catching up leaves half of the heap to these keys.
    async fn read_about_now(&mut self, owned: &[ShardId], now: UnixMicros) -> Result<(), Error> {
        let window = self.horizon.about_now(now);
        let are_missed = !window.is_ahead && !self.has_room();
        let is_missed = |shard: &&ShardId| are_missed || self.behind.contains_key(shard);
        let shards: Vec<ShardId> = owned.iter().filter(is_missed).copied().collect();
        match self.read(&shards, KeyRange::new(window.from, window.until), now).await {
            Err(error) if error.is_out_of_time() => {
                self.warn_of_slowness(shards.len());
                Ok(())
            }
            read => read.map(drop),
        }
    }

    /// Reads one page of each shard that is behind, as far as there is time.
    async fn catch_up(&mut self, now: UnixMicros) -> Result<(), Error> {
        let owned_shards = Arc::clone(&self.database.owned_shards);
        self.behind.retain(|shard, _| owned_shards.is_claimable(*shard));
        let (began, mut failed) = (clock::instant(), Duration::ZERO);
        for (shard, behind) in due(&self.behind, now) {
            if !self.has_room() {
                break;
            }
            let range = KeyRange { from: behind.from, until: now.plus(self.reach.horizon), most: behind.keys };
            let asked = clock::instant();
            match self.ask(&[shard], range, now).await {
                Ok(found) => {
                    match found.full(behind.keys).next() {
                        Some((_, last)) => self.behind.insert(shard, behind.read_on(last, now)),
                        None => self.behind.remove(&shard),
                    };
                    self.note_readable(shard);
                }
                // Its first page can be read, so joint reads, such as after a nudge, include it still.
                Err(error) if is_unreadable(&error) => {
                    let ended = clock::instant();
                    // Those that fail in one pass use a tenth of the time together.
                    failed += ended.saturating_duration_since(asked);
                    let at = now.plus(ended.saturating_duration_since(began) + rest(failed).max(SHORTEST_REST));
                    self.behind.insert(shard, Behind { at, ..behind });
                    self.log_unreadable(shard, &error);
                }
                Err(error) if error.is_out_of_time() => {
                    let took = clock::instant().saturating_duration_since(asked);
                    self.behind.insert(shard, Behind { at: now.plus(took + rest(took)), ..behind });
                    self.warn_of_slowness(1);
                }
                Err(error) => return Err(error),
            }
            if clock::instant().saturating_duration_since(began) >= READ_ON_WITHIN {
                // The others have their turn in the next pass, after what comes due now.
                break;
            }
        }
        Ok(())
    }

    /// Reads newly adopted shards: first what their owner before left claimed, then everything up to the horizon.
    async fn take_over(&mut self) -> Result<(), Error> {
        let adopted = self.database.owned_shards.take_adopted();
        if adopted.is_empty() {
            return Ok(());
        }
        let taken = self.read_adopted(&adopted).await;
        if !matches!(taken, Ok(true)) {
            self.database.owned_shards.put_back_adopted(adopted.into_keys());
        }
        taken.map(drop)
    }

    /// Returns whether the shards are read: not without a reading of the clock, as after a failover meanwhile.
    async fn read_adopted(&mut self, adopted: &BTreeMap<ShardId, Epoch>) -> Result<bool, Error> {
        self.database.sql.ping().await?;
        // Where it fails because of some shards, the reads find what was claimed in the others, one after another.
        let left = match self.database.sql.task_takeover(adopted, MOST_KEYS_OF_A_SHARD).await {
            Err(error) if error.is_out_of_time() || is_unreadable(&error) => Vec::new(),
            left => left?,
        };
        let Some(now) = self.database.sql.clock().at(clock::instant()) else { return Ok(false) };
        if !left.is_empty() {
            tracing::info!(database = %self.database.name(), tasks = left.len(), "publishing again the tasks that the previous owner left claimed");
        }
        self.database.owned_shards.offer(left.into_iter().map(|id| Entry { wake_at: now, id, kind: WakeKind::Rescue }));
        let shards: Vec<ShardId> = adopted.keys().copied().collect();
        self.behind.retain(|shard, _| !adopted.contains_key(shard));
        self.unread.note_unread_since(&shards, now);
        let found = self.read_all(&shards, now.plus(self.reach.horizon), now).await?;
        tracing::debug!(database = %self.database.name(), shards = shards.len(), "adopted shards are loaded");
        self.note_behind(&found, false, now);
        Ok(true)
    }

    async fn follow_nudges(&mut self, now: UnixMicros) -> Result<(), Error> {
        let nudged: Vec<ShardId> = self.database.owned_shards.take_nudged().into_iter().collect();
        if nudged.is_empty() {
            return Ok(());
        }
        let range = KeyRange::new(now.minus(NUDGE_LOOK_BACK), now.plus(self.reach.horizon));
        match self.read(&nudged, range, now).await {
            // Nothing nudges again, and repairs do not look so far ahead.
            Err(error) if error.is_out_of_time() => {
                self.warn_of_slowness(nudged.len());
                self.unread.add_nudged(&nudged);
            }
            read => self.note_behind(&read?, false, now),
        }
        Ok(())
    }

    fn warn_of_slowness(&self, shards: usize) {
        tracing::warn!(
            database = %self.database.name(), shards,
            "reading tasks that come due takes too long; what is due now goes first. Does an old transaction keep dead \
             rows from being vacuumed?"
        );
    }

    fn tell_overdue(&mut self, by: Duration) {
        self.overdue = (by, clock::instant());
        self.show_overdue(by);
    }

    /// Tells how far behind a task may be that could not be read. A heap that is not filled lets none fire.
    fn tell_unread(&mut self) {
        if self.database.owned_shards.claimable_shards().is_empty() {
            return self.tell_overdue(Duration::ZERO);
        }
        self.show_overdue(self.may_be_overdue());
    }

    /// How far behind a task may be by now, if nothing has been read since the last read that showed it.
    fn may_be_overdue(&self) -> Duration {
        let (by, read_at) = self.overdue;
        by + clock::instant().saturating_duration_since(read_at)
    }

    fn show_overdue(&self, by: Duration) {
        self.metrics.overdue_s.with_label_values(&[self.database.name().as_str()]).set(by.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    mod reads;
}
