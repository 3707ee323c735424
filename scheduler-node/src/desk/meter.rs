//! The used part of each limit, as far as this node knows: a meter for each limited queue, and one for the
//! queues of each limited token. Tokens with the same queues share a meter.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    access::Scope,
    ids::QueueName,
    limit::{Bucket, CountCoverage, LimitDecision, PendingLimits, Usage, UsageCounter},
};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use super::Desk;
use crate::{
    store::{Database, Error, usage::UsageWalk},
    supervise::spawn_child,
};

/// Beyond this number, meters that no submission has used for [`IDLE`] are dropped.
const METERS: usize = 1_024;
const IDLE: Duration = Duration::from_secs(60);

/// The most counts at a time on this node: they must leave connections to everything else.
const COUNTS: usize = 2;

/// The subject of a meter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum MeteredSubject {
    Queue(QueueName),
    Scope(Scope),
}

pub(super) struct Meters {
    meters: Mutex<HashMap<MeteredSubject, Arc<Meter>>>,
    counts: Arc<Semaphore>,
}

pub(super) struct Meter {
    subject: MeteredSubject,
    state: Mutex<State>,
    /// Notified at the end of each count.
    ended: watch::Sender<()>,
}

struct State {
    tally: UsageCounter,
    submits: Bucket,
    last_used: Instant,
}

impl Default for Meters {
    fn default() -> Self {
        Self { meters: Mutex::default(), counts: Arc::new(Semaphore::new(COUNTS)) }
    }
}

impl Meters {
    pub(super) fn of(&self, subject: MeteredSubject, now: Instant) -> Arc<Meter> {
        let mut meters = self.meters.lock();
        if meters.len() >= METERS && !meters.contains_key(&subject) {
            // A meter in use counts tasks on their way into the database.
            let is_idle = |meter: &Arc<Meter>| {
                Arc::strong_count(meter) == 1 && now.saturating_duration_since(meter.state.lock().last_used) >= IDLE
            };
            meters.retain(|_, meter| !is_idle(meter));
        }
        let meter = meters.entry(subject.clone()).or_insert_with(|| Arc::new(Meter::new(subject, now)));
        meter.state.lock().last_used = now;
        Arc::clone(meter)
    }
}

impl Meter {
    fn new(subject: MeteredSubject, now: Instant) -> Self {
        let state = State { tally: UsageCounter::default(), submits: Bucket::default(), last_used: now };
        Self { subject, state: Mutex::new(state), ended: watch::Sender::new(()) }
    }

    /// Calls [`UsageCounter::admit`] on this meter's tally.
    pub(super) fn admit(&self, most: PendingLimits, more: Usage, now: Instant, last: bool) -> LimitDecision {
        self.state.lock().tally.admit(most, more, now, last)
    }

    pub(super) fn withdraw(&self, taken: Usage) {
        self.state.lock().tally.withdraw(taken);
    }

    pub(super) fn force(&self, more: Usage) {
        self.state.lock().tally.force(more);
    }

    /// Whether the rate limit admits one more submission.
    pub(super) fn may_submit(&self, per_second: u32, now: Instant) -> bool {
        self.state.lock().submits.take(per_second, now)
    }

    /// Counts the tasks, unless a count is under way. The receiver changes when the count ends. The count goes
    /// on when its first caller has gone, because others wait for it too.
    pub(super) fn count(self: &Arc<Self>, desk: &Desk, most: PendingLimits) -> watch::Receiver<()> {
        let ended = self.ended.subscribe();
        let mut state = self.state.lock();
        if !state.tally.is_counting() {
            state.tally.count_begins(Instant::now());
            let (desk, count) = (desk.clone(), RunningCount { meter: Arc::clone(self), counted: None });
            spawn_child(async move { count.run(&desk, most).await });
        }
        ended
    }
}

/// A count under way. Its waiters are woken however it ends.
struct RunningCount {
    meter: Arc<Meter>,
    /// The result; `None` after a failure.
    counted: Option<(Usage, CountCoverage)>,
}

impl RunningCount {
    async fn run(mut self, desk: &Desk, most: PendingLimits) {
        let Ok(_permit) = Arc::clone(&desk.meters().counts).acquire_owned().await else { return };
        // The wait for the permit is no cost of counting.
        self.meter.state.lock().tally.count_begins(Instant::now());
        match counted(desk, &self.meter.subject, most).await {
            Ok(counted) => self.counted = Some(counted),
            Err(error) => tracing::debug!(
                subject = ?self.meter.subject, error = &error as &dyn std::error::Error, "the tasks of a limit cannot be counted"
            ),
        }
    }
}

impl Drop for RunningCount {
    fn drop(&mut self) {
        let mut state = self.meter.state.lock();
        match self.counted {
            Some((usage, extent)) => state.tally.counted(usage, extent, Instant::now()),
            None => state.tally.count_failed(Instant::now()),
        }
        drop(state);
        self.meter.ended.send_replace(());
    }
}

/// Counts in every database. Each count stops when it alone exceeds `most`.
async fn counted(desk: &Desk, subject: &MeteredSubject, most: PendingLimits) -> Result<(Usage, CountCoverage), Error> {
    let queues: Vec<QueueName> = match subject {
        MeteredSubject::Queue(queue) => vec![queue.clone()],
        MeteredSubject::Scope(scope) => {
            let book = desk.parts().books.load_full();
            book.iter().map(|queue| &queue.name).filter(|name| scope.has(name)).cloned().collect()
        }
    };
    let parts = desk.parts().store.databases().iter().map(|database| counted_in(database, &queues, most));
    let counted = futures::future::try_join_all(parts).await?;
    let usage = counted.iter().fold(Usage::default(), |sum, (usage, _)| sum.plus(*usage));
    let whole = counted.iter().all(|(_, whole)| *whole);
    Ok((usage, CountCoverage { whole, bytes: most.bytes.is_some() }))
}

async fn counted_in(database: &Database, queues: &[QueueName], most: PendingLimits) -> Result<(Usage, bool), Error> {
    let mut walk = UsageWalk::new(queues, most.bytes.is_some());
    while !walk.is_over() && most.exceeded(walk.usage, Usage::default()).is_none() {
        database.queue_usage(&mut walk).await?;
    }
    Ok((walk.usage, walk.is_over()))
}

/// Tasks that were admitted and are not answered yet. Once dropped, they count as stored until the next count.
#[derive(Default)]
#[must_use]
pub(crate) struct Admission(Vec<(Arc<Meter>, Usage)>);

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(meter, usage)| (&meter.subject, usage))).finish()
    }
}

impl Admission {
    /// Adds room that the meter has already taken.
    pub(super) fn add(&mut self, meter: &Arc<Meter>, taken: Usage) {
        match self.0.iter_mut().find(|(of, _)| Arc::ptr_eq(of, meter)) {
            Some((_, sum)) => *sum = sum.plus(taken),
            None => self.0.push((Arc::clone(meter), taken)),
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        for (meter, taken) in &self.0 {
            meter.state.lock().tally.answered(*taken);
        }
    }
}
