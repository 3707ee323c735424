//! The queues and their task counts. The first database keeps the queues; the others have a copy for submissions in
//! SQL. Every database counts its own tasks.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use common::{
    ids::QueueName,
    queue::{Queue, QueueChange, QueuePolicy},
    wire::queue::Counts,
};
use sqlx::{Row, ValueRef, postgres::PgRow, types::Json};

use super::{
    Database, Error, StoreOp,
    rows::{QueueRecord, Seen, read_queue},
};

/// The most tasks counted of one queue in one database: some 50 ms. A larger count is
/// reported as "at least so many".
const COUNTED_MOST: i64 = 100_000;

/// The most tasks counted in all when a request names many queues: some 200 ms.
const COUNTED_TOGETHER: i64 = 300_000;

/// The number up to which every queue is counted, however many the request names. A page of 1,000 queues
/// stays within [`COUNTED_TOGETHER`].
const COUNTED_LEAST: i64 = 300;

/// The most submissions in SQL, and the most fire times, among which those of a queue are looked for: some
/// milliseconds, unless the submissions are large.
const AWAITED_MOST: i64 = 1_000;

/// The revisions for which a deletion is remembered: some hundred kilobytes. A node that is
/// further behind reads all queues.
const REMEMBERED: i64 = 10_000;

/// The most outdated turns that one statement forgets: more than it makes, and few enough for claims to wait.
const FORGOTTEN_AT_ONCE: i64 = 100;

/// The changes of queues since a revision.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueChanges {
    pub revision: i64,
    /// The changes in the order in which a node applies them. `None`: they are forgotten,
    /// and the node reads all queues.
    pub changes: Option<Vec<QueueChange>>,
}

/// A queue that was just written.
#[derive(Clone, Debug)]
pub struct PutQueue {
    pub record: QueueRecord,
    /// Whether the queue did not exist before.
    pub created: bool,
    pub turn: QueueRevisions,
}

/// When a queue's policy and its rules for submissions last changed, and since when it is reported on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueRevisions {
    /// The revision of the policy. A claim that knows the queues as of this revision or
    /// a later one knows the policy.
    pub revision: i64,
    /// The revision of the placement, the format, the deduplication window, the limits of submissions, or the deletion
    /// of the queue. Tasks that were admitted or given their shards by an older revision are not written.
    pub placed: i64,
    /// When its `settle` last became `result`.
    pub reports_since: Option<DateTime<Utc>>,
}

/// The limits on queues that submissions create.
#[derive(Clone, Copy, Debug)]
pub struct QueueQuota<'a> {
    pub caller: &'a str,
    /// The most queues in the cluster.
    pub all: u32,
    /// The most queues that this caller's submissions may create.
    pub per_caller: u32,
}

impl Database {
    /// Reads every queue, and the revision of this state.
    pub async fn queue_read(&self) -> Result<(i64, Vec<Queue>), Error> {
        self.run(StoreOp::QueueRead, |pool| async move {
            let rows = sqlx::query(include_str!("queries/queue_read.sql")).fetch_all(&pool).await?;
            let revision = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("revision")?;
            let mut queues = Vec::with_capacity(rows.len());
            for row in &rows {
                if row.try_get::<Option<&str>, _>("name")?.is_some() {
                    queues.push(read_queue(row)?);
                }
            }
            Ok((revision, queues))
        })
        .await
    }

    /// Reads the changes of queues after `revision`.
    pub async fn queue_changes(&self, revision: i64) -> Result<QueueChanges, Error> {
        self.run(StoreOp::QueueChanges, |pool| async move {
            let rows = sqlx::query(include_str!("queries/queue_changes.sql"))
                .bind(revision)
                .bind(REMEMBERED)
                .fetch_all(&pool)
                .await?;
            let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
            let revision = first.try_get("revision")?;
            if first.try_get("forgotten")? {
                return Ok(QueueChanges { revision, changes: None });
            }
            let changes = rows.iter().filter_map(|row| change(row).transpose()).collect::<Result<_, sqlx::Error>>()?;
            Ok(QueueChanges { revision, changes: Some(changes) })
        })
        .await
    }

    /// Reads one queue, with the times at which it was created and changed.
    pub async fn queue_find(&self, name: &QueueName) -> Result<Option<QueueRecord>, Error> {
        self.run(StoreOp::QueueFind, |pool| async move {
            let find = sqlx::query(include_str!("queries/queue_find.sql")).bind(name.as_str());
            find.fetch_optional(&pool).await?.as_ref().map(QueueRecord::read).transpose()
        })
        .await
    }

