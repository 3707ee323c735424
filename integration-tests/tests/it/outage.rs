//! Stores that fail and come back.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use integration_tests::{
    clock::{now_ms, now_us},
    consumer::Answer,
    load::Load,
    sandbox::Sandbox,
};
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};

use crate::{confirm, flows, held_up_ms, id_of, lasts, load, scenario, stream::Stream, submit, until};

const BACK_WITHIN: Duration = Duration::from_secs(80);

/// No task is later than this without a reason; on an idle machine all are within some milliseconds.
const LATE_MS: f64 = 5_000.0;

#[tokio::test(flavor = "multi_thread")]
async fn losing_all_of_etcd_stops_no_owner() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let before = sandbox.owned().await;
        let outage = sandbox.lease_ttl() * 4;
        // No fault window is opened: no failure of etcd may cause a copy.
        let stream = load(sandbox, &[0, 1, 2], Load::new("mail", 100), outage + Duration::from_secs(10));
        flows(sandbox, 100).await?;
        sandbox.etcd().kill_all();
        lasts(outage).await;
        let during = sandbox.owned().await;
        sandbox.etcd().restart_all().await?;
        ensure!(during == before, "shards moved: {before:?} -> {during:?}");
        stream.await?;
        sandbox.settled().await?;
        ensure!(sandbox.owned().await == before, "shards moved: {before:?} -> {:?}", sandbox.owned().await);
        ensure!(sandbox.ledger.wait_all(BACK_WITHIN).await, "tasks are outstanding");
        let verdict = sandbox.ledger.judge();
        ensure!(verdict.unknown == 0 && verdict.refused == 0, "submissions failed:\n{verdict}");
        ensure!(verdict.lateness.max_ms < LATE_MS + held_up_ms() as f64, "{}", verdict.lateness);
        Ok(())
    })
    .await;
}

/// Each shard and its owner.
async fn owners(sandbox: &Sandbox) -> Result<Vec<(Value, Value)>> {
    let report = sandbox.live()?.cluster().await?;
    let shards = report["shards"].as_array().context("the report lists the shards")?;
    Ok(shards.iter().map(|shard| (shard["shard"].clone(), shard["owner"].clone())).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_etcd_moves_no_shard() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let before = owners(sandbox).await?;
        let freeze = sandbox.lease_ttl() * 3;
        let stream = load(sandbox, &[0, 1, 2], Load::new("mail", 100), freeze + Duration::from_secs(8));
        // When etcd wakes, every lease may have expired at once.
        sandbox.etcd().pause(0)?;
        lasts(freeze).await;
        sandbox.etcd().resume(0)?;
        stream.await?;
        sandbox.settled().await?;
        let after = owners(sandbox).await?;
        ensure!(after == before, "shards moved: {before:?} -> {after:?}");
        ensure!(sandbox.ledger.wait_all(BACK_WITHIN).await, "tasks are outstanding");
        let lateness = sandbox.ledger.judge().lateness;
        ensure!(lateness.max_ms < LATE_MS + held_up_ms() as f64, "{lateness}");
        Ok(())
    })
    .await;
}

/// How long the table is locked before and after the due time. Together they are longer than a statement waits for a
/// lock: claims and repairs fail or take as long.
const LOCKED_BEFORE_MS: i64 = 8_000;
const LOCKED_AFTER_MS: i64 = 2_500;

/// How far ahead the old due time is, from one try to the next: a busy machine may take long for sixty requests.
const AHEAD_MS: [i64; 3] = [24_000, 48_000, 96_000];

/// Waits until this moment, unless it has passed.
async fn reached(moment_ms: i64) {
    lasts(Duration::from_millis(u64::try_from(moment_ms - now_ms()).unwrap_or(0))).await;
}

