//! Records the outcomes of claimed tasks, one batch a statement. Each write is a compare-and-set
//! on the task's attempt and state.

use std::{borrow::Cow, sync::LazyLock, time::Instant};

use common::{
    ids::{Attempt, QueueName, ShardId, TaskId},
    retry::RetryPolicy,
    task::{TaskState, TraceContext},
    time::UnixMicros,
};
use sqlx::{Postgres, Row, postgres::PgArguments, query::Query};

use super::{
    Database, Error, StoreOp,
    change::Keep,
    conflict::{EARLIER_END, row_exists, without},
    depend::Succeeded,
    glance::from_or_head,
    sparse, uniform,
};
use crate::{clock, history::Step};

/// The statement for tasks that have not ended before. See [`super::conflict`].
pub(super) static FINISH_NEW: LazyLock<&'static str> =
    LazyLock::new(|| without(EARLIER_END, statement!("task_finish")));

/// A task whose publish is confirmed. Its outcome stays open until the deadline.
#[derive(Clone, Debug)]
pub struct Deliver {
    pub id: TaskId,
    pub attempt: Attempt,
    pub timeout_ms: i64,
    /// When the confirm came. The write may come seconds later.
    pub confirmed_at: Instant,
}

/// A task that has finished and moves to the archive.
#[derive(Clone, Debug)]
pub struct Finish {
    pub id: TaskId,
    pub attempt: Attempt,
    pub final_state: TaskState,
    /// The states in which the row may be. In any other state nothing is written.
    pub was: &'static [TaskState],
    pub keep_ms: i64,
    pub report: Report,
    /// Whether the task ends because of its deadline. Such an end applies only if the consumer has still sent no
    /// sign of life when it is written.
    pub at_deadline: bool,
    /// The failed attempt with which the task ends, as a JSON object.
    pub entry: Option<String>,
}

/// The tasks that moved to the archive.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    pub ids: Vec<TaskId>,
    /// Those of them that have a key and succeeded.
    pub succeeded: Vec<Succeeded>,
}

/// A task that was archived because it expired before a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    pub id: TaskId,
    pub queue: QueueName,
    pub expires_at: UnixMicros,
}

/// The consumer's last report on a task.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// JSON text, kept byte for byte.
    pub result: Option<String>,
    pub status_code: Option<i64>,
    pub status_msg: Option<String>,
    /// The progress in per cent. `None`: that of the row stays.
    pub progress: Option<i16>,
    /// The name of the worker. `None`: that of the row stays.
    pub worker: Option<String>,
}

/// A failed attempt of a task that has attempts left.
#[derive(Clone, Debug)]
pub struct Retry {
    pub id: TaskId,
    pub attempt: Attempt,
    pub retry_at: UnixMicros,
    pub entry: String,
    pub at_deadline: bool,
    /// Whether the task goes to the next lower priority.
    pub lower: bool,
}

/// A consumer's heartbeat.
#[derive(Clone, Debug)]
pub struct Extend {
    pub id: TaskId,
    pub attempt: Attempt,
    pub timeout_ms: i64,
    pub progress: Option<i16>,
    pub worker: Option<String>,
}

/// The current state of an unfinished task.
#[derive(Clone, Debug)]
pub struct StandingRow {
    pub id: TaskId,
    pub queue: QueueName,
    pub state: TaskState,
    pub attempt: Attempt,
    pub attempts_base: Attempt,
    pub max_attempts: Option<i32>,
    pub timeout_ms: Option<i64>,
    pub retry: Option<RetryPolicy>,
    pub claimed_at: Option<UnixMicros>,
    pub wake_at: UnixMicros,
    /// Whether its expiry has passed while it is not claimed. The task is no longer started.
    pub expired: bool,
    /// Whether the consumer has been asked to stop.
    pub stopping: bool,
    /// The trace context that the task carries.
    pub trace: Option<TraceContext>,
    /// The database's time when it was read.
    pub now: UnixMicros,
    /// The revision at which the queue's policy last changed. A book of queues of this revision or a
    /// later one has the policy in force.
    pub turned: i64,
    /// Whether the queue's `settle` became `result` after the confirm of the attempt.
    pub predates_reports: bool,
}

