//! Reads one task.

use common::ids::TaskId;

use super::{Database, Error, StoreOp, rows::TaskRecord};

impl Database {
    /// Reads the task, live or finished. `None`: there is no such task, or it was
    /// dropped at the end of its retention.
    pub async fn task_read(&self, id: TaskId) -> Result<Option<TaskRecord>, Error> {
        self.run(StoreOp::TaskRead, |pool| async move {
            let row = sqlx::query(include_str!("queries/task_read.sql")).bind(id.uuid()).fetch_optional(&pool).await?;
            row.as_ref().map(TaskRecord::read).transpose()
        })
        .await
    }
}
