//! Changes single tasks at a client's request: change, cancel, stop, run, revive. Each is one
//! compare-and-set on the row's state.
//!
//! `Done` means that the guard held and the row is written. When the guard does not hold, a second statement reads
//! the row to say why. By then the row may fit again, because a failed attempt has just been scheduled anew. In
//! that case the compare-and-set is tried once more, rather than refused for a state that the task no longer has.
//!
//! Cancels and changes of due times that come at the same time share a statement (`store/shared_change.rs`). It skips
//! rows that another transaction holds. A caller that asked for one of these goes on alone.

use std::{
    sync::{Arc, LazyLock},
    time::Instant,
};

use common::{
    ids::{Attempt, QueueName, TaskId},
    queue::QueueBook,
    task::TaskState,
    time::UnixMicros,
    wire::ValidChange,
};
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
    types::Json,
};

use super::{
    Database, Error, StoreOp,
    conflict::{EARLIER_END, new_first, without},
    rows::TaskRecord,
};
use crate::history::Step;

/// The statement for a task that has not ended before. See [`super::conflict`].
pub(super) static CANCEL_NEW: LazyLock<&'static str> =
    LazyLock::new(|| without(EARLIER_END, statement!("task_cancel")));

/// The most tries on one row. A row that misses the guard this often, and yet fits
/// each time it is read, is refused.
const TRIES: usize = 5;

/// The outcome of a compare-and-set.
#[derive(Clone, Debug)]
pub enum Guarded<T> {
    Done(T),
    /// The guard did not hold. The record shows the current state of the task.
    Refused(Box<TaskRecord>),
    Missing,
}

/// A task that was cancelled just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancelled {
    pub queue: QueueName,
    /// The attempts claimed so far. 0: the task was never claimed, and no message of it is delivered.
    pub attempt: Attempt,
}

impl Cancelled {
    pub(super) fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self { queue: super::queue(row, "queue")?, attempt: Attempt::new(row.try_get("attempt")?) })
    }
}

/// How long finished tasks other than dead ones are kept: the default, and the queues that differ from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    pub default_ms: i64,
    pub others: Arc<[(QueueName, i64)]>,
}

impl Keep {
    /// The times that the policies of `book` set for a success. They apply to every
    /// finished task except a dead one.
    pub fn of(book: &QueueBook) -> Self {
        let default_ms = common::queue::QueuePolicy::default().keep_succeeded_ms;
        Self { default_ms, others: Arc::clone(book.retention_overrides()) }
    }

    /// Like [`Self::of`], but for tasks of `queue` only; `None`: of any. Very many queues may have a time of their
    /// own.
    pub fn of_queue(book: &QueueBook, queue: Option<&QueueName>) -> Self {
        let keep = Self::of(book);
        match queue {
            Some(queue) => Self { others: keep.others.iter().filter(|(of, _)| of == queue).cloned().collect(), ..keep },
            None => keep,
        }
    }

    /// The queues with a time of their own, and these times in ms.
    pub(super) fn columns(&self) -> (Vec<&str>, Vec<i64>) {
        self.others.iter().map(|(queue, kept_ms)| (queue.as_str(), *kept_ms)).unzip()
    }
}

impl Database {
    /// Changes an unclaimed task. A due time in the past means now. Refuses a task whose state allows the
    /// change if it would then expire before it is due. A task that has expired is refused as such.
    pub async fn task_change(&self, id: TaskId, change: &ValidChange) -> Result<Guarded<TaskRecord>, Error> {
        let fits = |record: &TaskRecord| self.may_change(record) && !would_lapse(record, change);
        let once = || self.task_change_once(id, change);
        let Some(due_at) = change.only_due_time() else {
            return Ok(self.as_it_stands(self.guarded(id, fits, once).await?));
        };
        match self.due_time_shared(id, due_at).await? {
            Some(changed) => Ok(Guarded::Done(changed)),
            None => Ok(self.as_it_stands(self.left(id, fits, once).await?)),
        }
    }

    /// Asks the consumer of a claimed task to stop.
    pub async fn task_stop(&self, id: TaskId) -> Result<Guarded<TaskRecord>, Error> {
        let once = || self.returning(StoreOp::TaskStop, include_str!("queries/task_stop.sql"), id);
        self.guarded(id, |record| record.state.is_in_flight(), once).await
    }

    /// Makes an unclaimed task due now. A task that has expired is refused as such.
    pub async fn task_run(&self, id: TaskId) -> Result<Guarded<TaskRecord>, Error> {
        let once = || self.returning(StoreOp::TaskRun, include_str!("queries/task_run.sql"), id);
        Ok(self.as_it_stands(self.guarded(id, |record| self.may_change(record), once).await?))
    }

    /// Whether the task is unclaimed, and its expiry has not passed.
    fn may_change(&self, record: &TaskRecord) -> bool {
        record.state.may_be_changed() && !self.has_expired(record)
    }

    /// Whether the expiry of an unclaimed task has passed. Until the archiver takes it, its row does not say so.
    fn has_expired(&self, record: &TaskRecord) -> bool {
        let now = self.clock.at_most(Instant::now()).unwrap_or_else(crate::clock::now);
        record.state.may_be_changed() && record.expires_at.is_some_and(|expires_at| expires_at <= now)
    }

