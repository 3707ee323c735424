//! Bad input and wrong credentials: a clear answer that names the mistake.

use anyhow::{Result, ensure};
use integration_tests::{
    client::{Client, Failure},
    sandbox::{Sandbox, hex_sha256},
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::scenario;

/// The status, and the name of the field if the problem is about one.
type Expected = (u16, Option<&'static str>);

#[tokio::test(flavor = "multi_thread")]
async fn every_impossible_field_is_refused_by_name() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let client = sandbox.client(0);
        let big = "x".repeat(300_000);
        let long = "k".repeat(257);
        let cases: Vec<(Value, Expected)> = vec![
            (json!({}), (422, Some("queue"))),
            (json!({ "queue": "" }), (422, Some("queue"))),
            (json!({ "queue": "no spaces" }), (422, Some("queue"))),
            (json!({ "queue": "q".repeat(129) }), (422, Some("queue"))),
            (json!({ "queue": 7 }), (422, Some("queue"))),
            (json!({ "queue": "q", "colour": 1 }), (422, Some("colour"))),
            (json!({ "queue": "q", "delay_ms": "soon" }), (422, Some("delay_ms"))),
            (json!({ "queue": "q", "due_at": "tomorrow" }), (422, Some("due_at"))),
            (json!({ "queue": "q", "due_at": 999_999_999_999_999_i64 }), (422, Some("due_at"))),
            (json!({ "queue": "q", "priority": 0 }), (422, Some("priority"))),
            (json!({ "queue": "q", "priority": 6 }), (422, Some("priority"))),
            (json!({ "queue": "q", "max_attempts": 0 }), (422, Some("max_attempts"))),
            (json!({ "queue": "q", "timeout_ms": 0 }), (422, Some("timeout_ms"))),
            (json!({ "queue": "q", "partition_key": "" }), (422, Some("partition_key"))),
            (json!({ "queue": "q", "partition_key": long }), (422, Some("partition_key"))),
            (json!({ "queue": "q", "headers": { "x-mine": "1" } }), (422, Some("headers"))),
            (json!({ "queue": "q", "headers": { "duetime-mine": "1" } }), (422, Some("headers"))),
            (json!({ "queue": "q", "headers": { "a": "v".repeat(9_000) } }), (422, Some("headers"))),
            (json!({ "queue": "q", "key": "" }), (422, Some("key"))),
            (json!({ "queue": "q", "version": 1 }), (422, Some("version"))),
            (json!({ "queue": "q", "key": "k", "version": -1 }), (422, Some("version"))),
            (json!({ "queue": "q", "key": "k", "on_duplicate": "maybe" }), (422, Some("on_duplicate"))),
            (json!({ "queue": "q", "depends_on": ["k"] }), (422, Some("depends_on"))),
            (json!({ "queue": "q", "payload": big }), (413, None)),
        ];
        for (task, expected) in cases {
            let shown = task.to_string().chars().take(120).collect::<String>();
            refused(&client, Method::POST, "/v1/tasks", task.to_string(), expected, &shown).await?;
        }
        for text in ["", "{", "nonsense", "\u{0}", "{\"queue\":\"q\",}"] {
            refused(&client, Method::POST, "/v1/tasks", text.to_owned(), (400, None), text).await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_exist_is_not_found_and_what_cannot_be_is_refused() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let client = sandbox.client(0);
        let unknown = "0199f3a0-0000-7000-8000-000000000005";
        // Its last 16 bits name a shard that no database holds.
        let nowhere = "0199f3a0-0000-7000-8000-00000000ffff";
        for id in [unknown, nowhere, "not-an-id"] {
            for (method, path) in
                [(Method::GET, ""), (Method::DELETE, ""), (Method::POST, "/run"), (Method::POST, "/retry")]
            {
                let path = format!("/v1/tasks/{id}{path}");
                refused(&client, method, &path, String::new(), (404, None), &path).await?;
            }
        }
        let cases: [(&str, Value, Expected); 6] = [
            ("q", json!({ "settle": "maybe" }), (422, Some("settle"))),
            ("q", json!({ "max_attempts": 0 }), (422, Some("max_attempts"))),
            ("q", json!({ "retry": { "kind": "fixed" } }), (422, Some("retry"))),
            ("q", json!({ "colour": 1 }), (422, Some("colour"))),
            ("q", json!({ "ordered": true }), (422, Some("ordered"))),
            ("q", json!({ "max_running": 3 }), (422, Some("max_running"))),
        ];
        for (queue, policy, expected) in cases {
            let path = format!("/v1/queues/{queue}");
            refused(&client, Method::PUT, &path, policy.to_string(), expected, &policy.to_string()).await?;
        }
        for query in ["limit=0", "limit=1001", "state=asleep", "due_after=yesterday", "cursor=nonsense", "colour=red"] {
            let path = format!("/v1/tasks?{query}");
            let field = query.split('=').next().unwrap_or_default();
            let failure = client.call::<Value>(Method::GET, &path, None).await;
            let failure = failure.err().ok_or_else(|| anyhow::anyhow!("{path} was answered"))?;
            ensure!(failure.status() == Some(422) && failure.problem("field") == field, "{path}: {failure}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_none_is_refused_as_a_whole() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let client = sandbox.client(0);
        let too_many = vec![json!({ "queue": "q" }); 10_001];
        let path = "/v1/tasks/batch";
        refused(&client, Method::POST, path, "{".into(), (400, None), "half a batch").await?;
        refused(&client, Method::POST, path, "{}".into(), (422, Some("tasks")), "no tasks").await?;
        refused(&client, Method::POST, path, json!(too_many).to_string(), (422, Some("tasks")), "10,001 tasks").await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_beyond_his_role() {
    let token = |role: &str| {
        format!("[[auth.token]]\nname = \"{role}\"\nrole = \"{role}\"\nsha256 = \"{}\"\n\n", hex_sha256(role))
    };
    let roles = token("viewer") + &token("producer");
    scenario(Sandbox::builder().nodes(1).config(&roles), async |sandbox| {
        let operator = sandbox.client(0);
        let (viewer, producer) = (operator.with_token(Some("viewer")), operator.with_token(Some("producer")));
        for stranger in [operator.with_token(None), operator.with_token(Some("guess"))] {
            for path in ["/v1/tasks", "/v1/cluster", "/v1/queues", "/metrics"] {
                let failure = stranger.call::<Value>(Method::GET, path, None).await;
                ensure!(failure.as_ref().is_err_and(|failure| failure.status() == Some(401)), "{path}: {failure:?}");
            }
        }
        let task = json!({ "queue": "q", "delay_ms": 3_600_000 });
        let forbidden = |outcome: Result<(), Failure>| outcome.is_err_and(|failure| failure.status() == Some(403));
        ensure!(forbidden(viewer.submit(&task).await.map(drop)), "a viewer submits");
        ensure!(forbidden(producer.put_queue("q", &json!({})).await.map(drop)), "a producer sets policies");
        producer.submit(&task).await?;
        viewer.cluster().await?;
        viewer.list("queue=q").await?;
        let (alive, _) = operator.with_token(None).readiness().await?;
        ensure!(alive, "readiness needs no credentials");
        Ok(())
    })
    .await;
}

/// Checks that the answer is a problem with this status and field, and a sentence for a person.
async fn refused(
    client: &Client,
    method: Method,
    path: &str,
    body: String,
    expected: Expected,
    what: &str,
) -> Result<()> {
    let (status, field) = expected;
    let body = (!body.is_empty() || method == Method::POST).then(|| body.into_bytes());
    let answer = client.send(method, path, body).await?;
    let seen = answer.status().as_u16();
    let kind = answer.headers().get("content-type").map(|kind| kind.to_str().unwrap_or_default().to_owned());
    let text = answer.text().await?;
    ensure!(seen == status, "{what}: {seen} instead of {status}: {text}");
    ensure!(kind.as_deref() == Some("application/problem+json"), "{what}: {kind:?}");
    let problem: Value = serde_json::from_str(&text)?;
    ensure!(
        problem["status"] == status && problem["detail"].as_str().is_some_and(|text| text.len() > 10),
        "{what}: {problem}"
    );
    if let Some(field) = field {
        // `retry.delay_ms` is about the field `retry` too.
        let named = problem["field"].as_str().unwrap_or_default();
        ensure!(
            named == field || named.starts_with(&format!("{field}.")),
            "{what}: field {named:?} instead of {field:?}"
        );
    }
    Ok(())
}