impl Database {
    pub async fn task_deliver(&self, tasks: &[Deliver]) -> Result<(), Error> {
        self.run(StoreOp::TaskDeliver, |pool| async move {
            // The statement says how long ago the confirms came, so a wait for a free connection comes before.
            let mut connection = pool.acquire().await?;
            deliver_query(tasks).execute(&mut *connection).await?;
            connection.give_back();
            Ok(())
        })
        .await
    }

    /// Sets an attempt aside. No node publishes it again and its deadline ends nothing,
    /// until a report or a person ends it.
    pub async fn task_set_aside(&self, id: TaskId, attempt: Attempt) -> Result<(), Error> {
        self.run(StoreOp::TaskSetAside, |pool| async move {
            sqlx::query(include_str!("queries/task_set_aside.sql"))
                .bind(id.uuid())
                .bind(attempt.number())
                .bind(UnixMicros::LAST.to_utc())
                .execute(&pool)
                .await?;
            Ok(())
        })
        .await
    }

    /// Moves finished tasks to the archive. A task missing in the answer was no longer in that attempt and state.
    pub async fn task_finish(&self, tasks: &[Finish]) -> Result<Finished, Error> {
        let first = finish_query(*FINISH_NEW, tasks);
        self.run(StoreOp::TaskFinish, |pool| async move {
            let rows = match first.fetch_all(&pool).await {
                Err(error) if row_exists(&error) => {
                    finish_query(statement!("task_finish"), tasks).fetch_all(&pool).await?
                }
                rows => rows?,
            };
            let mut finished = Finished::default();
            for row in &rows {
                let id = super::task_id(row, "id")?;
                finished.ids.push(id);
                if let Some(name) = row.try_get("name")? {
                    let (partition_key, shard) = (row.try_get("partition_key")?, id.shard());
                    finished.succeeded.push(Succeeded { name, partition_key, shard });
                }
            }
            Ok(finished)
        })
        .await
        .inspect(|finished| self.note_finished(tasks, finished))
    }

    /// Schedules the next attempt of failed tasks. Returns the ids that changed.
    pub async fn task_retry(&self, tasks: &[Retry]) -> Result<Vec<TaskId>, Error> {
        let ids: Vec<_> = tasks.iter().map(|task| task.id.uuid()).collect();
        let attempts: Vec<_> = tasks.iter().map(|task| task.attempt.number()).collect();
        let times: Vec<_> = tasks.iter().map(|task| task.retry_at.to_utc()).collect();
        let deadlines: Vec<_> = tasks.iter().map(|task| task.at_deadline).collect();
        let entries: Vec<_> = tasks.iter().map(|task| task.entry.clone()).collect();
        let lower: Vec<_> = tasks.iter().map(|task| task.lower).collect();
        let retry = sqlx::query(statement!("task_retry"))
            .bind(ids)
            .bind(attempts)
            .bind(times)
            .bind(entries)
            .bind(deadlines)
            .bind(lower);
        self.returned_ids(StoreOp::TaskRetry, retry).await.inspect(|retried| self.note_failed(tasks, retried))
    }

    /// Records heartbeats and sets new deadlines. Returns the ids that changed.
    pub async fn task_extend(&self, tasks: &[Extend]) -> Result<Vec<TaskId>, Error> {
        let ids: Vec<_> = tasks.iter().map(|task| task.id.uuid()).collect();
        let attempts: Vec<_> = tasks.iter().map(|task| task.attempt.number()).collect();
        let timeouts: Vec<_> = tasks.iter().map(|task| task.timeout_ms).collect();
        let progress: Vec<_> = tasks.iter().map(|task| task.progress).collect();
        let workers: Vec<_> = tasks.iter().map(|task| task.worker.clone()).collect();
        let extend = sqlx::query(include_str!("queries/task_extend.sql"))
            .bind(ids)
            .bind(attempts)
            .bind(timeouts)
            .bind(progress)
            .bind(workers);
        self.returned_ids(StoreOp::TaskExtend, extend).await
    }

