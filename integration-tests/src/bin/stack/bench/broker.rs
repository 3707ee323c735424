//! RabbitMQ as this program itself uses it: publishing with confirms, and queues.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, Result, ensure};
use futures::future::{join_all, try_join_all};
use integration_tests::clock::now_us;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind, PublisherConfirm,
    options::{
        BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use tokio::{
    sync::{Semaphore, mpsc},
    time::{Instant, timeout_at},
};

use super::instants::Task;

const CHANNELS: usize = 4;
/// Messages of a channel that are published before the first of their confirms is awaited.
const BATCH: usize = 256;
/// Batches of a channel that wait for confirms.
const IN_FLIGHT: usize = 2;
pub(crate) const PUBLISHING: &str = "4 channels, persistent, confirms, 512 unconfirmed a channel";

/// Where a message goes, and what it is.
#[derive(Debug)]
pub(crate) struct Message {
    pub exchange: &'static str,
    pub key: String,
    pub payload: String,
    pub properties: BasicProperties,
    /// The broker returns it when no queue takes it, as a node asks for.
    pub mandatory: bool,
}

impl Message {
    /// A persistent message to a queue.
    pub(crate) fn to(queue: &str, payload: String) -> Self {
        let properties = BasicProperties::default().with_delivery_mode(2);
        Self { exchange: "", key: queue.to_owned(), payload, properties, mandatory: false }
    }
}

/// A connection with channels that confirm.
#[derive(Debug)]
pub(crate) struct Broker {
    connection: Connection,
    channels: Vec<Channel>,
}

impl Broker {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        Self::with_channels(url, CHANNELS).await
    }

    pub(crate) async fn with_channels(url: &str, count: usize) -> Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let mut channels = Vec::new();
        for _ in 0..count {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            channels.push(channel);
        }
        Ok(Self { connection, channels })
    }

    pub(crate) fn channels(&self) -> &[Channel] {
        &self.channels
    }

    /// A quorum queue that refuses rather than drops.
    pub(crate) async fn queue(&self, name: &str, more: &[(&'static str, AMQPValue)]) -> Result<()> {
        let overflow = ("x-overflow", AMQPValue::LongString("reject-publish".into()));
        self.quorum_queue(name, &[&[overflow][..], more].concat()).await
    }

    /// A quorum queue with these arguments alone.
    pub(crate) async fn quorum_queue(&self, name: &str, more: &[(&'static str, AMQPValue)]) -> Result<()> {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        for (key, value) in more {
            arguments.insert((*key).into(), value.clone());
        }
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        let channel = self.connection.create_channel().await?;
        channel.queue_declare(name.into(), options, arguments).await.with_context(|| format!("declaring {name}"))?;
        Ok(())
    }

    /// A durable exchange.
    pub(crate) async fn exchange(&self, name: &str, kind: ExchangeKind) -> Result<()> {
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let channel = self.connection.create_channel().await?;
        let declared = channel.exchange_declare(name.into(), kind, options, FieldTable::default());
        declared.await.with_context(|| format!("declaring the exchange {name}"))
    }

    /// An exchange of the delayed-message plugin, bound to the queue.
    pub(crate) async fn delayed_exchange(&self, exchange: &str, queue: &str) -> Result<()> {
        let mut arguments = FieldTable::default();
        arguments.insert("x-delayed-type".into(), AMQPValue::LongString("direct".into()));
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let kind = ExchangeKind::Custom("x-delayed-message".into());
        let channel = self.connection.create_channel().await?;
        channel.exchange_declare(exchange.into(), kind, options, arguments).await.context("the plugin's exchange")?;
        self.bind(queue, exchange, queue).await
    }

    pub(crate) async fn bind(&self, queue: &str, exchange: &str, key: &str) -> Result<()> {
        let (channel, options) = (self.connection.create_channel().await?, QueueBindOptions::default());
        let bound = channel.queue_bind(queue.into(), exchange.into(), key.into(), options, FieldTable::default());
        bound.await.with_context(|| format!("binding {queue} to {exchange}"))
    }

    /// Publishes all tasks over all channels and waits for the confirms.
    pub(crate) async fn publish_all(&self, tasks: &[Task], message: impl Fn(Task) -> Message) -> Result<()> {
        let share = tasks.len().div_ceil(self.channels.len()).max(1);
        let parts = tasks.chunks(share).zip(&self.channels);
        try_join_all(parts.map(async |(tasks, channel)| {
            let mut flight = Flight::default();
            for batch in tasks.chunks(BATCH) {
                flight.add(publish_batch(channel, batch.iter().copied(), &message).await?).await?;
            }
            flight.land().await
        }))
        .await
        .map(drop)
    }

    /// Publishes over all channels until then, each message with a number of its own, from 0. Each takes a permit of
    /// `room` for good. Returns how many messages the broker has confirmed: all of them.
    pub(crate) async fn publish_while_room(
        &self,
        room: &Semaphore,
        until: Instant,
        message: impl Fn(u64) -> Message,
    ) -> Result<u64> {
        let next = AtomicU64::new(0);
        try_join_all(self.channels.iter().map(async |channel| {
            let mut flight = Flight::default();
            while Instant::now() < until
                && let Ok(permits) = timeout_at(until, room.acquire_many(BATCH as u32)).await
            {
                permits.context("it is never closed")?.forget();
                let first = next.fetch_add(BATCH as u64, Ordering::Relaxed);
                flight.add(publish_batch(channel, first..first + BATCH as u64, &message).await?).await?;
            }
            flight.land().await
        }))
        .await?;
        Ok(next.into_inner())
    }

    /// Publishes tasks as they come, without waiting for the confirms in between.
    pub(crate) async fn publish_as_they_come(
        &self,
        mut tasks: mpsc::Receiver<Vec<Task>>,
        message: impl Fn(Task) -> Message,
    ) -> Result<()> {
        let (sender, mut receiver) = mpsc::channel::<Vec<PublisherConfirm>>(100_000);
        let publishing = async {
            let mut turn = self.channels.iter().cycle();
            while let Some(now) = tasks.recv().await {
                let sending = now.into_iter().zip(&mut turn).map(|(task, channel)| publish(channel, message(task)));
                let sent: Vec<PublisherConfirm> = join_all(sending).await.into_iter().collect::<Result<_>>()?;
                sender.send(sent).await.ok();
            }
            drop(sender);
            anyhow::Ok(())
        };
        let confirming = async {
            while let Some(sent) = receiver.recv().await {
                confirmed(sent).await?;
            }
            anyhow::Ok(())
        };
        tokio::try_join!(publishing, confirming).map(drop)
    }
}

/// The batches of a channel that wait for their confirms: at most [`IN_FLIGHT`].
#[derive(Debug, Default)]
struct Flight(VecDeque<Vec<PublisherConfirm>>);

impl Flight {
    async fn add(&mut self, sent: Vec<PublisherConfirm>) -> Result<()> {
        self.0.push_back(sent);
        match self.0.len() >= IN_FLIGHT {
            true => confirmed(self.0.pop_front().unwrap_or_default()).await,
            false => Ok(()),
        }
    }

    async fn land(self) -> Result<()> {
        confirmed(self.0.into_iter().flatten().collect()).await
    }
}

/// Publishes one message and waits for its confirm.
pub(crate) async fn publish_one(channel: &Channel, message: Message) -> Result<()> {
    confirmed(vec![publish(channel, message).await?]).await
}

async fn publish(channel: &Channel, message: Message) -> Result<PublisherConfirm> {
    let Message { exchange, key, payload, properties, mandatory } = message;
    let options = BasicPublishOptions { mandatory, ..Default::default() };
    Ok(channel.basic_publish(exchange.into(), key.into(), options, payload.as_bytes(), properties).await?)
}

/// Makes each message when its turn comes: the connection sends the first ones meanwhile.
async fn publish_batch<T>(
    channel: &Channel,
    batch: impl Iterator<Item = T>,
    message: impl Fn(T) -> Message,
) -> Result<Vec<PublisherConfirm>> {
    let message = &message;
    join_all(batch.map(|one| async move { publish(channel, message(one)).await })).await.into_iter().collect()
}

async fn confirmed(sent: Vec<PublisherConfirm>) -> Result<()> {
    for confirm in sent {
        ensure!(confirm.await?.is_ack(), "the broker refused a message");
    }
    Ok(())
}

/// Milliseconds until the instant, rounded up so that no message comes early.
pub(crate) fn ms_until(due_us: i64) -> i64 {
    (due_us - now_us()).max(0).div_euclid(1_000) + 1
}
