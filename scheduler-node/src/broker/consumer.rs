//! What comes back: consumers' reports, and the messages they or the broker gave up.

use std::sync::Arc;

use common::wire::{
    amqp::{IN, REJECTED, RESULTS, addressed_to},
    screen::{Trouble, TroubleKind},
};
use futures::FutureExt;
use lapin::{
    BasicProperties, Channel,
    options::{BasicAckOptions, BasicNackOptions, BasicPublishOptions, BasicRejectOptions},
    types::FieldTable,
};
use tokio::sync::mpsc;

use super::{
    connection::Link,
    error::Error,
    hold::Held,
    intake::{Intake, Received},
    message::{attempt_of, death_of, json_of},
    subscription::{Arrived, Subscription},
};

/// Sent ahead of our acks, for each of the two queues.
const PREFETCH: u16 = 500;
/// Handed over and not yet taken. Full, it stops the reading, and prefetch stops the broker.
pub(super) const INCOMING: usize = 1_000;

/// Which queue a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A consumer reports on a task.
    Results,
    /// A delivery was rejected or dead-lettered.
    Rejected,
}

impl Source {
    const fn queue(self) -> &'static str {
        match self {
            Self::Results => RESULTS,
            Self::Rejected => REJECTED,
        }
    }

    pub const fn text(self) -> &'static str {
        match self {
            Self::Results => "results",
            Self::Rejected => "rejected",
        }
    }

    /// In front of the queue.
    const fn exchange(self) -> &'static str {
        match self {
            Self::Results => IN,
            Self::Rejected => REJECTED,
        }
    }
}

/// One message that came back. Anyone with access to the broker may have written it: nothing in it is checked.
#[derive(Debug)]
pub struct Incoming {
    pub source: Source,
    pub message_id: Option<String>,
    pub correlation_id: Option<String>,
    /// A queue on which its sender listens.
    pub reply_to: Option<String>,
    pub attempt_header: Option<i64>,
    /// The queue that its routing key in `duetime.in` named.
    pub addressed_to: Option<String>,
    /// It came by an exchange of ours and not by the name of its queue.
    pub is_by_exchange: bool,
    /// Who published it; RabbitMQ has checked that.
    pub user: Option<String>,
    /// Why the broker gave it up: `rejected`, `delivery_limit`, `expired` or `maxlen`. Only of [`Source::Rejected`].
    pub reason: Option<String>,
    pub headers: serde_json::Value,
    pub body: Vec<u8>,
    /// Why it did not come as it is; then nothing else of it counts.
    pub trouble: Option<Trouble>,
    pub ack: AckHandle,
}

/// Acknowledges one message to the connection it came over. Once that is gone it does nothing: the message comes again.
/// Dropped unused, the message comes again when the connection ends, and takes a place of the prefetch until then.
#[derive(Debug)]
pub struct AckHandle {
    channel: Arc<Channel>,
    delivery_tag: u64,
    /// The room it takes until it is answered.
    _held: Option<Held>,
}

impl AckHandle {
    pub(super) fn new(channel: &Arc<Channel>, delivery_tag: u64, held: Option<Held>) -> Self {
        Self { channel: Arc::clone(channel), delivery_tag, _held: held }
    }

    /// Has the broker put the message, whole and as it is, where its queue sends what is given up.
    pub async fn reject(self) {
        let _ = self.channel.basic_reject(self.delivery_tag, BasicRejectOptions { requeue: false }).now_or_never();
    }

    /// Gives the message back: it comes again, to any node.
    pub async fn requeue(self) {
        let options = BasicNackOptions { requeue: true, ..Default::default() };
        let _ = self.channel.basic_nack(self.delivery_tag, options).now_or_never();
    }

    /// Publishes an answer to a queue of the sender's, on the way the message came. It may be lost: the queue may be gone, or the connection.
    pub fn reply(&self, queue: &str, correlation_id: &str, body: &[u8]) {
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_correlation_id(correlation_id.into());
        let options = BasicPublishOptions::default();
        let _ = self.channel.basic_publish("".into(), queue.into(), options, body, properties).now_or_never();
    }

    /// Returns once the ack is queued behind all earlier ones; it may still be lost together with the connection.
    pub async fn ack(self) {
        // The frame is queued by the first poll; waiting for the socket would cost a thread's wake-up a message.
        let _ = self.channel.basic_ack(self.delivery_tag, BasicAckOptions::default()).now_or_never();
    }
}

/// Everything one connection is subscribed to.
pub(super) struct Subscriptions {
    results: Returns,
    rejected: Returns,
    intake: Intake,
}

struct Returns {
    source: Source,
    subscription: Subscription,
}

impl Subscriptions {
    pub(super) async fn open(link: &Link, intake: Intake) -> Result<Self, Error> {
        Ok(Self {
            results: Returns::open(link, Source::Results).await?,
            rejected: Returns::open(link, Source::Rejected).await?,
            intake,
        })
    }

    /// Hands over what arrives until one of the subscriptions ends, and says why.
    pub(super) async fn forward(self, incoming: &mpsc::Sender<Incoming>, received: &mpsc::Sender<Received>) -> Error {
        tokio::select! {
            error = self.intake.forward(received) => error,
            error = self.results.forward(incoming) => error,
            error = self.rejected.forward(incoming) => error,
        }
    }
}

impl Returns {
    async fn open(link: &Link, source: Source) -> Result<Self, Error> {
        let subscription = Subscription::open(link, source.queue().to_owned(), PREFETCH).await?;
        Ok(Self { source, subscription })
    }

    async fn forward(mut self, incoming: &mpsc::Sender<Incoming>) -> Error {
        loop {
            match self.subscription.next().await {
                Ok(arrived) => {
                    if incoming.send(self.read(arrived)).await.is_err() {
                        // Nothing takes them any more; they wait at the broker for another node.
                        return std::future::pending().await;
                    }
                }
                Err(error) => return error,
            }
        }
    }

    fn read(&self, arrived: Arrived) -> Incoming {
        let Arrived { delivery, ack, trouble } = arrived;
        let properties = &delivery.properties;
        let no_headers = FieldTable::default();
        let headers = properties.headers().as_ref().unwrap_or(&no_headers);
        let exchange = delivery.exchange.as_str();
        Incoming {
            source: self.source,
            addressed_to: addressed_to(exchange, delivery.routing_key.as_str()).map(ToOwned::to_owned),
            is_by_exchange: exchange == self.source.exchange(),
            user: properties.user_id().as_ref().map(ToString::to_string),
            message_id: properties.message_id().as_ref().map(ToString::to_string),
            reply_to: properties.reply_to().as_ref().map(ToString::to_string),
            correlation_id: properties.correlation_id().as_ref().map(ToString::to_string),
            attempt_header: attempt_of(headers),
            reason: if self.source == Source::Rejected { death_of(headers) } else { None },
            headers: json_of(headers),
            // What counts of a message that was given up is its id: its body may be as large as it likes.
            trouble: trouble.filter(|of| self.source == Source::Results || of.kind == TroubleKind::Unreadable),
            ack,
            body: delivery.data,
        }
    }
}
