//! Takes what is due out of the heap, claims it, and hands it to the publisher; sends deadlines and rescues their way.
//!
//! Claims a few milliseconds ahead, so that the database's round trip does not show in the lateness; the publisher waits for the due
//! instant. Claims nothing while the broker is away or blocked, or while too much is in flight already. If it
//! stops, nothing of this database is dispatched by this node.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    delay::heap::{Entry, WakeKind},
    ids::{Epoch, QueueName, ShardId, TaskId},
    task::Delivery,
    time::UnixMicros,
};
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    lanes::Lanes,
    publisher::{self, Dispatch},
    queue_reader::Books,
    reporter::Reporter,
    site::{LOOK_AGAIN, Site},
};
use crate::{
    broker::BrokerState,
    metrics::Metrics,
    store::{Effect, Error, claim::Claimed},
};

/// Claims of one database under way: enough to hide a slow round trip, few enough to keep their order.
const CLAIMS_IN_FLIGHT: usize = 4;

/// Keys whose claim certainly did nothing are tried again after this long.
const TRY_AGAIN: Duration = Duration::from_millis(250);

/// How often lanes are looked at for tasks that waited for room.
const READY_EVERY: Duration = Duration::from_millis(100);

/// How often the queues with tasks waiting for room are read afresh: finds what an owner before held back.
const READY_QUEUES_EVERY: Duration = Duration::from_secs(5);

/// The longest sleep: a clock that had no reading yet is asked again.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long before the due instant a task may be claimed.
    pub claim_ahead: Duration,
    /// The most tasks of one claim.
    pub batch: usize,
    /// The most tasks in flight.
    pub window: usize,
}

#[derive(Clone, Debug)]
pub struct Dispatcher {
    pub site: Site,
    /// Where the site stands among all of them.
    pub index: usize,
    pub pace: Pace,
    pub lanes: Arc<Lanes>,
    pub books: Books,
    pub broker: watch::Receiver<BrokerState>,
    pub publisher: mpsc::Sender<Dispatch>,
    pub reporter: Reporter,
    pub metrics: Arc<Metrics>,
    /// Queues that have tasks waiting for room, as far as is known.
    pub waiting: Arc<Mutex<BTreeSet<QueueName>>>,
}

impl Dispatcher {
    pub async fn run(mut self, stop: CancellationToken) {
        let claims = Arc::new(Semaphore::new(CLAIMS_IN_FLIGHT));
        let mut children = JoinSet::new();
        let mut ready_at = Instant::now();
        let mut ready_queues_at = Instant::now();
        while !stop.is_cancelled() {
            while children.try_join_next().is_some() {}
            let held = Arc::clone(&self.site.held);
            let changed = held.heap_changed.notified();
            if !self.broker.borrow_and_update().takes_messages() {
                tokio::select! {
                    answer = self.broker.changed() => if answer.is_err() { return },
                    () = stop.cancelled() => break,
                }
                continue;
            }
            let now = Instant::now();
            if now >= ready_queues_at {
                ready_queues_at = now + READY_QUEUES_EVERY;
                self.read_waiting().await;
            }
            if now >= ready_at {
                ready_at = now + READY_EVERY;
                self.claim_waiting(&claims, &mut children).await;
            }
            if let Some(batch) = self.take() {
                let permit = Arc::clone(&claims).acquire_owned().await.expect("the semaphore is never closed");
                let this = self.clone();
                children.spawn(async move {
                    this.wake(batch).await;
                    drop(permit);
                });
                // What comes due within half the claim-ahead goes out together; the other half is for the round trip.
                tokio::time::sleep(self.pace.claim_ahead / 2).await;
                continue;
            }
            tokio::select! {
                () = changed => {}
                () = self.lanes.opened.notified() => ready_at = Instant::now(),
                () = tokio::time::sleep_until(self.sleep_until(ready_at).into()) => {}
                answer = self.broker.changed() => if answer.is_err() { return },
                () = stop.cancelled() => break,
            }
        }
        while children.join_next().await.is_some() {}
    }

    fn sleep_until(&self, ready_at: Instant) -> Instant {
        let longest = Instant::now() + LONGEST_SLEEP;
        let full = self.site.held.in_flight() >= self.pace.window;
        let head = self.site.held.next_due().filter(|_| !full);
        let head = head
            .and_then(|due| self.site.database.clock().instant_of(due))
            .map(|due| due.checked_sub(self.pace.claim_ahead).unwrap_or(due));
        let ready = if self.waiting.lock().is_empty() { longest } else { ready_at };
        head.unwrap_or(longest).min(ready).min(longest)
    }

