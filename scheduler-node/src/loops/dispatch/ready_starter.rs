//! Starts tasks that wait for room, as their queue's lane, order, limit and rate allow. Priorities and partition
//! keys take turns.
//!
//! It looks at a queue when tasks of it became `ready` and when one of its tasks has an outcome. It also looks when
//! a permit of the queue's rate is due, and at intervals. At most one look at a queue is under way. Tasks that
//! count together live on one shard, which the fence gives to one owner. A new owner's first look follows its
//! acquire, which waited for the last claim of the owner before. If it stops, `ready` tasks of this database stay
//! so on this node's shards.

mod doubt;
mod failing;
mod floor;
mod gains;
mod progress;
mod reads;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    delay::PartSize,
    ids::{Epoch, QueueName, ShardId},
    priority::{LEVELS, Levels, shares},
    queue::{Placement, Queue, QueuePolicy},
    task::{Delivery, rate::Bucket},
    time::UnixMicros,
};
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

pub use self::progress::QueueProgress;

use self::{doubt::Doubt, reads::Reads};
use super::{
    claims::{ClaimHandler, TRY_AGAIN},
    dispatcher::Pace,
};
use crate::{
    broker::BrokerState,
    clock, dice,
    loops::upkeep::queue_reader::Books,
    store::{
        Database, Effect, Error, Fault, Places, Statements, StoreOp,
        claim::Claimed,
        lane::{Pick, STARTED_AHEAD, STARTED_FAR_AHEAD, Walks},
    },
    supervise::at_work,
    working_set::{lanes::Lanes, ready_queues::LOOKS_IN_FLIGHT, set_aside::Kind},
};

/// The interval between two checks of a queue whose lane is closed. A check needs no statement.
const CLOSED_EVERY: Duration = Duration::from_millis(100);

/// The interval between two checks of a paused queue. There may be thousands of them.
const PAUSED_EVERY: Duration = Duration::from_millis(500);

/// The interval between two checks while the node's window is full, and the time for each queue that has looks where
/// they are many. Beside an old transaction all queues may have them (reads.rs): they keep some distance when room
/// appears.
const FULL_EVERY: Duration = Duration::from_millis(20);
const FULL_APART: Duration = Duration::from_millis(1);

/// The interval between two looks at a queue that could start nothing, unless a notification of room comes earlier.
const BLOCKED_EVERY: Duration = Duration::from_millis(500);

/// So long before a task is due that became `ready` too early, its queue is looked at: half of
/// [`STARTED_AHEAD`]. A queue of which a look started some tasks is looked at again after that
/// time, since the next may come due by then.
const LOOKED_AT_AHEAD: Duration = Duration::from_millis(50);

/// The pause before the next look at a queue whose newest policy this node does not know yet: the queue reader is
/// reading it.
const TURNED_EVERY: Duration = Duration::from_millis(5);

/// The longest rest of a queue after a look that ran out of time.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// The longest sleep.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct ReadyStarter<S = Arc<Database>> {
    pub claims: ClaimHandler<S>,
    pub pace: Pace,
    pub lanes: Arc<Lanes>,
    pub books: Books,
    pub broker: watch::Receiver<BrokerState>,
    pub places: Places,
    pub progress: Arc<Mutex<HashMap<QueueName, QueueProgress>>>,
}

