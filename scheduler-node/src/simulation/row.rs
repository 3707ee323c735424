//! A task's row, as far as the simulated statements use it.

use std::collections::BTreeMap;

use common::{
    ids::{Attempt, Epoch, QueueName, TaskId},
    task::{Content, Delivery, TaskState},
    time::UnixMicros,
};

use crate::store::{preload::Key, settle::StandingRow};

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub id: TaskId,
    pub queue: QueueName,
    pub state: TaskState,
    pub wake_at: UnixMicros,
    pub due_at: UnixMicros,
    pub expires_at: Option<UnixMicros>,
    pub priority: i16,
    pub partition_key: Option<String>,
    pub attempt: i32,
    pub claim_epoch: Option<Epoch>,
    pub claimed_at: Option<UnixMicros>,
    pub redeliveries: i32,
    /// Started in the order of its queue, and not finished.
    pub in_order: bool,
    /// Started under the limit of its queue.
    pub counted: bool,
}

impl Row {
    pub fn new(id: TaskId, queue: QueueName, due_at: UnixMicros) -> Self {
        Self {
            id,
            queue,
            state: TaskState::Scheduled,
            wake_at: due_at,
            due_at,
            expires_at: None,
            priority: 3,
            partition_key: None,
            attempt: 0,
            claim_epoch: None,
            claimed_at: None,
            redeliveries: 0,
            in_order: false,
            counted: false,
        }
    }

    pub fn has_expired(&self, now: UnixMicros) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// The lane of the row in its queue, in the notation of `task_pick.sql`.
    pub fn lane(&self) -> String {
        self.partition_key.as_ref().map_or_else(|| "-".to_owned(), |key| format!("={key}"))
    }

    pub fn key(&self) -> Key {
        Key { id: self.id, wake_at: self.wake_at, state: self.state, claim_epoch: self.claim_epoch }
    }

    pub fn delivery(&self) -> Delivery {
        Delivery {
            id: self.id,
            attempt: Attempt::new(self.attempt),
            attempts_base: Attempt::NONE,
            queue: self.queue.clone(),
            due_at: self.due_at,
            content: Content {
                payload: b"{}".to_vec(),
                content_type: "application/json".into(),
                headers: BTreeMap::new(),
            },
            priority: self.priority,
            key: None,
            partition_key: self.partition_key.clone(),
            version: 0,
            max_attempts: None,
            timeout_ms: None,
            redelivered: self.redeliveries > 0,
            envelope: None,
        }
    }

    pub fn standing(&self, now: UnixMicros) -> StandingRow {
        StandingRow {
            id: self.id,
            queue: self.queue.clone(),
            state: self.state,
            attempt: Attempt::new(self.attempt),
            attempts_base: Attempt::NONE,
            max_attempts: None,
            timeout_ms: None,
            retry: None,
            claimed_at: self.claimed_at,
            wake_at: self.wake_at,
            expired: matches!(self.state, TaskState::Waiting | TaskState::Scheduled | TaskState::Ready)
                && self.has_expired(now),
            stopping: false,
            trace: None,
            now,
            turned: 0,
            predates_reports: false,
        }
    }
}
