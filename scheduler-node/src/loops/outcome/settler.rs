//! Writes the broker's confirms in batches: finished, or delivered with a deadline.
//!
//! No delivery waits for most of these writes, so they give way to due messages for a while. A confirm is a fact, so
//! its write is repeated until the database takes it. Meanwhile the task stays in flight: no node publishes it again.
//! A row that another transaction holds, or that fails alone with what looks like a bug, is tried again at intervals,
//! while others are written. A task whose confirm the database refuses is set aside. If this loop stops, the next owner
//! publishes the tasks again whose confirms were not written.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{Attempt, QueueName, ShardId, TaskId},
    queue::QueuePolicy,
    schedule,
    task::{
        Delivery, TaskState,
        verdict::{AfterConfirm, CONFIRMED_FROM},
    },
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::releaser::Releaser;
use crate::{
    clock,
    metrics::Metrics,
    store::{
        Database, Error, Statements, StoreOp,
        depend::Succeeded,
        settle::{Deliver, Finish, Finished, Report},
    },
    supervise::{Work, at_work},
    working_set::{
        database::{Aside, DatabaseIndex, NodeDatabases, held_again},
        lanes::Lanes,
        retry::until_done_or_held,
        set_aside::Kind,
    },
};

/// Confirms are gathered for this long. The write delays no delivery, so fewer, larger statements win. Those that are
/// left for later are looked at again as often.
const GATHER: Duration = Duration::from_millis(50);

/// The most confirms of one statement.
const BATCH: usize = 1_000;

/// Confirms wait only while more than one place in so many is left in the window: the last quarter takes only tasks of
/// a crowd, and those not before they are due ([`common::delay::turn::Room`]).
const LEFT: usize = 4;

/// The longest time for which a confirm gives way. Messages that wait for longer are no burst but the usual load.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Confirms of this age have a part of each statement, as those that something waits for may be as many as the database
/// writes. A full window takes some four seconds after [`LONGEST_WAIT`].
const OLD: Duration = Duration::from_secs(10);

/// The part of a statement that old confirms have. A slow database may leave a full window of them, so those that
/// something waits for have the rest.
const OLD_PART: usize = BATCH / 4;

/// The longest pause between two passes over confirms that were delayed. It is enough to write what comes meanwhile.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// The name of these writes in the log. Compare-and-set on attempt and state makes a second write harmless.
const WHAT: &str = "confirms";

/// One confirmed publish.
#[derive(Clone, Debug)]
pub struct Confirmed {
    pub id: TaskId,
    pub attempt: Attempt,
    pub queue: QueueName,
    pub verdict: AfterConfirm,
    /// When it came.
    pub at: Instant,
    /// Whether its write may give way to due messages.
    pub gives_way: bool,
}

/// Whether the write of a confirm may give way to due messages for a while. A schedule waits for the write before its
/// next fire time, and so may the next task of a queue with an order or a limit. A queue with a rate is treated alike.
pub fn gives_way(delivery: &Delivery, policy: &QueuePolicy) -> bool {
    !policy.is_gated() && !delivery.key.as_deref().is_some_and(schedule::is_fire_key)
}

/// The channel that takes confirms to the settler.
#[derive(Clone, Debug)]
pub struct Settlements(mpsc::Sender<Vec<Confirmed>>);

impl Settlements {
    /// `window`: the most tasks in flight. As many batches may wait for the database, because each has a task that is
    /// in flight: the publisher serves all databases, and must not wait for one of them.
    pub fn channel(window: usize) -> (Self, mpsc::Receiver<Vec<Confirmed>>) {
        let (sender, receiver) = mpsc::channel(window);
        (Self(sender), receiver)
    }

    pub async fn confirmed(&self, confirmed: Vec<Confirmed>) {
        if !confirmed.is_empty() {
            // The settler ends last; without it the next owner publishes these again.
            let _ = self.0.send(confirmed).await;
        }
    }
}

