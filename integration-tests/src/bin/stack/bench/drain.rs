//! A consumer that costs as little as it can, because it shares the processors with the cluster that it measures.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use futures::StreamExt;
use integration_tests::{
    clock::now_us,
    consumer::{self, header, report},
};
use lapin::{
    Connection, ConnectionProperties,
    message::Delivery as Message,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use serde_json::Value;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout_at},
};

const PREFETCH: u16 = 4_000;
/// One ack covers at most this many messages, or those of `ACK_WITHIN`.
const ACK_MESSAGES: u32 = 100;
const ACK_WITHIN: Duration = Duration::from_millis(5);
const PAUSE: Duration = Duration::from_millis(50);

/// The parts of a message that a measurement needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub at_us: i64,
    /// The two numbers of the payload that the feed wrote.
    pub stamp_us: i64,
    pub serial: u64,
    /// The last 16 bits of the task's id.
    pub shard: Option<u16>,
    /// The number behind the task's id in the message's id; 0 where there is none.
    pub attempt: u32,
    /// When this attempt was due, as its header says.
    pub due_ms: Option<i64>,
    /// Duetime or RabbitMQ says that another copy may have come before.
    pub marked: bool,
}

/// A callback for each message.
pub(crate) type Eye = Arc<dyn Fn(Seen) + Send + Sync>;

/// Chooses the report on a message.
pub(crate) type Reporter = Arc<dyn Fn(Seen) -> Value + Send + Sync>;

/// Consumes until it is dropped. It waits for the queue to exist.
#[derive(Debug)]
pub(crate) struct Drain(JoinHandle<()>);

impl Drain {
    pub(crate) fn start(url: &str, queue: &str, eye: Eye) -> Self {
        Self::consuming(url, queue, eye, None)
    }

    /// Like `start`, for a queue with `settle = result`.
    pub(crate) fn reporting(url: &str, queue: &str, eye: Eye, reporter: Reporter) -> Self {
        Self::consuming(url, queue, eye, Some(reporter))
    }

    fn consuming(url: &str, queue: &str, eye: Eye, reporter: Option<Reporter>) -> Self {
        let (url, queue) = (url.to_owned(), queue.to_owned());
        Self(tokio::spawn(async move {
            loop {
                // The queue may not exist yet.
                consume(&url, &queue, &eye, reporter.as_ref()).await.ok();
                tokio::time::sleep(PAUSE).await;
            }
        }))
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn consume(url: &str, queue: &str, eye: &Eye, reporter: Option<&Reporter>) -> Result<()> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let (tag, options) = (ShortString::default(), BasicConsumeOptions::default());
    let mut messages = channel.basic_consume(queue.into(), tag, options, FieldTable::default()).await?;
    let mut unacked = 0;
    let mut last_tag = 0;
    let mut ack_at = Instant::now();
    loop {
        let next = match unacked {
            0 => Ok(messages.next().await),
            _ => timeout_at(ack_at, messages.next()).await,
        };
        match next {
            Ok(None) => return Ok(()),
            Ok(Some(message)) => {
                let message = message?;
                if unacked == 0 {
                    ack_at = Instant::now() + ACK_WITHIN;
                }
                unacked += 1;
                last_tag = message.delivery_tag;
                let seen = seen(&message);
                eye(seen);
                if let Some(reporter) = reporter {
                    // RabbitMQ confirms nothing on this channel: the attempt of a lost report times out.
                    drop(report(&channel, &message, &reporter(seen)).await?);
                }
                if unacked < ACK_MESSAGES {
                    continue;
                }
            }
            Err(_) => {}
        }
        unacked = 0;
        channel.basic_ack(last_tag, BasicAckOptions { multiple: true }).await?;
    }
}

fn seen(message: &Message) -> Seen {
    let at_us = now_us();
    let mut numbers = message.data.split(|byte| !byte.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let mut number = || {
        let digits = numbers.next()?;
        Some(digits.iter().fold(0_u64, |value, digit| value.wrapping_mul(10) + u64::from(digit - b'0')))
    };
    Seen {
        at_us,
        stamp_us: number().and_then(|stamp| i64::try_from(stamp).ok()).unwrap_or(0),
        serial: number().unwrap_or(0),
        shard: message.properties.correlation_id().as_ref().and_then(|id| shard_of(id.as_str())),
        attempt: message.properties.message_id().as_ref().and_then(|id| attempt_of(id.as_str())).unwrap_or(0),
        due_ms: consumer::number(message, "duetime-due-ms"),
        marked: message.redelivered || matches!(header(message, "duetime-redelivered"), Some(AMQPValue::Boolean(true))),
    }
}

/// A message's id is that of its task, a colon and the attempt.
fn attempt_of(id: &str) -> Option<u32> {
    id.rsplit_once(':')?.1.parse().ok()
}

/// A task's id ends with the number of its shard.
fn shard_of(id: &str) -> Option<u16> {
    u16::from_str_radix(id.get(id.len().checked_sub(4)?..)?, 16).ok()
}
