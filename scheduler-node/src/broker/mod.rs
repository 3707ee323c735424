//! The connection to RabbitMQ: publishes deliveries, and reads submissions, reports and rejections.
//!
//! In reading order:
//! - [`keeper`] holds a connection for publishing and one for consuming, and replaces each at the first doubt.
//! - [`publisher`] sends each batch over a channel of its own and returns the outcome of every message.
//! - [`consumer`] reads results and rejections.
//! - [`intake`] reads submissions.
//! - [`answers`] tells consumers to stop, over a connection of its own.
//! - [`worker`] is the other side, a consumer of tasks.
//!
//! The outcome of a message is never a guess: it is taken, refused or unknown.

mod ack;
mod addresses;
mod answers;
mod channels;
mod connection;
mod consumer;
mod endpoints;
mod envelope;
mod error;
mod flight;
mod hold;
mod intake;
mod keeper;
mod login;
mod lost;
mod message;
mod metrics;
mod publish;
mod published;
mod publisher;
mod reading;
mod received;
mod route;
mod routes;
mod screened;
mod shared;
mod state;
mod subscription;
#[cfg(test)]
pub(crate) mod tests;
mod topology;
mod worker;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use common::ids::{Attempt, ClusterId, TaskId};
use common::outcome::Outcome;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use self::{
    consumer::{Incoming, MOST_HELD, Source},
    intake::ExchangeTroubles,
    login::{Identity, Login, Tls},
    message::Outgoing,
    metrics::BrokerMetrics,
    publish::Publish,
    published::{NotTaken, Published},
    received::{DelayExchange, IntakeSource, Received},
    route::{QueueDeclaration, Route},
    state::BrokerState,
    worker::{Handed, Reply, ReportRefusal, Reports, Subject, Task, Worker},
};
use self::{
    keeper::Keeper,
    shared::Shared,
    state::{Board, Role},
};

/// The longest time for the orderly close of both connections; the process does not wait longer.
const CLOSE_WITHIN: Duration = Duration::from_secs(6);

#[derive(Clone, Debug)]
pub struct AmqpSettings {
    pub login: Login,
    /// Whether the node also consumes submissions, results and rejections.
    pub consume: bool,
    pub delay_exchanges: Vec<DelayExchange>,
    /// `None`: the virtual host may belong to any cluster.
    pub cluster: Option<ClusterGate>,
}

/// The cluster that the virtual host must belong to, as soon as each connection may open.
#[derive(Clone, Debug)]
pub struct ClusterGate {
    pub publishing: watch::Receiver<Option<ClusterId>>,
    pub consuming: watch::Receiver<Option<ClusterId>>,
}

/// A handle on the broker. Clones share its connections.
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
}

impl Broker {
    /// Returns the handle and the keeper of its connections. The keeper must run for anything to happen; it
    /// ends after [`Broker::close`].
    pub fn new(
        settings: AmqpSettings,
        metrics: Arc<BrokerMetrics>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        Self::with_confirm_deadline(settings, metrics, publisher::CONFIRM_WITHIN)
    }

    fn with_confirm_deadline(
        settings: AmqpSettings,
        metrics: Arc<BrokerMetrics>,
        confirm_within: Duration,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let mut roles = vec![Role::Publishing];
        if settings.consume {
            roles.push(Role::Consuming);
        }
        let (incoming, untaken) = mpsc::channel(consumer::INCOMING);
        let (received, unreceived) = mpsc::channel(intake::RECEIVED);
        let (answers, asked) = mpsc::channel(answers::WAITING);
        let shared = Arc::new(Shared {
            login: settings.login,
            board: Board::new(&roles, Arc::clone(&metrics)),
            publisher: ArcSwapOption::empty(),
            answers,
            incoming,
            untaken: Mutex::new(Some(untaken)),
            holds_more: watch::Sender::new(false),
            received,
            unreceived: Mutex::new(Some(unreceived)),
            delay_exchanges: watch::Sender::new(settings.delay_exchanges.into()),
            cluster: settings.cluster,
            exchange_troubles: ExchangeTroubles::default(),
            strangers: Arc::default(),
            refusals: Arc::default(),
            confirm_within,
            metrics,
            stop: CancellationToken::new(),
            stopped: CancellationToken::new(),
        });
        let broker = Self { shared: Arc::clone(&shared) };
        let keepers: Vec<_> = roles.into_iter().map(|role| Keeper::new(&shared, role).run()).collect();
        let keeper = async move {
            tokio::join!(futures::future::join_all(keepers), answers::send_all(&shared.login, &shared.stop, asked));
            shared.stopped.cancel();
        };
        (broker, keeper)
    }

    pub fn state(&self) -> watch::Receiver<BrokerState> {
        self.shared.board.subscribe()
    }

