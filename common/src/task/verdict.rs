//! What an event means for a task that was claimed: the confirm of its publish, a deadline that passed in silence, a
//! rejection, a consumer's report.
//!
//! Events come late, twice and out of order. Each names the attempt it speaks of; what no longer applies is ignored.

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

/// How a task stands when something happens to it: its row, and its queue's policy for what the row leaves open.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    pub state: TaskState,
    /// The newest attempt.
    pub attempt: Attempt,
    /// Attempts before the present budget of `max_attempts` began.
    pub attempts_base: Attempt,
    pub max_attempts: Option<i32>,
    pub timeout_ms: Option<i64>,
    pub retry: Option<RetryPolicy>,
    /// Its consumer was asked to stop: a failure is the end.
    pub stopping: bool,
    pub policy: &'a QueuePolicy,
}

/// Why an attempt failed. The text is what history and metrics show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureReason {
    /// Silence until the deadline, where a report was due.
    Timeout,
    /// Rejected without requeue, or dead-lettered.
    Rejected,
    /// Reported as failed.
    Failed,
    /// Reported as not worth another attempt.
    Discarded,
    /// The broker had no queue for its message.
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

/// What is to be written.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Finished as `state`; `reason` when its last attempt failed.
    Archive { state: TaskState, reason: Option<FailureReason> },
    /// The attempt failed; the next one is due `at`.
    RetryAt { at: UnixMicros, reason: FailureReason },
    /// With the broker; open until `deadline`.
    Deliver { deadline: UnixMicros },
    /// A consumer works on it; open until `deadline`. What it did not say stays as it was.
    Extend { deadline: UnixMicros, progress: Option<i16>, worker: Option<String> },
    /// Says nothing about the task as it stands: late, early or doubled.
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

    /// The deadline passed and nothing was heard.
    pub fn after_deadline(&self, now: UnixMicros, rand01: f64) -> Verdict {
        if !matches!(self.state, TaskState::Delivered | TaskState::Running) {
            return Verdict::Ignore;
        }
        match self.policy.settle {
            // Nobody objected. `Confirm` is met when the policy was changed after the publish.
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

    /// The broker has returned the publish of `attempt`: no queue is bound for it. Nothing of this copy was delivered, and of an
    /// earlier copy nothing was heard, for then the task would not be `dispatching`.
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

    /// A consumer reported on `attempt`. The success of any attempt finishes the task; everything else counts only for
    /// the newest one. May overtake the confirm of its own publish.
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

    /// `attempt` is the newest one, and it is out.
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
