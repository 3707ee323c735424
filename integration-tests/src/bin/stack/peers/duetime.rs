//! Duetime: three nodes, tasks submitted in batches over HTTP, a consumer over AMQP.

use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use integration_tests::{
    client::Client,
    clock::now_us,
    sandbox::{Sandbox, binary},
};
use serde_json::json;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    collector::Collector,
    judge::FIRST_PENDING,
    pace::{self, MONTH, Task},
    singles,
    work::{Order, Outcome, Told, Work},
};
use crate::bench::{self, burst::FOR_BURSTS, drain::Drain, feed::post};

const QUEUE: &str = "peer";
const NODES: usize = 3;
const LEASE_TTL: Duration = Duration::from_secs(10);
/// Batches on their way at once when submitting is all that happens.
const IN_FLIGHT: usize = 2 * NODES;

/// Tasks submitted and not yet consumed: the nodes always have work, and never pile it up.
const BACKLOG: usize = 12_000;
const OPEN_WITHIN: Duration = Duration::from_secs(30);

/// The clients of all nodes, in turn.
#[derive(Debug)]
struct Nodes {
    clients: Vec<Client>,
    turn: AtomicUsize,
    payload_bytes: usize,
}

/// When the tasks of a batch are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Now,
    AtItsInstant,
}

pub(super) async fn run(order: &Order) -> Result<Outcome> {
    let cluster = Sandbox::builder().nodes(NODES).lease_ttl(LEASE_TTL).unwatched();
    let cluster = if order.work == Work::Burst { cluster.config(FOR_BURSTS) } else { cluster }.start().await?;
    let nodes =
        Arc::new(Nodes { clients: cluster.clients(), turn: AtomicUsize::new(0), payload_bytes: order.payload_bytes });
    let outcome = match order.work {
        Work::Submit => Outcome::Counted(described(order, submit(order, &nodes).await?).await?),
        _ => {
            let collector = Arc::new(Collector::default());
            let _drain = Drain::start(&cluster.amqp_url(), QUEUE, collector.eye());
            nodes.open(&collector).await?;
            let told = match order.work {
                Work::Late => late(order, &nodes, &collector).await?,
                Work::Burst => burst(order, &nodes, &collector).await?,
                Work::Throughput | Work::Submit => throughput(order, &nodes, &collector).await?,
            };
            Outcome::Arrived(described(order, told).await?, collector.take())
        }
    };
    bench::end(cluster).await?;
    Ok(outcome)
}

async fn late(order: &Order, nodes: &Arc<Nodes>, collector: &Collector) -> Result<Told> {
    let pending = pace::due_at(pace::instant_in(MONTH), FIRST_PENDING, order.pending);
    nodes.submit_all(&pending, order.batch).await?;
    let began = Instant::now();
    let tasks = pace::evenly(order);
    pace::submit_ahead(&tasks, |batch| {
        let nodes = Arc::clone(nodes);
        async move { nodes.send(&batch, Due::AtItsInstant).await }
    })
    .await?;
    let told = submitted(tasks.len(), began);
    let last = tasks.last().map_or(0, |task| task.due_us);
    collector.wait(told.submitted, pace::instant_of(last) + order.patience()).await;
    Ok(told)
}

async fn burst(order: &Order, nodes: &Arc<Nodes>, collector: &Collector) -> Result<Told> {
    let due_us = pace::burst_instant(order);
    let (tasks, began) = (pace::due_at(due_us, 0, order.tasks), Instant::now());
    nodes.submit_all(&tasks, order.batch).await?;
    pace::ensure_ahead(due_us)?;
    let told = submitted(tasks.len(), began);
    collector.wait(told.submitted, pace::instant_of(due_us) + order.patience()).await;
    Ok(told)
}

