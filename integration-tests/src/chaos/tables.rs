//! The end of a run: waits until all is finished, and reads what the databases hold.

use std::time::Duration;

use anyhow::Result;
use reqwest::Method;
use serde_json::Value;
use sqlx::Row as _;
use tokio::time::Instant;

use super::{queues::PULSE, stage::Stage};
use crate::{clock::now_ms, ledger::Row};

/// Longer than the longest deadline of the load's queues.
const FINISHED_WITHIN: Duration = Duration::from_secs(240);
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A message may be on its way to its consumer after its row is finished.
const ARRIVED_WITHIN: Duration = Duration::from_secs(60);

/// A copy that nothing waits for may be on its way still. What came after this would go unseen.
const LISTENS_ON: Duration = Duration::from_secs(3);

const ROWS: &str = "
SELECT live, id::text AS task, shard, queue, state::text AS state, attempt,
       (extract(epoch FROM due_at) * 1000000)::bigint AS due_us,
       (extract(epoch FROM claimed_at) * 1000000)::bigint AS claimed_us,
       (extract(epoch FROM finished_at) * 1000000)::bigint AS finished_us, key, partition_key, version, payload
  FROM (SELECT true AS live, id, shard, queue, state, attempt, due_at, claimed_at, NULL::timestamptz AS finished_at,
               key, partition_key, version, payload
          FROM duetime.task
        UNION ALL
        SELECT false, id, shard, queue, state, attempt, due_at, claimed_at, finished_at,
               key, partition_key, version, payload
          FROM duetime.archive) AS known";

/// The schedule has caught up when a task of it has arrived that was due at most this long ago: it fires each second.
const CAUGHT_UP_MS: i64 = 10_000;

/// Stops the schedule once it has caught up, waits until no task is unfinished, and records all rows in the ledger.
pub(super) async fn settle(stage: &Stage) -> Result<()> {
    let deadline = Instant::now() + FINISHED_WITHIN;
    while !has_caught_up(stage) && Instant::now() < deadline {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    stage.ledger().fires_until(PULSE);
    while pause_schedule(stage).await.is_err() && Instant::now() < deadline {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    while open(stage).await.is_none_or(|open| open > 0) && Instant::now() < deadline {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    stage.ledger().wait_all(ARRIVED_WITHIN).await;
    tokio::time::sleep(LISTENS_ON).await;
    let mut rows = Vec::new();
    for database in 0..stage.sandbox.database_count() {
        rows.extend(read(stage, database).await?);
    }
    stage.ledger().tables(rows);
    Ok(())
}

fn has_caught_up(stage: &Stage) -> bool {
    stage.ledger().last_due_ms(PULSE).is_some_and(|due_ms| due_ms >= now_ms() - CAUGHT_UP_MS)
}

async fn pause_schedule(stage: &Stage) -> Result<()> {
    let client = stage.sandbox.live()?;
    let _: Value = client.call(Method::POST, &format!("/v1/schedules/{PULSE}/pause"), None).await?;
    Ok(())
}

const OPEN: &str = "
SELECT (SELECT count(*) FROM duetime.task)
     + (SELECT count(*) FROM duetime.inbox WHERE error IS NULL)
     + (SELECT count(*) FROM duetime.fire)";

/// How many tasks are unfinished, and how many submissions in SQL and decided fire times are not tasks yet. The first
/// database has the fire times and is read first, so a task that is made meanwhile is counted once at least.
async fn open(stage: &Stage) -> Option<i64> {
    let mut open = 0;
    for database in 0..stage.sandbox.database_count() {
        let mut connection = stage.primary(database).await.ok()?;
        open += sqlx::query_scalar::<_, i64>(OPEN).fetch_one(&mut connection).await.ok()?;
    }
    Some(open)
}

async fn read(stage: &Stage, database: usize) -> Result<Vec<Row>> {
    let mut connection = stage.primary(database).await?;
    let rows = sqlx::query(ROWS).fetch_all(&mut connection).await?;
    rows.iter()
        .map(|row| {
            let payload: Vec<u8> = row.try_get("payload")?;
            let payload: Value = serde_json::from_slice(&payload).unwrap_or(Value::Null);
            Ok(Row {
                database,
                live: row.try_get("live")?,
                shard: u32::try_from(row.try_get::<i32, _>("shard")?)?,
                task: row.try_get("task")?,
                queue: row.try_get("queue")?,
                state: row.try_get("state")?,
                attempt: u32::try_from(row.try_get::<i32, _>("attempt")?)?,
                due_us: row.try_get("due_us")?,
                claimed_us: row.try_get("claimed_us")?,
                finished_us: row.try_get("finished_us")?,
                key: row.try_get("key")?,
                partition_key: row.try_get("partition_key")?,
                version: row.try_get("version")?,
                number: payload["n"].as_u64(),
            })
        })
        .collect()
}
