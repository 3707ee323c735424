//! What a cluster costs that has nothing to do: processor time of each node, and statements.

use std::time::Duration;

use anyhow::Result;
use integration_tests::sandbox::Sandbox;

use super::{
    Options,
    report::{Report, Target, progress},
    window::{Measured, Window},
};

/// What follows a start ends within this time: first reads, and looks for what was left behind.
const WARM_UP: Duration = Duration::from_secs(15);
/// Of all nodes together.
const STATEMENTS_PER_S: f64 = 30.0;
/// Of a core, for each node.
const NODE_PERCENT: f64 = 1.0;

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    progress("idle: starting the cluster ...");
    let cluster = options.cluster().start().await?;
    let part = &format!("idle, {} nodes, {} shards", options.nodes, cluster.shard_count());
    progress(&format!("{part}: {} s to calm down, {} s measured ...", WARM_UP.as_secs(), options.seconds));
    tokio::time::sleep(WARM_UP).await;
    let quiet = measured(options, &cluster).await?;
    for (node, cores) in quiet.watch.nodes() {
        report.judged(part, &format!("{node} uses"), cores * 100.0, "% of a core", Target::AtMost(NODE_PERCENT));
    }
    tell(&quiet, part, Some(STATEMENTS_PER_S), report);
    if options.details {
        quiet.nodes.statements(part, quiet.seconds, report);
    }
    quiet.watch.end(part, report)?;
    super::end(cluster).await
}

/// Measures a cluster that is left alone for `--seconds`.
pub(super) async fn measured(options: &Options, cluster: &Sandbox) -> Result<Measured> {
    super::flush(cluster).await?;
    let window = Window::open(cluster).await?;
    tokio::time::sleep(options.time()).await;
    window.close().await
}

/// Tells how many statements the nodes sent, of which so many a second are allowed.
pub(super) fn tell(quiet: &Measured, part: &str, most_per_s: Option<f64>, report: &mut Report) {
    let statements = quiet.nodes.total("duetime_database_statement_seconds_count");
    report.limited(part, "idle: statements", statements / quiet.seconds, "/s", most_per_s);
    let busy = quiet.nodes.total("duetime_database_statement_seconds_sum");
    report.figure(part, "idle: statements under way", busy / quiet.seconds, "");
}
