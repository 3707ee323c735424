//! Nodes that join and leave in order: no task is lost, comes twice or waits long.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration_tests::{load::Load, sandbox::Sandbox};
use reqwest::Method;
use serde_json::Value;

use crate::{command::Terminal, confirm, flows, held_up_ms, lasts, load, scenario, stream::Stream, until};

/// No task may be later than this while shards are handed over.
const GAP_MS: f64 = 5_000.0;
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// Runs the whole story without a fault window: a copy anywhere in it is a violation.
async fn no_gap(sandbox: &Sandbox) -> Result<()> {
    ensure!(sandbox.ledger.wait_all(Duration::from_secs(30)).await, "tasks are outstanding");
    let lateness = sandbox.ledger.judge().lateness;
    ensure!(lateness.max_ms <= GAP_MS + held_up_ms() as f64, "{lateness}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_makes_no_copy_and_no_gap() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Stream::start(sandbox, &[0, 1, 2], Load::new("mail", 100));
        for number in 0..3 {
            let status = sandbox.node(number).stop(STOP_WITHIN).await?;
            ensure!(status.success(), "{} left with {status}", sandbox.node(number).name());
            sandbox.restart(number).await?;
            sandbox.settled().await?;
        }
        stream.end().await?;
        no_gap(sandbox).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_joins_takes_its_share_and_one_that_leaves_gives_it_back() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Stream::start(sandbox, &[0, 1], Load::new("mail", 100));
        let third = sandbox.add_node().await?;
        sandbox.restart(third).await?;
        sandbox.settled().await?;
        let first = sandbox.master().await?;
        ensure!(sandbox.node(first).stop(STOP_WITHIN).await?.success());
        sandbox.settled().await?;
        stream.end().await?;
        no_gap(sandbox).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_come_due_while_no_node_runs_fire_when_one_is_back() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        load(sandbox, &[0], Load::new("mail", 200).due_in_ms(1_000..15_000), Duration::from_secs(3)).await?;
        ensure!(sandbox.node(0).stop(STOP_WITHIN).await?.success());
        let stopped = sandbox.ledger.progress();
        ensure!(stopped.due < stopped.accepted, "every task was due before the node had stopped: {stopped:?}");
        until("every task is due", STOP_WITHIN, || async {
            let now = sandbox.ledger.progress();
            (now.due >= now.accepted).then_some(())
        })
        .await?;
        sandbox.restart(0).await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_may_be_killed_at_once() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = load(sandbox, &[0, 1, 2], Load::new("mail", 150), Duration::from_secs(6));
        flows(sandbox, 200).await?;
        for number in 0..3 {
            sandbox.kill(number);
        }
        stream.await?;
        for number in 0..3 {
            sandbox.node(number).start()?;
        }
        for number in 0..3 {
            sandbox.node(number).wait_ready(Duration::from_secs(60)).await?;
        }
        sandbox.settled().await
    })
    .await;
}

/// How many shards a node reports to own, and whether it reports that it is drained.
async fn shards_of(sandbox: &Sandbox, node: usize) -> Result<(f64, bool)> {
    let client = sandbox.client(node);
    let figure = async |name| anyhow::Ok(client.metric(name).await?.unwrap_or(-1.0));
    Ok((figure("duetime_shards_owned").await?, figure("duetime_drained").await? > 0.0))
}

/// Waits until `owner` has all shards.
async fn all_with(sandbox: &Sandbox, owner: usize) -> Result<()> {
    until("all shards with one node", Duration::from_secs(60), || async {
        shards_of(sandbox, owner).await.ok().filter(|(shards, _)| *shards == f64::from(sandbox.shard_count()))
    })
    .await
    .map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_makes_no_copy_and_no_gap_and_serves_on_without_shards() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let terminal = Terminal::of(sandbox);
        let stream = Stream::start(sandbox, &[0, 1, 2], Load::new("mail", 100));
        let master = sandbox.master().await?;
        for node in [(master + 1) % 3, master] {
            let name = sandbox.node(node).name();
            let began = std::time::Instant::now();
            let drained = terminal.json(&["cluster", "drain", name, "--wait"]).await?;
            ensure!(drained["drained"] == true && drained["shards_owned"] == 0, "{drained}");
            ensure!(began.elapsed() < STOP_WITHIN, "{name} was drained in {:?}", began.elapsed());
            ensure!(shards_of(sandbox, node).await? == (0.0, true));
            let (ready, why) = sandbox.client(node).readiness().await?;
            ensure!(ready && sandbox.master().await? == master, "{why}");
            lasts(Duration::from_secs(2)).await;
            let undrained = terminal.text(&["cluster", "undrain", name]).await?;
            ensure!(undrained.starts_with(&format!("{name}  not drained, ")), "{undrained}");
            sandbox.settled().await?;
        }
        stream.end().await?;
        no_gap(sandbox).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_stays_drained_when_the_master_dies_and_is_drained_no_more_when_it_starts_again() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let master = sandbox.master().await?;
        let (drained, other) = ((master + 1) % 3, (master + 2) % 3);
        let name = sandbox.node(drained).name().to_owned();
        let terminal = Terminal::of(sandbox);
        terminal.text(&["cluster", "drain", &name, "--wait"]).await?;
        let stream = Stream::start(sandbox, &[drained, other], Load::new("mail", 100));
        flows(sandbox, 100).await?;
        sandbox.kill(master);
        all_with(sandbox, other).await?;
        ensure!(shards_of(sandbox, drained).await? == (0.0, true), "{name} took shards of the master");
        // The last node cannot be drained, through any node; nor can one that does not exist.
        let last = sandbox.node(other).name();
        let refused = terminal.refused(&["cluster", "drain", last]).await?;
        ensure!(refused.contains(last) && refused.contains("last"), "{refused}");
        let refused = terminal.refused(&["cluster", "undrain", "nobody"]).await?;
        ensure!(refused.contains("there are: ") && refused.contains(last), "{refused}");

        stream.end().await?;
        ensure!(sandbox.node(drained).stop(STOP_WITHIN).await?.success());
        sandbox.restart(drained).await?;
        sandbox.settled().await?;
        ensure!(!shards_of(sandbox, drained).await?.1, "another start of {name} is drained");
        let deeds: Value = sandbox.client(other).call(Method::GET, "/v1/audit?what=node.drain", None).await?;
        let told: Vec<_> =
            deeds["deeds"].as_array().into_iter().flatten().map(|deed| (&deed["target"], &deed["status"])).collect();
        ensure!(told == [(&last.into(), &409.into()), (&Value::from(name), &200.into())], "{told:?}");
        Ok(())
    })
    .await;
}
