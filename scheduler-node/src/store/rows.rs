//! Reads rows column by column. `common` knows no SQL, so the mapping from a row to its types is here.

use std::collections::BTreeMap;

use common::{
    ids::{Attempt, QueueName, TaskId},
    queue::{Queue, QueuePolicy},
    task::TaskState,
    time::UnixMicros,
    wire::AttemptView,
};
use sqlx::{Row, postgres::PgRow, types::Json};

/// A task as stored, live or finished.
#[derive(Clone, Debug)]
pub struct TaskRecord {
    pub id: TaskId,
    pub queue: QueueName,
    pub state: TaskState,
    pub wake_at: UnixMicros,
    pub due_at: UnixMicros,
    pub expires_at: Option<UnixMicros>,
    pub priority: i16,
    pub attempt: Attempt,
    /// `None`: the queue's setting applies.
    pub max_attempts: Option<i32>,
    /// `None` in a list if the payload is too long for one.
    pub payload: Option<Vec<u8>>,
    /// The fields that are too long for a list, which is the only one that leaves any out.
    pub left_out: Vec<String>,
    pub content_type: String,
    pub headers: BTreeMap<String, String>,
    pub key: Option<String>,
    pub version: i64,
    pub partition_key: Option<String>,
    pub delivered_at: Option<UnixMicros>,
    pub progress: Option<i16>,
    pub worker: Option<String>,
    /// The attempts that failed.
    pub history: Vec<AttemptView>,
    pub created_at: UnixMicros,
    pub finished_at: Option<UnixMicros>,
    /// The result as JSON text, as the consumer sent it.
    pub result: Option<String>,
    pub status_code: Option<i64>,
    pub status_msg: Option<String>,
    /// Whether the consumer is to stop. It learns this with its next heartbeat.
    pub stopping: bool,
}

impl TaskRecord {
    pub(super) fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let headers: Option<Json<BTreeMap<String, String>>> = row.try_get("headers")?;
        let history: Option<Json<Vec<AttemptView>>> = row.try_get("history")?;
        Ok(Self {
            id: super::task_id(row, "id")?,
            queue: super::queue(row, "queue")?,
            state: super::state(row, "state")?,
            wake_at: super::moment(row, "wake_at")?,
            due_at: super::moment(row, "due_at")?,
            expires_at: super::optional_moment(row, "expires_at")?,
            priority: row.try_get("priority")?,
            attempt: Attempt::new(row.try_get("attempt")?),
            max_attempts: row.try_get("max_attempts")?,
            payload: row.try_get("payload")?,
            left_out: Vec::new(),
            content_type: row.try_get("content_type")?,
            headers: headers.map(|headers| headers.0).unwrap_or_default(),
            key: row.try_get("key")?,
            version: row.try_get("version")?,
            partition_key: row.try_get("partition_key")?,
            delivered_at: super::optional_moment(row, "delivered_at")?,
            progress: row.try_get("progress")?,
            worker: row.try_get("worker")?,
            history: history.map(|history| history.0).unwrap_or_default(),
            created_at: super::moment(row, "created_at")?,
            finished_at: super::optional_moment(row, "finished_at")?,
            result: row.try_get("result")?,
            status_code: row.try_get("status_code")?,
            status_msg: row.try_get("status_msg")?,
            stopping: row.try_get("stopping")?,
        })
    }
}

/// How a caller saw a queue or a schedule before they change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// There was none.
    Absent,
    /// As it was last changed at this moment.
    Changed(UnixMicros),
}

/// A queue as stored.
#[derive(Clone, Debug)]
pub struct QueueRecord {
    pub queue: Queue,
    pub created_at: UnixMicros,
    pub updated_at: UnixMicros,
}

impl QueueRecord {
    pub(super) fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            queue: read_queue(row)?,
            created_at: super::moment(row, "created_at")?,
            updated_at: super::moment(row, "updated_at")?,
        })
    }
}

/// Reads a queue. One whose policy cannot be read as a whole counts as paused, so that it stops no other queue.
pub(super) fn read_queue(row: &PgRow) -> Result<Queue, sqlx::Error> {
    let name = super::queue(row, "name")?;
    let error = match row.try_get("policy") {
        Ok(Json(policy)) => {
            return Ok(Queue { name, policy, paused: row.try_get("paused")?, unreadable: Vec::new() });
        }
        Err(error) => error,
    };
    let Some((policy, unreadable)) = QueuePolicy::salvage(row.try_get("policy")?) else { return Err(error) };
    Ok(Queue { name, policy, paused: true, unreadable })
}
