//! Counts upcoming tasks and dead ones. Each count is bounded, so it costs the same however many tasks there are.

use std::time::Duration;

use common::{ids::QueueName, time::UnixMicros, wire::queue::Counts};
use sqlx::{Row, postgres::types::PgInterval};

use super::{Database, Error, StoreOp, moment, queue};

/// The most rows examined for one span. A larger count is reported as "so many or more".
pub const SPAN_LOOK: i64 = 1_001;

/// The most dead tasks examined to form groups: some 30 ms where histories are short.
pub const DEAD_LOOK: i64 = 10_000;

/// The most queues whose dead tasks are examined. Each queue costs a probe of every partition.
pub const DEAD_QUEUES: usize = 1_000;

/// Pages of the tasks' table read to count its rows by state: some 30 ms. For a larger
/// table the count is an estimate.
const CENSUS_PAGES: f64 = 1_000.0;

/// The most groups returned of one database. No person reads a longer page.
pub const DEAD_GROUPS: usize = 200;

/// The number of tasks that come due in one span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub tasks: i64,
    pub at_least: bool,
}

/// Dead tasks of one queue with the same error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadGroup {
    pub queue: QueueName,
    /// The first 200 characters of the error. Empty: the last attempt gave none.
    pub error: String,
    pub tasks: i64,
    /// The times at which the newest and the oldest of them died.
    pub newest_at: UnixMicros,
    pub oldest_at: UnixMicros,
}

/// The dead tasks of a database, as far as they were examined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadGroups {
    pub groups: Vec<DeadGroup>,
    /// Whether tasks are left that were not examined, so that each number is a lower bound.
    pub at_least: bool,
    /// Whether the smallest groups are left out.
    pub cut: bool,
}

/// The unfinished tasks of all queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    pub counts: Counts,
    /// Whether the counts are an estimate.
    pub estimated: bool,
}

impl Database {
    /// Counts the tasks that come due in each of `count` spans of `length`, from `start` on.
    pub async fn task_outlook(&self, start: UnixMicros, length: Duration, count: i32) -> Result<Vec<Span>, Error> {
        let length = i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
        let elsewhere = self.elsewhere();
        self.run(StoreOp::TaskOutlook, |pool| async move {
            let rows = sqlx::query(include_str!("queries/task_outlook.sql"))
                .bind(start.to_utc())
                .bind(PgInterval { microseconds: length, ..PgInterval::default() })
                .bind(count)
                .bind(SPAN_LOOK)
                .bind(elsewhere)
                .fetch_all(&pool)
                .await?;
            let span = |row: &sqlx::postgres::PgRow| {
                Ok(Span { tasks: row.try_get("tasks")?, at_least: row.try_get::<i64, _>("looked")? >= SPAN_LOOK })
            };
            rows.iter().map(span).collect()
        })
        .await
    }

    /// Counts the unfinished tasks of this database by state.
    pub async fn task_census(&self) -> Result<Census, Error> {
        let elsewhere = self.elsewhere();
        self.run(StoreOp::TaskCensus, |pool| async move {
            let census = sqlx::query(include_str!("queries/task_census.sql")).bind(CENSUS_PAGES).bind(elsewhere);
            let rows = census.fetch_all(&pool).await?;
            let mut census = Census::default();
            for row in &rows {
                let (share, tasks): (f64, i64) = (row.try_get("share")?, row.try_get("tasks")?);
                census.estimated |= share < 1.0;
                if row.try_get::<Option<&str>, _>("state")?.is_some() {
                    census.counts.add(super::state(row, "state")?, (tasks as f64 / share).round() as i64);
                }
            }
            Ok(census)
        })
        .await
    }

    /// Groups the dead tasks of this database by queue and error: those of `queues`, or of all.
    pub async fn dead_groups(&self, queues: Option<&[String]>) -> Result<DeadGroups, Error> {
        let elsewhere = self.elsewhere();
        let mut pace = self.paces.dead_groups.begin();
        loop {
            let looked = self.dead_groups_among(DEAD_LOOK / i64::from(pace.divisor()), queues, &elsewhere).await;
            if !pace.comes_again(&looked) {
                return looked;
            }
        }
    }

    /// The same from at most `look` tasks, without those of the shards `elsewhere`.
    async fn dead_groups_among(
        &self,
        look: i64,
        queues: Option<&[String]>,
        elsewhere: &[i32],
    ) -> Result<DeadGroups, Error> {
        self.run(StoreOp::DeadGroups, |pool| async move {
            let rows = sqlx::query(include_str!("queries/dead_groups.sql"))
                .bind(look)
                // One more shows whether some are left out.
                .bind(i64::try_from(DEAD_GROUPS + 1).unwrap_or(i64::MAX))
                .bind(i32::try_from(DEAD_QUEUES).unwrap_or(i32::MAX))
                .bind(elsewhere)
                .bind(queues)
                .fetch_all(&pool)
                .await?;
            let mut dead = DeadGroups { cut: rows.len() > DEAD_GROUPS, ..DeadGroups::default() };
            for row in rows.iter().take(DEAD_GROUPS) {
                dead.at_least |= !row.try_get::<bool, _>("complete")?;
                if row.try_get::<Option<&str>, _>("queue")?.is_none() {
                    continue;
                }
                dead.groups.push(DeadGroup {
                    queue: queue(row, "queue")?,
                    error: row.try_get("error")?,
                    tasks: row.try_get("tasks")?,
                    newest_at: moment(row, "newest_at")?,
                    oldest_at: moment(row, "oldest_at")?,
                });
            }
            Ok(dead)
        })
        .await
    }
}
