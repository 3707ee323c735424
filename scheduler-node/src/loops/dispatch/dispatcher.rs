//! Takes due keys out of the heap, claims their tasks, and hands those to the publisher. Deadlines, rescues and
//! looks at waiting tasks go their own ways.
//!
//! It claims ahead of the due time, by more than claims lately took, which hides the database's round trip from the
//! lateness; the publisher waits for the due instant. It claims nothing while the broker is away or blocked, or
//! while too much is in flight, and nothing overdue while many messages wait to be sent. Tasks that wait for room
//! belong to the ready starter. If it stops, nothing of this database comes due on this node.

mod ahead;
mod batch;
mod size;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    delay::{
        ClaimSize, Lead,
        heap::{Entry, WakeKind},
        turn::Reach,
    },
    ids::TaskId,
    time::UnixMicros,
};
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use self::batch::Batch;
use super::claims::ClaimHandler;
use crate::{
    broker::{Broker, BrokerState},
    clock,
    loops::{
        outcome::{
            releaser::LOOKED_AT_ONCE,
            reporter::{Left, Reporter},
        },
        upkeep::queue_reader::{Books, until_read},
    },
    store::{Database, Error, Statements, StoreOp},
    supervise::at_work,
    working_set::{database::LOOK_AGAIN, lanes::Lanes, set_aside::Kind},
};

/// Claims of one database under way: enough to hide a slow round trip, few enough to keep their order.
const CLAIMS_IN_FLIGHT: usize = 4;

/// A claim of a crowd holds so many of these places while the database is slow. Two such claims keep it busy: one is on
/// its way while the other runs.
const PLACES_OF_A_SLOW_CLAIM: u32 = 2;

/// Parts of a crowd's deadlines and rescues under way that hold no place of a claim. They share the connections of the
/// claims.
const OTHERS_IN_FLIGHT: usize = 1;

/// Statements that look at waiting tasks under way. They share the connections of the claims and must leave most of
/// them.
const LOOKS_IN_FLIGHT: usize = 2;

/// The pause before looks are tried again that found [`LOOKS_IN_FLIGHT`] others under way. Most take some
/// milliseconds.
const LOOK_LATER: Duration = Duration::from_millis(100);

/// Asks of one database under way how many reports are left after an outage: one answer tells all.
const ASKS_IN_FLIGHT: usize = 1;

/// The pause of deadlines that wait for that answer. It mostly takes some milliseconds, but after an outage deadlines
/// have waited for long, and a pause that is shorter would take many of them through the heap again and again.
const ASK_LATER: Duration = Duration::from_secs(1);

/// How long a look at waiting tasks begins statements. Eight of them run out of their five seconds meanwhile, which is
/// enough for [`LOOKED_AT_ONCE`] tasks to become a single one. The last ends before the look counts as stalled.
const LOOK_WITHIN: Duration = Duration::from_secs(40);

/// The time between two claims, if the second is urgent. Tasks that come due at once meanwhile share one.
const BETWEEN_CLAIMS: Duration = Duration::from_millis(10);

/// A wait that a batch of deadlines sleeps through. They leave the heap a little early, so one that was put back would
/// leave it again at once.
const SOON: Duration = Duration::from_millis(500);

/// The longest wait for the moments of deadlines, which hold a place meanwhile. They leave the heap some milliseconds
/// early. If more is left, the database's clock was set back, and may be corrected at any time.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The longest sleep, after which the loop asks again for a clock that had no reading yet. The loop shows as
/// often that the process runs.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The most tasks in one claim.
    pub batch: usize,
    /// The most tasks in flight.
    pub window: usize,
}

/// What the loop does next.
#[derive(Debug)]
enum Turn {
    Wake(Batch),
    SleepUntil(Instant),
}

#[derive(Clone, Debug)]
pub struct Dispatcher<S = Arc<Database>> {
    pub claims: ClaimHandler<S>,
    pub pace: Pace,
    /// Decides how long before the due instant tasks are claimed.
    pub lead: Arc<Mutex<Lead>>,
    /// Decides how many tasks a claim of a crowd takes, and how many any claim or rescue.
    pub size: Arc<Mutex<ClaimSize>>,
    pub lanes: Arc<Lanes>,
    pub books: Books,
    pub broker: watch::Receiver<BrokerState>,
    /// Sounded out before deadlines end attempts. `None`: the broker's state tells all, as in the simulation.
    pub sounded: Option<Broker>,
    pub reporter: Reporter<S>,
}

