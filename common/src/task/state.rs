//! The one table of task states and their transitions.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::Attempt;

/// The state of a task. Only [`transition`] leads from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Depends on tasks that have not succeeded.
    Waiting,
    /// Waits for its due time, also between retries.
    Scheduled,
    /// Due, but its queue is paused, full or at its limit.
    Ready,
    /// Claimed by an owner, or by its own insert if due at once; publish not yet confirmed. Published again in place
    /// until it is.
    Dispatching,
    /// The broker confirmed; the outcome is open until the deadline.
    Delivered,
    /// A consumer reported that it started; heartbeats move the deadline.
    Running,
    Succeeded,
    Dead,
    Cancelled,
    Superseded,
    Expired,
}

impl TaskState {
    /// All states, in the order of the SQL enum.
    pub const ALL: [Self; 11] = [
        Self::Waiting,
        Self::Scheduled,
        Self::Ready,
        Self::Dispatching,
        Self::Delivered,
        Self::Running,
        Self::Succeeded,
        Self::Dead,
        Self::Cancelled,
        Self::Superseded,
        Self::Expired,
    ];

    /// The label in SQL, JSON, metrics and logs.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Scheduled => "scheduled",
            Self::Ready => "ready",
            Self::Dispatching => "dispatching",
            Self::Delivered => "delivered",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Superseded => "superseded",
            Self::Expired => "expired",
        }
    }

    /// The state with that label, or `None`.
    pub fn parse(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.text() == label)
    }

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

    pub const fn may_be_claimed(self) -> bool {
        matches!(self, Self::Scheduled | Self::Ready)
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

/// An event in a task's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// Everything that the task depends on has succeeded.
    Unblock,
    /// The task is due, but there is no room: from now on it waits for room instead of a moment.
    Hold,
    /// A caller changed its due time or its content, or wants it to run now.
    Move,
    /// An owner claims it, to publish it.
    Claim,
    /// The publish was not confirmed, or its owner is gone: it is published again in place, same attempt.
    Rescue,
    /// The broker confirmed, and the outcome stays open.
    Deliver,
    /// A consumer reports that it works on the task.
    Start,
    /// The attempt succeeded; with `settle = confirm`, by the confirm itself.
    Succeed,
    /// The attempt failed and another one is left.
    Retry,
    /// The attempt failed and none is left, or it was discarded.
    Bury,
    /// The task is cancelled before any claim of this attempt.
    Cancel,
    /// The consumer that ran the task stopped on request.
    Stop,
    /// A newer version replaced the task.
    Supersede,
    /// The task expired before a claim.
    Expire,
    /// A caller gives a dead task new attempts.
    Revive,
}

impl Event {
    pub const ALL: [Self; 15] = [
        Self::Unblock,
        Self::Hold,
        Self::Move,
        Self::Claim,
        Self::Rescue,
        Self::Deliver,
        Self::Start,
        Self::Succeed,
        Self::Retry,
        Self::Bury,
        Self::Cancel,
        Self::Stop,
        Self::Supersede,
        Self::Expire,
        Self::Revive,
    ];

    pub const fn text(self) -> &'static str {
        match self {
            Self::Unblock => "unblock",
            Self::Hold => "hold",
            Self::Move => "move",
            Self::Claim => "claim",
            Self::Rescue => "rescue",
            Self::Deliver => "deliver",
            Self::Start => "start",
            Self::Succeed => "succeed",
            Self::Retry => "retry",
            Self::Bury => "bury",
            Self::Cancel => "cancel",
            Self::Stop => "stop",
            Self::Supersede => "supersede",
            Self::Expire => "expire",
            Self::Revive => "revive",
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The event is not allowed in the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {state} task does not allow `{event}`")]
pub struct Refused {
    pub state: TaskState,
    pub event: Event,
}

/// The state after `event`.
///
/// | state | meaning | next |
/// |---|---|---|
/// | `waiting` | depends on tasks that have not succeeded | scheduled, cancelled, superseded, expired |
/// | `scheduled` | waits for its due time | dispatching, ready, cancelled, superseded, expired |
/// | `ready` | due, waits for room | dispatching, scheduled (moved by hand), cancelled, superseded, expired |
/// | `dispatching` | claimed, publish not confirmed | delivered, succeeded, running, scheduled, dead, cancelled |
/// | `delivered` | outcome open until the deadline | running, succeeded, scheduled (retry), dead, cancelled |
/// | `running` | heartbeats move the deadline | succeeded, scheduled (retry), dead, cancelled |
/// | `succeeded` `dead` `cancelled` `superseded` `expired` | final | `dead` -> scheduled by hand |
///
/// - `scheduled` also covers the time between retries.
/// - `ready`: the queue is paused, full or at its limit.
/// - `dispatching`: an owner has claimed the task. It stays here, published again in place, until the publish is
///   confirmed. An early result or rejection leads to `running`, `scheduled`, `dead` or `cancelled`, as it would
///   after the confirm.
/// - `delivered`: the broker confirmed. `running`: a consumer reported that it started.
/// - A final state is kept for the retention time, then dropped.
///
/// The late success of an earlier attempt also finishes a task that is `scheduled` or `ready` for its next one. No
/// transition leads from a claimed state to one where the task could be cancelled as if it had never been claimed.
/// [`cancel_outcome`] decides by the attempt what a cancel may promise then.
pub fn transition(state: TaskState, event: Event) -> Result<TaskState, Refused> {
    use Event as E;
    use TaskState as S;
    let next = match (state, event) {
        (S::Waiting, E::Unblock) => S::Scheduled,
        (S::Waiting, E::Move) => S::Waiting,
        (S::Scheduled, E::Hold) => S::Ready,
        (S::Scheduled | S::Ready, E::Move) => S::Scheduled,
        (S::Scheduled | S::Ready, E::Claim) => S::Dispatching,
        (S::Waiting | S::Scheduled | S::Ready, E::Supersede) => S::Superseded,
        (S::Scheduled | S::Ready, E::Succeed) => S::Succeeded,
        (S::Waiting | S::Scheduled | S::Ready, E::Cancel) => S::Cancelled,
        (S::Waiting | S::Scheduled | S::Ready, E::Expire) => S::Expired,
        (S::Dispatching, E::Rescue) => S::Dispatching,
        (S::Dispatching, E::Deliver) => S::Delivered,
        (S::Dispatching | S::Delivered | S::Running, E::Start) => S::Running,
        (S::Dispatching | S::Delivered | S::Running, E::Succeed) => S::Succeeded,
        (S::Dispatching | S::Delivered | S::Running, E::Retry) => S::Scheduled,
        (S::Dispatching | S::Delivered | S::Running, E::Bury) => S::Dead,
        (S::Dispatching | S::Delivered | S::Running, E::Stop) => S::Cancelled,
        (S::Dead, E::Revive) => S::Scheduled,
        _ => return Err(Refused { state, event }),
    };
    Ok(next)
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