    /// Publishes one batch of one route and returns the outcome of each message, in the order of the batch.
    /// Returns when all outcomes are known or the confirm deadline (30 s) is over; at once when there is no
    /// connection or the broker blocks it.
    ///
    /// Every message that is not `Done` may be published again after the return: no copy of it waits in this
    /// node to be sent. The publish runs to its end even if the caller goes away.
    pub async fn publish(&self, route: &Route, batch: Vec<Outgoing>) -> Vec<Published> {
        let Some(publisher) = self.shared.publisher.load_full() else {
            return publisher::not_sent(&batch, &self.shared.board.why_down());
        };
        let ids: Vec<(TaskId, Attempt)> = batch.iter().map(|of| (of.delivery.id, of.delivery.attempt)).collect();
        let route = route.clone();
        let child = crate::supervise::spawn_child(async move { publisher.publish(&route, &batch).await });
        child.await.unwrap_or_else(|error| {
            // The task panicked, or the runtime is going down. The lease has cut the connection.
            let unknown = |(id, attempt)| Published {
                id,
                attempt,
                sent_at: None::<Instant>,
                outcome: Outcome::Unknown(error.to_string()),
            };
            ids.into_iter().map(unknown).collect()
        })
    }

    /// Makes the route ready for batches that are published soon, and opens channels until so many are free. It tells
    /// of no error: each batch makes ready what is missing, and meets the error.
    pub async fn prepare(&self, route: &Route, channels: usize) {
        let Some(publisher) = self.shared.publisher.load_full() else { return };
        let route = route.clone();
        // It tells of no panic either.
        let _ = crate::supervise::spawn_child(async move { publisher.prepare(&route, channels).await }).await;
    }

    /// Whether the queue of the route is declared and so many channels are free, or there is no connection for either.
    pub fn is_ready(&self, route: &Route, channels: usize) -> bool {
        self.shared.publisher.load_full().is_none_or(|publisher| publisher.is_ready(route, channels))
    }

    /// Whether the broker takes messages now. After some seconds without a message it is sounded out: RabbitMQ does not
    /// tell a quiet connection that it is short of memory or disk.
    pub async fn takes_messages(&self) -> bool {
        match self.shared.publisher.load_full() {
            Some(publisher) => publisher.takes_messages().await,
            None => false,
        }
    }

    /// Whether many reports or rejections are left in their queues, and when the broker was asked. An answer serves all
    /// who ask within a moment, as long as the connection lives. `None`: there is no connection.
    pub async fn has_many_reports(&self) -> Option<(bool, Instant)> {
        Some(self.shared.publisher.load_full()?.has_many_reports().await)
    }

    /// The channel of results and rejections, which outlives reconnects. The same message may come again.
    ///
    /// # Panics
    /// When called a second time.
    pub fn incoming(&self) -> mpsc::Receiver<Incoming> {
        self.shared.untaken.lock().take().expect("one reader takes the returned messages")
    }

    /// Lets this node hold more messages of each queue without an answer than usual, or no longer: those that it cannot
    /// write wait at this node, and others come.
    pub fn hold_more(&self, holds_more: bool) {
        self.shared.holds_more.send_if_modified(|held| std::mem::replace(held, holds_more) != holds_more);
    }

    /// The channel of submissions, which outlives reconnects. The same message may come again.
    ///
    /// # Panics
    /// When called a second time.
    pub fn received(&self) -> mpsc::Receiver<Received> {
        self.shared.unreceived.lock().take().expect("one reader takes the submissions")
    }

    /// Publishes a message that cannot be a task to the queue where a person finds it. Returns when that is
    /// confirmed.
    pub async fn set_aside(&self, received: &Received, reason: &str) -> Result<(), String> {
        match self.shared.publisher.load_full() {
            Some(publisher) => publisher.set_aside(received, reason).await,
            None => Err(self.shared.board.why_down()),
        }
    }

    /// Consumes from these delay exchanges instead of those before. A new one is declared first. One that is no longer
    /// among them stays at the broker with its queue, where its messages wait.
    pub fn set_delay_exchanges(&self, exchanges: Vec<DelayExchange>) {
        self.shared.delay_exchanges.send_replace(exchanges.into());
    }

    pub fn exchange_troubles(&self) -> ExchangeTroubles {
        self.shared.exchange_troubles.clone()
    }

    /// Closes both connections in order and ends the keeper. The outcomes of messages still in flight become unknown.
    pub async fn close(&self) {
        self.shared.stop.cancel();
        // Without a running keeper there is nothing to wait for.
        let _ = tokio::time::timeout(CLOSE_WITHIN, self.shared.stopped.cancelled()).await;
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker").field("state", &*self.shared.board.subscribe().borrow()).finish_non_exhaustive()
    }
}
