//! Makes submitted tasks durable: routes each to its shard, gathers what comes in at the same time into one insert, answers
//! each caller after the commit, and hands near-due ones to the heap.
//!
//! If this loop stops, submissions wait in a bounded queue and are refused when it is full; nothing that was answered is lost.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{QueueName, ShardId, TaskId},
    shard::route::{Routing, route},
    task::NewTask,
    time::UnixMicros,
    wire::task::ValidTask,
};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{at_once::AtOnce, nudger::Nudger, prober::Fitness, queue_reader::Books, site::Sites};
use crate::{
    clock,
    store::{Database, Effect, Error, submit::Sending},
    supervise::spawn_child,
};

/// One insert takes about this many rows: beyond it the time a row costs no longer falls.
const ROWS_PER_INSERT: usize = 2_000;

/// Inserts of one database in flight: one commits while the next is filled.
const INSERTS_IN_FLIGHT: usize = 3;

/// Submissions that wait for an insert, of one database. More are told to come back.
const WAITING_JOBS: usize = 1_024;

/// Between two sendings of a batch.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a batch whose commit is unknown is sent again before its callers are told so.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(5);

/// What a caller may rely on: this task is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub id: TaskId,
    pub created_at: UnixMicros,
    pub due_at: UnixMicros,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unstored {
    #[error("it was not stored: {0}")]
    Unavailable(String),
    #[error("nobody knows whether it was stored: {0}")]
    Unknown(String),
    #[error("too many submissions are waiting")]
    Overloaded,
}

#[derive(Clone, Debug)]
pub struct Submitter {
    jobs: Arc<[mpsc::Sender<Job>]>,
    routes: Arc<Routes>,
}

#[derive(Debug)]
struct Routes {
    sites: Sites,
    books: Books,
    fitness: tokio::sync::watch::Receiver<Fitness>,
    shard_count: u32,
    horizon: Duration,
}

/// Tasks of one caller for one database.
#[derive(Debug)]
pub struct Job {
    tasks: Vec<NewTask>,
    /// Where they come from, as the metrics call it.
    source: &'static str,
    answer: oneshot::Sender<Result<UnixMicros, Unstored>>,
}

/// The half that [`run`] works on: one queue of jobs a database.
#[derive(Debug)]
pub struct Intake {
    jobs: Vec<mpsc::Receiver<Job>>,
}

impl Submitter {
    pub fn new(
        sites: Sites,
        books: Books,
        fitness: tokio::sync::watch::Receiver<Fitness>,
        shard_count: u32,
        horizon: Duration,
    ) -> (Self, Intake) {
        let (senders, receivers): (Vec<_>, Vec<_>) = sites.all().iter().map(|_| mpsc::channel(WAITING_JOBS)).unzip();
        let routes = Arc::new(Routes { sites, books, fitness, shard_count, horizon });
        (Self { jobs: senders.into(), routes }, Intake { jobs: receivers })
    }

    /// One answer a task, in the order of the tasks. Done answers mean that the task is durable.
    pub async fn submit(&self, tasks: Vec<ValidTask>, source: &'static str) -> Vec<Result<Stored, Unstored>> {
        let new = self.routes.place(tasks);
        let mut stored: Vec<Result<Stored, Unstored>> =
            new.iter().map(|task| Ok(Stored { id: task.id, created_at: task.due_at, due_at: task.due_at })).collect();
        let mut waiting = Vec::new();
        for (index, places, tasks) in self.by_site(new) {
            let (answer, answered) = oneshot::channel();
            match self.jobs[index].try_send(Job { tasks, source, answer }) {
                Ok(()) => waiting.push((places, answered)),
                Err(_) => places.into_iter().for_each(|(place, _)| stored[place] = Err(Unstored::Overloaded)),
            }
        }
        for (places, answered) in waiting {
            let answer = answered.await.unwrap_or_else(|_| Err(Unstored::Unknown("the node is stopping".to_owned())));
            for (place, asked_now) in places {
                match (&answer, &mut stored[place]) {
                    (Ok(now), Ok(stored)) => {
                        stored.created_at = *now;
                        if asked_now {
                            stored.due_at = *now;
                        }
                    }
                    (Err(why), slot) => *slot = Err(why.clone()),
                    (Ok(_), Err(_)) => {}
                }
            }
        }
        stored
    }

