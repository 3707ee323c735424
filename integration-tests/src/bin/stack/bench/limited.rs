//! Queues at their limits beside a plain one: whether the limits are exact, and what they cost the plain queue, beside
//! what the same queues cost it without limits.

use std::{ops::Range, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use integration_tests::sandbox::Sandbox;
use parking_lot::Mutex;
use serde_json::{Value, json};
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
/// The same two queues without their limits.
const UNCOUNTED: &str = "any-running";
const UNPACED: &str = "any-rate";

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
/// Two runs of the same load differ by as much on a shared machine.
const TIMES_WITHOUT_LIMITS: f64 = 1.25;

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    progress("limits: starting the cluster ...");
    let cluster = options.cluster().start().await?;
    super::flush(&cluster).await?;
    let load = Load::start(&cluster).await?;
    load.phase("limits, plain alone", options, &cluster, (&[Way::to(PLAIN)], PLAIN_PER_S), report).await?;

    // The plain queue has two turns of four.
    let all_per_s = PLAIN_PER_S + 2 * OFFERED_PER_S;
    let ways = [PLAIN, UNCOUNTED, PLAIN, UNPACED].map(Way::to);
    let part = "limits, none set";
    let unlimited = load.phase(part, options, &cluster, (&ways, all_per_s), report).await?;
    let ways = [PLAIN, COUNTED, PLAIN, PACED].map(Way::to);
    let part = "limits, all together";
    let limited = load.phase(part, options, &cluster, (&ways, all_per_s), report).await?;
    let target = Target::AtMost(TIMES_WITHOUT_LIMITS);
    report.judged(part, "plain p99: times without limits", limited.p99_ms / unlimited.p99_ms, "", target);
    let measured = limited.due_us;
    load.tell_limits(part, options, &measured, report);
    let started = busiest_second(started_us(&cluster, &measured).await?) as f64;
    report.judged(part, "rate: started in the busiest second", started, "", Target::AtMost(BUSIEST_SECOND));
    lift(&cluster).await?;
    let all = [&*load.plain, &*load.counted, &*load.paced, &*load.unlimited];
    let accepted = std::mem::take(&mut *load.accepted.lock());
    judge(part, "all queues", &accepted, &all, report).await;
    load.feed.tell_refused(part, report);
    drop(load);
    super::end(cluster).await
}

/// Lets the waiting tasks go, which would take minutes otherwise.
async fn lift(cluster: &Sandbox) -> Result<()> {
    let client = cluster.live()?;
    for (queue, settle) in [(COUNTED, "result"), (PACED, "confirm")] {
        client
            .put_queue(queue, &without_limit(settle))
            .await
            .with_context(|| format!("lifting the limit of {queue}"))?;
    }
    Ok(())
}

/// A policy that takes whatever comes. All tasks of the queue are on one shard, as a limit needs it.
fn without_limit(settle: &str) -> Value {
    json!({ "settle": settle, "placement": "single", "max_length": MAX_LENGTH })
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

/// How the plain queue did in a phase.
#[derive(Debug)]
struct Phase {
    /// The tasks that were due in this time count.
    due_us: Range<i64>,
    /// How late the tasks of the plain queue were published.
    p99_ms: f64,
}

/// The queues with their consumers.
#[derive(Debug)]
struct Load {
    feed: Arc<Feed>,
    plain: Arc<Record>,
    counted: Arc<Record>,
    paced: Arc<Record>,
    /// Of both queues without limits.
    unlimited: Arc<Record>,
    reporter: Arc<Reporter>,
    accepted: Arc<Mutex<Vec<Accepted>>>,
    _drains: [Drain; 5],
}

impl Load {
    async fn start(cluster: &Sandbox) -> Result<Self> {
        let (plain, counted, paced, unlimited): (Arc<Record>, Arc<Record>, Arc<Record>, Arc<Record>) =
            Default::default();
        let (feed, url) = (Feed::new(cluster.clients()), cluster.amqp_url());
        let reporter = Reporter::working_for(WORK);
        let drains = [
            Drain::start(&url, PLAIN, plain.eye()),
            Drain::reporting(&url, COUNTED, counted.eye(), &reporter),
            Drain::start(&url, PACED, paced.eye()),
            Drain::reporting(&url, UNCOUNTED, unlimited.eye(), &Reporter::working_for(WORK)),
            Drain::start(&url, UNPACED, unlimited.eye()),
        ];
        feed.open(PLAIN, "confirm", &plain.seen).await?;
        for (queue, settle) in [(UNCOUNTED, "result"), (UNPACED, "confirm")] {
            feed.open_by(queue, &without_limit(settle), &unlimited.seen).await?;
        }
        let (mut counts, mut paces) = (without_limit("result"), without_limit("confirm"));
        (counts["max_running"], paces["rate_per_second"]) = (json!(MAX_RUNNING), json!(RATE));
        feed.open_by(COUNTED, &counts, &counted.seen).await?;
        feed.open_by(PACED, &paces, &paced.seen).await?;
        Ok(Self { feed, plain, counted, paced, unlimited, reporter, accepted: Arc::default(), _drains: drains })
    }

    /// Offers an even stream, and reports the lateness of the plain queue.
    async fn phase(
        &self,
        part: &str,
        options: &Options,
        cluster: &Sandbox,
        (ways, per_second): (&[Way], u32),
        report: &mut Report,
    ) -> Result<Phase> {
        let steady = steady::offer(part, options, (cluster, &self.feed), ways, per_second, &self.accepted).await?;
        let late = steady.nodes.histogram("duetime_lateness_seconds", &format!("\"{PLAIN}\""));
        report.figure(part, "plain published", late.count() / options.time().as_secs_f64(), "/s");
        report.figure(part, "plain published late: p50", late.quantile(0.5) * 1e3, "ms");
        let p99_ms = late.quantile(0.99) * 1e3;
        report.figure(part, "plain published late: p99", p99_ms, "ms");
        steady.watch.end(part, report)?;
        if options.details {
            steady.nodes.details(part, options.time().as_secs_f64(), report);
        }
        Ok(Phase { due_us: steady.due_us, p99_ms })
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