impl<S: Statements> ReadyStarter<S> {
    pub async fn run(mut self, stop: CancellationToken) {
        let looks = Arc::new(Semaphore::new(LOOKS_IN_FLIGHT));
        let mut children = JoinSet::new();
        let mut openings = self.lanes.openings();
        let mut reads = Reads::new(clock::instant());
        let (mut claimable, mut owned, mut known) = (Arc::<[ShardId]>::default(), BTreeMap::new(), 0);
        while !stop.is_cancelled() {
            while children.try_join_next().is_some() {}
            let ready_queues = Arc::clone(&self.claims.database.ready_queues);
            let sooner = ready_queues.sooner.notified();
            let is_open = self.broker.borrow_and_update().takes_messages() && self.books.load().is_read();
            let now = clock::instant();
            if is_open {
                self.forget_deleted(&mut known);
                if self.has_moved(&mut claimable) {
                    self.follow_gains(&mut owned);
                    reads.ask(now);
                }
                self.begin_read(&mut reads, now);
                while let Some((queue, is_news)) = ready_queues.begin(now) {
                    let permit = Arc::clone(&looks).acquire_owned().await.expect("the semaphore is never closed");
                    let (this, work) = (self.clone(), at_work());
                    children.spawn(async move {
                        let began = clock::instant();
                        let again = this.look(&queue, is_news).await;
                        let took = clock::instant().saturating_duration_since(began);
                        this.claims.database.ready_queues.end(&queue, again, took);
                        drop((work, permit));
                    });
                }
            }
            let next = ready_queues.next_look().filter(|_| is_open).unwrap_or(now + LONGEST_SLEEP);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                answer = self.broker.changed() => if answer.is_err() { return },
                Ok(()) = openings.changed() => ready_queues.room_in_all(clock::instant()),
                Some(read) = reads.ended() => self.end_read(&mut reads, read),
                () = sooner, if is_open => {}
                () = tokio::time::sleep_until(next.min(now + LONGEST_SLEEP).into()) => {}
            }
        }
        drop(reads);
        while children.join_next().await.is_some() {}
    }

    /// Whether this node may claim from other shards than before, or under other epochs.
    fn has_moved(&self, claimable: &mut Arc<[ShardId]>) -> bool {
        let before = std::mem::replace(claimable, self.claims.database.owned_shards.claimable_shards());
        !Arc::ptr_eq(&before, claimable)
    }

    /// Forgets the progress of queues that the book no longer has, when it differs from the one of revision `known`. A
    /// pick with an unknown outcome is kept until it is over.
    fn forget_deleted(&self, known: &mut i64) {
        let book = self.books.load();
        if std::mem::replace(known, book.revision()) != book.revision() {
            self.progress.lock().retain(|queue, progress| progress.doubt.is_some() || book.find(queue).is_some());
        }
    }

    /// Starts tasks of one queue as far as its gates allow. Returns when to look again; `None` when no task of it
    /// waits here. `is_news`: lanes that walks passed may have tasks to start by now.
    async fn look(&self, queue: &QueueName, is_news: bool) -> Option<Instant> {
        let book = self.books.load_full();
        let queue = book.get(queue);
        let mut progress = self.progress.lock().get(&queue.name).cloned().unwrap_or_default();
        let had_bucket = progress.bucket.is_some();
        if is_news {
            progress.rounds = Default::default();
        }
        let again = self.look_with(&queue, book.revision(), &mut progress).await;
        if again.is_none() && queue.policy.rate_per_second.is_none() {
            self.progress.lock().remove(&queue.name);
        } else {
            self.remember(&queue.name, progress, had_bucket);
        }
        again
    }

    /// Looks with a copy of the queue's progress, and returns as [`Self::look`] does. `known`: the revision of the
    /// queues that the policy is from.
    async fn look_with(&self, queue: &Queue, known: i64, progress: &mut QueueProgress) -> Option<Instant> {
        let now = clock::instant();
        if let Some(again) = self.end_doubt(progress, now).await {
            return Some(again);
        }
        let most = match self.most(queue, progress, now) {
            Ok(most) => most,
            Err(again) => return Some(again),
        };
        let fences = self.claims.database.owned_shards.claimable();
        let looked = self.start(queue, known, &fences, progress, most).await;
        self.note_look(&queue.name, &mut progress.failing, looked.as_ref().err());
        match looked {
            Ok(LookResult::Nothing) => None,
            Ok(LookResult::Started) => Some(self.permit_at(&queue.policy, progress).unwrap_or(now)),
            Ok(LookResult::Blocked { within }) => Some(self.blocked_until(progress, within)),
            Ok(LookResult::Turned) => Some(clock::instant() + TURNED_EVERY),
            Err(error) => Some(try_again_at(&error, now)),
        }
    }

    /// Remembers a queue after a look. A bucket that a gain of shards emptied during the look stays empty.
    fn remember(&self, queue: &QueueName, mut progress: QueueProgress, had_bucket: bool) {
        let mut all = self.progress.lock();
        if had_bucket && all.get(queue).is_none_or(|now| now.bucket.is_none()) {
            progress.bucket = None;
        }
        all.insert(queue.clone(), progress);
    }

    /// Ends the rest of a queue after a pick with an unknown outcome. Returns when to ask again; `None`: it is over.
    async fn end_doubt(&self, progress: &mut QueueProgress, now: Instant) -> Option<Instant> {
        let doubt = progress.doubt.as_ref()?;
        if now < doubt.over_at {
            return Some(doubt.over_at);
        }
        if let Err(error) = self.wake_started(doubt).await {
            tracing::debug!(database = %self.claims.database.name(), error = &error as &dyn std::error::Error, "could not look for tasks that a lost pick has started");
            if !matches!(error.fault(), Fault::Data | Fault::Bug) {
                return Some(try_again_at(&error, now));
            }
            // The same read would fail again, and the queue would rest for ever. The tasks' own rescues are left.
        }
        progress.doubt = None;
        None
    }

    /// The most tasks that may be started now, as far as memory knows; otherwise when to ask again.
    fn most(&self, queue: &Queue, progress: &mut QueueProgress, now: Instant) -> Result<usize, Instant> {
        let most = progress.size.most(self.pace.batch);
        let room = self.pace.window.saturating_sub(self.claims.database.owned_shards.in_flight()).min(most);
        if queue.paused {
            // A paused queue is not tried, so its old failures must not keep other queues out of the log.
            progress.failing = Default::default();
            return Err(now + PAUSED_EVERY);
        }
        if room == 0 {
            let queues = u32::try_from(self.claims.database.ready_queues.known()).unwrap_or(u32::MAX);
            return Err(now + FULL_APART.saturating_mul(queues).clamp(FULL_EVERY, BLOCKED_EVERY));
        }
        let Some(rate) = self.rate(&queue.policy) else { return self.through_lane(&queue.name, room, now) };
        let permits = progress.bucket.get_or_insert_with(|| Bucket::empty(now)).permits(rate, now);
        if permits == 0 {
            return Err(self.permit_at(&queue.policy, progress).unwrap_or(now + LONGEST_SLEEP));
        }
        self.through_lane(&queue.name, room.min(permits), now)
    }

    /// An open lane takes all; a closed one takes one probe now and then, to find out whether it is open again.
    fn through_lane(&self, queue: &QueueName, room: usize, now: Instant) -> Result<usize, Instant> {
        match self.lanes.is_open(queue, now) {
            true => Ok(room),
            false if self.lanes.may_probe(queue, now) => Ok(1),
            false => Err(now + CLOSED_EVERY),
        }
    }

    /// This node's part of the queue's rate: all of it if one shard has all the tasks.
    fn rate(&self, policy: &QueuePolicy) -> Option<f64> {
        let part = match policy.placement {
            Placement::Single => 1.0,
            Placement::Spread => {
                let owned = self.claims.database.owned_shards.claimable_shards().len();
                owned as f64 / f64::from(self.places.shard_count().unwrap_or(u16::MAX))
            }
        };
        policy.rate_per_second.map(|rate| rate * part).filter(|rate| *rate > 0.0)
    }

    fn permit_at(&self, policy: &QueuePolicy, progress: &QueueProgress) -> Option<Instant> {
        Some(progress.bucket.as_ref()?.ask_again_at(self.rate(policy)?, LONGEST_SLEEP))
    }

    /// When to look again at a queue of which the rest cannot be started now.
    fn blocked_until(&self, progress: &QueueProgress, within: Duration) -> Instant {
        let (now, clock) = (clock::instant(), self.claims.database.sql.clock());
        let comes_due = progress.comes_due.and_then(|due| clock.instant_of(due)?.checked_sub(LOOKED_AT_AHEAD));
        comes_due.unwrap_or(now + within).clamp(now, now + within)
    }

    /// Reads how many tasks wait and how many are out, decides the share of each priority, and starts them. Room
    /// that one priority cannot use goes to the others.
    async fn start(
        &self,
        queue: &Queue,
        known: i64,
        fences: &BTreeMap<ShardId, Epoch>,
        progress: &mut QueueProgress,
        most: usize,
    ) -> Result<LookResult, Error> {
        let limit = queue.policy.max_running;
        let shards: Vec<ShardId> = fences.keys().copied().collect();
        if shards.is_empty() {
            return Ok(LookResult::Nothing);
        }
        let (counts, from) = self.count(&queue.name, &shards, most, limit).await?;
        let mut ready = counts.ready;
        if ready == [0; LEVELS] {
            return Ok(LookResult::Nothing);
        }
        // The row lock of a fence is a write, so the pick presents only the fences of shards that may have tasks.
        let fences: BTreeMap<ShardId, Epoch> = fences
            .iter()
            .filter(|(shard, _)| counts.shards.contains(shard))
            .map(|(shard, epoch)| (*shard, *epoch))
            .collect();
        // A drain waits from here on: the count only reads, and may take seconds.
        let picking = self.claims.database.owned_shards.pick(&fences);
        if picking.fences.is_empty() {
            return Ok(LookResult::Blocked { within: BLOCKED_EVERY });
        }
        let below = limit.map_or(most, |limit| usize::try_from(limit).unwrap_or(0).saturating_sub(counts.out));
        let mut room = most.min(below);
        let mut walked = false;
        // A walk that goes on keeps what it has seen. Without room none goes on.
        progress.comes_due = progress.comes_due.filter(|_| room > 0 && progress.rounds.iter().any(Option::is_some));
        while room > 0 && ready != [0; LEVELS] {
            let wanted = shares(ready, room, queue.policy.priority_weights.as_deref(), dice::roll);
            let Some(taken) = self.pick(queue, (known, from), &picking.fences, progress, wanted).await? else {
                return Ok(LookResult::Turned);
            };
            walked = true;
            for level in 0..LEVELS {
                // The pick found fewer than wanted: the rest of this priority cannot be started now.
                ready[level] = if taken[level] < wanted[level] { 0 } else { ready[level].saturating_sub(taken[level]) };
            }
            room = room.saturating_sub(taken.iter().sum());
        }
        // Otherwise the remaining tasks wait for an outcome. A walk through more lanes than one pick sees goes on
        // where it ended.
        let started = most.min(below) - room;
        // Those that are too early are among the tasks that wait.
        let is_long = started > 0 && progress.comes_due.is_none() && counts.ready.iter().any(|ready| *ready >= most);
        let is_on_its_way = walked && room > 0 && progress.rounds.iter().any(Option::is_some);
        let is_more = is_on_its_way || (most <= below && (room == 0 || is_long));
        // A lane may have a task that comes due behind one that was due.
        let is_short = is_limited(&queue.policy) && started > 0 && room > 0;
        let within = if is_short { LOOKED_AT_AHEAD } else { BLOCKED_EVERY };
        Ok(if is_more { LookResult::Started } else { LookResult::Blocked { within } })
    }

    /// Makes one pick and hands its tasks to the publisher. Returns how many of each priority were started; `None`
    /// when the queue has turned.
    async fn pick(
        &self,
        queue: &Queue,
        (known, from): (i64, Option<UnixMicros>),
        fences: &BTreeMap<ShardId, Epoch>,
        progress: &mut QueueProgress,
        wanted: Levels,
    ) -> Result<Option<Levels>, Error> {
        let (ordered, counted) = (queue.policy.ordered, queue.policy.max_running.is_some());
        let aside = self.claims.database.owned_shards.aside();
        let pick = Pick {
            queue: &queue.name,
            fences,
            wanted,
            after: &progress.ends,
            ordered,
            counted,
            known,
            ahead: if is_limited(&queue.policy) { STARTED_AHEAD } else { STARTED_FAR_AHEAD },
            aside: &aside,
            only: None,
            from,
        };
        let sent = clock::instant();
        let sent_at = self.claims.database.sql.clock().at(sent);
        let (answers, error) = match self.claims.database.sql.task_pick(&pick).await {
            Err(error) if is_refusal(&error) => self.pick_apart(&pick, &mut progress.size).await?,
            answer => {
                let claimed = answer.as_ref().map(|(claimed, _)| claimed);
                self.claims.note_end(&mut progress.size, self.pace.batch, wanted.iter().sum(), sent, claimed);
                answer.map_or_else(|error| (Vec::new(), Some(error)), |answer| (vec![answer], None))
            }
        };
        let has_turned = answers.iter().any(|(claimed, _)| claimed.turned);
        let mut taken = [0; LEVELS];
        let mut last_walks = None;
        for (claimed, walks) in answers {
            count_levels(&claimed.deliveries, &mut taken);
            progress.took(claimed.deliveries.len());
            last_walks = Some(walks);
            self.claims.received("ready", &[], fences, Duration::ZERO, claimed).await;
        }
        if let Some(walks) = last_walks {
            progress.walked(walks, wanted, taken);
        }
        if let Some(error) = error {
            if error.effect == Effect::Unknown {
                progress.took(wanted.iter().sum());
                progress.doubt = Some(Doubt::of(sent, sent_at, fences.keys().copied()));
            }
            return Err(error);
        }
        Ok((!has_turned).then_some(taken))
    }

    /// Starts the neighbours of a row that the database refuses, and sets that row aside. Returns the started
    /// tasks, and the error that kept the rest from starting. Notes in `size` how each part ended.
    async fn pick_apart(
        &self,
        pick: &Pick<'_>,
        size: &mut PartSize,
    ) -> Result<(Vec<(Claimed, Walks)>, Option<Error>), Error> {
        let database = &self.claims.database.sql;
        let size = &Mutex::new(size);
        let mut ids = database.task_pick_candidates(pick).await?;
        let pick_part = |part| async move {
            let began = clock::instant();
            let answer = database.task_pick(&Pick { only: Some(part), ..pick.clone() }).await;
            let claimed = answer.as_ref().map(|(claimed, _)| claimed);
            self.claims.note_end(&mut size.lock(), self.pace.batch, part.len(), began, claimed);
            answer
        };
        let started = |(claimed, _): &(Claimed, Walks)| claimed.written();
        let suspects = &self.claims.database.suspects;
        let (_, tried) = suspects.try_each(StoreOp::TaskPick, &mut ids, |id| *id, pick_part, started).await;
        self.claims.database.set_aside(Kind::Claim, tried.refused).await;
        // An unknown outcome counts before all others: the queue rests until it is over.
        let error = tried.left.into_iter().map(|(_, error)| error).max_by_key(|error| error.effect == Effect::Unknown);
        Ok((tried.answers, error))
    }
}

