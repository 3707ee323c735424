//! The queues of the load, their policies and consumers.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use lapin::{
    Connection, ConnectionProperties, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use reqwest::Method;
use serde_json::{Value, json};

use super::stage::Stage;
use crate::{
    clock::now_ms,
    consumer::{Answer, Consumer, Script, Step},
    ledger::{Delivery, Retries, attempts_of, fixed_wait_of},
};

/// Settled by the confirm, rejected now and then, with results, submitted in SQL and over AMQP: queues without a limit,
/// whose lateness says how the cluster is.
pub(super) const PROMPT: [&str; 5] = ["plain", "reject", "result", "sql", "amqp"];

/// The one of them with the most messages. Its RabbitMQ queue is full now and then.
pub(super) const BUSY: &str = PROMPT[0];

pub(super) const ORDERED: &str = "ordered";
pub(super) const LIMITED: &str = "limited";
pub(super) const RATED: &str = "rated";
pub(super) const CANCELLED: &str = "cancelled";
/// The first attempt of each task fails, and the task is cancelled at about the time of the second one.
pub(super) const FAILS_FIRST: &str = "fails-first";
/// Well above the time by which a task is claimed ahead: a cancel finds it unclaimed.
pub(super) const FAILS_FIRST_WAIT_MS: i64 = 1_000;
pub(super) const KEYED: &str = "keyed";
pub(super) const BULK: &str = "bulk";
/// Its RabbitMQ queue is deleted now and then.
pub(super) const FRAGILE: &str = "fragile";
/// Its RabbitMQ queue has room for few messages.
pub(super) const NARROW: &str = "narrow";
pub(super) const PULSE: &str = "pulse";
/// The delay exchange, the exchange behind it, and the queue that takes all of that one.
pub(super) const DELAYS: &str = "delays";
pub(super) const DELAYED: &str = "delayed";
/// The steps of an order: both of the first two, then the third, then the fourth.
pub(super) const STEPS: [&str; 4] = ["pay", "pack", "ship", "tell"];

pub(super) const ORDERED_KEYS: u64 = 6;
const RUNNING_AT_MOST: usize = 4;
const FIRES_EVERY: Duration = Duration::from_secs(1);

/// A deadline beyond any fault: what RabbitMQ holds that long would otherwise be in work twice, by the rules.
const PATIENT_MS: u64 = 180_000;
/// A deadline that faults exceed, so that attempts fail by silence.
const HASTY_MS: u64 = 15_000;
const ATTACHED_WITHIN: Duration = Duration::from_secs(60);

/// The lane of a partition key in the ordered queue.
pub(super) fn lane(key: &str) -> String {
    format!("{ORDERED} {key}")
}

/// Makes all queues and the schedule, with consumers.
pub(super) async fn make(stage: &Arc<Stage>) -> Result<()> {
    let confirm = json!({ "settle": "confirm" });
    for queue in ["plain", "sql", "amqp", CANCELLED, KEYED, BULK, STEPS[2], STEPS[3]] {
        attach(stage, queue, &confirm, |_| Answer::ack()).await?;
    }
    attach(stage, RATED, &json!({ "settle": "confirm", "placement": "single", "rate_per_second": 30 }), |_| {
        Answer::ack()
    })
    .await?;
    attach(stage, NARROW, &json!({ "settle": "confirm", "max_length": 5 }), |_| Answer::ack()).await?;
    let retry = json!({ "kind": "fixed", "delay_ms": 200 });
    let reject = json!({ "settle": "reject", "max_attempts": 5, "timeout_ms": 5_000, "retry": retry });
    attach(stage, "reject", &reject, |delivery| if fails(delivery, 7) { Answer::reject() } else { Answer::ack() })
        .await?;
    let patient = json!({ "kind": "fixed", "delay_ms": FAILS_FIRST_WAIT_MS });
    let fails_first = json!({ "settle": "reject", "max_attempts": 5, "timeout_ms": 5_000, "retry": patient });
    attach(stage, FAILS_FIRST, &fails_first, |one| if fails(one, 1) { Answer::reject() } else { Answer::ack() })
        .await?;
    let result = json!({ "settle": "result", "timeout_ms": HASTY_MS, "retry": retry });
    for (queue, nth) in [("result", 5), (STEPS[0], 3), (STEPS[1], 4), (FRAGILE, 9)] {
        attach(stage, queue, &result, move |delivery| reported(delivery, nth, None)).await?;
    }
    stage.ledger().loses_messages(FRAGILE);
    PROMPT.iter().for_each(|queue| stage.ledger().prompt(queue));
    make_lanes(stage, &retry).await?;
    make_schedule(stage).await?;
    make_delays(stage).await
}

