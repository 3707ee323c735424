//! Messages that come back: consumers' reports, and deliveries that they or the broker gave up.

use std::{fmt, pin::pin, sync::Arc, time::Duration};

use common::wire::{
    amqp::{IN, REJECTED, RESULT_KEY, RESULTS, addressed_to, may_answer_to},
    screen::{Trouble, TroubleKind},
};
use lapin::{options::QueueDeclareOptions, types::FieldTable};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    ack::AckHandle,
    answers::Answer,
    connection::Link,
    error::{Error, answer},
    intake::Intake,
    message::{attempt_of, death_of, json_of},
    reading::{EXTRA_PREFETCH, Reading},
    received::Received,
    subscription::Arrived,
};

/// The prefetch of each of the two queues. It is small, so that a node that stands still keeps few messages from
/// others.
pub(super) const PREFETCH: u16 = 500;

/// The most messages that are without an answer, of both queues.
pub const MOST_HELD: usize = 2 * (PREFETCH as usize + EXTRA_PREFETCH as usize);

/// The number of messages handed over and not yet taken. When the channel is full, reading stops, and prefetch
/// stops the broker.
pub(super) const INCOMING: usize = 1_000;

/// How long RabbitMQ may take to count what waits in one queue, over a channel that is open. Deadlines wait
/// meanwhile.
const COUNT_WITHIN: Duration = Duration::from_secs(1);

/// The queue from which a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The queue of consumers' reports on tasks.
    Results,
    /// The queue of deliveries that were rejected or dead-lettered.
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

    /// The exchange in front of the queue.
    const fn exchange(self) -> &'static str {
        match self {
            Self::Results => IN,
            Self::Rejected => REJECTED,
        }
    }
}

/// One message that came back. Any client with access to the broker may have written it: nothing in it is checked.
#[derive(Debug)]
pub struct Incoming {
    pub source: Source,
    pub message_id: Option<String>,
    pub correlation_id: Option<String>,
    /// A queue of the sender's for answers, if the message names one that may get them.
    pub reply_to: Option<ReplyTo>,
    pub attempt_header: Option<i64>,
    /// The queue that its routing key in `duetime.in` named. An error says why that key does not lead here.
    pub addressed_to: Result<Option<String>, &'static str>,
    /// Whether it came through an exchange of Duetime's rather than directly by the name of its queue.
    pub is_by_exchange: bool,
    /// The user who published it, as checked by RabbitMQ.
    pub user: Option<String>,
    /// The reason why the broker gave it up: `rejected`, `delivery_limit`, `expired` or `maxlen`. Only of
    /// [`Source::Rejected`].
    pub reason: Option<String>,
    pub headers: serde_json::Value,
    pub body: Vec<u8>,
    /// The reason why the message did not come as it was sent. With such a reason, no other field is meaningful.
    pub trouble: Option<Trouble>,
    pub ack: AckHandle,
    pub arrived_at: Instant,
}

/// A queue for answers to the sender of one message.
pub struct ReplyTo {
    queue: String,
    answers: mpsc::Sender<Answer>,
}

impl ReplyTo {
    /// Publishes an answer, which may be lost.
    pub fn send(&self, correlation_id: &str, body: &[u8]) {
        let (queue, correlation_id) = (self.queue.clone(), correlation_id.to_owned());
        let _ = self.answers.try_send(Answer { queue, correlation_id, body: body.to_vec() });
    }
}

impl fmt::Debug for ReplyTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReplyTo").field(&self.queue).finish()
    }
}

/// All subscriptions of one connection.
pub(super) struct Subscriptions {
    link: Arc<Link>,
    results: Returns,
    rejected: Returns,
    intake: Intake,
}

struct Returns {
    source: Source,
    reading: Reading,
    answers: mpsc::Sender<Answer>,
}

impl Subscriptions {
    pub(super) async fn open(
        link: &Arc<Link>,
        intake: Intake,
        holds_more: &watch::Sender<bool>,
        answers: &mpsc::Sender<Answer>,
    ) -> Result<Self, Error> {
        Ok(Self {
            link: Arc::clone(link),
            results: Returns::open(link, Source::Results, holds_more, answers.clone()).await?,
            rejected: Returns::open(link, Source::Rejected, holds_more, answers.clone()).await?,
            intake,
        })
    }

    /// Hands over arriving messages until one of the subscriptions ends, and returns the reason.
    pub(super) async fn forward(self, incoming: &mpsc::Sender<Incoming>, received: &mpsc::Sender<Received>) -> Error {
        // Those that go on live until the end: theirs would close their channels, and the acks with them.
        let results = pin!(self.results.forward(incoming));
        let rejected = pin!(self.rejected.forward(incoming));
        let mut intake = Box::pin(self.intake.forward(received));
        let error = tokio::select! {
            // It has passed the acks on already, while its readers lived.
            error = &mut intake => return error,
            error = results => error,
            error = rejected => error,
        };
        if error.is_end_of_queue() {
            self.link.pass_acks().await;
        }
        error
    }
}

/// Whether more results or rejections wait in their queue than a node holds, beside those that nodes hold. It asks on a
/// channel of its own, because a queue that is missing closes the channel.
pub(super) async fn are_many_left(link: &Link) -> Result<bool, Error> {
    let channel = link.channel().await?;
    for queue in [RESULTS, REJECTED] {
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        let asked = channel.queue_declare(queue.into(), passive, FieldTable::default());
        let told = answer(|| format!("count what waits in `{queue}`"), COUNT_WITHIN, asked).await?;
        if told.consumer_count() == 0 || told.message_count() > u32::from(PREFETCH) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Returns {
    async fn open(
        link: &Arc<Link>,
        source: Source,
        holds_more: &watch::Sender<bool>,
        answers: mpsc::Sender<Answer>,
    ) -> Result<Self, Error> {
        let reading = Reading::open(link, source.queue().to_owned(), PREFETCH, holds_more).await?;
        Ok(Self { source, reading, answers })
    }

    async fn forward(mut self, incoming: &mpsc::Sender<Incoming>) -> Error {
        loop {
            match self.reading.next().await {
                Ok(None) => {
                    if let Err(error) = self.reading.follow().await {
                        return error;
                    }
                }
                Ok(Some(arrived)) => {
                    if incoming.send(self.read(arrived)).await.is_err() {
                        // This node takes no more messages; they wait at the broker for another node.
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
            addressed_to: addressed_to(exchange, delivery.routing_key.as_str(), RESULT_KEY)
                .map(|queue| queue.map(ToOwned::to_owned)),
            is_by_exchange: exchange == self.source.exchange(),
            user: properties.user_id().as_ref().map(ToString::to_string),
            message_id: properties.message_id().as_ref().map(ToString::to_string),
            reply_to: properties
                .reply_to()
                .as_ref()
                .map(ToString::to_string)
                .filter(|queue| may_answer_to(queue))
                .map(|queue| ReplyTo { queue, answers: self.answers.clone() }),
            correlation_id: properties.correlation_id().as_ref().map(ToString::to_string),
            attempt_header: attempt_of(headers),
            reason: if self.source == Source::Rejected { death_of(headers) } else { None },
            headers: json_of(headers),
            // A delivery that was given up counts by its id alone, so its body may be of any size.
            trouble: trouble.filter(|of| self.source == Source::Results || of.kind == TroubleKind::Unreadable),
            ack,
            arrived_at: Instant::now(),
            body: delivery.data,
        }
    }
}
