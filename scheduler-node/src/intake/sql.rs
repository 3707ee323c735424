//! Makes tasks of submissions in SQL: reads an inbox, has the desk judge its rows, and writes the tasks.
//!
//! The owner of a row's shard collects the row, so that the task enters the owner's heap at once. After a while any
//! node may collect it. When several nodes do so at the same time, the writes of one count. If this loop stops,
//! submissions wait in the inbox.

mod copied_queues;
mod forget;
mod gauges;
mod key_order;
mod looks;
mod read;
mod refuse;
#[cfg(test)]
mod tests;
mod turns;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{DatabaseName, QueueName, TaskId},
    task::{NewTask, TaskState},
    wire::Problem,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::{
    copied_queues::CopiedQueues,
    key_order::KeyOrder,
    looks::{LOOK_AGAIN, LOOK_EVERY, Left},
    read::Unread,
    turns::{Aside, Turns},
};
use crate::{
    desk::{Desk, refusal},
    loops::{
        outcome::releaser::{NEW_LOOKED_AT_WITHIN, Releaser},
        submit::keyed_submitter::TASKS_PER_PUT,
        upkeep::{prober::NodeFitness, queue_reader::Books},
    },
    metrics::Metrics,
    store::{
        Database, Error, StoreOp,
        inbox::{CancelledRow, Collected, LeavingRow},
        put::{PutOutcome, Retention},
    },
    supervise::at_work,
    working_set::database::{DatabaseIndex, NodeDatabase, NodeDatabases},
};

/// The value of the metrics' label `source`.
const SOURCE: &str = "sql";

/// The number of rows in one pass: as many keys as a statement may lock.
const BATCH: usize = TASKS_PER_PUT;

/// The interval between two deletions of old rows.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// A row is left to the owner of its shard for this long: a hundred times what an owner takes.
const OTHERS_AFTER: Duration = Duration::from_secs(1);

/// The pause before a row is tried again that another transaction locks, or whose key is not free at the moment. The
/// rows behind it have their turn meanwhile.
const HELD_AGAIN: Duration = LOOK_EVERY;

/// A database that did not take its rows is avoided for this long, since its rows would stand before all others. By
/// then the prober knows what is wrong with it.
const AVOIDED: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct SqlIntake {
    /// The index in `databases` of the database whose inbox this is.
    pub index: DatabaseIndex,
    pub databases: NodeDatabases,
    pub desk: Desk,
    pub books: Books,
    pub fitness: watch::Receiver<NodeFitness>,
    pub releaser: Releaser,
    pub metrics: Arc<Metrics>,
}

/// The state that one pass leaves to the next.
#[derive(Debug, Default)]
struct PassState {
    /// The oldest row that the pass read.
    head: Option<TaskId>,
    /// Databases in trouble, each with the moment it failed.
    avoided: BTreeMap<DatabaseIndex, Instant>,
    /// Rows that the database neither moves nor marks as refused, or that are held, and those behind them.
    aside: BTreeMap<TaskId, Aside>,
    /// Which of those aside and of the crowded shards this pass leaves out: see [`turns`].
    turns: Turns,
    /// Rows that could not be read alone. No batch has them.
    unread: BTreeMap<TaskId, Unread>,
    /// When rows among `unread` may be read again. `None`: at once.
    reads_again_at: Option<Instant>,
    /// Whether the next read leaves out the rows of the inbox's own database. They failed, and may have filled the
    /// batch: the rows of other databases wait behind them.
    skips_own: bool,
    /// Whether rows may wait behind those that the last pass read.
    has_more: bool,
}

/// The way of rows out of the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Route {
    database: DatabaseIndex,
    /// The row is noted as leaving here, arrives there, and is then deleted here.
    leaves: bool,
}

/// What became of rows.
#[derive(Debug, Default)]
struct HandedOver {
    /// Each refused row with its reason.
    refused: Vec<(TaskId, Problem)>,
    /// Rows that wait in the inbox: until another transaction releases a task with their key, behind an earlier row
    /// with their key, or because they may be at fault.
    waiting: Vec<TaskId>,
    /// Rows of which this pass knows the outcome. Any other row was noted before, as arrived or as refused.
    known: BTreeSet<TaskId>,
    /// The failure of the other rows, after which the pass ends.
    failed: Option<Error>,
}

