//! RabbitMQ as the peers inside this program use it: publishing with confirms, and queues.

use std::collections::VecDeque;

use anyhow::{Context, Result, ensure};
use futures::future::{join_all, try_join_all};
use integration_tests::clock::now_us;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, PublisherConfirm,
    options::{
        BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use tokio::sync::mpsc;

use super::pace::Task;

const CHANNELS: usize = 4;
/// Messages of a channel that are published before the first of their confirms is awaited.
const BATCH: usize = 256;
/// Batches of a channel that wait for confirms.
const IN_FLIGHT: usize = 2;
pub(super) const PUBLISHING: &str = "4 channels, persistent, confirms, 512 unconfirmed a channel";

/// Where a message goes, and what it is.
#[derive(Debug)]
pub(super) struct Message {
    pub exchange: &'static str,
    pub key: &'static str,
    pub payload: String,
    pub properties: BasicProperties,
}

impl Message {
    /// A persistent message to a queue.
    pub(super) fn to(queue: &'static str, payload: String) -> Self {
        Self { exchange: "", key: queue, payload, properties: BasicProperties::default().with_delivery_mode(2) }
    }
}

/// A connection with channels that confirm.
#[derive(Debug)]
pub(super) struct Broker {
    connection: Connection,
    channels: Vec<Channel>,
}

impl Broker {
    pub(super) async fn connect(url: &str) -> Result<Self> {
        Self::with_channels(url, CHANNELS).await
    }

    pub(super) async fn with_channels(url: &str, count: usize) -> Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let mut channels = Vec::new();
        for _ in 0..count {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            channels.push(channel);
        }
        Ok(Self { connection, channels })
    }

    pub(super) fn channels(&self) -> &[Channel] {
        &self.channels
    }

    /// A quorum queue that refuses rather than drops, as Duetime declares its own.
    pub(super) async fn queue(&self, name: &str, more: &[(&'static str, AMQPValue)]) -> Result<()> {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
        for (key, value) in more {
            arguments.insert((*key).into(), value.clone());
        }
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        let channel = self.connection.create_channel().await?;
        channel.queue_declare(name.into(), options, arguments).await.with_context(|| format!("declaring {name}"))?;
        Ok(())
    }

    /// An exchange of the delayed-message plugin, bound to the queue.
    pub(super) async fn delayed_exchange(&self, exchange: &str, queue: &str) -> Result<()> {
        let mut arguments = FieldTable::default();
        arguments.insert("x-delayed-type".into(), AMQPValue::LongString("direct".into()));
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let kind = lapin::ExchangeKind::Custom("x-delayed-message".into());
        let channel = self.connection.create_channel().await?;
        channel.exchange_declare(exchange.into(), kind, options, arguments).await.context("the plugin's exchange")?;
        let bind = QueueBindOptions::default();
        channel.queue_bind(queue.into(), exchange.into(), queue.into(), bind, FieldTable::default()).await?;
        Ok(())
    }

    /// Publishes all tasks over all channels and waits for the confirms.
    pub(super) async fn publish_all(&self, tasks: &[Task], message: impl Fn(Task) -> Message) -> Result<()> {
        let share = tasks.len().div_ceil(self.channels.len()).max(1);
        let parts = tasks.chunks(share).zip(&self.channels);
        try_join_all(parts.map(async |(tasks, channel)| {
            let mut flying: VecDeque<Vec<PublisherConfirm>> = VecDeque::new();
            for batch in tasks.chunks(BATCH) {
                let sent = join_all(batch.iter().map(|task| publish(channel, message(*task)))).await;
                flying.push_back(sent.into_iter().collect::<Result<_>>()?);
                if flying.len() >= IN_FLIGHT
                    && let Some(oldest) = flying.pop_front()
                {
                    confirmed(oldest).await?;
                }
            }
            confirmed(flying.into_iter().flatten().collect()).await
        }))
        .await
        .map(drop)
    }

    /// Publishes tasks as they come, without waiting for the confirms in between.
    pub(super) async fn publish_as_they_come(
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

/// Publishes one message and waits for its confirm.
pub(super) async fn publish_one(channel: &Channel, message: Message) -> Result<()> {
    confirmed(vec![publish(channel, message).await?]).await
}

async fn publish(channel: &Channel, message: Message) -> Result<PublisherConfirm> {
    let Message { exchange, key, payload, properties } = message;
    let options = BasicPublishOptions::default();
    Ok(channel.basic_publish(exchange.into(), key.into(), options, payload.as_bytes(), properties).await?)
}

async fn confirmed(sent: Vec<PublisherConfirm>) -> Result<()> {
    for confirm in sent {
        ensure!(confirm.await?.is_ack(), "the broker refused a message");
    }
    Ok(())
}

/// Milliseconds until the instant, rounded up so that no message comes early.
pub(super) fn ms_until(due_us: i64) -> i64 {
    (due_us - now_us()).max(0).div_euclid(1_000) + 1
}
