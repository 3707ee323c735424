//! The queues, kept in the first database (others have a copy, for what is submitted in SQL), and how many tasks they have, in every database.

use std::{collections::BTreeMap, sync::Arc};

use common::{
    ids::QueueName,
    queue::{Queue, QueueChange, QueuePolicy},
    wire::queue::Counts,
};
use sqlx::{Row, postgres::PgRow, types::Json};

use super::{Database, Error, StoreOp, rows::QueueRecord};

/// Tasks counted of one queue in one database: some 50 ms. Who has more is told "at least so many".
const COUNTED_MOST: i64 = 100_000;

/// Tasks counted in all when many queues are asked about at once: some 200 ms.
const COUNTED_TOGETHER: i64 = 300_000;

/// Even then, every queue is counted so far. A page of 1,000 queues keeps within what is counted together.
const COUNTED_LEAST: i64 = 300;

/// Revisions for which a deletion is remembered: some hundred kilobytes. A node that is further behind reads all queues.
const REMEMBERED: i64 = 10_000;

/// The queues as they came to be since a revision.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueChanges {
    pub revision: i64,
    /// In the order in which they are to be applied. `None`: they are forgotten, so all queues are to be read.
    pub changes: Option<Vec<QueueChange>>,
}

/// A queue as it was just set.
#[derive(Clone, Debug)]
pub struct PutQueue {
    pub record: QueueRecord,
    /// It was not there before.
    pub created: bool,
    pub turn: Turn,
}

/// The revisions at which a queue's policy and its placement changed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Claims that know the queues as of then or later know its policy.
    pub revision: i64,
    /// Tasks that were given their shards by an older revision are not written.
    pub placed: i64,
}

/// How many queues submissions may create.
#[derive(Clone, Copy, Debug)]
pub struct QueueQuota<'a> {
    pub caller: &'a str,
    /// Queues in the cluster.
    pub all: u32,
    /// Queues that this caller's submissions have created.
    pub per_caller: u32,
}

impl Database {
    /// Rises with every change of a queue.
    pub async fn queue_revision(&self) -> Result<i64, Error> {
        self.run(StoreOp::QueueRevision, |pool| async move {
            sqlx::query(include_str!("queries/queue_revision.sql")).fetch_one(&pool).await?.try_get("revision")
        })
        .await
    }

    /// Every queue, and the revision at which they stand so.
    pub async fn queue_read(&self) -> Result<(i64, Vec<Queue>), Error> {
        self.run(StoreOp::QueueRead, |pool| async move {
            let rows = sqlx::query(include_str!("queries/queue_read.sql")).fetch_all(&pool).await?;
            let revision = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("revision")?;
            let mut queues = Vec::with_capacity(rows.len());
            for row in &rows {
                if row.try_get::<Option<&str>, _>("name")?.is_some() {
                    queues.push(QueueRecord::read(row)?.queue);
                }
            }
            Ok((revision, queues))
        })
        .await
    }

    /// What became of the queues after `revision`.
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

    /// One queue, with when it was made and changed.
    pub async fn queue_find(&self, name: &QueueName) -> Result<Option<QueueRecord>, Error> {
        self.run(StoreOp::QueueRead, |pool| async move {
            let row = sqlx::query(include_str!("queries/queue_find.sql")).bind(name.as_str()).fetch_one(&pool).await?;
            let is_there = row.try_get::<Option<&str>, _>("name")?.is_some();
            is_there.then(|| QueueRecord::read(&row)).transpose()
        })
        .await
    }

    /// Queues after the name `after`, in the order of the names' bytes.
    pub async fn queue_page(&self, after: &str, limit: i64) -> Result<Vec<QueueRecord>, Error> {
        self.run(StoreOp::QueuePage, |pool| async move {
            let page = sqlx::query(include_str!("queries/queue_page.sql")).bind(after).bind(limit);
            page.fetch_all(&pool).await?.iter().map(QueueRecord::read).collect()
        })
        .await
    }

