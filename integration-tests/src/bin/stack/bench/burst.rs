//! Bursts: many tasks due at one instant, as RabbitMQ alone would publish them, and what they cost another queue.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use integration_tests::{
    clock::now_us,
    sandbox::{Builder, Sandbox},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Options,
    drain::Drain,
    feed::{Accepted, Batch, Feed, Way},
    instants::instant_of,
    machine::Watch,
    raw,
    record::{Late, Record, Spread, judge},
    report::{Report, Target, progress},
    scrape::Scrape,
    throughput::counted,
};

/// The settings that docs/performance.md recommends for known bursts.
pub(crate) const FOR_BURSTS: &str = "[scheduler]\nclaim_ahead_ms = 2000\nwindow = 40000\n";

const BATCH: usize = 1_000;
/// All tasks are stored so long before their instant: claims begin two seconds before it.
const STORED_AHEAD: Duration = Duration::from_secs(4);
/// The slowest submission that the instant leaves time for.
const SUBMITTED_PER_S: u64 = 5_000;
/// The limit for the last task to arrive.
const PATIENCE: Duration = Duration::from_secs(120);

/// Another queue, with an even stream from so long before the instant that its tasks come at full rate by then.
const OTHERS: &str = "others";
const OTHERS_PER_S: u32 = 200;
const OTHERS_AHEAD: Duration = Duration::from_secs(10);
/// The other queue is watched for so long after the last arrival of the burst.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// The metrics are read so long before the instant, because the read itself takes some milliseconds.
const READ_AHEAD: Duration = Duration::from_millis(100);

const LATEST_FIRST_MS: f64 = 5.0;
const LEAST_RATIO: f64 = 0.7;
const OTHERS_LATE_MS: f64 = 20.0;

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    for tasks in &options.burst {
        for queues in &options.queues {
            let part = &format!("burst of {tasks}, {}", counted(*queues, "queue"));
            progress(&format!("{part}: RabbitMQ alone ..."));
            let raw = raw::burst(*tasks, *queues).await.context("a burst of RabbitMQ alone")?;
            progress(&format!("{part}: starting the cluster ..."));
            let cluster = cluster(options).start().await?;
            super::flush(&cluster).await?;
            run(part, options, &cluster, (*tasks, *queues), raw, report).await?;
            super::end(cluster).await?;
        }
    }
    Ok(())
}

fn cluster(options: &Options) -> Builder {
    if options.config.is_empty() { options.cluster().config(FOR_BURSTS) } else { options.cluster() }
}

async fn run(
    part: &str,
    options: &Options,
    cluster: &Sandbox,
    (tasks, queues): (usize, usize),
    raw: Spread,
    report: &mut Report,
) -> Result<()> {
    let (burst, others): (Arc<Record>, Arc<Record>) = Default::default();
    let feed = Feed::new(cluster.clients());
    let ways: Vec<Way> = (1..=queues).map(|number| Way::to(&format!("burst-{number}"))).collect();
    let other_ways = [Way::to(OTHERS)];
    let queues = ways.iter().map(|way| (way, &burst)).chain(other_ways.iter().map(|way| (way, &others)));
    let mut drains = Vec::new();
    for (way, record) in queues {
        drains.push(Drain::start(&cluster.amqp_url(), &way.queue, record.eye()));
        feed.open(&way.queue, "confirm", &record.seen).await?;
    }

    let due_us = instant_of_burst(tasks);
    progress(&format!("{part}: due in {} s ...", (due_us - now_us()) / 1_000_000));
    let accepted_by_others: Arc<Mutex<Vec<Accepted>>> = Arc::default();
    let streaming = async {
        tokio::time::sleep_until(instant_of(due_us) - OTHERS_AHEAD).await;
        let until = instant_of(due_us) + PATIENCE + AFTERWARDS + OTHERS_AHEAD;
        feed.stream(&other_ways, OTHERS_PER_S, until, &accepted_by_others).await;
    };
    let story = tokio::select! {
        story = story(cluster, &feed, &ways, (tasks, due_us), &burst) => story?,
        () = streaming => bail!("the burst has not ended within {PATIENCE:?}"),
    };
    story.tell(part, &Spread::of(&burst.all(), due_us), raw, report);
    let of_others = story.tell_others(part, &accepted_by_others.lock(), &others, report);
    judge(part, "burst", &story.accepted, &[&burst], report).await;
    judge(part, "others", &of_others, &[&others], report).await;
    feed.tell_refused(part, report);
    story.watch.end(part, report)?;
    if options.details {
        story.nodes.details(part, (story.until_us - due_us) as f64 / 1e6, report);
    }
    Ok(())
}