impl SqlIntake {
    /// Runs until `stop`; the pass that has begun is finished.
    pub async fn run(self, stop: CancellationToken) {
        let inbox = Arc::clone(&self.databases[self.index].inbox);
        let mut state = PassState::default();
        let (mut looked, mut forgot, mut copied) = (None, None, CopiedQueues::default());
        let mut failing = BTreeMap::new();
        let mut measured = Instant::now();
        let mut glances = self.source().glances();
        let mut pause = LOOK_AGAIN;
        while !stop.is_cancelled() {
            glances.mark_unchanged();
            // The glance may be older than rows that came lately.
            let has_rows =
                pause < LOOK_EVERY || self.source().glance().is_none_or(|glance| glance.inbox_oldest.is_some());
            let began = Instant::now();
            let collected = if has_rows { self.logged(self.collect(&mut state).await) } else { None };
            let left = collected.unwrap_or(Left::Nothing);
            pause = left.next_look(pause, began.elapsed());
            if turn(&mut looked, LOOK_EVERY) {
                self.logged(self.measure(&mut measured).await);
                self.logged(self.copy_queues(&mut copied).await);
            }
            if turn(&mut forgot, FORGET_EVERY) && self.logged(self.forget(&mut failing).await) == Some(true) {
                // The rest follows the next pass.
                forgot = None;
            }
            if left != Left::More {
                pause = left.until_look(pause, &inbox, &mut glances, &stop).await;
            }
        }
    }

    fn logged<T>(&self, answer: Result<T, Error>) -> Option<T> {
        answer
            .inspect_err(|error| {
                let database = self.source().name();
                tracing::debug!(%database, error = error as &dyn std::error::Error, "inbox pass failed; retrying");
            })
            .ok()
    }

    /// The database whose inbox this is.
    fn source(&self) -> &Database {
        &self.databases[self.index].sql
    }

    /// Collects one batch.
    async fn collect(&self, state: &mut PassState) -> Result<Left, Error> {
        let work = at_work();
        // Without the queues' policies the desk cannot judge any row.
        if !self.books.load().is_read() {
            return Ok(Left::Nothing);
        }
        state.let_in_again(Instant::now());
        let read = self.read(state).await?;
        state.skips_own = false;
        state.note_more(read.has_more(), &read.reached);
        let (rows, mut refused, mut unknown) = (&read.rows, read.refused(), Vec::new());
        let mut parts: BTreeMap<Route, Vec<NewTask>> = BTreeMap::new();
        let (judged, _room) = self.desk.judge(rows).await;
        for (row, judged) in rows.iter().zip(judged) {
            match (judged, self.databases.of(row.id.shard())) {
                (Ok(task), Some((database, _))) => {
                    let route = Route { database, leaves: database != self.index || row.leaving };
                    parts.entry(route).or_default().push(task);
                }
                // A later pass judges the row again.
                (Ok(_), None) => {}
                (Err(problem), _) if problem.is_unavailable() => unknown.push(row),
                (Err(problem), _) => refused.push((row, problem)),
            }
        }
        let is_unread = !unknown.is_empty();
        state.leave_unknown(unknown, &mut parts);
        // Tables of one database that are locked or full keep no rows of another waiting.
        let mut failed = self.refuse_judged(refused, state).await.err();
        if failed.is_none() {
            state.forget_refused(&read);
        }
        for (route, tasks) in own_first(parts, self.index) {
            // Each part may wait for locks of its own.
            work.beat();
            match self.hand_over(route, tasks, state).await {
                Ok(()) => {}
                // The next pass sends the rows to the new place.
                Err(error) if error.is_moved() => {
                    self.databases.places().want();
                    state.skips_own |= route.database == self.index && state.has_more;
                }
                Err(error) if error.database == *self.source().name() => failed = failed.or(Some(error)),
                Err(error) => {
                    self.logged(Err::<(), _>(error));
                    state.avoided.insert(route.database, Instant::now());
                }
            }
        }
        if let Some(error) = failed {
            state.skips_own = state.has_more;
            return Err(error);
        }
        Ok(state.left(rows, is_unread))
    }

