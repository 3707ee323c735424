//! What a shard costs: an idle cluster, a start, a takeover and a restart with few and with many shards.

use anyhow::{Context, Result, ensure};
use integration_tests::sandbox::{Sandbox, hide_variables};
use tokio::{process::Command, time::Instant};

use super::{
    Options, idle,
    report::{Report, progress},
};

const COUNTS: [u32; 4] = [128, 256, 1_024, 4_096];
const NODES: usize = 2;

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    for count in COUNTS {
        let part = format!("{count} shards");
        progress(&format!("{part}: starting the cluster ..."));
        let began = Instant::now();
        let cluster = options.cluster().nodes(NODES).shards(count).start().await?;
        report.figure(&part, "from nothing until every shard is owned", began.elapsed().as_secs_f64(), "s");
        idle(options, &cluster, &part, report).await?;

        let began = Instant::now();
        cluster.kill(1);
        cluster.settled().await?;
        report.figure(&part, "a node killed: all its shards taken after", began.elapsed().as_secs_f64(), "s");
        let began = Instant::now();
        cluster.restart(1).await?;
        cluster.settled().await?;
        report.figure(&part, "started again: it has its share after", began.elapsed().as_secs_f64(), "s");
        super::end(cluster).await?;
    }
    Ok(())
}

async fn idle(options: &Options, cluster: &Sandbox, part: &str, report: &mut Report) -> Result<()> {
    progress(&format!("{part}: idle ..."));
    let (keys, bytes) = in_etcd(cluster).await?;
    report.figure(part, "keys in etcd", keys as f64, "");
    report.figure(part, "their values and names", bytes as f64 / 1024.0, "KB");
    let quiet = idle::measured(options, cluster).await?;
    idle::tell(&quiet, part, None, report);
    quiet.tell(part, options, report)
}

/// The number of the cluster's keys, and their size.
pub(super) async fn in_etcd(cluster: &Sandbox) -> Result<(usize, usize)> {
    let prefix = format!("{}/", cluster.node(0).config().etcd_prefix);
    let endpoints = format!("--endpoints={}", cluster.etcd().endpoints().join(","));
    let mut list = Command::new("etcdctl");
    hide_variables(list.as_std_mut());
    list.args([&endpoints, "get", "--prefix", &prefix]).env("ETCDCTL_API", "3");
    let listed = list.output().await.context("running etcdctl")?;
    ensure!(listed.status.success(), "{listed:?}");
    // Two lines for each key: its name and its value.
    Ok((listed.stdout.iter().filter(|byte| **byte == b'\n').count() / 2, listed.stdout.len()))
}
