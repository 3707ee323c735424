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

/// A transaction that has been there for longer, as of a backup, rarely ends within the time that a try waits.
const LONG: Duration = Duration::from_secs(5);

/// The transactions that the last try waited for.
#[derive(Debug, Default)]
pub(super) struct Blockers(Vec<Blocker>);

#[derive(Debug)]
struct Blocker {
    pid: i32,
    application: String,
    /// `None`: the session is between transactions, as the holder of a session's lock may be.
    transaction: Option<String>,
    /// Hidden from a role that may not see the session's details.
    age_s: Option<i64>,
    /// When it began, or if that is hidden, when it was first seen.
    since: Instant,
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
        if !blockers.stay(beside, Instant::now()).await {
            match watched(beside, &attempt).await {
                (Err(error), found) if is_lock_timeout(&error) => blockers = found.after(&blockers),
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
    pub(super) async fn read(pool: &PgPool) -> Result<Option<Self>, sqlx::Error> {
        let rows = sqlx::query(include_str!("queries/migration_blockers.sql")).fetch_all(pool).await?;
        let now = Instant::now();
        let blocker = |row: &PgRow| -> Result<Blocker, sqlx::Error> {
            let (pid, application, transaction) =
                (row.try_get("pid")?, row.try_get("application")?, row.try_get("transaction")?);
            let age_s: Option<i64> = row.try_get("age_s")?;
            let age = age_s.and_then(|age_s| u64::try_from(age_s).ok()).map_or(Duration::ZERO, Duration::from_secs);
            Ok(Blocker { pid, application, transaction, age_s, since: now.checked_sub(age).unwrap_or(now) })
        };
        let found = rows.iter().map(blocker).collect::<Result<Vec<_>, _>>()?;
        Ok((!found.is_empty()).then_some(Self(found)))
    }

    /// Remembers when the try before has first seen them.
    fn after(mut self, before: &Self) -> Self {
        for blocker in &mut self.0 {
            let is_same = |other: &&Blocker| other.transaction == blocker.transaction && other.transaction.is_some();
            if let Some(since) = before.0.iter().find(is_same).map(|other| other.since) {
                blocker.since = blocker.since.min(since);
            }
        }
        self
    }

    /// Whether one of them has been there for long at `now`, and still is. A try would get nothing, and hold up the
    /// statements behind it.
    pub(super) async fn stay(&self, pool: &PgPool, now: Instant) -> bool {
        let are_long = self.0.iter().filter(|blocker| now.saturating_duration_since(blocker.since) >= LONG);
        let transactions: Vec<&str> = are_long.filter_map(|blocker| blocker.transaction.as_deref()).collect();
        if transactions.is_empty() {
            return false;
        }
        let stay = sqlx::query_scalar(include_str!("queries/transactions_stay.sql"));
        stay.bind(transactions).fetch_one(pool).await.unwrap_or(false)
    }
}

impl fmt::Display for Blockers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("unknown");
        }
        for (number, Blocker { pid, application, age_s, .. }) in self.0.iter().enumerate() {
            let before = if number == 0 { "" } else { ", " };
            write!(f, "{before}pid {pid} ({application}")?;
            match age_s {
                Some(age_s) => write!(f, ", its transaction began {age_s} s before)")?,
                None => f.write_str(")")?,
            }
        }
        Ok(())
    }
}

fn is_lock_timeout(error: &MigrateError) -> bool {
    let (MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) = error else { return false };
    sqlstate(error).as_deref() == Some("55P03")
}