impl<S: Statements> Dispatcher<S> {
    pub async fn run(mut self, stop: CancellationToken) {
        let claims = Arc::new(Semaphore::new(CLAIMS_IN_FLIGHT));
        let others = Arc::new(Semaphore::new(OTHERS_IN_FLIGHT));
        let looks = Arc::new(Semaphore::new(LOOKS_IN_FLIGHT));
        let asks = Arc::new(Semaphore::new(ASKS_IN_FLIGHT));
        let mut children = JoinSet::new();
        self.until_book(&stop).await;
        while !stop.is_cancelled() {
            while children.try_join_next().is_some() {}
            let owned_shards = Arc::clone(&self.claims.database.owned_shards);
            let changed = owned_shards.heap_changed.notified();
            if !self.broker.borrow_and_update().takes_messages() {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    answer = self.broker.changed() => if answer.is_err() { return },
                }
                self.claims.database.hearing.lock().begin_again(clock::instant());
                continue;
            }
            // A long wait for a claim counts as a stop, too: such a database is hardly there to write reports.
            self.claims.database.hearing.lock().runs(clock::instant());
            match self.turn() {
                Turn::Wake(mut batch) => {
                    // Looks that were put back must not make the loop spin.
                    let is_full = self.begin_looks(&mut batch, &looks, &mut children) && batch.is_full;
                    self.begin_ask(&mut batch, &asks, &mut children);
                    self.begin_others(&mut batch, &others, &mut children);
                    if batch.entries.is_empty() {
                        tokio::time::sleep(BETWEEN_CLAIMS).await;
                        continue;
                    }
                    self.begin_claims(batch, &claims, &mut children, &stop).await;
                    if !is_full {
                        let stride = self.lead.lock().stride(clock::instant());
                        tokio::time::sleep(BETWEEN_CLAIMS.min(stride)).await;
                    }
                }
                Turn::SleepUntil(wake_at) => tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    answer = self.broker.changed() => if answer.is_err() { return },
                    () = changed => {}
                    () = tokio::time::sleep_until(wake_at.into()) => {}
                },
            }
        }
        while children.join_next().await.is_some() {}
    }

    /// Hands out a batch in parts, each of which claims its tasks, and waits for a place before. What may not be
    /// claimed by then goes back into the heap: a drain waits for all that is in flight.
    async fn begin_claims(
        &self,
        batch: Batch,
        places: &Arc<Semaphore>,
        children: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) {
        let ahead = batch.ahead;
        let mut parts = batch.into_parts(self.most());
        while let Some((_, holds)) = parts.front() {
            let held = stop.run_until_cancelled(Arc::clone(places).acquire_many_owned(*holds)).await;
            let may_claim = !stop.is_cancelled() && self.broker.borrow().takes_messages();
            let Some(held) = held.filter(|_| may_claim) else {
                return self.claims.database.owned_shards.give_back(parts.into_iter().flat_map(|(part, _)| part));
            };
            let held = held.expect("the semaphore is never closed");
            self.give_back_stopped(&mut parts);
            let Some((entries, _)) = parts.pop_front() else { return };
            let (this, work) = (self.clone(), at_work());
            children.spawn(async move {
                this.wake(entries, ahead).await;
                drop((work, held));
            });
        }
    }

    /// Gives back the entries of shards that may no longer be claimed from, and drops parts without others. A part
    /// holds no more places than those before it.
    fn give_back_stopped(&self, parts: &mut VecDeque<(Vec<Entry>, u32)>) {
        let owned_shards = &self.claims.database.owned_shards;
        let claimable = owned_shards.claimable_shards();
        let is_stopped = |entry: &mut Entry| claimable.binary_search(&entry.id.shard()).is_err();
        let stopped: Vec<Entry> = parts.iter_mut().flat_map(|(part, _)| part.extract_if(.., is_stopped)).collect();
        if !stopped.is_empty() {
            owned_shards.give_back(stopped);
            parts.retain(|(part, _)| !part.is_empty());
        }
    }

    /// Claims must wait for the book: it treats a missing queue as one without gates. Its database may answer long
    /// after this one, and reports are not read before.
    async fn until_book(&self, stop: &CancellationToken) {
        if self.books.load().is_read() {
            return;
        }
        stop.run_until_cancelled(until_read(&self.books)).await;
        self.claims.database.hearing.lock().begin_again(clock::instant());
    }

    fn turn(&self) -> Turn {
        let now = clock::instant();
        let longest = now + LONGEST_SLEEP;
        let at = self.claims.database.sql.clock().at(now).filter(|_| self.room(1).most > 0);
        let Some(at) = at else { return Turn::SleepUntil(longest) };
        let ahead = self.ahead(at);
        // A crowd leaves in several claims together, which then have few shards each.
        let (each, at_once, places) = if ahead.is_crowd { self.of_a_crowd() } else { (self.most(), 1, 1) };
        let most = each * at_once;
        let room = self.room(most);
        let begins = ahead.first_claim.is_some_and(|due| due <= at.plus(ahead.begin()));
        let claims = if begins { ahead.claims } else { Duration::ZERO };
        let overdue_wait = self.lanes.backlog.delays_claims(now);
        let reach = Reach {
            now: at,
            until: at.plus(ahead.others),
            claims_until: at.plus(claims),
            is_crowd: ahead.is_crowd,
            overdue_wait,
        };
        let entries = self.claims.database.owned_shards.take_due(reach, room);
        if !entries.is_empty() {
            // Less than a claim's tasks leave a pause to more, also where the window has no room for all of these.
            let is_full = entries.len() >= room.overdue.max(each);
            return Turn::Wake(Batch { entries, ahead: ahead.claims, is_full, each, places });
        }
        if room.overdue == 0 || overdue_wait {
            // The head waits, but a task behind it may come due any moment.
            return Turn::SleepUntil(now + BETWEEN_CLAIMS);
        }
        Turn::SleepUntil(self.next_look(now, &ahead).min(longest))
    }

    /// Wakes each kind of entry in its own way. Entries that are not handed on are no longer in flight.
    async fn wake(&self, entries: Vec<Entry>, ahead: Duration) {
        let mut claims = Vec::new();
        let mut deadlines = Vec::new();
        let mut rescues = Vec::new();
        for entry in entries {
            match entry.kind {
                WakeKind::Claim => claims.push(entry.id),
                WakeKind::Deadline => deadlines.push((entry.id, entry.wake_at)),
                WakeKind::Rescue => rescues.push(entry.id),
                WakeKind::Look => {} // begin_looks has taken them
            }
        }
        tokio::join!(self.claim(claims, ahead), self.rescue(rescues), self.deadlines(deadlines));
    }

    /// Takes deadlines and rescues out of a crowd, as far as they have places of their own. Deadlines wait for their
    /// moments, and would keep a place from its claims. Those that are left hold one beside the claims.
    fn begin_others(&self, batch: &mut Batch, places: &Arc<Semaphore>, children: &mut JoinSet<()>) {
        while batch.is_divided()
            && let Ok(place) = Arc::clone(places).try_acquire_owned()
        {
            let others = batch.take_others(self.most());
            if others.is_empty() {
                return;
            }
            let (this, ahead, work) = (self.clone(), batch.ahead, at_work());
            children.spawn(async move {
                this.wake(others, ahead).await;
                drop((work, place));
            });
        }
    }

    /// Takes the looks at waiting tasks out of a batch. A look may take seconds, so it holds no place of a claim. Looks
    /// without a place go back into the heap. Returns whether all have begun.
    fn begin_looks(&self, batch: &mut Batch, places: &Arc<Semaphore>, children: &mut JoinSet<()>) -> bool {
        let looks: Vec<Entry> = batch.entries.extract_if(.., |entry| entry.kind == WakeKind::Look).collect();
        let mut have_all_begun = true;
        for part in looks.chunks(LOOKED_AT_ONCE) {
            let ids: Vec<TaskId> = part.iter().map(|entry| entry.id).collect();
            if let Ok(place) = Arc::clone(places).try_acquire_owned() {
                let (this, work) = (self.clone(), at_work());
                children.spawn(async move {
                    this.look(ids).await;
                    drop((work, place));
                });
            } else {
                self.claims.later(&ids, WakeKind::Look, LOOK_LATER);
                have_all_begun = false;
            }
        }
        have_all_begun
    }

    /// While RabbitMQ has yet to tell how many reports are left after an outage, takes the deadlines out of a batch and
    /// asks it. An answer may take seconds, so an ask holds no place of a claim. The deadlines go back into the heap.
    fn begin_ask(&self, batch: &mut Batch, places: &Arc<Semaphore>, children: &mut JoinSet<()>) {
        let Some(broker) = &self.sounded else { return };
        if !self.must_ask() || !self.hears_first().is_zero() {
            return;
        }
        let deadlines = batch.entries.extract_if(.., |entry| entry.kind == WakeKind::Deadline);
        let ids: Vec<TaskId> = deadlines.map(|entry| entry.id).collect();
        if ids.is_empty() {
            return;
        }
        if let Ok(place) = Arc::clone(places).try_acquire_owned() {
            let (this, broker, work) = (self.clone(), broker.clone(), at_work());
            children.spawn(async move {
                if broker.takes_messages().await {
                    this.count_what_waits(&broker).await;
                }
                drop((work, place));
            });
        }
        self.claims.later(&ids, WakeKind::Deadline, ASK_LATER);
    }

    async fn claim(&self, mut ids: Vec<TaskId>, ahead: Duration) {
        if ids.is_empty() {
            return;
        }
        self.claims.metrics.claim_batch.observe(ids.len() as f64);
        let (database, claim_part) = (&self.claims.database, |part| self.claim_part(part, ahead));
        let (_, tried) =
            database.suspects.try_each(StoreOp::TaskClaim, &mut ids, |id| *id, claim_part, Clone::clone).await;
        database.set_aside(Kind::Claim, tried.refused).await;
        for (part, error) in tried.left {
            self.claims.failed(WakeKind::Claim, part, ahead, &error);
        }
    }

    /// Returns the tasks whose rows the claim has written.
    async fn claim_part(&self, ids: &[TaskId], ahead: Duration) -> Result<Vec<TaskId>, Error> {
        let fences = self.claims.fences(ids);
        let book = self.books.load_full();
        let closed = self.lanes.not_claimed(&book, clock::instant());
        let began = clock::instant();
        let answer = self.claims.database.sql.task_claim(ids, &fences, ahead, &closed, book.revision()).await;
        let ended = clock::instant();
        let took = ended.saturating_duration_since(began);
        self.lead.lock().took(took, ended);
        self.size.lock().took(ids.len(), took, ended);
        self.claims.note_end(&mut self.size.lock().part, self.pace.batch, ids.len(), began, answer.as_ref());
        let answer = answer?;
        let written = answer.written();
        self.claims.received("due", ids, &fences, ahead, answer).await;
        Ok(written)
    }

    async fn rescue(&self, mut ids: Vec<TaskId>) {
        let (database, rescue_part) = (&self.claims.database, |part| self.rescue_part(part));
        let (_, tried) =
            database.suspects.try_each(StoreOp::TaskRescue, &mut ids, |id| *id, rescue_part, Clone::clone).await;
        database.set_aside(Kind::Rescue, tried.refused).await;
        for (part, error) in tried.left {
            self.claims.failed(WakeKind::Rescue, part, Duration::ZERO, &error);
        }
    }

    /// Returns the tasks whose rows the rescue has written.
    async fn rescue_part(&self, ids: &[TaskId]) -> Result<Vec<TaskId>, Error> {
        let fences = self.claims.fences(ids);
        let began = clock::instant();
        let answer = self.claims.database.sql.task_rescue(ids, &fences).await;
        self.claims.note_end(&mut self.size.lock().part, self.pace.batch, ids.len(), began, answer.as_ref());
        let answer = answer?;
        let written = answer.written();
        self.claims.received("rescue", ids, &fences, Duration::ZERO, answer).await;
        Ok(written)
    }

    /// Looks at waiting tasks. Those that wait no longer are claimed like any other; the preloader wakes the rest
    /// again.
    async fn look(&self, mut ids: Vec<TaskId>) {
        let (database, end) = (&self.claims.database, clock::instant() + LOOK_WITHIN);
        let (released, failed) = self.reporter.releaser.look(database, &ids, end).await;
        let Some(error) = failed else { return database.owned_shards.end(ids) };
        let released: BTreeSet<TaskId> = released.into_iter().map(|task| task.id).collect();
        ids.retain(|id| !released.contains(id));
        database.owned_shards.end(released);
        self.claims.unknown(&ids, "could not check waiting tasks", &error);
    }

    /// Settles tasks whose deadlines have passed. The preloader wakes a task whose deadline was moved.
    async fn deadlines(&self, due: Vec<(TaskId, UnixMicros)>) {
        if due.is_empty() {
            return;
        }
        let mut ids: Vec<TaskId> = due.iter().map(|(id, _)| *id).collect();
        if let Err(wait) = self.until_passed(&due).await {
            return self.claims.later(&ids, WakeKind::Deadline, wait);
        }
        let Left { passed, failed } = self.reporter.deadlines(self.claims.index, &mut ids).await;
        let (failed, error) = failed.map_or_else(Default::default, |(failed, error)| (failed, Some(error)));
        if let Some(error) = error {
            self.claims.unknown(&failed, "could not settle deadlines", &error);
        }
        self.claims.later(&passed, WakeKind::Deadline, LOOK_AGAIN);
        ids.retain(|id| !failed.contains(id) && !passed.contains(id));
        self.claims.database.owned_shards.end(ids);
    }

    /// Waits until these deadlines have passed. An error says for how long they must not end attempts: after an outage
    /// the reports that came meanwhile are read first. A broker that takes no messages takes no reports either, and a
    /// node that publishes nothing may not have heard of it.
    async fn until_passed(&self, due: &[(TaskId, UnixMicros)]) -> Result<(), Duration> {
        let wait = self.hears_first();
        if wait > SOON {
            return Err(wait);
        }
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        if let Some(broker) = &self.sounded
            && !broker.takes_messages().await
        {
            return Err(LOOK_AGAIN);
        }
        let until = due.iter().map(|(_, wake_at)| *wake_at).max().unwrap_or(UnixMicros::LAST);
        if let Some(instant) = self.claims.database.sql.clock().instant_of(until) {
            let wait = instant.saturating_duration_since(clock::instant());
            if wait > LONGEST_WAIT {
                return Err(wait);
            }
            tokio::time::sleep_until(instant.into()).await;
        }
        // The process may have been stopped in one of these waits, and continue here before the loop does.
        let wait = self.hears_first();
        if !wait.is_zero() {
            return Err(wait);
        }
        if self.must_ask() { Err(ASK_LATER) } else { Ok(()) }
    }

    /// Whether RabbitMQ has yet to tell how many reports are left after an outage.
    fn must_ask(&self) -> bool {
        self.sounded.is_some() && self.claims.database.hearing.lock().must_ask()
    }

    /// Learns after an outage whether many reports are still to be read. A broker that does not tell may have many.
    async fn count_what_waits(&self, broker: &Broker) {
        let (database, now) = (&self.claims.database, clock::instant());
        let (are_many, asked_at) = broker.has_many_reports().await.unwrap_or((true, now));
        let (begins, gives_up) = {
            let mut hearing = database.hearing.lock();
            let had_many = hearing.has_many();
            let gives_up = hearing.told(are_many, asked_at, clock::instant());
            (!had_many && hearing.has_many(), gives_up)
        };
        if begins {
            tracing::info!(database = %database.name(), "many reports wait at RabbitMQ after an outage, or it does not tell; deadlines wait for them");
        }
        if gives_up {
            tracing::warn!(database = %database.name(), "many reports still wait at RabbitMQ long after an outage; deadlines no longer wait for them");
        }
    }

    /// How long reports come before deadlines.
    fn hears_first(&self) -> Duration {
        if seeded!(DeafDeadline) {
            return Duration::ZERO;
        }
        let now = clock::instant();
        let mut hearing = self.claims.database.hearing.lock();
        hearing.runs(now);
        hearing.wait(now)
    }
}

#[cfg(test)]
mod tests;
