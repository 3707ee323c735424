//! Several tenants at one broker, and their permission to report on tasks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration_tests::sandbox::Sandbox;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    message::BasicGetMessage,
    options::{BasicAckOptions, BasicGetOptions, BasicPublishOptions, BasicRejectOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable},
};
use serde_json::{Value, json};

use crate::{in_state, scenario, until};

const SOON: Duration = Duration::from_secs(60);
const SUCCEEDED: &[u8] = br#"{"status":"succeeded"}"#;

/// A tenant's client at the broker.
pub(super) struct Hand {
    pub(super) channel: Channel,
    url: String,
    _connection: Connection,
}

/// The parts of a delivery that a report needs.
pub(super) struct Taken {
    pub(super) message: BasicGetMessage,
    pub(super) task: String,
    pub(super) receipt: Option<String>,
    /// Kept open, because closing it would return the message.
    _way: (Channel, Connection),
}

impl Hand {
    pub(super) async fn open(url: &str) -> Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { channel, url: url.to_owned(), _connection: connection })
    }

    pub(super) async fn publish(
        &self,
        exchange: &str,
        key: &str,
        body: &[u8],
        properties: BasicProperties,
    ) -> Result<()> {
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let sent = self.channel.basic_publish(exchange.into(), key.into(), options, body, properties).await?;
        let confirmed = sent.await?;
        ensure!(confirmed.is_ack() && confirmed.take_message().is_none(), "`{exchange}` {key} does not take it");
        Ok(())
    }

    pub(super) async fn take(&self, queue: &str) -> Result<Taken> {
        // A queue comes into being with its first message, and may answer slightly later; either error closes the
        // connection.
        let (message, way) = until(&format!("a message in {queue}"), SOON, || async {
            let connection = Connection::connect(&self.url, ConnectionProperties::default()).await.ok()?;
            let channel = connection.create_channel().await.ok()?;
            let message = channel.basic_get(queue.into(), BasicGetOptions::default()).await.ok()??;
            Some((message, (channel, connection)))
        })
        .await?;
        let task = message.properties.correlation_id().as_ref().context("no correlation id")?.to_string();
        let receipt = match header(&message.properties, "duetime-receipt") {
            Some(AMQPValue::LongString(receipt)) => Some(receipt.to_string()),
            _ => None,
        };
        Ok(Taken { message, task, receipt, _way: way })
    }
}

fn header<'a>(properties: &'a BasicProperties, name: &str) -> Option<&'a AMQPValue> {
    properties.headers().as_ref()?.inner().get(name)
}

/// The properties of a report on the first attempt of a task.
pub(super) fn report(task: &str, receipt: Option<&str>) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("duetime-attempt".into(), AMQPValue::LongInt(1));
    if let Some(receipt) = receipt {
        headers.insert("duetime-receipt".into(), AMQPValue::LongString(receipt.into()));
    }
    BasicProperties::default().with_correlation_id(task.into()).with_headers(headers)
}

pub(super) fn for_queue(queue: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("duetime-queue".into(), AMQPValue::LongString(queue.into()));
    BasicProperties::default().with_headers(headers)
}

/// Waits until this many messages have been quarantined on all nodes together.
async fn quarantined(sandbox: &Sandbox, count: f64) -> Result<()> {
    until(&format!("{count} messages are quarantined"), SOON, || async {
        let mut sum = 0.0;
        for client in sandbox.clients() {
            sum += client.metric("duetime_messages_quarantined_total").await.ok()??;
        }
        (sum == count).then_some(())
    })
    .await
}

async fn submitted(sandbox: &Sandbox, queue: &str) -> Result<String> {
    Ok(sandbox.client(0).submit(&json!({ "queue": queue })).await?.id)
}

