//! Inserts what was gathered, and answers each caller after the commit.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use common::{ids::QueueName, task::NewTask, time::UnixMicros};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Bounds, Job, Part, Unstored, work};
use crate::{
    loops::{
        aside::{Asides, Kind},
        at_once::AtOnce,
        nudger::Nudger,
    },
    store::{
        Database, Effect, Error, Fault,
        submit::{Known, Sending, Window, Written},
    },
    traces,
};

/// One insert takes about this many rows: beyond it the time a row costs no longer falls.
const ROWS_PER_INSERT: usize = 2_000;

/// Inserts of one database in flight: one commits while the next is filled.
const INSERTS_IN_FLIGHT: usize = 3;

/// Between two sendings of a batch.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a batch whose commit is unknown is sent again before its callers are told so.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(5);

/// Writes what comes in for the database at `index`, until told to stop; then what has come in already.
pub async fn run(index: usize, jobs: mpsc::Receiver<Job>, at_once: AtOnce, nudger: Nudger, stop: CancellationToken) {
    let bounds = Bounds { in_flight: INSERTS_IN_FLIGHT, tasks: ROWS_PER_INSERT };
    work(jobs, stop, bounds, |batch| {
        let insert = Insert { index, at_once: at_once.clone(), nudger: nudger.clone() };
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
    index: usize,
    at_once: AtOnce,
    nudger: Nudger,
}

impl Insert {
    async fn write(&self, mut batch: Vec<Job>) {
        let (counts, lengths) = (count(&batch), batch.iter().map(|job| job.tasks.len()).collect::<Vec<usize>>());
        let tasks: Vec<NewTask> = batch.iter_mut().flat_map(|job| std::mem::take(&mut job.tasks)).collect();
        let begun = self.at_once.begin(self.index, &tasks);
        let window = Window::first(self.database());
        let known = Known { claims: begun.known, routes: routed(&batch) };
        let written = match self.database().task_submit_claimed(&tasks, &begun.epochs, known, window).await {
            Ok(written) => written,
            Err(error) => {
                self.at_once.lost(&begun, &tasks);
                return self.write_again(batch, lengths, tasks, (window, error)).await;
            }
        };
        fail::fail_point!("after_submit", |_| std::process::abort());
        self.note(&tasks, counts, &written);
        answer(batch, lengths, answers(&tasks, &written, Sending::First));
        let (dispatches, scheduled) = self.at_once.written(begun, &written, tasks);
        self.nudge(&scheduled, written.asked_at);
        self.at_once.publish(dispatches).await;
    }

    /// The first sending failed. From here on nothing is claimed by the insert.
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
            refused(&self.at_once.sites.all()[self.index].asides, part, &stored);
            match stored {
                Ok((written, sending)) => given.extend(answers(part, &written, sending)),
                Err(why) => given.extend(std::iter::repeat_n(Err(why), part.len())),
            }
        }
        answer(batch, lengths, given);
    }

    fn database(&self) -> &Database {
        &self.at_once.sites.all()[self.index].database
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
            self.at_once.metrics.submitted(&queue, source, count);
        }
    }
}

/// After a first sending of `tasks` that failed: sends them until they are known to be durable or known not to be, within bounds. No sending
/// begins before the time of one with an unknown end is over. What the database refuses is told from its neighbours. Returns what became of each
/// part, in the order of the tasks.
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
                "submitted tasks were not stored"
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

/// Notes a task that the database refuses. Its sender is told, so nothing of it is kept.
pub fn refused<T>(asides: &Asides, part: &[NewTask], stored: &Result<T, Unstored>) {
    if let (Err(Unstored::Refused(reason)), [task]) = (stored, part) {
        asides.note(Kind::Submission, &task.id.to_string(), reason);
    }
}

/// The oldest revision of the queues by which tasks of the batch were given their shards.
fn routed(batch: &[Job]) -> i64 {
    batch.iter().map(|job| job.routed).min().unwrap_or(i64::MAX)
}

/// One a task. Those of queues that were placed anew are not written, unless an earlier sending with an unknown end did.
fn answers(tasks: &[NewTask], written: &Written, sending: Sending) -> Vec<Result<UnixMicros, Unstored>> {
    let answer = |task: &NewTask| match (written.moved.contains(&task.queue), sending) {
        (false, _) => Ok(written.asked_at),
        (true, Sending::First) => Err(Unstored::Moved(Box::new(task.clone()))),
        (true, Sending::Again) => Err(Unstored::Unknown("its queue was placed anew meanwhile".to_owned())),
    };
    tasks.iter().map(answer).collect()
}

/// How many tasks of which queue came from where.
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

/// Each caller its part of the answers: so many as it had tasks.
fn answer(batch: Vec<Job>, lengths: Vec<usize>, answers: Vec<Result<UnixMicros, Unstored>>) {
    let mut answers = answers.into_iter();
    for (job, length) in batch.into_iter().zip(lengths) {
        // A caller that hung up does not need its answer.
        let _ = job.answer.send(answers.by_ref().take(length).collect());
    }
}
