//! The number of shards is a fact of the cluster: fixed by its first migration, whatever a configuration states later.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration_tests::{
    ledger::Number,
    load::Load,
    sandbox::{Node, Sandbox, Tether, free_port, migrate, scratch},
};
use serde_json::Value;

use crate::{confirm, flows, load, scenario, until};

const SOON: Duration = Duration::from_secs(60);
const MANY: u32 = 4_096;

/// A node of the same cluster whose configuration states something else about the shards, or nothing.
fn other_node(sandbox: &Sandbox, name: &str, states: &str) -> Result<Node> {
    let mut config = sandbox.node(0).config().clone();
    (config.name, config.port, config.more) = (name.to_owned(), free_port(), states.to_owned());
    Node::new(scratch(), config, Tether::Tethered)
}

fn keyed(number: Number, task: &mut Value) {
    task["key"] = format!("k{number}").into();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_keeps_its_number_of_shards_whatever_a_configuration_states() {
    scenario(Sandbox::builder().nodes(1).shards(128), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let silent = other_node(sandbox, "silent", "")?;
        let contrary = other_node(sandbox, "contrary", "[cluster]\nshards = 512\n")?;
        for node in [&silent, &contrary] {
            migrate(node).await?;
            node.start()?;
        }
        for node in [&silent, &contrary] {
            node.wait_ready(SOON).await?;
        }
        until("three nodes share 128 shards", SOON, || async {
            let mut owned = 0.0;
            for client in [sandbox.client(0), silent.client(), contrary.client()] {
                owned += client.metric("duetime_shards_owned").await.ok()?.filter(|owned| *owned > 40.0)?;
            }
            (owned == 128.0).then_some(())
        })
        .await?;
        let warnings = |node: &Node| {
            std::fs::read_to_string(node.log()).map_or(0, |log| log.matches("another number of shards").count())
        };
        ensure!((warnings(&silent), warnings(&contrary)) == (0, 1), "{}", contrary.tail(20));
        // Tasks with keys meet on the same shard, whichever node takes them.
        let clients = [sandbox.client(0), silent.client(), contrary.client()];
        let sent = Load::new("mail", 100).with(keyed).run(&clients, &sandbox.ledger, Duration::from_secs(2)).await;
        ensure!(sent.len() > 50, "only {} were sent", sent.len());
        ensure!(sandbox.ledger.wait_all(SOON).await, "tasks are outstanding");
        for node in [silent, contrary] {
            ensure!(node.stop(SOON).await?.success(), "{}", node.tail(20));
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_many_shards_fires_and_survives_a_kill() {
    scenario(Sandbox::builder().nodes(2).shards(MANY), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = load(sandbox, &[0], Load::new("mail", 100), Duration::from_secs(4));
        flows(sandbox, 50).await?;
        sandbox.kill(1);
        sandbox.settled().await?;
        ensure!(sandbox.owned().await == [f64::from(MANY)], "{:?}", sandbox.owned().await);
        stream.await?;
        ensure!(sandbox.ledger.wait_all(SOON).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}