    /// Lists at most `limit` queues whose names come after `after`, in the order of the names' bytes. `queues`: names,
    /// or the beginnings of names followed by `*`; `None`: all queues.
    pub async fn queue_page(
        &self,
        after: &str,
        limit: i64,
        queues: Option<&[String]>,
    ) -> Result<Vec<QueueRecord>, Error> {
        self.run(StoreOp::QueuePage, |pool| async move {
            let page = sqlx::query(include_str!("queries/queue_page.sql")).bind(after).bind(limit).bind(queues);
            page.fetch_all(&pool).await?.iter().map(QueueRecord::read).collect()
        })
        .await
    }

    /// Sets a queue's policy. `paused: None` leaves the queue paused or running as it is. `None`: there is no room for
    /// another queue, or the stored one is not as the caller has `seen` it.
    pub async fn queue_put_seen(
        &self,
        name: &QueueName,
        policy: &QueuePolicy,
        paused: Option<bool>,
        most: u32,
        seen: Option<Seen>,
    ) -> Result<Option<PutQueue>, Error> {
        let changed_at = match seen {
            Some(Seen::Changed(at)) => Some(at.to_utc()),
            Some(Seen::Absent) | None => None,
        };
        self.run(StoreOp::QueuePut, |pool| async move {
            let row = sqlx::query(include_str!("queries/queue_put.sql"))
                .bind(name.as_str())
                .bind(Json(policy))
                .bind(paused)
                .bind(i64::from(most))
                .bind(seen.is_some())
                .bind(changed_at)
                .bind(Json(QueuePolicy::default()))
                .fetch_optional(&pool)
                .await?;
            let Some(row) = row else { return Ok(None) };
            Ok(Some(PutQueue { record: QueueRecord::read(&row)?, created: row.try_get("created")?, turn: turn(&row)? }))
        })
        .await
    }

    /// Adds those of `names` that do not exist, with this policy, as far as `quota` has room.
    pub async fn queue_add(
        &self,
        names: &[QueueName],
        policy: &QueuePolicy,
        quota: Option<QueueQuota<'_>>,
    ) -> Result<(), Error> {
        let names: Vec<&str> = names.iter().map(QueueName::as_str).collect();
        self.run(StoreOp::QueueAdd, |pool| async move {
            sqlx::query(include_str!("queries/queue_add.sql"))
                .bind(names)
                .bind(Json(policy))
                .bind(quota.map(|quota| quota.caller))
                .bind(quota.map(|quota| i64::from(quota.all)))
                .bind(quota.map(|quota| i64::from(quota.per_caller)))
                .execute(&pool)
                .await?;
            Ok(())
        })
        .await
    }

    /// Records a queue's new turn in a database that does not keep the queues. From then on, a claim that does not
    /// know the queue's policy as of that turn takes no task of the queue. The first database, which keeps the
    /// queues, records its turns itself.
    pub async fn queue_turn(
        &self,
        name: &QueueName,
        QueueRevisions { revision, placed, reports_since }: QueueRevisions,
    ) -> Result<(), Error> {
        self.run(StoreOp::QueueTurn, |pool| async move {
            let turn = sqlx::query(include_str!("queries/queue_turn.sql"));
            let turn = turn.bind(name.as_str()).bind(revision).bind(placed).bind(reports_since);
            turn.bind(REMEMBERED).bind(FORGOTTEN_AT_ONCE).execute(&pool).await.map(drop)
        })
        .await
    }

    /// Pauses or resumes a queue. Returns the queue and its turn. `None`: there is no such queue.
    pub async fn queue_pause(
        &self,
        name: &QueueName,
        paused: bool,
    ) -> Result<Option<(QueueRecord, QueueRevisions)>, Error> {
        self.run(StoreOp::QueuePause, |pool| async move {
            let row = sqlx::query(include_str!("queries/queue_pause.sql"))
                .bind(name.as_str())
                .bind(paused)
                .fetch_optional(&pool)
                .await?;
            row.map(|row| Ok((QueueRecord::read(&row)?, turn(&row)?))).transpose()
        })
        .await
    }

    /// Deletes a queue and returns the turn of the deletion. `None`: there was no such queue, or this database has
    /// tasks of it. Its tasks in other databases, if there are any, go on with the default policy.
    pub async fn queue_delete(&self, name: &QueueName) -> Result<Option<QueueRevisions>, Error> {
        self.run(StoreOp::QueueDelete, |pool| async move {
            let row = sqlx::query(include_str!("queries/queue_delete.sql"))
                .bind(name.as_str())
                .bind(REMEMBERED)
                .bind(FORGOTTEN_AT_ONCE)
                .fetch_optional(&pool)
                .await?;
            row.as_ref().map(turn).transpose()
        })
        .await
    }

