//! Tasks a second from end to end: submitted in batches, due at once, published, consumed, acked. Then how long a task
//! takes at half of that rate.

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
    Options, Part,
    drain::{Drain, Eye, Seen},
    feed::{Accepted, Batch, Feed, Way},
    findings::Arrived,
    machine::Watch,
    numbers::Numbers,
    raw,
    report::{Report, Target, progress},
    scrape::{Scrape, watched},
    volume,
};

const BATCH: usize = 1_000;
const IN_FLIGHT_PER_NODE: usize = 2;
/// Tasks submitted and not yet done: the nodes always have work, and never pile it up.
const BACKLOG: usize = 12_000;
const WARM_UP: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

const LEAST_PER_S: f64 = 10_000.0;
const LEAST_RATIO: f64 = 0.65;
/// Of a task at half of the largest rate, from submission to consumer.
const HALF_RATE_P50_MS: f64 = 20.0;

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    for databases in &options.databases {
        for queues in &options.queues {
            // Right before: some minutes later the machine may be busier.
            let raw = match options.wants(Part::Raw) {
                true => Some(raw::measure_over(*queues, options, report).await.context("RabbitMQ alone")?),
                false => None,
            };
            let part = format!("throughput, {}, {}", counted(*queues, "queue"), counted(*databases, "database"));
            progress(&format!("{part}: starting the cluster ..."));
            let cluster = options.cluster().databases(*databases).start().await?;
            run(&part, options, &cluster, *queues, raw, report).await?;
            super::end(cluster).await?;
        }
    }
    Ok(())
}

pub(super) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Room for tasks that are submitted and not yet done, and how long the consumed ones took.
#[derive(Debug)]
pub(super) struct Backlog {
    room: Semaphore,
    /// Whether a task is done when it is consumed.
    ends_consumed: bool,
    /// First messages included.
    pub seen: AtomicU64,
    accepted: Mutex<Numbers>,
    arrived: Mutex<Arrived>,
    took_us: Mutex<Histogram<u64>>,
}

impl Backlog {
    /// A task is done when it is consumed.
    pub(super) fn new() -> Arc<Self> {
        Self::ending(true)
    }

    /// A task is done when `make_room` counts it.
    pub(super) fn of_settled() -> Arc<Self> {
        Self::ending(false)
    }

    fn ending(ends_consumed: bool) -> Arc<Self> {
        let (seen, accepted, arrived) = Default::default();
        let took_us = Mutex::new(Histogram::new_with_bounds(1, 600_000_000, 3).expect("ten minutes in three digits"));
        Arc::new(Self { room: Semaphore::new(BACKLOG), ends_consumed, seen, accepted, arrived, took_us })
    }

    pub(super) fn eye(self: &Arc<Self>) -> Eye {
        let backlog = Arc::clone(self);
        Arc::new(move |seen| backlog.note(seen))
    }

    fn note(&self, seen: Seen) {
        self.seen.fetch_add(1, Ordering::Relaxed);
        if seen.serial > 0 {
            let is_new = self.arrived.lock().note(seen);
            self.make_room(usize::from(self.ends_consumed && is_new));
            let took_us = u64::try_from(seen.at_us - seen.stamp_us).unwrap_or(0);
            self.took_us.lock().saturating_record(took_us);
        }
    }

    pub(super) fn accepted(&self) -> u64 {
        self.accepted.lock().different()
    }

    fn accept(&self, tasks: &[Accepted]) {
        let mut accepted = self.accepted.lock();
        for task in tasks {
            accepted.insert(task.serial);
        }
    }

    pub(super) fn make_room(&self, tasks: usize) {
        self.room.add_permits(tasks);
    }

    /// Tasks that have been consumed, each counted once.
    fn consumed(&self) -> u64 {
        self.arrived.lock().tasks.different()
    }

    fn missing(&self) -> u64 {
        self.accepted.lock().lacking_in(&self.arrived.lock().tasks)
    }

    pub(super) fn tell_took(&self, part: &str, p50: Option<Target>, report: &mut Report) {
        let took = self.took_us.lock();
        let ms = |share: f64| took.value_at_quantile(share) as f64 / 1e3;
        let figure = "from submission to consumer: p50";
        match p50 {
            Some(target) => report.judged(part, figure, ms(0.5), "ms", target),
            None => report.figure(part, figure, ms(0.5), "ms"),
        }
        report.figure(part, "from submission to consumer: p99", ms(0.99), "ms");
    }

