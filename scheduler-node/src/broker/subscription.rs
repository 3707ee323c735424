//! One queue that a node reads, over a channel of its own.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use common::wire::screen::Trouble;
use futures::StreamExt;
use lapin::{
    Channel, Consumer,
    message::Delivery,
    options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use tokio::time::{Interval, MissedTickBehavior};

use super::{
    ack::AckHandle,
    connection::{ANSWER_WITHIN, Link},
    error::{Error, answer},
    hold::{HELD_BYTES, MemoryHold, MessageForm},
};
use crate::supervise::spawn_child;

/// The interval at which deferred messages are given back while there are some.
const DEFERRED_EVERY: Duration = Duration::from_millis(50);
/// The number of bytes given back to the broker at a time. These messages come again at once and have to find
/// room beside new ones.
const GIVE_BACK_BYTES: usize = HELD_BYTES / 8;
/// How long a channel stays open behind the last answer, and the interval at which it is looked at. RabbitMQ takes some
/// ten milliseconds to pass a thousand answers on to a quorum queue, more when disks are slow.
const LINGER: Duration = Duration::from_secs(10);

/// A message that arrived.
pub(super) struct Arrived {
    pub(super) delivery: Delivery,
    pub(super) ack: AckHandle,
    /// The reason why it did not come as it was sent.
    pub(super) trouble: Option<Trouble>,
}

pub(super) struct Subscription {
    queue: String,
    channel: Arc<Channel>,
    consumer: Consumer,
    hold: Arc<MemoryHold>,
    /// Messages that came without their bodies, the oldest first.
    deferred: VecDeque<(AckHandle, usize)>,
    /// When deferred messages are looked at. It goes on while other messages arrive, however many.
    look: Interval,
}

impl Subscription {
    pub(super) async fn open(link: &Link, queue: String, prefetch: u16) -> Result<Self, Error> {
        let channel = link.channel().await?;
        link.hold().begin(channel.id());
        let qos = channel.basic_qos(prefetch, BasicQosOptions::default());
        answer(|| "set the prefetch".to_owned(), ANSWER_WITHIN, qos).await?;
        let options = BasicConsumeOptions::default();
        let consume = channel.basic_consume(queue.as_str().into(), "".into(), options, FieldTable::default());
        let consumer = match answer(|| format!("consume from `{queue}`"), ANSWER_WITHIN, consume).await {
            Ok(consumer) => consumer,
            Err(error) => {
                // Behind a late answer the consumer would take messages that this node does not read.
                drop(spawn_child(async move { channel.close(200, "OK".into()).await }));
                return Err(error);
            }
        };
        let hold = Arc::clone(link.hold());
        let mut look = tokio::time::interval(DEFERRED_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { queue, channel: Arc::new(channel), consumer, hold, deferred: VecDeque::new(), look })
    }

    /// The next message; an error when the subscription is over. Cancel safe: may be dropped and called again.
    pub(super) async fn next(&mut self) -> Result<Arrived, Error> {
        loop {
            tokio::select! {
                delivery = self.consumer.next() => match delivery {
                    Some(Ok(delivery)) => if let Some(arrived) = self.read(delivery) {
                        return Ok(arrived);
                    },
                    Some(Err(error)) => return Err(Error::Lost { reason: error.to_string() }),
                    None => return Err(Error::Unsubscribed { queue: self.queue.clone() }),
                },
                _ = self.look.tick(), if !self.deferred.is_empty() => self.give_back().await,
            }
        }
    }

    /// Ends in order: the broker sends no more, and what has arrived and was not handed over goes back to the queue.
    /// Messages that were handed over are answered on the channel. It stays open for a while behind the last answer:
    /// RabbitMQ passes 32 answers at a time on to a quorum queue, and with the channel it forgets the others.
    pub(super) async fn end(self) -> Result<(), Error> {
        answer(|| format!("stop consuming from `{}`", self.queue), ANSWER_WITHIN, self.cancel()).await?;
        self.give_up().await
    }

    /// The same, however late the broker answers: a queue without a leader keeps silent. It returns too when the
    /// channel or the connection is over. Then all that has no answer goes back to the queue.
    pub(super) async fn end_once_answered(self) {
        if self.cancel().await.is_ok() {
            drop(self.give_up().await);
        }
    }

    fn cancel(&self) -> impl Future<Output = lapin::Result<()>> {
        self.channel.basic_cancel(self.consumer.tag(), BasicCancelOptions::default())
    }

    /// Gives back what was not handed over, and waits for the answers to the rest. The broker sends no more.
    async fn give_up(mut self) -> Result<(), Error> {
        while let Some(delivery) = self.consumer.next().await {
            let delivery = delivery.map_err(|error| Error::Lost { reason: error.to_string() })?;
            if let Some(arrived) = self.read(delivery) {
                arrived.ack.requeue().await;
            }
        }
        for (ack, _) in self.deferred.drain(..) {
            ack.requeue().await;
        }
        let Self { channel, consumer, .. } = self;
        drop(consumer);
        linger(&channel).await;
        Ok(())
    }

    fn read(&mut self, delivery: Delivery) -> Option<Arrived> {
        let tag = delivery.delivery_tag;
        let (held, trouble) = match self.hold.form_of(self.channel.id(), tag) {
            MessageForm::Whole(held) => (held, None),
            MessageForm::Troubled(held, trouble) => (held, Some(trouble)),
            MessageForm::Deferred { weight } => {
                self.deferred.push_back((AckHandle::new(&self.channel, tag, None), weight));
                return None;
            }
        };
        Some(Arrived { delivery, ack: AckHandle::new(&self.channel, tag, Some(held)), trouble })
    }

    async fn give_back(&mut self) {
        let mut bytes = 0;
        while bytes < GIVE_BACK_BYTES
            && self.hold.is_open(self.channel.id())
            && let Some((ack, weight)) = self.deferred.pop_front()
        {
            bytes += weight;
            ack.requeue().await;
        }
    }
}

/// Returns some time after all messages of the channel were answered.
async fn linger(channel: &Arc<Channel>) {
    loop {
        let is_answered = Arc::strong_count(channel) == 1;
        tokio::time::sleep(LINGER).await;
        if is_answered {
            return;
        }
    }
}
