//! Inserts gathered tasks, and answers each caller after the commit.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use common::{ids::QueueName, task::NewTask, time::UnixMicros};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Bounds, Job, Part, Unstored, work};
use crate::{
    loops::submit::{claim_on_insert::ClaimOnInsert, nudger::Nudger},
    store::{
        Database, Effect, Error, Fault,
        submit::{Known, Sending, Window, Written},
    },
    traces,
    working_set::database::DatabaseIndex,
    working_set::set_aside::{Kind, SetAside},
};

/// The approximate number of rows in one insert. With more rows the time for each no longer falls.
const ROWS_PER_INSERT: usize = 2_000;

/// Inserts of one database under way: one commits while the next is filled.
const INSERTS_IN_FLIGHT: usize = 3;

/// The pause between two sendings of a batch.
const PAUSE: Duration = Duration::from_millis(100);

/// A batch whose commit is unknown is sent again for this long. After that its callers learn that it is unknown.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(5);

/// Writes submissions to the database at `index`. Runs until `stop`, and then until all that have arrived are
/// written.
pub async fn run(
    index: DatabaseIndex,
    jobs: mpsc::Receiver<Job>,
    claim_on_insert: ClaimOnInsert,
    nudger: Nudger,
    stop: CancellationToken,
) {
    let bounds = Bounds { in_flight: INSERTS_IN_FLIGHT, tasks: ROWS_PER_INSERT };
    work(jobs, stop, bounds, |batch| {
        let insert = Insert { index, claim_on_insert: claim_on_insert.clone(), nudger: nudger.clone() };
        async move { insert.write(batch).await }
    })
    .await;
}

impl Part for Job {
    fn tasks(&self) -> usize {
        self.tasks.len()
    }
}

struct Insert {
    index: DatabaseIndex,
    claim_on_insert: ClaimOnInsert,
    nudger: Nudger,
}

impl Insert {
    async fn write(&self, mut batch: Vec<Job>) {
        let (counts, lengths) = (count(&batch), batch.iter().map(|job| job.tasks.len()).collect::<Vec<usize>>());
        let tasks: Vec<NewTask> = batch.iter_mut().flat_map(|job| std::mem::take(&mut job.tasks)).collect();
        let begun = self.claim_on_insert.begin(self.index, &tasks);
        let window = Window::first(self.database());
        let known = Known { claims: begun.known, routes: routed(&batch) };
        let written = match self.database().task_submit_claimed(&tasks, &begun.epochs, known, window).await {
            Ok(written) => written,
            Err(error) => {
                self.claim_on_insert.lost(&begun, &tasks);
                return self.write_again(batch, lengths, tasks, (window, error)).await;
            }
        };
        fail::fail_point!("after_submit", |_| std::process::abort());
        self.note(&tasks, counts, &written);
        answer(batch, lengths, answers(&tasks, &written, Sending::First));
        let (dispatches, scheduled) = self.claim_on_insert.written(begun, &written, tasks);
        self.nudge(&scheduled, written.asked_at);
        self.claim_on_insert.publish(dispatches).await;
    }

    /// Sends a batch again whose first sending failed. From here on the insert claims nothing.
    async fn write_again(&self, batch: Vec<Job>, lengths: Vec<usize>, tasks: Vec<NewTask>, first: (Window, Error)) {
        let database = self.database();
        let sources: Vec<&'static str> =
            batch.iter().zip(&lengths).flat_map(|(job, length)| std::iter::repeat_n(job.source, *length)).collect();
        let routed = routed(&batch);
        let sent = until_known(database, &tasks, first, |part, sending, window| async move {
            database.task_submit_within(part, sending, window, routed).await.map(|written| (written, sending))
        })
        .await;
        let mut given = Vec::with_capacity(tasks.len());
        for (part, stored) in sent {
            if let Ok((written, _)) = &stored {
                let begin = given.len();
                self.note(
                    part,
                    count_tasks(part.iter().zip(&sources[begin..]).map(|(task, source)| (task, *source))),
                    written,
                );
                self.nudge(part, written.asked_at);
            }
            refused(&self.claim_on_insert.databases[self.index].set_aside, part, &stored);
            match stored {
                Ok((written, sending)) => given.extend(answers(part, &written, sending)),
                Err(why) => given.extend(std::iter::repeat_n(Err(why), part.len())),
            }
        }
        answer(batch, lengths, given);
    }

    fn database(&self) -> &Database {
        &self.claim_on_insert.databases[self.index].sql
    }

    fn nudge(&self, tasks: &[NewTask], asked_at: UnixMicros) {
        self.nudger.written_all(tasks.iter().map(|task| (task.id, task.due_at_when(asked_at))));
    }

    fn note(&self, tasks: &[NewTask], counts: Counts, written: &Written) {
        let is_written = |queue: &QueueName| !written.moved.contains(queue);
        for task in tasks.iter().filter(|task| is_written(&task.queue)) {
            let due_at = task.due_at_when(written.asked_at);
            let ids = || traces::ids(task.trace());
            tracing::debug!(task = %task.id, queue = %task.queue, %due_at, trace_id = ids().0, span_id = ids().1, "task submitted");
        }
        for ((queue, source), count) in counts.into_iter().filter(|((queue, _), _)| is_written(queue)) {
            self.claim_on_insert.metrics.submitted(&queue, source, count);
        }
    }
}

