//! The life of one task, as an application sees it: submitted, found, changed, cancelled, handed over on time.

use std::time::Duration;

use anyhow::ensure;
use integration_tests::{clock::now_ms, load::Load, sandbox::Sandbox};
use serde_json::{Value, json};

use crate::{confirm, held_up_ms, id_of, in_state, lasts, load, scenario, submit, submit_now};

const SOON: Duration = Duration::from_secs(60);

/// The pause between two attempts: long enough for a cancel on a busy machine.
const RETRIED_AFTER_MS: i64 = 8_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_steady_stream_arrives_on_time_and_once() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &json!({})).await?;
        load(sandbox, &[0, 1, 2], Load::new("mail", 150), Duration::from_secs(10)).await?;
        ensure!(sandbox.ledger.wait_all(SOON).await, "tasks are outstanding");
        let lateness = sandbox.ledger.judge().lateness;
        // Checks progress, not speed: a machine that runs tests is busy with other things. `make bench` measures.
        ensure!(lateness.p99_ms < 5_000.0 + held_up_ms() as f64, "{lateness}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_submitted_one_by_one_arrive_on_time_and_once() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Load::new("mail", 60).due_in_ms(-500..2_000).singly();
        load(sandbox, &[0, 1, 2], stream, Duration::from_secs(5)).await?;
        Ok(())
    })
    .await;
}

