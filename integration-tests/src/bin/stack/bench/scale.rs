//! Processor time of a task, in clusters of few and of many nodes, and on one and on several databases.

use std::sync::{Arc, atomic::Ordering};

use anyhow::Result;
use parking_lot::Mutex;

use super::{
    Options,
    drain::Drain,
    feed::{Accepted, Feed, Way},
    machine::{NODES, POSTGRESQL, RABBITMQ},
    record::{Record, judge},
    report::{Report, Target, progress},
    steady,
    throughput::counted,
};

/// The number of nodes, all of them on one database.
const NODE_COUNTS: [usize; 4] = [1, 2, 4, 8];
/// The number of databases, all of them with `NODES_OF_DATABASES` nodes.
const DATABASE_COUNTS: [usize; 3] = [1, 2, DATABASES_MAX];
pub(super) const DATABASES_MAX: usize = 4;
const NODES_OF_DATABASES: usize = 4;
/// The same in all clusters. Otherwise the sandbox chooses fewer for several databases.
const SHARDS: u32 = 256;
const QUEUE: &str = "steady";
/// The dearest task may cost so much more than the cheapest.
const APART_PERCENT: f64 = 10.0;

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let (mut by_nodes, mut by_databases) = (Vec::new(), Vec::new());
    for nodes in NODE_COUNTS {
        let task_us = one(options, nodes, 1, report).await?;
        by_nodes.push(task_us);
        // One database with as many nodes as the others have: no second run.
        if nodes == NODES_OF_DATABASES {
            by_databases.push(task_us);
        }
    }
    for databases in DATABASE_COUNTS.into_iter().filter(|databases| *databases > 1) {
        by_databases.push(one(options, NODES_OF_DATABASES, databases, report).await?);
    }
    for (part, sums) in [("scale, 1 to 8 nodes", by_nodes), ("scale, 1 to 4 databases", by_databases)] {
        report.judged(part, "dearest and cheapest apart", apart_percent(&sums), "%", Target::AtMost(APART_PERCENT));
    }
    Ok(())
}

/// Returns the processor time of a task in microseconds.
async fn one(options: &Options, nodes: usize, databases: usize, report: &mut Report) -> Result<f64> {
    let part = &format!("scale, {}, {}", counted(nodes, "node"), counted(databases, "database"));
    progress(&format!("{part}: starting the cluster ..."));
    let cluster = options.cluster().nodes(nodes).databases(databases).shards(SHARDS).start().await?;
    super::flush(&cluster).await?;
    let (record, accepted): (Arc<Record>, Arc<Mutex<Vec<Accepted>>>) = Default::default();
    let drain = Drain::start(&cluster.amqp_url(), QUEUE, record.eye());
    let feed = Feed::new(cluster.clients());
    feed.open(QUEUE, "confirm", &record.seen).await?;

    let (ways, rate) = ([Way::to(QUEUE)], options.scale_rate);
    let steady = steady::offer(part, options, (&cluster, &feed), &ways, rate, &accepted).await?;
    let used = steady.watch.used();
    let tasks = accepted.lock().iter().filter(|task| steady.due_us.contains(&task.due_us)).count() as f64;
    let mut sum_us = 0.0;
    for group in [NODES, POSTGRESQL, RABBITMQ] {
        let task_us = used.seconds_of(group) * 1e6 / tasks;
        report.figure(part, &format!("{group}, a task"), task_us, "us");
        sum_us += task_us;
    }
    report.figure(part, "together, a task", sum_us, "us");
    steady.watch.end(part, report)?;
    if options.details {
        steady.nodes.details(part, options.time().as_secs_f64(), report);
    }
    let accepted = std::mem::take(&mut *accepted.lock());
    judge(part, "tasks", &accepted, &[&record], report).await;
    report.judged(part, "refused", feed.refused.load(Ordering::Relaxed) as f64, "", Target::AtMost(0.0));
    drop(drain);
    super::end(cluster).await?;
    Ok(sum_us)
}

fn apart_percent(sums: &[f64]) -> f64 {
    let least = sums.iter().copied().fold(f64::INFINITY, f64::min);
    let most = sums.iter().copied().fold(0.0, f64::max);
    (most / least - 1.0) * 100.0
}
