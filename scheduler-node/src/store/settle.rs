//! Writes what became of claimed tasks, a batch a statement, each by compare-and-set on its attempt and state.

use common::{
    ids::{Attempt, QueueName, ShardId, TaskId},
    task::{TaskState, TraceContext, retry::RetryPolicy},
    time::UnixMicros,
};
use sqlx::Row;

use super::{Database, Error, StoreOp, change::Keep, depend::Succeeded};

/// Confirmed, outcome open until the deadline.
#[derive(Clone, Debug)]
pub struct Deliver {
    pub id: TaskId,
    pub attempt: Attempt,
    pub timeout_ms: i64,
}

/// Finished, off to the archive.
#[derive(Clone, Debug)]
pub struct Finish {
    pub id: TaskId,
    pub attempt: Attempt,
    pub final_state: TaskState,
    /// The states it may be in for this to hold.
    pub was: &'static [TaskState],
    pub keep_ms: i64,
    pub report: Report,
    /// A deadline ends only what has still not been heard of when this is written.
    pub at_deadline: bool,
    /// The failed attempt this ends with, as a JSON object.
    pub entry: Option<String>,
}

/// What has moved to the archive.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    pub ids: Vec<TaskId>,
    /// Those with a key that succeeded.
    pub succeeded: Vec<Succeeded>,
}

/// What the consumer said of it at last.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// JSON text, byte for byte.
    pub result: Option<String>,
    pub status_code: Option<i64>,
    pub status_msg: Option<String>,
}

/// A failed attempt with tries left.
#[derive(Clone, Debug)]
pub struct Retry {
    pub id: TaskId,
    pub attempt: Attempt,
    pub retry_at: UnixMicros,
    pub entry: String,
    pub at_deadline: bool,
    /// With the next lower priority.
    pub lower: bool,
}

/// A sign of life.
#[derive(Clone, Debug)]
pub struct Extend {
    pub id: TaskId,
    pub attempt: Attempt,
    pub timeout_ms: i64,
    pub progress: Option<i16>,
    pub worker: Option<String>,
}

/// Where a task stands.
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
    /// Its consumer is to stop.
    pub stopping: bool,
    /// What it carries.
    pub trace: Option<TraceContext>,
    /// The database's time when it was read.
    pub now: UnixMicros,
    /// A book of queues of this revision or a later one has the policy that is in force.
    pub turned: i64,
}

impl Database {
    pub async fn task_deliver(&self, tasks: &[Deliver]) -> Result<(), Error> {
        let ids: Vec<_> = tasks.iter().map(|task| task.id.uuid()).collect();
        let attempts: Vec<_> = tasks.iter().map(|task| task.attempt.number()).collect();
        let timeouts: Vec<_> = tasks.iter().map(|task| task.timeout_ms).collect();
        self.run(StoreOp::TaskDeliver, |pool| async move {
            sqlx::query(include_str!("queries/task_deliver.sql"))
                .bind(ids)
                .bind(attempts)
                .bind(timeouts)
                .execute(&pool)
                .await?;
            Ok(())
        })
        .await
    }

    /// This attempt is not published again and its deadline ends nothing, until it is reported on or a person has looked.
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

    /// What is missing in the answer was not in that attempt and state any more.
    pub async fn task_finish(&self, tasks: &[Finish]) -> Result<Finished, Error> {
        let ids: Vec<_> = tasks.iter().map(|task| task.id.uuid()).collect();
        let attempts: Vec<_> = tasks.iter().map(|task| task.attempt.number()).collect();
        let finals: Vec<_> = tasks.iter().map(|task| task.final_state.text()).collect();
        let was: Vec<_> =
            tasks.iter().map(|task| task.was.iter().map(|state| state.text()).collect::<Vec<_>>().join(",")).collect();
        let keep: Vec<_> = tasks.iter().map(|task| task.keep_ms).collect();
        let results: Vec<_> = tasks.iter().map(|task| task.report.result.clone()).collect();
        let codes: Vec<_> = tasks.iter().map(|task| task.report.status_code).collect();
        let deadlines: Vec<_> = tasks.iter().map(|task| task.at_deadline).collect();
        let messages: Vec<_> = tasks.iter().map(|task| task.report.status_msg.clone()).collect();
        let entries: Vec<_> = tasks.iter().map(|task| task.entry.clone()).collect();
        self.run(StoreOp::TaskFinish, |pool| async move {
            let rows = sqlx::query(include_str!("queries/task_finish.sql"))
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
                .fetch_all(&pool)
                .await?;
            let mut finished = Finished::default();
            for row in &rows {
                finished.ids.push(super::task_id(row, "id")?);
                if let Some(name) = row.try_get("name")? {
                    finished.succeeded.push(Succeeded { name, partition_key: row.try_get("partition_key")? });
                }
            }
            Ok(finished)
        })
        .await
    }