    /// Sets a queue's policy. `paused: None` leaves it as it is.
    pub async fn queue_put(
        &self,
        name: &QueueName,
        policy: &QueuePolicy,
        paused: Option<bool>,
        most: u32,
    ) -> Result<Option<PutQueue>, Error> {
        self.run(StoreOp::QueuePut, |pool| async move {
            let row = sqlx::query(include_str!("queries/queue_put.sql"))
                .bind(name.as_str())
                .bind(Json(policy))
                .bind(paused)
                .bind(i64::from(most))
                .fetch_optional(&pool)
                .await?;
            let Some(row) = row else { return Ok(None) };
            Ok(Some(PutQueue { record: QueueRecord::read(&row)?, created: row.try_get("created")?, turn: turn(&row)? }))
        })
        .await
    }

    /// Adds those of `names` that are not there, with this policy, as far as `quota` has room.
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

    /// Holds back from this database's claims whoever does not know the queue's policy as of that turn. For the databases that the
    /// queues are not kept in; the others do so themselves.
    pub async fn queue_turn(&self, name: &QueueName, Turn { revision, placed }: Turn) -> Result<(), Error> {
        self.run(StoreOp::QueueTurn, |pool| async move {
            let turn = sqlx::query(include_str!("queries/queue_turn.sql"));
            turn.bind(name.as_str()).bind(revision).bind(placed).execute(&pool).await.map(drop)
        })
        .await
    }

    /// The queue as it is now, and its turn. `None`: there is no such queue.
    pub async fn queue_pause(&self, name: &QueueName, paused: bool) -> Result<Option<(QueueRecord, Turn)>, Error> {
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

    /// The turn with which it is gone; `None`: there was no such queue. Its tasks, if there are any, go on with the default policy.
    pub async fn queue_delete(&self, name: &QueueName) -> Result<Option<Turn>, Error> {
        self.run(StoreOp::QueueDelete, |pool| async move {
            let row = sqlx::query(include_str!("queries/queue_delete.sql"))
                .bind(name.as_str())
                .bind(REMEMBERED)
                .fetch_optional(&pool)
                .await?;
            row.as_ref().map(turn).transpose()
        })
        .await
    }

    /// How many tasks that are not finished each of `names` has in this database, by state. The counting is bounded:
    /// `at_least` is set where it stopped early.
    pub async fn queue_counts(&self, names: &[QueueName]) -> Result<BTreeMap<QueueName, Counts>, Error> {
        let queues = i64::try_from(names.len()).unwrap_or(i64::MAX).max(1);
        let most = (COUNTED_TOGETHER / queues).clamp(COUNTED_LEAST, COUNTED_MOST);
        let asked: Vec<&str> = names.iter().map(QueueName::as_str).collect();
        self.run(StoreOp::QueueCounts, |pool| async move {
            let rows =
                sqlx::query(include_str!("queries/queue_counts.sql")).bind(asked).bind(most).fetch_all(&pool).await?;
            let mut counts: BTreeMap<QueueName, Counts> =
                names.iter().map(|name| (name.clone(), Counts::default())).collect();
            for row in &rows {
                let count = counts.entry(super::queue(row, "queue")?).or_default();
                count.add(super::state(row, "state")?, row.try_get("tasks")?);
            }
            for count in counts.values_mut() {
                count.at_least = count.total() >= most;
            }
            Ok(counts)
        })
        .await
    }
}

fn turn(row: &PgRow) -> Result<Turn, sqlx::Error> {
    Ok(Turn { revision: row.try_get("revision")?, placed: row.try_get("placed")? })
}

/// `None`: the row says only at which revision they stand.
fn change(row: &PgRow) -> Result<Option<QueueChange>, sqlx::Error> {
    let Some(name) = row.try_get::<Option<&str>, _>("name")?.map(QueueName::new) else { return Ok(None) };
    let policy: Option<Json<QueuePolicy>> = row.try_get("policy")?;
    Ok(Some(match policy {
        Some(Json(policy)) => QueueChange::Written(Arc::new(Queue { name, policy, paused: row.try_get("paused")? })),
        None => QueueChange::Deleted(name),
    }))
}