    /// Writes tasks to the database of their route. If the inbox is there too, one statement does it; otherwise they
    /// leave: the task arrives there first, and then the row is deleted here. So it does if the row was on its way into
    /// another database before its shard came here: it may have arrived there.
    async fn hand_over(&self, route: Route, mut tasks: Vec<NewTask>, state: &mut PassState) -> Result<(), Error> {
        let Route { database: index, leaves } = route;
        let source = self.source();
        tasks = state.leave_later(tasks);
        if leaves {
            let leaving = source.inbox_leave(&tasks.iter().map(|task| task.id).collect::<Vec<_>>()).await?;
            let leaving: BTreeMap<TaskId, LeavingRow> = leaving.into_iter().map(|row| (row.id, row)).collect();
            state.leave_held(&tasks, |id| leaving.contains_key(id));
            tasks.retain(|task| leaving.contains_key(&task.id));
            tasks = state.leave_later(tasks);
            fail::fail_point!("after_inbox_leave", |_| std::process::abort());
            tasks = self.keep_cancelled(index, tasks, &leaving, state).await?;
        }
        let mut arrived: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
        let (keyed, plain): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|task: &NewTask| task.is_put());
        let from = leaves.then(|| source.name());
        let HandedOver { mut refused, mut waiting, mut known, mut failed } = self.make(index, plain, from, state).await;
        if failed.is_none() {
            let handed_over = self.put(index, keyed, from, state).await?;
            refused.extend(handed_over.refused);
            waiting.extend(handed_over.waiting);
            known.extend(handed_over.known);
            failed = handed_over.failed;
        }
        fail::fail_point!("after_collect", |_| std::process::abort());
        arrived.retain(|id| !waiting.contains(id) && !refused.iter().any(|(of, _)| of == id));
        self.refuse(refused, true, state).await?;
        if let Some(error) = failed {
            return Err(error);
        }
        if leaves {
            self.refuse_withheld(index, &mut arrived, &known, state).await?;
            if !arrived.is_empty() {
                source.inbox_delete(&arrived).await?;
            }
        }
        Ok(())
    }

    /// Writes rows that were cancelled while they waited as cancelled tasks in the database at `index`. Returns the
    /// others.
    async fn keep_cancelled(
        &self,
        index: DatabaseIndex,
        tasks: Vec<NewTask>,
        leaving: &BTreeMap<TaskId, LeavingRow>,
        state: &mut PassState,
    ) -> Result<Vec<NewTask>, Error> {
        let (mut cancelled, others): (Vec<_>, Vec<_>) =
            tasks.into_iter().partition(|task| leaving.get(&task.id).is_some_and(|row| row.cancelled_at.is_some()));
        if cancelled.is_empty() {
            return Ok(others);
        }
        let book = self.books.load_full();
        let kept = |task: &NewTask| {
            let LeavingRow { submitted_at, cancelled_at, .. } = leaving[&task.id];
            let keep_ms = book.get(&task.queue).policy.keep_succeeded_ms;
            CancelledRow { submitted_at, at: cancelled_at.unwrap_or(submitted_at), keep_ms }
        };
        let collect = |part| {
            let kept: Vec<CancelledRow> = <[NewTask]>::iter(part).map(kept).collect();
            async move { self.databases[index].sql.task_collect_cancelled(part, &kept, self.source().name()).await }
        };
        let (op, suspects) = (StoreOp::TaskCollectCancelled, &self.databases[index].suspects);
        let (cancelled, tried) = suspects.try_each(op, &mut cancelled, |task| task.id, collect, Clone::clone).await;
        for refused in &tried.refused {
            self.refused(refused);
        }
        let left: BTreeSet<TaskId> = tried.left.iter().flat_map(|(part, _)| *part).map(|task| task.id).collect();
        // A cancelled row that the database refuses to keep is deleted all the same: it is cancelled.
        let done: Vec<TaskId> = cancelled.iter().map(|task| task.id).filter(|id| !left.contains(id)).collect();
        self.source().inbox_delete(&done).await?;
        let (_, failed) = state.leave(tried.left, !tried.answers.is_empty(), refuse::keyed);
        failed.map_or(Ok(others), Err)
    }

    /// Writes the tasks without a key.
    async fn make(
        &self,
        index: DatabaseIndex,
        mut tasks: Vec<NewTask>,
        source: Option<&DatabaseName>,
        state: &mut PassState,
    ) -> HandedOver {
        let database = &self.databases[index];
        let (suspects, collect) = (&database.suspects, |part| database.sql.task_collect(part, source));
        let (tasks, tried) =
            suspects.try_each(StoreOp::TaskCollect, &mut tasks, |task| task.id, collect, Clone::clone).await;
        let others_pass = !tried.answers.is_empty();
        let made_ids: BTreeSet<TaskId> = tried.answers.into_iter().flatten().collect();
        let made: Vec<&NewTask> = tasks.iter().filter(|task| made_ids.contains(&task.id)).collect();
        self.releaser.nudger.written_all(made.iter().map(|task| (task.id, task.due_at)));
        self.note(made.iter().map(|task| &task.queue));
        let refused: Vec<_> = tried.refused.iter().map(|refused| self.refused(refused)).collect();
        let (waiting, failed) = state.leave(tried.left, others_pass, refuse::keyed);
        if source.is_none() && failed.is_none() {
            state.leave_held(tasks, |id| made_ids.contains(id) || refused.iter().any(|(of, _)| of == id));
        }
        HandedOver { refused, waiting, known: made_ids, failed }
    }

    /// Writes the tasks that have a key or wait for others.
    async fn put(
        &self,
        index: DatabaseIndex,
        mut tasks: Vec<NewTask>,
        source: Option<&DatabaseName>,
        state: &mut PassState,
    ) -> Result<HandedOver, Error> {
        if tasks.is_empty() {
            return Ok(HandedOver::default());
        }
        let (book, database) = (self.books.load_full(), &self.databases[index]);
        let hold = |task: &NewTask| Retention::of(&book.get(&task.queue).policy);
        let order = &KeyOrder::of(&tasks);
        let collect = |part| {
            let rows = order.in_turn(part);
            let holds: Vec<Retention> = rows.iter().map(hold).collect();
            async move {
                if rows.is_empty() {
                    return Ok(Vec::new());
                }
                let collected = database.sql.task_collect_keyed(&rows, &holds, source).await;
                collected.inspect(|collected| order.note(collected))
            }
        };
        let answered = |collected: &Vec<Collected>| -> Vec<TaskId> {
            let answered = collected.iter().filter(|one| one.put.outcome != PutOutcome::Busy);
            answered.map(|one| one.id).collect()
        };
        let op = StoreOp::TaskCollectKeyed;
        let (tasks, tried) = database.suspects.try_each(op, &mut tasks, |task| task.id, collect, answered).await;
        let others_pass = tried.answers.iter().any(|answer| !answer.is_empty());
        let collected: Vec<Collected> = tried.answers.into_iter().flatten().collect();
        let queues: BTreeMap<TaskId, &QueueName> = tasks.iter().map(|task| (task.id, &task.queue)).collect();
        self.look_at_new(database, &collected).await;
        let refused: Vec<_> = tried.refused.iter().map(|refused| self.refused(refused)).collect();
        let (mut waiting, failed) = state.leave(tried.left, others_pass, refuse::keyed);
        let left_out = order.left_out();
        if failed.is_none() {
            let outcomes: BTreeMap<TaskId, PutOutcome> =
                collected.iter().map(|one| (one.id, one.put.outcome)).collect();
            // A refused row holds up none behind it: the next pass takes the first of these.
            state.leave_held(tasks, |id| match outcomes.get(id) {
                Some(outcome) => *outcome != PutOutcome::Busy,
                None if left_out.contains(id) => !refused.is_empty(),
                None => source.is_some() || refused.iter().any(|(of, _)| of == id),
            });
        }
        waiting.extend(left_out);
        let known = collected.iter().map(|one| one.id).collect();
        let mut left = HandedOver { refused, waiting, known, failed };
        for Collected { id, first, put } in collected {
            if put.outcome == PutOutcome::Busy {
                left.waiting.push(id);
                continue;
            }
            if first && put.superseded > 0 {
                self.metrics.finished(queues[&id], TaskState::Superseded.text(), put.superseded);
            }
            if first && put.outcome == PutOutcome::Created {
                self.note([queues[&id]]);
            }
            if put.is_written() && put.state == TaskState::Scheduled {
                self.releaser.nudger.written(put.id, put.due_at);
            }
            if let Err(problem) = refusal::put(put) {
                left.refused.push((id, problem));
            }
        }
        Ok(left)
    }

    /// Checks the new tasks that wait for others.
    async fn look_at_new(&self, database: &NodeDatabase, collected: &[Collected]) {
        let is_waiting = |one: &&Collected| one.put.is_written() && one.put.state == TaskState::Waiting;
        let waiting: Vec<TaskId> = collected.iter().filter(is_waiting).map(|one| one.put.id).collect();
        let end = Instant::now() + NEW_LOOKED_AT_WITHIN;
        if let (_, Some(error)) = self.releaser.look(database, &waiting, end).await {
            tracing::debug!(database = %database.name(), error = &error as &dyn std::error::Error, "could not check new waiting tasks; their next check finds them");
        }
    }

    fn note<'a>(&self, queues: impl IntoIterator<Item = &'a QueueName>) {
        for queue in queues {
            self.metrics.submitted(queue, SOURCE, 1);
        }
    }
}

/// The parts of a pass, those for the inbox's own database first. If some rows of these leave, all do: one statement
/// then keeps the order of rows with one key.
fn own_first(mut parts: BTreeMap<Route, Vec<NewTask>>, own: DatabaseIndex) -> Vec<(Route, Vec<NewTask>)> {
    let leaving = Route { database: own, leaves: true };
    if parts.contains_key(&leaving)
        && let Some(others) = parts.remove(&Route { leaves: false, ..leaving })
    {
        parts.entry(leaving).or_default().extend(others);
    }
    let mut parts: Vec<_> = parts.into_iter().collect();
    parts.sort_by_key(|(route, _)| route.database != own);
    parts
}

/// Whether `every` has passed since `last`; if so, sets `last` to now.
fn turn(last: &mut Option<Instant>, every: Duration) -> bool {
    let due = last.is_none_or(|at| at.elapsed() >= every);
    if due {
        *last = Some(Instant::now());
    }
    due
}
