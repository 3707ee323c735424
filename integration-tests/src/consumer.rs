//! A consumer of one queue. It records each message in the ledger before it answers, and answers by a script.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    message::Delivery as Message,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicPublishOptions, BasicQosOptions,
        BasicRejectOptions,
    },
    types::{AMQPValue, FieldTable, ShortString},
};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    clock::now_us,
    ledger::{Delivery, Ledger},
};

const PREFETCH: u16 = 500;
const PAUSE: Duration = Duration::from_millis(30);

/// One step of a consumer's answer to a message.
#[derive(Clone, Debug)]
pub enum Step {
    Ack,
    /// Without requeue: a failed attempt.
    Reject,
    /// Back into the queue by `basic.reject`.
    Requeue,
    /// Back into the queue by `basic.nack`, which RabbitMQ counts differently from 4.3 on.
    RequeueByNack,
    /// A report to the message's `reply_to`, as an application would send it.
    Report(Value),
    Wait(Duration),
}

/// A consumer's steps for a message, in order. Without any step the message stays unacknowledged.
#[derive(Clone, Debug, Default)]
pub struct Answer(pub Vec<Step>);

impl Answer {
    pub fn ack() -> Self {
        Self(vec![Step::Ack])
    }

    pub fn reject() -> Self {
        Self(vec![Step::Reject])
    }

    /// One report with this status, then an ack.
    pub fn report(status: &str) -> Self {
        Self(vec![Step::Report(json!({ "status": status })), Step::Ack])
    }

    /// Holds the message for ever.
    pub fn silence() -> Self {
        Self::default()
    }
}

/// Chooses the answer to a message.
pub type Script = Arc<dyn Fn(&Delivery) -> Answer + Send + Sync>;

/// Consumes until it is dropped. It reconnects when it loses the connection, the channel or the queue.
#[derive(Debug)]
pub struct Consumer {
    attached: watch::Receiver<bool>,
    work: JoinHandle<()>,
}

impl Consumer {
    /// Acks everything.
    pub fn start(url: &str, queue: &str, ledger: &Arc<Ledger>) -> Self {
        Self::scripted(url, queue, ledger, Arc::new(|_| Answer::ack()))
    }

    pub fn scripted(url: &str, queue: &str, ledger: &Arc<Ledger>, script: Script) -> Self {
        let (attach, attached) = watch::channel(false);
        let desk =
            Desk { url: format!("{url}?heartbeat=5"), queue: queue.to_owned(), ledger: Arc::clone(ledger), script };
        let work = tokio::spawn(async move {
            loop {
                // The broker may be down, or the queue may not exist yet: both pass.
                desk.consume(&attach).await.ok();
                attach.send_replace(false);
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { attached, work }
    }

    /// Waits until it is consuming.
    pub async fn attached(&self, within: Duration) -> Result<()> {
        let mut attached = self.attached.clone();
        tokio::time::timeout(within, attached.wait_for(|attached| *attached))
            .await
            .with_context(|| format!("no consumer attached within {within:?}"))?
            .context("the consumer ended")?;
        Ok(())
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.work.abort();
    }
}

struct Desk {
    url: String,
    queue: String,
    ledger: Arc<Ledger>,
    script: Script,
}

impl Desk {
    async fn consume(&self, attach: &watch::Sender<bool>) -> Result<()> {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let mut messages = channel
            .basic_consume(
                self.queue.as_str().into(),
                ShortString::default(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        attach.send_replace(true);
        while let Some(message) = messages.next().await {
            let at_us = now_us();
            let message = message?;
            let delivery = read(&message, &self.queue, at_us);
            let answer = if is_warm_up(&message) { warm_up_answer(&message) } else { (self.script)(&delivery) };
            self.ledger.delivered(delivery);
            self.answer(&channel, message, answer).await?;
        }
        Ok(())
    }

    /// Answers at once when the script has no pauses; otherwise in a task beside the stream.
    async fn answer(&self, channel: &Channel, message: Message, answer: Answer) -> Result<()> {
        if answer.0.iter().any(|step| matches!(step, Step::Wait(_))) {
            let channel = channel.clone();
            tokio::spawn(async move { perform(&channel, &message, answer).await.ok() });
            return Ok(());
        }
        perform(channel, &message, answer).await
    }
}

async fn perform(channel: &Channel, message: &Message, answer: Answer) -> Result<()> {
    for step in answer.0 {
        match step {
            Step::Ack => {
                message.acker.ack(BasicAckOptions::default()).await?;
            }
            Step::Reject => {
                message.acker.reject(BasicRejectOptions { requeue: false }).await?;
            }
            Step::Requeue => {
                message.acker.reject(BasicRejectOptions { requeue: true }).await?;
            }
            Step::RequeueByNack => {
                message.acker.nack(BasicNackOptions { requeue: true, multiple: false }).await?;
            }
            Step::Report(body) => report(channel, message, &body).await?,
            Step::Wait(pause) => tokio::time::sleep(pause).await,
        }
    }
    Ok(())
}

/// Reports as the contract tells consumers to: to the default exchange and the queue in `reply_to`, naming the task
/// and the attempt.
async fn report(channel: &Channel, message: &Message, body: &Value) -> Result<()> {
    let to = message.properties.reply_to().clone().context("the message names no reply_to")?;
    let task = message.properties.correlation_id().clone().context("the message names no correlation_id")?;
    let mut headers = FieldTable::default();
    for name in ["duetime-attempt", "duetime-receipt"] {
        if let Some(value) = header(message, name) {
            headers.insert(name.into(), value.clone());
        }
    }
    channel
        .basic_publish(
            ShortString::default(),
            to,
            BasicPublishOptions::default(),
            body.to_string().as_bytes(),
            BasicProperties::default()
                .with_correlation_id(task)
                .with_content_type("application/json".into())
                .with_delivery_mode(2)
                .with_headers(headers),
        )
        .await?;
    Ok(())
}

/// The first task through a fresh queue only shows that the path works; no script sees it.
fn is_warm_up(message: &Message) -> bool {
    serde_json::from_slice::<Value>(&message.data).is_ok_and(|payload| payload["warm_up"] == true)
}

fn warm_up_answer(message: &Message) -> Answer {
    if message.properties.reply_to().is_some() { Answer::report("succeeded") } else { Answer::ack() }
}

fn read(message: &Message, queue: &str, at_us: i64) -> Delivery {
    let text = |value: &Option<ShortString>| value.as_ref().map(ToString::to_string).unwrap_or_default();
    let payload: Value = serde_json::from_slice(&message.data).unwrap_or(Value::Null);
    Delivery {
        at_us,
        queue: queue.to_owned(),
        message_id: text(message.properties.message_id()),
        task: text(message.properties.correlation_id()),
        attempt: number(message, "duetime-attempt").and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or(0),
        due_ms: number(message, "duetime-due-ms"),
        marked: matches!(header(message, "duetime-redelivered"), Some(AMQPValue::Boolean(true))),
        by_broker: message.redelivered,
        number: payload["n"].as_u64(),
    }
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a AMQPValue> {
    message.properties.headers().as_ref()?.inner().get(name)
}

fn number(message: &Message, name: &str) -> Option<i64> {
    match header(message, name)? {
        AMQPValue::LongInt(number) => Some(i64::from(*number)),
        AMQPValue::LongLongInt(number) => Some(*number),
        _ => None,
    }
}
