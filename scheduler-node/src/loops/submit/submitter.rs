//! Makes submitted tasks durable: routes each to its shard, gathers concurrent submissions into one insert, answers
//! each caller after the commit, and hands near-due tasks to the heap.
//!
//! If this loop stops, submissions wait in a bounded queue and are refused when it is full. No answered submission
//! is lost.

mod insert;
mod route;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use common::{ids::TaskId, task::NewTask, time::UnixMicros, wire::task::ValidTask};
use tokio::sync::{mpsc, oneshot, watch};

pub use self::insert::run;
use self::route::Routes;
pub use super::batch::SubmitError;
use super::{
    batch::Job,
    keyed_submitter::{PutJob, TASKS_PER_PUT},
};
use crate::{
    loops::upkeep::{
        prober::NodeFitness,
        queue_reader::{Books, catch_up},
    },
    store::put::{Put, PutOutcome},
    working_set::database::{DatabaseIndex, NodeDatabases},
};

/// The most submissions that wait for an insert in one database. Further callers must come back later.
const WAITING_JOBS: usize = 1_024;

/// The most attempts with a task whose queue is placed anew meanwhile. Each knows every placement that was answered
/// before it began.
const TRIES: u32 = 3;

/// The promise to a caller: this task is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub id: TaskId,
    pub created_at: UnixMicros,
    pub due_at: UnixMicros,
}

/// The answer for a caller's task: [`Stored`] if it is new, otherwise the effect of another task with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    Stored(Stored),
    Keyed(Put),
}

#[derive(Clone, Debug)]
pub struct Submitter {
    jobs: Arc<[mpsc::Sender<InsertJob>]>,
    puts: Arc<[mpsc::Sender<PutJob>]>,
    routes: Arc<Routes>,
}

/// The positions of a sent part in its submission, and the answer to wait for.
type Sent<Place, Answered> = (Vec<Place>, oneshot::Receiver<Vec<Result<Answered, SubmitError>>>);

/// A task that is being inserted: its position, its id, and its due time; `None` stands for the time of the insert.
type Inserted = (usize, TaskId, Option<UnixMicros>);

/// Tasks to insert. The answer to each is the time of the insert.
pub type InsertJob = Job<UnixMicros>;

/// The half that [`run`] works on: one queue of jobs for each database.
#[derive(Debug)]
pub struct SubmitJobs {
    pub jobs: Vec<mpsc::Receiver<InsertJob>>,
    pub puts: Vec<mpsc::Receiver<PutJob>>,
}

impl Submitter {
    pub fn new(
        databases: NodeDatabases,
        books: Books,
        fitness: watch::Receiver<NodeFitness>,
        shard_count: u32,
        horizon: Duration,
    ) -> (Self, SubmitJobs) {
        let (jobs, to_insert): (Vec<_>, Vec<_>) = databases.all().iter().map(|_| mpsc::channel(WAITING_JOBS)).unzip();
        let (puts, to_put): (Vec<_>, Vec<_>) = databases.all().iter().map(|_| mpsc::channel(WAITING_JOBS)).unzip();
        let routes = Arc::new(Routes { databases, books, fitness, shard_count, horizon });
        (Self { jobs: jobs.into(), puts: puts.into(), routes }, SubmitJobs { jobs: to_insert, puts: to_put })
    }

    /// Submits tasks. Returns one answer for each, in their order. `Ok` means that the task, or the one that has
    /// its key, is durable.
    pub async fn submit(&self, tasks: Vec<ValidTask>, source: &'static str) -> Vec<Result<Accepted, SubmitError>> {
        let (placed, routed) = self.routes.place(tasks);
        let mut answers = self.write_routed(placed, source, routed).await;
        for _ in 1..TRIES {
            let (places, moved) = moved(&answers);
            if moved.is_empty() || !self.knows_again().await {
                break;
            }
            let (placed, routed) = self.routes.place_again(moved);
            let again = self.write_routed(placed, source, routed).await;
            for (place, answer) in places.into_iter().zip(again) {
                answers[place] = answer;
            }
        }
        answers
    }

    /// Reads the changed queues. Returns whether that succeeded.
    async fn knows_again(&self) -> bool {
        catch_up(&self.routes.databases.home().sql, &self.routes.books).await.is_ok()
    }