    /// The same answer, in which a refused task that has expired is `expired`.
    fn as_it_stands(&self, mut answer: Guarded<TaskRecord>) -> Guarded<TaskRecord> {
        if let Guarded::Refused(record) = &mut answer
            && self.has_expired(record)
        {
            record.state = TaskState::Expired;
        }
        answer
    }

    /// Gives a dead task a new budget of attempts, the first of them due now. The attempt number goes
    /// on counting from its last value.
    pub async fn task_revive(&self, id: TaskId) -> Result<Guarded<TaskRecord>, Error> {
        let once = || self.returning(StoreOp::TaskRevive, include_str!("queries/task_revive.sql"), id);
        let revived = self.guarded(id, |record| record.state == TaskState::Dead, once).await?;
        if let Guarded::Done(_) = revived {
            self.history.record(Step::Revived { task: id });
        }
        Ok(revived)
    }

    /// Cancels an unclaimed task. The promise that the cancel gives depends on the task's attempt: see
    /// [`common::task::state::cancel_outcome`].
    pub async fn task_cancel(&self, id: TaskId, keep: &Keep) -> Result<Guarded<Cancelled>, Error> {
        match self.cancel_shared(id, keep).await? {
            Some(cancelled) => Ok(Guarded::Done(cancelled)),
            None => self.left(id, |record| record.state.may_be_cancelled(), || self.task_cancel_once(id, keep)).await,
        }
    }

    pub(super) async fn task_change_once(&self, id: TaskId, change: &ValidChange) -> Result<Option<TaskRecord>, Error> {
        self.run(StoreOp::TaskChange, |pool| async move {
            let row = sqlx::query(include_str!("queries/task_change.sql"))
                .bind(id.uuid())
                .bind(change.due_at.map(UnixMicros::to_utc))
                .bind(change.payload.as_deref())
                .bind(change.content_type.as_deref())
                .bind(change.priority)
                .bind(change.headers.as_ref().map(Json))
                .bind(change.expires_at.is_some())
                .bind(change.expires_at.flatten().map(UnixMicros::to_utc))
                .fetch_optional(&pool)
                .await?;
            row.as_ref().map(TaskRecord::read).transpose()
        })
        .await
    }

    pub(super) async fn task_cancel_once(&self, id: TaskId, keep: &Keep) -> Result<Option<Cancelled>, Error> {
        let query = |text: &'static str| bind_keep(sqlx::query(text).bind(id.uuid()), keep);
        self.run(StoreOp::TaskCancel, |pool| async move {
            let row =
                new_first(*CANCEL_NEW, statement!("task_cancel"), |text| query(text).fetch_optional(&pool)).await?;
            row.as_ref().map(Cancelled::read).transpose()
        })
        .await
        .inspect(|cancelled: &Option<Cancelled>| {
            self.history.record_all(cancelled.iter().map(|one| Step::Cancelled { task: id, attempt: one.attempt }));
        })
    }

    async fn returning(&self, op: StoreOp, statement: &'static str, id: TaskId) -> Result<Option<TaskRecord>, Error> {
        self.run(op, |pool| async move {
            let row = sqlx::query(statement).bind(id.uuid()).fetch_optional(&pool).await?;
            row.as_ref().map(TaskRecord::read).transpose()
        })
        .await
    }

    /// Tries `once`. When its guard does not hold, reads the task's current state. The read is a statement of its
    /// own, because a statement that waited for a claim still sees the row as it was before.
    async fn guarded<T, F>(
        &self,
        id: TaskId,
        fits: impl Fn(&TaskRecord) -> bool,
        once: impl Fn() -> F,
    ) -> Result<Guarded<T>, Error>
    where
        F: Future<Output = Result<Option<T>, Error>>,
    {
        match once().await? {
            Some(done) => Ok(Guarded::Done(done)),
            None => self.left(id, fits, once).await,
        }
    }

    /// Reads the state of a task to which a statement did nothing, and tries `once` as long as the task fits.
    async fn left<T, F>(
        &self,
        id: TaskId,
        fits: impl Fn(&TaskRecord) -> bool,
        once: impl Fn() -> F,
    ) -> Result<Guarded<T>, Error>
    where
        F: Future<Output = Result<Option<T>, Error>>,
    {
        let mut tries = 1;
        loop {
            match self.task_read(id).await? {
                None => return Ok(Guarded::Missing),
                Some(record) if tries < TRIES && fits(&record) => tries += 1,
                Some(record) => return Ok(Guarded::Refused(Box::new(record))),
            }
            if let Some(done) = once().await? {
                return Ok(Guarded::Done(done));
            }
        }
    }
}

/// Binds how long a cancelled task is kept: the last parameters of a cancel.
pub(super) fn bind_keep<'q>(query: Query<'q, Postgres, PgArguments>, keep: &Keep) -> Query<'q, Postgres, PgArguments> {
    let (queues, kept_ms) = keep.columns();
    query.bind(keep.default_ms).bind(queues).bind(kept_ms)
}

/// Whether `change` would make the task expire before it is due.
pub fn would_lapse(record: &TaskRecord, change: &ValidChange) -> bool {
    if change.due_at.is_none() && change.expires_at.is_none() {
        return false;
    }
    let due_at = change.due_at.unwrap_or(record.due_at);
    change.expires_at.unwrap_or(record.expires_at).is_some_and(|expires_at| expires_at <= due_at)
}
