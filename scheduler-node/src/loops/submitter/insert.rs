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
    loops::{at_once::AtOnce, nudger::Nudger},
    store::{Database, Effect, Error, submit::Sending},
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
        let counts = count(&batch);
        let tasks: Vec<NewTask> = batch.iter_mut().flat_map(|job| std::mem::take(&mut job.tasks)).collect();
        let begun = self.at_once.begin(self.index, &tasks);
        let written = match self.database().task_submit_claimed(&tasks, &begun.epochs, begun.known).await {
            Ok(written) => written,
            Err(error) => {
                self.at_once.lost(&begun, &tasks);
                return self.write_again(batch, tasks, counts, error).await;
            }
        };
        fail::fail_point!("after_submit", |_| std::process::abort());
        self.note(&tasks, counts, written.asked_at);
        answer(batch, &Ok(written.asked_at));
        let (dispatches, scheduled) = self.at_once.written(begun, &written, tasks);
        self.nudge(&scheduled, written.asked_at);
        self.at_once.publish(dispatches).await;
    }

    /// The first sending failed. From here on nothing is claimed by the insert.
    async fn write_again(&self, batch: Vec<Job>, tasks: Vec<NewTask>, counts: Counts, error: Error) {
        let database = self.database();
        let stored =
            until_known(database, tasks.len(), Err(error), |sending| database.task_submit(&tasks, sending)).await;
        if let Ok(asked_at) = stored {
            self.note(&tasks, counts, asked_at);
            self.nudge(&tasks, asked_at);
        }
        answer(batch, &stored);
    }

    fn database(&self) -> &Database {
        &self.at_once.sites.all()[self.index].database
    }

    fn nudge(&self, tasks: &[NewTask], asked_at: UnixMicros) {
        self.nudger.written_all(tasks.iter().map(|task| (task.id, task.due_at_when(asked_at))));
    }

    fn note(&self, tasks: &[NewTask], counts: Counts, asked_at: UnixMicros) {
        for task in tasks {
            let due_at = task.due_at_when(asked_at);
            let ids = || traces::ids(task.trace());
            tracing::debug!(task = %task.id, queue = %task.queue, %due_at, trace_id = ids().0, span_id = ids().1, "task submitted");
        }
        for ((queue, source), count) in counts {
            self.at_once.metrics.submitted(&queue, source, count);
        }
    }
}

/// After a first sending of so many `tasks` that came to `sent`: sends them until they are known to be durable or known not to be,
/// within bounds.
pub async fn until_known<T, F>(
    database: &Database,
    tasks: usize,
    mut sent: Result<T, Error>,
    send: impl Fn(Sending) -> F,
) -> Result<T, Unstored>
where
    F: Future<Output = Result<T, Error>>,
{
    let started = Instant::now();
    let mut sending = Sending::First;
    loop {
        let error = match sent {
            Ok(stored) => return Ok(stored),
            Err(error) => error,
        };
        let unknown = sending == Sending::Again || error.effect == Effect::Unknown;
        let retry = unknown || error.is_contention();
        if !retry || started.elapsed() > RESOLVE_DEADLINE {
            tracing::warn!(
                database = %database.name(), tasks, error = &error as &dyn std::error::Error,
                "submitted tasks were not stored"
            );
            let why = error.to_string();
            return Err(if unknown { Unstored::Unknown(why) } else { Unstored::Unavailable(why) });
        }
        if unknown {
            sending = Sending::Again;
        }
        tokio::time::sleep(PAUSE).await;
        sent = send(sending).await;
    }
}

/// How many tasks of which queue came from where.
type Counts = BTreeMap<(QueueName, &'static str), u64>;

fn count(batch: &[Job]) -> Counts {
    let mut counts = Counts::new();
    for job in batch {
        for task in &job.tasks {
            *counts.entry((task.queue.clone(), job.source)).or_default() += 1;
        }
    }
    counts
}

fn answer(batch: Vec<Job>, answer: &Result<UnixMicros, Unstored>) {
    for job in batch {
        // A caller that hung up does not need its answer.
        let _ = job.answer.send(answer.clone());
    }
}
