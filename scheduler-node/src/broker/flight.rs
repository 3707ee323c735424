//! One batch on its way over one channel, and the verdict on it.
//!
//! The client pairs `basic.return` with the next confirm to arrive, whichever that is, so a single confirm
//! proves nothing. One rule holds: when all confirms of a channel are in, so are all returns. Hence a batch is
//! judged as a whole, by message id. A message that keeps its original id carries Duetime's id in a header.
//!
//! A broker that refuses a message closes the channel and does not name the message. It is known when it was the only
//! one without a confirm.

use std::{
    collections::HashSet,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use common::outcome::Outcome;
use futures::{
    FutureExt,
    future::{MaybeDone, maybe_done},
};
use lapin::{
    Channel, Confirmation, PublisherConfirm,
    options::BasicPublishOptions,
    protocol::{AMQPError, AMQPErrorKind},
    types::ShortString,
};
use parking_lot::Mutex;

use super::{
    envelope,
    error::{is_of_message, reply},
    message::{Envelope, Outgoing},
    published::{NotTaken, Published},
    route::Route,
};

/// The reason why a message was not sent: it waited for its route, or for the message ahead of it.
pub(super) const TOO_LATE: &str = "it was claimed too long ago to be sent";

/// The names that every message of a batch carries.
pub(super) struct Address {
    exchange: ShortString,
    routing_key: ShortString,
    envelope: Envelope,
    /// The user under whose name the node publishes.
    user: Option<String>,
}

impl Address {
    pub(super) fn new(route: &Route, batch: &[Outgoing], user: Option<&str>) -> Option<Self> {
        Some(Self {
            exchange: ShortString::try_new(route.exchange.as_str()).ok()?,
            routing_key: ShortString::try_new(route.routing_key.as_str()).ok()?,
            envelope: Envelope::new(&batch.first()?.delivery.queue)?,
            user: user.map(str::to_owned),
        })
    }
}

/// Returns when the message is handed to the socket. The first poll takes its place in the channel's order.
async fn send_one(
    channel: &Channel,
    address: &Address,
    outgoing: &Outgoing,
) -> (lapin::Result<PublisherConfirm>, Instant) {
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let (routing_key, properties) = match &outgoing.delivery.envelope {
        Some(own) => (envelope::short(&own.routing_key), envelope::properties(outgoing, own, address.user.as_deref())),
        None => (address.routing_key.clone(), address.envelope.properties(outgoing)),
    };
    let confirm =
        channel.basic_publish(address.exchange.clone(), routing_key, options, outgoing.body(), properties).await;
    (confirm, Instant::now())
}

/// Begins all sends in their order, then waits for one after the other. They end in about this order. `join_all` would
/// track which of them can go on, at a cost for each message.
async fn begin_in_order<F: Future>(mut sends: Vec<Pin<Box<MaybeDone<F>>>>) -> Vec<F::Output> {
    poll_fn(|context| {
        for send in &mut sends {
            let _ = send.as_mut().poll(context);
        }
        Poll::Ready(())
    })
    .await;
    let mut ends = Vec::with_capacity(sends.len());
    for mut send in sends {
        send.as_mut().await;
        ends.extend(send.as_mut().take_output());
    }
    ends
}

/// Whether one of these messages must not be sent any more. The others are looked at again with it, which keeps their
/// order.
pub(super) fn is_too_late(batch: &[Outgoing]) -> bool {
    let now = Instant::now();
    batch.iter().any(|outgoing| outgoing.is_too_late(now))
}

/// A batch on its way.
pub(super) struct Flight {
    messages: Vec<Message>,
    /// The number of messages whose sending has begun.
    begun: usize,
    /// The time at which its first message was handed to the socket.
    pub(super) sent_at: Option<Instant>,
    /// The message ids of returned messages.
    returned: HashSet<String>,
    /// The reason why not all confirms came.
    trouble: Option<String>,
    /// The broker's words when it closed the channel.
    closed: Option<AMQPError>,
    awaited: Awaited,
    heard: LastConfirm,
}

#[derive(Default)]
struct Message {
    sent_at: Option<Instant>,
    confirm: Option<PublisherConfirm>,
    /// `Some(true)`: the broker took the message.
    confirmed: Option<bool>,
    /// The outcome of a copy that was sent because this confirm did not come.
    copied: Option<Outcome<(), NotTaken>>,
}

/// The message whose confirm a flight awaits, and since when. Other tasks read it.
#[derive(Clone, Default)]
pub(super) struct Awaited(Arc<Mutex<Option<(usize, Instant)>>>);

/// The time of the connection's latest confirm.
#[derive(Clone)]
pub(super) struct LastConfirm(Arc<Mutex<Instant>>);

impl Default for LastConfirm {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl LastConfirm {
    pub(super) fn now(&self) {
        *self.0.lock() = Instant::now();
    }

    pub(super) fn silence(&self) -> Duration {
        self.0.lock().elapsed()
    }
}

impl Awaited {
    /// `None` while the flight awaits no confirm.
    pub(super) fn now(&self) -> Option<(usize, Instant)> {
        *self.0.lock()
    }
}

impl Flight {
    pub(super) fn new(len: usize, heard: LastConfirm) -> Self {
        let messages = std::iter::repeat_with(Message::default).take(len).collect();
        Self {
            messages,
            begun: 0,
            sent_at: None,
            returned: HashSet::new(),
            trouble: None,
            closed: None,
            awaited: Awaited::default(),
            heard,
        }
    }

    /// Sends all messages and waits for all confirms. With `carefully`, one message goes ahead of the others: a
    /// broker that refuses a route closes the channel, and messages sent to a closed channel cost the whole
    /// connection. If its confirm takes too long, the others are not sent.
    pub(super) async fn fly(&mut self, channel: &Channel, address: &Address, batch: &[Outgoing], carefully: bool) {
        let ahead = if carefully { 1 } else { batch.len() };
        self.send(channel, address, batch, 0..ahead).await;
        self.gather(0..ahead).await;
        let others = &batch[ahead..];
        if self.trouble.is_none() && !others.is_empty() && !is_too_late(others) {
            self.send(channel, address, batch, ahead..batch.len()).await;
            self.gather(ahead..batch.len()).await;
        }
    }

    /// Returns when all of them are handed to the socket, in their order.
    async fn send(&mut self, channel: &Channel, address: &Address, batch: &[Outgoing], range: std::ops::Range<usize>) {
        self.begun = range.end;
        *self.awaited.0.lock() = Some((range.start, Instant::now()));
        let send = |outgoing| Box::pin(maybe_done(send_one(channel, address, outgoing)));
        let sends: Vec<_> = batch[range.clone()].iter().map(send).collect();
        for (index, (confirm, at)) in range.zip(begin_in_order(sends).await) {
            match confirm {
                Ok(confirm) => {
                    let message = &mut self.messages[index];
                    message.sent_at = Some(at);
                    message.confirm = Some(confirm);
                    self.sent_at.get_or_insert(at);
                }
                Err(error) => self.fail(&error),
            }
        }
        fail::fail_point!("after_publish", |_| std::process::abort());
    }

    async fn gather(&mut self, range: std::ops::Range<usize>) {
        for index in range {
            if let Some(confirm) = self.messages[index].confirm.as_mut() {
                let confirmed = match confirm.now_or_never() {
                    Some(confirmed) => confirmed,
                    None => {
                        *self.awaited.0.lock() = Some((index, Instant::now()));
                        confirm.await
                    }
                };
                self.note(index, confirmed);
            }
        }
        *self.awaited.0.lock() = None;
    }

    pub(super) fn awaited(&self) -> Awaited {
        self.awaited.clone()
    }

    /// Gives the message at `index` the outcome of its copy.
    pub(super) fn settle_by_copy(&mut self, index: usize, outcome: Outcome<(), NotTaken>) {
        self.messages[index].copied = Some(outcome);
    }

    fn note(&mut self, index: usize, confirmed: lapin::Result<Confirmation>) {
        let message = &mut self.messages[index];
        message.confirm = None;
        match confirmed {
            Ok(confirmation) => {
                self.heard.now();
                message.confirmed = Some(confirmation.is_ack());
                if let Some(returned) = confirmation.take_message()
                    && let Some(id) = envelope::message_id(&returned.properties)
                {
                    self.returned.insert(id);
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &lapin::Error) {
        self.trouble.get_or_insert_with(|| error.to_string());
        // A message that was sent to the closed channel may have cost the connection too.
        let closed = reply(error).filter(|reply| matches!(reply.kind(), AMQPErrorKind::Soft(_)));
        self.closed = self.closed.take().or_else(|| closed.cloned());
    }

    /// Takes the confirms that are in, without a wait. `why` is the reason for not waiting for the others.
    pub(super) fn take_what_is_there(&mut self, why: String) {
        self.trouble.get_or_insert(why);
        for index in 0..self.messages.len() {
            let confirm = self.messages[index].confirm.as_mut();
            if let Some(confirmed) = confirm.and_then(FutureExt::now_or_never) {
                self.note(index, confirmed);
            }
        }
    }

    /// Whether all confirms of the messages that were sent are in, and with them all returns.
    pub(super) fn is_whole(&self) -> bool {
        self.messages[..self.begun].iter().all(|message| message.confirmed.is_some())
    }

    /// Whether every message whose sending has begun went to the socket.
    pub(super) fn is_written(&self) -> bool {
        self.messages[..self.begun].iter().all(|message| message.sent_at.is_some())
    }

    /// The reason why not all confirms came.
    pub(super) fn trouble(&self) -> &str {
        self.trouble.as_deref().unwrap_or("nothing is wrong")
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

    /// The broker's words, if it closed the channel over a message and not over the route of all.
    pub(super) fn refusal(&self, batch: &[Outgoing]) -> Option<String> {
        let closed = self.closed.as_ref()?;
        let have_own_keys = batch.iter().all(|outgoing| outgoing.delivery.envelope.is_some());
        let is_refused = is_of_message(closed, have_own_keys);
        is_refused.then(|| format!("{} {}", closed.get_id(), closed.get_message().as_str()))
    }

    /// The index of the message that went to the broker and has no confirm, if it is the only one.
    fn only_in_doubt(&self) -> Option<usize> {
        let mut in_doubt = (0..self.begun).filter(|index| self.messages[*index].confirmed.is_none());
        in_doubt.next().filter(|_| in_doubt.next().is_none())
    }

    pub(super) fn judge(self, batch: &[Outgoing]) -> Vec<Published> {
        // An ack can hide a return only behind the return of another message. While confirms are missing and a
        // message was returned, any ack may hide one.
        let acks_count = self.is_whole() || self.returned.is_empty();
        let reason = |index: usize| match &self.trouble {
            Some(trouble) => trouble.clone(),
            None if index >= self.begun => TOO_LATE.to_owned(),
            None => "its confirm may belong to another message".to_owned(),
        };
        let refused = self.only_in_doubt().zip(self.refusal(batch));
        let judge = |(index, (message, outgoing)): (usize, (&Message, &Outgoing))| {
            let (id, attempt) = (outgoing.delivery.id, outgoing.delivery.attempt);
            let is_returned = !seeded!(TrustCleanConfirm)
                && self.has_returns()
                && self.returned.contains(&outgoing.delivery.message_id().to_string());
            let outcome = match (message.confirmed, &message.copied) {
                _ if is_returned => Outcome::Refused(NotTaken::Unroutable),
                (None, None) if seeded!(SettleBeforeConfirm) && message.sent_at.is_some() => Outcome::Done(()),
                (None, Some(copied)) => copied.clone(),
                (Some(false), _) => Outcome::Refused(NotTaken::Nacked),
                (Some(true), _) if acks_count => Outcome::Done(()),
                _ => match &refused {
                    Some((of, reason)) if *of == index => {
                        Outcome::Refused(NotTaken::Unacceptable { reason: reason.clone() })
                    }
                    _ => Outcome::Unknown(reason(index)),
                },
            };
            Published { id, attempt, sent_at: message.sent_at, outcome }
        };
        self.messages.iter().zip(batch).enumerate().map(judge).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::tests::bench::batch;

    fn judged(confirmed: &[Option<bool>], returned: &[usize]) -> Vec<Outcome<(), NotTaken>> {
        let batch = batch("mail", confirmed.len());
        let mut flight = Flight::new(batch.len(), LastConfirm::default());
        flight.begun = batch.len();
        for (message, confirmed) in flight.messages.iter_mut().zip(confirmed) {
            message.confirmed = *confirmed;
        }
        flight.returned = returned.iter().map(|index| batch[*index].delivery.message_id().to_string()).collect();
        flight.judge(&batch).into_iter().map(|of| of.outcome).collect()
    }

    #[tokio::test]
    async fn all_messages_of_a_batch_begin_in_their_order_before_one_is_waited_for() {
        let (begun, last_began) = (Mutex::new(Vec::new()), tokio::sync::Notify::new());
        let send = |index: usize| {
            let (begun, last_began) = (&begun, &last_began);
            async move {
                begun.lock().push(index);
                match index {
                    0 => last_began.notified().await,
                    99 => last_began.notify_one(),
                    _ => {}
                }
                index
            }
        };
        let sends: Vec<_> = (0..100).map(|index| Box::pin(maybe_done(send(index)))).collect();
        let ends = begin_in_order(sends).await;
        assert_eq!(ends, (0..100).collect::<Vec<_>>());
        assert_eq!(ends, *begun.lock());
    }

    fn is_unknown(outcome: &Outcome<(), NotTaken>) -> bool {
        matches!(outcome, Outcome::Unknown(_))
    }

    #[test]
    fn a_return_counts_for_the_message_it_names_and_not_for_the_confirm_it_came_with() {
        use Outcome::{Done, Refused};
        let outcomes = judged(&[Some(true), Some(true), Some(false), Some(false)], &[1, 3]);
        let (unroutable, nacked) = (Refused(NotTaken::Unroutable), Refused(NotTaken::Nacked));
        assert_eq!(outcomes, [Done(()), unroutable.clone(), nacked, unroutable]);
    }

    #[test]
    fn an_ack_proves_nothing_while_a_return_may_still_be_hidden_behind_another() {
        let outcomes = judged(&[Some(true), Some(true), None], &[0]);
        assert_eq!(outcomes[0], Outcome::Refused(NotTaken::Unroutable));
        assert!(is_unknown(&outcomes[1]) && is_unknown(&outcomes[2]));
    }

    #[test]
    fn an_ack_counts_without_the_other_confirms_when_nothing_at_all_came_back() {
        let outcomes = judged(&[Some(true), None, Some(false)], &[]);
        assert_eq!(outcomes[0], Outcome::Done(()));
        assert!(is_unknown(&outcomes[1]));
        assert_eq!(outcomes[2], Outcome::Refused(NotTaken::Nacked));
    }
}
