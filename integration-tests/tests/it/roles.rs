//! The permissions of each role on a running node, and the audit's notes of payloads that were shown.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use integration_tests::{client::Client, sandbox::Sandbox};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    scenario,
    tokens::{IN_FORCE_WITHIN, answers, make, noted},
    until,
};

const ROLES: [&str; 7] = ["metrics", "submitter", "reporter", "observer", "viewer", "producer", "operator"];

/// The roles whose answers have no data of tasks.
const WITHOUT_DATA: [&str; 4] = ["metrics", "submitter", "reporter", "observer"];

/// A mark in every piece of data.
const MARK: &str = "SECRET-7";

/// The queue is idle and all stores are near.
const DELIVERED_WITHIN: Duration = Duration::from_secs(60);

/// A client for each role, once its token is valid.
async fn clients(operator: &Client) -> Result<BTreeMap<&'static str, Client>> {
    let mut clients = BTreeMap::new();
    for role in ROLES {
        let token = make(operator, &json!({ "name": format!("the-{role}"), "role": role })).await?;
        let client = operator.with_token(Some(&token));
        let looks = !["metrics", "submitter", "reporter"].contains(&role);
        answers(&client, if looks { None } else { Some(403) }, IN_FORCE_WITHIN).await?;
        clients.insert(role, client);
    }
    Ok(clients)
}

async fn token_id(operator: &Client, name: &str) -> Result<i64> {
    let list: Value = operator.call(Method::GET, "/v1/tokens", None).await?;
    let tokens = list["tokens"].as_array().context("tokens")?;
    let in_force = tokens.iter().find(|token| token["name"] == name && token["revoked_at"].is_null());
    in_force.and_then(|token| token["id"].as_i64()).context("a token made over the API has an id")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_does_what_it_may_and_nothing_else() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let operator = sandbox.client(0);
        let clients = clients(&operator).await?;
        operator.put_queue("q", &json!({ "settle": "result", "timeout_ms": 600_000 })).await?;
        let data = json!({ "queue": "q", "key": "k", "payload": { "x": MARK }, "headers": { "h": MARK } });
        let mut later = data.clone();
        later["delay_ms"] = json!(3_600_000);
        let task = operator.submit(&later).await?;
        let mut now = data;
        now["key"] = json!("now");
        let out = operator.submit(&now).await?;
        until("the task is with its consumer", DELIVERED_WITHIN, || async {
            operator.get(&out.id).await.ok().filter(|task| task.state == "delivered")
        })
        .await?;
        let mut other = later.clone();
        other["payload"] = json!("other");
        let running = json!({ "attempt": 1, "status": "running" });
        let one = format!("/v1/tasks/{}", task.id);
        let asks = [
            (Method::GET, "/metrics".to_owned(), None, "metrics observer viewer producer operator"),
            (Method::POST, "/v1/tasks".to_owned(), Some(other.clone()), "submitter producer operator"),
            (Method::POST, "/v1/tasks/batch".to_owned(), Some(json!([other])), "submitter producer operator"),
            (Method::POST, format!("/v1/tasks/{}/result", out.id), Some(running), "reporter producer operator"),
            (Method::GET, one.clone(), None, "observer viewer producer operator"),
            (Method::GET, "/v1/queues/q/keys/k".to_owned(), None, "observer viewer producer operator"),
            (Method::GET, "/v1/tasks?queue=q".to_owned(), None, "observer viewer producer operator"),
            (Method::GET, "/v1/tasks/export?queue=q".to_owned(), None, "viewer producer operator"),
            (Method::PATCH, one, Some(json!({ "priority": 2 })), "producer operator"),
            (Method::POST, "/v1/queues/q/pause".to_owned(), None, "operator"),
            (Method::GET, "/v1/audit".to_owned(), None, "operator"),
        ];
        for (method, path, body, roles) in &asks {
            for (role, client) in &clients {
                let body = body.as_ref().map(|body| body.to_string().into_bytes());
                let answer = client.send(method.clone(), path, body).await?;
                let (status, text) = (answer.status().as_u16(), answer.text().await?);
                let expected = if roles.split(' ').any(|may| may == *role) { 200 } else { 403 };
                ensure!(status == expected, "{method} {path} as {role}: {status} {text}");
                ensure!(!WITHOUT_DATA.contains(role) || !text.contains(MARK), "{method} {path} as {role}: {text}");
            }
        }
        let done = json!({ "attempt": 1, "status": "succeeded", "result": { "x": MARK } });
        let answer = clients["reporter"].report(&out.id, &done).await?;
        ensure!(answer["state"] == "succeeded" && answer["data_hidden"] == true, "{answer}");
        let seen = operator.get(&out.id).await?;
        ensure!(seen.rest["result"]["x"] == MARK, "the report was stored: {seen:?}");
        let seen = clients["observer"].get(&out.id).await?;
        ensure!(seen.state == "succeeded" && !seen.rest.contains_key("result"), "{seen:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_tells_which_token_read_a_payload_though_two_had_one_name() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let operator = sandbox.client(0);
        let task = operator.submit(&json!({ "queue": "q", "delay_ms": 3_600_000, "payload": MARK })).await?;
        let mut ids = Vec::new();
        for _ in 0..2 {
            let token = make(&operator, &json!({ "name": "ann", "role": "viewer" })).await?;
            let ann = operator.with_token(Some(&token));
            answers(&ann, None, IN_FORCE_WITHIN).await?;
            ann.get(&task.id).await?;
            ids.push(token_id(&operator, "ann").await?);
            operator.call::<Value>(Method::DELETE, "/v1/tokens/ann", None).await?;
        }
        ensure!(ids[0] != ids[1], "{ids:?}");
        let token = make(&operator, &json!({ "name": "eve", "role": "observer" })).await?;
        let eve = operator.with_token(Some(&token));
        answers(&eve, None, IN_FORCE_WITHIN).await?;
        eve.get(&task.id).await?;
        let refused = eve.call::<Value>(Method::GET, "/v1/tasks/export?queue=q", None).await;
        ensure!(refused.is_err_and(|failure| failure.status() == Some(403)), "an observer exports");
        let exports = noted(&operator, "task.export", 1).await?;
        let eve_id = token_id(&operator, "eve").await?;
        ensure!(exports[0]["who"] == "eve" && exports[0]["who_id"] == eve_id, "{exports:?}");
        // The export came after the reads, and notes are written in order.
        let reads = noted(&operator, "task.read", 2).await?;
        let ann: Vec<i64> = reads.iter().rev().filter_map(|deed| deed["who_id"].as_i64()).collect();
        ensure!(ann == ids && reads.iter().all(|deed| deed["who"] == "ann" && deed["target"] == task.id), "{reads:?}");
        Ok(())
    })
    .await;
}
