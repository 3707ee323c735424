//! A consumer of one queue, as an application would have it. It takes tasks, and answers each by a report, an
//! ack or a rejection.
//!
//! It declares nothing: the queue exists once a node has published to it.

use std::{sync::Arc, time::Duration};

use common::{
    outcome::Outcome,
    task::{
        report::ResultBody,
        trace::{HEADER_TRACEPARENT, HEADER_TRACESTATE, MAX_TRACESTATE_BYTES},
    },
    wire::amqp::{
        HEADER_ATTEMPT, HEADER_DUE_MS, HEADER_KEY, HEADER_PARTITION_KEY, HEADER_RECEIPT, IN, RESULTS, result_key,
    },
};
use futures::{FutureExt, StreamExt};
use lapin::{
    BasicProperties, Channel, Consumer,
    message::Delivery,
    options::{
        BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicPublishOptions, BasicQosOptions,
        BasicRejectOptions,
    },
    types::{AMQPValue, FieldTable, ShortString},
};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::{
    ack::AckHandle,
    channels::{Channels, Lease},
    connection::{ANSWER_WITHIN, Link},
    envelope,
    error::{ACCESS_REFUSED, Error, answer, is_of_message, reply},
    hold::{MemoryHold, MessageForm},
    login::Login,
    message::{PERSISTENT, json_of},
};
use crate::supervise::spawn_child;

/// The longest wait for a channel and a report's confirm. Without one, the report may be lost and is sent again.
const REPORTED_WITHIN: Duration = Duration::from_secs(30);
/// The interval at which a silent connection is checked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// One connection to the broker. When it has ended, every task that was taken and not answered comes again.
pub struct Worker {
    queue: String,
    link: Arc<Link>,
    channel: Arc<Channel>,
    reports: Reports,
    consumer: Option<Consumer>,
}

/// A task that was taken, and the handle that settles its message.
#[derive(Debug)]
pub struct Handed {
    pub task: Task,
    pub reply: Reply,
}

/// The content of a task's message. Any client with access to the broker may have written it: nothing in it is
/// checked.
#[derive(Debug)]
pub struct Task {
    /// The task's id, or what else names the message. `None`: it has neither a correlation id nor a message id.
    pub id: Option<String>,
    /// Whether the message came as it was sent. Without that, no other field is meaningful.
    pub is_whole: bool,
    pub attempt: Option<i64>,
    pub due_ms: Option<i64>,
    pub key: Option<String>,
    pub partition_key: Option<String>,
    pub traceparent: Option<String>,
    /// Only beside a `traceparent`: it says nothing alone.
    pub tracestate: Option<String>,
    pub content_type: Option<String>,
    pub body: Vec<u8>,
    /// The attempt to report on. `None`: no report is wanted.
    pub subject: Option<Subject>,
    /// Whether the message asks for its report at an address other than Duetime's. Such a message is not of
    /// this cluster.
    pub is_foreign: bool,
}

/// Settles one message. Dropped unused, the task comes again when the connection ends.
#[derive(Debug)]
pub struct Reply {
    channel: Arc<Channel>,
    delivery_tag: u64,
}

/// The attempt that a report is about.
#[derive(Clone, Debug)]
pub struct Subject {
    queue: String,
    task: ShortString,
    attempt: Option<i64>,
    receipt: Option<String>,
}

/// What the broker refuses, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportRefusal {
    /// This very report, now and later.
    OfReport(String),
    /// All reports on tasks of the worker's queue, until a person grants the right to send them. Finished work must not
    /// be done again until then.
    OfAll(String),
}

/// Sends reports over one connection. Clones share it.
///
/// The client pairs a returned message with the next confirm on its channel, whichever that is. So each report has a
/// channel for itself until its confirm: what the broker sends back there is its own.
#[derive(Clone)]
pub struct Reports {
    /// The queue that the tasks come from.
    queue: Arc<str>,
    link: Arc<Link>,
    /// The channel of the tasks: with it, the broker would forget acks that it has not passed on.
    tasks: Arc<Channel>,
    channels: Arc<Channels>,
}

/// The message of a report.
struct Report {
    key: ShortString,
    properties: BasicProperties,
    json: Vec<u8>,
}

impl Worker {
    /// Connects to the first broker of the login that answers.
    pub async fn open(login: &Login, queue: &str) -> Result<Self, String> {
        let mut failure = String::new();
        for login in login.each() {
            match Self::try_open(&login, queue).await {
                Ok(worker) => return Ok(worker),
                Err(error) => failure = error.explained(),
            }
        }
        Err(failure)
    }

    async fn try_open(login: &Login, queue: &str) -> Result<Self, Error> {
        let name = format!("duetime relay: {queue}");
        let (link, _) = Link::open(login, &name, MemoryHold::unlimited()).await?;
        let channel = Arc::new(link.channel().await?);
        let channels = Arc::new(Channels::new(Arc::clone(&link)));
        let reports = Reports { queue: queue.into(), link: Arc::clone(&link), tasks: Arc::clone(&channel), channels };
        Ok(Self { queue: queue.to_owned(), link, channel, reports, consumer: None })
    }

