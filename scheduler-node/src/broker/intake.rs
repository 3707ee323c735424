//! Messages that clients submit: those for Duetime's own tasks, and those that only wait here on their way to
//! another exchange.
//!
//! Each source is a queue with a consumer on a channel of its own. Duetime's exchanges and those in front of the delay
//! queues are declared periodically. An exchange that was deleted, or could not be declared, comes back as soon as
//! nothing is in its way. When the configured exchanges change, consumers begin and end on the open connection: a new
//! connection would bring again what is being stored, as a second task.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use common::wire::{
    Message,
    amqp::{SUBMIT, SUBMIT_KEY, addressed_to},
};
use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    connection::Link,
    envelope,
    error::Error,
    reading::Reading,
    received::{DelayExchange, IntakeSource, Received},
    subscription::Arrived,
    topology::{self, Strangers},
};

/// The usual prefetch of each source: enough for several inserts, so that one is filled while another commits.
/// `hold.rs` bounds the memory of these messages.
const PREFETCH: u16 = 1_000;
/// The number of messages handed over and not yet taken. When the channel is full, reading stops, and prefetch
/// stops the broker.
pub(super) const RECEIVED: usize = 1_000;
/// The interval of declarations: the longest time for which an exchange deleted under its publishers is missing.
const DECLARE_EVERY: Duration = Duration::from_secs(10);

/// The delay exchanges that could not be declared, by name, each with the reason. Empty when all is well.
#[derive(Clone, Debug, Default)]
pub struct ExchangeTroubles(Arc<Mutex<BTreeMap<String, String>>>);

impl ExchangeTroubles {
    pub fn reasons(&self) -> Vec<String> {
        self.0.lock().values().cloned().collect()
    }

    fn note(&self, exchange: &str, trouble: Option<String>) {
        let mut troubles = self.0.lock();
        match trouble {
            Some(trouble) if troubles.get(exchange) != Some(&trouble) => {
                tracing::warn!(exchange, "{trouble}");
                troubles.insert(exchange.to_owned(), trouble);
            }
            Some(_) => {}
            None => drop(troubles.remove(exchange)),
        }
    }

    /// Forgets the troubles of all other exchanges.
    fn keep(&self, exchanges: &[DelayExchange]) {
        self.0.lock().retain(|name, _| exchanges.iter().any(|of| of.name == *name));
    }
}

/// All sources of one connection.
pub(super) struct Intake {
    link: Arc<Link>,
    /// Sources that are open and not read yet.
    opened: Vec<SourceReader>,
    exchanges: watch::Receiver<Arc<[DelayExchange]>>,
    /// The delay exchanges that are read, by name. Dropping the guard ends the reader.
    consumed: HashMap<String, DropGuard>,
    strangers: Arc<Strangers>,
    troubles: ExchangeTroubles,
    /// Why Duetime's own exchanges could not be declared again the last time.
    own_trouble: Option<String>,
    holds_more: watch::Sender<bool>,
}

struct SourceReader {
    source: IntakeSource,
    reading: Reading,
    end: CancellationToken,
}

impl Intake {
    pub(super) async fn open(
        link: &Arc<Link>,
        exchanges: watch::Receiver<Arc<[DelayExchange]>>,
        strangers: &Arc<Strangers>,
        troubles: &ExchangeTroubles,
        holds_more: &watch::Sender<bool>,
    ) -> Result<Self, Error> {
        topology::declare_submit(link, strangers).await?;
        let submit = SourceReader {
            source: IntakeSource::Submit,
            reading: Reading::open(link, SUBMIT.to_owned(), PREFETCH, holds_more).await?,
            end: CancellationToken::new(),
        };
        let mut intake = Self {
            link: Arc::clone(link),
            opened: vec![submit],
            exchanges,
            consumed: HashMap::new(),
            strangers: Arc::clone(strangers),
            troubles: troubles.clone(),
            own_trouble: None,
            holds_more: holds_more.clone(),
        };
        intake.follow_exchanges().await?;
        Ok(intake)
    }

    /// Hands over incoming messages until one of the sources ends by itself, and returns the reason.
    pub(super) async fn forward(mut self, received: &mpsc::Sender<Received>) -> Error {
        let (link, (opened, mut more)) = (Arc::clone(&self.link), mpsc::channel(1));
        let mut readers: FuturesUnordered<_> = self.opened.drain(..).map(|reader| reader.forward(received)).collect();
        let following = self.keep_exchanges(opened);
        tokio::pin!(following);
        let error = loop {
            tokio::select! {
                // First, so that a change of the exchanges does not wait behind a queue full of messages.
                biased;
                error = &mut following => break error,
                Some(reader) = more.recv() => readers.push(reader.forward(received)),
                Some(end) = readers.next() => if let Err(error) = end {
                    break error;
                },
            }
        };
        if error.is_end_of_queue() {
            link.pass_acks().await;
        }
        error
    }

