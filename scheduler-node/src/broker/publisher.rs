//! Publishes batches: one route, one batch, one channel, and for every message one of three outcomes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::{outcome::Outcome, wire::amqp::INVALID};
use lapin::{BasicProperties, options::BasicPublishOptions};
use tokio::sync::Mutex;

use super::{
    channels::{Channels, Lease},
    connection::{ANSWER_WITHIN, Link, NOWHERE},
    consumer::are_many_left,
    envelope,
    error::answer,
    flight::{Address, Awaited, Flight, LastConfirm, TOO_LATE, is_too_late},
    message::Outgoing,
    metrics::BrokerMetrics,
    published::Published,
    received::Received,
    route::Route,
    routes::{Lane, Refusals, Routes},
    topology::Strangers,
};
use crate::supervise::spawn_child;

/// The longest wait for a confirm. Quorum queues answer within milliseconds, and within seconds while they
/// elect a leader.
pub(super) const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
/// The longest wait of a batch for its start. After that it is not sent: the state for which it was claimed may
/// have changed.
const START_WITHIN: Duration = Duration::from_secs(5);
/// The age of a confirm up to which it shows that the broker takes messages. RabbitMQ counts a message that sounds it
/// out as unroutable, so a quiet node must not send many.
const CONFIRMED_LATELY: Duration = Duration::from_secs(2);
/// How long after the moment of asking an answer about the reports that are left serves others who ask. All databases
/// of a node ask within less after an outage of RabbitMQ, and it is far less than reports get after any outage.
const TOLD_LATELY: Duration = Duration::from_secs(1);

const BLOCKED: &str = "the broker has blocked the connection";

/// A batch that can be sent.
struct Run<'a> {
    route: &'a Route,
    lane: Arc<Lane>,
    address: Address,
    lease: Lease,
}

/// The reason why a batch is no longer awaited.
enum End {
    /// All confirms came, or the channel ended.
    Whole,
    /// The confirms will not come. With the outcome of a copy, if one was sent.
    Lost(Option<(usize, Published)>),
    Late,
}

/// Publishes over one connection, for as long as it lasts.
pub(super) struct Publisher {
    pub(super) link: Arc<Link>,
    pub(super) channels: Arc<Channels>,
    pub(super) heard: LastConfirm,
    routes: Routes,
    refusals: Arc<Refusals>,
    confirm_within: Duration,
    metrics: Arc<BrokerMetrics>,
    /// Held while the broker is sounded out, with the end of the last time that it did not confirm: once is enough for
    /// all who ask.
    sounding: Mutex<Option<Instant>>,
    /// Held while the broker is asked whether many reports are left, with its last answer and the moment of asking.
    reports: Mutex<Option<(bool, Instant)>>,
}

impl Publisher {
    pub(super) fn new(
        link: Arc<Link>,
        strangers: Arc<Strangers>,
        refusals: Arc<Refusals>,
        confirm_within: Duration,
        metrics: Arc<BrokerMetrics>,
    ) -> Self {
        let channels = Arc::new(Channels::new(Arc::clone(&link)));
        let routes = Routes::new(Arc::clone(&link), strangers);
        let (heard, sounding, reports) = (LastConfirm::default(), Mutex::default(), Mutex::default());
        Self { link, channels, heard, routes, refusals, confirm_within, metrics, sounding, reports }
    }

    /// Makes the route ready and opens channels until so many are free, within the time that a batch waits for them.
    pub(super) async fn prepare(&self, route: &Route, channels: usize) {
        if self.link.is_blocked() {
            return;
        }
        let (lane, until) = (self.routes.lane(route), Instant::now() + START_WITHIN);
        let ready = match tokio::time::timeout(START_WITHIN, self.routes.make_ready(&lane, route)).await {
            // A channel that is given up while it opens would cost the connection its number for good.
            Ok(Ok(())) => self.channels.add_until_free(channels, until).await,
            Ok(Err(error)) => Err(error),
            Err(_) => return,
        };
        if let Err(error) = ready {
            tracing::debug!(error = error.explained(), "the way to a queue is not ready before its messages are due");
        }
    }

    /// Whether [`Self::prepare`] would do nothing.
    pub(super) fn is_ready(&self, route: &Route, channels: usize) -> bool {
        self.routes.has_declared(route) && self.channels.has_free(channels)
    }

