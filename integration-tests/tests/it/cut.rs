//! A running node that is cut off from one of its stores: its shards move to nodes that can work on them.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration_tests::{
    load::Load,
    sandbox::{Links, Proxy, Sandbox},
};

use crate::{confirm, flows, scenario, stream::Stream, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_cut_off_from_the_database_gives_its_shards_up() {
    cut("a database", |links| links.databases.iter().collect(), Duration::from_secs(25)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_cut_off_from_the_broker_gives_its_shards_up() {
    cut("the broker", |links| vec![&links.rabbit], Duration::from_secs(40)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_cut_off_from_etcd_loses_its_shards_to_the_fence() {
    cut("etcd", |links| links.etcd.iter().collect(), Duration::from_secs(25)).await;
}

async fn cut(what: &str, ways: fn(&Links) -> Vec<&Proxy>, within: Duration) {
    scenario(Sandbox::builder().compared().proxied(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let lonely = (sandbox.master().await? + 1) % 3;
        let others = [(lonely + 1) % 3, (lonely + 2) % 3];
        let stream = Stream::start(sandbox, &others, Load::new("mail", 100));
        flows(sandbox, 100).await?;
        let fault = sandbox.ledger.fault(&format!("node cut off from {what}"));
        ways(sandbox.links(lonely)).into_iter().for_each(Proxy::cut);
        owned_by(sandbox, others, within).await?;
        ways(sandbox.links(lonely)).into_iter().for_each(Proxy::heal);
        sandbox.ledger.heal(fault);
        sandbox.settled().await?;
        stream.end().await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}

/// Waits until the other nodes own all shards, by the cluster's report as those nodes give it.
async fn owned_by(sandbox: &Sandbox, others: [usize; 2], within: Duration) -> Result<()> {
    let names: Vec<String> = others.iter().map(|number| sandbox.node(*number).name().to_owned()).collect();
    until("the others own all shards", within, || async {
        let report = sandbox.client(others[0]).cluster().await.ok()?;
        let shards = report["shards"].as_array()?;
        let theirs = shards.iter().filter(|shard| names.iter().any(|name| shard["owner"] == name.as_str())).count();
        (theirs == sandbox.shard_count() as usize).then_some(())
    })
    .await
}