    async fn keep_exchanges(mut self, opened: mpsc::Sender<SourceReader>) -> Error {
        loop {
            // The sender lives as long as the node.
            let _ = tokio::time::timeout(DECLARE_EVERY, self.exchanges.changed()).await;
            if let Err(error) = self.follow_exchanges().await {
                return error;
            }
            for reader in self.opened.drain(..) {
                if opened.send(reader).await.is_err() {
                    return std::future::pending().await;
                }
            }
            if let Err(error) = self.keep_own().await {
                return error;
            }
        }
    }

    /// Declares Duetime's own exchanges and their bindings again: a person may have deleted some.
    async fn keep_own(&mut self) -> Result<(), Error> {
        let trouble = match topology::declare_ways_in(&self.link).await {
            Ok(()) => None,
            // The queues are read all the same. A connection that is not read opens no further channel.
            Err(error) if self.link.is_connected() => Some(error.explained()),
            Err(error) => return Err(error),
        };
        if trouble != self.own_trouble
            && let Some(error) = &trouble
        {
            tracing::warn!(error, "Duetime's exchanges cannot be declared again; without them no report comes");
        }
        self.own_trouble = trouble;
        Ok(())
    }

    /// Declares the configured exchanges, opens those that are not read yet, and ends the reading of all others.
    async fn follow_exchanges(&mut self) -> Result<(), Error> {
        let exchanges = Arc::clone(&self.exchanges.borrow_and_update());
        self.consumed.retain(|name, _| exchanges.iter().any(|of| of.name == *name));
        self.troubles.keep(&exchanges);
        for exchange in &*exchanges {
            let trouble = match self.follow(exchange).await {
                Ok(trouble) => trouble,
                Err(refusal) if refusal.is_refused_access() => Some(format!(
                    "this node may not use the queue of the delay exchange `{}`, so it delays no messages: grant its \
                     user the permission, or end the connection that has declared the queue for itself alone ({})",
                    exchange.name,
                    refusal.explained()
                )),
                // A queue without a leader keeps silent. A connection that is not read opens no further channel.
                Err(silence @ Error::Silent { .. }) if self.link.is_connected() => Some(format!(
                    "RabbitMQ does not answer for the queue of the delay exchange `{}`, so it delays no messages ({})",
                    exchange.name,
                    silence.explained()
                )),
                Err(error) => return Err(error),
            };
            self.troubles.note(&exchange.name, trouble);
        }
        Ok(())
    }

    /// Returns the reason if the exchange cannot be declared; its queue is read all the same.
    async fn follow(&mut self, exchange: &DelayExchange) -> Result<Option<String>, Error> {
        let trouble = topology::declare_delay_exchange(&self.link, exchange, &self.strangers).await?;
        if !self.consumed.contains_key(&exchange.name) {
            let end = CancellationToken::new();
            self.opened.push(SourceReader {
                source: IntakeSource::Delay(exchange.name.as_str().into()),
                reading: Reading::open(&self.link, exchange.queue(), PREFETCH, &self.holds_more).await?,
                end: end.clone(),
            });
            self.consumed.insert(exchange.name.clone(), end.drop_guard());
        }
        Ok(trouble)
    }
}

impl SourceReader {
    /// Runs until its end is asked for, or until the reading is over.
    async fn forward(mut self, received: &mpsc::Sender<Received>) -> Result<(), Error> {
        loop {
            let arrived = tokio::select! {
                biased;
                () = self.end.cancelled() => return self.reading.end().await,
                arrived = self.reading.next() => arrived?,
            };
            let Some(arrived) = arrived else {
                self.reading.follow().await?;
                continue;
            };
            if received.send(self.read(arrived)).await.is_err() {
                // This node takes no more messages; they wait at the broker for another node.
                return std::future::pending().await;
            }
        }
    }

    fn read(&self, arrived: Arrived) -> Received {
        let Arrived { delivery, ack, trouble } = arrived;
        let addressed_to = match self.source {
            IntakeSource::Submit => addressed_to(delivery.exchange.as_str(), delivery.routing_key.as_str(), SUBMIT_KEY),
            IntakeSource::Delay(_) => Ok(None),
        };
        let astray = addressed_to.err();
        let message = Message {
            routing_key: delivery.routing_key.as_str().to_owned(),
            addressed_to: addressed_to.ok().flatten().map(ToOwned::to_owned),
            redelivered: delivery.redelivered,
            properties: envelope::read(&delivery.properties),
            body: delivery.data,
        };
        let exchange = delivery.exchange.as_str().to_owned();
        Received { source: self.source.clone(), message, trouble, astray, ack, exchange }
    }
}
