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

use super::{
    at_once::AtOnce,
    nudger::Nudger,
    prober::Fitness,
    putter::{PutJob, TASKS_PER_PUT},
    queue_reader::Books,
    site::Sites,
};
use crate::{
    clock,
    store::{Database, Effect, Error, put::Put, submit::Sending},
    supervise::spawn_child,
    traces,
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

/// What a caller's task came to: [`Stored`] when it is new, else what another task with its key means for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Stored(Stored),
    Keyed(Put),
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
    puts: Arc<[mpsc::Sender<PutJob>]>,
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

/// Where a part of a submission stands in it, and the answer that is awaited.
type Sent<Places, Answered> = (Places, oneshot::Receiver<Result<Answered, Unstored>>);

/// A task that is being inserted: its place, its id, and when it is due; `None`: when it is written.
type Inserted = (usize, TaskId, Option<UnixMicros>);

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
    pub jobs: Vec<mpsc::Receiver<Job>>,
    pub puts: Vec<mpsc::Receiver<PutJob>>,
}

impl Submitter {
    pub fn new(
        sites: Sites,
        books: Books,
        fitness: tokio::sync::watch::Receiver<Fitness>,
        shard_count: u32,
        horizon: Duration,
    ) -> (Self, Intake) {
        let (jobs, to_insert): (Vec<_>, Vec<_>) = sites.all().iter().map(|_| mpsc::channel(WAITING_JOBS)).unzip();
        let (puts, to_put): (Vec<_>, Vec<_>) = sites.all().iter().map(|_| mpsc::channel(WAITING_JOBS)).unzip();
        let routes = Arc::new(Routes { sites, books, fitness, shard_count, horizon });
        (Self { jobs: jobs.into(), puts: puts.into(), routes }, Intake { jobs: to_insert, puts: to_put })
    }

    /// One answer a task, in the order of the tasks. Done answers mean that the task, or the one that has its key, is durable.
    pub async fn submit(&self, tasks: Vec<ValidTask>, source: &'static str) -> Vec<Result<Answer, Unstored>> {
        self.write(self.routes.place(tasks), source).await
    }