    /// Publishes the batch together or, on a route on which the broker lately refused a message, one by one: the broker
    /// does not name the message, and leaves those around it without a confirm.
    pub(super) async fn publish(self: &Arc<Self>, route: &Route, batch: &[Outgoing]) -> Vec<Published> {
        if !self.refusals.has_recent(route) {
            return self.publish_together(route, batch).await;
        }
        let (begun, mut published) = (Instant::now(), Vec::with_capacity(batch.len()));
        while let Some(one) = batch.get(published.len()..published.len() + 1) {
            published.extend(self.publish_together(route, one).await);
            let reason = match published.last().map(|last| &last.outcome) {
                Some(Outcome::Unknown(reason)) => reason.clone(),
                _ if begun.elapsed() > START_WITHIN => "the messages before it took too long".to_owned(),
                _ => continue,
            };
            published.extend(not_sent(&batch[published.len()..], &reason));
        }
        published
    }

    async fn publish_together(self: &Arc<Self>, route: &Route, batch: &[Outgoing]) -> Vec<Published> {
        let run = match self.start(route, batch).await {
            Ok(run) => run,
            Err(reason) => return not_sent(batch, &reason),
        };
        self.fly(run, batch, |lane, awaited| async move { self.lost(route, batch, &lane, &awaited).await }).await
    }

    /// Publishes a copy of one message and waits for its confirm, as for a batch.
    pub(super) async fn publish_copy(&self, route: &Route, copy: Outgoing) -> Option<Published> {
        let batch = [copy];
        let published = match self.start(route, &batch).await {
            Ok(run) => self.fly(run, &batch, |_, _| std::future::pending()).await,
            Err(reason) => not_sent(&batch, &reason),
        };
        published.into_iter().next()
    }

    /// Whether the broker takes messages now. RabbitMQ tells a connection of an alarm only when it publishes. So
    /// without a recent confirm, one message to no queue asks.
    pub(super) async fn takes_messages(&self) -> bool {
        let asked = Instant::now();
        let mut silent_until = self.sounding.lock().await;
        if self.link.is_blocked() || silent_until.is_some_and(|until| asked < until) {
            return false;
        }
        if self.heard.silence() < CONFIRMED_LATELY {
            return true;
        }
        let sounded = async {
            let lease = self.channels.lease().await.ok()?;
            spawn_child(sound(lease)).await.ok()?
        };
        let is_confirmed = matches!(tokio::time::timeout(START_WITHIN, sounded).await, Ok(Some(())));
        if is_confirmed {
            self.heard.now();
        } else {
            *silent_until = Some(Instant::now());
        }
        is_confirmed
    }

    /// Whether many reports or rejections are left, and when the broker was asked. One that does not tell may have
    /// many.
    pub(super) async fn has_many_reports(&self) -> (bool, Instant) {
        let wanted = Instant::now();
        let mut last = self.reports.lock().await;
        let serves = |asked: Instant| wanted.saturating_duration_since(asked) < TOLD_LATELY && self.link.is_connected();
        if let Some(told) = last.filter(|(_, asked)| serves(*asked)) {
            return told;
        }
        let asked = Instant::now();
        let are_many = are_many_left(&self.link).await.unwrap_or_else(|error| {
            tracing::debug!(error = error.explained(), "RabbitMQ does not tell how many reports wait");
            true
        });
        *last = Some((are_many, asked));
        (are_many, asked)
    }

