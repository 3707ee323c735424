//! A consumer that costs as little as it can, because it shares the processors with the cluster that it measures.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use futures::{StreamExt, future::try_join_all};
use integration_tests::{
    clock::now_us,
    consumer::{self, header, report},
};
use lapin::{
    Channel, Connection, ConnectionProperties, Consumer, PublisherConfirm,
    message::Delivery as Message,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

const PREFETCH: u16 = 4_000;
/// One ack covers at most this many messages, or those of `ACK_WITHIN`.
const ACK_MESSAGES: u32 = 100;
const ACK_WITHIN: Duration = Duration::from_millis(5);
/// Batches whose reports wait for their confirms.
const UNCONFIRMED_BATCHES: usize = 100;
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

/// Reports on each task, for a queue with `settle = result`.
#[derive(Debug)]
pub(crate) struct Reporter {
    choose: fn(Seen) -> Value,
    /// A batch of messages waits so long for its reports.
    within: Duration,
    /// The most messages that waited for their reports at one time.
    most_waiting: AtomicUsize,
}

impl Reporter {
    /// Reports success as soon as a lean consumer does.
    pub(crate) fn lean() -> Arc<Self> {
        Self::working_for(ACK_WITHIN)
    }

    /// Reports success as if tasks took so long.
    pub(crate) fn working_for(within: Duration) -> Arc<Self> {
        Self::new(|_| json!({ "status": "succeeded" }), within)
    }

    /// Reports on each message what `choose` says.
    pub(crate) fn choosing(choose: fn(Seen) -> Value) -> Arc<Self> {
        Self::new(choose, ACK_WITHIN)
    }

    fn new(choose: fn(Seen) -> Value, within: Duration) -> Arc<Self> {
        Arc::new(Self { choose, within, most_waiting: AtomicUsize::new(0) })
    }

    pub(crate) fn most_waiting(&self) -> usize {
        self.most_waiting.load(Ordering::Relaxed)
    }

    async fn report(&self, channel: &Channel, messages: &[(Seen, Message)]) -> Result<Vec<PublisherConfirm>> {
        self.most_waiting.fetch_max(messages.len(), Ordering::Relaxed);
        let reports =
            messages.iter().map(async |(seen, message)| report(channel, message, &(self.choose)(*seen)).await);
        try_join_all(reports).await
    }
}

/// Consumes until it is dropped. It waits for the queue to exist.
#[derive(Debug)]
pub(crate) struct Drain(JoinHandle<()>);

impl Drain {
    pub(crate) fn start(url: &str, queue: &str, eye: Eye) -> Self {
        Self::consuming(url, queue, eye, None)
    }

    /// Also reports each task, and acks it once RabbitMQ has confirmed the report.
    pub(crate) fn reporting(url: &str, queue: &str, eye: Eye, reporter: &Arc<Reporter>) -> Self {
        Self::consuming(url, queue, eye, Some(Arc::clone(reporter)))
    }

    fn consuming(url: &str, queue: &str, eye: Eye, reporter: Option<Arc<Reporter>>) -> Self {
        let (url, queue) = (url.to_owned(), queue.to_owned());
        Self(tokio::spawn(async move {
            loop {
                // The queue may not exist yet.
                consume(&url, &queue, &eye, reporter.as_deref()).await.ok();
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
    if reporter.is_some() {
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
    }
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let (tag, options) = (ShortString::default(), BasicConsumeOptions::default());
    let messages = channel.basic_consume(queue.into(), tag, options, FieldTable::default()).await?;
    let (sender, batches) = mpsc::channel(UNCONFIRMED_BATCHES);
    tokio::try_join!(receive(&channel, messages, eye, reporter, sender), ack(&channel, batches)).map(drop)
}

/// Messages that are acked together, once their reports are confirmed.
#[derive(Debug)]
struct Received {
    last_tag: u64,
    reports: Vec<PublisherConfirm>,
}

async fn receive(
    channel: &Channel,
    mut messages: Consumer,
    eye: &Eye,
    reporter: Option<&Reporter>,
    batches: mpsc::Sender<Received>,
) -> Result<()> {
    let within = reporter.map_or(ACK_WITHIN, |reporter| reporter.within);
    let (mut unacked, mut last_tag, mut unreported) = (0, 0, Vec::new());
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
                ack_at = if unacked == 0 { Instant::now() + within } else { ack_at };
                unacked += 1;
                last_tag = message.delivery_tag;
                let seen = seen(&message);
                eye(seen);
                if reporter.is_some() {
                    unreported.push((seen, message));
                }
                if unacked < ACK_MESSAGES {
                    continue;
                }
            }
            Err(_) => {}
        }
        unacked = 0;
        let reports = match reporter {
            Some(reporter) => reporter.report(channel, &unreported).await?,
            None => Vec::new(),
        };
        unreported.clear();
        batches.send(Received { last_tag, reports }).await?;
    }
}

async fn ack(channel: &Channel, mut batches: mpsc::Receiver<Received>) -> Result<()> {
    while let Some(Received { last_tag, reports }) = batches.recv().await {
        for report in reports {
            ensure!(report.await?.is_ack(), "RabbitMQ does not keep a report");
        }
        channel.basic_ack(last_tag, BasicAckOptions { multiple: true }).await?;
    }
    Ok(())
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
