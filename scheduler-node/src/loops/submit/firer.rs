//! Makes the tasks of schedules, one for each fire time.
//!
//! One statement in the home database (`schedule_turns.sql`, or `schedule_turn.sql` for one schedule) *decides* fire
//! times. A compare-and-set moves each schedule on and notes the tasks to be made, with their ids. Then the tasks are
//! *made*: the submitter writes each by its key, in whichever database it lives, and the note is deleted. A fire time
//! is decided only once, whichever node looks. A decided task can be made as often as needed, because its id is known
//! for as long as the task is kept, finished or not.
//!
//! Every node looks. The master does so when a schedule is due, the others when it has been due for a while. So a
//! schedule fires although the master has died or etcd is away. If the loop stops everywhere, fire times are made
//! up later, as far back as each schedule says.

mod count;
mod decide;
mod last_tasks;
mod looks;
mod make;
mod overdue;
mod refusing;
mod takes;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{DatabaseIndex, ScheduleName, ShardId, TaskId},
    schedule::STAND_IN_AFTER,
    time::UnixMicros,
};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use self::{
    count::Corrections,
    last_tasks::LastTasks,
    looks::{Looks, Read},
    make::MADE_AT_ONCE,
    overdue::Overdue,
    refusing::{Refusing, TRIED_AT_ONCE},
    takes::Takes,
};
use super::submitter::Submitter;
use crate::{
    loops::{
        cluster::elector::Mastership,
        upkeep::{prober::NodeFitness, queue_reader::Books},
    },
    metrics::Metrics,
    store::{
        Database, Error, Fault, Store,
        schedules::{DueSchedule, DueSchedules, FireRecord, Revision, Unreadable},
    },
    supervise::at_work,
    working_set::{failures::Failures, set_aside::SetAside, suspects::Suspects},
};

/// A schedule that was written on any node is seen after this long: by a glance, or where none comes, by a look.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Any node takes on a decided fire time that has no task after this long. This is far longer than a healthy node
/// takes, and still before the fire time.
const HOLD: Duration = Duration::from_secs(2);

/// The back-off of a schedule that cannot be decided at the moment.
const POSTPONE: Duration = Duration::from_secs(1);

/// The back-off of a schedule that this version cannot read.
const POSTPONE_UNREADABLE: Duration = Duration::from_secs(60);

/// The back-off of a schedule whose decision the database refuses. Its neighbours are decided meanwhile.
const POSTPONE_REFUSED: Duration = Duration::from_secs(600);

/// The most schedules that this node leaves alone because it could not decide or postpone them. Beyond it, the first
/// of them are tried again, and further ones that it cannot decide are postponed for all nodes.
const LEFT_ALONE_MOST: usize = 1_000;

/// The most refused schedules that are remembered as kept. Beyond it all are forgotten, and some are kept twice.
const KEPT_MOST: usize = 10_000;

/// Schedules read in one look, and decided fire times taken on. Their payloads come with them: 6 MiB at the most.
const READ_AT_ONCE: i64 = 100;

/// Statements under way that decide or postpone schedules. More would use up the connections that due tasks need.
const STATEMENTS_AT_ONCE: usize = 4;

/// How long statements wait for no transaction that holds a schedule, after one has waited in vain (`lock_timeout`). A
/// look lasts as long as such a wait, and the other schedules wait for the next look. For as long, this node leaves the
/// schedules of that statement alone.
const NO_WAIT_FOR: Duration = Duration::from_secs(5);

/// What this version cannot read is news in the log again when none has come for this long. An unreadable schedule
/// comes each minute; a decided fire time goes round among the nodes.
const UNREADABLE_OVER_AFTER: Duration = Duration::from_secs(600);

/// How long a stop waits for a look. What a look has decided is then mostly made, and counted.
const STOP_WITHIN: Duration = Duration::from_secs(1);

