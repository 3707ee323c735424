//! The ends of an attempt: by the confirm, a rejection, a report, or silence.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration_tests::{
    consumer::{Answer, Step},
    ledger::Number,
    sandbox::Sandbox,
};
use serde_json::{Value, json};

use crate::{id_of, in_state, lasts, scenario, submit_now};

const SOON: Duration = Duration::from_secs(60);

/// The deadline of attempts that end before it: later than a busy machine delays a report.
const LONG_MS: i64 = 120_000;

/// Retries after 300 ms, at most `attempts` attempts in all.
fn policy(settle: &str, attempts: u32, timeout_ms: i64) -> Value {
    json!({
        "settle": settle, "max_attempts": attempts, "timeout_ms": timeout_ms,
        "retry": { "kind": "fixed", "delay_ms": 300 },
    })
}

async fn submit_some(sandbox: &Sandbox, queue: &str, count: usize, most: u32) -> Result<Vec<Number>> {
    let mut numbers = Vec::new();
    for turn in 0..count {
        let number = submit_now(&sandbox.client(turn % 3), &sandbox.ledger, queue, &Value::Null).await?;
        sandbox.ledger.expect_attempts(number, most);
        numbers.push(number);
    }
    Ok(numbers)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_attempt_is_retried_after_its_back_off() {
    scenario(Sandbox::builder(), async |sandbox| {
        // The third attempt is accepted.
        let script = |delivery: &integration_tests::ledger::Delivery| {
            if delivery.attempt < 3 { Answer::reject() } else { Answer::ack() }
        };
        sandbox.consume("mail", &policy("reject", 5, 10_000), script).await?;
        for number in submit_some(sandbox, "mail", 30, 3).await? {
            let arrived = sandbox.ledger.wait_delivered(number, 3, SOON).await?;
            for pair in arrived.windows(2) {
                ensure!(pair[1].at_us - pair[0].at_us >= 300_000, "retried too soon: {pair:?}");
            }
            let task = in_state(&sandbox.client(0), &id_of(&sandbox.ledger, number)?, "succeeded").await?;
            let reasons: Vec<&Value> =
                task.rest["attempts"].as_array().into_iter().flatten().map(|attempt| &attempt["reason"]).collect();
            ensure!(reasons.iter().filter(|reason| **reason == "rejected").count() == 2, "{task:?}");
        }
        Ok(())
    })
    .await;
}

/// The deadline passes while the only node is stopped, and the rejection waits at RabbitMQ.
#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_that_came_while_all_nodes_were_stopped_counts_although_its_deadline_has_passed() {
    const TIMEOUT: Duration = Duration::from_secs(8);
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let script = |delivery: &integration_tests::ledger::Delivery| {
            if delivery.attempt == 1 { Answer::reject() } else { Answer::ack() }
        };
        sandbox.consume("mail", &policy("reject", 5, TIMEOUT.as_millis() as i64), script).await?;
        sandbox.hold_consumers("mail", true);
        let (client, ledger) = (sandbox.client(0), &sandbox.ledger);
        let number = submit_now(&client, ledger, "mail", &Value::Null).await?;
        ledger.expect_attempts(number, 2);
        in_state(&client, &id_of(ledger, number)?, "delivered").await?;
        sandbox.pause(0)?;
        sandbox.hold_consumers("mail", false);
        ledger.wait_delivered(number, 1, SOON).await?;
        // RabbitMQ closes the silent connection meanwhile, so the rejection comes after the node has connected again.
        lasts(2 * TIMEOUT).await;
        sandbox.resume(0)?;
        ledger.wait_delivered(number, 2, 3 * SOON).await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_rejected_each_time_is_dead_until_it_is_retried_by_hand() {
    scenario(Sandbox::builder(), async |sandbox| {
        let script = |delivery: &integration_tests::ledger::Delivery| {
            if delivery.attempt <= 2 { Answer::reject() } else { Answer::ack() }
        };
        sandbox.consume("mail", &policy("reject", 2, 10_000), script).await?;
        let (client, ledger) = (sandbox.client(1), &sandbox.ledger);
        for number in submit_some(sandbox, "mail", 5, 3).await? {
            ledger.wait_delivered(number, 2, SOON).await?;
            let id = id_of(ledger, number)?;
            in_state(&client, &id, "dead").await?;
            client.retry(&id).await?;
            // The number of the attempt goes on, so that its message id is new.
            let arrived = ledger.wait_delivered(number, 3, SOON).await?;
            ensure!(arrived[2].attempt == 3, "{arrived:?}");
            in_state(&client, &id, "succeeded").await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reported_result_finishes_the_task_and_is_shown() {
    scenario(Sandbox::builder(), async |sandbox| {
        let report = json!({ "status": "succeeded", "status_code": 200, "result": { "sum": 7 }, "worker": "w1" });
        let script = move |_: &_| Answer(vec![Step::Report(report.clone()), Step::Ack]);
        sandbox.consume("sums", &policy("result", 3, LONG_MS), script).await?;
        for number in submit_some(sandbox, "sums", 20, 1).await? {
            let task = in_state(&sandbox.client(2), &id_of(&sandbox.ledger, number)?, "succeeded").await?;
            ensure!(task.rest["result"].to_string().contains("\"sum\":7"), "{task:?}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reported_failure_is_retried_when_the_consumer_says_and_a_discard_is_final() {
    scenario(Sandbox::builder(), async |sandbox| {
        let script = |delivery: &integration_tests::ledger::Delivery| match delivery.attempt {
            1 => Answer(vec![
                Step::Report(json!({ "status": "failed", "status_msg": "busy", "retry_in_ms": 1_000 })),
                Step::Ack,
            ]),
            _ => Answer::report("discard"),
        };
        sandbox.consume("sums", &policy("result", 9, LONG_MS), script).await?;
        for number in submit_some(sandbox, "sums", 10, 2).await? {
            let arrived = sandbox.ledger.wait_delivered(number, 2, SOON).await?;
            let apart_ms = (arrived[1].at_us - arrived[0].at_us) / 1_000;
            ensure!(apart_ms >= 1_000, "asked for 1 s, came after {apart_ms} ms");
            in_state(&sandbox.client(0), &id_of(&sandbox.ledger, number)?, "dead").await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_past_the_deadline_is_a_failed_attempt() {
    // The second attempt is reported on in time.
    const TIMEOUT_MS: i64 = 10_000;
    scenario(Sandbox::builder(), async |sandbox| {
        // Acked and never reported on, the first time.
        let script = |delivery: &integration_tests::ledger::Delivery| {
            if delivery.attempt == 1 { Answer::ack() } else { Answer::report("succeeded") }
        };
        sandbox.consume("sums", &policy("result", 3, TIMEOUT_MS), script).await?;
        for number in submit_some(sandbox, "sums", 10, 2).await? {
            let arrived = sandbox.ledger.wait_delivered(number, 2, SOON).await?;
            ensure!(arrived[1].at_us - arrived[0].at_us >= TIMEOUT_MS * 1_000, "before the deadline: {arrived:?}");
            let task = in_state(&sandbox.client(1), &id_of(&sandbox.ledger, number)?, "succeeded").await?;
            ensure!(task.rest["attempts"].to_string().contains("timeout"), "{task:?}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_keep_an_attempt_alive_beyond_its_deadline() {
    // Beats 1 s apart for 12 s: a stall of 8 s ends no attempt.
    const DEADLINE_MS: i64 = 9_000;
    const PAUSE: Duration = Duration::from_secs(1);
    scenario(Sandbox::builder(), async |sandbox| {
        let beat = |progress: i32| Step::Report(json!({ "status": "running", "progress": progress, "worker": "w1" }));
        let mut steps = Vec::new();
        for nth in 1..=12 {
            steps.extend([beat(nth * 8), Step::Wait(PAUSE)]);
        }
        steps.extend([Step::Report(json!({ "status": "succeeded" })), Step::Ack]);
        let script = move |_: &_| Answer(steps.clone());
        sandbox.consume("sums", &policy("result", 3, DEADLINE_MS), script).await?;
        let numbers = submit_some(sandbox, "sums", 5, 1).await?;
        let first = id_of(&sandbox.ledger, numbers[0])?;
        in_state(&sandbox.client(0), &first, "running").await?;
        for number in numbers {
            let id = id_of(&sandbox.ledger, number)?;
            in_state(&sandbox.client(0), &id, "succeeded").await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_left_alone_after_its_ack_is_done_when_its_deadline_has_passed() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume("mail", &policy("reject", 3, 800), |_| Answer::ack()).await?;
        for number in submit_some(sandbox, "mail", 10, 1).await? {
            let id = id_of(&sandbox.ledger, number)?;
            sandbox.ledger.wait_delivered(number, 1, SOON).await?;
            in_state(&sandbox.client(0), &id, "succeeded").await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_over_http_counts_and_one_for_an_old_attempt_does_not() {
    scenario(Sandbox::builder(), async |sandbox| {
        let script = |delivery: &integration_tests::ledger::Delivery| {
            if delivery.attempt == 1 { Answer::report("failed") } else { Answer::ack() }
        };
        sandbox.consume("sums", &policy("result", 3, LONG_MS), script).await?;
        let (client, ledger) = (sandbox.client(0), &sandbox.ledger);
        let number = submit_some(sandbox, "sums", 1, 2).await?[0];
        ledger.wait_delivered(number, 2, SOON).await?;
        let id = id_of(ledger, number)?;
        in_state(&client, &id, "delivered").await?;
        let stale = client.report(&id, &json!({ "attempt": 1, "status": "failed" })).await;
        ensure!(stale.as_ref().is_err_and(|failure| failure.status() == Some(409)), "{stale:?}");
        client.report(&id, &json!({ "attempt": 2, "status": "succeeded", "result": "by hand" })).await?;
        let task = in_state(&client, &id, "succeeded").await?;
        ensure!(task.rest["result"].to_string().contains("by hand"), "{task:?}");
        Ok(())
    })
    .await;
}
