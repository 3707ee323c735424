//! What tasks take in PostgreSQL: rows with their indexes, and the write-ahead log.

use anyhow::{Context, Result};
use integration_tests::sandbox::Sandbox;
use sqlx::{Connection, PgConnection};

use super::report::Report;

/// The bytes of a table with its indexes, toast and partitions.
const TABLE: &str = "SELECT greatest(pg_total_relation_size($1::regclass), \
                     (SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree($1::regclass)))::int8";
const WAITING: &str = "duetime.task";
const FINISHED: &str = "duetime.archive";

/// Tells the bytes of a task that waits, `pending` of them are in the first database.
pub(super) async fn pending(cluster: &Sandbox, pending: usize, report: &mut Report) -> Result<()> {
    if pending > 0 {
        let bytes = table_bytes(&cluster.database_url(0), WAITING).await?;
        report.figure("filling", "rows and indexes", bytes as f64 / pending as f64, "bytes a pending task");
    }
    Ok(())
}

/// Tells the bytes of a task that has finished.
pub(super) async fn finished(cluster: &Sandbox, part: &str, report: &mut Report) -> Result<()> {
    let mut connection = PgConnection::connect(&cluster.database_url(0)).await?;
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.archive").fetch_one(&mut connection).await?;
    connection.close().await?;
    let bytes = table_bytes(&cluster.database_url(0), FINISHED).await?;
    report.figure(part, "rows and indexes", bytes as f64 / rows.max(1) as f64, "bytes a finished task");
    Ok(())
}

/// The number of tasks in the first database that are not finished.
pub(super) async fn unfinished(cluster: &Sandbox) -> Result<u64> {
    let mut connection = PgConnection::connect(&cluster.database_url(0)).await?;
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.task").fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(rows.unsigned_abs())
}

/// The length of the write-ahead logs of all servers together.
pub(super) async fn log_bytes(cluster: &Sandbox) -> Result<i64> {
    let mut bytes = 0;
    for postgres in cluster.postgreses() {
        bytes += postgres.number("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::int8").await?;
    }
    Ok(bytes)
}

async fn table_bytes(url: &str, table: &str) -> Result<i64> {
    let mut connection = PgConnection::connect(url).await?;
    let bytes = sqlx::query_scalar(TABLE).bind(table).fetch_one(&mut connection).await.context("measuring a table")?;
    connection.close().await?;
    Ok(bytes)
}
