//! The used part of each limit, as far as this node knows: a meter for each limited queue, and one for the
//! queues of each limited token. Tokens with the same queues share a meter.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    access::Scope,
    delay::LowWater,
    ids::QueueName,
    limit::{Bucket, CountCoverage, LimitDecision, PendingLimits, Usage, UsageCounter},
    time::UnixMicros,
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
    /// Where counts begin. `None` until one has found the oldest task: a count that began later might miss most tasks.
    low_water: Option<LowWater>,
}

impl State {
    /// Records what a count has found that began at `began`, and in the queues at `from`. `time` is that of the
    /// databases.
    fn note(&mut self, found: &Result<Found, Error>, from: Option<UnixMicros>, time: UnixMicros, began: Instant) {
        if let Ok(found) = found
            && !found.knows_oldest
        {
            return;
        }
        let now = Instant::now();
        let took = now.saturating_duration_since(began);
        match (found, from, &mut self.low_water) {
            (Ok(found), None, low_water) => low_water.get_or_insert_default().note(found.oldest, time, took, now),
            (Ok(found), Some(_), Some(low_water)) => low_water.note_from_mark(found.oldest, time),
            (Err(error), None, Some(low_water)) if error.is_out_of_time() => low_water.ran_out_of_time(time, took, now),
            _ => {}
        }
    }
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
        let state =
            State { tally: UsageCounter::default(), submits: Bucket::default(), last_used: now, low_water: None };
        Self { subject, state: Mutex::new(state), ended: watch::Sender::new(()) }
    }

    /// Calls [`UsageCounter::admit`] on this meter's tally.
    pub(super) fn admit(&self, most: PendingLimits, more: Usage, now: Instant, last: bool) -> LimitDecision {
        self.state.lock().tally.admit(most, more, now, last)
    }

    pub(super) fn withdraw(&self, taken: Usage) {
        self.state.lock().tally.withdraw(taken);
    }

    /// Whether the rate limit admits one more submission.
    pub(super) fn may_submit(&self, per_second: u32, now: Instant) -> bool {
        self.state.lock().submits.take(per_second, now)
    }

    fn give_back_submit(&self) {
        self.state.lock().submits.give_back();
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
        let (from, mut found) = self.count_once(desk, most).await;
        let has_mark = self.meter.state.lock().low_water.is_some();
        if from.is_none() && has_mark && found.as_ref().is_err_and(Error::is_out_of_time) {
            // An old transaction makes a count of all slow, and not one from the oldest task on.
            (_, found) = self.count_once(desk, most).await;
        }
        match found {
            Ok(Found { usage, extent, .. }) => self.counted = Some((usage, extent)),
            Err(error) => tracing::debug!(
                subject = ?self.meter.subject, error = &error as &dyn std::error::Error, "the tasks of a limit cannot be counted"
            ),
        }
    }

    /// Counts the tasks that are due from a moment on. `None`: all tasks.
    async fn count_once(&self, desk: &Desk, most: PendingLimits) -> (Option<UnixMicros>, Result<Found, Error>) {
        let began = Instant::now();
        let from = {
            let mut state = self.meter.state.lock();
            // The wait for the permit is no cost of counting.
            state.tally.count_begins(began);
            state.low_water.and_then(|low_water| low_water.from(began))
        };
        let found = counted(desk, &self.meter.subject, most, from.unwrap_or(UnixMicros::FIRST)).await;
        let time = desk.now();
        self.meter.state.lock().note(&found, from, time, began);
        (from, found)
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

/// What a count has found.
struct Found {
    usage: Usage,
    extent: CountCoverage,
    /// The earliest due time. `None`: there is no task.
    oldest: Option<UnixMicros>,
    /// A count that stopped early may not have come to the queue with the oldest task.
    knows_oldest: bool,
}

/// Counts the tasks that are due from `from` on in every database. Each count stops when it alone exceeds `most`.
async fn counted(desk: &Desk, subject: &MeteredSubject, most: PendingLimits, from: UnixMicros) -> Result<Found, Error> {
    let queues: Vec<QueueName> = match subject {
        MeteredSubject::Queue(queue) => vec![queue.clone()],
        MeteredSubject::Scope(scope) => {
            let book = desk.parts().books.load_full();
            book.iter().map(|queue| &queue.name).filter(|name| scope.has(name)).cloned().collect()
        }
    };
    let parts = desk.parts().store.databases().iter().map(|database| counted_in(database, &queues, most, from));
    let walks = futures::future::try_join_all(parts).await?;
    let usage = walks.iter().fold(Usage::default(), |sum, walk| sum.plus(walk.usage));
    let whole = walks.iter().all(UsageWalk::is_over);
    // The tasks of one queue are counted in the order of their due times.
    let knows_oldest = whole || queues.len() == 1;
    let oldest = walks.iter().filter_map(|walk| walk.oldest).min();
    Ok(Found { usage, extent: CountCoverage { whole, bytes: most.bytes.is_some() }, oldest, knows_oldest })
}

async fn counted_in<'a>(
    database: &Database,
    queues: &'a [QueueName],
    most: PendingLimits,
    from: UnixMicros,
) -> Result<UsageWalk<'a>, Error> {
    let mut walk = UsageWalk::begin_at(from, queues, most.bytes.is_some());
    while !walk.is_over() && most.exceeded(walk.usage, Usage::default()).is_none() {
        database.queue_usage(&mut walk).await?;
    }
    Ok(walk)
}

