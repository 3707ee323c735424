//! Builds the indexes of the table of tasks that came after its first release.
//!
//! A migration runs in a transaction. There an index would hold up all writers while the table is read, which takes
//! minutes where there are millions of tasks. So these are built beside the writers. Statements have the same results
//! without them.
//!
//! A build reads the table twice for each index, and PostgreSQL keeps all that ends meanwhile in the indexes. Nodes of
//! 0.2.0 look through it for each start of an ordered or limited queue. So every `duetime migrate` builds on a small
//! table only, and `duetime migrate --indexes`, without such nodes, on any.

use std::time::Duration;

use sqlx::{Connection, Executor, PgConnection, PgPool};

use super::error::sqlstate;

/// An index to build.
struct Index {
    name: &'static str,
    create: &'static str,
    /// Removes what is left of a build that was given up.
    drop: &'static str,
}

const BUILT: [Index; 2] = [
    Index {
        name: "task_waiting",
        create: include_str!("queries/index_waiting.sql"),
        drop: "DROP INDEX CONCURRENTLY IF EXISTS duetime.task_waiting",
    },
    Index {
        name: "task_lane",
        create: include_str!("queries/index_lane.sql"),
        drop: "DROP INDEX CONCURRENTLY IF EXISTS duetime.task_lane",
    },
];

/// Drops the index whose rows those two have divided among them.
const DROP_REPLACED: &str = "DROP INDEX CONCURRENTLY IF EXISTS duetime.task_partition";

/// Gives back the locks of the session.
const UNLOCK: &str = "SELECT pg_advisory_unlock_all()";

/// The most times that a build begins anew after an ANALYZE. Autovacuum gives way to a build; so this takes a person
/// or a job that runs one again and again.
const DEADLOCKS: usize = 10;

/// The pause between two tries to become the only build.
const LOCK_PAUSE: Duration = Duration::from_secs(1);

/// The bytes of a small table: some two million tasks, which PostgreSQL reads in seconds.
pub(super) const SMALL_BYTES: i64 = 512 << 20;

/// How much a build may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// A table of so many bytes at most, and 10 s of waiting for each lock: an autovacuum gives way within two seconds,
    /// and most transactions end sooner. Others may be open for hours, and an upgrade must not wait for those.
    UpTo(i64),
    /// A table of any size, and the end of whatever is in the way. Only a VACUUM, an ANALYZE or a change of the
    /// table's definition waits for a build.
    Any,
}

/// Whether the indexes are there after a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexes {
    Complete,
    /// One is missing, because the table is too large for the effort.
    Large,
    /// One may be missing: another transaction or build was in the way.
    InTheWay,
}

/// Builds the indexes that are missing.
pub(super) async fn build(pool: &PgPool, effort: Effort) -> Result<Indexes, sqlx::Error> {
    // The settings end with the connection.
    let mut connection = pool.acquire().await?.detach();
    let mut built = build_missing(&mut connection, effort).await;
    for _ in 0..DEADLOCKS {
        if effort != Effort::Any || !built.as_ref().is_err_and(is_deadlock) {
            break;
        }
        // An ANALYZE waited for the build, which waited for its snapshot. It has its turn now.
        tracing::warn!("the build of an index was broken off for an ANALYZE; beginning anew");
        built = build_missing(&mut connection, effort).await;
    }
    let unlocked = connection.execute(UNLOCK).await.map(drop);
    let closed = unlocked.and(connection.close().await);
    match built {
        Err(error) if effort != Effort::Any && is_in_the_way(&error) => Ok(Indexes::InTheWay),
        built => built.and_then(|indexes| closed.map(|()| indexes)),
    }
}

/// How far the build of an index is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub index: String,
    /// In PostgreSQL's words.
    pub phase: String,
    /// The share of the phase that is done. `None`: the phase counts nothing.
    pub done_percent: Option<i32>,
    /// The process of the transaction that the build waits for.
    pub waits_for: Option<i32>,
}

/// How far the build is that is under way, if there is one.
pub(super) async fn progress(pool: &PgPool) -> Result<Option<Progress>, sqlx::Error> {
    let statement = sqlx::query_as(include_str!("queries/index_progress.sql"));
    let row: Option<(String, String, Option<i32>, Option<i32>)> = statement.fetch_optional(pool).await?;
    Ok(row.map(|(index, phase, done_percent, waits_for)| Progress { index, phase, done_percent, waits_for }))
}

async fn build_missing(connection: &mut PgConnection, effort: Effort) -> Result<Indexes, sqlx::Error> {
    // A failed try of the migration has left its lock to the session, and the next `duetime migrate` needs it.
    connection.execute(UNLOCK).await?;
    let patience = if effort == Effort::Any { "SET lock_timeout = 0" } else { "SET lock_timeout = '10s'" };
    connection.execute(patience).await?;
    connection.execute("SET statement_timeout = 0").await?;
    // The build ends with its command: it would hold the lock below. Some platforms refuse the setting.
    let _ = connection.execute("SET client_connection_check_interval = '10s'").await;
    while !is_only_build(connection).await? {
        if effort != Effort::Any {
            return Ok(Indexes::InTheWay);
        }
        // A build waits for all open transactions, so a session that waits for its lock must not be in one.
        tokio::time::sleep(LOCK_PAUSE).await;
    }
    for index in BUILT {
        let is_valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('duetime.' || $1)";
        let is_valid: Option<bool> =
            sqlx::query_scalar(is_valid).bind(index.name).fetch_optional(&mut *connection).await?;
        if is_valid == Some(true) {
            continue;
        }
        if !is_within(connection, effort).await? {
            return Ok(Indexes::Large);
        }
        if is_valid == Some(false) {
            // A build that was given up has left it.
            connection.execute(index.drop).await?;
        }
        connection.execute(index.create).await?;
    }
    connection.execute(DROP_REPLACED).await.map(|_| Indexes::Complete)
}

/// Takes the lock of builds, if no other one has it: two at one moment would wait for each other.
async fn is_only_build(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let lock = "SELECT pg_try_advisory_lock(hashtextextended('duetime.task', 6))";
    sqlx::query_scalar(lock).fetch_one(connection).await
}

async fn is_within(connection: &mut PgConnection, effort: Effort) -> Result<bool, sqlx::Error> {
    let Effort::UpTo(most) = effort else { return Ok(true) };
    sqlx::query_scalar("SELECT pg_relation_size('duetime.task') <= $1").bind(most).fetch_one(connection).await
}

/// Whether the statement waited too long for a lock, or another one waits for it as well.
fn is_in_the_way(error: &sqlx::Error) -> bool {
    matches!(sqlstate(error).as_deref(), Some("55P03" | "40P01"))
}

fn is_deadlock(error: &sqlx::Error) -> bool {
    sqlstate(error).as_deref() == Some("40P01")
}

/// The names of the indexes.
pub(super) fn names() -> Vec<&'static str> {
    BUILT.iter().map(|index| index.name).collect()
}
