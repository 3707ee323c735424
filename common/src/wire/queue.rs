//! Queues in requests and answers.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    ids::QueueName,
    json,
    queue::{Format, Placement, Queue, QueuePolicy, ReceiptPolicy, Settle, Unroutable},
    retry::RetryPolicy,
    task::TaskState,
    time::UnixMicros,
    wire::{Problem, read},
};

/// A queue's policy in a request. An absent or null field takes its default, not its previous value.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueRequest {
    /// Absent: stays unchanged.
    pub paused: Option<bool>,
    pub settle: Option<Settle>,
    #[serde(deserialize_with = "json::whole")]
    pub max_attempts: Option<i32>,
    pub retry: Option<RetryPolicy>,
    #[serde(deserialize_with = "json::whole")]
    pub timeout_ms: Option<i64>,
    pub placement: Option<Placement>,
    #[serde(deserialize_with = "json::whole")]
    pub max_length: Option<i64>,
    pub exchange: Option<String>,
    pub routing_key: Option<String>,
    pub unroutable: Option<Unroutable>,
    pub use_existing: Option<bool>,
    pub receipt: Option<ReceiptPolicy>,
    #[serde(deserialize_with = "json::whole")]
    pub dedup_window_ms: Option<i64>,
    #[serde(deserialize_with = "json::whole")]
    pub keep_succeeded_ms: Option<i64>,
    #[serde(deserialize_with = "json::whole")]
    pub keep_dead_ms: Option<i64>,
    #[serde(deserialize_with = "json::whole")]
    pub failure_alert_threshold: Option<i64>,
    #[serde(deserialize_with = "json::wholes")]
    pub priority_weights: Option<Vec<u32>>,
    #[serde(deserialize_with = "json::whole")]
    pub max_running: Option<i64>,
    pub rate_per_second: Option<f64>,
    pub ordered: Option<bool>,
    pub retry_priority_drop: Option<bool>,
    pub format: Option<Format>,
    #[serde(deserialize_with = "json::whole")]
    pub max_pending: Option<i64>,
    #[serde(deserialize_with = "json::whole")]
    pub max_pending_bytes: Option<i64>,
    #[serde(deserialize_with = "json::whole")]
    pub max_schedules: Option<i64>,
    #[serde(deserialize_with = "json::whole")]
    pub max_submits_per_second: Option<u32>,
}

impl QueueRequest {
    pub fn parse(raw: &str) -> Result<Self, Problem> {
        read::object(raw)
    }

    /// The requested policy, checked; the problem names the field.
    pub fn into_policy(self) -> Result<QueuePolicy, Problem> {
        let default = QueuePolicy::default();
        let policy = QueuePolicy {
            settle: self.settle.unwrap_or(default.settle),
            max_attempts: self.max_attempts.unwrap_or(default.max_attempts),
            retry: self.retry.unwrap_or(default.retry),
            timeout_ms: self.timeout_ms.unwrap_or(default.timeout_ms),
            placement: self.placement.unwrap_or(default.placement),
            max_length: self.max_length.unwrap_or(default.max_length),
            exchange: self.exchange,
            routing_key: self.routing_key,
            unroutable: self.unroutable.unwrap_or(default.unroutable),
            use_existing: self.use_existing.unwrap_or(default.use_existing),
            receipt: self.receipt.unwrap_or(default.receipt),
            dedup_window_ms: self.dedup_window_ms.unwrap_or(default.dedup_window_ms),
            keep_succeeded_ms: self.keep_succeeded_ms.unwrap_or(default.keep_succeeded_ms),
            keep_dead_ms: self.keep_dead_ms.unwrap_or(default.keep_dead_ms),
            failure_alert_threshold: self.failure_alert_threshold,
            priority_weights: self.priority_weights,
            max_running: self.max_running,
            rate_per_second: self.rate_per_second,
            ordered: self.ordered.unwrap_or(default.ordered),
            retry_priority_drop: self.retry_priority_drop.unwrap_or(default.retry_priority_drop),
            format: self.format.unwrap_or(default.format),
            max_pending: self.max_pending,
            max_pending_bytes: self.max_pending_bytes,
            max_schedules: self.max_schedules,
            max_submits_per_second: self.max_submits_per_second,
        };
        policy.validate()?;
        Ok(policy)
    }
}

/// A queue with its policy and the number of its tasks in each state.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueView {
    pub name: QueueName,
    pub policy: QueuePolicy,
    pub paused: bool,
    #[serde(default)]
    pub counts: Counts,
    /// Absent for a queue that was never set or used.
    pub created_at: Option<UnixMicros>,
    pub updated_at: Option<UnixMicros>,
}