    /// A handle for reports, for as long as this connection lasts.
    pub fn reports(&self) -> Reports {
        self.reports.clone()
    }

    /// Asks the broker for tasks, at most `prefetch` of them unanswered. Replaces an earlier subscription.
    pub async fn subscribe(&mut self, prefetch: u16) -> Result<(), String> {
        self.unsubscribe().await?;
        let subscribed = async {
            let qos = self.channel.basic_qos(prefetch, BasicQosOptions::default());
            answer(|| "set the prefetch".to_owned(), ANSWER_WITHIN, qos).await?;
            let queue = self.queue.as_str();
            let consume = self.channel.basic_consume(
                queue.into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            );
            answer(|| format!("consume from `{queue}`"), ANSWER_WITHIN, consume).await
        };
        self.consumer = Some(subscribed.await.map_err(|error: Error| error.explained())?);
        Ok(())
    }

    /// Ends the subscription. Tasks that were handed out and not taken go back to the queue.
    pub async fn unsubscribe(&mut self) -> Result<(), String> {
        let Some(mut consumer) = self.consumer.take() else { return Ok(()) };
        let cancel = self.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
        answer(|| "end the subscription".to_owned(), ANSWER_WITHIN, cancel).await.map_err(|error| error.explained())?;
        let given_back = async {
            while let Some(Ok(delivery)) = consumer.next().await {
                self.read(delivery).reply.requeue();
            }
        };
        let silent = |_| "the subscription did not end".to_owned();
        tokio::time::timeout(ANSWER_WITHIN, given_back).await.map_err(silent)
    }

    /// The next task; an error when the connection or the subscription is over. Cancel safe: may be dropped and
    /// called again.
    pub async fn next(&mut self) -> Result<Handed, String> {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            let delivery = async {
                match self.consumer.as_mut() {
                    Some(consumer) => consumer.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                delivery = delivery => return match delivery {
                    Some(Ok(delivery)) => Ok(self.read(delivery)),
                    Some(Err(error)) => Err(error.to_string()),
                    None => Err(Error::Unsubscribed { queue: self.queue.clone() }.explained()),
                },
                _ = look.tick() => if !self.link.is_connected() {
                    return Err(self.link.reason());
                },
            }
        }
    }

    /// Closes the connection in order, so that the broker takes the earlier answers.
    pub async fn close(self) {
        self.link.pass_acks().await;
        self.link.close().await;
    }

    fn read(&self, delivery: Delivery) -> Handed {
        let is_whole = match self.link.hold().form_of(self.channel.id(), delivery.delivery_tag) {
            MessageForm::Whole(_) | MessageForm::Deferred { .. } => true,
            MessageForm::Troubled(_, trouble) => {
                tracing::warn!(queue = self.queue, reason = trouble.reason, "received a message that cannot be read");
                false
            }
        };
        let properties = &delivery.properties;
        let text = |of: &Option<ShortString>| of.as_ref().map(ToString::to_string);
        let headers = properties.headers().as_ref().map(json_of).unwrap_or_default();
        let header = |name: &str| headers.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
        let traceparent = header(HEADER_TRACEPARENT);
        let tracestate = traceparent.as_ref().and_then(|_| header(HEADER_TRACESTATE));
        let attempt = headers.get(HEADER_ATTEMPT).and_then(Value::as_i64);
        let wanted_at = properties.reply_to().as_ref().map(ShortString::as_str);
        let subject = |task: ShortString| Subject {
            queue: text(properties.kind()).unwrap_or_else(|| self.queue.clone()),
            task,
            attempt,
            receipt: header(HEADER_RECEIPT),
        };
        let reply = Reply { channel: Arc::clone(&self.channel), delivery_tag: delivery.delivery_tag };
        let task = Task {
            id: text(properties.correlation_id()).or_else(|| envelope::message_id(properties)),
            is_whole,
            attempt,
            due_ms: headers.get(HEADER_DUE_MS).and_then(Value::as_i64),
            key: header(HEADER_KEY),
            partition_key: header(HEADER_PARTITION_KEY),
            traceparent,
            tracestate: tracestate.filter(|text| text.len() <= MAX_TRACESTATE_BYTES),
            content_type: text(properties.content_type()),
            subject: properties.correlation_id().clone().filter(|_| wanted_at == Some(RESULTS)).map(subject),
            is_foreign: wanted_at.is_some_and(|queue| queue != RESULTS),
            body: delivery.data,
        };
        Handed { task, reply }
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Reports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reports").finish_non_exhaustive()
    }
}

