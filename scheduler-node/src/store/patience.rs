//! The tries of a migration whose locks other transactions hold.

use std::{fmt, time::Duration};

use sqlx::{PgPool, Row, migrate::MigrateError, postgres::PgRow};
use tokio::time::Instant;

use super::error::sqlstate;

/// The most tries of a migration whose locks other transactions hold: about a minute of waiting in all.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(500);
/// The tries for each warning about them: about ten seconds. The first one comes with the second try, when the
/// connection that looks is surely open.
const TRIES_PER_WARNING: u32 = 15;
const FIRST_WARNING: u32 = 2;

/// How often a try looks for what it waits for. It waits for 200 ms.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The transactions that the last try waited for.
#[derive(Debug, Default)]
struct Blockers(Vec<Blocker>);

#[derive(Debug)]
struct Blocker {
    pid: i32,
    application: String,
    age_s: i64,
}

/// Repeats what does not get a lock in time. It changed nothing, and during the pause the statements that waited behind
/// it get their turn. While a transaction in its way stays, it only waits. `beside` is another connection, which finds
/// out about these transactions.
pub(super) async fn patiently<T>(
    beside: &PgPool,
    attempt: impl AsyncFn() -> Result<T, MigrateError>,
) -> Result<T, MigrateError> {
    let mut blockers = Blockers::default();
    for tries in 1..LOCK_TRIES {
        if !blockers.stay(beside).await {
            match watched(beside, &attempt).await {
                (Err(error), found) if is_lock_timeout(&error) => blockers = found,
                (done, _) => return done,
            }
        }
        if tries % TRIES_PER_WARNING == FIRST_WARNING {
            tracing::warn!(%blockers, "another transaction holds a lock that the migration needs; trying again");
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
    let last = attempt().await;
    if last.as_ref().is_err_and(is_lock_timeout) {
        tracing::warn!(%blockers, "another transaction still holds a lock that the migration needs; giving up");
    }
    last
}

/// The outcome of a try, and what it waited for.
async fn watched<T>(
    beside: &PgPool,
    attempt: &impl AsyncFn() -> Result<T, MigrateError>,
) -> (Result<T, MigrateError>, Blockers) {
    let mut found = Blockers::default();
    let watch = async {
        let mut look = tokio::time::interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        loop {
            look.tick().await;
            // Without an answer the try goes on, and its transactions have no names.
            if let Ok(Some(blockers)) = Blockers::read(beside).await {
                found = blockers;
            }
        }
    };
    let done = tokio::select! {
        done = attempt() => done,
        () = watch => unreachable!("it never ends"),
    };
    (done, found)
}

impl Blockers {
    /// `None`: the migration waits for no lock at present.
    async fn read(pool: &PgPool) -> Result<Option<Self>, sqlx::Error> {
        let rows = sqlx::query(include_str!("queries/migration_blockers.sql")).fetch_all(pool).await?;
        let blocker = |row: &PgRow| -> Result<Blocker, sqlx::Error> {
            let (pid, application) = (row.try_get("pid")?, row.try_get("application")?);
            Ok(Blocker { pid, application, age_s: row.try_get("age_s")? })
        };
        let found = rows.iter().map(blocker).collect::<Result<Vec<_>, _>>()?;
        Ok((!found.is_empty()).then_some(Self(found)))
    }

    /// Whether one of them has been there for a while and still is. A try would get nothing, and hold up the statements
    /// behind it.
    async fn stay(&self, pool: &PgPool) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let pids: Vec<i32> = self.0.iter().map(|blocker| blocker.pid).collect();
        let stay = sqlx::query_scalar(include_str!("queries/transactions_stay.sql")).bind(pids).fetch_one(pool).await;
        stay.unwrap_or(false)
    }
}

impl fmt::Display for Blockers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("unknown");
        }
        for (number, Blocker { pid, application, age_s }) in self.0.iter().enumerate() {
            let before = if number == 0 { "" } else { ", " };
            write!(f, "{before}pid {pid} ({application}, its transaction began {age_s} s before)")?;
        }
        Ok(())
    }
}

fn is_lock_timeout(error: &MigrateError) -> bool {
    let (MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) = error else { return false };
    sqlstate(error).as_deref() == Some("55P03")
}