    fn take(&self) -> Option<Vec<Entry>> {
        let room = self.pace.window.saturating_sub(self.site.held.in_flight()).min(self.pace.batch);
        let now = self.site.database.clock().at(Instant::now())?;
        if room == 0 {
            return None;
        }
        let batch = self.site.held.take_due(now.plus(self.pace.claim_ahead), room);
        (!batch.is_empty()).then_some(batch)
    }

    /// Each kind its own way. Whatever is not handed on is in flight no longer.
    async fn wake(&self, batch: Vec<Entry>) {
        let mut claims = Vec::new();
        let mut deadlines = Vec::new();
        let mut rescues = Vec::new();
        for entry in batch {
            match entry.kind {
                WakeKind::Claim => claims.push(entry.id),
                WakeKind::Deadline => deadlines.push((entry.id, entry.wake_at)),
                WakeKind::Rescue => rescues.push(entry.id),
            }
        }
        tokio::join!(self.claim(claims), self.rescue(rescues), self.deadlines(deadlines));
    }

    async fn claim(&self, ids: Vec<TaskId>) {
        if ids.is_empty() {
            return;
        }
        self.metrics.claim_batch.observe(ids.len() as f64);
        let fences = self.fences(&ids);
        let closed = self.lanes.not_claimed(&self.books.load(), Instant::now());
        let answer = self.site.database.task_claim(&ids, &fences, self.pace.claim_ahead, &closed).await;
        if let Some(claimed) = self.received("due", ids, &fences, answer).await {
            self.hand_over(claimed).await;
        }
    }

    async fn rescue(&self, ids: Vec<TaskId>) {
        if ids.is_empty() {
            return;
        }
        let fences = self.fences(&ids);
        let answer = self.site.database.task_rescue(&ids, &fences).await;
        if let Some(claimed) = self.received("rescue", ids, &fences, answer).await {
            self.hand_over(claimed).await;
        }
    }

    /// Those that came due are settled; a deadline that had been moved wakes again when the preloader finds it.
    async fn deadlines(&self, due: Vec<(TaskId, UnixMicros)>) {
        if due.is_empty() {
            return;
        }
        let until = due.iter().map(|(_, wake_at)| *wake_at).max().unwrap_or(UnixMicros::LAST);
        if let Some(instant) = self.site.database.clock().instant_of(until) {
            tokio::time::sleep_until(instant.into()).await;
        }
        let ids: Vec<TaskId> = due.into_iter().map(|(id, _)| id).collect();
        if let Err(error) = self.reporter.deadlines(self.index, &ids).await {
            self.unknown(&ids, "deadlines were not settled", &error);
            return;
        }
        self.site.held.end(ids);
    }

    /// Lanes that are open again, or whose queue was resumed: takes what waited for room.
    async fn claim_waiting(&self, claims: &Arc<Semaphore>, children: &mut JoinSet<()>) {
        let waiting: Vec<QueueName> = self.waiting.lock().iter().cloned().collect();
        let book = self.books.load();
        for queue in waiting {
            let room = self.pace.window.saturating_sub(self.site.held.in_flight()).min(self.pace.batch);
            if room == 0 {
                return;
            }
            if book.get(&queue).paused {
                continue;
            }
            let most = match self.lanes.is_open(&queue, Instant::now()) {
                true => room,
                false if self.lanes.may_probe(&queue, Instant::now()) => 1,
                false => continue,
            };
            let permit = Arc::clone(claims).acquire_owned().await.expect("the semaphore is never closed");
            let this = self.clone();
            children.spawn(async move {
                this.claim_ready(queue, most).await;
                drop(permit);
            });
        }
    }

    async fn claim_ready(&self, queue: QueueName, room: usize) {
        let fences = self.site.held.claimable();
        let most = i64::try_from(room).unwrap_or(i64::MAX);
        let answer = self.site.database.task_claim_ready(&queue, &fences, most).await;
        let Some(claimed) = self.received("ready", Vec::new(), &fences, answer).await else { return };
        if claimed.deliveries.is_empty() {
            self.waiting.lock().remove(&queue);
        }
        self.hand_over(claimed).await;
    }

