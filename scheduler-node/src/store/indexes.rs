//! Builds the indexes of the table of tasks that came after its first release, as a part of `duetime migrate`.
//!
//! A migration runs in a transaction. There an index would hold up all writers while the table is read, which takes
//! minutes where there are millions of tasks. So these are built beside the writers. Statements have the same results
//! without them, so a build that does not get its turn is left to the next `duetime migrate`.

use common::ids::DatabaseName;
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

/// The longest wait for one lock. An autovacuum gives way within two seconds, and most transactions end sooner. Others
/// may be open for hours, and an upgrade must not wait for those.
const PATIENCE: &str = "SET lock_timeout = '10s'";

/// Builds the indexes that are missing. It gives up when another transaction stays in the way.
pub(super) async fn build(database: &DatabaseName, pool: &PgPool) -> Result<(), sqlx::Error> {
    // The settings end with the connection.
    let mut connection = pool.acquire().await?.detach();
    let built = build_missing(database, &mut connection).await;
    let unlocked = connection.execute("SELECT pg_advisory_unlock_all()").await.map(drop);
    let closed = unlocked.and(connection.close().await);
    match built {
        Err(error) if is_in_the_way(&error) => {
            tracing::warn!(
                %database,
                error = &error as &dyn std::error::Error,
                "an index of `duetime.task` is not built, because another transaction is in the way; until `duetime migrate` runs again, lanes and dependencies with thousands of waiting tasks are slow"
            );
            Ok(())
        }
        built => built.and(closed),
    }
}

async fn build_missing(database: &DatabaseName, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection.execute(PATIENCE).await?;
    connection.execute("SET statement_timeout = 0").await?;
    // The build ends with its command: it would hold the lock below.
    connection.execute("SET client_connection_check_interval = '10s'").await?;
    // Two builds at one moment would wait for each other.
    let lock = "SELECT pg_try_advisory_lock(hashtextextended('duetime.task', 6))";
    if !sqlx::query_scalar::<_, bool>(lock).fetch_one(&mut *connection).await? {
        tracing::warn!(
            %database,
            "another `duetime migrate` builds the indexes of `duetime.task`; run this one again if that one was broken off"
        );
        return Ok(());
    }
    for index in BUILT {
        let is_valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('duetime.' || $1)";
        let is_valid: Option<bool> =
            sqlx::query_scalar(is_valid).bind(index.name).fetch_optional(&mut *connection).await?;
        if is_valid == Some(false) {
            // A build that was given up has left it.
            connection.execute(index.drop).await?;
        }
        if is_valid != Some(true) {
            connection.execute(index.create).await?;
        }
    }
    connection.execute(DROP_REPLACED).await.map(drop)
}

/// Whether the statement waited too long for a lock, or another one waits for it as well.
fn is_in_the_way(error: &sqlx::Error) -> bool {
    matches!(sqlstate(error).as_deref(), Some("55P03" | "40P01"))
}
