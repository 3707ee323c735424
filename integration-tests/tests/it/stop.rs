//! A running task that is asked to stop: its consumer learns of it with its next heartbeat.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use integration_tests::{client::Client, consumer::Answer, sandbox::Sandbox};
use lapin::{
    BasicProperties, Connection, ConnectionProperties,
    options::{BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions},
    types::FieldTable,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{id_of, in_state, scenario, submit_now};

const SOON: Duration = Duration::from_secs(60);

async fn stop(client: &Client, id: &str) -> Result<String> {
    let answer: Value = client.call(Method::POST, &format!("/v1/tasks/{id}/stop"), None).await?;
    Ok(answer["outcome"].as_str().context("an outcome")?.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_is_told_over_http_and_over_amqp_and_the_task_ends_cancelled() {
    scenario(Sandbox::builder(), async |sandbox| {
        let policy = json!({ "settle": "result", "max_attempts": 5, "timeout_ms": 60_000 });
        sandbox.consume("sums", &policy, |_| Answer::ack()).await?;
        let client = sandbox.client(0);
        let number = submit_now(&client, &sandbox.ledger, "sums", &Value::Null).await?;
        sandbox.ledger.expect_attempts(number, 1);
        sandbox.ledger.wait_delivered(number, 1, SOON).await?;
        let id = id_of(&sandbox.ledger, number)?;
        let beat = json!({ "attempt": 1, "status": "running" });
        ensure!(client.report(&id, &beat).await?["stopping"].is_null(), "no stop is requested yet");
        let refused = client.cancel(&id).await;
        ensure!(refused.as_ref().is_err_and(|failure| failure.status() == Some(409)), "{refused:?}");
        ensure!(stop(&sandbox.client(1), &id).await? == "stopping", "it is out");
        ensure!(client.report(&id, &beat).await?["stopping"] == true, "answered over HTTP");

        // The same stop, with a consumer that sends heartbeats over AMQP.
        let connection = Connection::connect(&sandbox.amqp_url(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
        let mine = channel.queue_declare("".into(), options, FieldTable::default()).await?.name().clone();
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let mut orders = channel.basic_consume(mine.clone(), "".into(), options, FieldTable::default()).await?;
        let mut headers = FieldTable::default();
        headers.insert("duetime-attempt".into(), 1_i32.into());
        let properties = BasicProperties::default()
            .with_correlation_id(id.as_str().into())
            .with_reply_to(mine)
            .with_headers(headers);
        let body = br#"{"status":"running"}"#;
        channel
            .basic_publish("".into(), "duetime.results".into(), BasicPublishOptions::default(), body, properties)
            .await?;
        let order = tokio::time::timeout(SOON, orders.next()).await?.context("the queue is there")??;
        let told: Value = serde_json::from_slice(&order.data)?;
        ensure!(told == json!({ "id": id, "attempt": 1, "stopping": true }), "{told}");

        client.report(&id, &json!({ "attempt": 1, "status": "failed", "status_msg": "stopped" })).await?;
        in_state(&client, &id, "cancelled").await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_nobody_works_on_is_cancelled_at_once_and_one_without_reports_cannot_be_stopped() {
    scenario(Sandbox::builder(), async |sandbox| {
        let client = sandbox.client(0);
        let later = sandbox.ledger.submitting("mail", 0);
        let task = client.submit(&json!({ "queue": "mail", "delay_ms": 3_600_000, "payload": { "n": later } })).await?;
        sandbox.ledger.accepted(later, &task.id);
        ensure!(stop(&client, &task.id).await? == "cancelled", "it was never out");
        sandbox.ledger.cancelled(later, "cancelled");
        sandbox.consume("mail", &json!({ "settle": "reject", "timeout_ms": 60_000 }), |_| Answer::ack()).await?;
        let number = submit_now(&client, &sandbox.ledger, "mail", &Value::Null).await?;
        sandbox.ledger.wait_delivered(number, 1, SOON).await?;
        let refused = stop(&client, &id_of(&sandbox.ledger, number)?).await;
        ensure!(
            refused.as_ref().is_err_and(|failure| failure.to_string().contains("cannot be asked to stop")),
            "{refused:?}"
        );
        Ok(())
    })
    .await;
}