impl QueueView {
    pub fn of(queue: &Queue, counts: Counts) -> Self {
        Self {
            name: queue.name.clone(),
            policy: queue.policy.clone(),
            paused: queue.paused,
            counts,
            created_at: None,
            updated_at: None,
        }
    }
}

/// The number of tasks in each state that is not final.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    pub waiting: i64,
    pub scheduled: i64,
    pub ready: i64,
    pub dispatching: i64,
    pub delivered: i64,
    pub running: i64,
    /// The figures are lower bounds: the count stopped early, or a database could not be reached.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
}

impl Counts {
    /// The number of tasks that are handed over, or about to be, and not finished.
    pub fn in_flight(&self) -> i64 {
        self.dispatching + self.delivered + self.running
    }

    /// Adds to the count of a state. Final states are not counted.
    pub fn add(&mut self, state: TaskState, tasks: i64) {
        let count = match state {
            TaskState::Waiting => &mut self.waiting,
            TaskState::Scheduled => &mut self.scheduled,
            TaskState::Ready => &mut self.ready,
            TaskState::Dispatching => &mut self.dispatching,
            TaskState::Delivered => &mut self.delivered,
            TaskState::Running => &mut self.running,
            TaskState::Succeeded
            | TaskState::Dead
            | TaskState::Cancelled
            | TaskState::Superseded
            | TaskState::Expired => return,
        };
        *count += tasks;
    }
}

/// A page of queues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueList {
    pub queues: Vec<QueueView>,
    /// `None` on the last page.
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(raw: &str) -> Result<QueuePolicy, Problem> {
        QueueRequest::parse(raw)?.into_policy()
    }

    #[test]
    fn what_is_not_asked_for_takes_its_default() {
        assert_eq!(policy("{}").unwrap(), QueuePolicy::default());
        let asked =
            policy(r#"{"settle":"result","retry":{"kind":"immediate"},"format":"raw","ordered":false}"#).unwrap();
        assert_eq!(
            asked,
            QueuePolicy { settle: Settle::Result, retry: RetryPolicy::Immediate, ..QueuePolicy::default() }
        );
    }

    #[test]
    fn each_format_has_its_word() {
        for (word, format) in [("raw", Format::Raw), ("celery", Format::Celery), ("cloudevents", Format::CloudEvents)] {
            assert_eq!(policy(&format!(r#"{{"format":"{word}"}}"#)).unwrap().format, format);
        }
    }

    #[test]
    fn a_policy_that_is_shown_can_be_set_again() {
        let json = serde_json::to_string(&QueuePolicy::default()).unwrap();
        assert_eq!(policy(&json).unwrap(), QueuePolicy::default());
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (raw, field) in [
            (r#"{"settle":"maybe"}"#, "settle"),
            (r#"{"colour":"red"}"#, "colour"),
            (r#"{"max_attempts":0}"#, "max_attempts"),
            (r#"{"retry":{"kind":"fixed","delay_ms":-1}}"#, "retry.delay_ms"),
            (r#"{"format":"celery","settle":"result"}"#, "settle"),
            (r#"{"format":"xml"}"#, "format"),
            (r#"{"ordered":true}"#, "ordered"),
            (r#"{"max_running":3}"#, "max_running"),
            (r#"{"rate_per_second":0}"#, "rate_per_second"),
            (r#"{"max_pending":-1}"#, "max_pending"),
            (r#"{"max_pending_bytes":1e300}"#, "max_pending_bytes"),
            (r#"{"max_schedules":-1}"#, "max_schedules"),
            (r#"{"max_submits_per_second":0}"#, "max_submits_per_second"),
            (r#"{"priority_weights":[80,-1]}"#, "priority_weights"),
            (r#"{"priority_weights":[80,0]}"#, "priority_weights"),
            (r#"{"paused":"yes"}"#, "paused"),
        ] {
            let problem = policy(raw).unwrap_err();
            assert_eq!((problem.status, problem.field.as_deref()), (422, Some(field)), "{raw}: {problem:?}");
        }
    }

    #[test]
    fn counts_leave_out_what_has_finished() {
        let mut counts = Counts::default();
        for state in TaskState::ALL {
            counts.add(state, 2);
        }
        let all = Counts {
            waiting: 2,
            scheduled: 2,
            ready: 2,
            dispatching: 2,
            delivered: 2,
            running: 2,
            ..Counts::default()
        };
        assert_eq!(counts, all);
    }

    #[test]
    fn a_view_reads_back() {
        let view = QueueView::of(&Queue::with_defaults(QueueName::new("q")), Counts::default());
        let json = serde_json::to_string(&view).unwrap();
        assert_eq!(serde_json::from_str::<QueueView>(&json).unwrap(), view);
    }
}
