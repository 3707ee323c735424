//! Publishes batches: one route, one batch, one channel, and for every message one of three outcomes.
//!
//! The client pairs `basic.return` with whichever confirm comes next, so a single confirm proves nothing. What holds:
//! when all confirms of a channel are in, so are all returns. Hence a batch is judged as a whole, by message id.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{Attempt, TaskId},
    outcome::Outcome,
};
use futures::{FutureExt, future::join_all};
use lapin::{Channel, Confirmation, PublisherConfirm, options::BasicPublishOptions, types::ShortString};

use super::{
    BrokerMetrics,
    channels::{Channels, Lease},
    connection::{ANSWER_WITHIN, Link},
    error::answer,
    message::{Envelope, Outgoing},
    routes::{Route, Routes},
    topology::Strangers,
};

/// A confirm that has not come by then is not waited for. Quorum queues answer within milliseconds, and within
/// seconds while they elect a leader.
pub(super) const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
/// A batch that cannot start by then does not: what it was claimed for may have changed meanwhile.
const START_WITHIN: Duration = Duration::from_secs(5);

/// Why the broker did not take a message. It says to close the lane for a while. It does not say that nobody has the
/// message: of several queues behind one exchange, some may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// No queue was behind the route.
    Unroutable,
    /// A queue was full, or could not keep it.
    Nacked,
}

#[derive(Clone, Debug)]
pub struct Published {
    pub id: TaskId,
    pub attempt: Attempt,
    /// When it was handed to the socket; `None` when it certainly was not, or when that is not known.
    pub sent_at: Option<Instant>,
    pub outcome: Outcome<(), NotTaken>,
}

/// Publishing over one connection, for as long as it lasts.
pub(super) struct Publisher {
    link: Arc<Link>,
    channels: Arc<Channels>,
    routes: Routes,
    confirm_within: Duration,
    metrics: Arc<BrokerMetrics>,
}

impl Publisher {
    pub(super) fn new(
        link: Arc<Link>,
        strangers: Arc<Strangers>,
        confirm_within: Duration,
        metrics: Arc<BrokerMetrics>,
    ) -> Self {
        let channels = Arc::new(Channels::new(Arc::clone(&link)));
        let routes = Routes::new(Arc::clone(&link), strangers);
        Self { link, channels, routes, confirm_within, metrics }
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(super) async fn publish(&self, route: &Route, batch: &[Outgoing]) -> Vec<Published> {
        if self.link.is_blocked() {
            return not_sent(batch, "the broker takes no messages for now: it has blocked the connection");
        }
        let Some(address) = Address::new(route, batch) else {
            return not_sent(batch, "AMQP has no room for a name this long");
        };
        let lane = self.routes.lane(route);
        let start = async {
            self.routes.make_ready(&lane, route).await?;
            self.channels.lease().await
        };
        let mut lease = match tokio::time::timeout(START_WITHIN, start).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return not_sent(batch, &error.explained()),
            Err(_) => return not_sent(batch, "neither the queue nor a channel was ready in time"),
        };

        let mut flight = Flight::new(batch.len());
        let channel = lease.begin();
        let whole = flight.fly(channel, &address, batch, !lane.is_proven());
        let late = tokio::time::timeout(self.confirm_within, whole).await.is_err();
        if late {
            flight.take_what_is_there(self.confirm_within);
        }
        if let Some(sent_at) = flight.sent_at {
            self.metrics.confirm_seconds.observe(sent_at.elapsed().as_secs_f64());
        }
        lane.learn(&flight);
        self.end_lease(lease, &flight, late).await;
        flight.judge(batch)
    }

    /// Returns only when nothing of the batch can still be sent.
    async fn end_lease(&self, lease: Lease, flight: &Flight, late: bool) {
        if flight.is_whole() {
            return lease.give_back();
        }
        if !late {
            // The broker closed the channel, or the connection is gone. Either has dropped what was not yet sent.
            drop(lease.discard());
            return;
        }
        let channel = lease.discard();
        if !flight.is_written() {
            // A close would overtake what still waits to be written.
            return self.link.cut("the broker did not read what was published to it in time");
        }
        let close = channel.close(200, "OK".into());
        if let Err(error) = answer(|| "close a channel".to_owned(), ANSWER_WITHIN, close).await {
            self.link.cut(error.explained());
        }
    }
}

/// Nothing of the batch was handed to anyone. Still unknown to the caller: an earlier copy may be out there.
pub(super) fn not_sent(batch: &[Outgoing], reason: &str) -> Vec<Published> {
    let published = |outgoing: &Outgoing| Published {
        id: outgoing.delivery.id,
        attempt: outgoing.delivery.attempt,
        sent_at: None,
        outcome: Outcome::Unknown(reason.to_owned()),
    };
    batch.iter().map(published).collect()
}

/// The names on every message of a batch.
struct Address {
    exchange: ShortString,
    routing_key: ShortString,
    envelope: Envelope,
}

impl Address {
    fn new(route: &Route, batch: &[Outgoing]) -> Option<Self> {
        Some(Self {
            exchange: ShortString::try_new(route.exchange.as_str()).ok()?,
            routing_key: ShortString::try_new(route.routing_key.as_str()).ok()?,
            envelope: Envelope::new(&batch.first()?.delivery.queue)?,
        })
    }
}

