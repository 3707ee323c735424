//! The archive's daily partitions: made ahead and dropped whole. Neither step blocks a statement that is running.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use chrono::{Days, NaiveDate};
use common::time::UnixMicros;
use sqlx::{AssertSqlSafe, PgExecutor, PgPool, Row};

use super::{Database, Error, Fault, StoreOp};

/// The longest time that rows are kept unless a queue sets more: the default of `keep_dead_ms`.
pub const DEFAULT_KEEP_DAYS: u64 = 14;

/// Days of partitions made beyond the last day that any row may need. A node that cannot make
/// one for a while loses nothing.
const SPARE_DAYS: u64 = 3;

/// The time after which a node that starts makes no other partition before it owns shards. All of them take less than a
/// second on a server that is not busy.
const MAKE_FIRST_WITHIN: Duration = Duration::from_secs(2);

/// The table of one day.
#[derive(Clone, Debug)]
struct Partition {
    drop_on: NaiveDate,
    link: Link,
}

/// Whether a day's table is part of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Link {
    /// A detach broke off. PostgreSQL detaches one partition of a table at a time, so each other waits for this one.
    HalfDetached,
    Attached,
    /// The table is made and not attached yet, or its drop broke off.
    Detached,
}

/// The changes of one pass over the partitions.
#[derive(Debug, Default)]
pub struct Turned {
    pub made: usize,
    pub dropped: usize,
    /// The days by which the database's clock is ahead of the node's.
    pub ahead_days: i64,
    /// The first partition that could not be made or dropped, and the reason.
    pub failed: Option<(String, Error)>,
}

/// Whether another node's CREATE of the same table was faster. Depending on the moment, PostgreSQL finds its name or
/// that of its row type taken (42P07, 42710), or an entry of its catalog (23505).
fn is_taken(error: &sqlx::Error) -> bool {
    let code = super::error::sqlstate(error);
    matches!(code.as_deref(), Some("42P07" | "42710" | "23505"))
}

impl Database {
    /// Makes the partitions that rows kept for up to the longest of `keep_days` need, and drops those whose day has
    /// passed. A failure to make one keeps none from being dropped. An error says that the database is away.
    ///
    /// A day has passed when the database's clock and the node's wall clock, `node_now`, both say so. Neither of them
    /// alone can drop the whole archive by being ahead for a moment, and a late drop costs nothing but disk.
    pub async fn partitions_turn(&self, keep_days: &BTreeSet<u64>, node_now: UnixMicros) -> Result<Turned, Error> {
        let (today, present) = self.partitions_read().await?;
        let node_today = node_now.to_utc().date_naive();
        let ahead_days = today.signed_duration_since(node_today).num_days();
        let mut turned = Turned { ahead_days, ..Turned::default() };
        for day in missing_days(today, keep_days, &present) {
            match self.partition_make(day).await {
                Ok(()) => turned.made += 1,
                Err(error) if error.fault() == Fault::Outage => return Err(error),
                Err(error) => {
                    turned.failed = Some((partition_name(day), error));
                    break;
                }
            }
        }
        let present_day = today.min(node_today);
        let mut passed: Vec<Partition> =
            present.into_iter().filter(|partition| partition.drop_on < present_day).collect();
        passed.sort_unstable_by_key(|partition| (partition.link, partition.drop_on));
        for partition in &passed {
            match self.partition_drop(partition).await {
                Ok(()) => turned.dropped += 1,
                Err(error) if error.fault() == Fault::Outage => return Err(error),
                Err(error) => {
                    turned.failed.get_or_insert_with(|| (partition_name(partition.drop_on), error));
                    break;
                }
            }
        }
        Ok(turned)
    }

    /// Sets how much ANALYZE reads of the busy tables that a vacuum held locked during the migration. One that is
    /// locked now is left to the next call.
    pub async fn partitions_spare(&self) -> Result<(), Error> {
        self.run(StoreOp::PartitionMake, |pool| async move {
            sqlx::query(include_str!("queries/partition_spare.sql")).execute(&pool).await.map(drop)
        })
        .await
    }

    /// The days of the archive's partitions whose rows are still kept.
    pub async fn partition_days(&self) -> Result<Vec<NaiveDate>, Error> {
        let (today, present) = self.partitions_read().await?;
        let days = present.into_iter().filter(|partition| partition.link == Link::Attached);
        let mut days: Vec<NaiveDate> = days.map(|partition| partition.drop_on).filter(|day| *day > today).collect();
        days.sort_unstable();
        Ok(days)
    }

    /// Makes the partitions that a new cluster has, where they are missing, before a node owns shards. Begins no other
    /// one after two seconds, nor after a lock that it does not get: the archiver makes the rest.
    pub async fn partitions_make_first(&self) -> Result<(), Error> {
        let began = Instant::now();
        let (today, present) = self.partitions_read().await?;
        for day in missing_days(today, &[DEFAULT_KEEP_DAYS].into(), &present) {
            if began.elapsed() >= MAKE_FIRST_WITHIN {
                break;
            }
            self.partition_make(day).await?;
        }
        Ok(())
    }

    /// Makes the partitions of these days that do not exist yet.
    pub async fn partitions_make(&self, days: &[NaiveDate]) -> Result<(), Error> {
        let (_, present) = self.partitions_read().await?;
        for day in days.iter().filter(|day| !has_day(&present, **day)) {
            self.partition_make(*day).await?;
        }
        Ok(())
    }