/// Confirms that are not written yet. They are as bounded as the window, because their tasks stay in flight.
#[derive(Debug, Default)]
struct Unwritten {
    /// Those that give way to due messages, the oldest first.
    waiting: Vec<Confirmed>,
    /// Those that something waits for.
    urgent: Vec<Confirmed>,
    /// Others that wait no longer, the oldest first.
    due: Vec<Confirmed>,
    /// When all of them were looked at last for those that something waits for.
    looked_at: Option<Instant>,
    /// Those whose rows another transaction holds.
    held: Vec<Confirmed>,
    /// Whether no more come.
    are_all: bool,
}

impl Unwritten {
    /// Whether some of them wait no longer.
    const fn some_are_due(&self) -> bool {
        !self.urgent.is_empty() || !self.due.is_empty()
    }

    /// Removes the next ones to write, as many as one statement takes.
    fn next(&mut self, now: Instant) -> Vec<Confirmed> {
        let is_old = |one: &&Confirmed| now.saturating_duration_since(one.at) >= OLD;
        let old = self.due.iter().take(OLD_PART).take_while(is_old).count();
        let mut next: Vec<Confirmed> = self.due.drain(..old).collect();
        next.extend(self.urgent.drain(..self.urgent.len().min(BATCH - old)));
        next.extend(self.due.drain(..self.due.len().min(BATCH - next.len())));
        next
    }
}

#[derive(Debug)]
pub struct Settler<S = Arc<Database>> {
    pub databases: NodeDatabases<S>,
    /// The database in which the tasks were claimed. A shard that has moved since has its tasks in another one.
    pub index: DatabaseIndex,
    pub releaser: Releaser<S>,
    /// The most tasks in flight.
    pub window: usize,
    pub lanes: Arc<Lanes>,
    pub metrics: Arc<Metrics>,
}

impl<S: Statements> Settler<S> {
    /// Runs until every sender is gone and everything is written, or until `stop` ends the wait.
    pub async fn run(self, confirms: mpsc::Receiver<Vec<Confirmed>>, stop: CancellationToken) {
        self.write_all(Unwritten::default(), confirms, stop).await;
    }

