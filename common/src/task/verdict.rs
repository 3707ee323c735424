//! The verdict on an event of a claimed task: the confirm of its publish, a deadline that passed in silence, a
//! rejection, a consumer's report.
//!
//! Events come late, twice and out of order. Each names its attempt; an event that no longer applies is ignored.

use std::{fmt, time::Duration};

use crate::{
    ids::Attempt,
    queue::{QueuePolicy, Settle, Unroutable},
    task::{
        TaskState,
        retry::{Fate, RetryPolicy},
    },
    time::UnixMicros,
    wire::report::{ReportStatus, ResultBody},
};

/// A task at the moment of an event: its row, and its queue's policy for what the row leaves open.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    pub state: TaskState,
    /// The newest attempt.
    pub attempt: Attempt,
    /// The number of attempts before the present budget of `max_attempts` began.
    pub attempts_base: Attempt,
    pub max_attempts: Option<i32>,
    pub timeout_ms: Option<i64>,
    pub retry: Option<RetryPolicy>,
    /// Its consumer was asked to stop: a failure ends the task.
    pub stopping: bool,
    pub policy: &'a QueuePolicy,
}

/// Why an attempt failed. History and metrics show the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureReason {
    /// No report came until the deadline, although one was due.
    Timeout,
    /// A consumer rejected the message without requeue, or the broker dead-lettered it.
    Rejected,
    /// The consumer reported a failure.
    Failed,
    /// The consumer reported that another attempt is not worth it.
    Discarded,
    /// The broker had no queue for the message.
    Unroutable,
}

impl FailureReason {
    pub const ALL: [Self; 5] = [Self::Timeout, Self::Rejected, Self::Failed, Self::Discarded, Self::Unroutable];

    pub const fn text(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::Discarded => "discarded",
            Self::Unroutable => "unroutable",
        }
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The change to write.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The task finished as `state`; `reason` is set when its last attempt failed.
    Archive { state: TaskState, reason: Option<FailureReason> },
    /// The attempt failed; the next one is due `at`.
    RetryAt { at: UnixMicros, reason: FailureReason },
    /// The message is with the broker; the outcome is open until `deadline`.
    Deliver { deadline: UnixMicros },
    /// A consumer works on the task; the outcome is open until `deadline`. A field that is `None` stays unchanged.
    Extend { deadline: UnixMicros, progress: Option<i16>, worker: Option<String> },
    /// The event does not apply to the task as it stands: it came late, early or twice.
    Ignore,
}

impl Verdict {
    const SUCCEEDED: Self = Self::Archive { state: TaskState::Succeeded, reason: None };
}

impl Standing<'_> {
    pub fn max_attempts(&self) -> i32 {
        self.max_attempts.unwrap_or(self.policy.max_attempts)
    }

    /// The moment until which a consumer may be silent, counted from `now`.
    pub fn deadline(&self, now: UnixMicros) -> UnixMicros {
        let timeout_ms = self.timeout_ms.unwrap_or(self.policy.timeout_ms);
        now.plus(Duration::from_millis(timeout_ms.max(0).unsigned_abs()))
    }

    /// The broker has confirmed the publish of `attempt`.
    pub fn after_confirm(&self, attempt: Attempt, now: UnixMicros) -> Verdict {
        if self.state != TaskState::Dispatching || attempt != self.attempt {
            return Verdict::Ignore;
        }
        match self.policy.settle {
            Settle::Confirm => Verdict::SUCCEEDED,
            Settle::Reject | Settle::Result => Verdict::Deliver { deadline: self.deadline(now) },
        }
    }

    /// The deadline passed without a report.
    pub fn after_deadline(&self, now: UnixMicros, rand01: f64) -> Verdict {
        if !matches!(self.state, TaskState::Delivered | TaskState::Running) {
            return Verdict::Ignore;
        }
        match self.policy.settle {
            // No consumer rejected the message. `Confirm` occurs here when the policy changed after the publish.
            Settle::Confirm | Settle::Reject => Verdict::SUCCEEDED,
            Settle::Result => self.failed(FailureReason::Timeout, now, rand01, None),
        }
    }

    /// A consumer rejected a copy of `attempt` without requeue, or the broker dead-lettered it.
    pub fn after_rejection(&self, attempt: Attempt, now: UnixMicros, rand01: f64) -> Verdict {
        if !self.is_current(attempt) {
            return Verdict::Ignore;
        }
        self.failed(FailureReason::Rejected, now, rand01, None)
    }

    /// The broker has returned the publish of `attempt`: no queue is bound for it. Nothing of this copy was
    /// delivered. An earlier copy had no report or rejection either, for then the task would not be `dispatching`.
    pub fn after_return(&self, attempt: Attempt, rule: Unroutable) -> Verdict {
        if self.state != TaskState::Dispatching || attempt != self.attempt {
            return Verdict::Ignore;
        }
        match rule {
            Unroutable::Wait => Verdict::Ignore,
            Unroutable::Drop => Verdict::Archive { state: TaskState::Cancelled, reason: None },
            Unroutable::SetAside if self.stopping => self.stopped(FailureReason::Unroutable),
            Unroutable::SetAside => {
                Verdict::Archive { state: TaskState::Dead, reason: Some(FailureReason::Unroutable) }
            }
        }
    }

    /// A consumer reported on `attempt`. The success of any attempt finishes the task; every other report counts only
    /// for the newest one. A report may overtake the confirm of its own publish.
    pub fn after_report(&self, attempt: Attempt, report: &ResultBody, now: UnixMicros, rand01: f64) -> Verdict {
        match report.status {
            ReportStatus::Succeeded if self.may_still_succeed(attempt) => Verdict::SUCCEEDED,
            ReportStatus::Succeeded => Verdict::Ignore,
            _ if !self.is_current(attempt) => Verdict::Ignore,
            ReportStatus::Failed => self.failed(FailureReason::Failed, now, rand01, report.retry_in_ms),
            ReportStatus::Discard if self.stopping => self.stopped(FailureReason::Discarded),
            ReportStatus::Discard => {
                Verdict::Archive { state: TaskState::Dead, reason: Some(FailureReason::Discarded) }
            }
            ReportStatus::Running => Verdict::Extend {
                deadline: self.deadline(now),
                progress: report.progress,
                worker: report.worker.clone(),
            },
        }
    }

    /// Whether `attempt` is the newest one and is in flight.
    fn is_current(&self, attempt: Attempt) -> bool {
        self.state.is_in_flight() && attempt == self.attempt
    }

    fn may_still_succeed(&self, attempt: Attempt) -> bool {
        let was_claimed = attempt > Attempt::NONE && attempt <= self.attempt;
        was_claimed && (self.state.is_in_flight() || self.state.may_be_claimed())
    }

    fn stopped(&self, reason: FailureReason) -> Verdict {
        Verdict::Archive { state: TaskState::Cancelled, reason: Some(reason) }
    }

    fn failed(&self, reason: FailureReason, now: UnixMicros, rand01: f64, retry_in_ms: Option<i64>) -> Verdict {
        if self.stopping {
            return self.stopped(reason);
        }
        let in_budget = self.attempt.number().saturating_sub(self.attempts_base.number());
        let policy = self.retry.unwrap_or(self.policy.retry);
        match policy.decide(in_budget, self.max_attempts(), now, rand01, retry_in_ms) {
            Fate::Retry { at } => Verdict::RetryAt { at, reason },
            Fate::Bury => Verdict::Archive { state: TaskState::Dead, reason: Some(reason) },
        }
    }
}

#[cfg(test)]
mod tests;
