//! The lines of a history file.

use common::{
    ids::{Attempt, Epoch, ShardId, TaskId},
    time::UnixMicros,
};
use serde::Serialize;

/// A step and the moment at which this node saw it, on the node's own clock.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Line {
    pub at: UnixMicros,
    #[serde(flatten)]
    pub step: Step,
}

/// A step of a task or of an ownership. A step that PostgreSQL or RabbitMQ takes is recorded once its answer is known,
/// except `published`, which is recorded before the message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// The task's row is durable. A repeated submission repeats the line.
    Submitted {
        task: TaskId,
    },
    /// `now`: the database's time of the claim, where the node knows it.
    Claimed {
        task: TaskId,
        attempt: Attempt,
        epoch: Epoch,
        #[serde(skip_serializing_if = "Option::is_none")]
        now: Option<UnixMicros>,
    },
    /// Claimed before, of unknown outcome, and about to be published again.
    Rescued {
        task: TaskId,
        attempt: Attempt,
        epoch: Epoch,
        #[serde(skip_serializing_if = "Option::is_none")]
        now: Option<UnixMicros>,
    },
    /// The message is about to be sent.
    Published {
        task: TaskId,
        attempt: Attempt,
    },
    Confirmed {
        task: TaskId,
        attempt: Attempt,
    },
    /// The message does not fit its queue's format, so it is not sent.
    Unfit {
        task: TaskId,
        attempt: Attempt,
    },
    /// The broker gave the message back: no queue is bound for it.
    Returned {
        task: TaskId,
        attempt: Attempt,
    },
    Nacked {
        task: TaskId,
        attempt: Attempt,
    },
    /// The outcome of a publish is unknown.
    Unknown {
        task: TaskId,
        attempt: Attempt,
    },
    /// The attempt failed, and another one follows.
    Failed {
        task: TaskId,
        attempt: Attempt,
    },
    /// The task went to the archive. `outcome`: the final state.
    Finished {
        task: TaskId,
        attempt: Attempt,
        outcome: &'static str,
    },
    /// `attempt`: the attempts claimed before the cancel.
    Cancelled {
        task: TaskId,
        attempt: Attempt,
    },
    /// The task expired before a claim.
    Expired {
        task: TaskId,
    },
    /// A dead task has a new budget of attempts.
    Revived {
        task: TaskId,
    },
    /// The task no longer waits for others.
    Released {
        task: TaskId,
    },
    ShardAcquired {
        shard: ShardId,
        epoch: Epoch,
    },
    ShardReleased {
        shard: ShardId,
        epoch: Epoch,
    },
    /// The outcome of a statement is unknown: it may have been executed, or may be later.
    Doubt {
        op: &'static str,
    },
}
