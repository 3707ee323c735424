//! Messages that clients submit: those for Duetime's own tasks, and those that only wait here on their way to
//! another exchange.
//!
//! Each source is a queue with a consumer on a channel of its own. The exchanges in front of the delay queues are
//! declared periodically. An exchange that was deleted, or could not be declared, comes back as soon as nothing
//! is in its way.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use common::wire::{
    Message,
    amqp::{SUBMIT, addressed_to},
};
use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{
    connection::Link,
    envelope,
    error::Error,
    received::{DelayExchange, IntakeSource, Received},
    subscription::{Arrived, Subscription},
    topology::{self, Strangers},
};

/// The prefetch of each source: enough for several inserts, so that one is filled while another commits.
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
}

/// All sources of one connection.
pub(super) struct Intake {
    link: Arc<Link>,
    readers: Vec<SourceReader>,
    exchanges: Arc<[DelayExchange]>,
    strangers: Arc<Strangers>,
    troubles: ExchangeTroubles,
}

struct SourceReader {
    source: IntakeSource,
    subscription: Subscription,
}

impl Intake {
    pub(super) async fn open(
        link: &Arc<Link>,
        exchanges: &Arc<[DelayExchange]>,
        strangers: &Arc<Strangers>,
        troubles: &ExchangeTroubles,
    ) -> Result<Self, Error> {
        topology::declare_submit(link, strangers).await?;
        let mut intake = Self {
            link: Arc::clone(link),
            readers: vec![SourceReader::open(link, IntakeSource::Submit, SUBMIT.to_owned()).await?],
            exchanges: Arc::clone(exchanges),
            strangers: Arc::clone(strangers),
            troubles: troubles.clone(),
        };
        intake.declare_exchanges().await?;
        for (place, exchange) in exchanges.iter().enumerate() {
            intake.readers.push(SourceReader::open(link, IntakeSource::Delay(place), exchange.queue()).await?);
        }
        Ok(intake)
    }

    /// Hands over incoming messages until one of the sources ends, and returns the reason.
    pub(super) async fn forward(mut self, received: &mpsc::Sender<Received>) -> Error {
        let mut readers: FuturesUnordered<_> =
            std::mem::take(&mut self.readers).into_iter().map(|reader| reader.forward(received)).collect();
        tokio::select! {
            Some(error) = readers.next() => error,
            error = self.keep_exchanges() => error,
        }
    }

    async fn keep_exchanges(&self) -> Error {
        if self.exchanges.is_empty() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(DECLARE_EVERY).await;
            if let Err(error) = self.declare_exchanges().await {
                return error;
            }
        }
    }

    async fn declare_exchanges(&self) -> Result<(), Error> {
        for exchange in &*self.exchanges {
            let trouble = topology::declare_delay_exchange(&self.link, exchange, &self.strangers).await?;
            self.troubles.note(&exchange.name, trouble);
        }
        Ok(())
    }
}

impl SourceReader {
    async fn open(link: &Link, source: IntakeSource, queue: String) -> Result<Self, Error> {
        Ok(Self { source, subscription: Subscription::open(link, queue, PREFETCH).await? })
    }

    async fn forward(mut self, received: &mpsc::Sender<Received>) -> Error {
        loop {
            match self.subscription.next().await {
                Ok(arrived) => {
                    if received.send(self.read(arrived)).await.is_err() {
                        // This node takes no more messages; they wait at the broker for another node.
                        return std::future::pending().await;
                    }
                }
                Err(error) => return error,
            }
        }
    }

    fn read(&self, arrived: Arrived) -> Received {
        let Arrived { delivery, ack, trouble } = arrived;
        let message = Message {
            routing_key: delivery.routing_key.as_str().to_owned(),
            addressed_to: addressed_to(delivery.exchange.as_str(), delivery.routing_key.as_str())
                .map(ToOwned::to_owned),
            properties: envelope::read(&delivery.properties),
            body: delivery.data,
        };
        Received { source: self.source, message, trouble, ack, exchange: delivery.exchange.as_str().to_owned() }
    }
}
