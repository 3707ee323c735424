//! Queues in trouble, which must not affect others.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration_tests::{
    clock::now_ms,
    consumer::{Answer, Consumer},
    load::Load,
    sandbox::Sandbox,
};
use serde_json::json;

use crate::{confirm, flows, held_up_ms, lanes::until_ready, lasts, load, scenario, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_waits_and_delays_no_other() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("free", &confirm()).await?;
        sandbox.client(0).put_queue("stuck", &json!({ "settle": "confirm", "max_length": 5 })).await?;
        // The queue has no consumer, and far more tasks are due than it holds.
        let stuck = Load::new("stuck", 200).due_in_ms(0..500);
        load(sandbox, &[0, 1, 2], stuck, Duration::from_secs(3)).await?;
        let began_us = now_ms() * 1_000;
        for number in load(sandbox, &[0, 1, 2], Load::new("free", 100), Duration::from_secs(8)).await? {
            sandbox.ledger.wait_delivered(number, 1, Duration::from_secs(30)).await?;
        }
        let free = sandbox.ledger.lateness(began_us, i64::MAX);
        ensure!(free.p99_ms < 5_000.0 + held_up_ms() as f64, "the free queue is late: {free}");
        let _late = Consumer::start(&sandbox.amqp_url(), "stuck", &sandbox.ledger);
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_deleted_under_load_is_made_again_and_nothing_is_lost() {
    scenario(Sandbox::builder(), async |sandbox| {
        // The queue's messages go with it, so only a result tells that a task was done.
        sandbox.ledger.loses_messages("sums");
        let policy = json!({
            "settle": "result", "timeout_ms": 3_000, "max_attempts": 5, "retry": { "kind": "fixed", "delay_ms": 200 },
        });
        sandbox.consume("sums", &policy, |_| Answer::report("succeeded")).await?;
        sandbox.consume_and_ack("free", &confirm()).await?;
        let stream = load(sandbox, &[0, 1, 2], Load::new("sums", 100), Duration::from_secs(12));
        let free = load(sandbox, &[0, 1, 2], Load::new("free", 50), Duration::from_secs(12));
        flows(sandbox, 300).await?;
        let fault = sandbox.ledger.fault("queue deleted");
        sandbox.rabbit().ctl(&["delete_queue", "-p", sandbox.vhost(), "sums"]).await?;
        lasts(Duration::from_secs(3)).await;
        sandbox.ledger.heal(fault);
        stream.await?;
        for number in free.await? {
            let arrived = sandbox.ledger.wait_delivered(number, 1, Duration::from_secs(60)).await?;
            let late_ms = arrived[0].at_us / 1_000 - arrived[0].due_ms.unwrap_or(0);
            ensure!(late_ms < 5_000 + held_up_ms() as i64, "the free queue is late by {late_ms} ms");
        }
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_queue_keeps_its_due_tasks_until_it_is_resumed() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        pause_or_resume(sandbox, "pause").await?;
        let mail = Load::new("mail", 100).due_in_ms(0..500);
        let numbers = load(sandbox, &[0, 1, 2], mail, Duration::from_secs(2)).await?;
        until_ready(sandbox, "mail", i64::try_from(numbers.len())?).await?;
        // All but the task that opened the queue.
        ensure!(sandbox.ledger.progress().delivered == 1, "{:?}", sandbox.ledger.progress());
        pause_or_resume(sandbox, "resume").await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}

async fn pause_or_resume(sandbox: &Sandbox, verb: &str) -> Result<()> {
    let path = format!("/v1/queues/mail/{verb}");
    sandbox.client(1).call::<serde_json::Value>(reqwest::Method::POST, &path, None).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_tells_how_many_of_its_tasks_may_die() {
    scenario(Sandbox::builder(), async |sandbox| {
        for (threshold, told) in [(json!(7), Some(7.0)), (json!(null), None)] {
            sandbox.client(0).put_queue("mail", &json!({ "failure_alert_threshold": threshold })).await?;
            for node in 0..3 {
                let client = sandbox.client(node);
                until("each node reports the limit", Duration::from_secs(60), || async {
                    let now = client.metric("duetime_queue_failure_alert_threshold").await.ok()?;
                    (now == told).then_some(())
                })
                .await?;
            }
        }
        Ok(())
    })
    .await;
}
