//! RabbitMQ alone: messages wait in a queue whose time to live is the delay, and are dead-lettered to the workers.

use std::sync::Arc;

use anyhow::Result;
use lapin::types::AMQPValue;
use tokio::time::Instant;

use super::{
    broker::{self, Broker, Message, PUBLISHING},
    collector::Collector,
    judge::FIRST_PENDING,
    pace::{self, HOUR, MONTH, Task},
    singles,
    work::{AHEAD, Order, Outcome, Told, Work},
};
use crate::bench::drain::Drain;

const WORK: &str = "work";
const FIXED: &str = "wait-fixed";
const PENDING: &str = "wait-month";
const SINGLE: &str = "wait-instant";

pub(super) async fn run(order: &Order) -> Result<Outcome> {
    let broker = Broker::connect(&order.amqp_url).await?;
    broker.queue(WORK, &[]).await?;
    let collector = Arc::new(Collector::default());
    let _drain = (order.work != Work::Submit).then(|| Drain::start(&order.amqp_url, WORK, collector.eye()));
    let bytes = order.payload_bytes;
    let told = match order.work {
        Work::Late => late(order, &broker, &collector).await?,
        Work::Burst => burst(order, &broker, &collector).await?,
        Work::Submit => {
            waiting(&broker, FIXED, Some(HOUR.as_millis() as i64)).await?;
            let clients = Broker::with_channels(&order.amqp_url, order.connections).await?;
            let one = async |channel: &lapin::Channel, task: Task| {
                broker::publish_one(channel, Message::to(FIXED, task.payload(bytes))).await
            };
            let told = singles::submit(order, clients.channels(), one).await?;
            return Ok(Outcome::Counted(described(told)));
        }
        Work::Throughput => return Ok(Outcome::Not("without a delay there is no TTL queue: see raw-rabbitmq".into())),
    };
    Ok(Outcome::Arrived(described(told), collector.take()))
}

/// A queue of messages that wait; with one time to live for all of them, or one in each message.
async fn waiting(broker: &Broker, name: &str, ttl_ms: Option<i64>) -> Result<()> {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut arguments = vec![
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(WORK)),
        ("x-dead-letter-strategy", text("at-least-once")),
    ];
    arguments.extend(ttl_ms.map(|ttl_ms| ("x-message-ttl", AMQPValue::LongLongInt(ttl_ms))));
    broker.queue(name, &arguments).await
}

async fn late(order: &Order, broker: &Broker, collector: &Collector) -> Result<Told> {
    let bytes = order.payload_bytes;
    waiting(broker, PENDING, Some(MONTH.as_millis() as i64)).await?;
    let pending = pace::due_at(pace::instant_in(MONTH), FIRST_PENDING, order.pending);
    broker.publish_all(&pending, |task| Message::to(PENDING, task.payload(bytes))).await?;
    waiting(broker, FIXED, Some(AHEAD.as_millis() as i64)).await?;
    let began = Instant::now();
    let tasks = pace::evenly(order);
    let (count, last) = (tasks.len() as u64, tasks.last().map_or(0, |task| task.due_us));
    // The delay counts from the millisecond in which the message is published.
    let stamped = |task: Task| Task { due_us: pace::instant_in(AHEAD), ..task };
    broker
        .publish_as_they_come(pace::at_their_instants(tasks, AHEAD), |task| {
            Message::to(FIXED, stamped(task).payload(bytes))
        })
        .await?;
    let told = Told { submitted: count, submit_seconds: began.elapsed().as_secs_f64(), ..Told::default() };
    collector.wait(count, pace::instant_of(last) + order.patience()).await;
    Ok(told)
}

async fn burst(order: &Order, broker: &Broker, collector: &Collector) -> Result<Told> {
    waiting(broker, SINGLE, None).await?;
    let (began, due_us) = (Instant::now(), pace::burst_instant(order));
    broker
        .publish_all(&pace::due_at(due_us, 0, order.tasks), |task| {
            let mut message = Message::to(SINGLE, task.payload(order.payload_bytes));
            message.properties = message.properties.with_expiration(broker::ms_until(due_us).to_string().into());
            message
        })
        .await?;
    pace::ensure_ahead(due_us)?;
    let told = Told { submitted: order.tasks, submit_seconds: began.elapsed().as_secs_f64(), ..Told::default() };
    collector.wait(order.tasks, pace::instant_of(due_us) + order.patience()).await;
    Ok(told)
}

fn described(told: Told) -> Told {
    Told {
        settings: format!(
            "quorum queues, dead-lettered at least once, {PUBLISHING}; late: one queue with the fixed delay of 10 s, \
             the pending tasks in another; burst: a time to live in each message"
        ),
        unfair:
            "a queue holds one fixed delay: a shorter one behind a longer one comes late. Nothing can be listed or \
                 cancelled."
                .into(),
        ..told
    }
}