async fn make_lanes(stage: &Arc<Stage>, retry: &Value) -> Result<()> {
    for key in 0..ORDERED_KEYS {
        stage.ledger().limit(&lane(&format!("k{key}")), 1);
    }
    stage.ledger().limit(LIMITED, RUNNING_AT_MOST);
    let ordered = json!({ "settle": "result", "ordered": true, "timeout_ms": PATIENT_MS, "retry": retry });
    // The key of a task is its number's: the message of an ordered task says so in its payload's number alone.
    attach(stage, ORDERED, &ordered, |delivery| {
        let key = delivery.number.unwrap_or(0) % ORDERED_KEYS;
        reported(delivery, 11, Some(lane(&format!("k{key}"))))
    })
    .await?;
    let limited = json!({
        "settle": "result", "placement": "single", "max_running": RUNNING_AT_MOST, "timeout_ms": PATIENT_MS, "retry": retry
    });
    attach(stage, LIMITED, &limited, |delivery| reported(delivery, 11, Some(LIMITED.to_owned()))).await
}

/// Whether this is the first attempt of each `nth` task, which fails.
fn fails(delivery: &Delivery, nth: u64) -> bool {
    delivery.attempt == 1 && delivery.number.is_some_and(|number| number.is_multiple_of(nth))
}

/// Works for a moment, then reports. In a lane, the ledger learns when the work begins and ends.
fn reported(delivery: &Delivery, nth: u64, lane: Option<String>) -> Answer {
    let status = json!({ "status": if fails(delivery, nth) { "failed" } else { "succeeded" } });
    let work = Step::Wait(Duration::from_millis(15));
    let report = [Step::ConfirmedReport(status), Step::Ack];
    let (begin, end) = (lane.clone().map(Step::Begin), lane.map(Step::End));
    Answer(begin.into_iter().chain([work]).chain(end).chain(report).collect())
}

/// Sets a queue's policy, attaches a consumer, and waits until a first task has come through.
async fn attach(
    stage: &Arc<Stage>,
    queue: &str,
    policy: &Value,
    script: impl Fn(&Delivery) -> Answer + Send + Sync + 'static,
) -> Result<()> {
    stage.sandbox.put_queues(&[(queue, policy.clone())]).await?;
    stage.ledger().retries(queue, Retries::of(policy));
    stage.ledger().max_attempts(queue, attempts_of(policy));
    if let Some(wait_ms) = fixed_wait_of(policy) {
        stage.ledger().waits(queue, wait_ms);
    }
    let number = stage.ledger().submitting(queue, now_ms());
    let script: Script = Arc::new(script);
    let task = json!({ "queue": queue, "payload": { "n": number, "warm_up": true } });
    let consumer = Consumer::of_cluster(stage.sandbox.broker_urls(), queue, stage.ledger(), script);
    stage.ledger().accepted(number, &stage.sandbox.live()?.submit(&task).await?.id);
    consumer.attached(ATTACHED_WITHIN).await?;
    stage.sandbox.keep(consumer);
    stage.ledger().wait_delivered(number, 1, ATTACHED_WITHIN).await.map(drop)
}

async fn make_schedule(stage: &Arc<Stage>) -> Result<()> {
    stage.sandbox.put_queues(&[(PULSE, json!({ "settle": "confirm" }))]).await?;
    let every_ms = u64::try_from(FIRES_EVERY.as_millis())?;
    let schedule = json!({
        "queue": PULSE, "every_ms": every_ms, "overlap": "allow", "catch_up_ms": 600_000, "payload": {},
    });
    let _: Value = stage.sandbox.live()?.call(Method::PUT, &format!("/v1/schedules/{PULSE}"), Some(&schedule)).await?;
    stage.ledger().fires(PULSE, FIRES_EVERY);
    let script: Script = Arc::new(|_| Answer::ack());
    stage.sandbox.keep(Consumer::of_cluster(stage.sandbox.broker_urls(), PULSE, stage.ledger(), script));
    Ok(())
}

/// The application's own exchange behind the delay exchange, and its queue.
async fn make_delays(stage: &Arc<Stage>) -> Result<()> {
    let connection = Connection::connect(&stage.sandbox.amqp_url(), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel.exchange_declare(DELAYED.into(), ExchangeKind::Topic, options, FieldTable::default()).await?;
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(DELAYS.into(), options, arguments).await?;
    let bind = QueueBindOptions::default();
    channel.queue_bind(DELAYS.into(), DELAYED.into(), "#".into(), bind, FieldTable::default()).await?;
    stage.ledger().retries(DELAYS, Retries::Never);
    stage.ledger().max_attempts(DELAYS, attempts_of(&Value::Null));
    let script: Script = Arc::new(|_| Answer::ack());
    let consumer = Consumer::of_cluster(stage.sandbox.broker_urls(), DELAYS, stage.ledger(), script);
    consumer.attached(ATTACHED_WITHIN).await.context("attaching to the delayed messages")?;
    stage.sandbox.keep(consumer);
    Ok(())
}
