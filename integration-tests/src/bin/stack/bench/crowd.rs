//! Many queues at the same time, some of which cannot dispatch their tasks: their cost to the others.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use integration_tests::{
    consumer::{Answer, Consumer},
    ledger::Ledger,
    sandbox::Sandbox,
};
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Options,
    drain::Drain,
    feed::{Accepted, Feed, Way},
    record::{Record, judge},
    report::{Report, Target, progress},
    scrape::watched,
};

/// Over all queues.
const PER_SECOND: u32 = 2_000;
const OF_EACH_KIND: usize = 5;
/// The queues that the others may not disturb begin so.
const PLAIN: &str = "plain";
const PLAIN_QUEUES: usize = 30;
const PARTITIONS: u64 = 20;
/// Until due tasks have begun to pile up in the queues that cannot dispatch.
const WARM_UP: Duration = Duration::from_secs(15);

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    progress("crowd: starting the cluster ...");
    let cluster = options.cluster().start().await?;
    super::flush(&cluster).await?;
    let ways = open(&cluster).await?;
    // Tasks of the limited queues wait for minutes: their consumer only takes them away.
    let (plain, limited): (Arc<Record>, Arc<Record>) = Default::default();
    let drain = |kind: &'static str, record: &Arc<Record>| {
        let (eye, url) = (record.eye(), cluster.amqp_url());
        let of_kind = ways.iter().filter(move |way| way.queue.starts_with(kind));
        of_kind.map(move |way| Drain::start(&url, &way.queue, Arc::clone(&eye)))
    };
    let _drains: Vec<Drain> = drain(PLAIN, &plain).chain(drain("limited", &limited)).collect();
    let ledger = Arc::new(Ledger::default());
    let succeed = |way: &Way| {
        let script = Arc::new(|_: &_| Answer::report("succeeded"));
        Consumer::scripted(&cluster.amqp_url(), &way.queue, &ledger, script)
    };
    let _workers: Vec<Consumer> = ways.iter().filter(|way| way.queue.starts_with("ordered")).map(succeed).collect();

    let part = &format!("crowd of {} queues", ways.len());
    progress(&format!("{part}: {} s to warm up, {} s measured ...", WARM_UP.as_secs(), options.seconds));
    let feed = Feed::new(cluster.clients());
    let end = Instant::now() + WARM_UP + options.time();
    let accepted: Arc<Mutex<Vec<Accepted>>> = Arc::default();
    let (watched, ()) = tokio::join!(watched(&cluster, WARM_UP, end), feed.stream(&ways, PER_SECOND, end, &accepted));
    let (nodes, watch) = watched?;
    let late = nodes.histogram("duetime_lateness_seconds", "queue=\"plain-");
    report.figure(part, "others published late: p50", late.quantile(0.5) * 1e3, "ms");
    report.judged(part, "others published late: p99", late.quantile(0.99) * 1e3, "ms", Target::AtMost(15.0));
    report.figure(part, "others published", late.count() / options.time().as_secs_f64(), "/s");
    for kind in ["paused", "full", "limited", "ordered"] {
        let count = nodes.histogram("duetime_lateness_seconds", &format!("queue=\"{kind}-")).count();
        report.figure(part, &format!("{kind} published"), count / options.time().as_secs_f64(), "/s");
    }
    watch.end(part, report)?;
    if options.details {
        nodes.details(part, options.time().as_secs_f64(), report);
    }
    let mut accepted = std::mem::take(&mut *accepted.lock());
    accepted.retain(|task| Way::of(&ways, task.serial).queue.starts_with(PLAIN));
    judge(part, "others", &accepted, &[&plain], report).await;
    drop((_drains, _workers));
    super::end(cluster).await
}

/// Sets the policies. The full queue has no consumer.
async fn open(cluster: &Sandbox) -> Result<Vec<Way>> {
    let client = cluster.clients().into_iter().next().context("there is a node")?;
    let kinds = [
        (PLAIN, PLAIN_QUEUES, 0, json!({ "settle": "confirm", "max_length": 1_000_000 })),
        ("paused", OF_EACH_KIND, 0, json!({ "settle": "confirm" })),
        ("full", OF_EACH_KIND, 0, json!({ "settle": "confirm", "max_length": 50 })),
        ("limited", OF_EACH_KIND, 0, json!({ "settle": "confirm", "placement": "single", "rate_per_second": 20 })),
        ("ordered", OF_EACH_KIND, PARTITIONS, json!({ "settle": "result", "ordered": true })),
    ];
    let mut ways = Vec::new();
    for (kind, count, partitions, policy) in kinds {
        for number in 0..count {
            let queue = format!("{kind}-{number}");
            client.put_queue(&queue, &policy).await?;
            if kind == "paused" {
                client.call::<Value>(Method::POST, &format!("/v1/queues/{queue}/pause"), None).await?;
            }
            ways.push(Way { partitions, ..Way::to(&queue) });
        }
    }
    Ok(ways)
}
