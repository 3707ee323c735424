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
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    batch::{Bounds, Job, SubmitError, answer, routed, run_batches, sending, sources, take_tasks},
    resend::{Known, handed_back, refused, stored, until_known},
};
use crate::{
    clock,
    loops::{
        outcome::releaser::{NEW_LOOKED_AT_WITHIN, Releaser},
        upkeep::queue_reader::Books,
    },
    metrics::Metrics,
    store::{
        put::{Put, PutOutcome, Retention},
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

/// Tasks to write by key, at most [`TASKS_PER_PUT`].
pub type PutJob = Job<Put>;

#[derive(Clone, Debug)]
pub struct KeyedSubmitter {
    pub database: NodeDatabase,
    pub books: Books,
    pub releaser: Releaser,
    pub metrics: Arc<Metrics>,
}

impl KeyedSubmitter {
    /// Runs until `stop`, and then until all jobs that have arrived are done.
    pub async fn run(self, jobs: mpsc::Receiver<PutJob>, stop: CancellationToken) {
        // The next job may be as large as a whole statement.
        let bounds = Bounds { in_flight: PUTS_IN_FLIGHT, tasks: TASKS_PER_PUT / 2 };
        run_batches(jobs, stop, bounds, |batch| {
            let this = self.clone();
            async move { this.put(batch).await }
        })
        .await;
    }

    async fn put(&self, mut batch: Vec<PutJob>) {
        let (tasks, lengths) = take_tasks(&mut batch);
        let sources = sources(&batch, &lengths);
        let book = self.books.load_full();
        let hold = |task: &NewTask| Retention::of(&book.get(&task.queue).policy);
        let holds: Vec<Retention> = tasks.iter().map(hold).collect();
        let database = &self.database.sql;
        let (routed, sending) = (routed(&batch), sending(&batch));
        let window = Window::in_place(database, sending);
        let known = match database.task_put_within(&tasks, &holds, window, routed).await {
            Ok(puts) => {
                stored(&self.database);
                vec![(tasks.as_slice(), Known::Stored(puts))]
            }
            Err(error) => {
                until_known(&self.database, &tasks, sending, (window, error), |part, _, window| {
                    let holds: Vec<Retention> = part.iter().map(hold).collect();
                    async move { database.task_put_within(part, &holds, window, routed).await }
                })
                .await
            }
        };
        let mut answers = Vec::with_capacity(tasks.len());
        for (part, stored) in known {
            refused(&self.database, part, &stored);
            answers.extend(match stored {
                Known::Stored(puts) => puts.into_iter().zip(part).map(|(put, task)| written(put, task)).collect(),
                Known::Failed(why) => vec![Err(why); part.len()],
                // A put that is sent twice has one effect, wherever its shard is by then.
                Known::Elsewhere(sending) => handed_back(part, sending).collect(),
            });
        }
        self.look(&mut answers).await;
        self.note(&tasks, &sources, &answers);
        let due = answers.iter().flatten().filter(|put| put.is_written() && put.state == TaskState::Scheduled);
        self.releaser.nudger.written_all(due.map(|put| (put.id, put.due_at)).collect::<Vec<(TaskId, UnixMicros)>>());
        answer(batch, &lengths, answers);
    }

    /// Looks at waiting tasks after the commit: the task they wait for may have succeeded before or meanwhile.
    async fn look(&self, puts: &mut [Result<Put, SubmitError>]) {
        let waiting: Vec<TaskId> = puts
            .iter()
            .flatten()
            .filter(|put| put.is_written() && put.state == TaskState::Waiting)
            .map(|put| put.id)
            .collect();
        let end = clock::instant() + NEW_LOOKED_AT_WITHIN;
        let (released, failed) = self.releaser.look(&self.database, &waiting, end).await;
        for task in released {
            let put = puts.iter_mut().flatten().find(|put| put.id == task.id).expect("the request named this task");
            (put.state, put.due_at) = (TaskState::Scheduled, task.due_at);
        }
        if let Some(error) = failed {
            tracing::debug!(database = %self.database.name(), error = &error as &dyn std::error::Error, "could not check new waiting tasks; their next check finds them");
        }
    }

    fn note(&self, tasks: &[NewTask], sources: &[&str], puts: &[Result<Put, SubmitError>]) {
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

/// Turns a put into an answer. A task whose queue has other rules by now goes back to its caller.
fn written(put: Put, task: &NewTask) -> Result<Put, SubmitError> {
    if put.outcome == PutOutcome::RulesChanged {
        Err(SubmitError::RulesChanged(Box::new(task.clone())))
    } else {
        Ok(put)
    }
}
