//! Nodes that come and go in order: nothing is lost, nothing comes twice, nothing waits long.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration_tests::{load::Load, sandbox::Sandbox};

use crate::{confirm, load, scenario};

/// No task may be later than this while shards are handed over.
const GAP_MS: f64 = 2_000.0;
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// The whole story without a fault window: a copy anywhere in it is a violation.
async fn no_gap(sandbox: &Sandbox) -> Result<()> {
    ensure!(sandbox.ledger.wait_all(Duration::from_secs(20)).await, "tasks are outstanding");
    let lateness = sandbox.ledger.judge().lateness;
    ensure!(lateness.max_ms <= GAP_MS, "{lateness}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_makes_no_copy_and_no_gap() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = load(sandbox, &[0, 1, 2], Load::new("mail", 100), Duration::from_secs(24));
        for number in 0..3 {
            let status = sandbox.node(number).stop(STOP_WITHIN).await?;
            ensure!(status.success(), "{} left with {status}", sandbox.node(number).name());
            sandbox.restart(number).await?;
            sandbox.settled().await?;
        }
        stream.await?;
        no_gap(sandbox).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_joins_takes_its_share_and_one_that_leaves_gives_it_back() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = load(sandbox, &[0, 1], Load::new("mail", 100), Duration::from_secs(15));
        let third = sandbox.add_node().await?;
        sandbox.restart(third).await?;
        sandbox.settled().await?;
        let first = sandbox.master().await?;
        ensure!(sandbox.node(first).stop(STOP_WITHIN).await?.success());
        sandbox.settled().await?;
        stream.await?;
        no_gap(sandbox).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_come_due_while_no_node_runs_fire_when_one_is_back() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        load(sandbox, &[0], Load::new("mail", 200).due_in_ms(1_000..4_000), Duration::from_secs(3)).await?;
        ensure!(sandbox.node(0).stop(STOP_WITHIN).await?.success());
        tokio::time::sleep(Duration::from_secs(3)).await;
        sandbox.restart(0).await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(15)).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_may_be_killed_at_once() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = load(sandbox, &[0, 1, 2], Load::new("mail", 150), Duration::from_secs(6));
        tokio::time::sleep(Duration::from_secs(3)).await;
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
