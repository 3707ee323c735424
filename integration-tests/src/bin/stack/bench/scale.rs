//! Processor time of a task, in clusters of few and of many nodes, and on one and on several databases.

use std::{collections::BTreeMap, sync::Arc};

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
const NODE_COUNTS: [usize; 4] = [1, 2, 4, NODES_MAX];
const NODES_MAX: usize = 8;
/// The number of databases, all of them with `NODES_OF_DATABASES` nodes.
const DATABASE_COUNTS: [usize; 3] = [1, 2, DATABASES_MAX];
pub(super) const DATABASES_MAX: usize = 4;
const NODES_OF_DATABASES: usize = 4;
/// The same in all clusters. Otherwise the sandbox chooses fewer for several databases.
const SHARDS: u32 = 256;
const QUEUE: &str = "steady";
/// The dearest task may cost so much more than the cheapest.
const APART_PERCENT: f64 = 10.0;

/// A cluster and its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    nodes: usize,
    databases: usize,
    per_second: u32,
}

/// Each series has a cluster of each size. Either all of them get the same load, or a cluster gets its part of it for
/// each of its nodes or databases: a team adds these when its load grows.
pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let mut measured = BTreeMap::new();
    for (name, cases) in series(options.scale_rate) {
        let mut sums = Vec::new();
        for case in cases {
            let task_us = match measured.get(&case) {
                Some(task_us) => *task_us,
                None => one(options, case, report).await?,
            };
            measured.insert(case, task_us);
            sums.push(task_us);
        }
        let part = format!("scale, {name}");
        report.judged(&part, "dearest and cheapest apart", apart_percent(&sums), "%", Target::AtMost(APART_PERCENT));
    }
    Ok(())
}

/// `rate` is that of the largest cluster.
fn series(rate: u32) -> [(&'static str, Vec<Case>); 4] {
    let part_of = |count: usize, most: usize| (f64::from(rate) * count as f64 / most as f64).round().max(1.0) as u32;
    let of_nodes = |nodes, per_second| Case { nodes, databases: 1, per_second };
    let of_databases = |databases, per_second| Case { nodes: NODES_OF_DATABASES, databases, per_second };
    [
        ("1 to 8 nodes, the same load for all", NODE_COUNTS.map(|nodes| of_nodes(nodes, rate)).into()),
        (
            "1 to 8 nodes, the same load a node",
            NODE_COUNTS.map(|nodes| of_nodes(nodes, part_of(nodes, NODES_MAX))).into(),
        ),
        ("1 to 4 databases, the same load for all", DATABASE_COUNTS.map(|count| of_databases(count, rate)).into()),
        (
            "1 to 4 databases, the same load a database",
            DATABASE_COUNTS.map(|count| of_databases(count, part_of(count, DATABASES_MAX))).into(),
        ),
    ]
}

/// Returns the processor time of a task in microseconds.
async fn one(options: &Options, case: Case, report: &mut Report) -> Result<f64> {
    let Case { nodes, databases, per_second } = case;
    let part = &format!("scale, {}, {}, {per_second}/s", counted(nodes, "node"), counted(databases, "database"));
    progress(&format!("{part}: starting the cluster ..."));
    let cluster = options.cluster().nodes(nodes).databases(databases).shards(SHARDS).start().await?;
    super::flush(&cluster).await?;
    let (record, accepted): (Arc<Record>, Arc<Mutex<Vec<Accepted>>>) = Default::default();
    let drain = Drain::start(&cluster.amqp_url(), QUEUE, record.eye());
    let feed = Feed::new(cluster.clients());
    feed.open(QUEUE, "confirm", &record.seen).await?;

    let steady = steady::offer(part, options, (&cluster, &feed), &[Way::to(QUEUE)], per_second, &accepted).await?;
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
    feed.tell_refused(part, report);
    drop(drain);
    super::end(cluster).await?;
    Ok(sum_us)
}

fn apart_percent(sums: &[f64]) -> f64 {
    let least = sums.iter().copied().fold(f64::INFINITY, f64::min);
    let most = sums.iter().copied().fold(0.0, f64::max);
    (most / least - 1.0) * 100.0
}
