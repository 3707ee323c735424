//! A task: its request, its delivery and its stored form.

pub mod bulk;
pub mod dependency;
pub mod envelope;
#[cfg(any(test, feature = "oracle"))]
pub mod oracle;
pub mod rate;
pub mod report;
pub mod state;
pub mod trace;
pub mod verdict;
pub mod voucher;

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
};

use serde::Deserialize;

use crate::{
    ids::{Attempt, MessageId, QueueName, TaskId},
    limit::Usage,
    retry::RetryPolicy,
    time::UnixMicros,
};
pub use dependency::Dependency;
pub use envelope::Envelope;
pub use state::TaskState;
pub use trace::TraceContext;

/// A checked task, which only lacks an id. Only the queue's policy is looked up later.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidTask {
    pub queue: QueueName,
    /// The due time, never before the moment of the check: a past due time means now.
    pub due_at: UnixMicros,
    /// The task is due at once: the database's time of the insert becomes its due time.
    pub due_now: bool,
    pub content: Content,
    pub priority: i16,
    pub keyed: Option<BusinessKey>,
    pub partition_key: Option<String>,
    /// The tasks that have to succeed first; empty when there are none.
    pub depends_on: Vec<Dependency>,
    /// The task's own budget; `None` uses the queue's policy at the time of use. `timeout_ms` and `retry` work alike.
    pub max_attempts: Option<i32>,
    pub timeout_ms: Option<i64>,
    pub retry: Option<RetryPolicy>,
    pub expires_at: Option<UnixMicros>,
    /// The envelope of a message that continues unchanged; `None` for a message in its queue's form.
    pub envelope: Option<Box<Envelope>>,
}

/// The queue, the partition key and the key of a task. One of the unfinished tasks at most has them.
pub type TaskKey<'a> = (&'a QueueName, Option<&'a str>, &'a str);

/// A task as it is first written.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTask {
    pub id: TaskId,
    pub task: ValidTask,
}

impl Deref for NewTask {
    type Target = ValidTask;

    fn deref(&self) -> &ValidTask {
        &self.task
    }
}

impl DerefMut for NewTask {
    fn deref_mut(&mut self) -> &mut ValidTask {
        &mut self.task
    }
}

impl ValidTask {
    /// Whether the insert has to decide about the task: its key may exist already, or its dependencies may depend on
    /// it.
    pub const fn is_put(&self) -> bool {
        self.keyed.is_some() || !self.depends_on.is_empty()
    }

    /// `None`: the task has no key.
    pub fn full_key(&self) -> Option<TaskKey<'_>> {
        let keyed = self.keyed.as_ref()?;
        Some((&self.queue, self.partition_key.as_deref(), keyed.key.as_str()))
    }

    /// The task's place in a trace, if that trace is recorded.
    pub fn trace(&self) -> Option<TraceContext> {
        TraceContext::carried(&self.content.headers, self.envelope.as_deref()).filter(TraceContext::is_sampled)
    }

    /// The due time, if the database wrote the task at `written_at`.
    pub const fn due_at_when(&self, written_at: UnixMicros) -> UnixMicros {
        if self.due_now { written_at } else { self.due_at }
    }
}

/// A business key: at most one unfinished task has it, in its queue and partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusinessKey {
    pub key: String,
    pub version: i64,
    pub on_duplicate: OnDuplicate,
}

crate::labelled! {
    /// The rule for a submission whose key exists already.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum OnDuplicate {
        /// The answer is the existing task.
        #[default]
        Keep = "keep",
        /// The submission is refused.
        Reject = "reject",
        /// The new task replaces the existing one, unless that one is claimed.
        Replace = "replace",
        /// The task with the newer version wins.
        Version = "version",
    }
}

/// The message body and headers for the consumer, byte for byte as submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub payload: Vec<u8>,
    pub content_type: String,
    pub headers: BTreeMap<String, String>,
}

impl Content {
    /// The usage of one new task with this content.
    pub fn usage(&self) -> Usage {
        Usage { tasks: 1, bytes: Self::bytes_of(self.payload.len(), &self.headers) }
    }

    /// The bytes that a task with so much payload and these headers takes, as an estimate. PostgreSQL writes headers as
    /// `{"a": "b", "c": "d"}`.
    pub fn bytes_of(payload_bytes: usize, headers: &BTreeMap<String, String>) -> i64 {
        let pair = |(name, value): (&String, &String)| name.len() + value.len() + r#""": "", "#.len();
        let headers: usize = headers.iter().map(pair).sum();
        i64::try_from(payload_bytes + headers).unwrap_or(i64::MAX)
    }
}

/// One claimed attempt on its way to the broker.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub id: TaskId,
    pub attempt: Attempt,
    /// The attempt at which the present budget of attempts began.
    pub attempts_base: Attempt,
    pub queue: QueueName,
    /// The due time of this attempt, on the database's clock. The message is never published before it.
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

impl Delivery {
    pub fn message_id(&self) -> MessageId {
        MessageId { id: self.id, attempt: self.attempt }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_as_large_as_its_payload_and_headers() {
        let headers = BTreeMap::from([("a".to_owned(), "bc".to_owned())]);
        let content = Content { payload: vec![0; 1_000], content_type: "x".to_owned(), headers };
        assert_eq!(content.usage(), Usage { tasks: 1, bytes: 1_011 });
    }
}