/// Submits tasks, moves them to five seconds later, and locks their table around their old time. Returns whether the
/// machine was quick enough for that: all were moved and the table was locked before that time.
async fn moved_and_locked(sandbox: &Sandbox, ahead_ms: i64) -> Result<bool> {
    let (client, due_ms) = (sandbox.client(0), now_ms() + ahead_ms);
    let mut numbers = Vec::new();
    for _ in 0..30 {
        numbers.push(submit(&client, &sandbox.ledger, "mail", due_ms, &json!({})).await?);
    }
    let later_ms = due_ms + 5_000;
    for number in &numbers {
        match client.change(&id_of(&sandbox.ledger, *number)?, &json!({ "due_at": later_ms })).await {
            // It is about to fire.
            Err(failure) if failure.status() == Some(409) => return Ok(false),
            changed => drop(changed?),
        }
        sandbox.ledger.moved(*number, later_ms);
    }
    let mut connection = PgConnection::connect(&sandbox.database_url(0)).await?;
    reached(due_ms - LOCKED_BEFORE_MS).await;
    let mut transaction = connection.begin().await?;
    transaction.execute("LOCK TABLE duetime.task IN ACCESS EXCLUSIVE MODE").await?;
    let is_in_time = now_ms() < due_ms;
    reached(due_ms + LOCKED_AFTER_MS).await;
    transaction.rollback().await?;
    Ok(is_in_time)
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_were_moved_fire_at_their_new_time_although_their_table_was_locked_at_the_old_one() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        for ahead_ms in AHEAD_MS {
            let is_in_time = moved_and_locked(sandbox, ahead_ms).await?;
            // Due 2.5 s from now.
            ensure!(sandbox.ledger.wait_all(Duration::from_secs(30)).await, "moved tasks missed their time");
            if is_in_time {
                return Ok(());
            }
        }
        bail!("this machine is too slow: the table was locked after the old due time each time")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_broker_loses_nothing_and_tasks_are_accepted_meanwhile() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Stream::start(sandbox, &[0, 1, 2], Load::new("mail", 100));
        flows(sandbox, 200).await?;
        let fault = sandbox.ledger.fault("rabbitmq killed");
        sandbox.rabbit().kill();
        lasts(Duration::from_secs(2)).await;
        sandbox.rabbit().restart().await?;
        sandbox.ledger.heal(fault);
        stream.end().await?;
        ensure!(sandbox.ledger.wait_all(BACK_WITHIN).await, "tasks are outstanding");
        let verdict = sandbox.ledger.judge();
        ensure!(verdict.unknown == 0 && verdict.refused == 0, "submissions failed:\n{verdict}");
        sandbox.settled().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_database_loses_nothing_that_was_accepted() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Stream::start(sandbox, &[0, 1, 2], Load::new("mail", 100));
        flows(sandbox, 200).await?;
        let fault = sandbox.ledger.fault("postgresql killed");
        sandbox.postgres(0).kill();
        lasts(Duration::from_secs(3)).await;
        sandbox.postgres(0).restart().await?;
        sandbox.ledger.heal(fault);
        // 5 s after the store accepts connections, lateness is back to normal.
        lasts(Duration::from_secs(5)).await;
        let normal_us = now_us();
        flows(sandbox, 200).await?;
        stream.end().await?;
        ensure!(sandbox.ledger.wait_all(BACK_WITHIN).await, "tasks are outstanding");
        let after = sandbox.ledger.lateness(normal_us, i64::MAX);
        ensure!(after.count > 0 && after.max_ms < LATE_MS + held_up_ms() as f64, "long after: {after}");
        sandbox.settled().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_one_of_two_databases_stops_the_other_s_tasks_stay_on_time() {
    scenario(Sandbox::builder().databases(2), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Stream::start(sandbox, &[0, 1, 2], Load::new("mail", 100));
        flows(sandbox, 200).await?;
        let fault = sandbox.ledger.fault("the second database stopped");
        let stopped_us = now_us();
        sandbox.postgres(1).stop_immediately().await?;
        lasts(Duration::from_secs(9)).await;
        let until_us = now_us();
        sandbox.postgres(1).restart().await?;
        sandbox.ledger.heal(fault);
        stream.end().await?;
        ensure!(sandbox.ledger.wait_all(BACK_WITHIN).await, "tasks are outstanding");
        let late_us = sandbox
            .ledger
            .arrivals()
            .into_iter()
            .filter(|delivery| shard_of(&delivery.task).is_ok_and(|shard| shard < 64))
            .filter_map(|delivery| Some((delivery.due_ms? * 1_000, delivery.at_us)))
            .filter(|(due_us, _)| (stopped_us..until_us).contains(due_us))
            .map(|(due_us, at_us)| at_us - due_us)
            .max();
        ensure!(
            late_us.is_some_and(|late_us| late_us as f64 / 1e3 < LATE_MS + held_up_ms() as f64),
            "of the first database: {late_us:?} us late"
        );
        sandbox.settled().await
    })
    .await;
}

/// A member in a report on the cluster.
fn member<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    report["nodes"].as_array()?.iter().find(|member| member["name"] == name)
}

