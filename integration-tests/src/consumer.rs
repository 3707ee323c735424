//! A consumer of one queue. It records each message in the ledger before it answers, and answers by a script.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, PublisherConfirm,
    message::Delivery as Message,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicPublishOptions, BasicQosOptions,
        BasicRejectOptions, ConfirmSelectOptions,
    },
    types::{AMQPValue, FieldTable, ShortString},
};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    clock::now_us,
    ledger::{Delivery, Ledger, Reply},
};

const PREFETCH: u16 = 500;
const ATTACHED_WITHIN: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(30);

/// The header by which a message that came through a delay exchange names its task and attempt.
const WAITED: &str = "duetime-message-id";

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
    /// The same, and waits for RabbitMQ's confirm: an ack before it could lose the report with a broker.
    ConfirmedReport(Value),
    Wait(Duration),
    /// Records in the ledger that work begins in this lane.
    Begin(String),
    /// Records that work is about to end in this lane.
    End(String),
}

impl Step {
    /// The answer that it sends, if any.
    fn reply(&self) -> Option<Reply> {
        match self {
            Self::Ack => Some(Reply::Acked),
            Self::Reject => Some(Reply::Rejected),
            Self::Requeue | Self::RequeueByNack => Some(Reply::Requeued),
            Self::Report(body) | Self::ConfirmedReport(body) => Reply::of_status(body["status"].as_str()?),
            Self::Wait(_) | Self::Begin(_) | Self::End(_) => None,
        }
    }
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
    queue: String,
    attached: watch::Receiver<bool>,
    held: watch::Sender<bool>,
    work: JoinHandle<()>,
}

impl Consumer {
    /// Acks everything.
    pub fn start(url: &str, queue: &str, ledger: &Arc<Ledger>) -> Self {
        Self::scripted(url, queue, ledger, Arc::new(|_| Answer::ack()))
    }

    pub fn scripted(url: &str, queue: &str, ledger: &Arc<Ledger>, script: Script) -> Self {
        Self::connecting(vec![url.to_owned()], queue, ledger, script, false)
    }

    /// Tries one broker after the other whenever it has to connect, and has its reports confirmed.
    pub fn of_cluster(urls: Vec<String>, queue: &str, ledger: &Arc<Ledger>, script: Script) -> Self {
        Self::connecting(urls, queue, ledger, script, true)
    }