/// In whole milliseconds, and late enough for all tasks to be stored and for the others to come at full rate.
fn instant_of_burst(tasks: usize) -> i64 {
    let ahead = (STORED_AHEAD + Duration::from_secs(tasks as u64 / SUBMITTED_PER_S)).max(OTHERS_AHEAD);
    (now_us() + ahead.as_micros() as i64) / 1_000 * 1_000
}

/// The course of a burst, and the nodes' metrics from its instant until some time after its last arrival.
struct Story {
    due_us: i64,
    until_us: i64,
    accepted: Vec<Accepted>,
    nodes: Scrape,
    watch: Watch,
}

async fn story(
    cluster: &Sandbox,
    feed: &Feed,
    ways: &[Way],
    (tasks, due_us): (usize, i64),
    burst: &Record,
) -> Result<Story> {
    let (clients, accepted) = (cluster.clients(), Mutex::<Vec<Accepted>>::default());
    let at_the_instant = |len| Batch::at(due_us / 1_000, len);
    feed.submit_all(ways, tasks, BATCH, at_the_instant, |batch| accepted.lock().extend(batch)).await?;
    let left = instant_of(due_us).saturating_duration_since(Instant::now());
    ensure!(left >= STORED_AHEAD, "the last task was stored {left:?} before the instant, not {STORED_AHEAD:?}");
    tokio::time::sleep_until(instant_of(due_us) - READ_AHEAD).await;
    let (watch, before) = (Watch::start(cluster), Scrape::of(&clients).await?);
    burst.wait(tasks, instant_of(due_us) + PATIENCE).await;
    let last_us = burst.all().iter().map(|seen| seen.at_us).max().unwrap_or_else(now_us);
    tokio::time::sleep_until(instant_of(last_us + AFTERWARDS.as_micros() as i64)).await;
    let until_us = now_us();
    let nodes = Scrape::of(&clients).await?.since(&before);
    Ok(Story { due_us, until_us, accepted: accepted.into_inner(), nodes, watch })
}

impl Story {
    fn tell(&self, part: &str, spread: &Spread, raw: Spread, report: &mut Report) {
        report.judged(part, "first out after", spread.first_ms, "ms", Target::AtMost(LATEST_FIRST_MS));
        report.figure(part, "half after", spread.half_ms, "ms");
        report.figure(part, "last after", spread.last_ms, "ms");
        report.figure(part, "until the last", self.accepted.len() as f64 / spread.last_ms * 1e3, "/s");
        report.figure(part, "raw RabbitMQ: last after", raw.last_ms, "ms");
        let ratio = raw.last_ms / spread.last_ms;
        report.judged(part, "part of raw RabbitMQ", ratio, "", Target::AtLeast(LEAST_RATIO));
    }

    /// Reports the lateness of the other queue meanwhile. Returns those of its tasks that count.
    fn tell_others(&self, part: &str, accepted: &[Accepted], others: &Record, report: &mut Report) -> Vec<Accepted> {
        let late = self.nodes.histogram("duetime_lateness_seconds", &format!("\"{OTHERS}\""));
        report.figure(part, "others published", late.count(), "");
        report.figure(part, "others published late: p50", late.quantile(0.5) * 1e3, "ms");
        let p99_ms = late.quantile(0.99) * 1e3;
        report.judged(part, "others published late: p99", p99_ms, "ms", Target::AtMost(OTHERS_LATE_MS));
        report.figure(part, "others published late: at most", late.largest() * 1e3, "ms");
        let consumed = Late::of(&others.all(), &(self.due_us..self.until_us));
        report.figure(part, "others consumed late: p99", consumed.ms(0.99), "ms");
        // The stream was cut off: of its last batches it is not known whether they were accepted.
        accepted.iter().filter(|task| task.due_us < self.until_us).copied().collect()
    }
}
