//! Days of the archive that pass within minutes.
//!
//! A finished task goes to the partition of the day on which its row may be dropped: at the earliest, with
//! `keep_succeeded_ms = 0`, the day after its end in UTC. Nodes drop a partition when its day is over. So the shortest
//! retention of the product is 24 to 48 hours, and no node drops a row of an hour's run.
//!
//! The tool therefore lets a day pass every ten minutes. It gives the partition that takes what finishes now the name
//! and the bounds of a day that is over, and puts an empty one in its place, in one transaction. No row is written.
//! Each node looks at the partitions every ten minutes, detaches and drops what is over, as it does after midnight.
//! A finished task is thus kept for 5 to 15 minutes.

use std::time::Duration;

use anyhow::{Context, Result};
use integration_tests::sandbox::Sandbox;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::Instant;

use super::super::report::{Report, Target, progress};

/// The interval between two looks of a node at the partitions. A shorter day would not be dropped sooner.
const DAY: Duration = Duration::from_secs(600);
/// The nodes look first when they start, which is just before the run. The first day passes between two of their looks.
const FIRST: Duration = Duration::from_secs(300);
/// A node needs so long at most for its look, for it waits for statements that use the partition.
const DROPPED_WITHIN: Duration = Duration::from_secs(60);

/// By then every run has dropped its first day, and the archive is as large as it becomes.
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(FIRST.as_secs() + DAY.as_secs());

/// Lets the day of each partition with rows pass. What finishes now has tomorrow's; what finished before the last
/// midnight has today's. `NUMBER` is different for each call. PostgreSQL would read the whole table to attach it, and
/// refuse, because the rows say another day. A constraint that is said to be checked spares both.
const PASS: &str = "
DO $$
DECLARE
    today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    filled date; past date; filled_name text; past_name text;
BEGIN
    -- Statements that use the archive wait behind this one.
    PERFORM set_config('lock_timeout', '5s', true);
    FOR ahead IN 0..1 LOOP
        filled := today + ahead;
        past := today - 3 * NUMBER - ahead;
        filled_name := 'archive_' || to_char(filled, 'YYYYMMDD');
        past_name := 'archive_' || to_char(past, 'YYYYMMDD');
        CONTINUE WHEN pg_relation_size(format('duetime.%I', filled_name)::regclass) = 0;
        EXECUTE format('ALTER TABLE duetime.archive DETACH PARTITION duetime.%I', filled_name);
        EXECUTE format('ALTER TABLE duetime.%I ADD CONSTRAINT past CHECK (drop_on >= %L AND drop_on < %L) NOT VALID',
                       filled_name, past, past + 1);
        UPDATE pg_constraint SET convalidated = true
         WHERE conrelid = format('duetime.%I', filled_name)::regclass AND conname = 'past';
        EXECUTE format('ALTER TABLE duetime.%I RENAME TO %I', filled_name, past_name);
        EXECUTE format('CREATE TABLE duetime.%I (LIKE duetime.archive INCLUDING ALL)', filled_name);
        EXECUTE format('ALTER TABLE duetime.archive ATTACH PARTITION duetime.%I FOR VALUES FROM (%L) TO (%L)',
                       filled_name, filled, filled + 1);
        EXECUTE format('ALTER TABLE duetime.archive ATTACH PARTITION duetime.%I FOR VALUES FROM (%L) TO (%L)',
                       past_name, past, past + 1);
    END LOOP;
END $$";

/// Partitions whose day is over.
const LEFT: &str = "
SELECT count(*) FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'duetime.archive'::regclass
   AND c.relname < 'archive_' || to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD')";

/// The days of a run that have passed.
#[derive(Debug)]
pub(super) struct Days {
    began: Instant,
    passed: Vec<Instant>,
}

impl Days {
    pub(super) fn new(began: Instant) -> Self {
        Self { began, passed: Vec::new() }
    }

    /// Lets a day pass if it is time. One that cannot pass is tried again with the next call.
    pub(super) async fn pass(&mut self, cluster: &Sandbox) {
        let due = self.began + FIRST + DAY * self.passed.len() as u32;
        if Instant::now() < due {
            return;
        }
        match self.pass_now(cluster).await {
            Ok(()) => {
                self.passed.push(Instant::now());
                progress(&format!("soak: day {} of the archive is over", self.passed.len()));
            }
            Err(error) => progress(&format!("soak: a day of the archive cannot pass: {error:#}")),
        }
    }

    async fn pass_now(&self, cluster: &Sandbox) -> Result<()> {
        let statement = PASS.replace("NUMBER", &(self.passed.len() + 1).to_string());
        let mut connection = PgConnection::connect(&cluster.database_url(0)).await?;
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await.context("renaming a partition")?;
        Ok(connection.close().await?)
    }

    /// Judges whether the nodes have dropped the days that were over for long enough. In a short run no day passes.
    pub(super) async fn tell(&self, part: &str, cluster: &Sandbox, report: &mut Report) -> Result<()> {
        if self.passed.is_empty() {
            return Ok(());
        }
        let mut connection = PgConnection::connect(&cluster.database_url(0)).await?;
        let left: i64 = sqlx::query_scalar(LEFT).fetch_one(&mut connection).await.context("counting partitions")?;
        connection.close().await?;
        let expected = self.passed.iter().filter(|passed| passed.elapsed() > DAY + DROPPED_WITHIN).count();
        let dropped = self.passed.len() as f64 - left as f64;
        report.judged(part, "days of the archive dropped", dropped, "", Target::AtLeast(expected as f64));
        Ok(())
    }
}
