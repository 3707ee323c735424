//! Messages without a bound queue: each is handled by itself, and delays no other.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use integration_tests::{client::Task, sandbox::Sandbox};
use lapin::{Consumer, ExchangeKind, types::FieldTable};
use serde_json::{Value, json};

use crate::{
    delay_exchange::{Shop, delay, next, text},
    in_state, scenario, until,
};

const SOON: Duration = Duration::from_secs(60);
/// Messages for each exchange: this many with a binding, and as many without.
const EACH: usize = 20;

/// One delay exchange for each rule, all of them leading to `orders`.
fn ways() -> String {
    let way =
        |name: &str, rule: &str| format!("\n[[delay_exchange]]\nname = \"{name}\"\ndeliver_to = \"orders\"\n{rule}\n");
    [
        way("orders.set-aside", ""),
        way("orders.wait", "unroutable = \"wait\""),
        way("orders.drop", "unroutable = \"drop\""),
    ]
    .concat()
}

async fn listed(sandbox: &Sandbox, queue: &str, state: &str) -> Result<Vec<Task>> {
    let query = format!("queue={queue}&state={state}&limit=100");
    let client = sandbox.client(0);
    until(&format!("{EACH} tasks of {queue} are {state}"), SOON, || async {
        client.list(&query).await.ok().filter(|tasks| tasks.len() == EACH)
    })
    .await
}

async fn bodies(consumer: &mut Consumer, count: usize) -> Result<BTreeSet<String>> {
    let mut bodies = BTreeSet::new();
    for _ in 0..count {
        bodies.insert(text(&next(consumer).await?));
    }
    Ok(bodies)
}

async fn counted(sandbox: &Sandbox, metric: &str) -> Result<f64> {
    let mut sum = 0.0;
    for client in sandbox.clients() {
        sum += client.metric(metric).await?.unwrap_or_default();
    }
    Ok(sum)
}

fn reason(task: &Task) -> &Value {
    &task.rest["attempts"][0]["reason"]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_message_that_cannot_be_routed_ends_as_its_rule_says_and_delays_no_other() {
    scenario(Sandbox::builder().nodes(2).config(&ways()), async |sandbox| {
        let shop = Shop::open(sandbox, ExchangeKind::Topic).await?;
        let mut paid = shop.queue("paid", "*.paid", FieldTable::default()).await?;
        for round in 0..EACH {
            for exchange in ["orders.set-aside", "orders.wait", "orders.drop"] {
                // The keys without a binding come first, so the bound messages stand behind them.
                shop.publish(exchange, "eu.lost", format!("{exchange} {round}").as_bytes(), delay(700)).await?;
                shop.publish(exchange, "eu.paid", format!("{exchange} {round}").as_bytes(), delay(700)).await?;
            }
        }
        ensure!(bodies(&mut paid, 3 * EACH).await?.len() == 3 * EACH, "a message came twice");
        ensure!(counted(sandbox, "duetime_lanes_closed").await? == 0.0, "a lane is closed");

        let dead = listed(sandbox, "orders.set-aside", "dead").await?;
        let one = sandbox.client(0).get(&dead[0].id).await?;
        ensure!(
            reason(&one) == "unroutable" && one.rest["attempts"][0]["error"].to_string().contains("eu.lost"),
            "{one:?}"
        );
        let dropped = listed(sandbox, "orders.drop", "cancelled").await?;
        let why = sandbox.client(0).get(&dropped[0].id).await?.rest["status_msg"].to_string();
        ensure!(why.contains("dropped") && why.contains("eu.lost"), "{why}");
        ensure!(counted(sandbox, "duetime_publish_dropped_total").await? == EACH as f64);
        ensure!(counted(sandbox, "duetime_set_aside_total").await? == EACH as f64);
        ensure!(counted(sandbox, "duetime_publish_unroutable_total").await? >= 2.0 * EACH as f64);
        listed(sandbox, "orders.wait", "dispatching").await?;

        // Once there is a binding, waiting messages go by themselves, and dead ones by hand.
        let mut lost = shop.queue("lost", "*.lost", FieldTable::default()).await?;
        let came = bodies(&mut lost, EACH).await?;
        ensure!(came.len() == EACH && came.iter().all(|body| body.starts_with("orders.wait")), "{came:?}");
        sandbox.client(1).retry(&dead[0].id).await?;
        ensure!(text(&next(&mut lost).await?).starts_with("orders.set-aside"), "another came");
        in_state(&sandbox.client(0), &dead[0].id, "succeeded").await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_with_an_exchange_of_its_own_sets_aside_what_nothing_is_bound_for() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        let policy = |rule: &str| {
            json!({ "settle": "result", "exchange": "orders", "routing_key": "due", "unroutable": rule, "timeout_ms": 60_000 })
        };
        let shop = Shop::open(sandbox, ExchangeKind::Topic).await?;
        sandbox.client(0).put_queue("aside", &policy("set_aside")).await?;
        sandbox.client(0).put_queue("gone", &policy("drop")).await?;
        let submit = async |queue: &str| sandbox.client(0).submit(&json!({ "queue": queue, "delay_ms": 1_500 })).await;
        let (aside, gone) = (submit("aside").await?.id, submit("gone").await?.id);
        ensure!(reason(&in_state(&sandbox.client(1), &aside, "dead").await?) == "unroutable");
        in_state(&sandbox.client(1), &gone, "cancelled").await?;

        let mut due = shop.queue("due", "due", FieldTable::default()).await?;
        sandbox.client(0).retry(&aside).await?;
        let came = next(&mut due).await?;
        ensure!(came.properties.correlation_id().as_ref().is_some_and(|id| id.as_str() == aside), "{came:?}");
        Ok(())
    })
    .await;
}
