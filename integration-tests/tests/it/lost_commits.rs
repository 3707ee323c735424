//! A failover that loses commits: the nodes notice it, say how much may be missing, and wait for an operator.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration_tests::{client::Client, clock::now_ms, ledger::Number, load::Load, sandbox::Sandbox};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::{command::Terminal, confirm, flows, id_of, load, scenario, submit, submit_now, until};

const SOON: Duration = Duration::from_secs(60);

/// Tasks that are due only when the story is over.
const LATER_MS: i64 = 30_000;

const MARKS: &str = "duetime_database_statement_seconds_count{database=\"db1\",op=\"position_mark\"}";

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_standby_that_lacks_commits_waits_for_an_operator() {
    scenario(Sandbox::builder().standby(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let (primary, standby) = (sandbox.postgres(0), sandbox.standby());
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = ''").await?;
        primary.execute("SELECT pg_reload_conf()").await?;
        load(sandbox, &[0, 1, 2], Load::new("mail", 50), Duration::from_secs(3)).await?;
        ensure!(sandbox.ledger.wait_all(SOON).await, "tasks are outstanding");
        let kept = later(sandbox, 30).await?;
        until("the standby has everything", SOON, || async {
            let unfinished = unfinished(sandbox).await.ok()?;
            let same = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_flush_lsn()";
            (unfinished == kept.len() as i64 && primary.number(same).await.ok()? == 1).then_some(())
        })
        .await?;

        standby.execute("ALTER SYSTEM SET primary_conninfo = ''").await?;
        standby.execute("SELECT pg_reload_conf()").await?;
        until("the standby is cut off", SOON, || async {
            (standby.number("SELECT count(*) FROM pg_stat_wal_receiver").await.ok()? == 0).then_some(())
        })
        .await?;
        let marks = sandbox.client(0).metric(MARKS).await?.context("the metric")?;
        let lost = later(sandbox, 30).await?;
        until("a node marks the position", SOON, || async {
            (sandbox.client(0).metric(MARKS).await.ok()?? > marks).then_some(())
        })
        .await?;
        let fault = sandbox.ledger.fault("commits lost");
        primary.kill();
        standby.promote().await?;

        for node in 0..3 {
            refuses(&sandbox.client(node)).await?;
        }
        // A node that starts has no memory of its own.
        sandbox.kill(2);
        sandbox.node(2).start()?;
        refuses(&sandbox.client(2)).await?;
        let refused = sandbox.ledger.submitting("mail", now_ms());
        let answer = sandbox.client(0).submit(&json!({ "queue": "mail", "payload": { "n": refused } })).await;
        ensure!(answer.is_err(), "a task was accepted: {answer:?}");
        sandbox.ledger.refused(refused);

        let terminal = Terminal::of(sandbox);
        terminal.ends(1, &["database", "accept-loss", "db9"], "").await?;
        let accepted = terminal.json(&["database", "accept-loss", "db1"]).await?;
        let missing = accepted["missing_bytes"].as_u64().context("a number")?;
        ensure!(missing > 0 && accepted["timeline"] == 2 && accepted["losses_accepted"] == 1, "{accepted}");
        for node in sandbox.nodes() {
            node.wait_ready(SOON).await?;
            until("the gauge falls", SOON, || async {
                (node.client().metric("duetime_database_missing_bytes").await.ok()?? == 0.0).then_some(())
            })
            .await?;
        }
        sandbox.settled().await?;
        terminal.ends(1, &["database", "accept-loss", "db1"], "").await?;
        // A node reads this figure every two seconds.
        until("the failover is counted", SOON, || async {
            let changes = sandbox.client(0).metric("duetime_database_failovers_total").await.ok()??;
            (changes == 1.0).then_some(())
        })
        .await?;

        submit_now(&sandbox.client(0), &sandbox.ledger, "mail", &Value::Null).await?;
        flows(sandbox, 1).await?;
        sandbox.ledger.heal(fault);
        let gone = let_lapse(sandbox, &lost).await?;
        ensure!(gone == lost.len(), "of {} tasks {gone} are gone", lost.len());
        ensure!(let_lapse(sandbox, &kept).await? == 0, "tasks are gone that the standby had");
        println!("{gone} tasks lost; up to {missing} bytes of the log missing");
        audited(&sandbox.client(1)).await
    })
    .await;
}

/// Submits tasks that are due when the story is over.
async fn later(sandbox: &Sandbox, count: usize) -> Result<Vec<Number>> {
    let mut numbers = Vec::new();
    for _ in 0..count {
        let due_ms = now_ms() + LATER_MS;
        numbers.push(submit(&sandbox.client(0), &sandbox.ledger, "mail", due_ms, &Value::Null).await?);
    }
    Ok(numbers)
}

async fn unfinished(sandbox: &Sandbox) -> Result<i64> {
    let mut connection = PgConnection::connect(&sandbox.database_url(0)).await?;
    let count = sqlx::query_scalar("SELECT count(*) FROM duetime.task").fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(count)
}

/// Waits until the node refuses the server, in words and in figures.
async fn refuses(client: &Client) -> Result<()> {
    until("the node refuses the server", SOON, || async {
        let (_, report) = client.readiness().await.ok()?;
        let report: Value = serde_json::from_str(&report).ok()?;
        let missing = client.metric("duetime_database_missing_bytes").await.ok()??;
        let says = report["reasons"].to_string().contains("an operator has to accept the loss");
        (report["missing"].as_array()?.contains(&json!("commits")) && says && missing > 0.0).then_some(())
    })
    .await
}

/// Allows those of the tasks that no database has any more not to arrive; returns their number.
async fn let_lapse(sandbox: &Sandbox, numbers: &[Number]) -> Result<usize> {
    let mut gone = 0;
    for number in numbers {
        let id = id_of(&sandbox.ledger, *number)?;
        // The node opens its connections to the new server anew, so an answer may be 503.
        let is_gone = until("the node tells whether the task is there", SOON, || async {
            match sandbox.client(0).get(&id).await {
                Ok(_) => Some(false),
                Err(failure) => (failure.status() == Some(404)).then_some(true),
            }
        });
        if is_gone.await? {
            sandbox.ledger.may_lapse(*number);
            gone += 1;
        }
    }
    Ok(gone)
}

async fn audited(client: &Client) -> Result<()> {
    until("the acceptance is in the audit", SOON, || async {
        let path = "/v1/audit?what=database.accept_loss&target=db1";
        let page: Value = client.call("GET".parse().ok()?, path, None).await.ok()?;
        page["deeds"].as_array()?.iter().any(|deed| deed["status"] == 200).then_some(())
    })
    .await
}