    fn connecting(urls: Vec<String>, queue: &str, ledger: &Arc<Ledger>, script: Script, confirms: bool) -> Self {
        let (attach, attached) = watch::channel(false);
        let (held, mut hold) = watch::channel(false);
        let desk = Desk { queue: queue.to_owned(), ledger: Arc::clone(ledger), script, confirms };
        let work = tokio::spawn(async move {
            for url in urls.iter().cycle() {
                hold.wait_for(|is_held| !is_held).await.ok();
                let url = format!("{url}?heartbeat=5");
                // The broker may be down, or the queue may not exist yet: both pass.
                tokio::select! {
                    _ = desk.consume(&url, &attach) => {}
                    _ = hold.wait_for(|is_held| *is_held) => {}
                }
                attach.send_replace(false);
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { queue: queue.to_owned(), attached, held, work }
    }

    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Disconnects it until it is let go: what it has not acked goes back into the queue.
    pub fn hold(&self, is_held: bool) {
        self.held.send_replace(is_held);
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
    queue: String,
    ledger: Arc<Ledger>,
    script: Script,
    confirms: bool,
}

impl Desk {
    async fn consume(&self, url: &str, attach: &watch::Sender<bool>) -> Result<()> {
        // A frozen broker takes the connection and never greets. One without the leader of the queue may be silent too.
        let attaching = tokio::time::timeout(ATTACHED_WITHIN, self.attach(url));
        let (channel, mut messages, _connection) = attaching.await??;
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

    /// The connection ends when it is dropped.
    async fn attach(&self, url: &str) -> Result<(Channel, lapin::Consumer, Connection)> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        if self.confirms {
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
        }
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let consume = channel.basic_consume(
            self.queue.as_str().into(),
            ShortString::default(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let messages = consume.await?;
        Ok((channel, messages, connection))
    }

    /// Answers at once when the script has no pauses; otherwise in a task beside the stream.
    async fn answer(&self, channel: &Channel, message: Message, answer: Answer) -> Result<()> {
        if answer.0.iter().any(|step| matches!(step, Step::Wait(_))) {
            let (channel, ledger) = (channel.clone(), Arc::clone(&self.ledger));
            tokio::spawn(async move { perform(&channel, &ledger, &message, answer).await.ok() });
            return Ok(());
        }
        perform(channel, &self.ledger, &message, answer).await
    }
}

async fn perform(channel: &Channel, ledger: &Ledger, message: &Message, answer: Answer) -> Result<()> {
    for step in answer.0 {
        let reply = step.reply();
        if let Some(reply) = reply {
            ledger.answers(&message_id(message), reply);
        }
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
            Step::Report(body) => drop(report(channel, message, &body).await?),
            Step::ConfirmedReport(body) => {
                let confirm = report(channel, message, &body).await?.await?;
                ensure!(confirm.is_ack(), "RabbitMQ does not keep the report");
                if reply == Some(Reply::Succeeded) {
                    ledger.answers(&message_id(message), Reply::Kept);
                }
            }
            Step::Begin(lane) => ledger.begins(&lane, &message_id(message)),
            Step::End(lane) => ledger.ends(&lane, &message_id(message)),
            Step::Wait(pause) => tokio::time::sleep(pause).await,
        }
    }
    Ok(())
}

/// Reports as the contract tells consumers to: to the default exchange and the queue in `reply_to`, naming the task
/// and the attempt.
pub async fn report(channel: &Channel, message: &Message, body: &Value) -> Result<PublisherConfirm> {
    let to = message.properties.reply_to().clone().context("the message names no reply_to")?;
    let task = message.properties.correlation_id().clone().context("the message names no correlation_id")?;
    let mut headers = FieldTable::default();
    for name in ["duetime-attempt", "duetime-receipt"] {
        if let Some(value) = header(message, name) {
            headers.insert(name.into(), value.clone());
        }
    }
    let properties = BasicProperties::default()
        .with_correlation_id(task)
        .with_content_type("application/json".into())
        .with_delivery_mode(2)
        .with_headers(headers);
    let (options, body) = (BasicPublishOptions::default(), body.to_string());
    Ok(channel.basic_publish(ShortString::default(), to, options, body.as_bytes(), properties).await?)
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
    let message_id = message_id(message);
    let attempt = number(message, "duetime-attempt").and_then(|attempt| u32::try_from(attempt).ok());
    // A message that only waited in Duetime has its own properties, and a header that names its task and attempt.
    let waited = header(message, WAITED).and_then(|_| message_id.split_once(':'));
    let (task, attempt) = match waited {
        Some((task, attempt)) => (task.to_owned(), attempt.parse().unwrap_or(0)),
        None => (text(message.properties.correlation_id()), attempt.unwrap_or(0)),
    };
    Delivery {
        at_us,
        queue: queue.to_owned(),
        task,
        attempt,
        message_id,
        due_ms: number(message, "duetime-due-ms"),
        marked: matches!(header(message, "duetime-redelivered"), Some(AMQPValue::Boolean(true))),
        by_broker: message.redelivered,
        number: payload["n"].as_u64(),
    }
}

fn message_id(message: &Message) -> String {
    match header(message, WAITED) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        _ => message.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

/// A header of a message.
pub fn header<'a>(message: &'a Message, name: &str) -> Option<&'a AMQPValue> {
    message.properties.headers().as_ref()?.inner().get(name)
}

/// A header of a message that is a whole number.
pub fn number(message: &Message, name: &str) -> Option<i64> {
    match header(message, name)? {
        AMQPValue::LongInt(number) => Some(i64::from(*number)),
        AMQPValue::LongLongInt(number) => Some(*number),
        _ => None,
    }
}
