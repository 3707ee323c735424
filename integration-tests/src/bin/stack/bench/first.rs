//! How late the first tasks are, of a cluster that is new and of one that starts again: caches and connections are
//! cold, plans are not made, and the first publish declares the queue.

use std::{ops::Range, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use integration_tests::{
    clock::now_us,
    sandbox::{Sandbox, migrate},
};
use serde_json::json;
use tokio::time::Instant;

use super::{
    Options,
    broker::Broker,
    drain::{Drain, Seen},
    feed::{Feed, Way},
    findings::Arrived,
    instants::{instant_of, micros},
    lateness::tell_published,
    limits::Limits,
    record::{Record, missing},
    report::{Report, Target, progress},
    scrape::Scrape,
    times::Times,
};

const QUEUE: &str = "first";
/// A queue beside the task queue. Its consumer is there before the first publish declares the task queue.
const BESIDE: &str = "first-beside";
/// The exchange of all task queues.
const EXCHANGE: &str = "duetime";
const PER_SECOND: u32 = 200;
/// The tasks of one tick are spread over it.
const LEAD_MS: Range<i64> = 2_000..2_025;
/// The first tasks, and those that they are compared with.
const WINDOW: Duration = Duration::from_secs(5);
const LEAVES_WITHIN: Duration = Duration::from_secs(30);

/// The first tasks may be so many times as late as those after them.
const TIMES_LATER: f64 = 2.0;
/// Or this late, which a person does not notice.
const LATE_MS: f64 = 20.0;

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    progress("first tasks: preparing the stores ...");
    let mut cluster = options.cluster().nodes(0).start().await?;
    for _ in 0..options.nodes {
        cluster.add_node().await?;
    }
    migrate(cluster.node(0)).await?;
    let broker = Broker::connect(&cluster.amqp_url()).await?;
    broker.queue(BESIDE, &[]).await?;
    let record = Arc::new(Record::default());
    let _drain = Drain::start(&cluster.amqp_url(), BESIDE, record.eye());

    start_all(&cluster).await?;
    cluster.live()?.put_queue(QUEUE, &json!({ "settle": "confirm" })).await?;
    broker.bind(BESIDE, EXCHANGE, QUEUE).await?;
    round(&cluster, "first tasks, new cluster", &record, report).await?;

    try_join_all(cluster.nodes().iter().map(|node| node.stop(LEAVES_WITHIN))).await.context("stopping the nodes")?;
    start_all(&cluster).await?;
    round(&cluster, "first tasks, started again", &record, report).await?;
    super::end(cluster).await
}

/// Starts all nodes at once, and returns when the API of each answers. Shards may be without an owner still.
async fn start_all(cluster: &Sandbox) -> Result<()> {
    try_join_all((0..cluster.nodes().len()).map(|number| cluster.restart(number)))
        .await
        .context("starting the nodes")?;
    Ok(())
}

/// Submits a stream from now on. Tells how late the tasks of its first seconds are, and those of the seconds after.
async fn round(cluster: &Sandbox, part: &str, record: &Record, report: &mut Report) -> Result<()> {
    progress(&format!("{part}: {} s ...", 2 * WINDOW.as_secs()));
    let clients = cluster.clients();
    let feed = Feed::ahead(clients.clone(), LEAD_MS);
    let from_us = now_us() + LEAD_MS.start * 1_000;
    let (middle_us, until_us) = (from_us + micros(WINDOW), from_us + 2 * micros(WINDOW));
    let scraping = async {
        let start = Scrape::of(&clients).await?;
        tokio::time::sleep_until(instant_of(middle_us)).await;
        let middle = Scrape::of(&clients).await?;
        tokio::time::sleep_until(instant_of(until_us)).await;
        let end = Scrape::of(&clients).await?;
        anyhow::Ok([middle.since(&start), end.since(&middle)])
    };
    let (accepted, ways, end) = (Default::default(), [Way::to(QUEUE)], Instant::now() + 2 * WINDOW);
    let (scraped, ()) = tokio::join!(scraping, feed.stream(&ways, PER_SECOND, end, &accepted));
    let [first, later] = scraped?;
    let accepted = std::mem::take(&mut *accepted.lock());
    let missing = missing(&accepted, &[record]).await;
    let arrivals = record.take();

    let first_part = &format!("{part}, first {} s", WINDOW.as_secs());
    let first_ms = tell(first_part, &first, &arrivals, from_us..middle_us, report);
    let later_part = &format!("{part}, then");
    let later_ms = tell(later_part, &later, &arrivals, middle_us..i64::MAX, report);
    report.figure(later_part, "consumed late: max", later_ms, "ms");
    let target = Target::AtMost((TIMES_LATER * later_ms).max(LATE_MS));
    report.judged(first_part, "consumed late: max", first_ms, "ms", target);
    Arrived::of(&arrivals).findings(missing).tell(part, "", report);
    feed.tell_refused(part, report);
    Ok(())
}

/// Tells the lateness of the tasks that were due in this time. Returns that of the latest one, in milliseconds.
fn tell(part: &str, nodes: &Scrape, arrivals: &[Seen], due: Range<i64>, report: &mut Report) -> f64 {
    // No other queue has tasks. A node that has just started counts those of a queue it has not read yet elsewhere.
    let published = nodes.histogram("duetime_lateness_seconds", "");
    tell_published(part, &published, Limits::of(PER_SECOND), report);
    let late = Times::new();
    for seen in arrivals.iter().filter(|seen| due.contains(&seen.stamp_us)) {
        late.note_us(u64::try_from(seen.at_us - seen.stamp_us).unwrap_or(0));
    }
    report.figure(part, "consumed late: p50", late.ms(0.5), "ms");
    report.figure(part, "consumed late: p99", late.ms(0.99), "ms");
    late.max_ms()
}
