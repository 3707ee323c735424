//! Queues at their limits beside a plain one: whether the limits are exact, and what they cost the plain queue.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use integration_tests::sandbox::Sandbox;
use parking_lot::Mutex;
use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::{
    Options,
    drain::{Drain, Reporter, Seen},
    feed::{Accepted, Feed, MAX_LENGTH, Way},
    record::{Record, busiest_second, judge},
    report::{Report, Target, progress},
    steady,
};

const PLAIN: &str = "plain";
const COUNTED: &str = "max-running";
const PACED: &str = "rate-per-second";

const PLAIN_PER_S: u32 = 1_000;
/// For each of the queues with a limit: more than it lets through.
const OFFERED_PER_S: u32 = 500;
const MAX_RUNNING: usize = 10;
/// The consumer of the counted queue works so long. Ten tasks at a time are then 200 a second at most.
const WORK: Duration = Duration::from_millis(50);
const RATE: f64 = 100.0;
/// A node saves the permits of 50 ms, so 5 % more than the rate can start in a second.
const BUSIEST_SECOND: f64 = 1.05 * RATE;
/// Less would mean that permits are lost.
const LEAST_OF_RATE: f64 = 0.98 * RATE;

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    progress("limits: starting the cluster ...");
    let cluster = options.cluster().start().await?;
    super::flush(&cluster).await?;
    let load = Load::start(&cluster).await?;
    load.phase("limits, plain alone", options, &cluster, (&[Way::to(PLAIN)], PLAIN_PER_S), report).await?;

    let part = "limits, all together";
    // The plain queue has two turns of four.
    let ways = [PLAIN, COUNTED, PLAIN, PACED].map(Way::to);
    let measured = load.phase(part, options, &cluster, (&ways, PLAIN_PER_S + 2 * OFFERED_PER_S), report).await?;
    load.tell_limits(part, options, &measured, report);
    let started = busiest_second(started_us(&cluster, &measured).await?) as f64;
    report.judged(part, "rate: started in the busiest second", started, "", Target::AtMost(BUSIEST_SECOND));
    lift(&cluster).await?;
    let all = [&*load.plain, &*load.counted, &*load.paced];
    let accepted = std::mem::take(&mut *load.accepted.lock());
    judge(part, "all queues", &accepted, &all, report).await;
    let refused = load.feed.refused.load(Ordering::Relaxed);
    report.judged(part, "refused", refused as f64, "", Target::AtMost(0.0));
    drop(load);
    super::end(cluster).await
}

/// Lets the waiting tasks go, which would take minutes otherwise.
async fn lift(cluster: &Sandbox) -> Result<()> {
    let client = cluster.live()?;
    for (queue, settle) in [(COUNTED, "result"), (PACED, "confirm")] {
        let policy = json!({ "settle": settle, "placement": "single", "max_length": MAX_LENGTH });
        client.put_queue(queue, &policy).await.with_context(|| format!("lifting the limit of {queue}"))?;
    }
    Ok(())
}

/// When the tasks of the paced queue were started, by the database's clock, which is this machine's.
async fn started_us(cluster: &Sandbox, measured: &Range<i64>) -> Result<Vec<i64>> {
    const STARTED: &str = "SELECT (extract(epoch FROM claimed_at) * 1000000)::int8 FROM duetime.archive \
                           WHERE queue = $1 AND claimed_at >= to_timestamp($2::float8 / 1000000) \
                           AND claimed_at < to_timestamp($3::float8 / 1000000)";
    let mut connection = PgConnection::connect(&cluster.database_url(0)).await?;
    let (from_us, until_us) = (measured.start as f64, measured.end as f64);
    let started = sqlx::query_scalar(STARTED).bind(PACED).bind(from_us).bind(until_us).fetch_all(&mut connection).await;
    connection.close().await?;
    started.context("reading when tasks were started")
}

/// Three queues with their consumers.
#[derive(Debug)]
struct Load {
    feed: Arc<Feed>,
    plain: Arc<Record>,
    counted: Arc<Record>,
    paced: Arc<Record>,
    reporter: Arc<Reporter>,
    accepted: Arc<Mutex<Vec<Accepted>>>,
    _drains: [Drain; 3],
}

impl Load {
    async fn start(cluster: &Sandbox) -> Result<Self> {
        let (plain, counted, paced): (Arc<Record>, Arc<Record>, Arc<Record>) = Default::default();
        let (feed, url) = (Feed::new(cluster.clients()), cluster.amqp_url());
        let reporter = Reporter::working_for(WORK);
        let drains = [
            Drain::start(&url, PLAIN, plain.eye()),
            Drain::reporting(&url, COUNTED, counted.eye(), &reporter),
            Drain::start(&url, PACED, paced.eye()),
        ];
        feed.open(PLAIN, "confirm", &plain.seen).await?;
        let policy =
            json!({ "settle": "result", "placement": "single", "max_running": MAX_RUNNING, "max_length": MAX_LENGTH });
        feed.open_by(COUNTED, &policy, &counted.seen).await?;
        let policy =
            json!({ "settle": "confirm", "placement": "single", "rate_per_second": RATE, "max_length": MAX_LENGTH });
        feed.open_by(PACED, &policy, &paced.seen).await?;
        Ok(Self { feed, plain, counted, paced, reporter, accepted: Arc::default(), _drains: drains })
    }

    /// Offers an even stream, and reports the lateness of the plain queue. Returns the time that was measured.
    async fn phase(
        &self,
        part: &str,
        options: &Options,
        cluster: &Sandbox,
        (ways, per_second): (&[Way], u32),
        report: &mut Report,
    ) -> Result<Range<i64>> {
        let steady = steady::offer(part, options, (cluster, &self.feed), ways, per_second, &self.accepted).await?;
        let late = steady.nodes.histogram("duetime_lateness_seconds", &format!("\"{PLAIN}\""));
        report.figure(part, "plain published", late.count() / options.time().as_secs_f64(), "/s");
        report.figure(part, "plain published late: p50", late.quantile(0.5) * 1e3, "ms");
        report.figure(part, "plain published late: p99", late.quantile(0.99) * 1e3, "ms");
        steady.watch.end(part, report)?;
        if options.details {
            steady.nodes.details(part, options.time().as_secs_f64(), report);
        }
        Ok(steady.due_us)
    }

    fn tell_limits(&self, part: &str, options: &Options, measured: &Range<i64>, report: &mut Report) {
        let during = |record: &Record| -> Vec<Seen> {
            record.all().into_iter().filter(|seen| measured.contains(&seen.at_us)).collect()
        };
        let (counted, paced) = (during(&self.counted), during(&self.paced));
        let per_second = |arrived: &[Seen]| arrived.len() as f64 / options.time().as_secs_f64();
        let most = self.reporter.most_waiting() as f64;
        report.figure(part, "max_running: consumed", per_second(&counted), "/s");
        report.judged(part, "max_running: most without a report", most, "", Target::AtMost(MAX_RUNNING as f64));
        let busiest = busiest_second(paced.iter().map(|seen| seen.at_us).collect()) as f64;
        report.judged(part, "rate: consumed", per_second(&paced), "/s", Target::AtLeast(LEAST_OF_RATE));
        // Some messages are longer on their way than others, so this can be more than were started.
        report.figure(part, "rate: consumed in the busiest second", busiest, "");
    }
}
