//! Collects submissions made in SQL: reads an inbox, and moves its rows to the databases where they become tasks.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{DatabaseName, QueueName, ShardId, TaskId},
    queue::Queue,
    task::NewTask,
    time::UnixMicros,
};
use futures::TryStreamExt;
use sqlx::{Row, postgres::PgRow};

use super::{
    Database, Error, StoreOp,
    claim::interval,
    put::{Put, Retention},
    submit::Columns,
};
use crate::history::Step;

/// The most old rows that one statement deletes.
const FORGOTTEN_PER_PASS: i64 = 1_000;

/// The source of the notes of submissions that replaced a task (duetime.task_put). It is no name of a database.
const REPLACED: &str = "(replaced)";

/// The longest request that is read, in bytes of its text. This is more than the largest payload in base64, all its
/// headers and all its dependencies. `duetime.submit` refuses a longer one.
pub const LONGEST_REQUEST: i64 = 4 << 20;

/// The most bytes that the rows of one read occupy in the table. The first row is read in any case. The table
/// is compressed, up to 100 times.
const STORED_PER_READ: i64 = 1 << 20;

/// The most bytes of requests that one read takes into memory; the row beyond them is the last one. A number of ten
/// bytes in the table may be 131,000 digits as text.
const READ_BYTES: usize = 16 << 20;

/// The most rows of an inbox that are counted. A larger count is reported as "at least so many".
const COUNTED_MOST: i64 = 100_000;

/// One submission that waits in an inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxRow {
    /// The id of the task that this row becomes.
    pub id: TaskId,
    /// The request as JSON, like the body of `POST /v1/tasks`. `None`: it is too large to be read.
    pub request: Option<String>,
    pub submitted_at: UnixMicros,
    /// Whether the row is on its way into another database and may have arrived there.
    pub leaving: bool,
    /// Whether the read ended with this row because of its size, so that others may wait behind it.
    pub is_last: bool,
    /// One value for all rows of a read.
    pub rules_changed: Arc<RulesChanged>,
}

/// The queues whose rules for submissions have changed since the revision that the reader of an inbox knew. Every
/// change that was answered before one of the rows was committed is among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesChanged {
    pub queues: BTreeSet<QueueName>,
    /// Queues as of this revision, or of a later one, have these changes.
    pub revision: i64,
}

/// The rows that a read returns.
#[derive(Clone, Copy, Debug)]
pub struct InboxScope<'a> {
    /// The shards that this node owns.
    pub owned: &'a [ShardId],
    /// The shards whose database is reachable, and takes their tasks: none in the last part of a move.
    pub reachable: &'a [ShardId],
    /// How long a row is left to the owner of its shard. After that, any node may collect it.
    pub others_after: Duration,
    pub most: usize,
    /// Rows that the read leaves out.
    pub aside: &'a [TaskId],
    /// The revision of the queues that this node knows.
    pub known: i64,
}

/// The outcome of a row with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    pub id: TaskId,
    /// Whether this call decided the outcome. `false`: an earlier call with the same row did.
    pub first: bool,
    pub put: Put,
}

/// A row that goes into another database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeavingRow {
    pub id: TaskId,
    pub submitted_at: UnixMicros,
    /// When the row was cancelled. It then becomes a cancelled task in the other database.
    pub cancelled_at: Option<UnixMicros>,
}

/// The times of a cancelled row, and how long its cancelled task is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelledRow {
    pub submitted_at: UnixMicros,
    pub at: UnixMicros,
    pub keep_ms: i64,
}

/// The queues to delete from a database's copy.
#[derive(Clone, Copy, Debug)]
pub enum CopyDeletion<'a> {
    These(&'a [QueueName]),
    AllBut(&'a [QueueName]),
}

/// The size of an inbox and the age of its oldest row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InboxStatus {
    pub waiting: i64,
    pub oldest: Duration,
}

impl Database {
    pub async fn inbox_read(&self, wanted: InboxScope<'_>) -> Result<Vec<InboxRow>, Error> {
        self.inbox_rows(wanted, true).await
    }

    /// Reads the same rows without their requests, to find the one that cannot be read.
    pub async fn inbox_ids(&self, wanted: InboxScope<'_>) -> Result<Vec<InboxRow>, Error> {
        self.inbox_rows(wanted, false).await
    }

