//! Many queues at the same time, some of which cannot dispatch their tasks: their cost to the others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
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
    drain::{Drain, Eye},
    feed::{Feed, Way},
    report::{Report, Target, progress},
    scrape::watched,
};

/// Over all queues.
const PER_SECOND: u32 = 2_000;
const OF_EACH_KIND: usize = 5;
const PLAIN: usize = 30;
const PARTITIONS: u64 = 20;
/// Until due tasks have begun to pile up in the queues that cannot dispatch.
const WARM_UP: Duration = Duration::from_secs(15);

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    progress("crowd: starting the cluster ...");
    let cluster = options.cluster().start().await?;
    super::flush(&cluster).await?;
    let ways = open(&cluster).await?;
    let (seen, eye) = counting();
    let _drains: Vec<Drain> = ways
        .iter()
        .filter(|way| ["plain", "limited"].iter().any(|kind| way.queue.starts_with(kind)))
        .map(|way| Drain::start(&cluster.amqp_url(), &way.queue, Arc::clone(&eye)))
        .collect();
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
    let accepted = Arc::<Mutex<_>>::default();
    let (watched, ()) = tokio::join!(watched(&cluster, WARM_UP, end), feed.stream(&ways, PER_SECOND, end, &accepted));
    let (nodes, watch) = watched?;
    ensure!(seen.load(Ordering::Relaxed) > 0, "no message arrives");
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
    drop((_drains, _workers));
    super::end(cluster).await
}

fn counting() -> (Arc<AtomicU64>, Eye) {
    let seen = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&seen);
    let eye = Arc::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    (seen, eye)
}

/// Sets the policies. The full queue has no consumer.
async fn open(cluster: &Sandbox) -> Result<Vec<Way>> {
    let client = cluster.clients().into_iter().next().context("there is a node")?;
    let kinds = [
        ("plain", PLAIN, 0, json!({ "settle": "confirm", "max_length": 1_000_000 })),
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
