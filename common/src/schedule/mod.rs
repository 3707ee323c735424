//! A schedule: a calendar and the task it makes at each of its fire times.

pub(crate) mod calendar;
mod decision;

use std::collections::BTreeMap;

use chrono::{DateTime, SecondsFormat};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    field::FieldError,
    ids::{QueueName, ScheduleName},
    queue::{MAX_NAME_CHARS, Settle},
    retry::RetryPolicy,
    task::{BusinessKey, Content, OnDuplicate, TaskState, ValidTask},
    time::UnixMicros,
};
pub use calendar::{Calendar, When};
pub use decision::{FireDecision, MOST_AHEAD, STAND_IN_AFTER, ScheduleState};

/// The largest payload of a schedule: it is read at each fire time, and written once more for each task.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 64 << 10;

/// A schedule's definition without its name and its payload. A stored field that is absent takes its default, so that
/// a schedule of an older version can always be read.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    pub queue: QueueName,
    #[serde(flatten)]
    pub when: When,
    #[serde(default)]
    pub overlap: Overlap,
    /// The longest delay of a fire time that still gets its task; a fire time missed by more gets none.
    pub catch_up_ms: i64,
    pub content_type: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    pub priority: i16,
    pub partition_key: Option<String>,
    pub max_attempts: Option<i32>,
    pub timeout_ms: Option<i64>,
    pub retry: Option<RetryPolicy>,
    /// The time from the fire time to the task's expiry.
    pub expires_after_ms: Option<i64>,
}

/// The rule for a fire time while the schedule's last task is unfinished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// The fire time gets no task.
    #[default]
    Skip,
    /// The first fire time waits until the last task is finished; further ones get no task.
    BufferOne,
    /// The fire time gets a task all the same.
    Allow,
}

/// A fire time that gets a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fire {
    pub at: UnixMicros,
    /// The fire time waited for the previous task: its task is due when it is made.
    pub buffered: bool,
}

/// Whether a new task of a schedule would overlap the last one, which is open as `last`. Without reports a task is over
/// once the broker has it, because what its consumer does is unknown.
pub fn overlaps(last: TaskState, settle: Settle) -> bool {
    last != TaskState::Delivered || settle.needs_report()
}

/// The business key of a fire time's task: at most one task has it.
pub fn key_of(schedule: &ScheduleName, fire_at: UnixMicros) -> String {
    format!("{schedule}@{}", fire_at.to_utc().to_rfc3339_opts(SecondsFormat::AutoSi, true))
}

/// Whether a key can be that of a fire time's task. Another task may have such a key too.
pub fn is_fire_key(key: &str) -> bool {
    key.rsplit_once('@').is_some_and(|(_, fire_at)| DateTime::parse_from_rfc3339(fire_at).is_ok())
}

impl Rules {
    /// The task of one fire time.
    pub fn task_of(self, schedule: &ScheduleName, payload: Vec<u8>, fire: Fire) -> ValidTask {
        let keyed = BusinessKey { key: key_of(schedule, fire.at), version: 0, on_duplicate: OnDuplicate::Keep };
        ValidTask { due_now: fire.buffered, keyed: Some(keyed), ..self.task_now(payload, fire.at) }
    }

    /// A task outside the calendar, due at once.
    pub fn task_now(self, payload: Vec<u8>, now: UnixMicros) -> ValidTask {
        let wait_ms = self.expires_after_ms.map(|wait_ms| u64::try_from(wait_ms).unwrap_or(0));
        ValidTask {
            queue: self.queue,
            due_at: now,
            due_now: true,
            content: Content { payload, content_type: self.content_type, headers: self.headers },
            priority: self.priority,
            keyed: None,
            partition_key: self.partition_key,
            depends_on: Vec::new(),
            max_attempts: self.max_attempts,
            timeout_ms: self.timeout_ms,
            retry: self.retry,
            expires_at: wait_ms.map(|wait_ms| now.plus(std::time::Duration::from_millis(wait_ms))),
            envelope: None,
        }
    }
}

/// Checks that `name` can name a schedule. A task's key has room for the name and a fire time.
pub fn check_name(name: &str) -> Result<(), FieldError> {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    if (1..=MAX_NAME_CHARS).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(FieldError::new("name", "a schedule's name must be 1 to 128 of the characters A-Z a-z 0-9 . _ -"))
}
