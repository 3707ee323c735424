//! Submissions in SQL, in transactions of which some are rolled back.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use rand::RngExt;
use serde_json::json;
use sqlx::{Connection, PgConnection};

use crate::{chaos::stage::Stage, clock::now_ms, ledger::Number};

/// The patience of the application: longer than its statements take, and shorter than most faults.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
const RECONNECT_EVERY: Duration = Duration::from_millis(300);

/// One application at one database.
pub(super) async fn run(stage: Arc<Stage>, database: usize, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    let mut connection = None;
    let mut count = 0;
    while !stage.is_over() {
        ticks.tick().await;
        let Some(mut open) = (match connection.take() {
            Some(open) => Some(open),
            None => stage.primary(database).await.ok(),
        }) else {
            tokio::time::sleep(RECONNECT_EVERY).await;
            continue;
        };
        count += 1;
        // A connection that failed, or was given up on in the middle of a statement, is not used again.
        if transact(&stage, database, &mut open, count).await {
            connection = Some(open);
        }
    }
}

/// One transaction with one task; whether the connection may be used again.
async fn transact(stage: &Stage, database: usize, connection: &mut PgConnection, count: u64) -> bool {
    let mut random = stage.random("sql", count * 8 + database as u64);
    let due_ms = now_ms() + random.random_range(20..2_000);
    let number = stage.ledger().submitting("sql", due_ms);
    let written = tokio::time::timeout(ANSWER_WITHIN, write(connection, number, due_ms, database, count)).await;
    let Ok(Ok((transaction, id))) = written else {
        // No commit was sent.
        stage.ledger().refused(number);
        return false;
    };
    if random.random_range(0..5) == 0 {
        stage.ledger().withdrawn(number);
        return tokio::time::timeout(ANSWER_WITHIN, transaction.rollback()).await.is_ok_and(|ended| ended.is_ok());
    }
    // From here on the outcome is open until the answer.
    stage.ledger().unknown(number);
    let is_committed = tokio::time::timeout(ANSWER_WITHIN, transaction.commit()).await.is_ok_and(|ended| ended.is_ok());
    if is_committed {
        stage.ledger().accepted(number, &id);
    }
    is_committed
}

async fn write(
    connection: &mut PgConnection,
    number: Number,
    due_ms: i64,
    database: usize,
    count: u64,
) -> Result<(sqlx::Transaction<'_, sqlx::Postgres>, String)> {
    let key = count.is_multiple_of(3).then(|| format!("{database} {count}"));
    let options = if count % 3 == 1 { json!({ "partition_key": format!("p {count}") }) } else { json!({}) };
    let mut transaction = connection.begin().await?;
    let id = sqlx::query_scalar(
        "SELECT duetime.submit('sql', $1, to_timestamp($2::bigint / 1000.0), key => $3, options => $4)::text",
    )
    .bind(json!({ "n": number }))
    .bind(due_ms)
    .bind(key)
    .bind(options)
    .fetch_one(&mut *transaction)
    .await?;
    Ok((transaction, id))
}