/// When to look again after a look that began at `began` and failed. One that ran out of time would do so again, so its
/// queue rests for as long as that took. An outage asks for no rest: tasks go on as soon as it is over.
fn try_again_at(error: &Error, began: Instant) -> Instant {
    let now = clock::instant();
    let took = now.saturating_duration_since(began);
    now + if error.is_out_of_time() { took.clamp(TRY_AGAIN, LONGEST_REST) } else { TRY_AGAIN }
}

/// Whether a task that starts too early would use up a limit, or leave with others at one moment and exceed a rate.
fn is_limited(policy: &QueuePolicy) -> bool {
    policy.max_running.is_some() || policy.rate_per_second.is_some()
}

/// Whether the statement certainly did nothing, perhaps because of one of its rows.
fn is_refusal(error: &Error) -> bool {
    error.effect == Effect::None && error.may_blame_a_row()
}

fn count_levels(deliveries: &[Delivery], taken: &mut Levels) {
    for delivery in deliveries {
        if let Some(count) = usize::try_from(delivery.priority - 1).ok().and_then(|level| taken.get_mut(level)) {
            *count += 1;
        }
    }
}

/// The result of a look.
enum LookResult {
    /// No task waits here.
    Nothing,
    /// Tasks were started, and there may be more to start.
    Started,
    /// The tasks that still wait cannot be started now. The next look comes within that time.
    Blocked { within: Duration },
    /// The queue has a newer policy than this node knows.
    Turned,
}
