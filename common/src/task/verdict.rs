//! The verdict on an event of a claimed task: the confirm of its publish, a deadline that passed in silence, a
//! rejection, a consumer's report.
//!
//! Events come late, twice and out of order. Each names its attempt; an event that no longer applies is ignored.
//!
//! Between the decision and its write another event may change the task. Each write is therefore a compare-and-set on
//! the attempt and on the states in which the decision holds: [`CONFIRMED_FROM`], [`TIMED_OUT_FROM`], [`FAILED_FROM`]
//! and [`SUCCEEDED_FROM`].

use std::fmt;

use crate::{
    ids::Attempt,
    queue::{QueuePolicy, Unroutable},
    retry::{RetryDecision, RetryPolicy},
    task::{
        Delivery, TaskState,
        report::{ReportStatus, ResultBody},
    },
    time::UnixMicros,
};

/// The states in which a confirm applies.
pub const CONFIRMED_FROM: &[TaskState] = &[TaskState::Dispatching];
/// The states in which a deadline applies.
pub const TIMED_OUT_FROM: &[TaskState] = &[TaskState::Delivered, TaskState::Running];
/// The states in which a failure of the newest attempt applies.
pub const FAILED_FROM: &[TaskState] = &[TaskState::Dispatching, TaskState::Delivered, TaskState::Running];
/// The states in which a success applies. That of an earlier attempt may come while the task waits for its next one.
pub const SUCCEEDED_FROM: &[TaskState] =
    &[TaskState::Dispatching, TaskState::Delivered, TaskState::Running, TaskState::Scheduled, TaskState::Ready];

/// The change that a confirm leads to. It applies in [`CONFIRMED_FROM`], and only to the confirmed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterConfirm {
    /// The task succeeded and is kept for `keep_ms`.
    Succeed { keep_ms: i64 },
    /// The message is with the broker. The outcome is open for `timeout_ms`, counted from the write.
    Deliver { timeout_ms: i64 },
}

/// Decides what the confirm of a publish leads to. A message forwarded as it came has no consumer that reports, so its
/// confirm finishes it under every policy.
pub fn after_confirm(delivery: &Delivery, policy: &QueuePolicy) -> AfterConfirm {
    if policy.settle.finishes_on_confirm() || delivery.envelope.is_some() {
        return AfterConfirm::Succeed { keep_ms: keep_ms(TaskState::Succeeded, policy) };
    }
    AfterConfirm::Deliver { timeout_ms: timeout_ms(delivery.timeout_ms, policy) }
}

/// How long a task that finished as `state` is kept.
pub const fn keep_ms(state: TaskState, policy: &QueuePolicy) -> i64 {
    match state {
        TaskState::Dead => policy.keep_dead_ms,
        _ => policy.keep_succeeded_ms,
    }
}

/// How long a consumer may be silent: the task's own timeout, or its queue's.
fn timeout_ms(own: Option<i64>, policy: &QueuePolicy) -> i64 {
    own.unwrap_or(policy.timeout_ms)
}

/// The rule for a returned message that was forwarded as it came. `delay_exchange` is the rule of its delay exchange;
/// one that is no longer configured has the default rule.
pub fn forwarded_unroutable(delay_exchange: Option<Unroutable>) -> Unroutable {
    delay_exchange.unwrap_or(Unroutable::SetAside)
}

/// A task at the moment of an event: its row, and its queue's policy for what the row leaves open.
#[derive(Clone, Copy, Debug)]
pub struct TaskSnapshot<'a> {
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
    /// The newest attempt was with its consumers before the queue's policy demanded reports.
    pub predates_reports: bool,
    pub policy: &'a QueuePolicy,
}

crate::labelled! {
    /// Why an attempt failed. History and metrics show the text.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum FailureReason {
        /// No report came until the deadline, although one was due.
        Timeout = "timeout",
        /// A consumer rejected the message without requeue, or the broker dead-lettered it.
        Rejected = "rejected",
        /// The consumer reported a failure.
        Failed = "failed",
        /// The consumer reported that another attempt is not worth it, or the message does not fit its queue's format.
        Discarded = "discarded",
        /// The broker had no queue for the message, or refused it.
        Unroutable = "unroutable",
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
    /// A consumer works on the task; the outcome is open for `timeout_ms`, counted from the write. A field that is
    /// `None` stays unchanged.
    Extend { timeout_ms: i64, progress: Option<i16>, worker: Option<String> },
    /// The event does not apply to the task as it stands: it came late, early or twice.
    Ignore,
}

impl Verdict {
    const SUCCEEDED: Self = Self::Archive { state: TaskState::Succeeded, reason: None };
}

