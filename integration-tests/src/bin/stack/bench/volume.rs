//! What tasks take in PostgreSQL: rows with their indexes, and the write-ahead log.

use anyhow::{Context, Result};
use integration_tests::sandbox::Sandbox;
use sqlx::{Connection, PgConnection, Row};

use super::report::Report;

/// The bytes of a table with its indexes, toast and partitions.
const TABLE: &str = "SELECT greatest(pg_total_relation_size($1::regclass), \
                     (SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree($1::regclass)))::int8";
const WAITING: &str = "duetime.task";
const FINISHED: &str = "duetime.archive";

/// PostgreSQL 18 has its waits for the log elsewhere, and all versions measure them only where `track_wal_io_timing`
/// is on.
const WRITTEN: &str = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8 AS log_bytes, \
                       wal_records::float8 AS records, wal_fpi::float8 AS full_pages, \
                       (to_jsonb(wal) ->> 'wal_sync')::float8 AS syncs, \
                       (to_jsonb(wal) ->> 'wal_sync_time')::float8 AS sync_ms, \
                       n_tup_upd::float8 AS updates, n_tup_hot_upd::float8 AS hot_updates, \
                       n_dead_tup::float8 AS dead_rows \
                       FROM pg_stat_wal AS wal, pg_stat_user_tables AS tasks \
                       WHERE tasks.schemaname = 'duetime' AND tasks.relname = 'task'";

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

/// The number of a queue's tasks in the first database, finished or not.
pub(super) async fn rows(cluster: &Sandbox, queue: &str) -> Result<u64> {
    const ROWS: &str = "SELECT (SELECT count(*) FROM duetime.task WHERE queue = $1) \
                        + (SELECT count(*) FROM duetime.archive WHERE queue = $1)";
    let mut connection = PgConnection::connect(&cluster.database_url(0)).await?;
    let rows: i64 = sqlx::query_scalar(ROWS).bind(queue).fetch_one(&mut connection).await.context("counting tasks")?;
    connection.close().await?;
    Ok(rows.unsigned_abs())
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

/// What the server of the first database has written: into its log, and into the table of tasks.
#[derive(Clone, Debug)]
pub(super) struct Written {
    log_bytes: f64,
    records: f64,
    full_pages: f64,
    syncs: Option<f64>,
    sync_ms: Option<f64>,
    updates: f64,
    hot_updates: f64,
    /// At that moment.
    dead_rows: f64,
}

impl Written {
    /// Until now. Processes of PostgreSQL report all but the length of the log up to a second late, idle ones up to
    /// ten.
    pub(super) async fn so_far(cluster: &Sandbox) -> Result<Self> {
        let mut connection = PgConnection::connect(&cluster.database_url(0)).await?;
        let row = sqlx::query(WRITTEN).fetch_one(&mut connection).await.context("reading what was written")?;
        connection.close().await?;
        Ok(Self {
            log_bytes: row.try_get("log_bytes")?,
            records: row.try_get("records")?,
            full_pages: row.try_get("full_pages")?,
            syncs: row.try_get("syncs")?,
            sync_ms: row.try_get("sync_ms")?,
            updates: row.try_get("updates")?,
            hot_updates: row.try_get("hot_updates")?,
            dead_rows: row.try_get("dead_rows")?,
        })
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        let grown = |now: Option<f64>, before: Option<f64>| Some(now? - before?);
        Self {
            log_bytes: self.log_bytes - earlier.log_bytes,
            records: self.records - earlier.records,
            full_pages: self.full_pages - earlier.full_pages,
            syncs: grown(self.syncs, earlier.syncs),
            sync_ms: grown(self.sync_ms, earlier.sync_ms),
            updates: self.updates - earlier.updates,
            hot_updates: self.hot_updates - earlier.hot_updates,
            dead_rows: self.dead_rows,
        }
    }

    /// Tells what each of so many tasks cost in the log.
    pub(super) fn tell_log(&self, part: &str, tasks: f64, report: &mut Report) {
        report.figure(part, "write-ahead log", self.log_bytes / tasks, "bytes a task");
        report.figure(part, "full-page images", self.full_pages / tasks, "a task");
    }

    /// Tells the rest of what was written.
    pub(super) fn tell_more(&self, part: &str, tasks: f64, report: &mut Report) {
        report.figure(part, "records of the log", self.records / tasks, "a task");
        if let Some(syncs) = self.syncs {
            report.figure(part, "log synced to disk", syncs / tasks, "times a task");
            if let Some(sync_ms) = self.sync_ms.filter(|sync_ms| *sync_ms > 0.0) {
                report.figure(part, "log synced to disk: each", sync_ms / syncs, "ms");
            }
        }
        report.figure(part, "updates of rows", self.updates / tasks, "a task");
        report.figure(part, "updates of rows: HOT", 100.0 * self.hot_updates / self.updates.max(1.0), "%");
        report.figure(part, "dead rows at the end", self.dead_rows, "");
    }
}