/// Sends `tasks` again, whose first sending failed, until they are known to be durable or known not to be, within
/// bounds. After a sending with an unknown end, the next begins only when the time of the earlier one is over. A
/// task that the database refuses is separated from its neighbours. Returns the result of each part, in the order
/// of the tasks.
pub async fn until_known<'a, T, F>(
    database: &Database,
    tasks: &'a [NewTask],
    (window, error): (Window, Error),
    send: impl Fn(&'a [NewTask], Sending, Window) -> F,
) -> Vec<(&'a [NewTask], Result<T, Unstored>)>
where
    F: Future<Output = Result<T, Error>>,
{
    let started = Instant::now();
    let mut known = Vec::new();
    // The first part is the last of the list.
    let mut parts = vec![(tasks, Sending::First, window, Err(error))];
    while let Some((part, sending, window, sent)) = parts.pop() {
        let error = match sent {
            Ok(stored) => {
                known.push((part, Ok(stored)));
                continue;
            }
            Err(error) => error,
        };
        let refused = error.fault() == Fault::Data;
        let unknown = sending == Sending::Again || error.effect == Effect::Unknown;
        let late = started.elapsed() > RESOLVE_DEADLINE;
        let next = match (error.effect, unknown) {
            (Effect::Unknown, _) => window.next(database),
            (Effect::None, true) => Window { after: window.after, ..Window::first(database) },
            (Effect::None, false) => Window::first(database),
        };
        if refused && part.len() > 1 && !late {
            let (before, after) = part.split_at(part.len() / 2);
            let (before_sent, after_sent) = (send(before, sending, next).await, send(after, sending, next).await);
            parts.push((after, sending, next, after_sent));
            parts.push((before, sending, next, before_sent));
            continue;
        }
        if refused || late || !(unknown || error.is_contention()) {
            tracing::warn!(
                database = %database.name(), tasks = part.len(), error = &error as &dyn std::error::Error,
                "could not store submitted tasks"
            );
            known.push((part, Err(unstored(&error, refused && part.len() == 1, unknown))));
            continue;
        }
        let sending = if unknown { Sending::Again } else { sending };
        tokio::time::sleep(PAUSE.max(next.wait(database))).await;
        parts.push((part, sending, next, send(part, sending, next).await));
    }
    known
}

fn unstored(error: &Error, refused: bool, unknown: bool) -> Unstored {
    match (refused, unknown) {
        (true, _) => Unstored::Refused(error.reason()),
        (false, true) => Unstored::Unknown(error.to_string()),
        (false, false) => Unstored::Unavailable(error.to_string()),
    }
}

/// Notes a task that the database refuses. Nothing of it is kept, because its sender gets the error.
pub fn refused<T>(set_aside: &SetAside, part: &[NewTask], stored: &Result<T, Unstored>) {
    if let (Err(Unstored::Refused(reason)), [task]) = (stored, part) {
        set_aside.note(Kind::Submission, &task.id.to_string(), reason);
    }
}

/// The oldest revision of the queues by which tasks of the batch got their shards.
fn routed(batch: &[Job]) -> i64 {
    batch.iter().map(|job| job.routed).min().unwrap_or(i64::MAX)
}

/// One answer for each task. Tasks of queues that were placed anew are not written, unless an earlier sending with
/// an unknown end did so.
fn answers(tasks: &[NewTask], written: &Written, sending: Sending) -> Vec<Result<UnixMicros, Unstored>> {
    let answer = |task: &NewTask| match (written.moved.contains(&task.queue), sending) {
        (false, _) => Ok(written.asked_at),
        (true, Sending::First) => Err(Unstored::Moved(Box::new(task.clone()))),
        (true, Sending::Again) => Err(Unstored::Unknown("the placement of its queue changed meanwhile".to_owned())),
    };
    tasks.iter().map(answer).collect()
}

/// The number of tasks for each queue and source.
type Counts = BTreeMap<(QueueName, &'static str), u64>;

fn count(batch: &[Job]) -> Counts {
    count_tasks(batch.iter().flat_map(|job| job.tasks.iter().map(|task| (task, job.source))))
}

fn count_tasks<'a>(tasks: impl Iterator<Item = (&'a NewTask, &'static str)>) -> Counts {
    let mut counts = Counts::new();
    for (task, source) in tasks {
        *counts.entry((task.queue.clone(), source)).or_default() += 1;
    }
    counts
}

/// Sends each caller its part of the answers: as many as it had tasks.
fn answer(batch: Vec<Job>, lengths: Vec<usize>, answers: Vec<Result<UnixMicros, Unstored>>) {
    let mut answers = answers.into_iter();
    for (job, length) in batch.into_iter().zip(lengths) {
        // A caller that hung up does not need its answer.
        let _ = job.answer.send(answers.by_ref().take(length).collect());
    }
}
