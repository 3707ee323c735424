//! Submissions over AMQP: to the queue for submissions, and to the delay exchange.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable},
};
use rand::RngExt;
use serde_json::json;

use crate::{
    chaos::{queues::DELAYS, stage::Stage},
    clock::now_ms,
    ledger::Number,
};

const ANSWER_WITHIN: Duration = Duration::from_secs(8);
const RECONNECT_EVERY: Duration = Duration::from_millis(300);
/// Each so many turns go to the delay exchange.
const DELAYED_EVERY: u64 = 3;

/// One publisher, which turns to the next broker when it loses its connection.
pub(super) async fn run(stage: Arc<Stage>, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    let urls = stage.sandbox.broker_urls();
    let mut count = 0;
    while !stage.is_over() {
        for url in &urls {
            let Ok(Ok((_connection, channel))) = tokio::time::timeout(ANSWER_WITHIN, open(url)).await else {
                tokio::time::sleep(RECONNECT_EVERY).await;
                continue;
            };
            while !stage.is_over() {
                ticks.tick().await;
                count += 1;
                if !publish(&stage, &channel, count).await {
                    break;
                }
            }
        }
    }
}

async fn open(url: &str) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(&format!("{url}?heartbeat=5"), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok((connection, channel))
}

/// Publishes one message; whether RabbitMQ confirmed it.
async fn publish(stage: &Stage, channel: &Channel, count: u64) -> bool {
    let mut random = stage.random("amqp", count);
    let delay_ms = random.random_range(100..2_000);
    let is_delayed = count.is_multiple_of(DELAYED_EVERY);
    let due_ms = now_ms() + i64::from(delay_ms);
    let number = stage.ledger().submitting(if is_delayed { DELAYS } else { "amqp" }, due_ms);
    stage.ledger().unknown(number);
    let (exchange, routing_key, headers) = if is_delayed {
        // Without a key, a message that comes twice from RabbitMQ waits twice. It comes twice after a fault only.
        stage.ledger().may_repeat(number);
        (DELAYS, "some.key", vec![("x-delay", AMQPValue::LongInt(delay_ms))])
    } else {
        let due_ms = AMQPValue::LongLongInt(due_ms);
        (
            "",
            "duetime.submit",
            vec![("duetime-queue", AMQPValue::LongString("amqp".into())), ("duetime-due-ms", due_ms)],
        )
    };
    let sent = send(channel, exchange, routing_key, number, &headers);
    let is_confirmed = tokio::time::timeout(ANSWER_WITHIN, sent).await.is_ok_and(|sent| sent.is_ok());
    if is_confirmed {
        stage.ledger().taken(number);
    }
    is_confirmed
}

async fn send(
    channel: &Channel,
    exchange: &str,
    routing_key: &str,
    number: Number,
    headers: &[(&str, AMQPValue)],
) -> Result<()> {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), value.clone());
    }
    let properties = BasicProperties::default()
        .with_headers(table)
        .with_message_id(format!("message {number}").into())
        .with_content_type("application/json".into())
        .with_delivery_mode(2);
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let body = json!({ "n": number }).to_string();
    let sent = channel.basic_publish(exchange.into(), routing_key.into(), options, body.as_bytes(), properties).await?;
    let confirmed = sent.await?;
    ensure!(confirmed.is_ack() && confirmed.take_message().is_none(), "RabbitMQ does not take the message");
    Ok(())
}