impl Reports {
    /// Sends a report to the cluster. `Done`: the broker has put it into the queue of results.
    pub async fn send(&self, subject: &Subject, body: &ResultBody) -> Outcome<(), ReportRefusal> {
        let report = match Report::new(subject, body) {
            Ok(report) => report,
            Err(reason) => return Outcome::Refused(ReportRefusal::OfReport(reason)),
        };
        // It would take no channel either, and one that does not open costs the connection.
        if self.link.is_blocked() {
            return Outcome::Unknown("the broker has blocked the connection".to_owned());
        }
        let sent = async {
            let lease = match self.channels.lease().await {
                Ok(lease) => lease,
                Err(error) => return Outcome::Unknown(error.explained()),
            };
            // It runs to its end even if the caller goes away, and keeps the channel until its confirm: a late one
            // could hide the return of another report. A broker that is out of memory may confirm nothing for hours,
            // and a new connection each time would cost every task a delivery.
            let has_own_key = subject.queue != *self.queue;
            let child = spawn_child(report.publish(lease, has_own_key));
            child.await.unwrap_or_else(|error| Outcome::Unknown(error.to_string()))
        };
        let silent = |_| Outcome::Unknown(format!("no confirm within {REPORTED_WITHIN:?}"));
        tokio::time::timeout(REPORTED_WITHIN, sent).await.unwrap_or_else(silent)
    }

    /// Ends the connection, once another one takes reports. A report that waits for its confirm would keep it, and with
    /// it every task that was handed out. The broker takes the earlier answers.
    pub fn end(self) -> JoinHandle<()> {
        spawn_child(async move {
            self.link.pass_acks().await;
            self.link.close().await;
            drop(self.tasks);
        })
    }
}

impl Report {
    /// An error names the value that no message can carry.
    fn new(subject: &Subject, body: &ResultBody) -> Result<Self, String> {
        let json = serde_json::to_vec(body).map_err(|error| error.to_string())?;
        let mut headers = FieldTable::default();
        if let Some(attempt) = subject.attempt {
            headers.insert(HEADER_ATTEMPT.into(), attempt.into());
        }
        if let Some(receipt) = &subject.receipt {
            headers.insert(HEADER_RECEIPT.into(), AMQPValue::LongString(receipt.as_str().into()));
        }
        let properties = BasicProperties::default()
            .with_correlation_id(subject.task.clone())
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT)
            .with_headers(headers);
        let key = ShortString::try_new(result_key(&subject.queue));
        let key = key.map_err(|error| format!("the queue's name does not fit into a routing key: {error}"))?;
        Ok(Self { key, properties, json })
    }

    /// Publishes the report over a channel of its own, and waits for its confirm. `has_own_key`: it is on a task of
    /// another queue than the relay's, as a message from elsewhere may ask for.
    async fn publish(self, mut lease: Lease, has_own_key: bool) -> Outcome<(), ReportRefusal> {
        let Self { key, properties, json } = self;
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let channel = lease.begin();
        let confirmed = async { channel.basic_publish(IN.into(), key, options, &json, properties).await?.await };
        let confirmation = match confirmed.await {
            Ok(confirmation) => confirmation,
            Err(source) => {
                // The broker has closed the channel, or the connection is gone.
                drop(lease.discard());
                let is_of_report = reply(&source).is_some_and(|reply| is_of_message(reply, has_own_key));
                let lacks_right = reply(&source).is_some_and(|reply| reply.get_id() == ACCESS_REFUSED);
                let reason = Error::Refused { doing: "report".to_owned(), source }.explained();
                return match (is_of_report, lacks_right) {
                    (true, _) => Outcome::Refused(ReportRefusal::OfReport(reason)),
                    (false, true) => Outcome::Refused(ReportRefusal::OfAll(reason)),
                    (false, false) => Outcome::Unknown(reason),
                };
            }
        };
        lease.give_back();
        let is_ack = confirmation.is_ack();
        match confirmation.take_message() {
            Some(_) => Outcome::Unknown(format!("no queue takes reports: `{IN}` has no binding for this one")),
            None if is_ack => Outcome::Done(()),
            None => Outcome::Unknown("the broker did not confirm the report".to_owned()),
        }
    }
}

impl Reply {
    /// Whether the connection of the message is gone, so that the message comes again.
    pub fn is_lost(&self) -> bool {
        !self.channel.status().connected()
    }

    pub async fn ack(self) {
        AckHandle::new(&self.channel, self.delivery_tag, None).ack().await;
    }

    /// Ends the attempt as failed, without a report.
    pub fn reject(self) {
        // The first poll queues the frame.
        let _ = self.channel.basic_reject(self.delivery_tag, BasicRejectOptions { requeue: false }).now_or_never();
    }

    /// Returns the task to its queue: it comes again, to any consumer.
    pub fn requeue(self) {
        let options = BasicNackOptions { requeue: true, ..Default::default() };
        let _ = self.channel.basic_nack(self.delivery_tag, options).now_or_never();
    }
}
