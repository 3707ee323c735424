//! A schedule: a calendar and the task it makes at each of its fire times.

pub mod calendar;
pub mod turn;

use std::collections::BTreeMap;

use chrono::SecondsFormat;
use serde::{Deserialize, Serialize};

use crate::{
    field::FieldError,
    ids::{QueueName, ScheduleName, TaskId},
    queue::MAX_NAME_CHARS,
    task::{Content, Keyed, NewTask, OnDuplicate, retry::RetryPolicy},
    time::UnixMicros,
};
pub use calendar::{Calendar, When};
pub use turn::{Standing, Turn};

/// Of a schedule's payload: it is read at each fire time, and written once more for each task.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 10;

/// What a schedule says beside its name and its payload. Stored; what is absent where it is read takes its default, so that an
/// older version's schedule can always be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    pub queue: QueueName,
    #[serde(flatten)]
    pub when: When,
    #[serde(default)]
    pub overlap: Overlap,
    /// Fire times that were missed by more than this are not made up.
    pub catch_up_ms: i64,
    pub content_type: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    pub priority: i16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// From the fire time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after_ms: Option<i64>,
}

/// What becomes of a fire time while the schedule's last task is unfinished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// No task.
    #[default]
    Skip,
    /// The first one waits until the last task is finished; further ones come to nothing.
    BufferOne,
    /// A task all the same.
    Allow,
}

/// One fire time for which a task is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fire {
    pub at: UnixMicros,
    /// It waited for the task before: its task is due when it is made.
    pub buffered: bool,
}

/// The business key of a fire time's task: at most one task has it.
pub fn key_of(schedule: &ScheduleName, fire_at: UnixMicros) -> String {
    format!("{schedule}@{}", fire_at.to_utc().to_rfc3339_opts(SecondsFormat::AutoSi, true))
}

impl Rules {
    /// The task of one fire time.
    pub fn task(&self, schedule: &ScheduleName, payload: Vec<u8>, fire: Fire, id: TaskId) -> NewTask {
        let key = key_of(schedule, fire.at);
        let keyed = Keyed { key, version: 0, on_duplicate: OnDuplicate::Keep };
        let wait_ms = self.expires_after_ms.map(|wait_ms| u64::try_from(wait_ms).unwrap_or(0));
        NewTask {
            id,
            queue: self.queue.clone(),
            due_at: fire.at,
            asked_now: fire.buffered,
            content: Content { payload, content_type: self.content_type.clone(), headers: self.headers.clone() },
            priority: self.priority,
            keyed: Some(keyed),
            partition_key: self.partition_key.clone(),
            depends_on: Vec::new(),
            max_attempts: self.max_attempts,
            timeout_ms: self.timeout_ms,
            retry: self.retry,
            expires_at: wait_ms.map(|wait_ms| fire.at.plus(std::time::Duration::from_millis(wait_ms))),
            envelope: None,
        }
    }
}

/// Whether `name` can name a schedule. The key of a task has room for it and a fire time.
pub fn check_name(name: &str) -> Result<(), FieldError> {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    if (1..=MAX_NAME_CHARS).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(FieldError::new("name", "a schedule's name must be 1 to 128 of the characters A-Z a-z 0-9 . _ -"))
}
