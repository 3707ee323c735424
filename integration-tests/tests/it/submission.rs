//! Tasks submitted over AMQP.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration_tests::{clock::now_ms, ledger::Number, sandbox::Sandbox};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable},
};
use serde_json::json;

use crate::{confirm, scenario, until};

const SOON: Duration = Duration::from_secs(30);

struct Producer {
    channel: Channel,
    connection: Connection,
}

impl Producer {
    async fn open(sandbox: &Sandbox) -> Result<Self> {
        let connection = Connection::connect(&sandbox.amqp_url(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { channel, connection })
    }

    /// The next message of a queue, if there is one. The queue exists only once a node has published to it, and a
    /// get from a missing queue closes its channel.
    async fn get(&self, queue: &str) -> Result<Option<String>> {
        let channel = self.connection.create_channel().await?;
        let got = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await;
        if got.is_ok() {
            channel.close(200, "done".into()).await?;
        }
        Ok(got.ok().flatten().map(|got| String::from_utf8_lossy(&got.data).into_owned()))
    }

    async fn publish(&self, body: &[u8], headers: &[(&str, AMQPValue)]) -> Result<()> {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), value.clone());
        }
        let properties = BasicProperties::default()
            .with_headers(table)
            .with_content_type("application/json".into())
            .with_expiration("600000".into())
            .with_delivery_mode(2);
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let sent = self.channel.basic_publish("".into(), "duetime.submit".into(), options, body, properties).await?;
        let confirmed = sent.await?;
        ensure!(confirmed.is_ack() && confirmed.take_message().is_none(), "duetime.submit does not take it");
        Ok(())
    }

    /// Submits one task, confirmed by the broker: from then on it may not be lost.
    async fn submit(&self, sandbox: &Sandbox, queue: &str, due_ms: i64) -> Result<Number> {
        let number = sandbox.ledger.submitting(queue, due_ms);
        let body = json!({ "n": number }).to_string();
        let headers = [("duetime-queue", long(queue)), ("duetime-due-ms", AMQPValue::LongLongInt(due_ms))];
        self.publish(body.as_bytes(), &headers).await?;
        Ok(number)
    }
}

fn long(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// Waits until the tasks arrive. The node gives a message's task its id, so the ledger learns it from the delivery.
async fn arrive(sandbox: &Sandbox, numbers: &[Number]) -> Result<()> {
    for number in numbers {
        let first = until(&format!("task {number} arrives"), SOON, || async {
            sandbox.ledger.arrivals().into_iter().find(|delivery| delivery.number == Some(*number))
        })
        .await?;
        sandbox.ledger.accepted(*number, &first.task);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_submitted_over_amqp_arrive_on_time_and_once() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let producer = Producer::open(sandbox).await?;
        let mut numbers = Vec::new();
        for n in 0..600 {
            numbers.push(producer.submit(sandbox, "mail", now_ms() + n % 7 * 400).await?);
        }
        arrive(sandbox, &numbers).await?;
        let mut counted = 0.0;
        for client in sandbox.clients() {
            let metrics = client.send(reqwest::Method::GET, "/metrics", None).await?.text().await?;
            let series = "duetime_tasks_submitted_total{queue=\"mail\",source=\"amqp\"} ";
            let line = metrics.lines().find_map(|line| line.strip_prefix(series));
            counted += line.map_or(Ok(0.0), str::parse::<f64>)?;
        }
        ensure!(counted >= 600.0, "{counted} counted");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_a_task_is_set_aside_with_the_reason() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let producer = Producer::open(sandbox).await?;
        let queue = ("duetime-queue", long("mail"));
        let cc = ("CC", AMQPValue::FieldArray(vec![long("x")].into()));
        for (body, headers, reason) in [
            (b"no queue".as_slice(), vec![], "duetime-queue"),
            (b"no number", vec![queue.clone(), ("duetime-delay-ms", long("soon"))], "duetime-delay-ms"),
            (
                b"no such mode",
                vec![queue.clone(), ("duetime-key", long("k")), ("duetime-on-duplicate", long("maybe"))],
                "maybe",
            ),
            (b"elsewhere", vec![queue, ("x-delay", AMQPValue::LongInt(5)), cc], "CC"),
        ] {
            producer.publish(body, &headers).await?;
            let aside = until("the message is set aside", SOON, || async {
                let got = producer.channel.basic_get("duetime.submit.invalid".into(), BasicGetOptions { no_ack: true });
                got.await.ok().flatten()
            })
            .await?;
            let said = aside.properties.headers().clone().context("it has headers")?;
            let Some(AMQPValue::LongString(error)) = said.inner().get("duetime-error") else {
                anyhow::bail!("no reason: {said:?}")
            };
            ensure!(error.to_string().contains(reason), "{error} does not name {reason}");
            ensure!(aside.data == body && said.inner().len() >= headers.len(), "{said:?}");
            // With an expiration it would vanish.
            ensure!(
                aside.properties.expiration().is_none()
                    && said.contains_key("duetime-expiration")
                    && !said.contains_key("CC")
            );
            ensure!(aside.properties.content_type().as_ref().is_some_and(|of| of.as_str() == "application/json"));
        }
        let counted = sandbox.client(0).metric("duetime_submissions_invalid_total").await?;
        ensure!(counted == Some(4.0), "{counted:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_between_the_commit_and_the_ack_loses_nothing() {
    // The message is delivered again and becomes a second task: the promise is at least once.
    scenario(Sandbox::builder().failpoints(0, "after_receive=2*off->return"), async |sandbox| {
        let fault = sandbox.ledger.fault("a node dies between commit and ack");
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let producer = Producer::open(sandbox).await?;
        let mut bodies = std::collections::BTreeSet::new();
        let deadline = tokio::time::Instant::now() + SOON;
        for n in 0.. {
            if !sandbox.node(0).is_running() {
                break;
            }
            ensure!(tokio::time::Instant::now() < deadline, "node 0 does not die");
            let body = json!({ "survivor": n }).to_string();
            producer.publish(body.as_bytes(), &[("duetime-queue", long("survivors"))]).await?;
            bodies.insert(body);
        }
        until("all messages arrive", SOON, async || {
            while let Ok(Some(body)) = producer.get("survivors").await {
                bodies.remove(&body);
            }
            bodies.is_empty().then_some(())
        })
        .await?;
        sandbox.ledger.heal(fault);
        Ok(())
    })
    .await;
}
