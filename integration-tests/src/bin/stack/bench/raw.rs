//! RabbitMQ alone, as fast as this machine runs it: the base of every comparison.

use std::{
    collections::VecDeque,
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
    report::{Report, progress},
};

const QUEUE: &str = "raw";
const CHANNELS: usize = 4;
/// Messages published before the first of their confirms is awaited.
const BATCH: usize = 256;
/// Batches of a channel that wait for confirms.
const BATCHES_IN_FLIGHT: usize = 2;
/// Messages published and not yet consumed: enough to keep both sides busy, few enough for the queue to stay short.
const BACKLOG: usize = 40_000;
const WARM_UP: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_secs(30);

/// Returns messages a second.
pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<f64> {
    progress("RabbitMQ alone ...");
    let cluster = Sandbox::builder().nodes(0).start().await?;
    let connection = Connection::connect(&cluster.amqp_url(), ConnectionProperties::default()).await?;
    declare(&connection).await?;
    let (room, consumed) = (Arc::new(Semaphore::new(BACKLOG)), Arc::new(AtomicU64::new(0)));
    let eye: Eye = {
        let (room, consumed) = (Arc::clone(&room), Arc::clone(&consumed));
        Arc::new(move |_| {
            consumed.fetch_add(1, Ordering::Relaxed);
            room.add_permits(1);
        })
    };
    let _drain = Drain::start(&cluster.amqp_url(), QUEUE, eye);
    let mut channels = Vec::new();
    for _ in 0..CHANNELS {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        channels.push(channel);
    }
    let publishing = try_join_all(channels.iter().map(|channel| publish(channel, &room)));
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

async fn declare(connection: &Connection) -> Result<()> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(1_000_000));
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    connection.create_channel().await?.queue_declare(QUEUE.into(), options, arguments).await?;
    Ok(())
}

/// Publishes for ever, as far as the backlog has room.
async fn publish(channel: &Channel, room: &Semaphore) -> Result<()> {
    let mut flying: VecDeque<Vec<PublisherConfirm>> = VecDeque::new();
    let mut serial = 0_u64;
    loop {
        room.acquire_many(BATCH as u32).await?.forget();
        let sent = join_all((0..BATCH as u64).map(|place| send(channel, serial + place))).await;
        serial += BATCH as u64;
        flying.push_back(sent.into_iter().collect::<lapin::Result<_>>()?);
        if flying.len() >= BATCHES_IN_FLIGHT
            && let Some(oldest) = flying.pop_front()
        {
            for confirm in oldest {
                ensure!(confirm.await?.is_ack(), "the broker refused a message");
            }
        }
    }
}

/// Sends the same message as a node would, so that both measurements move the same bytes.
async fn send(channel: &Channel, serial: u64) -> lapin::Result<PublisherConfirm> {
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
        .with_type(QUEUE.into())
        .with_priority(3)
        .with_timestamp(due_ms.unsigned_abs() / 1_000)
        .with_headers(headers);
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    channel.basic_publish("".into(), QUEUE.into(), options, payload.as_bytes(), properties).await
}