/// Nodes read ten seconds ahead. Nothing else happens meanwhile that would make them read.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_due_later_than_nodes_read_ahead_arrive_on_time_in_a_quiet_cluster() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Load::new("mail", 10).due_in_ms(12_000..20_000);
        load(sandbox, &[0, 1, 2], stream, Duration::from_secs(1)).await?;
        ensure!(sandbox.ledger.wait_all(SOON * 2).await, "tasks are outstanding");
        let lateness = sandbox.ledger.judge().lateness;
        ensure!(lateness.p99_ms < 5_000.0 + held_up_ms() as f64, "{lateness}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_task_of_a_batch_gets_its_own_answer() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let ledger = &sandbox.ledger;
        let due_ms = now_ms() + 300;
        let numbers: Vec<_> = (0..1_000).map(|_| ledger.submitting("mail", due_ms)).collect();
        let broken = |number: &u64| number % 10 == 3;
        let tasks: Vec<Value> = numbers
            .iter()
            .map(|number| {
                let mut task = json!({ "queue": "mail", "due_at": due_ms, "payload": { "n": number } });
                if broken(number) {
                    task["priority"] = json!(9);
                }
                task
            })
            .collect();
        let answers = sandbox.client(1).batch(&tasks).await?;
        ensure!(answers.len() == tasks.len(), "{} answers to {} tasks", answers.len(), tasks.len());
        for (index, (number, answer)) in numbers.iter().zip(answers).enumerate() {
            match answer {
                Ok(id) if !broken(number) => ledger.accepted(*number, &id),
                Err(problem) if broken(number) => {
                    ensure!(problem["status"] == 422 && problem["field"] == "priority", "{problem}");
                    ensure!(problem["index"] == index, "{problem} at {index}");
                    ledger.refused(*number);
                }
                other => anyhow::bail!("task {index}: {other:?}"),
            }
        }
        ensure!(ledger.wait_all(SOON).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_found_and_listed_until_and_after_it_is_done() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let (client, other) = (sandbox.client(0), sandbox.client(2));
        let due_ms = now_ms() + 15_000;
        let number =
            submit(&client, &sandbox.ledger, "mail", due_ms, &json!({ "priority": 2, "headers": { "x": "y" } })).await;
        ensure!(number.is_ok(), "{number:?}");
        let number = number?;
        let id = id_of(&sandbox.ledger, number)?;
        // Every node gives the same answer.
        let task = other.get(&id).await?;
        ensure!(task.state == "scheduled" && task.queue == "mail", "{task:?}");
        ensure!(task.rest["payload"] == json!({ "n": number }) && task.rest["priority"] == 2, "{task:?}");
        let listed = other.list("queue=mail&state=scheduled&limit=10").await?;
        ensure!(listed.iter().any(|task| task.id == id), "{listed:?}");
        sandbox.ledger.wait_delivered(number, 1, SOON * 2).await?;
        let task = in_state(&other, &id, "succeeded").await?;
        ensure!(task.rest["attempt"] == 1, "{task:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_never_arrives_and_a_delivered_one_cannot_be_cancelled() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &json!({})).await?;
        let ledger = &sandbox.ledger;
        // Far ahead, near, and right at the moment of the cancel: whichever wins, the answer must be true. Only the
        // first is far enough ahead for any machine.
        for ahead_ms in [60_000, 2_000, 400, 40, 20, 10, 5, 0, -5] {
            for node in 0..3 {
                let client = sandbox.client(node);
                let number = submit(&client, ledger, "mail", now_ms() + ahead_ms, &Value::Null).await?;
                match sandbox.client((node + 1) % 3).cancel(&id_of(ledger, number)?).await {
                    Ok(outcome) => {
                        ensure!(outcome == "cancelled", "outcome {outcome} before any attempt");
                        ledger.cancelled(number, &outcome);
                    }
                    Err(failure) => {
                        ensure!(failure.status() == Some(409) && ahead_ms < 10_000, "{ahead_ms} ms ahead: {failure}");
                        ensure!(!failure.problem("state").is_empty(), "{failure}");
                    }
                }
            }
        }
        ensure!(ledger.wait_all(SOON).await, "tasks are outstanding");
        // By now each task cancelled near its due time would have arrived.
        let number = submit_now(&sandbox.client(0), ledger, "mail", &Value::Null).await?;
        ledger.wait_delivered(number, 1, SOON).await?;
        let failure = sandbox.client(1).cancel(&id_of(ledger, number)?).await;
        ensure!(failure.as_ref().is_err_and(|failure| failure.status() == Some(409)), "{failure:?}");
        lasts(Duration::from_secs(3)).await;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_between_attempts_ends_them_and_says_so() {
    scenario(Sandbox::builder(), async |sandbox| {
        let policy = json!({ "settle": "reject", "retry": { "kind": "fixed", "delay_ms": RETRIED_AFTER_MS } });
        sandbox.consume("mail", &policy, |_| integration_tests::consumer::Answer::reject()).await?;
        let (ledger, client) = (&sandbox.ledger, sandbox.client(0));
        let number = submit_now(&client, ledger, "mail", &Value::Null).await?;
        ledger.expect_attempts(number, 1);
        ledger.wait_delivered(number, 1, SOON).await?;
        let id = id_of(ledger, number)?;
        in_state(&client, &id, "scheduled").await?;
        let outcome = client.cancel(&id).await?;
        ensure!(outcome == "no_further_attempts", "{outcome}");
        ledger.cancelled(number, &outcome);
        ensure!(client.get(&id).await?.state == "cancelled");
        // When a task comes that is due after the second attempt would have been, that one does not come any more.
        let later = submit(&client, ledger, "mail", now_ms() + RETRIED_AFTER_MS + 1_000, &Value::Null).await?;
        ledger.wait_delivered(later, 1, SOON).await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_task_arrives_at_its_new_time_with_its_new_payload() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let ledger = &sandbox.ledger;
        for (first_ms, then_ms) in [(60_000, 800), (9_000, 11_000), (3_600_000, 0), (9_000, 10_000)] {
            for node in 0..3 {
                let number = submit(&sandbox.client(node), ledger, "mail", now_ms() + first_ms, &Value::Null).await?;
                let id = id_of(ledger, number)?;
                let due_ms = now_ms() + then_ms;
                let change = json!({ "due_at": due_ms, "payload": { "n": number, "changed": true } });
                let changed = sandbox.client((node + 1) % 3).change(&id, &change).await?;
                ensure!(changed.rest["payload"]["changed"] == true, "{changed:?}");
                ledger.moved(number, due_ms);
            }
        }
        ensure!(ledger.wait_all(SOON * 2).await, "tasks are outstanding");
        let lateness = ledger.judge().lateness;
        ensure!(lateness.max_ms < 5_000.0 + held_up_ms() as f64, "{lateness}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_run_by_hand_arrives_at_once() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let ledger = &sandbox.ledger;
        for node in 0..3 {
            let number = submit(&sandbox.client(node), ledger, "mail", now_ms() + 3_600_000, &Value::Null).await?;
            ledger.may_move(number, now_ms());
            sandbox.client((node + 1) % 3).run(&id_of(ledger, number)?).await?;
            ledger.wait_delivered(number, 1, SOON).await?;
            let again = sandbox.client(node).run(&id_of(ledger, number)?).await;
            ensure!(again.as_ref().is_err_and(|failure| failure.status() == Some(409)), "{again:?}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_not_claimed_in_time_expires_and_is_not_delivered() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let (ledger, client) = (&sandbox.ledger, sandbox.client(0));
        client.call::<Value>(reqwest::Method::POST, "/v1/queues/mail/pause", None).await?;
        let expires = json!({ "expires_at": now_ms() + 10_000 });
        let lapsing = submit_now(&client, ledger, "mail", &expires).await?;
        ledger.may_lapse(lapsing);
        ledger.expect_attempts(lapsing, 0);
        let lasting = submit_now(&client, ledger, "mail", &Value::Null).await?;
        in_state(&client, &id_of(ledger, lasting)?, "ready").await?;
        in_state(&client, &id_of(ledger, lapsing)?, "expired").await?;
        client.call::<Value>(reqwest::Method::POST, "/v1/queues/mail/resume", None).await?;
        ledger.wait_delivered(lasting, 1, SOON).await?;
        Ok(())
    })
    .await;
}
