//! Messages that a consumer puts back into their queue, and how often it may.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration_tests::{
    consumer::{Answer, Step},
    ledger::{Delivery, Number},
    sandbox::Sandbox,
};
use serde_json::{Value, json};

use crate::{id_of, in_state, scenario, submit_now};

const SOON: Duration = Duration::from_secs(60);
/// The `x-delivery-limit` of a task queue. The delivery after it does not come.
const LIMIT: usize = 20;
/// Above the limit by enough that a broker that counts would have ended the attempt.
const NACKS: usize = 3 * LIMIT;

/// A queue whose attempts end by a report, a rejection, or a deadline that no scenario here waits for.
async fn queue(sandbox: &Sandbox, script: impl Fn(&Delivery) -> Answer + Send + Sync + 'static) -> Result<()> {
    let policy = json!({
        "settle": "result", "max_attempts": 3, "timeout_ms": 120_000, "retry": { "kind": "fixed", "delay_ms": 300 },
    });
    sandbox.consume("mail", &policy, script).await
}

/// How often the first attempt came, once the second has succeeded.
async fn copies_before_the_second_attempt(sandbox: &Sandbox, number: Number) -> Result<usize> {
    let task = in_state(&sandbox.client(0), &id_of(&sandbox.ledger, number)?, "succeeded").await?;
    let first = &task.rest["attempts"][0];
    ensure!(first["reason"] == "rejected", "the first attempt did not end as rejected: {task:?}");
    let arrived = sandbox.ledger.deliveries(number);
    ensure!(arrived.iter().any(|delivery| delivery.attempt == 2), "no second attempt: {arrived:?}");
    Ok(arrived.iter().filter(|delivery| delivery.attempt == 1).count())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_rejected_back_into_its_queue_too_often_is_a_failed_attempt() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        queue(sandbox, |delivery| match delivery.attempt {
            1 => Answer(vec![Step::Requeue]),
            _ => Answer::report("succeeded"),
        })
        .await?;
        let number = submit_now(&sandbox.client(0), &sandbox.ledger, "mail", &Value::Null).await?;
        sandbox.ledger.expect_attempts(number, 2);
        sandbox.ledger.wait_delivered(number, LIMIT + 2, SOON).await?;
        let copies = copies_before_the_second_attempt(sandbox, number).await?;
        ensure!(copies == LIMIT + 1, "the first attempt came {copies} times");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nack_back_into_its_queue_counts_until_4_3_and_never_after() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let nacked = std::sync::atomic::AtomicUsize::new(0);
        queue(sandbox, move |delivery| {
            let before = nacked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if delivery.attempt == 1 && before < NACKS {
                Answer(vec![Step::RequeueByNack])
            } else {
                Answer::report("succeeded")
            }
        })
        .await?;
        let version = sandbox.rabbit().version().await?;
        let mut parts = version.split('.').map(str::parse::<u32>);
        let version = (parts.next().context("a major version")??, parts.next().context("a minor version")??);
        let number = submit_now(&sandbox.client(0), &sandbox.ledger, "mail", &Value::Null).await?;
        if version < (4, 3) {
            sandbox.ledger.expect_attempts(number, 2);
            sandbox.ledger.wait_delivered(number, LIMIT + 2, SOON).await?;
            let copies = copies_before_the_second_attempt(sandbox, number).await?;
            ensure!(copies == LIMIT + 1, "the first attempt came {copies} times");
        } else {
            sandbox.ledger.expect_attempts(number, 1);
            sandbox.ledger.wait_delivered(number, NACKS + 1, SOON).await?;
            let task = in_state(&sandbox.client(0), &id_of(&sandbox.ledger, number)?, "succeeded").await?;
            let arrived = sandbox.ledger.deliveries(number);
            ensure!(arrived.len() == NACKS + 1, "{} deliveries: {task:?}", arrived.len());
        }
        Ok(())
    })
    .await;
}

/// How long a consumer may hold a message here, and how often RabbitMQ looks, in ms.
const HELD_MS: u32 = 3_000;
const LOOK_MS: u32 = 1_000;
/// RabbitMQ's own settings.
const USUAL_HELD_MS: u32 = 30 * 60_000;
const USUAL_LOOK_MS: u32 = 60_000;

async fn consumer_timeout(sandbox: &Sandbox, held_ms: u32, look_ms: u32) -> Result<()> {
    let settings = [("consumer_timeout", held_ms), ("channel_tick_interval", look_ms)];
    let steps = settings.map(|(name, value)| format!("application:set_env(rabbit, {name}, {value})"));
    sandbox.rabbit().eval(&steps).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_held_past_the_consumer_timeout_comes_again_as_the_same_attempt() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        // The broker is shared: what comes after this scenario needs its usual settings back.
        consumer_timeout(sandbox, HELD_MS, LOOK_MS).await?;
        let held = hold_once(sandbox).await;
        consumer_timeout(sandbox, USUAL_HELD_MS, USUAL_LOOK_MS).await?;
        held
    })
    .await;
}

async fn hold_once(sandbox: &Sandbox) -> Result<()> {
    let is_held = std::sync::atomic::AtomicBool::new(false);
    queue(sandbox, move |_| {
        if is_held.swap(true, std::sync::atomic::Ordering::Relaxed) {
            Answer::report("succeeded")
        } else {
            Answer::silence()
        }
    })
    .await?;
    let number = submit_now(&sandbox.client(0), &sandbox.ledger, "mail", &Value::Null).await?;
    sandbox.ledger.expect_attempts(number, 1);
    let arrived = sandbox.ledger.wait_delivered(number, 2, Duration::from_secs(90)).await?;
    ensure!(arrived[1].at_us - arrived[0].at_us >= i64::from(HELD_MS) * 1_000, "it came too soon: {arrived:?}");
    in_state(&sandbox.client(0), &id_of(&sandbox.ledger, number)?, "succeeded").await.map(drop)
}