    /// Waits for the accepted tasks, and reports what was wrong with them in the end.
    pub(super) async fn judge(&self, part: &str, report: &mut Report) {
        let deadline = Instant::now() + PATIENCE;
        while self.missing() > 0 && Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let missing = self.missing();
        self.arrived.lock().findings(missing).tell(part, "", report);
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
    let (feed, backlog) = (Feed::new(cluster.clients()), Backlog::new());
    let ways: Vec<Way> = (1..=queues).map(|number| Way::to(&format!("work-{number}"))).collect();
    let start = |way: &Way| Drain::start(&cluster.amqp_url(), &way.queue, backlog.eye());
    let _drains: Vec<Drain> = ways.iter().map(start).collect();
    for way in &ways {
        feed.open(&way.queue, "confirm", &backlog.seen).await?;
    }

    let fastest = fastest(options, cluster, &feed, &ways, &backlog).await?;
    report.judged(part, "submitted, fired, consumed and acked", fastest.per_second, "/s", Target::AtLeast(LEAST_PER_S));
    if let Some(raw) = raw {
        report.figure(part, "RabbitMQ alone, right before", raw, "/s");
        report.judged(part, "part of raw RabbitMQ", fastest.per_second / raw, "", Target::AtLeast(LEAST_RATIO));
    }
    backlog.tell_took(part, None, report);
    report.figure(part, "write-ahead log, through its life", fastest.log_bytes, "bytes a task");
    volume::finished(cluster, part, report).await?;
    fastest.watch.end(part, report)?;
    if options.details {
        fastest.nodes.details(part, options.time().as_secs_f64(), report);
    }
    backlog.judge(part, report).await;
    let half = (fastest.per_second / 2.0) as u32;
    steady(&format!("{part}, half the rate"), options, (cluster, &feed), &ways, half, &backlog, report).await
}

/// What a cluster does as fast as it can.
#[derive(Debug)]
pub(super) struct Fastest {
    /// Tasks consumed.
    pub per_second: f64,
    /// Between the two reads of the nodes' metrics.
    pub seconds: f64,
    pub nodes: Scrape,
    pub watch: Watch,
    /// Of a task.
    pub log_bytes: f64,
}

/// Submits as fast as the backlog has room, one queue after another, and measures after a warm-up.
pub(super) async fn fastest(
    options: &Options,
    cluster: &Sandbox,
    feed: &Feed,
    ways: &[Way],
    backlog: &Backlog,
) -> Result<Fastest> {
    let end = Instant::now() + WARM_UP + options.time();
    let clients = cluster.clients();
    let writers = (0..clients.len() * IN_FLIGHT_PER_NODE)
        .map(|number| write(feed, ways.iter().cycle().skip(number), backlog, end));
    let watching = async {
        tokio::time::sleep(WARM_UP).await;
        let (watch, read) = (Watch::start(cluster), Instant::now());
        let before = Scrape::of(&clients).await?;
        backlog.took_us.lock().reset();
        let (began, consumed, log) = (Instant::now(), backlog.consumed(), volume::log_bytes(cluster).await?);
        tokio::time::sleep_until(end).await;
        let tasks = (backlog.consumed() - consumed) as f64;
        let (per_second, seconds) = (tasks / began.elapsed().as_secs_f64(), read.elapsed().as_secs_f64());
        let nodes = Scrape::of(&clients).await?.since(&before);
        let log_bytes = (volume::log_bytes(cluster).await? - log) as f64 / tasks;
        Ok(Fastest { per_second, seconds, nodes, watch, log_bytes })
    };
    let (fastest, written) = tokio::join!(watching, try_join_all(writers));
    written?;
    fastest.map_err(|error: anyhow::Error| error.context("watching the nodes"))
}

/// Submits one batch after another, one queue after another, as far as the backlog has room.
async fn write(feed: &Feed, ways: impl Iterator<Item = &Way>, backlog: &Backlog, end: Instant) -> Result<()> {
    for way in ways {
        let room = tokio::time::timeout_at(end, backlog.room.acquire_many(BATCH as u32)).await;
        let Ok(room) = room else { break };
        room.context("it is never closed")?.forget();
        let accepted = feed.send_all(std::slice::from_ref(way), &Batch::Now(BATCH)).await;
        ensure!(!accepted.is_empty(), "no node takes tasks");
        backlog.accept(&accepted);
        if Instant::now() >= end {
            break;
        }
    }
    Ok(())
}

/// Offers an even stream of tasks that are due at once, and measures how long they take.
async fn steady(
    part: &str,
    options: &Options,
    (cluster, feed): (&Sandbox, &Arc<Feed>),
    ways: &[Way],
    per_second: u32,
    backlog: &Backlog,
    report: &mut Report,
) -> Result<()> {
    progress(&format!("{part}: {} s to warm up, {} s measured ...", WARM_UP.as_secs(), options.seconds));
    let accepted: Arc<Mutex<Vec<Accepted>>> = Arc::default();
    let end = Instant::now() + WARM_UP + options.time();
    let watching = async {
        tokio::time::sleep(WARM_UP).await;
        backlog.took_us.lock().reset();
        watched(cluster, Duration::ZERO, end).await
    };
    let (watched, ()) = tokio::join!(watching, feed.stream_now(ways, per_second, end, &accepted));
    let (nodes, watch) = watched?;
    report.figure(part, "submitted", f64::from(per_second), "/s");
    backlog.tell_took(part, Some(Target::AtMost(HALF_RATE_P50_MS)), report);
    watch.end(part, report)?;
    if options.details {
        nodes.details(part, options.time().as_secs_f64(), report);
    }
    feed.tell_refused(part, report);
    backlog.accept(&accepted.lock());
    backlog.judge(part, report).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::findings::Findings, *};

    #[test]
    fn a_task_that_comes_twice_does_not_hide_one_that_is_lost() {
        let backlog = Backlog::new();
        backlog.accept(&[1, 2, 3].map(|serial| Accepted { serial, due_us: 5 }));
        for serial in [1, 2, 2] {
            backlog.note(Seen { at_us: 5, stamp_us: 5, serial, shard: None, attempt: 1, due_ms: None, marked: false });
        }
        assert_eq!((backlog.consumed(), backlog.room.available_permits()), (2, BACKLOG + 2));
        let missing = backlog.missing();
        let findings = backlog.arrived.lock().findings(missing);
        assert_eq!(findings, Findings { missing: 1, early: 0, doubled: 1, unmarked_copies: 1 });
    }
}