    /// Returns the ids that changed.
    pub async fn task_retry(&self, tasks: &[Retry]) -> Result<Vec<TaskId>, Error> {
        let ids: Vec<_> = tasks.iter().map(|task| task.id.uuid()).collect();
        let attempts: Vec<_> = tasks.iter().map(|task| task.attempt.number()).collect();
        let times: Vec<_> = tasks.iter().map(|task| task.retry_at.to_utc()).collect();
        let deadlines: Vec<_> = tasks.iter().map(|task| task.at_deadline).collect();
        let entries: Vec<_> = tasks.iter().map(|task| task.entry.clone()).collect();
        let lower: Vec<_> = tasks.iter().map(|task| task.lower).collect();
        self.run(StoreOp::TaskRetry, |pool| async move {
            let rows = sqlx::query(include_str!("queries/task_retry.sql"))
                .bind(ids)
                .bind(attempts)
                .bind(times)
                .bind(entries)
                .bind(deadlines)
                .bind(lower)
                .fetch_all(&pool)
                .await?;
            rows.iter().map(|row| super::task_id(row, "id")).collect()
        })
        .await
    }

    /// Returns the ids that changed.
    pub async fn task_extend(&self, tasks: &[Extend]) -> Result<Vec<TaskId>, Error> {
        let ids: Vec<_> = tasks.iter().map(|task| task.id.uuid()).collect();
        let attempts: Vec<_> = tasks.iter().map(|task| task.attempt.number()).collect();
        let timeouts: Vec<_> = tasks.iter().map(|task| task.timeout_ms).collect();
        let progress: Vec<_> = tasks.iter().map(|task| task.progress).collect();
        let workers: Vec<_> = tasks.iter().map(|task| task.worker.clone()).collect();
        self.run(StoreOp::TaskExtend, |pool| async move {
            let rows = sqlx::query(include_str!("queries/task_extend.sql"))
                .bind(ids)
                .bind(attempts)
                .bind(timeouts)
                .bind(progress)
                .bind(workers)
                .fetch_all(&pool)
                .await?;
            rows.iter().map(|row| super::task_id(row, "id")).collect()
        })
        .await
    }

    /// Archives what lapsed in `shards`, at most `most`, but not `aside`; returns the queues of what did.
    pub async fn task_expire(
        &self,
        shards: &[ShardId],
        most: i64,
        keep: &Keep,
        aside: &[TaskId],
    ) -> Result<Vec<QueueName>, Error> {
        self.expire(shards, most, keep, aside, None).await
    }

    /// The same for `ids` only.
    pub async fn task_expire_these(
        &self,
        shards: &[ShardId],
        ids: &[TaskId],
        keep: &Keep,
    ) -> Result<Vec<QueueName>, Error> {
        self.expire(shards, i64::try_from(ids.len()).unwrap_or(i64::MAX), keep, &[], Some(ids)).await
    }

    /// What lapsed in `shards`, at most `most`, but not `aside`.
    pub async fn task_expired(&self, shards: &[ShardId], most: i64, aside: &[TaskId]) -> Result<Vec<TaskId>, Error> {
        let (shards, aside) = (super::numbers(shards), super::uuids(aside));
        self.run(StoreOp::TaskExpired, |pool| async move {
            let statement = sqlx::query(include_str!("queries/task_expired.sql"));
            let rows = statement.bind(shards).bind(most).bind(aside).fetch_all(&pool).await?;
            rows.iter().map(|row| super::task_id(row, "id")).collect()
        })
        .await
    }

    async fn expire(
        &self,
        shards: &[ShardId],
        most: i64,
        keep: &Keep,
        aside: &[TaskId],
        only: Option<&[TaskId]>,
    ) -> Result<Vec<QueueName>, Error> {
        let (shards, aside, only) = (super::numbers(shards), super::uuids(aside), only.map(super::uuids));
        let (queues, keeps): (Vec<&str>, Vec<i64>) =
            keep.others.iter().map(|(queue, ms)| (queue.as_str(), *ms)).unzip();
        self.run(StoreOp::TaskExpire, |pool| async move {
            let rows = sqlx::query(include_str!("queries/task_expire.sql"))
                .bind(shards)
                .bind(most)
                .bind(keep.default_ms)
                .bind(queues)
                .bind(keeps)
                .bind(aside)
                .bind(only)
                .fetch_all(&pool)
                .await?;
            rows.iter().map(|row| super::queue(row, "queue")).collect()
        })
        .await
    }

    /// Where `ids` stand; those that have finished are missing from the answer.
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
                        stopping: row.try_get("stopping")?,
                        trace: traceparent.and_then(TraceContext::parse),
                        now: super::moment(row, "now")?,
                        turned: row.try_get("turned")?,
                    })
                })
                .collect()
        })
        .await
    }
}
