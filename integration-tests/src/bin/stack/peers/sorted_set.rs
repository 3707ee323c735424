//! A sorted set in Redis, scored by the due instant and polled each 100 ms: the recipe of many tutorials.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use integration_tests::{clock::now_us, sandbox::REDIS_SETTINGS};
use redis::{AsyncCommands, Script, aio::MultiplexedConnection};
use tokio::time::{Instant, MissedTickBehavior};

use super::{
    collector::Collector,
    judge::{Arrival, FIRST_PENDING},
    pace::{self, MONTH, Task},
    singles,
    work::{Order, Outcome, Told, Work},
};

const KEY: &str = "delayed";
const POLL_EVERY: Duration = Duration::from_millis(100);
/// Tasks that one poll takes at most; it polls again at once while there are as many.
const AT_ONCE: usize = 1_000;
/// Takes what is due in one step, so that several pollers would not share a task.
const TAKE: &str = "local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2]) \
                    if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end \
                    return due";

pub(super) async fn run(order: &Order) -> Result<Outcome> {
    ensure!(!order.redis_url.is_empty(), "Redis is not installed: run integration-tests/install redis");
    let client = redis::Client::open(order.redis_url.as_str())?;
    let connection = client.get_multiplexed_async_connection().await?;
    if order.work == Work::Throughput {
        return Ok(Outcome::Not("tasks without a delay would not go through a sorted set".into()));
    }
    if order.work == Work::Submit {
        let clients = try_join_all((0..order.connections).map(|_| client.get_multiplexed_async_connection())).await?;
        let one = async |connection: &MultiplexedConnection, task: Task| add(connection.clone(), &[task], order).await;
        return Ok(Outcome::Counted(described(singles::submit(order, &clients, one).await?)));
    }
    let collector = Arc::new(Collector::default());
    let polled = poll(client.get_multiplexed_async_connection().await?, &collector);
    let told = tokio::select! {
        told = submit_and_wait(order, connection, &collector) => told?,
        polled = polled => polled.map(|never| match never {})?,
    };
    Ok(Outcome::Arrived(described(told), collector.take()))
}

async fn submit_and_wait(order: &Order, connection: MultiplexedConnection, collector: &Collector) -> Result<Told> {
    let (began, count, last) = if order.work == Work::Late {
        let pending = pace::due_at(pace::instant_in(MONTH), FIRST_PENDING, order.pending);
        add(connection.clone(), &pending, order).await?;
        let began = Instant::now();
        let tasks = pace::evenly(order);
        pace::submit_ahead(&tasks, |batch| {
            let (connection, order) = (connection.clone(), order.clone());
            async move { add(connection, &batch, &order).await }
        })
        .await?;
        (began, tasks.len() as u64, tasks.last().map_or(0, |task| task.due_us))
    } else {
        let (began, due_us) = (Instant::now(), pace::burst_instant(order));
        add(connection, &pace::due_at(due_us, 0, order.tasks), order).await?;
        pace::ensure_ahead(due_us)?;
        (began, order.tasks, due_us)
    };
    let told = Told { submitted: count, submit_seconds: began.elapsed().as_secs_f64(), ..Told::default() };
    collector.wait(count, pace::instant_of(last) + order.patience()).await;
    Ok(told)
}

async fn add(mut connection: MultiplexedConnection, tasks: &[Task], order: &Order) -> Result<()> {
    for batch in tasks.chunks(order.batch.max(1)) {
        // Scores are doubles, which hold microseconds of this century exactly.
        let scored: Vec<(f64, String)> =
            batch.iter().map(|task| (task.due_us as f64, task.payload(order.payload_bytes))).collect();
        let _: usize = connection.zadd_multiple(KEY, &scored).await?;
    }
    Ok(())
}

/// Polls for ever. What it takes has been run.
async fn poll(mut connection: MultiplexedConnection, collector: &Collector) -> Result<std::convert::Infallible> {
    let take = Script::new(TAKE);
    let mut ticks = tokio::time::interval(POLL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        loop {
            let due: Vec<String> = take.key(KEY).arg(now_us()).arg(AT_ONCE).invoke_async(&mut connection).await?;
            let got_us = now_us();
            for payload in &due {
                let task: serde_json::Value = serde_json::from_str(payload)?;
                let (number, due_us) = (task["n"].as_u64().unwrap_or(0), task["t"].as_i64().unwrap_or(0));
                collector.note(Arrival { number, due_us, got_us });
            }
            if due.len() < AT_ONCE {
                break;
            }
        }
    }
}

fn described(told: Told) -> Told {
    Told {
        settings: format!("one poller each 100 ms, {AT_ONCE} tasks a poll in a Lua script; Redis: {REDIS_SETTINGS}"),
        unfair:
            "a task is gone once it is taken: a worker that dies loses it. A crash of Redis loses up to a second. The \
                 worker is in the poller's process."
                .into(),
        ..told
    }
}