/// The interval between two counts of the schedules; a count reads all of them.
const COUNT_EVERY: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Firer {
    store: Store,
    submitter: Submitter,
    books: Books,
    mastership: watch::Receiver<Mastership>,
    fitness: watch::Receiver<NodeFitness>,
    metrics: Arc<Metrics>,
    set_aside: SetAside,
    making: Arc<Semaphore>,
    /// Statements that decide or postpone.
    deciding: Arc<Semaphore>,
    /// When they may wait again for transactions that hold schedules, after a wait in vain.
    waits_again_at: Arc<Mutex<Option<Instant>>>,
    /// The decisions with an unknown outcome.
    unknown: Failures,
    /// The schedules that this version cannot read, and the decided fire times.
    unreadable_schedules: Failures,
    unreadable_fires: Failures,
    /// The schedules that this node could not decide or postpone, and the end of the back-off of each. A change of one
    /// ends it too.
    left_alone: Arc<Mutex<VecDeque<(Revision, Instant)>>>,
    /// The schedules whose decision the database refuses, and that are in the quarantine.
    kept: Arc<Mutex<BTreeSet<Revision>>>,
    last_tasks: LastTasks,
    looks: Arc<Mutex<Looks>>,
    overdue: Arc<Mutex<Overdue>>,
    takes: Arc<Mutex<Takes>>,
    /// The databases that answer and take no tasks.
    refusing: Arc<Mutex<Refusing>>,
    /// The decided fire times whose tasks fail alone as with a bug, by the database of the task.
    suspects: Arc<Mutex<BTreeMap<DatabaseIndex, Suspects>>>,
}

impl Firer {
    pub fn new(
        store: Store,
        submitter: Submitter,
        books: Books,
        mastership: watch::Receiver<Mastership>,
        fitness: watch::Receiver<NodeFitness>,
        metrics: Arc<Metrics>,
        set_aside: SetAside,
    ) -> Self {
        let [making, deciding] = [MADE_AT_ONCE, STATEMENTS_AT_ONCE].map(|most| Arc::new(Semaphore::new(most)));
        let (waits_again_at, unknown, left_alone, kept, last_tasks) = Default::default();
        let (looks, overdue, takes, refusing, suspects) = Default::default();
        Self {
            store,
            submitter,
            books,
            mastership,
            fitness,
            metrics,
            set_aside,
            making,
            deciding,
            waits_again_at,
            unknown,
            unreadable_schedules: Failures::over_after(UNREADABLE_OVER_AFTER),
            unreadable_fires: Failures::over_after(UNREADABLE_OVER_AFTER),
            left_alone,
            kept,
            last_tasks,
            looks,
            overdue,
            takes,
            refusing,
            suspects,
        }
    }