    async fn partitions_read(&self) -> Result<(NaiveDate, Vec<Partition>), Error> {
        self.run(StoreOp::PartitionRead, |pool| async move { read(&pool).await }).await
    }

    async fn partition_make(&self, day: NaiveDate) -> Result<(), Error> {
        self.run(StoreOp::PartitionMake, |pool| async move { make(&pool, day).await }).await
    }

    /// Detaches the partition concurrently first, so that the DROP locks a table that no statement uses any more.
    async fn partition_drop(&self, partition: &Partition) -> Result<(), Error> {
        let name = partition_name(partition.drop_on);
        let how = match partition.link {
            Link::Attached => Some("CONCURRENTLY"),
            Link::HalfDetached => Some("FINALIZE"),
            Link::Detached => None,
        };
        self.run(StoreOp::PartitionDrop, |pool| async move {
            if let Some(how) = how {
                let detach = format!("ALTER TABLE duetime.archive DETACH PARTITION duetime.{name} {how}");
                sqlx::raw_sql(AssertSqlSafe(detach)).execute(&pool).await?;
            }
            sqlx::raw_sql(AssertSqlSafe(format!("DROP TABLE IF EXISTS duetime.{name}"))).execute(&pool).await?;
            Ok(())
        })
        .await
    }
}

/// Makes the partitions that rows need while no queue keeps them for longer than the default, where they are missing.
/// Ends at the first lock that it does not get in time: the archiver makes the rest.
pub(super) async fn make_first(pool: &PgPool) -> Result<(), sqlx::Error> {
    let (today, present) = read(pool).await?;
    for day in missing_days(today, &[DEFAULT_KEEP_DAYS].into(), &present) {
        make(pool, day).await?;
    }
    Ok(())
}

/// Today's date by the database's clock, and the tables of days.
async fn read<'p>(pool: impl PgExecutor<'p>) -> Result<(NaiveDate, Vec<Partition>), sqlx::Error> {
    let rows = sqlx::query(include_str!("queries/partition_read.sql")).fetch_all(pool).await?;
    let today = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("today")?;
    let mut partitions = Vec::new();
    for row in &rows {
        let Some(name) = row.try_get::<Option<&str>, _>("name")? else { continue };
        let link = match (row.try_get("detached")?, row.try_get("half_detached")?) {
            (true, _) => Link::Detached,
            (false, true) => Link::HalfDetached,
            (false, false) => Link::Attached,
        };
        let day = NaiveDate::parse_from_str(name, PARTITION_NAME);
        // A name that is no day is a stranger's.
        partitions.extend(day.ok().map(|drop_on| Partition { drop_on, link }));
    }
    Ok((today, partitions))
}

/// Creates the table beside the archive, then attaches it. ATTACH (SHARE UPDATE EXCLUSIVE) waits for no reader or
/// writer, but CREATE TABLE .. PARTITION OF would lock the archive against all of them.
async fn make<'p>(pool: impl PgExecutor<'p> + Copy, day: NaiveDate) -> Result<(), sqlx::Error> {
    let name = partition_name(day);
    let next = day.succ_opt().unwrap_or(NaiveDate::MAX);
    let create = format!(
        "CREATE TABLE IF NOT EXISTS duetime.{name} (LIKE duetime.archive INCLUDING ALL);
         SELECT duetime.spare_analyze('duetime.{name}')"
    );
    match sqlx::raw_sql(AssertSqlSafe(create)).execute(pool).await {
        Err(error) if is_taken(&error) => {}
        other => _ = other?,
    }
    let attach =
        format!("ALTER TABLE duetime.archive ATTACH PARTITION duetime.{name} FOR VALUES FROM ('{day}') TO ('{next}')");
    match sqlx::raw_sql(AssertSqlSafe(attach)).execute(pool).await {
        // Another node was faster: `is already a partition`.
        Err(sqlx::Error::Database(answer)) if answer.code().as_deref() == Some("42809") => Ok(()),
        other => other.map(|_| ()),
    }
}

/// The days without a partition that rows kept for up to the longest of `keep_days` need, from today on, and some to
/// spare. First come those of rows that end today: until they are made, tasks of a queue with a new retention cannot
/// end. Those of a year between take a node some 10 s.
fn missing_days(today: NaiveDate, keep_days: &BTreeSet<u64>, present: &[Partition]) -> Vec<NaiveDate> {
    let longest = keep_days.last().copied().unwrap_or_default();
    let is_for_now =
        |days: u64| keep_days.contains(&days) || days.checked_sub(1).is_some_and(|keep| keep_days.contains(&keep));
    let ahead = (0..=longest.saturating_add(1 + SPARE_DAYS))
        .map_while(|days| Some((!is_for_now(days), today.checked_add_days(Days::new(days))?)));
    let mut missing: Vec<(bool, NaiveDate)> = ahead.filter(|(_, day)| !has_day(present, *day)).collect();
    missing.sort_unstable();
    missing.into_iter().map(|(_, day)| day).collect()
}

/// Whether the archive has the partition of a day.
fn has_day(present: &[Partition], day: NaiveDate) -> bool {
    present.iter().any(|partition| partition.drop_on == day && partition.link != Link::Detached)
}

/// The name of a day's table, as a format of dates.
const PARTITION_NAME: &str = "archive_%Y%m%d";

fn partition_name(drop_on: NaiveDate) -> String {
    drop_on.format(PARTITION_NAME).to_string()
}
