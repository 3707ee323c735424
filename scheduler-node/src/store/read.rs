//! Reads one task.

use common::ids::{QueueName, TaskId};

use super::{Database, Error, StoreOp, rows::TaskRecord};

impl Database {
    /// Reads the task, live or finished. `None`: there is no such task, or it was
    /// dropped at the end of its retention.
    ///
    /// Looks for a live task first, which is much cheaper. The second statement reads both tables at one moment,
    /// because a dead task may be revived between the two.
    pub async fn task_read(&self, id: TaskId) -> Result<Option<TaskRecord>, Error> {
        self.run(StoreOp::TaskRead, |pool| async move {
            let live = sqlx::query(include_str!("queries/task_read_live.sql")).bind(id.uuid());
            let row = match live.fetch_optional(&pool).await? {
                Some(row) => Some(row),
                None => {
                    sqlx::query(include_str!("queries/task_read.sql")).bind(id.uuid()).fetch_optional(&pool).await?
                }
            };
            row.as_ref().map(TaskRecord::read).transpose()
        })
        .await
    }

    /// Whether a finished task is a message of a delay exchange, which goes on by its envelope and needs no queue.
    pub async fn task_read_forwarded(&self, id: TaskId) -> Result<bool, Error> {
        self.run(StoreOp::TaskRead, |pool| async move {
            let read = sqlx::query_scalar::<_, bool>(include_str!("queries/task_read_forwarded.sql"));
            read.bind(id.uuid()).fetch_one(&pool).await
        })
        .await
    }

    /// Reads the newest task with this key: a live one if there is any, else the newest that is still kept.
    pub async fn task_read_key(
        &self,
        queue: &QueueName,
        partition_key: Option<&str>,
        key: &str,
    ) -> Result<Option<TaskRecord>, Error> {
        let elsewhere = self.elsewhere();
        let live = self.run(StoreOp::TaskRead, |pool| async move {
            let live = sqlx::query(include_str!("queries/task_read_key.sql"))
                .bind(queue.as_str())
                .bind(partition_key)
                .bind(key)
                .bind(elsewhere);
            live.fetch_optional(&pool).await?.as_ref().map(TaskRecord::read).transpose()
        });
        if let Some(task) = live.await? {
            return Ok(Some(task));
        }
        match self.task_find(queue, partition_key, key).await? {
            Some(id) => self.task_read(id).await,
            None => Ok(None),
        }
    }
}