    /// As [`Self::run`], from these confirms on.
    async fn write_all(
        self,
        mut unwritten: Unwritten,
        mut confirms: mpsc::Receiver<Vec<Confirmed>>,
        stop: CancellationToken,
    ) {
        let mut again = held_again();
        while !unwritten.are_all || !unwritten.held.is_empty() || unwritten.some_are_due() {
            let is_wary = !unwritten.held.is_empty();
            let (some_wait, some_are_due) = (!unwritten.waiting.is_empty(), unwritten.some_are_due());
            let pause = if some_are_due { Duration::ZERO } else { GATHER };
            let (work, batch, is_repeated) = tokio::select! {
                biased;
                () = stop.cancelled(), if is_wary || some_wait || some_are_due => return,
                // What is delayed again goes to the end, so that each has its turn.
                _ = again.tick(), if is_wary => {
                    let most = unwritten.held.len().min(BATCH);
                    let next: Vec<Confirmed> = unwritten.held.drain(..most).collect();
                    (at_work(), next, true)
                }
                first = confirms.recv(), if !unwritten.are_all => match first {
                    Some(first) => {
                        let new = gather(first, &mut confirms, pause).await;
                        (at_work(), self.give_way(new, &mut unwritten), false)
                    }
                    None => {
                        unwritten.are_all = true;
                        unwritten.due.append(&mut unwritten.waiting);
                        (at_work(), self.give_way(Vec::new(), &mut unwritten), false)
                    }
                },
                () = tokio::time::sleep(pause), if some_wait || some_are_due => {
                    (at_work(), self.give_way(Vec::new(), &mut unwritten), false)
                }
            };
            if batch.is_empty() {
                continue;
            }
            let began = clock::instant();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.settle_all(batch, &mut unwritten.held, is_wary, &work) => {}
            }
            // Each row that a lock delays may take seconds. So the others, if there are any or may be, have time of
            // their own.
            if is_repeated && (!unwritten.are_all || unwritten.some_are_due()) {
                let took = clock::instant().saturating_duration_since(began);
                again.reset_after(took.min(LONGEST_REST).max(again.period()));
            }
        }
    }

    /// Writes confirms, and moves those to `held` whose rows another transaction holds. `is_wary`: it asks for such
    /// rows first, because there were some a moment ago. Then it writes tasks of each time of keeping by themselves,
    /// as they go into other partitions: no lock on one of those delays all.
    async fn settle_all(&self, mut batch: Vec<Confirmed>, held: &mut Vec<Confirmed>, is_wary: bool, work: &Work) {
        if is_wary {
            let ids = self.databases.held(batch.iter().map(|confirmed| confirmed.id)).await;
            held.extend(batch.extract_if(.., |confirmed| ids.contains(&confirmed.id)));
            batch.sort_by_key(keep_ms);
        }
        let alike = batch.chunk_by(|one, next| !is_wary || keep_ms(one) == keep_ms(next));
        let parts: Vec<&[Confirmed]> = alike.flat_map(|alike| alike.chunks(BATCH)).collect();
        for part in parts {
            // Each that a lock delays may take most of the time that this loop has.
            work.beat();
            held.extend(self.settle(part).await);
        }
    }

    /// Adds new confirms to those that wait until due messages are sent. Returns the next ones to write, as many as one
    /// statement takes, so that those that come meanwhile wait for no more. Those that something waits for are written
    /// with the next statement that has room for them. A new one is asked at once whether its task is to
    /// be tried again. The others may be tens of thousands, so they are asked in the rhythm of [`GATHER`].
    ///
    /// While rows are held, what is returned goes into several statements, in the order of the times of keeping.
    fn give_way(&self, new: Vec<Confirmed>, unwritten: &mut Unwritten) -> Vec<Confirmed> {
        let (now, owned_shards) = (clock::instant(), &self.databases[self.index].owned_shards);
        let draining = owned_shards.draining();
        let has_passed = |since: Instant, time: Duration| now.saturating_duration_since(since) >= time;
        let Unwritten { waiting, urgent, due, looked_at, .. } = &mut *unwritten;
        // A backlog may end and begin anew between two looks. So the oldest confirm tells how long they have waited.
        let is_long = waiting.first().or_else(|| new.first()).is_some_and(|first| has_passed(first.at, LONGEST_WAIT));
        let may_wait = !is_long && draining.is_empty() && self.lanes.backlog.delays_writes(now) && self.has_room();
        if !may_wait && urgent.len() + due.len() + waiting.len() + new.len() <= BATCH {
            let mut all = std::mem::take(urgent);
            all.append(due);
            all.append(waiting);
            all.extend(new);
            return all;
        }
        let mut again = owned_shards.claimed_again(new.iter().map(|one| one.id));
        if looked_at.is_none_or(|at| has_passed(at, GATHER)) {
            *looked_at = Some(now);
            again.extend(owned_shards.claimed_again(due.iter().chain(waiting.iter()).map(|one| one.id)));
        }
        waiting.extend(new);
        let is_urgent =
            |one: &mut Confirmed| !one.gives_way || again.contains(&one.id) || draining.contains(&one.id.shard());
        urgent.extend(due.extract_if(.., is_urgent));
        urgent.extend(waiting.extract_if(.., is_urgent));
        if !may_wait {
            due.append(waiting);
        }
        unwritten.next(now)
    }

    /// Whether the window has room for more tasks.
    fn has_room(&self) -> bool {
        let in_flight = self.databases[self.index].owned_shards.in_flight();
        self.window.saturating_sub(in_flight) > self.window / LEFT
    }

    /// Writes confirms. Returns those to try again; their tasks stay in flight.
    async fn settle(&self, batch: &[Confirmed]) -> Vec<Confirmed> {
        let (mut finishing, mut open) = (Vec::new(), Vec::new());
        for confirmed in batch {
            match confirmed.verdict {
                AfterConfirm::Succeed { keep_ms } => finishing.push((confirmed, keep_ms)),
                AfterConfirm::Deliver { timeout_ms } => open.push((confirmed, timeout_ms)),
            }
        }
        let (mut ids, (succeeded, unfinished)) = tokio::join!(self.deliver(&open), self.finish(&finishing));
        ids.extend(unfinished);
        fail::fail_point!("after_settle", |_| std::process::abort());
        let (held, ended): (Vec<&Confirmed>, Vec<_>) = batch.iter().partition(|confirmed| ids.contains(&confirmed.id));
        // While a task of a shard is in flight, no cut begins, and another node gets the shard only after a while. The
        // release may take seconds, so only successes that others may wait for stay in flight until its end.
        let releasing: BTreeSet<ShardId> =
            succeeded.iter().flat_map(|(_, succeeded)| succeeded).map(|one| one.shard).collect();
        let is_waited_for = |one: &&Confirmed| keep_ms(one).is_some() && releasing.contains(&one.id.shard());
        let (waited_for, others): (Vec<_>, Vec<_>) = ended.into_iter().partition(is_waited_for);
        self.end(&others);
        for (index, succeeded) in succeeded {
            self.releaser.succeeded(&self.databases[index], &succeeded).await;
        }
        self.end(&waited_for);
        held.into_iter().cloned().collect()
    }

    /// Takes tasks out of flight.
    fn end(&self, confirmed: &[&Confirmed]) {
        for (_, database) in self.databases.indexed() {
            database.owned_shards.end(confirmed.iter().map(|confirmed| confirmed.id));
        }
    }

    /// Writes rows until each is written or refused, each in the place of its shard. Rows that no place takes in time
    /// are left to a rescue. `written`: the tasks that an answer shows as written. Returns the answers of each
    /// database, and the tasks to try again, because another transaction holds their rows or they are in doubt.
    async fn write<R: Clone, T, F>(
        &self,
        op: StoreOp,
        rows: Vec<R>,
        name: impl Fn(&R) -> (TaskId, Attempt),
        write: impl Fn(S, Vec<R>) -> F,
        written: impl Fn(&T) -> Vec<TaskId>,
    ) -> (Vec<(DatabaseIndex, T)>, BTreeSet<TaskId>)
    where
        F: Future<Output = Result<T, Error>>,
    {
        let id = |row: &R| name(row).0;
        let (mut answers, mut held, mut doubtful) = (Vec::new(), BTreeSet::new(), Vec::new());
        let mut parts = vec![(self.index, rows)];
        let mut refusals = 0;
        while !parts.is_empty() {
            let mut moved = Vec::new();
            for (index, mut rows) in parts {
                let database = &self.databases[index];
                let first_suspect = database.suspects.put_last(op, &mut rows, id);
                let (others, known) = rows.split_at(first_suspect);
                let are_held = |part: &[R]| self.databases.are_held(part.iter().map(id).collect());
                let write_part = |part: &[R]| {
                    let mut part = part.to_vec();
                    // All statements that touch several tasks take them in the order of their ids, so that no two
                    // deadlock.
                    part.sort_unstable_by_key(id);
                    write(database.sql.clone(), part)
                };
                let done =
                    until_done_or_held(WHAT, others, None, &database.without_partition, are_held, write_part).await;
                let done = database.suspects.try_known(op, done, known, id, &written, write_part).await;
                for refused in done.refused {
                    let (id, attempt) = name(refused.item);
                    if database.set_attempt_aside(Kind::Confirm, id, attempt, &refused.error).await == Aside::Open {
                        held.insert(id);
                    }
                }
                answers.extend(done.answers.into_iter().map(|answer| (index, answer)));
                moved.extend(done.moved.into_iter().cloned());
                held.extend(done.held.into_iter().map(id));
                doubtful.extend(done.doubtful.into_iter().flat_map(|(part, _)| part).map(id));
            }
            parts = self.moved_parts(refusals, moved, id).await;
            refusals += 1;
        }
        if !held.is_empty() {
            tracing::warn!(
                tasks = held.len(),
                "other transactions lock tasks whose messages are confirmed; trying them again at intervals"
            );
        }
        held.extend(doubtful);
        (answers, held)
    }

    /// The new places of rows whose shards have moved. Without one in time, they are left to a rescue.
    async fn moved_parts<R>(
        &self,
        refusals: u32,
        moved: Vec<R>,
        id: impl Fn(&R) -> TaskId,
    ) -> Vec<(DatabaseIndex, Vec<R>)> {
        // A confirm is a fact, and may have waited for the end of an outage since the first refusal: only tries count.
        self.databases.divide_again(refusals, clock::instant(), moved, id).await.unwrap_or_else(|left| {
            tracing::warn!(
                rows = left.len(),
                "no database takes these confirms, because a shard is moving; the next owner publishes their tasks again"
            );
            Vec::new()
        })
    }

    /// Returns the tasks to try again.
    async fn deliver(&self, open: &[(&Confirmed, i64)]) -> BTreeSet<TaskId> {
        if open.is_empty() {
            return BTreeSet::new();
        }
        let tasks: Vec<Deliver> = open
            .iter()
            .map(|(confirmed, timeout_ms)| Deliver {
                id: confirmed.id,
                attempt: confirmed.attempt,
                timeout_ms: *timeout_ms,
                confirmed_at: confirmed.at,
            })
            .collect();
        let name = |task: &Deliver| (task.id, task.attempt);
        let write = |database: S, part: Vec<Deliver>| async move {
            database.task_deliver(&part).await.map(|()| part.iter().map(|task| task.id).collect())
        };
        self.write(StoreOp::TaskDeliver, tasks, name, write, Clone::clone).await.1
    }

    /// Returns the successes of each database, and the tasks to try again.
    async fn finish(
        &self,
        finishing: &[(&Confirmed, i64)],
    ) -> (Vec<(DatabaseIndex, Vec<Succeeded>)>, BTreeSet<TaskId>) {
        if finishing.is_empty() {
            return Default::default();
        }
        let tasks: Vec<Finish> = finishing
            .iter()
            .map(|(confirmed, keep_ms)| Finish {
                id: confirmed.id,
                attempt: confirmed.attempt,
                final_state: TaskState::Succeeded,
                was: CONFIRMED_FROM,
                keep_ms: *keep_ms,
                report: Report::default(),
                at_deadline: false,
                entry: None,
            })
            .collect();
        let name = |task: &Finish| (task.id, task.attempt);
        let write = |database: S, part: Vec<Finish>| async move { database.task_finish(&part).await };
        let written = |finished: &Finished| finished.ids.clone();
        let (answers, held) = self.write(StoreOp::TaskFinish, tasks, name, write, written).await;
        // Tasks that a report has finished meanwhile were counted there.
        let mut finished: HashSet<TaskId> = HashSet::new();
        let mut succeeded = Vec::new();
        for (index, answer) in answers {
            finished.extend(answer.ids);
            succeeded.push((index, answer.succeeded));
        }
        let mut queues: BTreeMap<&QueueName, u64> = BTreeMap::new();
        for (confirmed, _) in finishing.iter().filter(|(confirmed, _)| finished.contains(&confirmed.id)) {
            *queues.entry(&confirmed.queue).or_default() += 1;
        }
        for (queue, count) in queues {
            self.metrics.finished(queue, TaskState::Succeeded.text(), count);
        }
        (succeeded, held)
    }
}

/// Gathers all confirms that have come, from the first on, after a pause for more of them. None is left in the channel,
/// where those that something waits for would stand behind the others.
async fn gather(
    first: Vec<Confirmed>,
    confirms: &mut mpsc::Receiver<Vec<Confirmed>>,
    pause: Duration,
) -> Vec<Confirmed> {
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    let mut new = first;
    while let Ok(more) = confirms.try_recv() {
        new.extend(more);
    }
    new
}

/// How long the archive keeps a task that succeeds by its confirm.
fn keep_ms(confirmed: &Confirmed) -> Option<i64> {
    match confirmed.verdict {
        AfterConfirm::Succeed { keep_ms } => Some(keep_ms),
        AfterConfirm::Deliver { .. } => None,
    }
}
