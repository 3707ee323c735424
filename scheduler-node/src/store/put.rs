//! Writes tasks that have a key, and finds tasks by their key.

use std::{collections::HashMap, time::Instant};

use common::{
    ids::{QueueName, TaskId},
    queue::QueuePolicy,
    task::{Dependency, NewTask, TaskState},
    time::UnixMicros,
};
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{
    Database, Error, StoreOp,
    submit::{Columns, Window},
};
use crate::history::Step;

/// How long a finished task blocks a new one with its key, and how long a superseded one stays in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub window_ms: i64,
    pub keep_ms: i64,
}

impl Retention {
    pub const fn of(policy: &QueuePolicy) -> Self {
        Self { window_ms: policy.dedup_window_ms, keep_ms: policy.keep_succeeded_ms }
    }
}

/// The answer to a task with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    pub outcome: PutOutcome,
    /// The task that holds the key now. It is the submitted one only if that was created.
    pub id: TaskId,
    pub state: TaskState,
    pub due_at: UnixMicros,
    pub created_at: UnixMicros,
    pub version: i64,
    /// The number of older, unclaimed versions that this task superseded.
    pub superseded: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    Created,
    /// Another task has the key and is the answer to this submission.
    Existing,
    /// Another task had the key and now has the content of the submitted one.
    Replaced,
    /// Another task has the key and blocks this one.
    Refused,
    /// A newer version of the task is known.
    Stale,
    /// The task would wait for itself, directly or through other tasks.
    Cycle,
    /// Too many tasks stand before this one to check whether it would wait for itself.
    Deep,
    /// Another transaction holds a task with this key, or a move has left a row with it. Nothing was done, and the task
    /// can be sent again.
    Busy,
    /// The queue's rules for submissions have changed since the task was admitted. Nothing was done.
    RulesChanged,
}

impl Put {
    /// Whether the submitted content is stored now, in a new task or in place of an older one.
    pub const fn is_written(&self) -> bool {
        matches!(self.outcome, PutOutcome::Created | PutOutcome::Replaced)
    }
}

impl PutOutcome {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        match row.try_get("outcome")? {
            "created" => Ok(Self::Created),
            "existing" => Ok(Self::Existing),
            "replaced" => Ok(Self::Replaced),
            "refused" => Ok(Self::Refused),
            "stale" => Ok(Self::Stale),
            "cycle" => Ok(Self::Cycle),
            "deep" => Ok(Self::Deep),
            "busy" => Ok(Self::Busy),
            "rules_changed" => Ok(Self::RulesChanged),
            other => Err(sqlx::Error::Decode(format!("`{other}` is not an outcome of a task with a key").into())),
        }
    }
}

impl Database {
    /// Writes all of `tasks`, which have keys or dependencies, with one statement. `holds` gives the rule of each
    /// task's queue. `Ok` means that every answer is durable; the answers are in the order of the tasks. A batch
    /// whose commit is in doubt can be sent again. For `routed` see [`Database::task_submit_within`].
    pub async fn task_put_within(
        &self,
        tasks: &[NewTask],
        holds: &[Retention],
        window: Window,
        routed: i64,
    ) -> Result<Vec<Put>, Error> {
        let statement = bound(tasks, holds, include_str!("queries/task_put.sql"))
            .bind(window.after.map(UnixMicros::to_utc))
            .bind(window.until.to_utc())
            .bind(routed);
        let asked = self.clock.ask(Instant::now());
        let (now, arrived, found) = self
            .run(StoreOp::TaskPut, |pool| async move {
                let rows: Vec<PgRow> = statement.fetch_all(&pool).await?;
                let arrived = Instant::now();
                let mut now = UnixMicros::new(0);
                let mut found = HashMap::with_capacity(rows.len());
                for row in &rows {
                    now = now.max(super::moment(row, "now")?);
                    found.insert(super::task_id(row, "asked_id")?, put(row)?);
                }
                Ok((now, arrived, found))
            })
            .await?;
        self.clock.observe(now, asked, arrived);
        let created = found.iter().filter(|(_, put)| put.outcome == PutOutcome::Created);
        self.history.record_all(created.map(|(task, _)| Step::Submitted { task: *task }));
        // An id that appears twice was sent twice, and both have the same answer.
        Ok(tasks.iter().map(|task| found.get(&task.id).expect("one answer for each id").clone()).collect())
    }

    /// Finds the newest task with this key: a live one if there is any, else the newest that is still kept. It looks
    /// for a live one first, as [`Database::task_read`] does.
    pub async fn task_find(
        &self,
        queue: &QueueName,
        partition_key: Option<&str>,
        key: &str,
    ) -> Result<Option<TaskId>, Error> {
        let elsewhere = self.elsewhere();
        let asked = |statement: &'static str| {
            sqlx::query(statement).bind(queue.as_str()).bind(partition_key).bind(key).bind(elsewhere.as_slice())
        };
        self.run(StoreOp::TaskFind, |pool| async move {
            let row = match asked(include_str!("queries/task_find_live.sql")).fetch_optional(&pool).await? {
                Some(row) => Some(row),
                None => asked(include_str!("queries/task_find.sql")).fetch_optional(&pool).await?,
            };
            row.as_ref().map(|row| super::task_id(row, "id")).transpose()
        })
        .await
    }
}

/// The names of the task's dependencies, as a JSON list.
fn names(task: &NewTask) -> Option<String> {
    let names: Vec<String> = task.depends_on.iter().map(Dependency::name).collect();
    (!names.is_empty()).then(|| serde_json::to_string(&names).expect("strings are JSON"))
}

/// Binds the tasks, the rules for their keys and their dependencies as the first 20 parameters of a statement.
pub(super) fn bound<'a>(
    tasks: &'a [NewTask],
    holds: &[Retention],
    statement: &'static str,
) -> Query<'a, Postgres, PgArguments> {
    let mode = |task: &NewTask| task.keyed.as_ref().map(|keyed| keyed.on_duplicate).unwrap_or_default().text();
    Columns::of(tasks)
        .bound_to(statement)
        .bind(tasks.iter().map(mode).collect::<Vec<&str>>())
        .bind(holds.iter().map(|hold| hold.window_ms).collect::<Vec<i64>>())
        .bind(holds.iter().map(|hold| hold.keep_ms).collect::<Vec<i64>>())
        .bind(tasks.iter().map(names).collect::<Vec<Option<String>>>())
}

pub(super) fn put(row: &PgRow) -> Result<Put, sqlx::Error> {
    Ok(Put {
        outcome: PutOutcome::read(row)?,
        id: super::task_id(row, "id")?,
        state: super::state(row, "state")?,
        due_at: super::moment(row, "due_at")?,
        created_at: super::moment(row, "created_at")?,
        version: row.try_get("version")?,
        superseded: row.try_get::<i64, _>("superseded")?.unsigned_abs(),
    })
}
