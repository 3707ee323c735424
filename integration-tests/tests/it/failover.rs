//! Stores with replicas: a standby is promoted, a member is lost, and the nodes go on by themselves.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration_tests::{clock::now_us, load::Load, sandbox::Sandbox};
use sqlx::{Connection, PgConnection};

use crate::{confirm, flows, lasts, scenario, stream::Stream, until};

/// More than the time after which a node looks again at a claim whose outcome it does not know.
const BACK_WITHIN: Duration = Duration::from_secs(100);

/// The time that the tool for high availability takes to notice the loss of the primary.
const NOTICED_AFTER: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn when_the_primary_is_killed_the_nodes_go_on_with_its_promoted_standby() {
    scenario(Sandbox::builder().compared().standby(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Stream::start(sandbox, &[0, 1, 2], Load::new("mail", 100));
        flows(sandbox, 300).await?;
        let fault = sandbox.ledger.fault("the primary killed");
        let lost_us = now_us();
        sandbox.postgres(0).kill();
        lasts(NOTICED_AFTER).await;
        sandbox.standby().promote().await?;
        let promoted_us = now_us();
        let fires_us = fires_again(sandbox, promoted_us).await?;
        sandbox.ledger.heal(fault);
        stream.end().await?;
        ensure!(sandbox.ledger.wait_all(BACK_WITHIN).await, "tasks are outstanding");
        report("killed", sandbox, lost_us, promoted_us, fires_us);
        sandbox.settled().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_primary_that_continues_is_not_used_again() {
    scenario(Sandbox::builder().compared().standby(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Stream::start(sandbox, &[0, 1], Load::new("mail", 100));
        flows(sandbox, 300).await?;
        let fault = sandbox.ledger.fault("the primary frozen");
        let lost_us = now_us();
        let old = sandbox.postgres(0);
        old.pause()?;
        lasts(NOTICED_AFTER).await;
        sandbox.standby().promote().await?;
        let promoted_us = now_us();
        let fires_us = fires_again(sandbox, promoted_us).await?;

        // A node that still waits on the old primary takes its late answer as an acknowledgement. It then misses that
        // commit in the new one.
        until("every node uses the promoted standby", BACK_WITHIN, || async {
            for client in sandbox.clients() {
                client.metric("duetime_database_failovers_total").await.ok()?.filter(|count| *count >= 1.0)?;
            }
            Some(())
        })
        .await?;
        // The old primary comes back and takes any write by itself.
        old.resume()?;
        old.execute("ALTER SYSTEM SET synchronous_standby_names = ''").await?;
        old.execute("SELECT pg_reload_conf()").await?;
        let sessions = "SELECT count(*) FROM pg_stat_activity \
                        WHERE application_name LIKE 'duetime %' AND application_name <> 'duetime look'";
        until("the nodes have left the old primary", BACK_WITHIN, || async {
            (old.number(sessions).await.ok()? == 0).then_some(())
        })
        .await?;
        let before = written(sandbox).await?;
        sandbox.ledger.heal(fault);
        // A node that starts remembers nothing, and its URL names the old primary first.
        sandbox.kill(2);
        sandbox.restart(2).await?;
        sandbox.settled().await?;
        stream.end().await?;
        ensure!(sandbox.ledger.wait_all(BACK_WITHIN).await, "tasks are outstanding");
        let after = written(sandbox).await?;
        ensure!(after == before, "the nodes wrote to the old primary: {before:?} -> {after:?}");
        ensure!(old.number(sessions).await? == 0, "a node uses the old primary");
        report("frozen", sandbox, lost_us, promoted_us, fires_us);
        Ok(())
    })
    .await;
}

/// The time of the first arrival of a task that was due after the promotion.
async fn fires_again(sandbox: &Sandbox, promoted_us: i64) -> Result<i64> {
    until("tasks fire after the promotion", BACK_WITHIN, || async {
        let arrivals = sandbox.ledger.first_arrivals(&["mail"]);
        arrivals.into_iter().filter(|(due_us, _)| *due_us > promoted_us).map(|(_, at_us)| at_us).min()
    })
    .await
}

/// What nodes have written to the old primary: the sum of the epochs, the number of tasks, and the newest one.
async fn written(sandbox: &Sandbox) -> Result<(i64, i64, Option<String>)> {
    let mut connection = PgConnection::connect(&sandbox.database_url(0)).await?;
    let query = "SELECT (SELECT sum(epoch)::bigint FROM duetime.shard), count(*), max(id::text) FROM duetime.task";
    let written = sqlx::query_as(query).fetch_one(&mut connection).await.context("reading the old primary")?;
    connection.close().await?;
    Ok(written)
}

fn report(what: &str, sandbox: &Sandbox, lost_us: i64, promoted_us: i64, fires_us: i64) {
    let seconds = |from_us: i64, until_us: i64| (until_us - from_us) as f64 / 1e6;
    println!(
        "primary {what}: promoted after {:.1} s, first task fired {:.1} s later; due meanwhile: {}; due 5 s later: {}",
        seconds(lost_us, promoted_us),
        seconds(promoted_us, fires_us),
        sandbox.ledger.lateness(lost_us, fires_us),
        sandbox.ledger.lateness(fires_us + 5_000_000, i64::MAX),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_one_etcd_member_of_three_stops_nothing() {
    scenario(Sandbox::builder().compared().etcd_members(3), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let before = sandbox.owned().await;
        // No fault window is opened: the loss of a member may cause no copy.
        let stream = Stream::start(sandbox, &[0, 1, 2], Load::new("mail", 100));
        let leader = sandbox.etcd().leader().await?;
        for member in [leader, (sandbox.etcd().leader().await? + 1) % 3] {
            sandbox.etcd().kill(member);
            // A lost session would cost its shards by now.
            lasts(sandbox.lease_ttl() * 3).await;
            ensure!(sandbox.owned().await == before, "shards moved: {before:?} -> {:?}", sandbox.owned().await);
            sandbox.etcd().restart_all().await?;
        }
        stream.end().await?;
        // The cluster still decides: a node joins and takes its part.
        let fourth = sandbox.add_node().await?;
        sandbox.etcd().kill(sandbox.etcd().leader().await?);
        sandbox.node(fourth).start()?;
        sandbox.node(fourth).wait_ready(BACK_WITHIN).await?;
        sandbox.settled().await?;
        ensure!(sandbox.ledger.wait_all(BACK_WITHIN).await, "tasks are outstanding");
        let verdict = sandbox.ledger.judge();
        println!("etcd member lost: {}", verdict.lateness);
        ensure!(verdict.unknown == 0 && verdict.refused == 0, "submissions failed:\n{verdict}");
        Ok(())
    })
    .await;
}
