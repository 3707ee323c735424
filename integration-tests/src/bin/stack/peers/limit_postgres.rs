//! What PostgreSQL alone does on this machine: rows inserted and updated, in batches and one by one.

use std::time::Instant;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use sqlx::{Connection, PgConnection};

use super::{
    pace::{self, HOUR, Task},
    singles,
    work::{Order, Outcome, Told, Work},
};

const WRITERS: usize = 4;
/// As a table of tasks would be: found by id, and by the due instant, which is spread over an hour.
const TABLE: &str = "CREATE TABLE task (id int8 PRIMARY KEY, due_at timestamptz NOT NULL, state int2 NOT NULL DEFAULT 0, \
                     payload text NOT NULL) WITH (fillfactor = 80)";
const INDEX: &str = "CREATE INDEX ON task (due_at)";
const INSERT: &str = "INSERT INTO task (id, due_at, payload) \
                      SELECT id, to_timestamp($2 + id % 3600), payload FROM unnest($1::int8[], $3::text[]) AS new (id, payload)";
const UPDATE: &str = "UPDATE task SET state = state + 1 WHERE id = ANY($1)";

/// Each writer has numbers of its own, so far apart that they never meet.
const RANGE: u64 = 1 << 40;

/// Throughput: rows inserted in batches. Submit: one row after another.
pub(super) async fn run_insert(order: &Order) -> Result<Outcome> {
    let told = if order.work == Work::Submit {
        one_by_one(order).await?
    } else {
        let writers = prepare(order, WRITERS).await?;
        write(order, writers, async |connection, first, count| insert(connection, first, count, order).await).await?
    };
    Ok(Outcome::Counted(described(told, order)))
}

/// Throughput: rows updated in batches, each row once before any a second time.
pub(super) async fn run_update(order: &Order) -> Result<Outcome> {
    let mut writers = prepare(order, WRITERS).await?;
    let rows = (order.pending / WRITERS as u64).max(order.batch as u64);
    try_join_all((0_u64..).zip(&mut writers).map(async |(writer, connection)| {
        for first in (0..rows).step_by(order.batch) {
            insert(connection, writer * RANGE + first, order.batch, order).await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    let whole = rows.div_ceil(order.batch as u64) * order.batch as u64;
    let told = write(order, writers, async |connection, first, count| {
        let (range, place) = (first / RANGE, first % RANGE % whole);
        let ids: Vec<i64> = (0..count as u64).map(|row| signed(range * RANGE + place + row)).collect();
        let updated = sqlx::query(UPDATE).bind(ids).execute(connection).await?.rows_affected();
        ensure!(updated == count as u64, "{updated} of {count} rows are there");
        anyhow::Ok(())
    })
    .await?;
    Ok(Outcome::Counted(described(told, order)))
}

async fn prepare(order: &Order, connections: usize) -> Result<Vec<PgConnection>> {
    let connect = || PgConnection::connect(&order.postgres_url);
    let mut first = connect().await?;
    sqlx::raw_sql(TABLE).execute(&mut first).await?;
    sqlx::raw_sql(INDEX).execute(&mut first).await?;
    Ok(try_join_all((0..connections).map(|_| connect())).await?)
}

/// Lets each writer write one batch after another until the time is over.
async fn write(
    order: &Order,
    writers: Vec<PgConnection>,
    batch: impl AsyncFn(&mut PgConnection, u64, usize) -> Result<()>,
) -> Result<Told> {
    let began = Instant::now();
    let written = try_join_all((0_u64..).zip(writers).map(async |(writer, mut connection)| {
        let mut rows = 0;
        while began.elapsed() < order.time() {
            batch(&mut connection, writer * RANGE + rows, order.batch).await?;
            rows += order.batch as u64;
        }
        anyhow::Ok(rows)
    }))
    .await?;
    Ok(Told { submitted: written.into_iter().sum(), submit_seconds: began.elapsed().as_secs_f64(), ..Told::default() })
}

async fn insert(connection: &mut PgConnection, first: u64, count: usize, order: &Order) -> Result<()> {
    let tasks = pace::due_at(pace::instant_in(HOUR), first, count as u64);
    let ids: Vec<i64> = tasks.iter().map(|task| signed(task.number)).collect();
    let payloads: Vec<String> = tasks.iter().map(|task| task.payload(order.payload_bytes)).collect();
    let due_s = tasks.first().map_or(0.0, |task| task.due_us as f64 / 1e6);
    sqlx::query(INSERT).bind(ids).bind(due_s).bind(payloads).execute(connection).await?;
    Ok(())
}

async fn one_by_one(order: &Order) -> Result<Told> {
    let clients = prepare(order, order.connections).await?;
    let clients: Vec<tokio::sync::Mutex<PgConnection>> = clients.into_iter().map(tokio::sync::Mutex::new).collect();
    singles::submit(order, &clients, async |client: &tokio::sync::Mutex<PgConnection>, task: Task| {
        insert(&mut *client.lock().await, task.number, 1, order).await
    })
    .await
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn described(told: Told, order: &Order) -> Told {
    Told {
        settings: format!(
            "one table with two indexes; {WRITERS} writers with {} rows a statement, or {} with one row",
            order.batch, order.connections
        ),
        unfair: "a limit, no scheduler: nothing is handed to a worker".into(),
        ..told
    }
}
