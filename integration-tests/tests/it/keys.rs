//! Business keys: one task for each key, however many submitters, nodes and repetitions there are.

use std::time::Duration;

use anyhow::ensure;
use integration_tests::{
    client::{Client, Failure},
    clock::now_ms,
    ledger::{Ledger, Number},
    sandbox::Sandbox,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{confirm, in_state, scenario};

const SOON: Duration = Duration::from_secs(60);

/// Submits with a key; returns the number and the answer. The ledger counts it as accepted only when it becomes a
/// task of its own.
async fn submit(
    client: &Client,
    ledger: &Ledger,
    due_ms: i64,
    more: &Value,
) -> Result<(Number, Result<Value, Failure>), anyhow::Error> {
    let number = ledger.submitting("mail", due_ms);
    let mut task = json!({ "queue": "mail", "due_at": due_ms, "payload": { "n": number } });
    for (name, value) in more.as_object().into_iter().flatten() {
        task[name] = value.clone();
    }
    let answer: Result<Value, Failure> = client.call(Method::POST, "/v1/tasks", Some(&task)).await;
    match &answer {
        Ok(task) if task["duplicate"] != true => ledger.accepted(number, task["id"].as_str().unwrap_or_default()),
        _ => ledger.refused(number),
    }
    Ok((number, answer))
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_submissions_of_a_key_at_once_on_every_node_one_is_delivered() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let due_ms = now_ms() + 2_000;
        for key in 0..20 {
            let more = json!({ "key": format!("order {key}") });
            let clients: Vec<Client> = (0..9).map(|place| sandbox.client(place % 3)).collect();
            let answers = futures::future::try_join_all(
                clients.iter().map(|client| submit(client, &sandbox.ledger, due_ms, &more)),
            )
            .await?;
            let created =
                answers.iter().filter(|(_, answer)| answer.as_ref().is_ok_and(|task| task["duplicate"] != true));
            ensure!(created.count() == 1, "{answers:?}");
            let ids: std::collections::BTreeSet<&str> =
                answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()?["id"].as_str()).collect();
            ensure!(ids.len() == 1, "all are answered with the same task: {ids:?}");
        }
        ensure!(sandbox.ledger.wait_all(SOON).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_kept_refused_replaced_or_superseded_as_asked() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let (client, other, ledger) = (sandbox.client(0), sandbox.client(1), &sandbox.ledger);
        let late_ms = now_ms() + 600_000;
        let (first, answer) = submit(&client, ledger, late_ms, &json!({ "key": "a" })).await?;
        let first_id = answer?["id"].clone();
        let (_, again) = submit(&other, ledger, late_ms, &json!({ "key": "a" })).await?;
        let again = again?;
        ensure!(again["id"] == first_id && again["duplicate"] == true && again["key"] == "a", "{again}");
        let (_, refused) = submit(&other, ledger, late_ms, &json!({ "key": "a", "on_duplicate": "reject" })).await?;
        let refused = refused.expect_err("the key is taken");
        ensure!(refused.status() == Some(409) && refused.problem("state") == "scheduled", "{refused:?}");

        // Replaced in place: the same task, now delivered with the new content.
        let due_ms = now_ms() + 500;
        ledger.moved(first, due_ms);
        let replaced: Value = other
            .call(
                Method::POST,
                "/v1/tasks",
                Some(&json!({
                    "queue": "mail", "due_at": due_ms, "payload": { "n": first }, "key": "a", "on_duplicate": "replace"
                })),
            )
            .await?;
        ensure!(replaced["id"] == first_id && replaced["duplicate"] == true, "{replaced}");
        ledger.wait_delivered(first, 1, SOON).await?;

        let versioned = |version: i64| json!({ "key": "b", "version": version, "on_duplicate": "version" });
        let (old, answer) = submit(&client, ledger, late_ms, &versioned(1)).await?;
        let old_id = answer?["id"].as_str().unwrap_or_default().to_owned();
        let (new, answer) = submit(&other, ledger, now_ms() + 500, &versioned(2)).await?;
        answer?;
        ledger.may_lapse(old);
        let superseded = in_state(&client, &old_id, "superseded").await?;
        ensure!(superseded.rest["version"] == 1, "{superseded:?}");
        let (_, stale) = submit(&client, ledger, late_ms, &versioned(1)).await?;
        ensure!(stale.expect_err("it is old").problem("type").ends_with("stale_version"), "a newer version exists");
        ledger.wait_delivered(new, 1, SOON).await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_found_changed_and_cancelled_by_its_key() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let (client, other, ledger) = (sandbox.client(0), sandbox.client(2), &sandbox.ledger);
        let late_ms = now_ms() + 600_000;
        let of_partition = json!({ "key": "a b/c", "partition_key": "p" });
        let (number, answer) = submit(&client, ledger, late_ms, &of_partition).await?;
        let id = answer?["id"].as_str().unwrap_or_default().to_owned();
        let path = "/v1/queues/mail/keys/a%20b%2Fc";
        let task: Value = other.call(Method::GET, &format!("{path}?partition_key=p"), None).await?;
        ensure!(task["id"] == id.as_str() && task["key"] == "a b/c", "{task}");
        let elsewhere: Result<Value, Failure> = other.call(Method::GET, path, None).await;
        ensure!(elsewhere.is_err_and(|failure| failure.status() == Some(404)), "the key is of its partition");
        let changed: Value =
            other.call(Method::PATCH, &format!("{path}?partition_key=p"), Some(&json!({ "priority": 1 }))).await?;
        ensure!(changed["priority"] == 1, "{changed}");
        let moved: Value = client
            .call(Method::PATCH, &format!("{path}?partition_key=p"), Some(&json!({ "delay_ms": 900_000 })))
            .await?;
        ensure!(moved["id"] == id.as_str() && moved["due_at"] != changed["due_at"], "{moved}");
        let listed = other.list("queue=mail&key=a%20b%2Fc").await?;
        ensure!(listed.len() == 1 && listed[0].id == id, "{listed:?}");
        let cancelled: Value = other.call(Method::DELETE, &format!("{path}?partition_key=p"), None).await?;
        ensure!(cancelled["outcome"] == "cancelled", "{cancelled}");
        ledger.cancelled(number, "cancelled");

        // Its key is free again.
        let (number, answer) = submit(&client, ledger, now_ms() + 300, &of_partition).await?;
        ensure!(answer?["id"] != id.as_str(), "a new task");
        ledger.wait_delivered(number, 1, SOON).await?;
        Ok(())
    })
    .await;
}