    /// Gives those deadlines of these attempts `time_ms` from now on that have less than half of it left. Returns the
    /// ids that changed.
    pub async fn task_prolong(&self, attempts: &[(TaskId, Attempt)], time_ms: i64) -> Result<Vec<TaskId>, Error> {
        let ids: Vec<_> = attempts.iter().map(|(id, _)| id.uuid()).collect();
        let attempts: Vec<_> = attempts.iter().map(|(_, attempt)| attempt.number()).collect();
        let prolong = sqlx::query(include_str!("queries/task_prolong.sql")).bind(ids).bind(attempts).bind(time_ms);
        self.returned_ids(StoreOp::TaskProlong, prolong).await
    }

    /// Archives at most `most` tasks of `shards` that expired before a claim, except those in `aside`. Only tasks with
    /// an expiry of at least `from` are looked at. `None`: from the head.
    pub async fn task_expire(
        &self,
        shards: &[ShardId],
        from: Option<UnixMicros>,
        most: i64,
        keep: &Keep,
        aside: &[TaskId],
    ) -> Result<Vec<Expired>, Error> {
        self.expire(shards, from, most, keep, aside, None).await
    }

    /// Archives those of `ids`, found from `from` on, that expired before a claim.
    pub async fn task_expire_these(
        &self,
        shards: &[ShardId],
        from: Option<UnixMicros>,
        ids: &[TaskId],
        keep: &Keep,
    ) -> Result<Vec<Expired>, Error> {
        self.expire(shards, from, i64::try_from(ids.len()).unwrap_or(i64::MAX), keep, &[], Some(ids)).await
    }

    /// Lists at most `most` tasks that [`Self::task_expire`] would archive, and their expiries in order.
    pub async fn task_expired(
        &self,
        shards: &[ShardId],
        from: Option<UnixMicros>,
        most: i64,
        aside: &[TaskId],
    ) -> Result<Vec<(TaskId, UnixMicros)>, Error> {
        let (shards, aside) = (super::numbers(shards), super::uuids(aside));
        self.run(StoreOp::TaskExpired, |pool| async move {
            let rows = sqlx::query(include_str!("queries/task_expired.sql"))
                .bind(shards)
                .bind(most)
                .bind(aside)
                .bind(from_or_head(from).to_utc())
                .fetch_all(&pool)
                .await?;
            rows.iter().map(|row| Ok((super::task_id(row, "id")?, super::moment(row, "expires_at")?))).collect()
        })
        .await
    }

    async fn expire(
        &self,
        shards: &[ShardId],
        from: Option<UnixMicros>,
        most: i64,
        keep: &Keep,
        aside: &[TaskId],
        only: Option<&[TaskId]>,
    ) -> Result<Vec<Expired>, Error> {
        let (shards, aside, only) = (super::numbers(shards), super::uuids(aside), only.map(super::uuids));
        let (queues, kept_ms) = keep.columns();
        let expired: Vec<Expired> = self
            .run(StoreOp::TaskExpire, |pool| async move {
                let rows = sqlx::query(include_str!("queries/task_expire.sql"))
                    .bind(shards)
                    .bind(most)
                    .bind(keep.default_ms)
                    .bind(queues)
                    .bind(kept_ms)
                    .bind(aside)
                    .bind(only)
                    .bind(from_or_head(from).to_utc())
                    .fetch_all(&pool)
                    .await?;
                let expired = |row| {
                    let (id, queue) = (super::task_id(row, "id")?, super::queue(row, "queue")?);
                    Ok(Expired { id, queue, expires_at: super::moment(row, "expires_at")? })
                };
                rows.iter().map(expired).collect()
            })
            .await?;
        self.history.record_all(expired.iter().map(|task| Step::Expired { task: task.id }));
        // Most often none has expired, and there is no commit to rely on.
        if !expired.is_empty() {
            self.wrote.notify_one();
        }
        Ok(expired)
    }

    /// Those of `ids` whose rows another transaction holds. It waits for none of them.
    pub async fn task_held(&self, ids: &[TaskId]) -> Result<Vec<TaskId>, Error> {
        let held = sqlx::query(include_str!("queries/task_held.sql")).bind(super::uuids(ids));
        self.returned_ids(StoreOp::TaskHeld, held).await
    }

