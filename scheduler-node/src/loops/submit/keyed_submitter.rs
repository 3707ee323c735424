//! Makes submitted tasks durable that have a key or wait for others. It gathers concurrent submissions into one
//! statement, which decides key by key, and answers each caller after the commit.
//!
//! If this loop stops, such submissions wait in a bounded queue and are refused when it is full.

use std::{collections::BTreeMap, sync::Arc};

use common::{
    ids::{QueueName, TaskId},
    task::{NewTask, TaskState},
    time::UnixMicros,
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::submitter::{self, Bounds, Part, Unstored, until_known, work};
use crate::{
    loops::{outcome::releaser::Releaser, upkeep::queue_reader::Books},
    metrics::Metrics,
    store::{
        put::{Hold, Put, PutOutcome},
        submit::Window,
    },
    traces,
    working_set::database::NodeDatabase,
};

/// The most keys of one statement. It holds a lock for each until it commits, and the server has room for some ten
/// thousand locks in all.
pub const TASKS_PER_PUT: usize = 256;

/// Statements of one database under way.
const PUTS_IN_FLIGHT: usize = 3;

/// Tasks of one caller for one database, at most [`TASKS_PER_PUT`].
#[derive(Debug)]
pub struct PutJob {
    pub tasks: Vec<NewTask>,
    /// The value of the metrics' label `source`.
    pub source: &'static str,
    /// The revision of the queues by which the tasks got their shards.
    pub routed: i64,
    /// Receives one answer for each task, in their order.
    pub answer: oneshot::Sender<Vec<Result<Put, Unstored>>>,
}

#[derive(Clone, Debug)]
pub struct KeyedSubmitter {
    pub database: NodeDatabase,
    pub books: Books,
    pub releaser: Releaser,
    pub metrics: Arc<Metrics>,
}

impl Part for PutJob {
    fn tasks(&self) -> usize {
        self.tasks.len()
    }
}

impl KeyedSubmitter {
    /// Runs until `stop`, and then until all jobs that have arrived are done.
    pub async fn run(self, jobs: mpsc::Receiver<PutJob>, stop: CancellationToken) {
        // The next job may be as large as a whole statement.
        let bounds = Bounds { in_flight: PUTS_IN_FLIGHT, tasks: TASKS_PER_PUT / 2 };
        work(jobs, stop, bounds, |batch| {
            let this = self.clone();
            async move { this.put(batch).await }
        })
        .await;
    }

    async fn put(&self, mut batch: Vec<PutJob>) {
        let lengths: Vec<usize> = batch.iter().map(|job| job.tasks.len()).collect();
        let sources: Vec<&str> =
            batch.iter().flat_map(|job| std::iter::repeat_n(job.source, job.tasks.len())).collect();
        let tasks: Vec<NewTask> = batch.iter_mut().flat_map(|job| std::mem::take(&mut job.tasks)).collect();
        let book = self.books.load_full();
        let hold = |task: &NewTask| Hold::of(&book.get(&task.queue).policy);
        let holds: Vec<Hold> = tasks.iter().map(hold).collect();
        let database = &self.database.sql;
        let window = Window::first(database);
        let routed = batch.iter().map(|job| job.routed).min().unwrap_or(i64::MAX);
        let known = match database.task_put_within(&tasks, &holds, window, routed).await {
            Ok(puts) => vec![(tasks.as_slice(), Ok(puts))],
            Err(error) => {
                until_known(database, &tasks, (window, error), |part, _, window| {
                    let holds: Vec<Hold> = part.iter().map(hold).collect();
                    async move { database.task_put_within(part, &holds, window, routed).await }
                })
                .await
            }
        };
        let mut answers = Vec::with_capacity(tasks.len());
        for (part, stored) in known {
            submitter::refused(&self.database.set_aside, part, &stored);
            answers.extend(match stored {
                Ok(puts) => puts.into_iter().zip(part).map(|(put, task)| written(put, task)).collect(),
                Err(why) => vec![Err(why); part.len()],
            });
        }
        self.look(&mut answers).await;
        self.note(&tasks, &sources, &answers);
        let due = answers.iter().flatten().filter(|put| put.is_written() && put.state == TaskState::Scheduled);
        self.releaser.nudger.written_all(due.map(|put| (put.id, put.due_at)).collect::<Vec<(TaskId, UnixMicros)>>());
        answer(batch, &lengths, answers);
    }

    /// Looks at waiting tasks after the commit: the task they wait for may have succeeded before or meanwhile.
    async fn look(&self, puts: &mut [Result<Put, Unstored>]) {
        let waiting: Vec<TaskId> = puts
            .iter()
            .flatten()
            .filter(|put| put.is_written() && put.state == TaskState::Waiting)
            .map(|put| put.id)
            .collect();
        match self.releaser.look(&self.database, &waiting).await {
            Ok(released) => {
                for task in released {
                    let put =
                        puts.iter_mut().flatten().find(|put| put.id == task.id).expect("the request named this task");
                    (put.state, put.due_at) = (TaskState::Scheduled, task.due_at);
                }
            }
            Err(error) => {
                tracing::debug!(database = %self.database.name(), error = &error as &dyn std::error::Error, "could not check new waiting tasks; their next check finds them");
            }
        }
    }

    fn note(&self, tasks: &[NewTask], sources: &[&str], puts: &[Result<Put, Unstored>]) {
        let mut created: BTreeMap<(&QueueName, &str), u64> = BTreeMap::new();
        for ((task, source), put) in tasks.iter().zip(sources).zip(puts) {
            let Ok(put) = put else { continue };
            let ids = || traces::ids(task.trace());
            tracing::debug!(task = %put.id, queue = %task.queue, outcome = ?put.outcome, due_at = %put.due_at, trace_id = ids().0, span_id = ids().1, "task with a key submitted");
            if put.outcome == PutOutcome::Created {
                *created.entry((&task.queue, source)).or_default() += 1;
            }
            if put.superseded > 0 {
                self.metrics.finished(&task.queue, TaskState::Superseded.text(), put.superseded);
            }
        }
        for ((queue, source), count) in created {
            self.metrics.submitted(queue, source, count);
        }
    }
}

/// Turns a put into an answer. A task that now belongs on another shard goes back to its caller.
fn written(put: Put, task: &NewTask) -> Result<Put, Unstored> {
    if put.outcome == PutOutcome::Moved { Err(Unstored::Moved(Box::new(task.clone()))) } else { Ok(put) }
}

/// Sends each caller its part of the answers. A caller that hung up does not need them.
fn answer(batch: Vec<PutJob>, lengths: &[usize], answers: Vec<Result<Put, Unstored>>) {
    let mut answers = answers.into_iter();
    for (job, length) in batch.into_iter().zip(lengths) {
        let _ = job.answer.send(answers.by_ref().take(*length).collect());
    }
}