/// Ready when the message is handed to the socket. Its place in the channel's order is taken by the first poll.
async fn send_one(
    channel: &Channel,
    address: &Address,
    outgoing: &Outgoing,
) -> (lapin::Result<PublisherConfirm>, Instant) {
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let (exchange, routing_key) = (address.exchange.clone(), address.routing_key.clone());
    let payload = outgoing.delivery.content.payload.as_slice();
    let properties = address.envelope.properties(outgoing);
    let confirm = channel.basic_publish(exchange, routing_key, options, payload, properties).await;
    (confirm, Instant::now())
}

/// A batch on its way.
pub(super) struct Flight {
    messages: Vec<Message>,
    /// The first message handed to the socket.
    sent_at: Option<Instant>,
    /// Message ids of what came back.
    returned: HashSet<String>,
    /// Why not all confirms came.
    trouble: Option<String>,
}

#[derive(Default)]
struct Message {
    sent_at: Option<Instant>,
    confirm: Option<PublisherConfirm>,
    /// `Some(true)`: taken.
    confirmed: Option<bool>,
}

impl Flight {
    fn new(len: usize) -> Self {
        let messages = std::iter::repeat_with(Message::default).take(len).collect();
        Self { messages, sent_at: None, returned: HashSet::new(), trouble: None }
    }

    /// Sends all and waits for all. With `carefully`, one message goes ahead of the others: a broker that refuses a
    /// route closes the channel, and the messages that follow onto a closed channel cost the whole connection.
    async fn fly(&mut self, channel: &Channel, address: &Address, batch: &[Outgoing], carefully: bool) {
        let ahead = if carefully { 1 } else { batch.len() };
        self.send(channel, address, batch, 0..ahead).await;
        self.gather(0..ahead).await;
        if self.trouble.is_none() && ahead < batch.len() {
            self.send(channel, address, batch, ahead..batch.len()).await;
            self.gather(ahead..batch.len()).await;
        }
    }

    /// Ready when all of them are handed to the socket, in their order.
    async fn send(
        &mut self,
        channel: &Channel,
        address: &Address,
        batch: &[Outgoing],
        range: std::ops::Range<usize>,
    ) {
        let sending = batch[range.clone()].iter().map(|outgoing| send_one(channel, address, outgoing));
        let sent = join_all(sending).await;
        for (message, (confirm, at)) in self.messages[range].iter_mut().zip(sent) {
            match confirm {
                Ok(confirm) => {
                    message.sent_at = Some(at);
                    message.confirm = Some(confirm);
                    self.sent_at.get_or_insert(at);
                }
                Err(error) => {
                    self.trouble.get_or_insert_with(|| error.to_string());
                }
            }
        }
        fail::fail_point!("after_publish", |_| std::process::abort());
    }

    async fn gather(&mut self, range: std::ops::Range<usize>) {
        for index in range {
            if let Some(confirm) = self.messages[index].confirm.as_mut() {
                let confirmed = confirm.await;
                self.note(index, confirmed);
            }
        }
    }

    fn note(&mut self, index: usize, confirmed: lapin::Result<Confirmation>) {
        let message = &mut self.messages[index];
        message.confirm = None;
        match confirmed {
            Ok(confirmation) => {
                message.confirmed = Some(confirmation.is_ack());
                if let Some(returned) = confirmation.take_message()
                    && let Some(id) = returned.properties.message_id()
                {
                    self.returned.insert(id.as_str().to_owned());
                }
            }
            Err(error) => {
                self.trouble.get_or_insert_with(|| error.to_string());
            }
        }
    }

    /// Past the deadline: the confirms that are in, without waiting for any.
    fn take_what_is_there(&mut self, waited: Duration) {
        self.trouble.get_or_insert_with(|| format!("no confirm within {waited:?}"));
        for index in 0..self.messages.len() {
            let confirm = self.messages[index].confirm.as_mut();
            if let Some(confirmed) = confirm.and_then(FutureExt::now_or_never) {
                self.note(index, confirmed);
            }
        }
    }

    /// All confirms are in, and with them all returns.
    fn is_whole(&self) -> bool {
        self.messages.iter().all(|message| message.confirmed.is_some())
    }

    /// Every message went to the socket.
    fn is_written(&self) -> bool {
        self.messages.iter().all(|message| message.sent_at.is_some())
    }

    pub(super) fn is_in_trouble(&self) -> bool {
        self.trouble.is_some()
    }

    pub(super) fn has_returns(&self) -> bool {
        !self.returned.is_empty()
    }

    pub(super) fn has_confirms(&self) -> bool {
        self.messages.iter().any(|message| message.confirmed.is_some())
    }

    fn judge(self, batch: &[Outgoing]) -> Vec<Published> {
        // An ack hides a return only behind the return of another. With confirms missing and something returned, any ack may.
        let acks_count = self.is_whole() || self.returned.is_empty();
        let reason = self.trouble.as_deref().unwrap_or("its confirm may belong to another message");
        let judge = |(message, outgoing): (&Message, &Outgoing)| {
            let (id, attempt) = (outgoing.delivery.id, outgoing.delivery.attempt);
            let is_returned =
                self.has_returns() && self.returned.contains(&outgoing.delivery.message_id().to_string());
            let outcome = match message.confirmed {
                _ if is_returned => Outcome::Refused(NotTaken::Unroutable),
                Some(false) => Outcome::Refused(NotTaken::Nacked),
                Some(true) if acks_count => Outcome::Done(()),
                _ => Outcome::Unknown(reason.to_owned()),
            };
            Published { id, attempt, sent_at: message.sent_at, outcome }
        };
        self.messages.iter().zip(batch).map(judge).collect()
    }
}
