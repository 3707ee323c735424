//! `require_synchronous_standby`: no task is accepted while a standby does not confirm commits.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration_tests::{
    clock::now_ms,
    sandbox::{Node, Postgres, Sandbox},
};
use serde_json::{Value, json};

use crate::{confirm, scenario, submit, submit_now, until};

const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_node_accepts_no_task_while_commits_are_not_replicated() {
    scenario(Sandbox::builder().standby().nodes(2), async |sandbox| {
        for number in 0..2 {
            sandbox.node(number).set("DUETIME_DATABASE__0__REQUIRE_SYNCHRONOUS_STANDBY", "true");
            sandbox.node(number).stop(SOON).await?;
            sandbox.restart(number).await?;
        }
        sandbox.settled().await?;
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let (primary, standby) = (sandbox.postgres(0), sandbox.standby());
        for _ in 0..20 {
            submit(&sandbox.client(1), &sandbox.ledger, "mail", now_ms() + 40_000, &Value::Null).await?;
        }

        // As Patroni does when it gives up on a standby.
        name_standbys(primary, "").await?;
        refuse(sandbox, "synchronous_standby_names is empty").await?;
        ensure!(sandbox.ledger.outstanding() > 0, "they were due before the refusal");
        ensure!(sandbox.ledger.wait_all(SOON).await, "what was accepted goes on");
        name_standbys(primary, "*").await?;
        accept(sandbox).await?;

        standby.kill();
        refuse(sandbox, "no synchronous standby is connected").await?;
        standby.restart().await?;
        accept(sandbox).await
    })
    .await;
}

async fn name_standbys(primary: &Postgres, names: &str) -> Result<()> {
    primary.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'")).await?;
    primary.execute("SELECT pg_reload_conf()").await
}

async fn missing(node: &Node) -> Option<bool> {
    let (_, report) = node.client().readiness().await.ok()?;
    let report: Value = serde_json::from_str(&report).ok()?;
    Some(report["missing"].as_array()?.contains(&json!("standby")))
}

/// Waits until each node says so, and stays ready all the same. Then none accepts a task.
async fn refuse(sandbox: &Sandbox, why: &str) -> Result<()> {
    for node in sandbox.nodes() {
        until("the node misses the standby", SOON, || async { missing(node).await?.then_some(()) }).await?;
        let (ready, report) = node.client().readiness().await?;
        ensure!(ready && report.contains(why), "{report}");
        let number = sandbox.ledger.submitting("mail", now_ms());
        let answer = node.client().submit(&json!({ "queue": "mail", "payload": { "n": number } })).await;
        let error = format!("{:?}", answer.err());
        ensure!(error.contains("503") && error.contains(why), "{error}");
        sandbox.ledger.refused(number);
        // A node reads this figure every two seconds.
        until("the gauge shows it", SOON, || async {
            (node.client().metric("duetime_database_unreplicated").await.ok()?? == 1.0).then_some(())
        })
        .await?;
    }
    Ok(())
}

async fn accept(sandbox: &Sandbox) -> Result<()> {
    for node in sandbox.nodes() {
        until("the node sees the standby", SOON, || async { (!missing(node).await?).then_some(()) }).await?;
        let number = submit_now(&node.client(), &sandbox.ledger, "mail", &Value::Null).await?;
        sandbox.ledger.wait_delivered(number, 1, SOON).await?;
    }
    Ok(())
}
