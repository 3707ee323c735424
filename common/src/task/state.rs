//! The states of a task, and the promise of a cancel. The table of transitions is [`super::oracle`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::Attempt;

crate::labelled! {
    /// The state of a task.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum TaskState {
        /// Depends on tasks that have not succeeded.
        Waiting = "waiting",
        /// Waits for its due time, also between retries.
        Scheduled = "scheduled",
        /// Due, but its queue is paused, full or at its limit.
        Ready = "ready",
        /// Claimed by an owner, or by its own insert if due at once; publish not yet confirmed. Published again in
        /// place until it is.
        Dispatching = "dispatching",
        /// The broker confirmed; the outcome is open until the deadline.
        Delivered = "delivered",
        /// A consumer reported that it started; heartbeats move the deadline.
        Running = "running",
        Succeeded = "succeeded",
        Dead = "dead",
        Cancelled = "cancelled",
        Superseded = "superseded",
        Expired = "expired",
    }
}

impl TaskState {
    /// Whether the task is finished and does not change by itself any more. It is kept for the retention time, then
    /// dropped.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Dead | Self::Cancelled | Self::Superseded | Self::Expired)
    }

    /// Whether the task is claimed and not finished: a copy is or may be with the broker or a consumer.
    pub const fn is_in_flight(self) -> bool {
        matches!(self, Self::Dispatching | Self::Delivered | Self::Running)
    }

    /// Whether the task is neither claimed nor finished, so that its due time, payload and the rest may still change.
    pub const fn may_be_changed(self) -> bool {
        matches!(self, Self::Waiting | Self::Scheduled | Self::Ready)
    }

    /// The same states as those that may be changed. [`cancel_outcome`] says what a cancel promises.
    pub const fn may_be_cancelled(self) -> bool {
        self.may_be_changed()
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The promise of a successful cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelOutcome {
    /// The task was never claimed: nothing is delivered afterwards.
    Cancelled,
    /// The task is between two attempts: no other attempt starts, but a copy of an earlier one may still be with the
    /// broker.
    NoFurtherAttempts,
    /// The task is in flight and its consumer is asked to stop: the answer to its next report or heartbeat says so.
    Stopping,
}

/// The cancel came too late: the task is claimed, or finished in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task is {state}")]
pub struct InFlight {
    pub state: TaskState,
}

/// The answer to a cancel of a task in `state` that has been claimed `attempt` times.
///
/// The number of attempts decides, not the state. It never decreases, so a task that was once claimed is never again
/// promised to be undelivered. A second cancel of a cancelled task repeats the first answer.
pub fn cancel_outcome(state: TaskState, attempt: Attempt) -> Result<CancelOutcome, InFlight> {
    if !state.may_be_cancelled() && state != TaskState::Cancelled {
        return Err(InFlight { state });
    }
    if attempt > Attempt::NONE { Ok(CancelOutcome::NoFurtherAttempts) } else { Ok(CancelOutcome::Cancelled) }
}

#[cfg(test)]
mod tests;