    /// Reads one row by its id, if it still waits. This tells no change of rules.
    pub async fn inbox_read_alone(&self, id: TaskId, request: bool) -> Result<Option<InboxRow>, Error> {
        let read = |row: PgRow| {
            Ok(InboxRow {
                id: super::task_id(&row, "id")?,
                request: row.try_get("request")?,
                submitted_at: super::moment(&row, "submitted_at")?,
                leaving: row.try_get("leaving")?,
                is_last: false,
                rules_changed: Arc::default(),
            })
        };
        self.run(StoreOp::InboxRead, |pool| async move {
            let statement = sqlx::query(include_str!("queries/inbox_read_alone.sql"));
            let statement = statement.bind(id.uuid()).bind(request).bind(LONGEST_REQUEST);
            statement.fetch_optional(&pool).await?.map(read).transpose()
        })
        .await
    }

    async fn inbox_rows(&self, wanted: InboxScope<'_>, requests: bool) -> Result<Vec<InboxRow>, Error> {
        let from = self.inbox_from(Instant::now());
        self.run(StoreOp::InboxRead, |pool| async move {
            let mut connection = pool.acquire().await?;
            let mut rows = sqlx::query(include_str!("queries/inbox_read.sql"))
                .bind(super::numbers(wanted.owned))
                .bind(super::numbers(wanted.reachable))
                .bind(interval(wanted.others_after))
                .bind(i64::try_from(wanted.most).unwrap_or(i64::MAX))
                .bind(super::uuids(wanted.aside))
                .bind(STORED_PER_READ)
                .bind(LONGEST_REQUEST)
                .bind(requests)
                .bind(from.to_utc())
                .bind(wanted.known)
                .fetch(&mut *connection);
            let (mut read, mut bytes, mut is_whole) = (Vec::new(), 0, false);
            let mut rules_changed = Arc::new(RulesChanged::default());
            // The others come with the next read. The pool throws away what is still on its way.
            while bytes < READ_BYTES {
                let Some(row) = rows.try_next().await? else {
                    is_whole = true;
                    break;
                };
                let request: Option<String> = row.try_get("request")?;
                if let Some(queues) = row.try_get::<Option<Vec<String>>, _>("rules_changed")? {
                    let queues = queues.into_iter().map(QueueName::new).collect();
                    rules_changed = Arc::new(RulesChanged { queues, revision: row.try_get("rules_revision")? });
                }
                bytes += request.as_ref().map_or(0, String::len);
                read.push(InboxRow {
                    id: super::task_id(&row, "id")?,
                    request,
                    submitted_at: super::moment(&row, "submitted_at")?,
                    leaving: row.try_get("leaving")?,
                    is_last: row.try_get::<bool, _>("is_last")? || bytes >= READ_BYTES,
                    rules_changed: Arc::clone(&rules_changed),
                });
            }
            drop(rows);
            if is_whole {
                connection.give_back();
            }
            Ok(read)
        })
        .await
    }

    /// Marks rows of this inbox that go into another database. Only the rows returned may go.
    pub async fn inbox_leave(&self, ids: &[TaskId]) -> Result<Vec<LeavingRow>, Error> {
        let leaving = |row: &PgRow| {
            Ok(LeavingRow {
                id: super::task_id(row, "id")?,
                submitted_at: super::moment(row, "submitted_at")?,
                cancelled_at: super::optional_moment(row, "cancelled_at")?,
            })
        };
        self.run(StoreOp::InboxLeave, |pool| async move {
            let statement = sqlx::query(include_str!("queries/inbox_leave.sql")).bind(super::uuids(ids));
            statement.fetch_all(&pool).await?.iter().map(leaving).collect()
        })
        .await
    }