    /// Reads the current states of `ids`. Finished tasks are missing from the answer.
    pub async fn task_standing(&self, ids: &[TaskId]) -> Result<Vec<StandingRow>, Error> {
        let ids = super::uuids(ids);
        self.run(StoreOp::TaskStanding, |pool| async move {
            let rows = sqlx::query(include_str!("queries/task_standing.sql")).bind(ids).fetch_all(&pool).await?;
            rows.iter()
                .map(|row| {
                    let traceparent: Option<&str> = row.try_get("traceparent")?;
                    let retry: Option<sqlx::types::Json<RetryPolicy>> = row.try_get("retry")?;
                    Ok(StandingRow {
                        id: super::task_id(row, "id")?,
                        queue: super::queue(row, "queue")?,
                        state: super::state(row, "state")?,
                        attempt: Attempt::new(row.try_get("attempt")?),
                        attempts_base: Attempt::new(row.try_get("attempts_base")?),
                        max_attempts: row.try_get("max_attempts")?,
                        timeout_ms: row.try_get("timeout_ms")?,
                        retry: retry.map(|retry| retry.0),
                        claimed_at: super::optional_moment(row, "claimed_at")?,
                        wake_at: super::moment(row, "wake_at")?,
                        expired: row.try_get("expired")?,
                        stopping: row.try_get("stopping")?,
                        trace: traceparent.and_then(TraceContext::parse),
                        now: super::moment(row, "now")?,
                        turned: row.try_get("turned")?,
                        predates_reports: row.try_get("predates_reports")?,
                    })
                })
                .collect()
        })
        .await
    }
}

pub(super) fn deliver_query(tasks: &[Deliver]) -> Query<'static, Postgres, PgArguments> {
    let ids: Vec<_> = tasks.iter().map(|task| task.id.uuid()).collect();
    let attempts: Vec<_> = tasks.iter().map(|task| task.attempt.number()).collect();
    let timeouts: Vec<_> = tasks.iter().map(|task| task.timeout_ms).collect();
    let now = clock::instant();
    let ages: Vec<_> =
        tasks.iter().map(|task| now.saturating_duration_since(task.confirmed_at).as_micros() as i64).collect();
    sqlx::query(include_str!("queries/task_deliver.sql")).bind(ids).bind(attempts).bind(timeouts).bind(ages)
}

/// The states as `task_finish.sql` takes them. A confirm, which most tasks end with, has only one.
fn listed(states: &[TaskState]) -> Cow<'static, str> {
    match states {
        [state] => Cow::Borrowed(state.text()),
        _ => Cow::Owned(states.iter().map(|state| state.text()).collect::<Vec<_>>().join(",")),
    }
}

pub(super) fn finish_query(text: &'static str, tasks: &[Finish]) -> Query<'static, Postgres, PgArguments> {
    let ids: Vec<_> = tasks.iter().map(|task| task.id.uuid()).collect();
    let attempts = uniform(tasks.iter().map(|task| task.attempt.number()).collect());
    let finals = uniform(tasks.iter().map(|task| task.final_state.text()).collect());
    let was = uniform(tasks.iter().map(|task| listed(task.was)).collect());
    let keep = uniform(tasks.iter().map(|task| task.keep_ms).collect());
    let results = sparse(tasks.iter().map(|task| task.report.result.clone()));
    let codes = sparse(tasks.iter().map(|task| task.report.status_code));
    let deadlines = uniform(tasks.iter().map(|task| task.at_deadline).collect());
    let messages = sparse(tasks.iter().map(|task| task.report.status_msg.clone()));
    let entries = sparse(tasks.iter().map(|task| task.entry.clone()));
    let progress = sparse(tasks.iter().map(|task| task.report.progress));
    let workers = sparse(tasks.iter().map(|task| task.report.worker.clone()));
    sqlx::query(text)
        .bind(ids)
        .bind(attempts)
        .bind(finals)
        .bind(was)
        .bind(keep)
        .bind(results)
        .bind(entries)
        .bind(codes)
        .bind(messages)
        .bind(deadlines)
        .bind(progress)
        .bind(workers)
}