fn policy(receipt: &str) -> Value {
    json!({ "settle": "result", "receipt": receipt, "timeout_ms": 120_000, "retry": { "kind": "fixed", "delay_ms": 100 } })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_counts_with_its_receipt_and_for_the_queue_it_is_addressed_to() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        sandbox.client(0).put_queue("strict", &policy("required")).await?;
        sandbox.client(0).put_queue("loose", &policy("optional")).await?;
        let hand = Hand::open(&sandbox.amqp_url()).await?;
        let id = submitted(sandbox, "strict").await?;
        let strict = hand.take("strict").await?;
        ensure!(strict.task == id);
        let receipt = strict.receipt.as_deref().context("a delivery has its receipt")?;

        let wrong = report(&id, Some(&receipt.replace(|c: char| c.is_ascii_lowercase(), "x")));
        hand.publish("", "duetime.results", SUCCEEDED, report(&id, None)).await?;
        hand.publish("", "duetime.results", SUCCEEDED, wrong).await?;
        let for_another = report(&id, Some(receipt)).with_user_id("guest".into());
        hand.publish("duetime.in", "result.loose", SUCCEEDED, for_another).await?;
        let rejection = BasicProperties::default().with_message_id(format!("{id}:1").into());
        hand.publish("duetime.rejected", "", b"", rejection).await?;
        quarantined(sandbox, 4.0).await?;
        let noted = || async {
            let list: Value =
                sandbox.client(0).call(reqwest::Method::GET, "/v1/audit?who=amqp:guest", None).await.ok()?;
            list.to_string().contains("names the queue `loose`").then_some(())
        };
        until("the audit names the user", SOON, noted).await?;
        let task = sandbox.client(1).get(&id).await?;
        ensure!(task.state == "delivered" && !task.rest.contains_key("attempts"), "{task:?}");
        hand.publish("duetime.in", "result.strict", SUCCEEDED, report(&id, Some(receipt))).await?;
        in_state(&sandbox.client(0), &id, "succeeded").await?;

        // A rejection returns the receipt by itself.
        let id = submitted(sandbox, "strict").await?;
        let rejected = hand.take("strict").await?;
        rejected.message.reject(BasicRejectOptions { requeue: false }).await?;
        let again = hand.take("strict").await?;
        ensure!(again.message.properties.message_id().as_ref().is_some_and(|name| name.as_str() == format!("{id}:2")));
        let user = report(&id, again.receipt.as_deref()).with_user_id("guest".into());
        let mut headers = user.headers().clone().context("it has some")?;
        headers.insert("duetime-attempt".into(), AMQPValue::LongInt(2));
        hand.publish("", "duetime.results", br#"{"status":"failed"}"#, user.with_headers(headers)).await?;
        let third = hand.take("strict").await?;
        let task = sandbox.client(0).get(&id).await?;
        let attempts = &task.rest["attempts"];
        ensure!(attempts[0]["reason"] == "rejected" && attempts[1]["by"] == "guest", "{attempts}");
        third.message.ack(BasicAckOptions::default()).await?;
        sandbox.client(0).report(&id, &json!({ "attempt": 3, "status": "succeeded" })).await?;

        // Where no receipt is required, any client that may write to the results may report.
        let id = submitted(sandbox, "loose").await?;
        hand.publish("", "duetime.results", SUCCEEDED, report(&id, None)).await?;
        in_state(&sandbox.client(0), &id, "succeeded").await?;
        quarantined(sandbox, 4.0).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_default_door_closed_everything_comes_by_the_exchange_that_permissions_divide() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let node = sandbox.node(0);
        node.set("DUETIME_AMQP__DEFAULT_DOOR", "false");
        node.stop(SOON).await?;
        node.start()?;
        node.wait_ready(SOON).await?;
        sandbox.client(0).put_queue("mail", &policy("optional")).await?;
        let hand = Hand::open(&sandbox.amqp_url()).await?;

        hand.publish("", "duetime.submit", b"1", for_queue("mail")).await?;
        hand.publish("duetime.in", "submit.bank", b"2", for_queue("mail")).await?;
        let refused = [hand.take_aside().await?, hand.take_aside().await?].join("; ");
        ensure!(refused.contains("default_door") && refused.contains("bank"), "{refused}");
        hand.publish("duetime.in", "submit.mail", b"3", BasicProperties::default()).await?;
        let taken = hand.take("mail").await?;
        ensure!(taken.message.data == b"3", "{:?}", taken.message.data);

        let receipt = taken.receipt.as_deref();
        hand.publish("", "duetime.results", SUCCEEDED, report(&taken.task, receipt)).await?;
        quarantined(sandbox, 1.0).await?;
        hand.publish("duetime.in", "result.mail", SUCCEEDED, report(&taken.task, receipt)).await?;
        in_state(&sandbox.client(0), &taken.task, "succeeded").await?;
        Ok(())
    })
    .await;
}

impl Hand {
    /// The reason for which the next message was set aside.
    pub(super) async fn take_aside(&self) -> Result<String> {
        let queue = "duetime.submit.invalid";
        let message = until("a message is set aside", SOON, || async {
            self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.ok().flatten()
        })
        .await?;
        match header(&message.properties, "duetime-error") {
            Some(AMQPValue::LongString(why)) => Ok(why.to_string()),
            other => anyhow::bail!("{other:?}"),
        }
    }
}
