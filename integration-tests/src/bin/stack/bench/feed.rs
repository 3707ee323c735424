//! Submits batches to the nodes in turn and counts them.

use std::{
    fmt::Write,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use integration_tests::{
    client::{Client, Failure},
    clock::{now_ms, now_us},
};
use parking_lot::Mutex;
use rand::RngExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

use super::report::{Report, Target, progress};

const TICK: Duration = Duration::from_millis(25);
/// Batches of tasks that are due at once are small, because a task waits for the others of its batch.
const SHORT_TICK: Duration = Duration::from_millis(5);
/// Enough to keep each node busy, without a queue of batches before it.
const IN_FLIGHT_PER_NODE: usize = 2;
const WAY_OPEN_WITHIN: Duration = Duration::from_secs(30);
/// How far ahead of its due time a task of a stream is submitted.
pub(super) const LEAD_MS: Range<i64> = 2_000..10_000;
pub(super) const HOUR_MS: i64 = 3_600_000;
pub(super) const MONTH_MS: i64 = 30 * 86_400_000;
/// More than any measurement has under way, so that RabbitMQ takes everything at once.
pub(super) const MAX_LENGTH: u32 = 1_000_000;

/// How often each node may put a batch off before it counts as refused, and the pause between.
const ROUNDS: usize = 4;
const ROUND_PAUSE: Duration = Duration::from_millis(250);

const REFUSED: &str = "refused";

/// A task that was accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepted {
    pub serial: u64,
    pub due_us: i64,
}

/// A target of a stream's tasks.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub queue: String,
    /// How many different partition keys the tasks have; 0: none at all.
    pub partitions: u64,
    /// Whether each task has a business key of its own: its serial number.
    pub keyed: bool,
}

impl Way {
    pub(super) fn to(queue: &str) -> Self {
        Self { queue: queue.to_owned(), partitions: 0, keyed: false }
    }

    /// The way of the task with this serial number: the ways take turns.
    pub(super) fn of(ways: &[Self], serial: u64) -> &Self {
        &ways[serial as usize % ways.len()]
    }
}

/// A source of load on the cluster.
#[derive(Debug)]
pub(super) struct Feed {
    clients: Vec<Client>,
    turn: AtomicUsize,
    serial: AtomicU64,
    lead_ms: Range<i64>,
    /// Tasks that no node accepted.
    pub refused: AtomicU64,
    /// Tasks whose answer was lost or late. They may be stored.
    unclear: AtomicU64,
}

impl Feed {
    pub(super) fn new(clients: Vec<Client>) -> Arc<Self> {
        Self::ahead(clients, LEAD_MS)
    }

    /// A stream's tasks are submitted so far ahead of their due times.
    pub(super) fn ahead(clients: Vec<Client>, lead_ms: Range<i64>) -> Arc<Self> {
        let (turn, serial, refused, unclear) = Default::default();
        Arc::new(Self { clients, turn, serial, lead_ms, refused, unclear })
    }

    /// Adds the tasks that no node accepted: nothing keeps a node from it, and no figure counts what it refuses.
    pub(super) fn tell_refused(&self, part: &str, report: &mut Report) {
        report.finding(part, REFUSED, self.refused.load(Ordering::Relaxed));
        self.tell_unclear(part, report);
    }

    /// A stall of the machine is enough for these.
    fn tell_unclear(&self, part: &str, report: &mut Report) {
        let unclear = self.unclear.load(Ordering::Relaxed) as f64;
        report.judged(part, "answered late or not at all", unclear, "", Target::AtMost(0.0));
    }

    /// Adds them where nodes may refuse: while shards move, or under more load than they can bear.
    pub(super) fn tell_refused_under_stress(&self, part: &str, report: &mut Report) {
        report.judged(part, REFUSED, self.refused.load(Ordering::Relaxed) as f64, "", Target::AtMost(0.0));
        self.tell_unclear(part, report);
    }

    /// Sets a queue's policy, and waits until its consumer, which counts in `seen`, has received a message.
    pub(super) async fn open(&self, queue: &str, settle: &str, seen: &AtomicU64) -> Result<()> {
        self.open_by(queue, &json!({ "settle": settle, "max_length": MAX_LENGTH }), seen).await
    }