    /// Looks for tasks of the queue in this database as its deletion does, which keeps all claims waiting meanwhile.
    /// Returns the server's time for the look.
    pub async fn queue_look(&self, name: &QueueName) -> Result<Duration, Error> {
        self.run(StoreOp::QueueLook, |pool| async move {
            let look = sqlx::query(include_str!("queries/queue_look.sql")).bind(name.as_str());
            let took_ms: i64 = look.fetch_one(&pool).await?.try_get("took_ms")?;
            Ok(Duration::from_millis(took_ms.unsigned_abs()))
        })
        .await
    }

    /// The revision at which the queue's rules for submissions last changed, if that is later than `known`. Any
    /// database tells of every change that was answered before.
    pub async fn queue_rules(&self, name: &QueueName, known: i64) -> Result<Option<i64>, Error> {
        self.run(StoreOp::QueueRules, |pool| async move {
            let read = sqlx::query(include_str!("queries/queue_rules.sql")).bind(name.as_str()).bind(known);
            read.fetch_optional(&pool).await?.map(|row| row.try_get("placed")).transpose()
        })
        .await
    }

    /// Whether submissions in SQL or decided fire times of the queue wait in this database to become tasks.
    pub async fn queue_awaited(&self, name: &QueueName) -> Result<bool, Error> {
        self.run(StoreOp::QueueAwaited, |pool| async move {
            let look = sqlx::query(include_str!("queries/queue_awaited.sql")).bind(name.as_str()).bind(AWAITED_MOST);
            look.fetch_one(&pool).await?.try_get("awaited")
        })
        .await
    }

    /// Counts the unfinished tasks of each of `names` in this database, by state. The count is bounded, and more so
    /// where it runs out of its time: `at_least` is set where it stopped early.
    pub async fn queue_counts(&self, names: &[QueueName]) -> Result<BTreeMap<QueueName, Counts>, Error> {
        let queues = i64::try_from(names.len()).unwrap_or(i64::MAX).max(1);
        let most = (COUNTED_TOGETHER / queues).clamp(COUNTED_LEAST, COUNTED_MOST);
        let mut pace = self.paces.counts.begin();
        loop {
            let counted = self.counts_up_to(most / i64::from(pace.divisor()), names).await;
            if !pace.comes_again(&counted) {
                return counted;
            }
        }
    }

    /// Counts up to `most` tasks of each queue.
    async fn counts_up_to(&self, most: i64, names: &[QueueName]) -> Result<BTreeMap<QueueName, Counts>, Error> {
        let asked: Vec<&str> = names.iter().map(QueueName::as_str).collect();
        let elsewhere = self.elsewhere();
        self.run(StoreOp::QueueCounts, |pool| async move {
            let counting = sqlx::query(include_str!("queries/queue_counts.sql")).bind(asked).bind(most).bind(elsewhere);
            let rows = counting.fetch_all(&pool).await?;
            let mut looked: BTreeMap<QueueName, i64> = BTreeMap::new();
            let mut counts: BTreeMap<QueueName, Counts> =
                names.iter().map(|name| (name.clone(), Counts::default())).collect();
            for row in &rows {
                let name = super::queue(row, "queue")?;
                *looked.entry(name.clone()).or_default() += row.try_get::<i64, _>("looked")?;
                let count = counts.entry(name).or_default();
                count.add(super::state(row, "state")?, row.try_get("tasks")?);
            }
            for (name, count) in &mut counts {
                count.at_least = looked.get(name).is_some_and(|looked| *looked >= most);
            }
            Ok(counts)
        })
        .await
    }
}

fn turn(row: &PgRow) -> Result<QueueRevisions, sqlx::Error> {
    Ok(QueueRevisions {
        revision: row.try_get("revision")?,
        placed: row.try_get("placed")?,
        reports_since: row.try_get("reports_since")?,
    })
}

/// Reads one change of a queue. `None`: the row carries only the revision.
fn change(row: &PgRow) -> Result<Option<QueueChange>, sqlx::Error> {
    let Some(name) = row.try_get::<Option<&str>, _>("name")?.map(QueueName::new) else { return Ok(None) };
    let is_deleted = row.try_get_raw("policy")?.is_null();
    Ok(Some(if is_deleted { QueueChange::Deleted(name) } else { QueueChange::Stored(Arc::new(read_queue(row)?)) }))
}
