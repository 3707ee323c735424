//! Cancels and changes of due times that share a statement with others of the same time ([`super::shared_write`]). A
//! request names its task by the id, or by the key, which the statement looks up itself.
//!
//! The statement leaves out a task that does not fit or that another transaction holds. Of two requests for one task it
//! does the first. Each caller whose request was left goes on alone: by its id with the statements of
//! [`super::change`], and by its key with a look-up of the id before.

use std::{collections::BTreeSet, sync::LazyLock};

use common::{
    ids::{QueueName, TaskId},
    task::TaskKey,
    time::UnixMicros,
};
use sqlx::{Postgres, postgres::PgArguments, query::Query};

use super::{
    Database, Error, StoreOp, by_place,
    change::{Cancelled, Keep, bind_keep},
    conflict::{EARLIER_END, new_first, without},
    rows::TaskRecord,
    sparse,
};
use crate::history::Step;

/// The statement for tasks that have not ended before. See [`super::conflict`].
pub(super) static CANCEL_NEW: LazyLock<&'static str> =
    LazyLock::new(|| without(EARLIER_END, statement!("task_cancel_shared")));

/// The task that a request names.
#[derive(Clone, Debug)]
pub(super) enum Named {
    Id(TaskId),
    /// The newest live task with a [`TaskKey`].
    Key(QueueName, Option<String>, String),
}

/// A cancel: the task, and how long it is kept.
pub(super) type CancelJob = (Named, Keep);

/// A change of a due time: the task, and its new due time.
pub(super) type DueTimeJob = (Named, UnixMicros);

impl Named {
    fn by((queue, partition_key, key): TaskKey<'_>) -> Self {
        Self::Key(queue.clone(), partition_key.map(str::to_owned), key.to_owned())
    }

    const fn id(&self) -> Option<TaskId> {
        match self {
            Self::Id(id) => Some(*id),
            Self::Key(..) => None,
        }
    }

    fn key(&self) -> Option<TaskKey<'_>> {
        match self {
            Self::Id(_) => None,
            Self::Key(queue, partition_key, key) => Some((queue, partition_key.as_deref(), key.as_str())),
        }
    }
}

impl Database {
    /// Cancels the newest live task with this key, if it is unclaimed. `None`: it was left, or there is none.
    pub async fn task_cancel_key(&self, key: TaskKey<'_>, keep: &Keep) -> Result<Option<(TaskId, Cancelled)>, Error> {
        self.cancel_beside_others(Named::by(key), keep).await
    }

    /// Changes the due time of the newest live task with this key, if it is unclaimed and does not expire before.
    /// `None`: it was left, or there is none.
    pub async fn task_change_key(&self, key: TaskKey<'_>, due_at: UnixMicros) -> Result<Option<TaskRecord>, Error> {
        self.change_beside_others(Named::by(key), due_at).await
    }

    pub(super) async fn cancel_shared(&self, id: TaskId, keep: &Keep) -> Result<Option<Cancelled>, Error> {
        Ok(self.cancel_beside_others(Named::Id(id), keep).await?.map(|(_, cancelled)| cancelled))
    }

    pub(super) async fn due_time_shared(&self, id: TaskId, due_at: UnixMicros) -> Result<Option<TaskRecord>, Error> {
        self.change_beside_others(Named::Id(id), due_at).await
    }

    async fn cancel_beside_others(&self, task: Named, keep: &Keep) -> Result<Option<(TaskId, Cancelled)>, Error> {
        let shared = self.cancels.write((task, keep.clone()), |jobs| self.cancel_jobs(jobs)).await;
        shared.unwrap_or_else(|| Err(self.in_doubt(StoreOp::TaskCancel)))
    }

    async fn change_beside_others(&self, task: Named, due_at: UnixMicros) -> Result<Option<TaskRecord>, Error> {
        let shared = self.due_times.write((task, due_at), |jobs| self.change_jobs(jobs)).await;
        shared.unwrap_or_else(|| Err(self.in_doubt(StoreOp::TaskChange)))
    }

    /// Cancels for several callers.
    async fn cancel_jobs(&self, jobs: Vec<CancelJob>) -> Result<Vec<Option<(TaskId, Cancelled)>>, Error> {
        let Some((_, newest)) = jobs.last() else { return Ok(Vec::new()) };
        let (elsewhere, count) = (self.elsewhere(), jobs.len());
        let query = |text: &'static str| bind_keep(bound(text, &jobs, elsewhere.clone()), newest);
        let done = self
            .run(StoreOp::TaskCancel, |pool| async move {
                let whole = statement!("task_cancel_shared");
                let rows = new_first(*CANCEL_NEW, whole, |text| query(text).fetch_all(&pool)).await?;
                by_place(count, &rows, |row| Ok((super::task_id(row, "id")?, Cancelled::read(row)?)))
            })
            .await?;
        let cancelled = done.iter().flatten();
        self.history.record_all(cancelled.map(|(id, one)| Step::Cancelled { task: *id, attempt: one.attempt }));
        Ok(done)
    }

    /// Changes due times for several callers.
    async fn change_jobs(&self, jobs: Vec<DueTimeJob>) -> Result<Vec<Option<TaskRecord>>, Error> {
        let due_at: Vec<_> = jobs.iter().map(|(_, due_at)| due_at.to_utc()).collect();
        let (statement, count) = (include_str!("queries/task_change_shared.sql"), jobs.len());
        let change = bound(statement, &jobs, self.elsewhere()).bind(due_at);
        self.run(StoreOp::TaskChange, |pool| async move {
            let rows = change.fetch_all(&pool).await?;
            by_place(count, &rows, TaskRecord::read)
        })
        .await
    }
}

/// Binds the names of the tasks, and the shards in which no key is looked up, as the first five parameters. Only the
/// first request for a key has its name: the later ones would be left, and each would look the key up again.
fn bound<'a, T>(
    statement: &'static str,
    jobs: &'a [(Named, T)],
    elsewhere: Vec<i32>,
) -> Query<'a, Postgres, PgArguments> {
    let mut asked = BTreeSet::new();
    let keys: Vec<Option<TaskKey<'_>>> =
        jobs.iter().map(|(task, _)| task.key().filter(|key| asked.insert(*key))).collect();
    let keys = || keys.iter().copied();
    sqlx::query(statement)
        .bind(sparse(jobs.iter().map(|(task, _)| task.id().map(|id| id.uuid()))))
        .bind(sparse(keys().map(|key| key.map(|(queue, ..)| queue.as_str()))))
        .bind(sparse(keys().map(|key| key.and_then(|(_, partition_key, _)| partition_key))))
        .bind(sparse(keys().map(|key| key.map(|(.., key)| key))))
        .bind(elsewhere)
}