/// What tasks have taken that were admitted and are not answered yet. Once dropped, they count as stored until the next
/// count.
#[derive(Default)]
#[must_use]
pub(crate) struct Admission {
    /// The room that each task has taken, with the index of the task in its request.
    rooms: Vec<(usize, Arc<Meter>, Usage)>,
    /// The tasks that a rate has let pass.
    submits: Vec<(usize, Arc<Meter>)>,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.rooms.iter().map(|(place, meter, room)| (place, &meter.subject, room))).finish()
    }
}

impl Admission {
    /// Adds room that the task at `place` has already taken from the meter.
    pub(super) fn add(&mut self, place: usize, meter: &Arc<Meter>, taken: Usage) {
        self.rooms.push((place, Arc::clone(meter), taken));
    }

    /// Adds the task at `place`, which the meter's rate has let pass.
    pub(super) fn add_submit(&mut self, place: usize, meter: &Arc<Meter>) {
        self.submits.push((place, Arc::clone(meter)));
    }

    /// Gives room back that the tasks at `places` have taken together and do not need. `places` ascend.
    pub(super) fn give_back(&mut self, places: &[usize], meter: &Arc<Meter>, spare: Usage) {
        let mut left = spare;
        for (place, of, room) in &mut self.rooms {
            if Arc::ptr_eq(of, meter) && places.binary_search(place).is_ok() {
                let part = Usage { tasks: left.tasks.min(room.tasks), bytes: left.bytes.min(room.bytes) };
                (*room, left) = (room.minus(part), left.minus(part));
            }
        }
        meter.withdraw(spare.minus(left));
    }

    /// Gives back all that the tasks at `places` have taken: they are not stored. `places` ascend.
    pub(super) fn give_up(&mut self, places: &[usize]) {
        let is_one = |place: usize| places.binary_search(&place).is_ok();
        for (_, meter, room) in self.rooms.extract_if(.., |(place, _, _)| is_one(*place)) {
            meter.withdraw(room);
        }
        for (_, meter) in self.submits.extract_if(.., |(place, _)| is_one(*place)) {
            meter.give_back_submit();
        }
    }

    /// The same for tasks that are part of a request, with `places` for their indices.
    pub(super) fn at(mut self, places: &[usize]) -> Self {
        for (place, ..) in &mut self.rooms {
            *place = places[*place];
        }
        for (place, _) in &mut self.submits {
            *place = places[*place];
        }
        self
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        for (_, meter, room) in &self.rooms {
            meter.state.lock().tally.answered(*room);
        }
    }
}

#[cfg(test)]
mod tests {
    use common::limit::Excess;

    use super::*;

    const ONE: Usage = Usage { tasks: 1, bytes: 0 };

    /// A meter that has counted no task.
    fn meter() -> Arc<Meter> {
        let now = Instant::now();
        let meter = Meter::new(MeteredSubject::Queue(QueueName::new("mail")), now);
        let mut state = meter.state.lock();
        state.tally.count_begins(now);
        // As if it had just ended, however slow the machine is.
        state.tally.counted(Usage::default(), CountCoverage { whole: true, bytes: true }, now + IDLE);
        drop(state);
        Arc::new(meter)
    }

    /// Admits tasks at these places until one finds no room. Returns the number of those that do.
    fn fill(admission: &mut Admission, meter: &Arc<Meter>, places: std::ops::Range<usize>) -> usize {
        let most = PendingLimits { tasks: Some(4), bytes: None };
        let mut admitted = 0;
        for place in places {
            match meter.admit(most, ONE, Instant::now(), true) {
                LimitDecision::Fits => admission.add(place, meter, ONE),
                LimitDecision::Exceeds(Excess { most: 4, used: 4, .. }) => break,
                decision => panic!("{decision:?}"),
            }
            admitted += 1;
        }
        admitted
    }

    #[test]
    fn tasks_that_are_not_stored_give_their_room_back_and_no_others_do() {
        let (meter, mut admission) = (meter(), Admission::default());
        assert_eq!(fill(&mut admission, &meter, 0..9), 4);
        admission.give_up(&[1, 3]);
        let mut again = Admission::default();
        assert_eq!(fill(&mut again, &meter, 0..9), 2, "two have come in again");
        let mut again = again.at(&[1, 3]);
        again.give_up(&[3]);
        assert_eq!(fill(&mut again, &meter, 9..19), 1, "the one that was handed back once more");
        drop((admission, again));
        assert_eq!(fill(&mut Admission::default(), &meter, 0..1), 0, "what is answered counts as stored");
    }

    #[test]
    fn spare_room_is_given_back_once() {
        let (meter, mut admission) = (meter(), Admission::default());
        assert_eq!(fill(&mut admission, &meter, 0..9), 4);
        admission.give_back(&[0, 2], &meter, ONE);
        admission.give_up(&[0, 2]);
        assert_eq!(fill(&mut admission, &meter, 4..9), 2);
    }

    #[test]
    fn a_task_that_is_not_stored_does_not_count_towards_the_rate() {
        let (meter, mut admission, now) = (meter(), Admission::default(), Instant::now());
        for place in 0..2 {
            assert!(meter.may_submit(2, now));
            admission.add_submit(place, &meter);
        }
        assert!(!meter.may_submit(2, now));
        admission.give_up(&[1]);
        assert!(meter.may_submit(2, now) && !meter.may_submit(2, now));
    }
}
