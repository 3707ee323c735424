//! The one table of task states and what may follow what.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::Attempt;

/// Where a task stands. Only [`transition`] leads from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Depends on tasks that have not finished.
    Waiting,
    /// Waits for its due time, also between retries.
    Scheduled,
    /// Due, but its queue is paused, full or at its limit.
    Ready,
    /// Claimed by an owner, if due at once by its very insert; publish not yet confirmed. Published again in place until it is.
    Dispatching,
    /// The broker confirmed; outcome open until the deadline.
    Delivered,
    /// A consumer said it started; heartbeats move the deadline.
    Running,
    Succeeded,
    Dead,
    Cancelled,
    Superseded,
    Expired,
}

impl TaskState {
    /// In the order of the SQL enum.
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

    /// The state of that label, `None` when there is none.
    pub fn parse(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.text() == label)
    }

    /// Nothing happens to the task any more by itself. Kept for the retention time, then dropped.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Dead | Self::Cancelled | Self::Superseded | Self::Expired)
    }

    /// Claimed and not finished: a copy is or may be with the broker or a consumer.
    pub const fn is_in_flight(self) -> bool {
        matches!(self, Self::Dispatching | Self::Delivered | Self::Running)
    }

    /// Not claimed, not finished: due time, payload and the rest may still be changed.
    pub const fn may_be_changed(self) -> bool {
        matches!(self, Self::Waiting | Self::Scheduled | Self::Ready)
    }

    pub const fn may_be_claimed(self) -> bool {
        matches!(self, Self::Scheduled | Self::Ready)
    }

    /// The same states as those that may be changed. What the caller is promised is [`cancel_outcome`].
    pub const fn may_be_cancelled(self) -> bool {
        self.may_be_changed()
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// What can happen to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// Everything it depends on has succeeded.
    Unblock,
    /// Due, but there is no room for it: it waits for room instead of a moment.
    Hold,
    /// Its due time or its content was changed by hand, or it is to run now.
    Move,
    /// An owner takes it to publish it.
    Claim,
    /// The publish was not confirmed, or its owner is gone: published again in place, same attempt.
    Rescue,
    /// The broker confirmed, and the outcome stays open.
    Deliver,
    /// A consumer says it works on it.
    Start,
    /// The attempt did what it was for; with `settle = confirm`, the confirm itself.
    Succeed,
    /// The attempt failed and another one is left.
    Retry,
    /// The attempt failed and none is left, or it was discarded.
    Bury,
    /// Cancelled before any claim of this attempt.
    Cancel,
    /// The consumer that ran it stopped because it was told to.
    Stop,
    /// A newer version took its place.
    Supersede,
    /// Not claimed before it expired.
    Expire,
    /// A dead task is given new attempts by hand.
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

/// That event means nothing in that state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {state} task cannot {event}")]
pub struct Refused {
    pub state: TaskState,
    pub event: Event,
}

/// The state after `event`.
///
/// | state | meaning | next |
/// |---|---|---|
/// | `waiting` | depends on tasks that have not finished | scheduled, cancelled, superseded, expired |
/// | `scheduled` | waits for its due time (also between retries) | dispatching, ready, cancelled, superseded, expired |
/// | `ready` | due, but its queue is paused, full or at its limit | dispatching, scheduled (moved by hand), cancelled, superseded, expired |
/// | `dispatching` | claimed by an owner; publish not yet confirmed; stays here, published again in place, until it is | delivered, succeeded, and on an early result or rejection whatever that means: running, scheduled, dead, cancelled |
/// | `delivered` | broker confirmed; outcome open until the deadline | running, succeeded, scheduled (retry), dead, cancelled |
/// | `running` | a consumer said it started; heartbeats move the deadline | succeeded, scheduled (retry), dead, cancelled |
/// | `succeeded` `dead` `cancelled` `superseded` `expired` | final; kept for the retention time, then dropped | dead -> scheduled by hand |
///
/// Besides: the success of an earlier attempt that arrives late finishes a task that is `scheduled` or `ready` for its
/// next one. Nothing leads from a claimed state to one where the task could be cancelled as if it had never been
/// claimed: what may be promised then is [`cancel_outcome`]'s to say, by the attempt.
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

/// What a cancel that succeeded may promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelOutcome {
    /// Never claimed: nothing is delivered afterwards.
    Cancelled,
    /// Between two attempts: no other one starts, but a copy of an earlier one may still be with the broker.
    NoFurtherAttempts,
    /// Out, and asked to stop: its consumer hears of it with its next sign of life.
    Stopping,
}

/// Too late to cancel: claimed, or finished in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task is {state}")]
pub struct InFlight {
    pub state: TaskState,
}

/// What a cancel of a task in `state` that has been claimed `attempt` times may answer.
///
/// The number of attempts decides, not the state: it never goes back, so a task that was once claimed is never again
/// promised to be undelivered. To cancel a cancelled task again repeats the first answer.
pub fn cancel_outcome(state: TaskState, attempt: Attempt) -> Result<CancelOutcome, InFlight> {
    if !state.may_be_cancelled() && state != TaskState::Cancelled {
        return Err(InFlight { state });
    }
    if attempt > Attempt::NONE { Ok(CancelOutcome::NoFurtherAttempts) } else { Ok(CancelOutcome::Cancelled) }
}

#[cfg(test)]
mod tests;
