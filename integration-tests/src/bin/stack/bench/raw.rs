//! RabbitMQ alone, as fast as this machine runs it: the base of every comparison.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::{join_all, try_join_all};
use integration_tests::{clock::now_us, sandbox::Sandbox};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, PublisherConfirm,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    Options,
    drain::{Drain, Eye},
    record::{Record, Spread},
    report::{Report, progress},
};

const QUEUE: &str = "raw";
const CHANNELS: usize = 4;
/// Messages published before the first of their confirms is awaited.
const BATCH: u64 = 256;
/// Batches of a channel that wait for confirms.
const BATCHES_IN_FLIGHT: usize = 2;
/// Messages published and not yet consumed: enough to keep both sides busy, few enough for the queue to stay short.
const BACKLOG: usize = 40_000;
const WARM_UP: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_secs(30);
/// The limit for a consumer to attach, and for the last message of a burst to arrive.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns messages a second.
pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<f64> {
    progress("RabbitMQ alone ...");
    let cluster = Sandbox::builder().nodes(0).start().await?;
    let queues = [QUEUE.to_owned()];
    let (_connection, channels) = channels(&cluster, &queues).await?;
    let (room, consumed) = (Arc::new(Semaphore::new(BACKLOG)), Arc::new(AtomicU64::new(0)));
    let eye: Eye = {
        let (room, consumed) = (Arc::clone(&room), Arc::clone(&consumed));
        Arc::new(move |_| {
            consumed.fetch_add(1, Ordering::Relaxed);
            room.add_permits(1);
        })
    };
    let _drain = Drain::start(&cluster.amqp_url(), QUEUE, eye);
    let publishing = try_join_all(channels.iter().map(|channel| publish(channel, &queues, 0..u64::MAX, &room)));
    let counting = async {
        tokio::time::sleep(WARM_UP).await;
        let (began, before) = (Instant::now(), consumed.load(Ordering::Relaxed));
        tokio::time::sleep(options.time().min(LONGEST)).await;
        (consumed.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64()
    };
    let per_second = tokio::select! {
        ended = publishing => { ended.context("publishing")?; 0.0 }
        per_second = counting => per_second,
    };
    report.figure("raw RabbitMQ", "published, consumed and acked", per_second, "/s");
    super::end(cluster).await?;
    Ok(per_second)
}

/// Publishes so many messages over the queues in turn, as fast as it goes, each queue with a consumer. Returns after
/// what time they had arrived.
pub(super) async fn burst(count: usize, queues: usize) -> Result<Spread> {
    let cluster = Sandbox::builder().nodes(0).start().await?;
    super::flush(&cluster).await?;
    let queues: Vec<String> = (1..=queues).map(|number| format!("{QUEUE}-{number}")).collect();
    let (_connection, channels) = channels(&cluster, &queues).await?;
    let record = Arc::<Record>::default();
    let start = |queue: &String| Drain::start(&cluster.amqp_url(), queue, record.eye());
    let _drains: Vec<Drain> = queues.iter().map(start).collect();
    greet(&channels[0], &queues, &record).await?;

    let (from_us, room) = (now_us(), Semaphore::new(count));
    let share = (count as u64).div_ceil(CHANNELS as u64);
    let first_serials = (1..=count as u64).step_by(share.max(1) as usize);
    let parts = first_serials.map(|first| first..(first + share).min(count as u64 + 1)).zip(&channels);
    try_join_all(parts.map(|(serials, channel)| publish(channel, &queues, serials, &room))).await?;
    record.wait(count, Instant::now() + PATIENCE).await;
    let arrived = record.all();
    ensure!(arrived.len() == count, "{} of {count} messages arrived", arrived.len());
    super::end(cluster).await?;
    Ok(Spread::of(&arrived, from_us))
}

/// Waits until a message has come through each queue.
async fn greet(channel: &Channel, queues: &[String], record: &Record) -> Result<()> {
    for queue in queues {
        ensure!(send(channel, queue, 0).await?.await?.is_ack(), "the broker refused a message for {queue}");
    }
    let deadline = Instant::now() + PATIENCE;
    while record.seen.load(Ordering::Relaxed) < queues.len() as u64 {
        ensure!(Instant::now() < deadline, "no message comes through a queue of {queues:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Declares the queues. Returns a connection, and its channels, which confirm.
async fn channels(cluster: &Sandbox, queues: &[String]) -> Result<(Connection, Vec<Channel>)> {
    let connection = Connection::connect(&cluster.amqp_url(), ConnectionProperties::default()).await?;
    for queue in queues {
        declare(&connection, queue).await.with_context(|| format!("declaring {queue}"))?;
    }
    let mut channels = Vec::new();
    for _ in 0..CHANNELS {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        channels.push(channel);
    }
    Ok((connection, channels))
}

async fn declare(connection: &Connection, queue: &str) -> Result<()> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(1_000_000));
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    connection.create_channel().await?.queue_declare(queue.into(), options, arguments).await?;
    Ok(())
}

/// Publishes messages with these serial numbers over the queues in turn, as far as the backlog has room. Returns when
/// all are confirmed.
async fn publish(channel: &Channel, queues: &[String], mut serials: Range<u64>, room: &Semaphore) -> Result<()> {
    let mut flying: VecDeque<Vec<PublisherConfirm>> = VecDeque::new();
    while !serials.is_empty() {
        let batch = serials.start..serials.end.min(serials.start.saturating_add(BATCH));
        serials.start = batch.end;
        room.acquire_many((batch.end - batch.start) as u32).await?.forget();
        let queue = |serial: u64| &queues[(serial % queues.len() as u64) as usize];
        let sent = join_all(batch.map(|serial| send(channel, queue(serial), serial))).await;
        flying.push_back(sent.into_iter().collect::<lapin::Result<_>>()?);
        if flying.len() >= BATCHES_IN_FLIGHT
            && let Some(oldest) = flying.pop_front()
        {
            confirmed(oldest).await?;
        }
    }
    confirmed(flying.into_iter().flatten().collect()).await
}

async fn confirmed(sent: Vec<PublisherConfirm>) -> Result<()> {
    for confirm in sent {
        ensure!(confirm.await?.is_ack(), "the broker refused a message");
    }
    Ok(())
}

/// Sends the same message as a node would, so that both measurements move the same bytes.
async fn send(channel: &Channel, queue: &str, serial: u64) -> lapin::Result<PublisherConfirm> {
    let payload = format!("{{\"t\":{},\"n\":{serial}}}", now_us());
    let id = uuid::Uuid::from_u128(u128::from(serial)).to_string();
    let due_ms = now_us() / 1_000;
    let mut headers = FieldTable::default();
    headers.insert("duetime-attempt".into(), AMQPValue::LongLongInt(1));
    headers.insert("duetime-max-attempts".into(), AMQPValue::LongLongInt(25));
    headers.insert("duetime-due-ms".into(), AMQPValue::LongLongInt(due_ms));
    headers.insert("duetime-redelivered".into(), AMQPValue::Boolean(false));
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_content_type("application/json".into())
        .with_message_id(format!("{id}:1").into())
        .with_correlation_id(id.into())
        .with_type(queue.into())
        .with_priority(3)
        .with_timestamp(due_ms.unsigned_abs() / 1_000)
        .with_headers(headers);
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    channel.basic_publish("".into(), queue.into(), options, payload.as_bytes(), properties).await
}
