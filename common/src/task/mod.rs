//! A task: what is asked for, what is handed over, what is kept.

pub mod bulk;
pub mod dependency;
pub mod envelope;
pub mod pick;
pub mod rate;
pub mod retry;
pub mod state;
pub mod trace;
pub mod verdict;
pub mod voucher;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    ids::{Attempt, QueueName, TaskId},
    time::UnixMicros,
};
pub use dependency::Dependency;
pub use envelope::Envelope;
use retry::RetryPolicy;
pub use state::TaskState;
pub use trace::TraceContext;

/// A task as it is first written. Nothing in it is left to be looked up later but the queue's policy.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTask {
    pub id: TaskId,
    pub queue: QueueName,
    pub due_at: UnixMicros,
    /// Due at once: the database's own time when it is written counts.
    pub asked_now: bool,
    pub content: Content,
    pub priority: i16,
    pub keyed: Option<Keyed>,
    pub partition_key: Option<String>,
    /// What has to succeed first; empty: nothing.
    pub depends_on: Vec<Dependency>,
    /// `None`: as the queue's policy says when it is needed. So for `timeout_ms` and `retry`.
    pub max_attempts: Option<i32>,
    pub timeout_ms: Option<i64>,
    pub retry: Option<RetryPolicy>,
    pub expires_at: Option<UnixMicros>,
    /// How it goes on as the message it came as; `None`: as its queue says.
    pub envelope: Option<Box<Envelope>>,
}

impl NewTask {
    /// It is decided upon when it is written: its key may be there, or what it waits for may wait for it.
    pub const fn is_put(&self) -> bool {
        self.keyed.is_some() || !self.depends_on.is_empty()
    }

    /// Where it stands in a trace that is recorded.
    pub fn trace(&self) -> Option<TraceContext> {
        TraceContext::carried(&self.content.headers, self.envelope.as_deref()).filter(TraceContext::is_sampled)
    }

    /// When it is due, if the database wrote it at `asked_at`.
    pub const fn due_at_when(&self, asked_at: UnixMicros) -> UnixMicros {
        if self.asked_now { asked_at } else { self.due_at }
    }
}

/// A business key: at most one task that is not finished has it, in its queue and partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyed {
    pub key: String,
    pub version: i64,
    pub on_duplicate: OnDuplicate,
}

/// What becomes of a submission whose key is there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDuplicate {
    /// It is answered with the task that is there.
    #[default]
    Keep,
    /// It is refused.
    Reject,
    /// It takes the place of the task that is there, unless that is claimed.
    Replace,
    /// The newer version counts.
    Version,
}

impl OnDuplicate {
    pub const ALL: [Self; 4] = [Self::Keep, Self::Reject, Self::Replace, Self::Version];

    pub const fn text(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Reject => "reject",
            Self::Replace => "replace",
            Self::Version => "version",
        }
    }
}

/// What the consumer gets, byte for byte as it was submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub payload: Vec<u8>,
    pub content_type: String,
    pub headers: BTreeMap<String, String>,
}

/// One claimed attempt on its way to the broker.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub id: TaskId,
    pub attempt: Attempt,
    /// Where the present budget of attempts began.
    pub attempts_base: Attempt,
    pub queue: QueueName,
    /// The moment this attempt is due on the database's clock; never published before it.
    pub due_at: UnixMicros,
    pub content: Content,
    pub priority: i16,
    pub key: Option<String>,
    pub partition_key: Option<String>,
    pub version: i64,
    pub max_attempts: Option<i32>,
    pub timeout_ms: Option<i64>,
    /// A copy of this attempt may have been published before.
    pub redelivered: bool,
    pub envelope: Option<Box<Envelope>>,
}