impl TaskSnapshot<'_> {
    fn max_attempts(&self) -> i32 {
        self.max_attempts.unwrap_or(self.policy.max_attempts)
    }

    /// The consumer was silent until `deadline`. A deadline that a heartbeat has moved past `now` is ignored.
    pub fn after_deadline(&self, deadline: UnixMicros, now: UnixMicros, rand01: f64) -> Verdict {
        if deadline > now || !TIMED_OUT_FROM.contains(&self.state) {
            return Verdict::Ignore;
        }
        // Silence ends it whatever the policy is now: the stop was asked for while consumers reported.
        if self.stopping {
            return self.stopped(FailureReason::Timeout);
        }
        // A consumer that said it is at work reports, whatever the policy was.
        let reports = !self.predates_reports || self.state == TaskState::Running;
        if self.policy.settle.needs_report() && reports {
            return self.failed(FailureReason::Timeout, now, rand01, None);
        }
        // No consumer rejected the message. The policy may have changed after the publish.
        Verdict::SUCCEEDED
    }

    /// A consumer rejected a copy of `attempt` without requeue, or the broker dead-lettered it.
    pub fn after_rejection(&self, attempt: Attempt, now: UnixMicros, rand01: f64) -> Verdict {
        if !self.policy.settle.heeds_rejection() || !self.is_current(attempt) {
            return Verdict::Ignore;
        }
        self.failed(FailureReason::Rejected, now, rand01, None)
    }

    /// The broker has returned the publish of `attempt`, because no queue is bound for it, or has refused it, or it was
    /// not sent, because it does not fit its queue's format. Nothing of this copy was delivered, so no confirm of it
    /// comes. An earlier copy had no report or rejection either, for then the task would not be `dispatching`.
    /// `reason`: why the attempt fails where the rule makes it fail.
    pub fn after_return(&self, attempt: Attempt, rule: Unroutable, reason: FailureReason) -> Verdict {
        if !CONFIRMED_FROM.contains(&self.state) || attempt != self.attempt {
            return Verdict::Ignore;
        }
        match rule {
            Unroutable::Wait => Verdict::Ignore,
            Unroutable::Drop => Verdict::Archive { state: TaskState::Cancelled, reason: None },
            Unroutable::SetAside if self.stopping => self.stopped(reason),
            Unroutable::SetAside => Verdict::Archive { state: TaskState::Dead, reason: Some(reason) },
        }
    }

    /// A consumer reported on `attempt`. The success of any attempt since the task has its content and its budget
    /// finishes it; every other report counts only for the newest one. A report may overtake the confirm of its own
    /// publish. Where that confirm finishes the task, only a success counts before it.
    pub fn after_report(&self, attempt: Attempt, report: &ResultBody, now: UnixMicros, rand01: f64) -> Verdict {
        match report.status {
            ReportStatus::Succeeded if self.may_still_succeed(attempt) => Verdict::SUCCEEDED,
            ReportStatus::Succeeded => Verdict::Ignore,
            _ if !self.is_current(attempt) || self.awaits_final_confirm() => Verdict::Ignore,
            ReportStatus::Failed => self.failed(FailureReason::Failed, now, rand01, report.retry_in_ms),
            ReportStatus::Discard if self.stopping => self.stopped(FailureReason::Discarded),
            ReportStatus::Discard => {
                Verdict::Archive { state: TaskState::Dead, reason: Some(FailureReason::Discarded) }
            }
            ReportStatus::Running => Verdict::Extend {
                timeout_ms: timeout_ms(self.timeout_ms, self.policy),
                progress: report.progress,
                worker: report.worker.clone(),
            },
        }
    }

    /// Whether `attempt` is the newest one and is in flight.
    fn is_current(&self, attempt: Attempt) -> bool {
        FAILED_FROM.contains(&self.state) && attempt == self.attempt
    }

    /// Whether the confirm that is still to come finishes the task. An attempt that was delivered under another policy
    /// has no such confirm, and its reports count.
    fn awaits_final_confirm(&self) -> bool {
        CONFIRMED_FROM.contains(&self.state) && self.policy.settle.finishes_on_confirm()
    }

    fn may_still_succeed(&self, attempt: Attempt) -> bool {
        // An attempt before it was of the content that was replaced, or of a task that was dead.
        let is_of_it = attempt > self.attempts_base && attempt <= self.attempt;
        is_of_it && SUCCEEDED_FROM.contains(&self.state)
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
            RetryDecision::Retry { at } => Verdict::RetryAt { at, reason },
            RetryDecision::Bury => Verdict::Archive { state: TaskState::Dead, reason: Some(reason) },
        }
    }
}

#[cfg(test)]
mod tests;