    /// The same for tasks that have their ids already.
    pub async fn write(&self, new: Vec<NewTask>, source: &'static str) -> Vec<Result<Answer, Unstored>> {
        let mut answers: Vec<Option<Result<Answer, Unstored>>> = new.iter().map(|_| None).collect();
        let (keyed, plain): (Vec<_>, Vec<_>) = new.into_iter().enumerate().partition(|(_, task)| task.is_put());
        let (inserts, puts) = (self.send_inserts(plain, source), self.send_puts(keyed, source));
        for (places, answered) in inserts {
            let answer = answered.await.unwrap_or_else(|_| Err(stopping()));
            for (place, id, due_at) in places {
                let stored = |now| Answer::Stored(Stored { id, created_at: now, due_at: due_at.unwrap_or(now) });
                answers[place] = Some(answer.clone().map(stored));
            }
        }
        for (places, answered) in puts {
            match answered.await.unwrap_or_else(|_| Err(stopping())) {
                Ok(puts) => {
                    places.into_iter().zip(puts).for_each(|(place, put)| answers[place] = Some(Ok(Answer::Keyed(put))))
                }
                Err(why) => places.into_iter().for_each(|place| answers[place] = Some(Err(why.clone()))),
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or(Err(Unstored::Overloaded))).collect()
    }

    /// Each database's part, sent to whoever writes it. What finds no room is left out.
    fn send_inserts(&self, tasks: Vec<(usize, NewTask)>, source: &'static str) -> Vec<Sent<Vec<Inserted>, UnixMicros>> {
        let mut sent = Vec::new();
        for (index, part) in self.by_site(tasks) {
            let (answer, answered) = oneshot::channel();
            let due_at = |task: &NewTask| (!task.asked_now).then_some(task.due_at);
            let places = part.iter().map(|(place, task)| (*place, task.id, due_at(task))).collect();
            let tasks = part.into_iter().map(|(_, task)| task).collect();
            if self.jobs[index].try_send(Job { tasks, source, answer }).is_ok() {
                sent.push((places, answered));
            }
        }
        sent
    }

    fn send_puts(&self, tasks: Vec<(usize, NewTask)>, source: &'static str) -> Vec<Sent<Vec<usize>, Vec<Put>>> {
        let mut sent = Vec::new();
        for (index, part) in self.by_site(tasks) {
            let mut part = part.into_iter().peekable();
            while part.peek().is_some() {
                let (answer, answered) = oneshot::channel();
                let (places, tasks) = part.by_ref().take(TASKS_PER_PUT).unzip();
                if self.puts[index].try_send(PutJob { tasks, source, answer }).is_ok() {
                    sent.push((places, answered));
                }
            }
        }
        sent
    }

    /// Each database's part, every task with its place in the whole.
    fn by_site(&self, tasks: Vec<(usize, NewTask)>) -> BTreeMap<usize, Vec<(usize, NewTask)>> {
        let mut parts: BTreeMap<usize, Vec<(usize, NewTask)>> = BTreeMap::new();
        for (place, task) in tasks {
            let (index, _) = self.routes.sites.of(task.id.shard()).expect("routes lead to shards that exist");
            parts.entry(index).or_default().push((place, task));
        }
        parts
    }
}

fn stopping() -> Unstored {
    Unstored::Unknown("the node is stopping".to_owned())
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
                        key: task.keyed.as_ref().map(|keyed| keyed.key.as_str()),
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
pub async fn run(index: usize, jobs: mpsc::Receiver<Job>, at_once: AtOnce, nudger: Nudger, stop: CancellationToken) {
    let bounds = Bounds { in_flight: INSERTS_IN_FLIGHT, tasks: ROWS_PER_INSERT };
    work(jobs, stop, bounds, |batch| {
        let insert = Insert { index, at_once: at_once.clone(), nudger: nudger.clone() };
        async move { insert.write(batch).await }
    })
    .await;
}

/// How much of what comes in shares a statement, and how many statements are under way at a time.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub in_flight: usize,
    /// A statement that has so many takes no further job.
    pub tasks: usize,
}

/// What one caller wants written.
pub trait Part: Send + 'static {
    fn tasks(&self) -> usize;
}

impl Part for Job {
    fn tasks(&self) -> usize {
        self.tasks.len()
    }
}

/// Has what comes in at the same time written together, until told to stop; then what has come in already. Returns when all is written.
pub async fn work<P, F>(
    mut jobs: mpsc::Receiver<P>,
    stop: CancellationToken,
    bounds: Bounds,
    write: impl Fn(Vec<P>) -> F,
) where
    P: Part,
    F: Future<Output = ()> + Send + 'static,
{
    let statements = Arc::new(Semaphore::new(bounds.in_flight));
    loop {
        let room = Arc::clone(&statements).acquire_owned().await.expect("the semaphore is never closed");
        let first = tokio::select! {
            job = jobs.recv() => job,
            () = stop.cancelled() => {
                jobs.close();
                jobs.recv().await
            }
        };
        let Some(first) = first else { break };
        let writing = write(gather(first, &mut jobs, bounds.tasks));
        spawn_child(async move {
            writing.await;
            drop(room);
        });
    }
    // The last statements hold permits until they have answered.
    let all = u32::try_from(bounds.in_flight).expect("a small number");
    let _ = statements.acquire_many(all).await;
}

fn gather<P: Part>(first: P, jobs: &mut mpsc::Receiver<P>, most: usize) -> Vec<P> {
    let mut tasks = first.tasks();
    let mut batch = vec![first];
    while tasks < most
        && let Ok(job) = jobs.try_recv()
    {
        tasks += job.tasks();
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
