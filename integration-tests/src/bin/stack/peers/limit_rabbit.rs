//! What RabbitMQ alone does on this machine: the floor of lateness, and the most messages a second.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use integration_tests::clock::now_us;
use tokio::time::Instant;

use super::{
    broker::{self, Broker, Message, PUBLISHING},
    collector::Collector,
    pace::{self, Task},
    singles,
    work::{Order, Outcome, Told, Work},
};
use crate::bench::drain::Drain;

const WORK: &str = "work";
/// Published between two looks at the clock.
const AT_ONCE: u64 = 20_000;
/// Messages published and not yet consumed: enough to keep both sides busy, few enough for the queue to stay short.
const BACKLOG: u64 = 40_000;
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Without a consumer the queue grows no longer than this.
const LONGEST: Duration = Duration::from_secs(30);

/// A message for each task, published at its due instant by a thread that sleeps until then: no scheduler is less
/// late. For throughput and single submissions: publish, confirm, consume, ack.
pub(super) async fn run(order: &Order) -> Result<Outcome> {
    let broker = Broker::connect(&order.amqp_url).await?;
    broker.queue(WORK, &[]).await?;
    let bytes = order.payload_bytes;
    if order.work == Work::Submit {
        let clients = Broker::with_channels(&order.amqp_url, order.connections).await?;
        let one = async |channel: &lapin::Channel, task: Task| {
            broker::publish_one(channel, Message::to(WORK, task.payload(bytes))).await
        };
        return Ok(Outcome::Counted(described(singles::submit(order, clients.channels(), one).await?)));
    }
    let collector = Arc::new(Collector::default());
    let _drain = Drain::start(&order.amqp_url, WORK, collector.eye());
    let began = Instant::now();
    let count = match order.work {
        Work::Late => {
            let tasks = pace::evenly(order);
            let count = tasks.len() as u64;
            let coming = pace::at_their_instants(tasks, Duration::ZERO);
            broker.publish_as_they_come(coming, |task| Message::to(WORK, task.payload(bytes))).await?;
            count
        }
        Work::Burst => {
            let due_us = pace::burst_instant(order);
            tokio::time::sleep_until(pace::instant_of(due_us)).await;
            let tasks = pace::due_at(due_us, 0, order.tasks);
            broker.publish_all(&tasks, |task| Message::to(WORK, task.payload(bytes))).await?;
            order.tasks
        }
        Work::Throughput | Work::Submit => publish(order, &broker, Some(&collector)).await?,
    };
    let told = counted(count, began);
    collector.wait(count, Instant::now() + order.patience()).await;
    Ok(Outcome::Arrived(described(told), collector.take()))
}

/// Publishes with confirms and no consumer.
pub(super) async fn run_publish(order: &Order) -> Result<Outcome> {
    let broker = Broker::connect(&order.amqp_url).await?;
    broker.queue(WORK, &[]).await?;
    let began = Instant::now();
    let count = publish(order, &broker, None).await?;
    Ok(Outcome::Counted(described(counted(count, began))))
}

/// Publishes until the time is over, and no more than the consumer can follow. Returns how many.
async fn publish(order: &Order, broker: &Broker, consumed: Option<&Collector>) -> Result<u64> {
    let end = Instant::now() + if consumed.is_some() { order.time() } else { order.time().min(LONGEST) };
    let mut sent = 0;
    while Instant::now() < end {
        let tasks = pace::due_at(now_us(), sent, AT_ONCE);
        broker.publish_all(&tasks, |task| Message::to(WORK, task.payload(order.payload_bytes))).await?;
        sent += AT_ONCE;
        while consumed.is_some_and(|consumed| consumed.different() + BACKLOG < sent) && Instant::now() < end {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    Ok(sent)
}

fn counted(count: u64, began: Instant) -> Told {
    Told { submitted: count, submit_seconds: began.elapsed().as_secs_f64(), ..Told::default() }
}

fn described(told: Told) -> Told {
    Told {
        settings: format!("a plain quorum queue, {PUBLISHING}, one consumer with prefetch 4,000"),
        unfair:
            "a limit, no scheduler: nothing is stored before it is due, no message has headers, and the queue has no \
                 delivery limit and no dead letters, which Duetime's queues have"
                .into(),
        ..told
    }
}
