//! What is submitted: messages for tasks of their own kind, and those that only wait here on their way to another exchange.
//!
//! Each door is a queue with a consumer on a channel of its own. The exchanges in front of the delay doors are declared again and
//! again, so that one that was deleted, or stood in the way, is there once the way is free.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use common::wire::{
    Message,
    amqp::{ExchangeType, SUBMIT, addressed_to},
    screen::Trouble,
};
use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{
    connection::Link,
    consumer::AckHandle,
    envelope,
    error::Error,
    subscription::{Arrived, Subscription},
    topology::{self, Strangers},
};

/// Sent ahead of our acks, for each door: some inserts' worth, so that one is filled while another commits. What they may take in
/// memory is bounded by `hold.rs`.
const PREFETCH: u16 = 1_000;
/// Handed over and not yet taken. Full, it stops the reading, and prefetch stops the broker.
pub(super) const RECEIVED: usize = 1_000;
/// An exchange that is deleted under its publishers is back after this long.
const DECLARE_EVERY: Duration = Duration::from_secs(10);

/// Behind it a queue of ours takes everything that is published to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayExchange {
    pub name: String,
    pub kind: ExchangeType,
}

impl DelayExchange {
    /// The queue behind it.
    pub(super) fn queue(&self) -> String {
        format!("duetime.delay.{}", self.name)
    }
}

/// Where a message came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Submit,
    /// The delay exchange at this place of the configuration.
    Delay(usize),
}

/// One message that came in. Anyone with access to the broker may have written it: nothing in it is checked.
#[derive(Debug)]
pub struct Received {
    pub door: Door,
    pub message: Message,
    /// Why it did not come as it is; then it cannot be a task.
    pub trouble: Option<Trouble>,
    pub ack: AckHandle,
    /// It was published to.
    pub(super) exchange: String,
}

/// Why the exchanges of some delay doors are not ours, by name; empty when all is well.
#[derive(Clone, Debug, Default)]
pub struct DoorTroubles(Arc<Mutex<BTreeMap<String, String>>>);

impl DoorTroubles {
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

/// All doors of one connection.
pub(super) struct Intake {
    link: Arc<Link>,
    doors: Vec<OpenDoor>,
    exchanges: Arc<[DelayExchange]>,
    strangers: Arc<Strangers>,
    troubles: DoorTroubles,
}

struct OpenDoor {
    door: Door,
    subscription: Subscription,
}

impl Intake {
    pub(super) async fn open(
        link: &Arc<Link>,
        exchanges: &Arc<[DelayExchange]>,
        strangers: &Arc<Strangers>,
        troubles: &DoorTroubles,
    ) -> Result<Self, Error> {
        topology::declare_submit(link, strangers).await?;
        let mut intake = Self {
            link: Arc::clone(link),
            doors: vec![OpenDoor::open(link, Door::Submit, SUBMIT.to_owned()).await?],
            exchanges: Arc::clone(exchanges),
            strangers: Arc::clone(strangers),
            troubles: troubles.clone(),
        };
        intake.declare_exchanges().await?;
        for (place, exchange) in exchanges.iter().enumerate() {
            intake.doors.push(OpenDoor::open(link, Door::Delay(place), exchange.queue()).await?);
        }
        Ok(intake)
    }

    /// Hands over what comes in until one of the doors closes, and says why.
    pub(super) async fn forward(mut self, received: &mpsc::Sender<Received>) -> Error {
        let mut doors: FuturesUnordered<_> =
            std::mem::take(&mut self.doors).into_iter().map(|door| door.forward(received)).collect();
        tokio::select! {
            Some(error) = doors.next() => error,
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

impl OpenDoor {
    async fn open(link: &Link, door: Door, queue: String) -> Result<Self, Error> {
        Ok(Self { door, subscription: Subscription::open(link, queue, PREFETCH).await? })
    }

    async fn forward(mut self, received: &mpsc::Sender<Received>) -> Error {
        loop {
            match self.subscription.next().await {
                Ok(arrived) => {
                    if received.send(self.read(arrived)).await.is_err() {
                        // Nothing takes them any more; they wait at the broker for another node.
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
        Received { door: self.door, message, trouble, ack, exchange: delivery.exchange.as_str().to_owned() }
    }
}
