//! Tasks with dependencies: none starts before all of them have succeeded, in whatever order they come.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration_tests::{
    client::Client,
    clock::now_ms,
    consumer::{Answer, Step},
    ledger::{Delivery, Number},
    sandbox::Sandbox,
};
use rand::seq::SliceRandom;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{id_of, in_state, scenario, submit};

/// Starts the consumers of the scenarios. Every third task fails at its first attempt.
async fn consume(sandbox: &mut Sandbox) -> Result<()> {
    let policy = json!({
        "settle": "result", "max_attempts": 5, "timeout_ms": 120_000, "retry": { "kind": "fixed", "delay_ms": 100 },
    });
    for queue in ["pay", "pack"] {
        let script = |delivery: &Delivery| {
            let fails = delivery.attempt == 1 && delivery.number.is_some_and(|number| number.is_multiple_of(3));
            let status = if fails { "failed" } else { "succeeded" };
            Answer(vec![Step::Wait(Duration::from_millis(20)), Step::Report(json!({ "status": status })), Step::Ack])
        };
        sandbox.consume(queue, &policy, script).await?;
        sandbox.ledger.waits(queue, 100);
    }
    // A success without a report releases dependents too.
    sandbox.consume_and_ack("ship", &json!({ "settle": "confirm" })).await?;
    sandbox.consume_and_ack("mail", &json!({ "settle": "confirm" })).await
}

#[tokio::test(flavor = "multi_thread")]
async fn chains_and_joins_are_kept_in_whatever_order_they_come_across_retries_and_the_death_of_a_node() {
    const ORDERS: usize = 60;
    scenario(Sandbox::builder().databases(2), async |sandbox| {
        consume(sandbox).await?;
        // Each order: pay, pack; ship after both; mail after ship. Submitted in any order, on any node.
        let mut wanted: Vec<(usize, usize)> =
            (0..ORDERS).flat_map(|order| (0..4).map(move |step| (order, step))).collect();
        wanted.shuffle(&mut rand::rng());
        let mut numbers = vec![[Number::MAX; 4]; ORDERS];
        for (turn, (order, step)) in wanted.into_iter().enumerate() {
            let (queue, depends_on) = match step {
                0 => ("pay", json!([])),
                1 => ("pack", json!([])),
                2 => ("ship", json!([{ "queue": "pay", "key": "it" }, { "queue": "pack", "key": "it" }])),
                _ => ("mail", json!([{ "queue": "ship", "key": "it" }])),
            };
            let more = json!({ "key": "it", "partition_key": format!("order {order}"), "depends_on": depends_on });
            let client = sandbox.client(if turn < ORDERS * 2 { turn % 3 } else { turn % 2 });
            numbers[order][step] = submit(&client, &sandbox.ledger, queue, now_ms(), &more).await?;
            if turn == ORDERS * 2 {
                sandbox.kill(2);
            }
        }
        for [pay, pack, ship, mail] in numbers {
            sandbox.ledger.expect_after(ship, &[pay, pack]);
            sandbox.ledger.expect_after(mail, &[ship]);
        }
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}

/// The task with all its fields.
async fn shown(client: &Client, id: &str) -> Result<Value> {
    Ok(client.call(Method::GET, &format!("/v1/tasks/{id}"), None).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_dependency_is_shown_and_its_retry_lets_go() {
    scenario(Sandbox::builder(), async |sandbox| {
        let once = json!({ "settle": "result", "max_attempts": 1, "timeout_ms": 120_000 });
        let script = |delivery: &Delivery| Answer::report(if delivery.attempt == 1 { "failed" } else { "succeeded" });
        sandbox.consume("pay", &once, script).await?;
        sandbox.consume_and_ack("ship", &json!({ "settle": "confirm" })).await?;
        let client = sandbox.client(0);
        let of_order =
            |key: &str, depends_on: Value| json!({ "key": key, "partition_key": "7", "depends_on": depends_on });
        let on_pay = json!([{ "queue": "pay", "key": "p" }]);
        let ship = submit(&client, &sandbox.ledger, "ship", now_ms(), &of_order("s", on_pay.clone())).await?;
        let ship_now = shown(&client, &id_of(&sandbox.ledger, ship)?).await?;
        ensure!(ship_now["state"] == "waiting" && ship_now["depends_on"] == on_pay, "{ship_now}");
        let pay = submit(&client, &sandbox.ledger, "pay", now_ms(), &of_order("p", json!([]))).await?;
        let pay_id = id_of(&sandbox.ledger, pay)?;
        in_state(&client, &pay_id, "dead").await?;
        let ship_now = shown(&client, &id_of(&sandbox.ledger, ship)?).await?;
        ensure!(ship_now["state"] == "waiting" && ship_now["depends_on"][0]["state"] == "dead", "{ship_now}");
        ensure!(sandbox.ledger.deliveries(ship).is_empty(), "it waits");
        client.retry(&pay_id).await?;
        sandbox.ledger.expect_after(ship, &[pay]);
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_never_start_is_refused() {
    scenario(Sandbox::builder(), async |sandbox| {
        let client = sandbox.client(1);
        let far_ms = now_ms() + 3_600_000;
        let ask = async |key: &str, partition_key: Option<&str>, depends_on: Value| {
            let task = json!({
                "queue": "pay", "due_at": far_ms, "key": key, "partition_key": partition_key, "depends_on": depends_on,
            });
            client.submit(&task).await
        };
        ask("a", Some("p"), json!(["b"])).await?;
        ask("b", Some("p"), json!(["c"])).await?;
        let cases = [
            (ask("c", Some("p"), json!(["a"])).await, "wait for itself"),
            (ask("d", Some("p"), json!(["d"])).await, "wait for itself"),
            (ask("e", None, json!(["a"])).await, "partition_key"),
            (ask("f", Some("p"), json!([{ "queue": "no blanks", "key": "a" }])).await, "queue"),
        ];
        for (answer, said) in cases {
            let Err(failure) = answer else { anyhow::bail!("accepted, though {said}") };
            ensure!(failure.status() == Some(422) && failure.problem("field") == "depends_on", "{failure:?}");
            ensure!(failure.problem("detail").contains(said), "{failure:?}");
        }
        Ok(())
    })
    .await;
}