    async fn read_waiting(&self) {
        match self.site.database.ready_queues().await {
            Ok(queues) => self.waiting.lock().extend(queues),
            Err(error) => {
                tracing::debug!(database = %self.site.name(), error = &error as &dyn std::error::Error, "could not read which queues wait for room")
            }
        }
    }

    fn fences(&self, ids: &[TaskId]) -> BTreeMap<ShardId, Epoch> {
        let owned = self.site.held.owned();
        let shards: BTreeSet<ShardId> = ids.iter().map(|id| id.shard()).collect();
        shards.into_iter().filter_map(|shard| Some((shard, *owned.get(&shard)?))).collect()
    }

    /// Takes note of an answer of the gate: fences that were refused, tasks that did not come back. What nobody knows the fate
    /// of is left to a rescue.
    async fn received(
        &self,
        how: &str,
        asked: Vec<TaskId>,
        fences: &BTreeMap<ShardId, Epoch>,
        answer: Result<Claimed, Error>,
    ) -> Option<Claimed> {
        let claimed = match answer {
            Ok(claimed) => claimed,
            Err(error) if error.effect == Effect::None => {
                self.put_back(how, &asked, &error);
                return None;
            }
            Err(error) => {
                self.unknown(&asked, "a claim has no known outcome", &error);
                return None;
            }
        };
        if claimed.refused {
            self.refused(fences).await;
        }
        self.metrics.claimed.with_label_values(&[how]).inc_by(claimed.deliveries.len() as u64);
        let came: BTreeSet<TaskId> = claimed.deliveries.iter().map(|delivery| delivery.id).collect();
        self.site.held.begin(came.iter().copied());
        self.site.held.end(asked.into_iter().filter(|id| !came.contains(id)));
        if !claimed.held_back.is_empty() {
            self.metrics.held_back.inc_by(claimed.held_back.len() as u64);
            self.waiting.lock().extend(claimed.held_back.iter().map(|(_, queue)| queue.clone()));
        }
        Some(claimed)
    }

    /// The claim certainly did nothing: the same keys again, a little later.
    fn put_back(&self, how: &str, asked: &[TaskId], error: &Error) {
        tracing::debug!(database = %self.site.name(), tasks = asked.len(), how, error = error as &dyn std::error::Error, "a claim was not done; trying again");
        let kind = if how == "due" { WakeKind::Claim } else { WakeKind::Rescue };
        self.site.held.end(asked.iter().copied());
        let Some(now) = self.site.database.clock().at(Instant::now()) else { return };
        let at = now.plus(TRY_AGAIN);
        self.site.held.offer(asked.iter().map(|id| Entry { wake_at: at, id: *id, kind }));
    }

    fn unknown(&self, ids: &[TaskId], what: &'static str, error: &Error) {
        tracing::warn!(database = %self.site.name(), tasks = ids.len(), error = error as &dyn std::error::Error, "{what}");
        self.site.look_again(ids.iter().copied(), LOOK_AGAIN);
    }

    /// Somebody else has taken the fence of at least one of these shards: finds out which, and lets go of it.
    async fn refused(&self, fences: &BTreeMap<ShardId, Epoch>) {
        let Ok(held) = self.site.database.shard_held(fences).await else { return };
        for (shard, epoch) in fences.iter().filter(|(shard, _)| !held.contains(shard)) {
            self.metrics.fence_refusals.inc();
            if self.site.held.forget_epoch(*shard, *epoch) {
                tracing::info!(database = %self.site.name(), %shard, %epoch, "the fence refused a claim: the shard is another's now");
            }
        }
    }

    async fn hand_over(&self, claimed: Claimed) {
        fail::fail_point!("after_claim", |_| std::process::abort());
        let claimed_at = Instant::now();
        let dispatches = claimed.deliveries.into_iter().map(|delivery| {
            let publish_at = self.publish_at(&delivery, claimed_at);
            Dispatch { site: self.index, delivery, publish_at, claimed_at }
        });
        publisher::hand_over(&self.publisher, dispatches).await;
    }

    /// Never before the due time on the database's clock.
    fn publish_at(&self, delivery: &Delivery, now: Instant) -> Instant {
        self.site.database.clock().instant_of(delivery.due_at).unwrap_or(now)
    }
}
