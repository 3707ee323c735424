//! The connection to RabbitMQ: publishes deliveries, and reads submissions, reports and rejections.
//!
//! In reading order:
//! - [`keeper`] holds a connection for publishing and one for consuming, and replaces each at the first doubt.
//! - [`publisher`] sends each batch over a channel of its own and returns the outcome of every message.
//! - [`consumer`] reads results and rejections.
//! - [`intake`] reads submissions.
//! - [`worker`] is the other side, a consumer of tasks.
//!
//! The outcome of a message is never a guess: it is taken, refused or unknown.

mod channels;
mod connection;
mod consumer;
mod envelope;
mod error;
mod flight;
mod hold;
mod intake;
mod keeper;
mod login;
mod lost;
mod message;
mod publisher;
mod routes;
mod screened;
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
use common::ids::{Attempt, TaskId};
use common::outcome::Outcome;
use parking_lot::Mutex;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntGauge, Registry};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::{
    connection::Link,
    keeper::Keeper,
    publisher::Publisher,
    state::{Board, Role},
    topology::Strangers,
};
pub use self::{
    consumer::{AckHandle, Incoming, Source},
    intake::{DelayExchange, Door, DoorTroubles, Received},
    login::{Identity, Login, Tls},
    message::Outgoing,
    publisher::{NotTaken, Published},
    routes::Route,
    state::BrokerState,
    topology::QueueDeclaration,
    worker::{Handed, Reply, Reports, Subject, Task, Worker},
};

/// The longest time for the orderly close of both connections; the process does not wait longer.
const CLOSE_WITHIN: Duration = Duration::from_secs(6);

#[derive(Clone, Debug)]
pub struct AmqpSettings {
    pub login: Login,
    /// Whether the node also consumes submissions, results and rejections.
    pub consume: bool,
    pub delay_exchanges: Vec<DelayExchange>,
}

#[derive(Debug)]
pub struct BrokerMetrics {
    pub up: IntGauge,
    pub blocked: IntGauge,
    pub confirm_seconds: Histogram,
    pub reconnects: IntCounter,
}

impl BrokerMetrics {
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        // The range reaches from a broker on the same machine to the deadline of a confirm.
        let buckets = vec![0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];
        let confirm = HistogramOpts::new(
            "duetime_broker_confirm_seconds",
            "Time from writing a batch to the socket until its last confirm",
        );
        let metrics = Self {
            up: IntGauge::new("duetime_broker_up", "1 while the node is connected to the broker")?,
            blocked: IntGauge::new("duetime_broker_blocked", "1 while the broker blocks the connection")?,
            confirm_seconds: Histogram::with_opts(confirm.buckets(buckets))?,
            reconnects: IntCounter::new("duetime_broker_reconnects_total", "Connections re-established after a loss")?,
        };
        registry.register(Box::new(metrics.up.clone()))?;
        registry.register(Box::new(metrics.blocked.clone()))?;
        registry.register(Box::new(metrics.confirm_seconds.clone()))?;
        registry.register(Box::new(metrics.reconnects.clone()))?;
        Ok(metrics)
    }
}

/// A handle on the broker. Clones share its connections.
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
}

struct Shared {
    login: Login,
    board: Board,
    /// Present while the publishing connection is up.
    publisher: ArcSwapOption<Publisher>,
    incoming: mpsc::Sender<Incoming>,
    untaken: Mutex<Option<mpsc::Receiver<Incoming>>>,
    received: mpsc::Sender<Received>,
    unreceived: Mutex<Option<mpsc::Receiver<Received>>>,
    delay_exchanges: Arc<[DelayExchange]>,
    door_troubles: DoorTroubles,
    strangers: Arc<Strangers>,
    confirm_within: Duration,
    metrics: Arc<BrokerMetrics>,
    stop: CancellationToken,
    stopped: CancellationToken,
}

impl Shared {
    fn offer_publisher(&self, link: &Arc<Link>) {
        let publisher = Publisher::new(
            Arc::clone(link),
            Arc::clone(&self.strangers),
            self.confirm_within,
            Arc::clone(&self.metrics),
        );
        self.publisher.store(Some(Arc::new(publisher)));
    }
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
        let shared = Arc::new(Shared {
            login: settings.login,
            board: Board::new(&roles, Arc::clone(&metrics)),
            publisher: ArcSwapOption::empty(),
            incoming,
            untaken: Mutex::new(Some(untaken)),
            received,
            unreceived: Mutex::new(Some(unreceived)),
            delay_exchanges: settings.delay_exchanges.into(),
            door_troubles: DoorTroubles::default(),
            strangers: Arc::default(),
            confirm_within,
            metrics,
            stop: CancellationToken::new(),
            stopped: CancellationToken::new(),
        });
        let broker = Self { shared: Arc::clone(&shared) };
        let keepers: Vec<_> = roles.into_iter().map(|role| Keeper::new(&shared, role).run()).collect();
        let keeper = async move {
            futures::future::join_all(keepers).await;
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

    /// The channel of results and rejections, which outlives reconnects. The same message may come again.
    ///
    /// # Panics
    /// When called a second time.
    pub fn incoming(&self) -> mpsc::Receiver<Incoming> {
        self.shared.untaken.lock().take().expect("one reader takes the returned messages")
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

    pub fn door_troubles(&self) -> DoorTroubles {
        self.shared.door_troubles.clone()
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