async fn throughput(order: &Order, nodes: &Arc<Nodes>, collector: &Arc<Collector>) -> Result<Told> {
    let (room, next, began) = (Semaphore::new(BACKLOG), AtomicU64::new(0), Instant::now());
    let end = began + order.time();
    let writers = (0..IN_FLIGHT).map(async |_| {
        let batch = u32::try_from(order.batch.min(BACKLOG)).unwrap_or(u32::MAX);
        while let Ok(room) = tokio::time::timeout_at(end, room.acquire_many(batch)).await {
            room.context("it is never closed")?.forget();
            let first = next.fetch_add(u64::from(batch), Ordering::Relaxed);
            nodes.send(&pace::due_at(now_us(), first, u64::from(batch)), Due::Now).await?;
        }
        anyhow::Ok(())
    });
    let making_room = async {
        let mut known = 0;
        loop {
            let different = collector.different();
            room.add_permits((different - known) as usize);
            known = different;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        written = try_join_all(writers) => { written?; }
        () = making_room => {}
    }
    Ok(Told { submitted: next.into_inner(), submit_seconds: began.elapsed().as_secs_f64(), ..Told::default() })
}

async fn submit(order: &Order, nodes: &Nodes) -> Result<Told> {
    let clients: Vec<&Client> = nodes.clients.iter().cycle().take(order.connections).collect();
    singles::submit(order, &clients, async |client, task| {
        let (payload, due_ms) = (task.payload(order.payload_bytes), task.due_us / 1_000);
        let body = format!("{{\"queue\":\"{QUEUE}\",\"payload\":{payload},\"due_at\":{due_ms}}}");
        post(client, "/v1/tasks", body).await.map(drop)
    })
    .await
}

fn submitted(count: usize, began: Instant) -> Told {
    Told { submitted: count as u64, submit_seconds: began.elapsed().as_secs_f64(), ..Told::default() }
}

async fn described(order: &Order, told: Told) -> Result<Told> {
    let said = integration_tests::sandbox::run(&["--version"]).await?;
    let profile = if binary()?.iter().any(|part| part == "release") { "release" } else { "debug build" };
    let for_bursts = FOR_BURSTS.lines().skip(1).collect::<Vec<_>>().join(" and ");
    Ok(Told {
        settings: format!(
            "{NODES} nodes, {} tasks a batch over HTTP, {IN_FLIGHT} batches at once, settle = confirm, for `burst` {for_bursts}, one consumer with prefetch 4,000",
            order.batch
        ),
        version: format!("{}, {profile}", String::from_utf8_lossy(&said.stdout).trim()),
        unfair:
            "it runs three nodes and etcd on the same cores; each task is replicated work of PostgreSQL and RabbitMQ"
                .into(),
        ..told
    })
}

impl Nodes {
    /// Makes the queue, and returns when a message has come through it.
    async fn open(&self, collector: &Collector) -> Result<()> {
        let client = self.clients.first().context("there is a node")?;
        client.put_queue(QUEUE, &json!({ "settle": "confirm", "max_length": 1_000_000 })).await?;
        client.submit(&json!({ "queue": QUEUE, "payload": {} })).await?;
        let deadline = Instant::now() + OPEN_WITHIN;
        while collector.greetings() == 0 {
            ensure!(Instant::now() < deadline, "no message comes through {QUEUE}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    async fn submit_all(&self, tasks: &[Task], batch: usize) -> Result<()> {
        let batches = parking_lot::Mutex::new(tasks.chunks(batch.max(1)));
        let next = || batches.lock().next();
        try_join_all((0..IN_FLIGHT).map(async |_| {
            while let Some(batch) = next() {
                self.send(batch, Due::AtItsInstant).await?;
            }
            anyhow::Ok(())
        }))
        .await
        .map(drop)
    }

    async fn send(&self, tasks: &[Task], due: Due) -> Result<()> {
        let mut body = String::with_capacity(tasks.len() * (self.payload_bytes + 80) + 20);
        body.push_str("{\"tasks\":[");
        for (place, task) in tasks.iter().enumerate() {
            let (comma, payload) = (if place == 0 { "" } else { "," }, task.payload(self.payload_bytes));
            write!(body, "{comma}{{\"queue\":\"{QUEUE}\",\"payload\":{payload}")?;
            if due == Due::AtItsInstant {
                write!(body, ",\"due_at\":{}", task.due_us / 1_000)?;
            }
            body.push('}');
        }
        body.push_str("]}");
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let client = &self.clients[turn % self.clients.len()];
        let text = post(client, "/v1/tasks/batch", body).await?;
        ensure!(!text.contains("\"error\""), "a task was refused: {}", text.get(..500).unwrap_or(&text));
        Ok(())
    }
}