    /// Each database's part: where its tasks stand in the whole, and the tasks.
    #[expect(clippy::type_complexity, reason = "named by its two lines of use")]
    fn by_site(&self, tasks: Vec<NewTask>) -> Vec<(usize, Vec<(usize, bool)>, Vec<NewTask>)> {
        let mut parts: BTreeMap<usize, (Vec<(usize, bool)>, Vec<NewTask>)> = BTreeMap::new();
        for (place, task) in tasks.into_iter().enumerate() {
            let (index, _) = self.routes.sites.of(task.id.shard()).expect("routes lead to shards that exist");
            let part = parts.entry(index).or_default();
            part.0.push((place, task.asked_now));
            part.1.push(task);
        }
        parts.into_iter().map(|(index, (places, tasks))| (index, places, tasks)).collect()
    }
}

impl Routes {
    fn place(&self, tasks: Vec<ValidTask>) -> Vec<NewTask> {
        let now = clock::now();
        let book = self.books.load();
        let fitness = self.fitness.borrow().clone();
        let fit = |shard: ShardId| self.sites.of(shard).is_some_and(|(_, site)| fitness.is_fit(site.name()));
        let owned: Vec<ShardId> = self
            .sites
            .all()
            .iter()
            .filter(|site| fitness.is_fit(site.name()))
            .flat_map(|site| site.held.claimable().into_keys())
            .collect();
        tasks
            .into_iter()
            .map(|task| {
                let mut shard = ShardId::new(0);
                // A task that may live anywhere goes where the database answers; a few throws find one.
                for _ in 0..8 {
                    shard = route(&Routing {
                        queue: &task.queue,
                        placement: book.get(&task.queue).policy.placement,
                        partition_key: task.partition_key.as_deref(),
                        key: None,
                        due_at: task.due_at,
                        now,
                        horizon: self.horizon,
                        owned: &owned,
                        shard_count: self.shard_count,
                        dice: rand::random(),
                    });
                    if fit(shard) {
                        break;
                    }
                }
                task.into_new(TaskId::mint(uuid::Uuid::now_v7(), shard))
            })
            .collect()
    }
}

/// Writes what comes in for the database at `index`, until told to stop; then what has come in already.
pub async fn run(
    index: usize,
    mut jobs: mpsc::Receiver<Job>,
    at_once: AtOnce,
    nudger: Nudger,
    stop: CancellationToken,
) {
    let inserts = Arc::new(Semaphore::new(INSERTS_IN_FLIGHT));
    loop {
        let room = Arc::clone(&inserts).acquire_owned().await.expect("the semaphore is never closed");
        let first = tokio::select! {
            job = jobs.recv() => job,
            () = stop.cancelled() => {
                jobs.close();
                jobs.recv().await
            }
        };
        let Some(first) = first else { break };
        let batch = gather(first, &mut jobs);
        let insert = Insert { index, at_once: at_once.clone(), nudger: nudger.clone() };
        spawn_child(async move {
            insert.write(batch).await;
            drop(room);
        });
    }
    // The last inserts hold permits until they have answered.
    let all = u32::try_from(INSERTS_IN_FLIGHT).expect("a small number");
    let _ = inserts.acquire_many(all).await;
}

impl Intake {
    pub fn into_jobs(self) -> Vec<mpsc::Receiver<Job>> {
        self.jobs
    }
}

fn gather(first: Job, jobs: &mut mpsc::Receiver<Job>) -> Vec<Job> {
    let mut rows = first.tasks.len();
    let mut batch = vec![first];
    while rows < ROWS_PER_INSERT
        && let Ok(job) = jobs.try_recv()
    {
        rows += job.tasks.len();
        batch.push(job);
    }
    batch
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
        let written = match self.database().task_submit_claimed(&tasks, &begun.epochs).await {
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
        let stored = self.store(&tasks, error).await;
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
            tracing::debug!(task = %task.id, queue = %task.queue, %due_at, "task submitted");
        }
        for ((queue, source), count) in counts {
            self.at_once.metrics.submitted(&queue, source, count);
        }
    }

    /// After a first sending that ended in `error`: sends the batch until it is known to be durable or known not to be, within bounds.
    async fn store(&self, tasks: &[NewTask], mut error: Error) -> Result<UnixMicros, Unstored> {
        let database = self.database();
        let started = Instant::now();
        let mut sending = Sending::First;
        loop {
            let unknown = sending == Sending::Again || error.effect == Effect::Unknown;
            let retry = unknown || error.is_contention();
            if !retry || started.elapsed() > RESOLVE_DEADLINE {
                tracing::warn!(
                    database = %database.name(), tasks = tasks.len(), error = &error as &dyn std::error::Error,
                    "submitted tasks were not stored"
                );
                let why = error.to_string();
                return Err(if unknown { Unstored::Unknown(why) } else { Unstored::Unavailable(why) });
            }
            if unknown {
                sending = Sending::Again;
            }
            tokio::time::sleep(PAUSE).await;
            error = match database.task_submit(tasks, sending).await {
                Ok(asked_at) => return Ok(asked_at),
                Err(error) => error,
            };
        }
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