    pub async fn run(self, stop: CancellationToken) {
        let (mut is_logged, mut counted, mut corrections) = (false, None, Corrections::default());
        let mut glances = self.store.home().glances();
        loop {
            glances.mark_unchanged();
            if counted.is_none_or(|counted: Instant| counted.elapsed() > COUNT_EVERY) {
                if stop.run_until_cancelled(self.count(&mut corrections)).await.is_none() {
                    return;
                }
                counted = Some(Instant::now());
            }
            // A slow database may hold a look up for minutes. What is decided before it is cut off, any node makes.
            let cut_off = async {
                stop.cancelled().await;
                tokio::time::sleep(STOP_WITHIN).await;
            };
            let looked = tokio::select! {
                looked = self.look_if_fit() => looked,
                () = cut_off => return,
            };
            let pause = looked.unwrap_or_else(|error| {
                if !is_logged {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        error,
                        "could not read due schedules; retrying, missed fire times are made up later"
                    );
                }
                is_logged = true;
                None
            });
            is_logged = is_logged && pause.is_none();
            tokio::select! {
                () = tokio::time::sleep(pause.unwrap_or(LOOK_EVERY)) => {}
                Ok(()) = glances.changed(), if pause.is_some() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Looks if the home database is known to answer and the queues are read; otherwise returns `None`. A node that
    /// just starts would decide fire times that it cannot make yet. By the default policy it might take a last task for
    /// finished, or put a task on another shard than its queue's.
    pub(crate) async fn look_if_fit(&self) -> Result<Option<Duration>, Error> {
        let fit = self.fitness.borrow().is_fit(self.store.home().name());
        if !fit || !self.books.load().is_read() {
            return Ok(None);
        }
        match self.rests_for() {
            Some(rest) => Ok(Some(rest)),
            None => self.look().await.map(Some),
        }
    }

    /// The time until something is to be decided or made, as the last glance shows. `None`: there may be something now.
    fn rests_for(&self) -> Option<Duration> {
        let home = self.store.home();
        let (glance, now) = (home.glance()?, home.clock().at(Instant::now())?);
        let schedule = glance.schedule_wake_at.map(|wake_at| wake_at.plus(self.lag()));
        let rest = schedule.into_iter().chain(glance.fire_wake_at).min().map_or(LOOK_EVERY, |next| next.since(now));
        (!rest.is_zero()).then_some(rest.min(LOOK_EVERY))
    }

    /// How long this node leaves a due schedule to others.
    fn lag(&self) -> Duration {
        if self.is_master() { Duration::ZERO } else { STAND_IN_AFTER }
    }

    fn is_master(&self) -> bool {
        self.mastership.borrow().term.is_some()
    }

    /// Decides due schedules, and makes fire times that other nodes left. Returns when to look again.
    pub(crate) async fn look(&self) -> Result<Duration, Error> {
        let _work = at_work();
        let began = Instant::now();
        let looked = self.decide_due(&self.unknown_shards()).await;
        // What runs out of its time does so because of the schedules that it reads past.
        let answers = |error: &Error| error.is_out_of_time() || matches!(error.fault(), Fault::Data | Fault::Bug);
        let is_answered = looked.as_ref().err().is_none_or(answers);
        self.overdue.lock().looked(began, is_answered, Instant::now());
        if is_answered {
            // The look comes first: what a node can decide again, it decides. A database may have come back meanwhile.
            self.postpone_overdue().await;
        }
        looked
    }

    async fn decide_due(&self, unknown: &[ShardId]) -> Result<Duration, Error> {
        let lag = self.lag();
        let due = self.due(lag, unknown).await?;
        let (now, arrived, next_wake_at) = (due.now, due.arrived, due.next_wake_at);
        let revision = |schedule: &Result<DueSchedule, Unreadable>| match schedule {
            Ok(schedule) => schedule.record.revision,
            Err(unreadable) => unreadable.revision,
        };
        let found: Vec<Revision> = due.schedules.iter().map(revision).collect();
        let woken = self.decide_all(due).await;
        let (left, may_be_more_left) = self.take().await?;
        let is_making = self.make(left);
        let tried = self.take_to_try().await?;
        self.make(tried);
        let may_be_more_due = is_full(found.len(), READ_AT_ONCE);
        if may_be_more_due && self.finds_others_than(&found) || may_be_more_left && is_making {
            return Ok(Duration::ZERO);
        }
        if may_be_more_due {
            return Ok(LOOK_EVERY);
        }
        let wait = |wake_at: UnixMicros| wake_at.since(now.plus(arrived.elapsed())) + lag;
        Ok(next_wake_at.into_iter().chain(woken).min().map_or(LOOK_EVERY, wait).min(LOOK_EVERY))
    }

    /// Reads due schedules. `unknown`: the shards whose tasks this node cannot learn of.
    async fn due(&self, lag: Duration, unknown: &[ShardId]) -> Result<DueSchedules, Error> {
        let (home, began) = (self.store.home(), Instant::now());
        let from = self.looks.lock().from(!unknown.is_empty(), began);
        let due = home.schedule_due(lag, READ_AT_ONCE, &self.left_alone(), unknown, from).await;
        let read = match &due {
            Ok(due) => {
                due.first_wake_at.filter(|_| is_full(due.schedules.len(), READ_AT_ONCE)).map_or(Read::All, Read::Full)
            }
            Err(error) if error.is_out_of_time() => Read::OutOfTime,
            Err(_) => return due,
        };
        if let Some(began_at) = home.clock().at(began) {
            let took = began.elapsed();
            self.looks.lock().ended(from, read, began_at, took, began + took);
        }
        due
    }

    /// Takes decided fire times on that other nodes left, as many as there is room for, unless takes rest. Returns
    /// whether there may be more.
    async fn take(&self) -> Result<(Vec<FireRecord>, bool), Error> {
        let (most, began) = (self.room_for(READ_AT_ONCE), Instant::now());
        let passes_over = !self.fitness.borrow().unfit.is_empty() || !self.refusing.lock().is_empty();
        if most == 0 || !self.takes.lock().may_begin(passes_over, began) {
            return Ok((Vec::new(), false));
        }
        let taken = self.store.home().fire_take(HOLD, most, &self.shards_to_take()).await;
        let has_read_all = taken.as_ref().map_or_else(Error::is_out_of_time, |taken| !is_full(taken.len(), most));
        self.takes.lock().ended(passes_over, has_read_all, began.elapsed(), Instant::now());
        let taken = taken?;
        let may_be_more = is_full(taken.len(), most);
        Ok((taken.into_iter().filter_map(|fire| self.readable(fire)).collect(), may_be_more))
    }

    /// Takes a few fire times on of each database that takes no tasks, once it is time to try it again.
    async fn take_to_try(&self) -> Result<Vec<FireRecord>, Error> {
        let to_try = self.refusing.lock().due_for_a_try(Instant::now());
        let mut taken = Vec::new();
        for database in to_try {
            let (most, began) = (self.room_for(TRIED_AT_ONCE), Instant::now());
            let shards = self.fit_shards(|index| index == database);
            if most == 0 || shards.is_empty() {
                continue;
            }
            let found = self.store.home().fire_take(HOLD, most, &shards).await;
            self.refusing.lock().tried(database, began.elapsed(), Instant::now());
            taken.extend(found?.into_iter().filter_map(|fire| self.readable(fire)));
        }
        Ok(taken)
    }

    /// How many fire times to take on, at most `most`. What this node has no room for, another node may make.
    fn room_for(&self, most: i64) -> i64 {
        i64::try_from(self.making.available_permits()).map_or(most, |room| room.min(most))
    }

    /// Waits until a statement that decides or postpones may begin. It has ended when the permit is dropped. Code that
    /// holds a permit asks for no other.
    async fn statement(&self) -> SemaphorePermit<'_> {
        self.deciding.acquire().await.expect("it is never closed")
    }

    /// Has takes rest for a minute.
    #[cfg(test)]
    pub(crate) fn rest_from_takes(&self) {
        self.takes.lock().rest_until(Instant::now() + Duration::from_secs(60));
    }

    /// The database of a task, if the prober finds that it answers.
    fn fit(&self, id: TaskId) -> Option<&Arc<Database>> {
        self.store.of(id.shard()).filter(|database| self.fitness.borrow().is_fit(database.name()))
    }

    /// The shards whose databases answer, and are not known to take no tasks.
    fn shards_to_take(&self) -> Vec<ShardId> {
        let refusing = self.refusing.lock();
        self.fit_shards(|database| !refusing.has(database))
    }

    /// The shards of those wanted databases that answer, as the prober finds.
    fn fit_shards(&self, is_wanted: impl Fn(DatabaseIndex) -> bool) -> Vec<ShardId> {
        let (map, fitness) = (self.store.places().load(), self.fitness.borrow());
        let is_fit = |database: &Database| fitness.is_fit(database.name());
        let fit = self.store.databases().indexed().filter(|(index, database)| is_wanted(*index) && is_fit(database));
        fit.flat_map(|(index, _)| map.in_database(index)).collect()
    }

    /// Leaves schedules that this node cannot decide to the others for a while: they may reach another database, or be
    /// of a newer version. Those beyond what this node remembers are postponed for all nodes at once, by one statement,
    /// since they would stand in the way of each look. The others are after some seconds ([`Self::postpone_overdue`]).
    async fn leave_to_others(&self, schedules: &[(&ScheduleName, Revision)], later: Duration) {
        let room = LEFT_ALONE_MOST.saturating_sub(self.left_alone().len());
        let (remembered, others) = schedules.split_at(room.min(schedules.len()));
        for (_, revision) in remembered {
            self.leave_alone(*revision, later);
            self.overdue.lock().note(*revision, later);
        }
        if !others.is_empty() {
            self.postpone(others, later).await;
        }
    }

    /// Postpones the next look at schedules, on all nodes. Those that another transaction holds, and without the
    /// database all of them, this node alone leaves alone.
    async fn postpone(&self, schedules: &[(&ScheduleName, Revision)], later: Duration) {
        let _one = self.statement().await;
        let held = self.store.home().schedule_postpone(schedules, later).await;
        let left = held.unwrap_or_else(|_| schedules.iter().map(|(_, revision)| *revision).collect());
        for revision in left {
            self.leave_alone(revision, later);
        }
    }

    /// Acts as if this node had looked for some seconds, without a gap.
    #[cfg(test)]
    pub(crate) fn has_looked(&self) {
        self.overdue.lock().has_looked();
    }

    /// Acts as if this node had read a schedule and could not decide it.
    #[cfg(test)]
    pub(crate) fn note_undecided(&self, revision: Revision) {
        self.overdue.lock().note(revision, POSTPONE);
    }

    /// Keeps this node from looking at a schedule for a while, unless it changes.
    pub(crate) fn leave_alone(&self, revision: Revision, during: Duration) {
        let mut left_alone = self.left_alone.lock();
        left_alone.push_back((revision, Instant::now() + during));
        if left_alone.len() > LEFT_ALONE_MOST {
            left_alone.pop_front();
        }
    }

    /// How many schedules this node leaves alone for longer than that.
    #[cfg(test)]
    pub(crate) fn left_alone_for(&self, during: Duration) -> usize {
        let end = Instant::now() + during;
        self.left_alone.lock().iter().filter(|(_, until)| *until > end).count()
    }

    /// Whether the next look finds others than these, which the last one found. If all of them failed and no more are
    /// left alone, each look would find failing ones again, without a pause.
    fn finds_others_than(&self, found: &[Revision]) -> bool {
        let left_alone = self.left_alone.lock();
        let is_left_alone = |read: &Revision| left_alone.iter().any(|(revision, _)| revision == read);
        left_alone.len() < LEFT_ALONE_MOST || !found.iter().all(is_left_alone)
    }

    fn left_alone(&self) -> Vec<Revision> {
        let (mut left_alone, now) = (self.left_alone.lock(), Instant::now());
        left_alone.retain(|(_, until)| *until > now);
        left_alone.iter().map(|(revision, _)| *revision).collect()
    }

    /// Tells of a schedule that this version cannot read. It comes again after each back-off, so the log does not have
    /// each.
    fn tell_unreadable(&self, name: &ScheduleName, error: &str) {
        if self.unreadable_schedules.begin() {
            tracing::error!(schedule = %name, error, "this version cannot read schedules; retrying");
        } else {
            tracing::debug!(schedule = %name, error, "this version cannot read a schedule");
        }
    }

    /// One that cannot be read comes again after each hold, at any node. So the log does not have each.
    fn readable(&self, fire: Result<FireRecord, impl fmt::Display>) -> Option<FireRecord> {
        fire.inspect_err(|error| {
            if self.unreadable_fires.begin() {
                tracing::error!(%error, "this version cannot read decided fire times; retrying");
            } else {
                tracing::debug!(%error, "this version cannot read a decided fire time");
            }
        })
        .ok()
    }
}

/// Whether a read of at most `most` that found so many may have left others.
fn is_full(read: usize, most: i64) -> bool {
    i64::try_from(read).is_ok_and(|read| read >= most)
}