    /// Writes cancelled rows of the inbox of `source` as cancelled tasks, each kept for its own time.
    /// Returns those that were not here yet.
    pub async fn task_collect_cancelled(
        &self,
        tasks: &[NewTask],
        cancelled: &[CancelledRow],
        source: &DatabaseName,
    ) -> Result<Vec<TaskId>, Error> {
        let utc = |of: fn(&CancelledRow) -> UnixMicros| -> Vec<chrono::DateTime<chrono::Utc>> {
            cancelled.iter().map(|one| of(one).to_utc()).collect()
        };
        let statement = Columns::of(tasks)
            .bound_to(include_str!("queries/task_collect_cancelled.sql"))
            .bind(source.as_str())
            .bind(utc(|one| one.submitted_at))
            .bind(utc(|one| one.at))
            .bind(cancelled.iter().map(|one| one.keep_ms).collect::<Vec<i64>>());
        let collected = self.returned_ids(StoreOp::TaskCollectCancelled, statement).await?;
        let none = common::ids::Attempt::NONE;
        self.history.record_all(collected.iter().map(|task| Step::Cancelled { task: *task, attempt: none }));
        Ok(collected)
    }

    /// Makes tasks without a key from rows of this database's inbox, or of the inbox of
    /// `source`. Returns those that were new.
    pub async fn task_collect(&self, tasks: &[NewTask], source: Option<&DatabaseName>) -> Result<Vec<TaskId>, Error> {
        let statement = Columns::of(tasks).bound_to(statement!("task_collect"));
        let statement = statement.bind(source.map(DatabaseName::as_str));
        let collected = self.returned_ids(StoreOp::TaskCollect, statement).await?;
        self.history.record_all(collected.iter().map(|task| Step::Submitted { task: *task }));
        Ok(collected)
    }

    /// Makes tasks that have a key from rows of this database's inbox, or of the inbox of `source`. For `holds` see
    /// [`Database::task_put_within`]. A row of this database's inbox that another node has taken gets no answer, nor
    /// does one of another's that was refused before it arrived.
    pub async fn task_collect_keyed(
        &self,
        tasks: &[NewTask],
        holds: &[Retention],
        source: Option<&DatabaseName>,
    ) -> Result<Vec<Collected>, Error> {
        let statement = super::put::bound(tasks, holds, include_str!("queries/task_collect_keyed.sql"))
            .bind(source.map(DatabaseName::as_str));
        self.run(StoreOp::TaskCollectKeyed, |pool| async move {
            let collected = |row: &PgRow| {
                let (id, first) = (super::task_id(row, "asked_id")?, row.try_get("first")?);
                Ok(Collected { id, first, put: super::put::put(row)? })
            };
            statement.fetch_all(&pool).await?.iter().map(collected).collect()
        })
        .await
        .inspect(|collected: &Vec<Collected>| {
            let created =
                collected.iter().filter(|one| one.first && one.put.outcome == super::put::PutOutcome::Created);
            self.history.record_all(created.map(|one| Step::Submitted { task: one.id }));
        })
    }

    /// Deletes rows that have arrived in another database.
    pub async fn inbox_delete(&self, ids: &[TaskId]) -> Result<(), Error> {
        let statement = sqlx::query(include_str!("queries/inbox_delete.sql")).bind(super::uuids(ids));
        self.returned_ids(StoreOp::InboxDelete, statement).await.map(drop)
    }

    /// Marks rows that cannot become tasks as refused, with the reasons. Returns those that were not
    /// refused before. A row on its way into another database is refused only if `there` says that its
    /// fate in that database is known.
    pub async fn inbox_refuse(&self, refused: &[(TaskId, String)], there: bool) -> Result<Vec<TaskId>, Error> {
        let (ids, reasons): (Vec<_>, Vec<_>) = refused.iter().map(|(id, reason)| (id.uuid(), reason.as_str())).unzip();
        let statement = sqlx::query(include_str!("queries/inbox_refuse.sql")).bind(ids).bind(reasons).bind(there);
        self.returned_ids(StoreOp::InboxRefuse, statement).await
    }

    /// Keeps `ids` of the inbox of `source` from ever arriving here. Returns those for which no task stands here, as
    /// often as it is asked: they have not arrived, or were refused on arrival.
    pub async fn received_refuse(&self, ids: &[TaskId], source: &DatabaseName) -> Result<Vec<TaskId>, Error> {
        let statement = sqlx::query(include_str!("queries/received_refuse.sql"));
        let statement = statement.bind(super::uuids(ids)).bind(source.as_str());
        self.returned_ids(StoreOp::ReceivedRefuse, statement).await
    }