    /// Like `open`, with a whole policy.
    pub(super) async fn open_by(&self, queue: &str, policy: &Value, seen: &AtomicU64) -> Result<()> {
        let first = self.clients.first().context("there is a node")?;
        let before = seen.load(Ordering::Relaxed);
        first.put_queue(queue, policy).await?;
        first.submit(&json!({ "queue": queue, "payload": {} })).await?;
        let deadline = Instant::now() + WAY_OPEN_WITHIN;
        while seen.load(Ordering::Relaxed) == before {
            ensure!(Instant::now() < deadline, "no message comes through {queue}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Sends one batch, spread over the ways by the tasks' serial numbers, to one node, or to the next one if that
    /// certainly did not take it. Returns the accepted tasks: all or none.
    pub(super) async fn send_all(&self, ways: &[Way], batch: &Batch) -> Vec<Accepted> {
        self.send_for_answer(ways, batch).await.0
    }

    /// Like `send_all`, and returns the node's answer too.
    pub(super) async fn send_for_answer(&self, ways: &[Way], batch: &Batch) -> (Vec<Accepted>, String) {
        let first_serial = self.serial.fetch_add(batch.len() as u64, Ordering::Relaxed) + 1;
        let (body, tasks) = batch.body(ways, first_serial);
        for attempt in 0..ROUNDS * self.clients.len() {
            if attempt > 0 && attempt.is_multiple_of(self.clients.len()) {
                tokio::time::sleep(ROUND_PAUSE).await;
            }
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            match submit(&self.clients[turn % self.clients.len()], &body).await {
                Ok(Some(answer)) => return (tasks, answer),
                Ok(None) => {}
                Err(error) => {
                    progress(&format!("a batch for {}: {error:#}", ways[0].queue));
                    if matches!(error.downcast_ref(), Some(Failure::Unknown(_))) {
                        self.unclear.fetch_add(tasks.len() as u64, Ordering::Relaxed);
                        return (Vec::new(), String::new());
                    }
                    break;
                }
            }
        }
        self.refused.fetch_add(tasks.len() as u64, Ordering::Relaxed);
        (Vec::new(), String::new())
    }

    /// Submits `count` tasks, `size` in a batch, with a few batches on their way to each node. Each accepted batch goes
    /// to `stored`.
    pub(super) async fn submit_all(
        &self,
        ways: &[Way],
        count: usize,
        size: usize,
        batch: impl Fn(usize) -> Batch,
        stored: impl Fn(Vec<Accepted>),
    ) -> Result<()> {
        let taken = AtomicUsize::new(0);
        let writers = (0..self.clients.len() * IN_FLIGHT_PER_NODE).map(async |_| {
            loop {
                let len = count.saturating_sub(taken.fetch_add(size, Ordering::Relaxed)).min(size);
                if len == 0 {
                    return Ok(());
                }
                let accepted = self.send_all(ways, &batch(len)).await;
                ensure!(!accepted.is_empty(), "no node takes tasks");
                stored(accepted);
            }
        });
        try_join_all(writers).await.map(drop)
    }

    /// An even stream until `until`, over the ways in turn. Accepted tasks go to `accepted`.
    pub(super) async fn stream(
        self: &Arc<Self>,
        ways: &[Way],
        per_second: u32,
        until: Instant,
        accepted: &Arc<Mutex<Vec<Accepted>>>,
    ) {
        self.stream_of(|len| Batch::within(self.lead_ms.clone(), len), TICK, ways, per_second, until, accepted).await;
    }

    /// Like `stream`, with tasks that are due at once. Their payloads carry the instant at which the request was
    /// written, so that the wait for a tick does not count.
    pub(super) async fn stream_now(
        self: &Arc<Self>,
        ways: &[Way],
        per_second: u32,
        until: Instant,
        accepted: &Arc<Mutex<Vec<Accepted>>>,
    ) {
        self.stream_of(Batch::Now, SHORT_TICK, ways, per_second, until, accepted).await;
    }

    /// Each tick makes a batch of the tasks that an even stream has had since the last one.
    async fn stream_of(
        self: &Arc<Self>,
        batch: impl Fn(usize) -> Batch,
        tick: Duration,
        ways: &[Way],
        per_second: u32,
        until: Instant,
        accepted: &Arc<Mutex<Vec<Accepted>>>,
    ) {
        let began = Instant::now();
        let mut ticks = tokio::time::interval(tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut sending = JoinSet::new();
        let mut sent = 0;
        while Instant::now() < until {
            ticks.tick().await;
            while sending.try_join_next().is_some() {}
            let wanted = (began.elapsed().as_secs_f64() * f64::from(per_second)) as usize;
            if wanted > sent {
                let (feed, ways, accepted) = (Arc::clone(self), ways.to_vec(), Arc::clone(accepted));
                let batch = batch(wanted - sent);
                sending.spawn(async move {
                    let tasks = feed.send_all(&ways, &batch).await;
                    accepted.lock().extend(tasks);
                });
                sent = wanted;
            }
        }
        while sending.join_next().await.is_some() {}
    }
}

/// When the tasks of a batch are due.
#[derive(Debug)]
pub(super) enum Batch {
    Now(usize),
    At(Vec<i64>),
}

impl Batch {
    /// All due at one instant.
    pub(super) fn at(due_ms: i64, len: usize) -> Self {
        Self::At(vec![due_ms; len])
    }

    /// Due between 30 and 60 days from now.
    pub(super) fn far(len: usize) -> Self {
        Self::within(MONTH_MS..2 * MONTH_MS, len)
    }

    /// All due in an hour.
    pub(super) fn in_an_hour(len: usize) -> Self {
        Self::At(vec![in_an_hour_ms(); len])
    }

    /// Each due at a time of its own in that range from now.
    pub(super) fn within(ahead_ms: Range<i64>, len: usize) -> Self {
        let (now_ms, mut rng) = (now_ms(), rand::rng());
        Self::At((0..len).map(|_| now_ms + rng.random_range(ahead_ms.clone())).collect())
    }

    fn len(&self) -> usize {
        match self {
            Self::Now(len) => *len,
            Self::At(due) => due.len(),
        }
    }

    /// The payload carries the due time in microseconds and the task's serial number.
    fn body(&self, ways: &[Way], first_serial: u64) -> (String, Vec<Accepted>) {
        let now_us = now_us();
        let mut body = String::with_capacity(self.len() * (ways[0].queue.len() + 120) + 20);
        let mut tasks = Vec::with_capacity(self.len());
        body.push_str("{\"tasks\":[");
        for (place, serial) in (0..self.len()).zip(first_serial..) {
            let due_us = match self {
                Self::Now(_) => now_us,
                Self::At(due_ms) => due_ms[place] * 1_000,
            };
            let Way { queue, partitions, keyed } = Way::of(ways, serial);
            let comma = if place == 0 { "" } else { "," };
            write!(body, "{comma}{{\"queue\":\"{queue}\",\"payload\":{{\"t\":{due_us},\"n\":{serial}}}").ok();
            if let Self::At(due_ms) = self {
                write!(body, ",\"due_at\":{}", due_ms[place]).ok();
            }
            if *partitions > 0 {
                // Queues take turns, so the tasks of one queue have every n-th serial.
                write!(body, ",\"partition_key\":\"{}\"", serial / ways.len() as u64 % partitions).ok();
            }
            if *keyed {
                write!(body, ",\"key\":\"{serial}\"").ok();
            }
            body.push('}');
            tasks.push(Accepted { serial, due_us });
        }
        body.push_str("]}");
        (body, tasks)
    }
}

/// The Unix milliseconds of an hour from now.
pub(super) fn in_an_hour_ms() -> i64 {
    now_ms() + HOUR_MS
}

/// Posts JSON, and returns the answer to a success.
pub(crate) async fn post(client: &Client, path: &str, body: String) -> Result<String> {
    let answer = client.send(Method::POST, path, Some(body.into())).await?;
    let status = answer.status();
    let text = answer.text().await?;
    ensure!(status.is_success(), "{status}: {text}");
    Ok(text)
}

/// The node's answer if it accepted the whole batch. `None`: the node puts it off. An error: it refuses a task, or,
/// with `Failure::Unknown`, the batch may be stored.
async fn submit(client: &Client, body: &str) -> Result<Option<String>> {
    let answer = match client.send(Method::POST, "/v1/tasks/batch", Some(body.into())).await {
        Ok(answer) => answer,
        Err(Failure::NotSent(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let status = answer.status();
    let text = answer.text().await.map_err(|error| Failure::Unknown(error.to_string()))?;
    if status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS {
        return Ok(None);
    }
    ensure!(status.is_success(), "{status}: {text}");
    ensure!(!text.contains("\"error\""), "a task was refused: {}", text.get(..500).unwrap_or(&text));
    Ok(Some(text))
}
