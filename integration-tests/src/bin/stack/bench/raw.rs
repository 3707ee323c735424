//! RabbitMQ alone, as fast as this machine runs it: the base of every comparison.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use integration_tests::{clock::now_us, sandbox::Sandbox};
use lapin::{
    BasicProperties, ExchangeKind,
    types::{AMQPValue, FieldTable},
};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    Options,
    broker::{Broker, Message, publish_one},
    drain::{Drain, Eye},
    feed::MAX_LENGTH,
    instants::due_at,
    record::{Record, Spread},
    report::{Report, progress},
    throughput::counted,
};

const QUEUE: &str = "raw";
/// A node's exchange of all task queues, and that of their rejected messages with the queue behind it. `same_work.rs`
/// compares with a node's what is declared here.
const EXCHANGE: &str = "duetime";
const REJECTED: &str = "duetime.rejected";
const DELIVERY_LIMIT: &str = "x-delivery-limit";
/// The limits of a task queue, and of the queue of rejected messages.
const DELIVERIES: i64 = 20;
const REJECTED_DELIVERIES: i64 = 1_000_000;
/// As long as the receipt that a node makes.
const RECEIPT: &str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";
/// Messages published and not yet consumed: enough to keep both sides busy, few enough for the queue to stay short.
const BACKLOG: usize = 40_000;
const WARM_UP: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_secs(30);
/// The limit for a consumer to attach, and for the last message of a burst to arrive.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures each number of queues that throughput is measured with.
pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    for queues in options.queues.iter().copied().collect::<BTreeSet<usize>>() {
        measure_over(queues, options, report).await?;
    }
    Ok(())
}

/// Returns messages a second over so many queues.
pub(super) async fn measure_over(queues: usize, options: &Options, report: &mut Report) -> Result<f64> {
    let part = format!("raw RabbitMQ, {}", counted(queues, "queue"));
    progress(&format!("{part} ..."));
    let cluster = Sandbox::builder().nodes(0).start().await?;
    let queues = names(queues);
    let broker = Broker::connect(&cluster.amqp_url()).await?;
    let (room, consumed) = (Arc::new(Semaphore::new(BACKLOG)), Arc::new(AtomicU64::new(0)));
    let eye: Eye = {
        let (room, consumed) = (Arc::clone(&room), Arc::clone(&consumed));
        Arc::new(move |_| {
            consumed.fetch_add(1, Ordering::Relaxed);
            room.add_permits(1);
        })
    };
    let mut drains = Vec::new();
    for queue in &queues {
        declare(&broker, queue).await?;
        drains.push(Drain::start(&cluster.amqp_url(), queue, Arc::clone(&eye)));
    }
    let end = Instant::now() + WARM_UP + options.time().min(LONGEST);
    let publishing =
        broker.publish_while_room(&room, end, |serial| message(in_turn(&queues, serial), now_us(), serial));
    let counting = async {
        tokio::time::sleep(WARM_UP).await;
        let (began, before) = (Instant::now(), consumed.load(Ordering::Relaxed));
        tokio::time::sleep_until(end).await;
        anyhow::Ok((consumed.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64())
    };
    let (per_second, _) = tokio::try_join!(counting, publishing).context("publishing")?;
    report.figure(&part, "published, consumed and acked", per_second, "/s");
    super::end(cluster).await?;
    Ok(per_second)
}

fn names(queues: usize) -> Vec<String> {
    (1..=queues).map(|number| format!("{QUEUE}-{number}")).collect()
}

/// The queue of a message: the queues take turns.
fn in_turn(queues: &[String], serial: u64) -> &str {
    &queues[(serial % queues.len() as u64) as usize]
}

/// Publishes so many messages over the queues in turn, as fast as it goes, each queue with a consumer. Returns after
/// what time they had arrived.
pub(super) async fn burst(count: usize, queues: usize) -> Result<Spread> {
    let cluster = Sandbox::builder().nodes(0).start().await?;
    super::flush(&cluster).await?;
    let queues = names(queues);
    let broker = Broker::connect(&cluster.amqp_url()).await?;
    let record = Arc::<Record>::default();
    let mut drains = Vec::new();
    for queue in &queues {
        declare(&broker, queue).await?;
        drains.push(Drain::start(&cluster.amqp_url(), queue, record.eye()));
        publish_one(&broker.channels()[0], message(queue, now_us(), 0)).await?;
    }
    greeted(&record, queues.len() as u64).await?;

    let (from_us, tasks) = (now_us(), due_at(now_us(), 1, count as u64));
    broker.publish_all(&tasks, |task| message(in_turn(&queues, task.number), now_us(), task.number)).await?;
    record.wait(count, Instant::now() + PATIENCE).await;
    let arrived = record.all();
    ensure!(arrived.len() == count, "{} of {count} messages arrived", arrived.len());
    super::end(cluster).await?;
    Ok(Spread::of(&arrived, from_us))
}

/// Waits until a message has come through each queue.
async fn greeted(record: &Record, queues: u64) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while record.seen.load(Ordering::Relaxed) < queues {
        ensure!(Instant::now() < deadline, "no message comes through a queue of RabbitMQ alone");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Connects, and declares a queue as a node declares those of its tasks.
pub(super) async fn open(url: &str, queue: &str) -> Result<Broker> {
    let broker = Broker::connect(url).await?;
    declare(&broker, queue).await?;
    Ok(broker)
}

/// Declares a queue with a node's arguments, and the exchanges on the way of a message and of its rejection.
async fn declare(broker: &Broker, queue: &str) -> Result<()> {
    broker.exchange(EXCHANGE, ExchangeKind::Direct).await?;
    broker.exchange(REJECTED, ExchangeKind::Fanout).await?;
    broker.quorum_queue(REJECTED, &[(DELIVERY_LIMIT, AMQPValue::LongLongInt(REJECTED_DELIVERIES))]).await?;
    broker.bind(REJECTED, REJECTED, "").await?;
    let arguments = [
        ("x-max-length", AMQPValue::LongLongInt(MAX_LENGTH.into())),
        (DELIVERY_LIMIT, AMQPValue::LongLongInt(DELIVERIES)),
        ("x-dead-letter-exchange", AMQPValue::LongString(REJECTED.into())),
        ("x-dead-letter-strategy", AMQPValue::LongString("at-least-once".into())),
    ];
    broker.queue(queue, &arguments).await?;
    broker.bind(queue, EXCHANGE, queue).await
}

/// The same message as a node would send, so that both measurements move the same bytes.
pub(super) fn message(queue: &str, due_us: i64, serial: u64) -> Message {
    let id = uuid::Uuid::from_u128(u128::from(serial)).to_string();
    let due_ms = due_us / 1_000;
    let mut headers = FieldTable::default();
    headers.insert("duetime-attempt".into(), AMQPValue::LongLongInt(1));
    headers.insert("duetime-max-attempts".into(), AMQPValue::LongLongInt(25));
    headers.insert("duetime-due-ms".into(), AMQPValue::LongLongInt(due_ms));
    headers.insert("duetime-redelivered".into(), AMQPValue::Boolean(false));
    headers.insert("duetime-receipt".into(), AMQPValue::LongString(RECEIPT.into()));
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_content_type("application/json".into())
        .with_message_id(format!("{id}:1").into())
        .with_correlation_id(id.into())
        .with_type(queue.into())
        .with_priority(3)
        .with_timestamp(due_ms.unsigned_abs() / 1_000)
        .with_headers(headers);
    let payload = format!("{{\"t\":{due_us},\"n\":{serial}}}");
    Message { exchange: EXCHANGE, key: queue.to_owned(), payload, properties, mandatory: true }
}
