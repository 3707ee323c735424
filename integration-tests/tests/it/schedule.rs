//! Schedules: one task for each fire time, whichever part fails, and no other task.
//!
//! Their tasks are not submitted by the sandbox's clients, so the ledger does not know them; each story checks all of
//! them itself.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use chrono::DateTime;
use integration_tests::{
    client::{Client, Task},
    consumer::{Answer, Consumer, Step},
    ledger::{Delivery, Ledger},
    sandbox::Sandbox,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{confirm, held_up_ms, lasts, moves, scenario, until};

const SOON: Duration = Duration::from_secs(60);

/// Creates a queue of that name with a consumer; returns a ledger of its arrivals.
pub(crate) async fn consume(
    sandbox: &Sandbox,
    queue: &str,
    policy: &Value,
    script: impl Fn(&Delivery) -> Answer + Send + Sync + 'static,
) -> Result<(Consumer, Arc<Ledger>)> {
    sandbox.live()?.put_queue(queue, policy).await?;
    let arrivals = Arc::new(Ledger::default());
    let consumer = Consumer::scripted(&sandbox.amqp_url(), queue, &arrivals, Arc::new(script));
    Ok((consumer, arrivals))
}

/// Puts a schedule that fires each second.
pub(crate) async fn put(client: &Client, name: &str, queue: &str, more: &Value) -> Result<Value> {
    let mut schedule = json!({ "queue": queue, "every_ms": 1_000, "payload": { "of": name } });
    for (field, value) in more.as_object().into_iter().flatten() {
        schedule[field] = value.clone();
    }
    Ok(client.call(Method::PUT, &format!("/v1/schedules/{name}"), Some(&schedule)).await?)
}

pub(crate) async fn turn(client: &Client, name: &str, verb: &str) -> Result<Value> {
    Ok(client.call(Method::POST, &format!("/v1/schedules/{name}/{verb}"), None).await?)
}

fn seconds(moment: &str) -> Result<i64> {
    Ok(DateTime::parse_from_rfc3339(moment).with_context(|| moment.to_owned())?.timestamp())
}

/// All tasks of a schedule by the second they are for; fails if a second has two.
pub(crate) async fn made(client: &Client, name: &str, queue: &str) -> Result<BTreeMap<i64, Task>> {
    let mut made = BTreeMap::new();
    for task in client.list(&format!("queue={queue}&limit=1000")).await? {
        let key = task.rest.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some((of, fire_at)) = key.split_once('@') else { continue };
        if of == name {
            ensure!(made.insert(seconds(fire_at)?, task).is_none(), "{key} was made twice");
        }
    }
    Ok(made)
}

/// Waits until every fire time that was decided has its task. Another node makes those that a dead node has decided, a
/// little later. The schedules must be paused: a running one decides the next fire time meanwhile.
pub(crate) async fn all_made(sandbox: &Sandbox) -> Result<()> {
    until("everything decided is made", SOON, || async {
        let owed = moves::number(sandbox, 0, "SELECT count(*) FROM duetime.fire").await.ok()?;
        (owed == 0).then_some(())
    })
    .await
}

/// The seconds between the first and the last that have no task.
pub(crate) fn left_out(made: &BTreeMap<i64, Task>) -> Vec<i64> {
    let (first, last) = (made.keys().next(), made.keys().next_back());
    let all = first.zip(last).map(|(first, last)| *first..=*last).into_iter().flatten();
    all.filter(|second| !made.contains_key(second)).collect()
}

/// Waits until there is a task for a second that has not come yet.
async fn goes_on(client: &Client, name: &str, queue: &str) -> Result<()> {
    let now_s = integration_tests::clock::now_ms() / 1_000;
    until("the schedule goes on", SOON, || async {
        let made = made(client, name, queue).await.ok()?;
        made.keys().next_back().filter(|last| **last > now_s + 1).map(drop)
    })
    .await
}

/// Each was made before its fire time. The first tasks of a new schedule are skipped, because they had no lead.
fn ensure_in_time(made: &BTreeMap<i64, Task>) -> Result<()> {
    // A second more for what was not a whole one.
    let held_up_s = (held_up_ms() / 1_000) as i64 + 1;
    for (second, task) in made.iter().skip(3) {
        let created = seconds(task.rest["created_at"].as_str().unwrap_or_default())?;
        ensure!(created <= *second + held_up_s, "made too late, {held_up_s} s excused: {task:?}");
    }
    Ok(())
}

/// Checks that every task has arrived, and nothing else.
pub(crate) async fn arrived(arrivals: &Ledger, made: &BTreeMap<i64, Task>) -> Result<()> {
    until("every task has arrived", Duration::from_secs(60), || async {
        let deliveries = arrivals.arrivals();
        made.values().all(|task| deliveries.iter().any(|delivery| delivery.task == task.id)).then_some(())
    })
    .await?;
    for delivery in arrivals.arrivals() {
        ensure!(made.values().any(|task| task.id == delivery.task), "{delivery:?} is no task of the schedule");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_master_is_killed_each_fire_time_has_one_task_and_in_time() {
    scenario(Sandbox::builder().databases(2), async |sandbox| {
        let (_consumer, arrivals) = consume(sandbox, "pulse", &confirm(), |_| Answer::ack()).await?;
        put(&sandbox.client(0), "s", "pulse", &json!({ "overlap": "allow" })).await?;
        goes_on(&sandbox.client(0), "s", "pulse").await?;
        lasts(Duration::from_secs(3)).await;
        sandbox.kill(sandbox.master().await?);
        lasts(Duration::from_secs(6)).await;
        let client = sandbox.live()?;
        goes_on(&client, "s", "pulse").await?;
        turn(&client, "s", "pause").await?;
        all_made(sandbox).await?;
        let made = made(&client, "s", "pulse").await?;
        ensure!(left_out(&made).is_empty() && made.len() >= 9, "left out: {:?} of {made:?}", left_out(&made));
        // Even while there was no master.
        ensure_in_time(&made)?;
        arrived(&arrivals, &made).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_etcd_schedules_go_on_in_time() {
    scenario(Sandbox::builder(), async |sandbox| {
        let (_consumer, arrivals) = consume(sandbox, "pulse", &confirm(), |_| Answer::ack()).await?;
        let client = sandbox.client(1);
        put(&client, "s", "pulse", &json!({ "overlap": "allow" })).await?;
        goes_on(&client, "s", "pulse").await?;
        sandbox.etcd().kill_all();
        lasts(sandbox.lease_ttl() * 5).await;
        let during = made(&client, "s", "pulse").await?;
        sandbox.etcd().restart_all().await?;
        goes_on(&client, "s", "pulse").await?;
        turn(&client, "s", "pause").await?;
        all_made(sandbox).await?;
        ensure!(left_out(&during).is_empty() && during.len() >= 9, "left out: {:?} of {during:?}", left_out(&during));
        ensure_in_time(&during)?;
        arrived(&arrivals, &made(&client, "s", "pulse").await?).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_after_deciding_and_one_after_making_neither_lose_nor_double_a_fire_time() {
    let builder = Sandbox::builder()
        .nodes(2)
        .failpoints(0, "after_fire=3*off->return")
        .failpoints(1, "after_fire_made=3*off->return");
    scenario(builder, async |sandbox| {
        // Only the id of a task shows that it was made before.
        let policy = json!({ "settle": "confirm", "dedup_window_ms": 0 });
        let (_consumer, arrivals) = consume(sandbox, "pulse", &policy, |_| Answer::ack()).await?;
        put(&sandbox.client(0), "s", "pulse", &json!({ "overlap": "allow" })).await?;
        let fault = sandbox.ledger.fault("nodes die as they fire");
        // The master first, then the node that stands in for it.
        until("both nodes die", Duration::from_secs(60), || async {
            sandbox.nodes().iter().all(|node| !node.is_running()).then_some(())
        })
        .await?;
        for number in 0..2 {
            sandbox.restart(number).await?;
        }
        sandbox.ledger.heal(fault);
        let client = sandbox.live()?;
        goes_on(&client, "s", "pulse").await?;
        turn(&client, "s", "pause").await?;
        all_made(sandbox).await?;
        let made = made(&client, "s", "pulse").await?;
        ensure!(left_out(&made).is_empty() && made.len() >= 8, "left out: {:?} of {made:?}", left_out(&made));
        arrived(&arrivals, &made).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_of_all_nodes_fire_times_are_made_up_as_far_back_as_the_schedule_says() {
    scenario(Sandbox::builder(), async |sandbox| {
        let (_consumer, arrivals) = consume(sandbox, "long", &confirm(), |_| Answer::ack()).await?;
        let (_other, _) = consume(sandbox, "short", &confirm(), |_| Answer::ack()).await?;
        let client = sandbox.client(0);
        put(&client, "long", "long", &json!({ "overlap": "allow" })).await?;
        put(&client, "short", "short", &json!({ "overlap": "allow", "catch_up_ms": 10_000 })).await?;
        goes_on(&client, "long", "long").await?;
        goes_on(&client, "short", "short").await?;
        (0..3).for_each(|number| sandbox.kill(number));
        lasts(Duration::from_secs(16)).await;
        for number in 0..3 {
            sandbox.restart(number).await?;
        }
        goes_on(&client, "long", "long").await?;
        goes_on(&client, "short", "short").await?;
        turn(&client, "long", "pause").await?;
        turn(&client, "short", "pause").await?;
        all_made(sandbox).await?;
        let (long, short) = (made(&client, "long", "long").await?, made(&client, "short", "short").await?);
        ensure!(left_out(&long).is_empty() && long.len() > 18, "left out: {:?} of {long:?}", left_out(&long));
        let gone = left_out(&short);
        ensure!(!gone.is_empty() && gone.windows(2).all(|pair| pair[1] == pair[0] + 1), "one gap: {gone:?}");
        arrived(&arrivals, &long).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn skip_lets_no_two_tasks_of_a_slow_consumer_overlap() {
    const WORK: Duration = Duration::from_millis(2_300);
    scenario(Sandbox::builder(), async |sandbox| {
        let slow =
            |_: &Delivery| Answer(vec![Step::Wait(WORK), Step::Report(json!({ "status": "succeeded" })), Step::Ack]);
        let (_consumer, arrivals) = consume(sandbox, "slow", &json!({ "settle": "result" }), slow).await?;
        put(&sandbox.client(0), "s", "slow", &json!({})).await?;
        until("four have arrived", SOON, || async { (arrivals.arrivals().len() >= 4).then_some(()) }).await?;
        turn(&sandbox.client(0), "s", "pause").await?;
        let deliveries = arrivals.arrivals();
        for pair in deliveries.windows(2) {
            let gap_us = pair[1].at_us - pair[0].at_us;
            ensure!(gap_us >= i64::try_from(WORK.as_micros())?, "{gap_us} us between {pair:?}");
            ensure!(pair[1].task != pair[0].task, "{pair:?}");
        }
        let made = made(&sandbox.client(1), "s", "slow").await?;
        ensure!(!left_out(&made).is_empty(), "some fire times were skipped: {made:?}");
        let mut skipped = 0.0;
        for client in sandbox.clients() {
            skipped += client.metric("duetime_schedule_fires_total").await?.unwrap_or(0.0);
        }
        ensure!(skipped > made.len() as f64, "skipped and made are counted: {skipped}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_on_every_node_and_is_not_made_up() {
    scenario(Sandbox::builder(), async |sandbox| {
        let (_consumer, arrivals) = consume(sandbox, "pulse", &confirm(), |_| Answer::ack()).await?;
        let (client, other) = (sandbox.client(0), sandbox.client(2));
        put(&client, "s", "pulse", &json!({ "overlap": "allow" })).await?;
        goes_on(&client, "s", "pulse").await?;
        let paused = turn(&other, "s", "pause").await?;
        ensure!(paused["paused"] == true && paused["next_fire_times"] == json!([]), "{paused}");
        all_made(sandbox).await?;
        let before = made(&client, "s", "pulse").await?;
        lasts(Duration::from_secs(6)).await;
        ensure!(made(&client, "s", "pulse").await?.len() == before.len(), "nothing is made while it is paused");
        turn(&client, "s", "resume").await?;
        goes_on(&client, "s", "pulse").await?;

        // By hand, outside the calendar.
        let by_hand: Task = other.call(Method::POST, "/v1/schedules/s/run", None).await?;
        turn(&client, "s", "pause").await?;
        all_made(sandbox).await?;
        let after = made(&client, "s", "pulse").await?;
        let gone = left_out(&after);
        ensure!(gone.len() >= 2 && gone.windows(2).all(|pair| pair[1] == pair[0] + 1), "one gap: {gone:?}");
        until("it has arrived", SOON, || async {
            arrivals.arrivals().iter().any(|delivery| delivery.task == by_hand.id).then_some(())
        })
        .await
    })
    .await;
}
