//! Reads one task.

use common::ids::TaskId;

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
}
