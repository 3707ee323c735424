//! Runs the works of the peers' protocol on awa, a job queue on PostgreSQL.

mod arrivals;
mod peer;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use awa::Client;
use serde::Deserialize;
use serde_json::json;
use tokio::time::sleep;

use arrivals::{Arrivals, FIRST_PENDING, now_us};
use peer::{Arrival, Peer};

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

const SECOND_US: i64 = 1_000_000;
const HOUR_US: i64 = 3_600 * SECOND_US;
const MONTH_US: i64 = 30 * 24 * HOUR_US;
/// The time between a task's submission and its due instant in `late`.
const AHEAD_US: i64 = 10 * SECOND_US;
/// How often `late` submits what became near.
const TICK: Duration = Duration::from_millis(50);
const SUBMITTERS: u32 = 4;
/// Bounds `throughput`: submitters wait for the workers beyond it.
const BACKLOG: i64 = 10_000;
/// The rate of submission, in tasks a second, that `burst` allows for.
const SLOWEST: i64 = 2_000;

#[derive(Deserialize)]
pub struct Order {
    pub work: String,
    pub postgres_url: String,
    pub connections: u32,
    pub batch: i64,
    #[serde(default)]
    seconds: i64,
    #[serde(default)]
    rate: i64,
    #[serde(default)]
    pending: i64,
    #[serde(default)]
    tasks: i64,
    payload_bytes: usize,
    arrivals: String,
}

struct Bench {
    order: Order,
    peer: Peer,
    arrivals: Arc<Arrivals>,
}

impl Bench {
    fn task(&self, number: i64, due_us: i64) -> Arrival {
        let bare = json!({"number": number, "due_us": due_us, "pad": ""}).to_string().len();
        Arrival { number, due_us, pad: "x".repeat(self.order.payload_bytes.saturating_sub(bare)) }
    }

    async fn start(&self) -> Result<Client, Failure> {
        self.peer.start(self.arrivals.clone()).await
    }

    /// Submits tasks with consecutive numbers that are due at one instant.
    async fn fill(self: &Arc<Self>, first: i64, count: i64, due_us: i64) -> Result<(), Failure> {
        let next = Arc::new(AtomicI64::new(0));
        concurrently(SUBMITTERS, || {
            let (bench, next) = (self.clone(), next.clone());
            async move {
                loop {
                    let from = next.fetch_add(bench.order.batch, Relaxed);
                    if from >= count {
                        return Ok(());
                    }
                    let numbers = from..count.min(from + bench.order.batch);
                    let tasks: Vec<_> = numbers.map(|number| bench.task(first + number, due_us)).collect();
                    bench.peer.submit(&tasks).await?;
                }
            }
        })
        .await?;
        eprintln!("{count} tasks submitted");
        Ok(())
    }

    async fn late(self: &Arc<Self>) -> Result<(i64, Option<Client>, Duration), Failure> {
        self.fill(FIRST_PENDING, self.order.pending, now_us() + MONTH_US).await?;
        let client = self.start().await?;
        let (start, start_us) = (Instant::now(), now_us());
        let due = |number: i64| start_us + AHEAD_US + number * SECOND_US / self.order.rate;
        let total = self.order.rate * self.order.seconds;
        let mut next = 0;
        while next < total {
            let mut near = Vec::new();
            while next < total && due(next) <= now_us() + AHEAD_US {
                near.push(self.task(next, due(next)));
                next += 1;
            }
            self.peer.submit(&near).await?;
            sleep(TICK).await;
        }
        let spent = start.elapsed();
        self.arrivals.until(total, Duration::from_secs(40)).await;
        Ok((total, Some(client), spent))
    }

    async fn burst(self: &Arc<Self>) -> Result<(i64, Option<Client>, Duration), Failure> {
        let client = self.start().await?;
        let (start, tasks) = (Instant::now(), self.order.tasks);
        let due_us = now_us() + AHEAD_US + tasks * SECOND_US / SLOWEST;
        self.fill(0, tasks, due_us).await?;
        let spent = start.elapsed();
        let left = due_us - now_us();
        if left < 3 * SECOND_US {
            return Err(format!("the submission of {tasks} tasks took {spent:?}, until after they were due").into());
        }
        self.arrivals.until(tasks, Duration::from_micros(left.unsigned_abs()) + Duration::from_secs(120)).await;
        Ok((tasks, Some(client), spent))
    }

    async fn throughput(self: &Arc<Self>) -> Result<(i64, Option<Client>, Duration), Failure> {
        let client = self.start().await?;
        let (start, end_us) = (Instant::now(), now_us() + self.order.seconds * SECOND_US);
        let submitted = Arc::new(AtomicI64::new(0));
        concurrently(SUBMITTERS, || {
            let (bench, submitted) = (self.clone(), submitted.clone());
            async move {
                while now_us() < end_us {
                    if submitted.load(Relaxed) - bench.arrivals.count() > BACKLOG {
                        sleep(Duration::from_millis(1)).await;
                        continue;
                    }
                    let from = submitted.fetch_add(bench.order.batch, Relaxed);
                    let numbers = from..from + bench.order.batch;
                    let tasks: Vec<_> = numbers.map(|number| bench.task(number, now_us())).collect();
                    bench.peer.submit(&tasks).await?;
                }
                Ok(())
            }
        })
        .await?;
        let spent = start.elapsed();
        self.arrivals.until(submitted.load(Relaxed), Duration::from_secs(120)).await;
        Ok((submitted.load(Relaxed), Some(client), spent))
    }

    async fn submit(self: &Arc<Self>) -> Result<(i64, Option<Client>, Duration), Failure> {
        let (start, end_us) = (Instant::now(), now_us() + self.order.seconds * SECOND_US);
        let submitted = Arc::new(AtomicI64::new(0));
        concurrently(self.order.connections, || {
            let (bench, submitted) = (self.clone(), submitted.clone());
            async move {
                while now_us() < end_us {
                    let number = submitted.fetch_add(1, Relaxed);
                    bench.peer.submit_one(&bench.task(number, now_us() + HOUR_US)).await?;
                }
                Ok(())
            }
        })
        .await?;
        Ok((submitted.load(Relaxed), None, start.elapsed()))
    }
}

/// Runs so many at once; the first failure is the outcome.
async fn concurrently<F>(count: u32, run: impl Fn() -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let running: Vec<_> = (0..count).map(|_| tokio::spawn(run())).collect();
    for one in running {
        one.await??;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let order: Order = serde_json::from_str(&line)?;
    let peer = Peer::connect(&order).await?;
    let arrivals = Arc::new(Arrivals::create(&order.arrivals)?);
    let bench = Arc::new(Bench { order, peer, arrivals });
    let (submitted, client, spent) = match bench.order.work.as_str() {
        "late" => bench.late().await?,
        "burst" => bench.burst().await?,
        "throughput" => bench.throughput().await?,
        "submit" => bench.submit().await?,
        other => return Err(format!("no such work: {other}").into()),
    };
    if let Some(client) = client {
        client.shutdown(Duration::from_secs(10)).await;
    }
    bench.arrivals.flush()?;
    let answer = json!({
        "settings": bench.peer.settings(&bench.order),
        "version": "awa 0.6.9",
        "submitted": submitted,
        "submit_seconds": spent.as_secs_f64(),
        "unfair": "",
    });
    println!("{answer}");
    Ok(())
}
