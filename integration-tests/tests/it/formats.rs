//! Messages in the formats of other systems, read by those systems' own libraries.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use integration_tests::sandbox::{Sandbox, scratch};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{in_state, language, scenario, until};

/// A worker starts, connects and runs a task.
const SOON: Duration = Duration::from_secs(60);

fn sources() -> PathBuf {
    language::root().join("integration-tests/tests/it/formats")
}

async fn python() -> Result<PathBuf> {
    language::python(&sources().join("requirements.txt"), "python-formats").await
}

async fn submitted(sandbox: &Sandbox, queue: &str, task: Value) -> Result<String> {
    let mut task = task;
    task["queue"] = queue.into();
    Ok(sandbox.client(0).submit(&task).await?.id)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unmodified_celery_worker_runs_each_task_once_and_a_failed_one_again() {
    // The name that the pages use. `celery` is Celery's default queue, which its workers declare as a classic one.
    const QUEUE: &str = "celery.later";
    if !language::is_here("python3") {
        return;
    }
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        let bin = python().await?;
        let retry = json!({ "kind": "fixed", "delay_ms": 300 });
        sandbox.put_queues(&[(QUEUE, json!({ "format": "celery", "retry": retry }))]).await?;
        let call = json!({ "task": "app.add", "args": [2, 3], "kwargs": { "text": "é=" } });
        let sum = submitted(sandbox, QUEUE, json!({ "payload": call, "headers": { "task": "mine" } })).await?;
        // The worker declares nothing, so the queue must exist before it starts.
        in_state(&sandbox.client(0), &sum, "delivered").await?;

        let runs = scratch().join(format!("runs-{sum}"));
        let log = scratch().join(format!("celery-{sum}"));
        let mut celery = Command::new(bin.join("celery"));
        celery.args(["--app", "worker", "worker", "--pool", "solo", "--queues", QUEUE]);
        celery.args(["--without-gossip", "--without-mingle", "--loglevel", "info"]);
        celery.current_dir(sources()).env("AMQP_URL", sandbox.amqp_url()).env("RUNS", &runs);
        celery.env("PYTHONDONTWRITEBYTECODE", "1");
        let _worker = language::start(&mut celery, &log)?;

        let flaky = submitted(sandbox, QUEUE, json!({ "payload": { "task": "app.flaky" } })).await?;
        let ran = || async { std::fs::read_to_string(&runs).ok().filter(|text| text.contains(" 1 flaky")) };
        let text = until("the failed task has run again", SOON, ran)
            .await
            .with_context(|| std::fs::read_to_string(&log).unwrap_or_default())?;
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        let mut expected = [format!("{sum} 0 é=5"), format!("{flaky} 0 flaky"), format!("{flaky} 1 flaky")];
        expected.sort_unstable();
        ensure!(lines == expected, "{text}");
        let task = sandbox.client(0).get(&flaky).await?;
        ensure!(task.rest["attempts"][0]["reason"] == "rejected", "{task:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloudevents_library_reads_a_task_of_json_and_one_of_bytes() {
    if !language::is_here("python3") {
        return;
    }
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        let bin = python().await?;
        let policy = json!({ "format": "cloudevents", "settle": "confirm" });
        sandbox.put_queues(&[("events", policy)]).await?;
        let json = json!({ "payload": { "n": [1, "é"] }, "key": "order-1", "due_at": 1_700_000_000_000_i64 });
        let bytes = json!({ "payload_base64": "AP8=", "content_type": "image/x-small" });
        for (task, content_type, data) in
            [(json, "application/json", json!({ "n": [1, "é"] })), (bytes, "image/x-small", json!({ "bytes": "AP8=" }))]
        {
            let id = submitted(sandbox, "events", task).await?;
            in_state(&sandbox.client(0), &id, "succeeded").await?;
            let mut reader = Command::new(bin.join("python"));
            reader.arg(sources().join("read_event.py")).arg("events").env("AMQP_URL", sandbox.amqp_url());
            let read: Value = serde_json::from_str(&language::run(&mut reader).await?)?;
            let of = &read["attributes"];
            ensure!(of["id"] == id.as_str() && of["source"] == "/v1/queues/events" && of["type"] == "events", "{read}");
            ensure!(of["datacontenttype"] == content_type && of["duetimeattempt"] == 1, "{read}");
            ensure!(read["data"] == data, "{read}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_cannot_have_its_queues_format_is_refused_or_given_up_with_the_reason() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        let client = sandbox.client(0);
        let early = submitted(sandbox, "sums", json!({ "payload": { "x": 1 }, "delay_ms": 8_000 })).await?;
        client.put_queue("sums", &json!({ "format": "celery" })).await?;
        for payload in [json!({ "x": 1 }), json!({ "task": "a", "args": 5 })] {
            let refused = client.submit(&json!({ "queue": "sums", "payload": payload })).await;
            let failure = refused.err().context("it was accepted")?;
            ensure!(failure.status() == Some(422) && failure.problem("field").starts_with("payload"), "{failure}");
        }
        let later = json!({ "payload": { "task": "app.add" }, "delay_ms": 3_600_000 });
        let later = submitted(sandbox, "sums", later).await?;
        let refused = client.change(&later, &json!({ "payload": "other" })).await;
        ensure!(refused.as_ref().is_err_and(|failure| failure.status() == Some(422)), "{refused:?}");

        let dead = in_state(&client, &early, "dead").await?;
        let attempt = &dead.rest["attempts"][0];
        ensure!(attempt["reason"] == "discarded" && attempt["error"].to_string().contains("celery"), "{dead:?}");
        // Once the queue's format fits the payload, the task is delivered.
        sandbox.put_queues(&[("sums", json!({ "settle": "confirm" }))]).await?;
        client.retry(&early).await?;
        in_state(&client, &early, "succeeded").await?;
        let refused = client.put_queue("sums", &json!({ "format": "celery", "settle": "result" })).await;
        ensure!(refused.as_ref().is_err_and(|failure| failure.problem("field") == "settle"), "{refused:?}");
        Ok(())
    })
    .await;
}
