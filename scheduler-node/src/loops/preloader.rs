//! Keeps the heap filled with what comes due next in the shards this node owns.
//!
//! Runs when a shard is adopted, when a nudge comes, when the heap runs low, and in a rhythm of its own that repairs whatever a lost
//! nudge missed. If it stops, tasks submitted elsewhere or due beyond the horizon are not woken by this node.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    delay::{
        heap::{Entry, WakeKind},
        horizon::{Found, Horizon, Pass, Reach, Window},
    },
    ids::ShardId,
    task::TaskState,
    time::UnixMicros,
};
use tokio_util::sync::CancellationToken;

use super::site::Site;
use crate::{
    metrics::Metrics,
    store::{Error, preload::Key},
};

/// How many keys one read takes of one shard: bounds the answer while a million are overdue.
const KEYS_PER_SHARD: i64 = 2_000;

/// A read that failed is tried again after this long.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(500);

/// The longest sleep between two looks at what to read.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A nudge is about rows that are due about now: how far back to look for them.
const NUDGE_LOOK_BACK: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Preloader {
    site: Site,
    horizon: Horizon,
    reach: Reach,
    heap_entries: usize,
    metrics: Arc<Metrics>,
}

impl Preloader {
    pub fn new(site: Site, horizon: Duration, heap_entries: usize, metrics: Arc<Metrics>) -> Self {
        let reach = Reach::of(horizon);
        Self { site, horizon: Horizon::new(reach), reach, heap_entries, metrics }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            // Interest first, then the look: what is adopted in between is not missed.
            let held = Arc::clone(&self.site.held);
            let wanted = held.preload_wanted.notified();
            let sleep = match self.activate().await {
                Ok(sleep) => sleep,
                Err(error) => {
                    tracing::debug!(database = %self.site.name(), error = &error as &dyn std::error::Error, "could not read what comes due");
                    PAUSE_AFTER_ERROR
                }
            };
            tokio::select! {
                () = wanted => {}
                () = tokio::time::sleep(sleep) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// One pass: what was adopted, what was nudged, what the rhythm wants. Returns how long nothing will be wanted.
    async fn activate(&mut self) -> Result<Duration, Error> {
        self.take_over().await?;
        let Some(now) = self.site.database.clock().at(Instant::now()) else { return Ok(PAUSE_AFTER_ERROR) };
        self.follow_nudges(now).await?;
        let owned: Vec<ShardId> = self.site.held.claimable().into_keys().collect();
        if owned.is_empty() {
            self.horizon.reset();
            self.tell_overdue(Duration::ZERO);
            return Ok(LONGEST_SLEEP);
        }
        let has_room = self.site.held.heap_len() <= self.heap_entries / 2;
        if let Some(window) = self.horizon.next(now, has_room) {
            if window.pass != Pass::Repair {
                self.site.held.reopen();
            }
            let keys = self.read(&owned, window.after, window.until, now).await?;
            if window.pass != Pass::Ahead {
                self.tell_overdue(overdue(&keys, now));
            }
            let mut found = found(&keys);
            found.complete_until = earlier(found.complete_until, self.site.held.complete_until());
            let ended = self.site.database.clock().at(Instant::now()).unwrap_or(now);
            self.horizon.note(window, found, now, ended);
        }
        let now = self.site.database.clock().at(Instant::now()).unwrap_or(now);
        Ok(self.horizon.ask_again_at(now).since(now).clamp(Duration::from_millis(5), LONGEST_SLEEP))
    }

    /// New shards: first what their owner before left claimed, then everything up to the horizon.
    async fn take_over(&mut self) -> Result<(), Error> {
        let adopted = self.site.held.take_adopted();
        if adopted.is_empty() {
            return Ok(());
        }
        let taken = async {
            self.site.database.ping().await?;
            let left = self.site.database.task_takeover(&adopted, KEYS_PER_SHARD).await?;
            let now = self.site.database.clock().at(Instant::now()).unwrap_or(UnixMicros::new(0));
            if !left.is_empty() {
                tracing::info!(database = %self.site.name(), tasks = left.len(), "publishing again what the owner before left claimed");
            }
            self.site.held.offer(left.into_iter().map(|id| Entry { wake_at: now, id, kind: WakeKind::Rescue }));
            let shards: Vec<ShardId> = adopted.keys().copied().collect();
            let keys = self.read(&shards, None, now.plus(self.reach.horizon), now).await?;
            Ok((shards.len(), found(&keys)))
        };
        match taken.await {
            Ok((shards, found)) => {
                tracing::debug!(database = %self.site.name(), shards, "adopted shards are loaded");
                if found.complete_until.is_some() {
                    // More than one read takes: the next pass reads on from the beginning.
                    self.horizon.reset();
                }
                Ok(())
            }
            Err(error) => {
                self.site.held.put_back_adopted(adopted.into_keys());
                Err(error)
            }
        }
    }

    async fn follow_nudges(&mut self, now: UnixMicros) -> Result<(), Error> {
        let nudged: Vec<ShardId> = self.site.held.take_nudged().into_iter().collect();
        if nudged.is_empty() {
            return Ok(());
        }
        let window =
            Window { pass: Pass::Repair, after: Some(now.minus(NUDGE_LOOK_BACK)), until: now.plus(self.reach.horizon) };
        self.read(&nudged, window.after, window.until, now).await.map(|_| ())
    }

    async fn read(
        &self,
        shards: &[ShardId],
        after: Option<UnixMicros>,
        until: UnixMicros,
        now: UnixMicros,
    ) -> Result<Vec<Key>, Error> {
        let from = after.unwrap_or(UnixMicros::new(0));
        let keys = self.site.database.task_preload(shards, from, until, KEYS_PER_SHARD).await?;
        let owned = self.site.held.claimable();
        self.site.held.offer(keys.iter().filter_map(|key| {
            let epoch = *owned.get(&key.id.shard())?;
            let older = key.claim_epoch.is_none_or(|claimed| claimed < epoch);
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
        self.metrics.overdue_s.with_label_values(&[self.site.name().as_str()]).set(by.as_secs_f64());
    }
}

/// How far behind the oldest claimable task is. Only what waits for its moment counts: deadlines and rescues have their
/// own times.
fn overdue(keys: &[Key], now: UnixMicros) -> Duration {
    let claimable = keys.iter().filter(|key| key.state == TaskState::Scheduled);
    claimable.map(|key| key.wake_at).min().map_or(Duration::ZERO, |oldest| now.since(oldest))
}

/// A shard that filled its part may have more: nothing is complete past its last key.
fn found(keys: &[Key]) -> Found {
    let mut found = Found { earliest: keys.iter().map(|key| key.wake_at).min(), complete_until: None };
    let most = usize::try_from(KEYS_PER_SHARD).expect("a small number");
    let mut counts: std::collections::BTreeMap<ShardId, (usize, UnixMicros)> = std::collections::BTreeMap::new();
    for key in keys {
        let count = counts.entry(key.id.shard()).or_insert((0, key.wake_at));
        count.0 += 1;
        count.1 = count.1.max(key.wake_at);
    }
    for (count, last) in counts.into_values() {
        if count >= most {
            found.complete_until = earlier(found.complete_until, Some(last));
        }
    }
    found
}

fn earlier(a: Option<UnixMicros>, b: Option<UnixMicros>) -> Option<UnixMicros> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
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
