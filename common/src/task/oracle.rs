//! The one table of transitions between task states: the oracle of the tests.
//!
//! The product changes a state in SQL, by compare-and-set on state and attempt, as [`super::verdict`] and the requests
//! of callers decide. The tests run each statement and each verdict against this table, in every state.

use std::fmt;

use super::TaskState;

crate::labelled! {
    /// An event in a task's life.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Event {
        /// Everything that the task depends on has succeeded.
        Unblock = "unblock",
        /// The task is due, but there is no room: from now on it waits for room instead of a moment.
        Hold = "hold",
        /// A caller changed its due time or its content, or wants it to run now.
        Move = "move",
        /// An owner claims it, to publish it.
        Claim = "claim",
        /// The publish was not confirmed, or its owner is gone: it is published again in place, same attempt.
        Rescue = "rescue",
        /// The broker confirmed, and the outcome stays open.
        Deliver = "deliver",
        /// A consumer reports that it works on the task.
        Start = "start",
        /// The attempt succeeded; with `settle = confirm`, by the confirm itself.
        Succeed = "succeed",
        /// The attempt failed and another one is left.
        Retry = "retry",
        /// The attempt failed and none is left, or it was discarded.
        Bury = "bury",
        /// The task is cancelled before any claim of this attempt.
        Cancel = "cancel",
        /// The consumer that ran the task stopped on request.
        Stop = "stop",
        /// A newer version replaced the task.
        Supersede = "supersede",
        /// The task expired before a claim.
        Expire = "expire",
        /// A caller gives a dead task new attempts.
        Revive = "revive",
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
/// [`cancel_outcome`](super::state::cancel_outcome) decides by the attempt what a cancel may promise then.
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

#[cfg(test)]
mod tests;
