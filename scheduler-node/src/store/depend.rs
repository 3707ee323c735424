//! Tasks that depend on others: releases them when those have succeeded, and lists their dependencies.

use std::collections::BTreeSet;

use common::{
    ids::{QueueName, ShardId, TaskId},
    task::TaskState,
    time::UnixMicros,
    wire::DependencyView,
};
use sqlx::Row;

use super::{Database, Error, StoreOp};
use crate::history::Step;

/// The most dependents of successes that one statement checks. It looks each success up once, so that takes some ten
/// milliseconds, unless the dependents have further names that must be looked up.
pub const DEPENDENTS_AT_ONCE: u16 = 500;

/// The name and partition of a task that has just succeeded. Other tasks may wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Succeeded {
    /// The name, in the form of [`common::task::Dependency::name`].
    pub name: String,
    pub partition_key: Option<String>,
    /// The shard of the task, and of those that wait for it (see [`common::task::dependency::check_colocated`]).
    pub shard: ShardId,
}

/// The result of a check of waiting tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleaseCheck {
    pub released: Vec<Released>,
    /// Tasks that another transaction holds. They need another check.
    pub held: Vec<TaskId>,
    /// The task after which more of them may wait for the same successes.
    pub more_after: Option<TaskId>,
}

/// A task that no longer waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    pub id: TaskId,
    pub queue: QueueName,
    pub due_at: UnixMicros,
}

impl Database {
    /// Checks the waiting tasks `ids`, and the first of those that wait for one of `succeeded`. Releases each task
    /// whose dependencies have all succeeded.
    pub async fn task_release(&self, ids: &[TaskId], succeeded: &[Succeeded]) -> Result<ReleaseCheck, Error> {
        self.release(ids, succeeded, None, DEPENDENTS_AT_ONCE).await
    }

    /// Checks at most `most` of the tasks that wait for one of `succeeded`, from the first or from the next one after
    /// `after`, and releases them likewise.
    pub async fn task_release_dependents(
        &self,
        succeeded: &[Succeeded],
        after: Option<TaskId>,
        most: u16,
    ) -> Result<ReleaseCheck, Error> {
        self.release(&[], succeeded, after, most).await
    }

    async fn release(
        &self,
        ids: &[TaskId],
        succeeded: &[Succeeded],
        after: Option<TaskId>,
        most: u16,
    ) -> Result<ReleaseCheck, Error> {
        let (ids, after) = (super::uuids(ids), after.map_or(uuid::Uuid::nil(), TaskId::uuid));
        let (names, partition_keys): (Vec<&str>, Vec<Option<&str>>) =
            succeeded.iter().map(|one| (one.name.as_str(), one.partition_key.as_deref())).unzip();
        let shards: BTreeSet<ShardId> = succeeded.iter().map(|one| one.shard).collect();
        let shards = super::numbers(&shards.into_iter().collect::<Vec<_>>());
        let elsewhere = self.elsewhere();
        self.run(StoreOp::TaskRelease, |pool| async move {
            let rows = sqlx::query(statement!("task_release"))
                .bind(ids)
                .bind(names)
                .bind(partition_keys)
                .bind(elsewhere)
                .bind(after)
                .bind(i64::from(most))
                .bind(shards)
                .fetch_all(&pool)
                .await?;
            let mut looked = ReleaseCheck::default();
            for row in &rows {
                let id = super::task_id(row, "id")?;
                if row.try_get("held")? {
                    looked.held.push(id);
                } else if row.try_get("is_page_end")? {
                    looked.more_after = Some(id);
                } else {
                    let (queue, due_at) = (super::queue(row, "queue")?, super::moment(row, "due_at")?);
                    looked.released.push(Released { id, queue, due_at });
                }
            }
            Ok(looked)
        })
        .await
        .inspect(|looked: &ReleaseCheck| {
            self.history.record_all(looked.released.iter().map(|task| Step::Released { task: task.id }));
        })
    }

    /// Lists the task's dependencies in the order of its request. Empty: the task does not wait.
    pub async fn task_dependencies(&self, id: TaskId) -> Result<Vec<DependencyView>, Error> {
        self.run(StoreOp::TaskDependencies, |pool| async move {
            let rows =
                sqlx::query(include_str!("queries/task_dependencies.sql")).bind(id.uuid()).fetch_all(&pool).await?;
            let dependency = |row: &sqlx::postgres::PgRow| {
                let state: Option<&str> = row.try_get("state")?;
                Ok(DependencyView {
                    queue: super::queue(row, "queue")?,
                    key: row.try_get("key")?,
                    state: state.and_then(TaskState::parse),
                })
            };
            rows.iter().map(dependency).collect()
        })
        .await
    }
}