    /// Writes tasks that have ids already. They stay on their shards, even if their queue has been placed anew.
    pub async fn write(&self, new: Vec<NewTask>, source: &'static str) -> Vec<Result<Accepted, SubmitError>> {
        self.write_routed(new, source, i64::MAX).await
    }

    async fn write_routed(
        &self,
        new: Vec<NewTask>,
        source: &'static str,
        routed: i64,
    ) -> Vec<Result<Accepted, SubmitError>> {
        let mut answers: Vec<Option<Result<Accepted, SubmitError>>> = new.iter().map(|_| None).collect();
        let (keyed, plain): (Vec<_>, Vec<_>) = new.into_iter().enumerate().partition(|(_, task)| task.is_put());
        let (inserts, puts) = (self.send_inserts(plain, source, routed), self.send_puts(keyed, source, routed));
        for (places, answered) in inserts {
            let given = answered.await.unwrap_or_else(|_| vec![Err(stopping()); places.len()]);
            for ((place, id, due_at), answer) in places.into_iter().zip(given) {
                let stored = |now| Accepted::Stored(Stored { id, created_at: now, due_at: due_at.unwrap_or(now) });
                answers[place] = Some(answer.map(stored));
            }
        }
        for (places, answered) in puts {
            let given = answered.await.unwrap_or_else(|_| vec![Err(stopping()); places.len()]);
            for (place, answer) in places.into_iter().zip(given) {
                answers[place] = Some(answer.and_then(keyed_answer));
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or(Err(SubmitError::Overloaded))).collect()
    }

    /// Sends each database's part to its insert loop. A part that finds no room is left out.
    fn send_inserts(
        &self,
        tasks: Vec<(usize, NewTask)>,
        source: &'static str,
        routed: i64,
    ) -> Vec<Sent<Inserted, UnixMicros>> {
        let mut sent = Vec::new();
        for (index, part) in self.by_database(tasks) {
            let (answer, answered) = oneshot::channel();
            let due_at = |task: &NewTask| (!task.due_now).then_some(task.due_at);
            let places = part.iter().map(|(place, task)| (*place, task.id, due_at(task))).collect();
            let tasks = part.into_iter().map(|(_, task)| task).collect();
            if self.jobs[index.get()].try_send(Job { tasks, source, routed, answer }).is_ok() {
                sent.push((places, answered));
            }
        }
        sent
    }

    fn send_puts(&self, tasks: Vec<(usize, NewTask)>, source: &'static str, routed: i64) -> Vec<Sent<usize, Put>> {
        let mut sent = Vec::new();
        for (index, part) in self.by_database(tasks) {
            let mut part = part.into_iter().peekable();
            while part.peek().is_some() {
                let (answer, answered) = oneshot::channel();
                let (places, tasks) = part.by_ref().take(TASKS_PER_PUT).unzip();
                if self.puts[index.get()].try_send(PutJob { tasks, source, routed, answer }).is_ok() {
                    sent.push((places, answered));
                }
            }
        }
        sent
    }

    /// Divides tasks by database, each with its position in the whole.
    fn by_database(&self, tasks: Vec<(usize, NewTask)>) -> BTreeMap<DatabaseIndex, Vec<(usize, NewTask)>> {
        let mut parts: BTreeMap<DatabaseIndex, Vec<(usize, NewTask)>> = BTreeMap::new();
        for (place, task) in tasks {
            let (index, _) = self.routes.databases.of(task.id.shard()).expect("routes lead to shards that exist");
            parts.entry(index).or_default().push((place, task));
        }
        parts
    }
}

/// The tasks that now belong on other shards, with their positions.
fn moved(answers: &[Result<Accepted, SubmitError>]) -> (Vec<usize>, Vec<NewTask>) {
    let moved = |(place, answer): (usize, &Result<Accepted, SubmitError>)| match answer {
        Err(SubmitError::Moved(task)) => Some((place, NewTask::clone(task))),
        _ => None,
    };
    answers.iter().enumerate().filter_map(moved).unzip()
}

/// Turns a put into an answer. A task that another transaction blocks is not stored, and its neighbours are.
fn keyed_answer(put: Put) -> Result<Accepted, SubmitError> {
    if put.outcome == PutOutcome::Busy {
        return Err(SubmitError::Unavailable("another transaction holds a task with this key".to_owned()));
    }
    Ok(Accepted::Keyed(put))
}

fn stopping() -> SubmitError {
    SubmitError::Unknown("the node is stopping".to_owned())
}