    /// Whether the id is in this inbox, and the reason if it was refused.
    pub async fn inbox_find(&self, id: TaskId) -> Result<Option<Option<String>>, Error> {
        self.run(StoreOp::InboxFind, |pool| async move {
            let row = sqlx::query(include_str!("queries/inbox_find.sql")).bind(id.uuid()).fetch_optional(&pool).await?;
            row.map(|row| row.try_get("error")).transpose()
        })
        .await
    }

    /// How many rows wait. While looks begin at a mark, rows before it are not among them.
    pub async fn inbox_standing(&self) -> Result<InboxStatus, Error> {
        self.inbox_standing_since(self.inbox_from(Instant::now())).await
    }

    /// The same of all rows. Beside an old transaction it may run out of time.
    pub async fn inbox_standing_from_head(&self) -> Result<InboxStatus, Error> {
        self.inbox_standing_since(UnixMicros::FIRST).await
    }

    async fn inbox_standing_since(&self, from: UnixMicros) -> Result<InboxStatus, Error> {
        self.run(StoreOp::InboxStanding, |pool| async move {
            let count = sqlx::query(include_str!("queries/inbox_standing.sql")).bind(COUNTED_MOST).bind(from.to_utc());
            let row = count.fetch_one(&pool).await?;
            let oldest = Duration::try_from_secs_f64(row.try_get::<f64, _>("oldest_s")?).unwrap_or(Duration::ZERO);
            Ok(InboxStatus { waiting: row.try_get("waiting")?, oldest })
        })
        .await
    }

    /// Deletes some of the rows that were refused longer ago than `kept`. Returns whether there may be more.
    pub async fn inbox_forget(&self, kept: Duration) -> Result<bool, Error> {
        let statement =
            sqlx::query(include_str!("queries/inbox_forget.sql")).bind(interval(kept)).bind(FORGOTTEN_PER_PASS);
        self.returned_ids(StoreOp::InboxForget, statement).await.map(|gone| more(&gone))
    }

    /// Forgets some of the arrivals from the inbox of `source` that are older than `age`. `age` must exceed the age
    /// of every row in that inbox. Returns whether there may be more.
    pub async fn received_forget(&self, source: &DatabaseName, age: Duration) -> Result<bool, Error> {
        self.notes_forget(source.as_str(), age).await
    }

    /// Forgets some of the submissions that replaced a task, and did so longer ago than `age`. `age` must exceed the
    /// time within which one is sent again. Returns whether there may be more.
    pub async fn replaced_forget(&self, age: Duration) -> Result<bool, Error> {
        self.notes_forget(REPLACED, age).await
    }

    async fn notes_forget(&self, source: &str, age: Duration) -> Result<bool, Error> {
        let statement = sqlx::query(include_str!("queries/received_forget.sql"))
            .bind(source)
            .bind(interval(age))
            .bind(FORGOTTEN_PER_PASS);
        self.returned_ids(StoreOp::ReceivedForget, statement).await.map(|gone| more(&gone))
    }

    /// Writes `changed` into this database's copy of the queues, and deletes others from it. What has changed since the
    /// revision `known` stays.
    pub async fn queue_copy(
        &self,
        changed: &[Arc<Queue>],
        deletion: CopyDeletion<'_>,
        known: i64,
    ) -> Result<(), Error> {
        let (names, policies): (Vec<&str>, Vec<String>) = changed
            .iter()
            .map(|queue| (queue.name.as_str(), serde_json::to_string(&queue.policy).expect("a policy is JSON")))
            .unzip();
        let (named, all_but) = match deletion {
            CopyDeletion::These(named) => (named, false),
            CopyDeletion::AllBut(named) => (named, true),
        };
        let named: Vec<&str> = named.iter().map(QueueName::as_str).collect();
        let statement = sqlx::query(include_str!("queries/queue_copy.sql"));
        let statement = statement.bind(names).bind(policies).bind(named).bind(all_but).bind(known);
        self.returned_ids(StoreOp::QueueCopy, statement).await.map(drop)
    }
}

fn more(gone: &[TaskId]) -> bool {
    i64::try_from(gone.len()).unwrap_or(i64::MAX) >= FORGOTTEN_PER_PASS
}
