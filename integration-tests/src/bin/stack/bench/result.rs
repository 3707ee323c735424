//! Tasks a second from submission to the report of their consumer: without an order, in the order of partition keys,
//! and beside queues at their limits.

use std::time::Duration;

use anyhow::{Context, Result};
use integration_tests::{client::Client, sandbox::Sandbox};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Options,
    drain::{Drain, Reporter},
    feed::{Feed, MAX_LENGTH, Way},
    limited,
    report::{Report, Target, progress},
    scrape::Scrape,
    throughput::{Backlog, fastest},
    volume,
};

const QUEUE: &str = "reported";
/// Of the ordered queue.
const PARTITIONS: u64 = 10_000;
const LEAST_PER_S: f64 = 9_000.0;
const LEAST_ORDERED_PER_S: f64 = 5_000.0;
/// The limit for the last reports to be written.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The nodes settle some 2,000 tasks meanwhile, a sixth of the backlog.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let plain = json!({ "settle": "result", "max_length": MAX_LENGTH });
    let ordered = json!({ "settle": "result", "ordered": true, "max_length": MAX_LENGTH });
    settle("result", options, (&plain, 0), LEAST_PER_S, report).await?;
    let part = "result, ordered";
    settle(part, options, (&ordered, PARTITIONS), LEAST_ORDERED_PER_S, report).await?;
    limited::measure(options, report).await.context("measuring limits")
}

/// Measures one queue with a policy and so many partition keys.
async fn settle(
    part: &str,
    options: &Options,
    (policy, partitions): (&Value, u64),
    least_per_s: f64,
    report: &mut Report,
) -> Result<()> {
    progress(&format!("{part}: starting the cluster ..."));
    let cluster = options.cluster().start().await?;
    super::flush(&cluster).await?;
    run(part, options, &cluster, (policy, partitions), least_per_s, report).await.with_context(|| part.to_owned())?;
    super::end(cluster).await
}

async fn run(
    part: &str,
    options: &Options,
    cluster: &Sandbox,
    (policy, partitions): (&Value, u64),
    least_per_s: f64,
    report: &mut Report,
) -> Result<()> {
    let (clients, backlog) = (cluster.clients(), Backlog::of_settled());
    let feed = Feed::new(clients.clone());
    let _drain = Drain::reporting(&cluster.amqp_url(), QUEUE, backlog.eye(), &Reporter::lean());
    feed.open_by(QUEUE, policy, &backlog.seen).await?;
    let ways = [Way { partitions, ..Way::to(QUEUE) }];

    let fastest = tokio::select! {
        fastest = fastest(options, cluster, &feed, &ways, &backlog) => fastest?,
        failed = follow(&clients, &backlog) => return failed,
    };
    let per_second = succeeded(&fastest.nodes) / fastest.seconds;
    report.judged(part, "submitted, consumed and settled", per_second, "/s", Target::AtLeast(least_per_s));
    report.figure(part, "consumed", fastest.per_second, "/s");
    backlog.tell_took(part, None, report);
    report.figure(part, "write-ahead log, through its life", fastest.log_bytes, "bytes a task");
    fastest.watch.end(part, report)?;
    if options.details {
        fastest.nodes.details(part, options.time().as_secs_f64(), report);
    }
    backlog.judge(part, report).await;
    let unsettled = unsettled(cluster).await?;
    report.finding(part, "not settled in the end", unsettled);
    // The first task only opened the queue.
    let (nodes, settled) = (Scrape::of(&clients).await?, (backlog.accepted() + 1).saturating_sub(unsettled));
    report.figure(part, "settled and counted by no node", settled as f64 - succeeded(&nodes), "");
    report.figure(part, "stale reports", nodes.total("duetime_reports_stale_total"), "");
    Ok(())
}

/// Makes room for as many tasks as are settled. Otherwise reports would pile up before nodes that take new tasks first.
async fn follow(clients: &[Client], backlog: &Backlog) -> Result<()> {
    let mut known = 0;
    loop {
        let settled = succeeded(&Scrape::of(clients).await?) as usize;
        backlog.make_room(settled.saturating_sub(known));
        known = settled.max(known);
        tokio::time::sleep(FOLLOW_EVERY).await;
    }
}

/// Waits until all tasks are settled. Returns how many are not.
async fn unsettled(cluster: &Sandbox) -> Result<u64> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let unsettled = volume::unfinished(cluster).await?;
        if unsettled == 0 || Instant::now() >= deadline {
            return Ok(unsettled);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn succeeded(nodes: &Scrape) -> f64 {
    nodes.total_of("duetime_tasks_finished_total", "outcome=\"succeeded\"")
}