    /// Makes the route ready and takes a channel for a batch, while the batch may be sent. An error says why it cannot
    /// be sent.
    async fn start<'a>(&self, route: &'a Route, batch: &[Outgoing]) -> Result<Run<'a>, String> {
        if self.link.is_blocked() {
            return Err(BLOCKED.to_owned());
        }
        let address = Address::new(route, batch, self.link.user());
        let address = address.ok_or_else(|| "the name is too long for AMQP".to_owned())?;
        let lane = self.routes.lane(route);
        let start = async {
            self.routes.make_ready(&lane, route).await?;
            self.channels.lease().await
        };
        match tokio::time::timeout(START_WITHIN, start).await {
            Ok(Ok(lease)) if is_too_late(batch) => {
                lease.give_back();
                Err(TOO_LATE.to_owned())
            }
            Ok(Ok(lease)) => Ok(Run { route, lane, address, lease }),
            Ok(Err(error)) => Err(error.explained()),
            Err(_) => Err("neither the queue nor a channel was ready in time".to_owned()),
        }
    }

    /// Sends the batch and waits for its confirms, until `lost` reports that they are lost.
    async fn fly<F>(
        &self,
        run: Run<'_>,
        batch: &[Outgoing],
        lost: impl FnOnce(Arc<Lane>, Awaited) -> F,
    ) -> Vec<Published>
    where
        F: Future<Output = Option<(usize, Published)>>,
    {
        let Run { route, lane, address, mut lease } = run;
        let begun = Instant::now();
        let mut flight = Flight::new(batch.len(), self.heard.clone());
        let lost = lost(Arc::clone(&lane), flight.awaited());
        let channel = lease.begin();
        let whole = flight.fly(channel, &address, batch, !lane.is_proven());
        let end = tokio::select! {
            biased;
            () = whole => End::Whole,
            copy = lost => End::Lost(copy),
            () = tokio::time::sleep(self.confirm_within) => End::Late,
        };
        let is_whole = matches!(end, End::Whole);
        match end {
            End::Whole => {}
            End::Late => flight.take_what_is_there(format!("no confirm within {:?}", self.confirm_within)),
            End::Lost(copy) => {
                flight.take_what_is_there("no confirm, although a later message was confirmed".to_owned());
                if let Some((index, copy)) = copy {
                    flight.settle_by_copy(index, copy.outcome);
                }
            }
        }
        if let Some(sent_at) = flight.sent_at {
            self.metrics.confirm_seconds.observe(sent_at.elapsed().as_secs_f64());
        }
        if flight.is_whole() {
            lane.answered(begun);
        }
        if flight.refusal(batch).is_some() {
            self.refusals.note(route);
        } else {
            lane.learn(&flight);
        }
        self.end_lease(lease, &flight, !is_whole).await;
        flight.judge(batch)
    }

    /// Publishes a message that cannot be a task, alone on its channel, so that a return is its own. Returns
    /// when the broker has confirmed it. If its queue was deleted, declares the queue again for the next try.
    pub(super) async fn set_aside(&self, received: &Received, reason: &str) -> Result<(), String> {
        // It would wait for a confirm until it costs the connection.
        if self.link.is_blocked() {
            return Err(BLOCKED.to_owned());
        }
        let lease = tokio::time::timeout(START_WITHIN, self.channels.lease()).await;
        let mut lease = match lease {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return Err(error.explained()),
            Err(_) => return Err("no channel was free in time".to_owned()),
        };
        let channel = lease.begin().clone();
        let properties = envelope::set_aside(received, reason, self.link.user());
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let confirmed = async {
            channel.basic_publish("".into(), INVALID.into(), options, &received.message.body, properties).await?.await
        };
        match tokio::time::timeout(self.confirm_within, confirmed).await {
            Ok(Ok(confirmation)) => {
                lease.give_back();
                let is_ack = confirmation.is_ack();
                if confirmation.take_message().is_some() {
                    self.routes.declare_invalid().await.map_err(|error| error.explained())?;
                    return Err(format!("the queue `{INVALID}` was missing, and is declared again"));
                }
                if is_ack { Ok(()) } else { Err(format!("the queue `{INVALID}` did not accept it")) }
            }
            Ok(Err(error)) => {
                drop(lease.discard());
                Err(error.to_string())
            }
            // The message may still arrive. It is set aside twice then, which is better than copies of all others.
            Err(_) => {
                self.close(lease.discard()).await;
                Err(format!("no confirm within {:?}", self.confirm_within))
            }
        }
    }

    /// Ends the use of the channel. Returns only when nothing of the batch can still be sent.
    async fn end_lease(&self, lease: Lease, flight: &Flight, late: bool) {
        if flight.is_whole() {
            return lease.give_back();
        }
        if !late {
            // The broker has closed the channel and ignores frames that may still arrive on it, or the
            // connection is gone.
            drop(lease.discard());
            if !self.link.is_connected() {
                self.link.cut(flight.trouble());
            }
            return;
        }
        let channel = lease.discard();
        if !flight.is_written() {
            // A close would overtake frames that still wait to be written.
            return self.link.cut("the broker did not read the published messages in time");
        }
        self.close(channel).await;
    }

    /// Closes a channel on which a message was not confirmed. A broker that does not answer loses the connection.
    async fn close(&self, channel: lapin::Channel) {
        let close = channel.close(200, "OK".into());
        if let Err(error) = answer(|| "close a channel".to_owned(), ANSWER_WITHIN, close).await {
            self.link.cut(error.explained());
        }
    }
}

/// Publishes a message to no queue. It keeps its channel until the confirm, which comes after the alarm.
async fn sound(mut lease: Lease) -> Option<()> {
    let (channel, options) = (lease.begin(), BasicPublishOptions::default());
    let confirmed = async {
        channel.basic_publish("".into(), NOWHERE.into(), options, &[], BasicProperties::default()).await?.await
    };
    if confirmed.await.is_err() {
        // The broker has closed the channel, or the connection is gone.
        drop(lease.discard());
        return None;
    }
    lease.give_back();
    Some(())
}

/// The outcomes of a batch that was not sent. They are `Unknown` all the same: an earlier copy may have been
/// published.
pub(super) fn not_sent(batch: &[Outgoing], reason: &str) -> Vec<Published> {
    let published = |outgoing: &Outgoing| Published {
        id: outgoing.delivery.id,
        attempt: outgoing.delivery.attempt,
        sent_at: None,
        outcome: Outcome::Unknown(reason.to_owned()),
    };
    batch.iter().map(published).collect()
}