/// The nodes that should own the shards of the second database. `None`: some shard has none.
fn assigned_of_second(report: &Value) -> Option<BTreeSet<&str>> {
    let of_second = report["shards"].as_array()?.iter().filter(|shard| shard["shard"].as_u64() >= Some(64));
    of_second.map(|shard| shard["assigned"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_while_the_first_database_is_away_keeps_no_task_of_the_second_waiting() {
    scenario(Sandbox::builder().databases(2), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        // The submissions, the start of a node and two kills fit in, on a busy machine too.
        let (client, due_ms) = (sandbox.client(0), now_ms() + 40_000);
        let mut of_second = BTreeSet::new();
        for _ in 0..60 {
            let number = submit(&client, &sandbox.ledger, "mail", due_ms, &json!({})).await?;
            let task = id_of(&sandbox.ledger, number)?;
            if shard_of(&task)? >= 64 {
                of_second.insert(task);
            }
        }
        let (node, other) = (sandbox.node(1), sandbox.node(2));
        let report = client.cluster().await?;
        let before = &member(&report, node.name()).context("the node is a member")?["incarnation"];
        let fault = sandbox.ledger.fault("the first database stopped");
        sandbox.postgres(0).stop_immediately().await?;
        sandbox.kill(1);
        node.start()?;
        until("the node joins again and reaches the second database", BACK_WITHIN, async || {
            let report = client.cluster().await.ok()?;
            let (again, first) = (member(&report, node.name())?, &report["shards"][0]["database"]);
            let is_there = again["incarnation"] != *before && again["unfit"] == json!([first]);
            (is_there && assigned_of_second(&report)?.contains(other.name())).then_some(())
        })
        .await?;
        // However slow the machine is, this makes the master decide once more after it has heard of the node.
        sandbox.kill(2);
        let is_assigned = until("the shards of the second database are assigned again", BACK_WITHIN, async || {
            let report = client.cluster().await.ok()?;
            let assigned = assigned_of_second(&report)?;
            (!assigned.contains(other.name())).then(|| assigned.contains(node.name()))
        });
        ensure!(!is_assigned.await?, "a node that knows no queues should own shards");
        until("the tasks of the second database arrive", BACK_WITHIN, async || {
            let arrived = sandbox.ledger.arrivals().into_iter().map(|delivery| delivery.task).collect();
            of_second.is_subset(&arrived).then_some(())
        })
        .await?;
        sandbox.postgres(0).restart().await?;
        sandbox.ledger.heal(fault);
        node.wait_ready(BACK_WITHIN).await?;
        sandbox.settled().await
    })
    .await;
}

/// The tasks of the queue `work` that wait for a report.
async fn delivered(database: &mut PgConnection) -> Result<i64> {
    let count = "SELECT count(*) FROM duetime.task WHERE queue = 'work' AND state = 'delivered'";
    Ok(sqlx::query_scalar(count).fetch_one(database).await?)
}

async fn until_reported(database: &mut PgConnection) -> Result<()> {
    until("no task waits for a report", BACK_WITHIN, async || (delivered(database).await.ok()? == 0).then_some(()))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_written_while_more_of_them_wait_for_a_database_that_is_away_than_a_node_usually_holds() {
    const TASKS: u32 = 3_000;
    scenario(Sandbox::builder().databases(2).nodes(1), async |sandbox| {
        let policy = json!({ "settle": "result", "timeout_ms": 600_000 });
        sandbox.consume("work", &policy, |_| Answer::report("succeeded")).await?;
        sandbox.hold_consumers("work", true);
        let submitted = load(sandbox, &[0], Load::new("work", TASKS / 5), Duration::from_secs(5)).await?.len();
        let mut first = PgConnection::connect(&sandbox.database_url(0)).await?;
        let mut second = PgConnection::connect(&sandbox.database_url(1)).await?;
        let of_second = until("all tasks are delivered", BACK_WITHIN, async || {
            let (first, second) = (delivered(&mut first).await.ok()?, delivered(&mut second).await.ok()?);
            (usize::try_from(first + second).ok()? == submitted).then_some(second)
        });
        let of_second = of_second.await?;
        ensure!(of_second > 1_000, "only {of_second} reports will wait, and a node usually holds 500");

        let fault = sandbox.ledger.fault("the second database stopped");
        sandbox.postgres(1).stop_immediately().await?;
        sandbox.hold_consumers("work", false);
        until_reported(&mut first).await.context("in the first database, while the second one is away")?;
        sandbox.postgres(1).restart().await?;
        sandbox.ledger.heal(fault);
        let mut second = PgConnection::connect(&sandbox.database_url(1)).await?;
        until_reported(&mut second).await.context("in the second database, when it is back")
    })
    .await;
}

/// The last 16 bits of a task's id are its shard.
pub(crate) fn shard_of(task: &str) -> Result<u16> {
    Ok(u16::from_str_radix(&task[task.len().saturating_sub(4)..], 16)?)
}
