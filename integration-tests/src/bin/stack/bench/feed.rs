//! Submits batches to the nodes in turn and counts them.

use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use integration_tests::{
    client::{Client, Failure},
    clock::now_us,
};
use parking_lot::Mutex;
use rand::RngExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

use super::report::progress;

const TICK: Duration = Duration::from_millis(25);
const WAY_OPEN_WITHIN: Duration = Duration::from_secs(30);
/// More than any measurement has under way, so that RabbitMQ takes everything at once.
pub(super) const MAX_LENGTH: u32 = 1_000_000;

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
}

/// A source of load on the cluster.
#[derive(Debug)]
pub(super) struct Feed {
    clients: Vec<Client>,
    turn: AtomicUsize,
    serial: AtomicU64,
    /// Tasks that no node accepted.
    pub refused: AtomicU64,
}

impl Feed {
    pub(super) fn new(clients: Vec<Client>) -> Arc<Self> {
        let (turn, serial, refused) = Default::default();
        Arc::new(Self { clients, turn, serial, refused })
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

    /// Sends one batch to one node, or to the next one if that certainly did not take it. Returns the accepted tasks:
    /// all or none.
    pub(super) async fn send(&self, queue: &str, batch: &Batch) -> Vec<Accepted> {
        self.send_all(&[Way::to(queue)], batch).await.0
    }

    /// Like `send`, with the tasks spread over several queues by their serial numbers. Returns the node's answer too.
    pub(super) async fn send_all(&self, ways: &[Way], batch: &Batch) -> (Vec<Accepted>, String) {
        let first_serial = self.serial.fetch_add(batch.len() as u64, Ordering::Relaxed) + 1;
        let (body, tasks) = batch.body(ways, first_serial);
        for _ in 0..self.clients.len() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            match submit(&self.clients[turn % self.clients.len()], &body).await {
                Ok(Some(answer)) => return (tasks, answer),
                Ok(None) => {}
                Err(error) => {
                    progress(&format!("a batch for {}: {error:#}", ways[0].queue));
                    break;
                }
            }
        }
        self.refused.fetch_add(tasks.len() as u64, Ordering::Relaxed);
        (Vec::new(), String::new())
    }

    /// An even stream until `until`, over the ways in turn. Each task is due 2 to 10 s after its submission; accepted
    /// tasks go to `accepted`.
    pub(super) async fn stream(
        self: &Arc<Self>,
        ways: &[Way],
        per_second: u32,
        until: Instant,
        accepted: &Arc<Mutex<Vec<Accepted>>>,
    ) {
        let began = Instant::now();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut sending = JoinSet::new();
        let mut sent = 0;
        while Instant::now() < until {
            ticks.tick().await;
            while sending.try_join_next().is_some() {}
            let wanted = (began.elapsed().as_secs_f64() * f64::from(per_second)) as usize;
            if wanted > sent {
                let (feed, ways, accepted) = (Arc::clone(self), ways.to_vec(), Arc::clone(accepted));
                let batch = Batch::ahead(wanted - sent);
                sending.spawn(async move {
                    let (tasks, _) = feed.send_all(&ways, &batch).await;
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
    /// Due in 2 to 10 s.
    pub(super) fn ahead(len: usize) -> Self {
        let now_ms = now_us() / 1_000;
        let mut rng = rand::rng();
        Self::At((0..len).map(|_| now_ms + rng.random_range(2_000..10_000)).collect())
    }

    /// Due between 30 and 60 days from now.
    pub(super) fn far(len: usize) -> Self {
        const MONTH_MS: i64 = 30 * 86_400_000;
        let now_ms = now_us() / 1_000;
        let mut rng = rand::rng();
        Self::At((0..len).map(|_| now_ms + rng.random_range(MONTH_MS..2 * MONTH_MS)).collect())
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
            let Way { queue, partitions, keyed } = &ways[serial as usize % ways.len()];
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

/// The node's answer if it accepted the whole batch; an error when a part of it may be stored.
async fn submit(client: &Client, body: &str) -> Result<Option<String>> {
    let answer = match client.send(Method::POST, "/v1/tasks/batch", Some(body.into())).await {
        Ok(answer) => answer,
        Err(Failure::NotSent(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let status = answer.status();
    let text = answer.text().await?;
    if status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS {
        return Ok(None);
    }
    ensure!(status.is_success(), "{status}: {text}");
    ensure!(!text.contains("\"error\""), "a task was refused: {}", text.get(..500).unwrap_or(&text));
    Ok(Some(text))
}
