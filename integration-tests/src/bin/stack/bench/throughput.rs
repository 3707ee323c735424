//! Tasks a second from end to end: submitted in batches, due at once, published, consumed, acked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use hdrhistogram::Histogram;
use integration_tests::sandbox::Sandbox;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    Options,
    drain::{Drain, Eye, Seen},
    feed::{Batch, Feed},
    machine::Watch,
    report::{Report, Target, progress},
    scrape::Scrape,
    volume,
};

const BATCH: usize = 1_000;
const IN_FLIGHT_PER_NODE: usize = 2;
/// Tasks submitted and not yet consumed: the nodes always have work, and never pile it up.
const BACKLOG: usize = 12_000;
const WARM_UP: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(30);

const LEAST_PER_S: f64 = 10_000.0;
const LEAST_RATIO: f64 = 0.5;

pub(super) async fn measure(options: &Options, raw: Option<f64>, report: &mut Report) -> Result<()> {
    for databases in &options.databases {
        for queues in &options.queues {
            let part = format!("throughput, {}, {}", counted(*queues, "queue"), counted(*databases, "database"));
            progress(&format!("{part}: starting the cluster ..."));
            let cluster = options.cluster().databases(*databases).start().await?;
            run(&part, options, &cluster, *queues, raw, report).await?;
            super::end(cluster).await?;
        }
    }
    Ok(())
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The consumer's side of the measurement.
#[derive(Debug)]
struct Arrivals {
    room: Semaphore,
    /// First messages included.
    seen: AtomicU64,
    consumed: AtomicU64,
    took_us: Mutex<Histogram<u64>>,
}

impl Arrivals {
    fn new() -> Arc<Self> {
        let (seen, consumed) = Default::default();
        let took_us = Mutex::new(Histogram::new_with_bounds(1, 600_000_000, 3).expect("ten minutes in three digits"));
        Arc::new(Self { room: Semaphore::new(BACKLOG), seen, consumed, took_us })
    }

    fn note(&self, seen: Seen) {
        self.seen.fetch_add(1, Ordering::Relaxed);
        if seen.serial > 0 {
            self.consumed.fetch_add(1, Ordering::Relaxed);
            self.room.add_permits(1);
            self.took_us.lock().saturating_record(u64::try_from(seen.at_us - seen.stamp_us).unwrap_or(0));
        }
    }

    fn consumed(&self) -> u64 {
        self.consumed.load(Ordering::Relaxed)
    }
}

async fn run(
    part: &str,
    options: &Options,
    cluster: &Sandbox,
    queues: usize,
    raw: Option<f64>,
    report: &mut Report,
) -> Result<()> {
    let (clients, arrivals) = (cluster.clients(), Arrivals::new());
    let feed = Feed::new(clients.clone());
    let names: Vec<String> = (1..=queues).map(|number| format!("work-{number}")).collect();
    let mut drains = Vec::new();
    for name in &names {
        let arrivals = Arc::clone(&arrivals);
        let eye: Eye = Arc::new(move |seen| Arrivals::note(&arrivals, seen));
        drains.push(Drain::start(&cluster.amqp_url(), name, eye));
    }
    for name in &names {
        feed.open(name, "confirm", &arrivals.seen).await?;
    }

    let end = Instant::now() + WARM_UP + options.time();
    let submitted = AtomicU64::new(0);
    let writers = (0..clients.len() * IN_FLIGHT_PER_NODE)
        .map(|number| write(&feed, names.iter().cycle().skip(number), &arrivals, &submitted, end));
    let watching = async {
        tokio::time::sleep(WARM_UP).await;
        let (watch, before) = (Watch::start(cluster), Scrape::of(&clients).await?);
        arrivals.took_us.lock().reset();
        let (began, consumed, log) = (Instant::now(), arrivals.consumed(), volume::log_bytes(cluster).await?);
        tokio::time::sleep_until(end).await;
        let tasks = (arrivals.consumed() - consumed) as f64;
        let logged = (volume::log_bytes(cluster).await? - log) as f64 / tasks;
        let per_second = tasks / began.elapsed().as_secs_f64();
        Ok((per_second, logged, Scrape::of(&clients).await?.since(&before), watch))
    };
    let (watched, written) = tokio::join!(watching, try_join_all(writers));
    written?;
    let (per_second, logged, nodes, watch) =
        watched.map_err(|error: anyhow::Error| error.context("watching the nodes"))?;
    tell(part, per_second, raw, &arrivals, report);
    report.figure(part, "write-ahead log, through its life", logged, "bytes a task");
    volume::finished(cluster, part, report).await?;
    watch.end(part, report)?;
    if options.details {
        nodes.details(part, options.time().as_secs_f64(), report);
    }

    let submitted = submitted.load(Ordering::Relaxed);
    let deadline = Instant::now() + PATIENCE;
    while arrivals.consumed() < submitted && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let missing = submitted.saturating_sub(arrivals.consumed());
    report.judged(part, "missing in the end", missing as f64, "", Target::AtMost(0.0));
    Ok(())
}

/// Submits one batch after another, one queue after another, as far as the backlog has room.
async fn write(
    feed: &Feed,
    queues: impl Iterator<Item = &String>,
    arrivals: &Arrivals,
    submitted: &AtomicU64,
    end: Instant,
) -> Result<()> {
    for queue in queues {
        let room = tokio::time::timeout_at(end, arrivals.room.acquire_many(BATCH as u32)).await;
        let Ok(room) = room else { break };
        room.context("it is never closed")?.forget();
        let accepted = feed.send(queue, &Batch::Now(BATCH)).await;
        ensure!(!accepted.is_empty(), "no node takes tasks");
        submitted.fetch_add(accepted.len() as u64, Ordering::Relaxed);
        if Instant::now() >= end {
            break;
        }
    }
    Ok(())
}

fn tell(part: &str, per_second: f64, raw: Option<f64>, arrivals: &Arrivals, report: &mut Report) {
    report.judged(part, "submitted, fired, consumed and acked", per_second, "/s", Target::AtLeast(LEAST_PER_S));
    if let Some(raw) = raw {
        report.judged(part, "part of raw RabbitMQ", per_second / raw, "", Target::AtLeast(LEAST_RATIO));
    }
    let took = arrivals.took_us.lock();
    report.figure(part, "from submission to consumer: p50", took.value_at_quantile(0.5) as f64 / 1e3, "ms");
    report.figure(part, "from submission to consumer: p99", took.value_at_quantile(0.99) as f64 / 1e3, "ms");
}
