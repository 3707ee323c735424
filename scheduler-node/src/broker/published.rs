//! The outcome of one message that was to be published.

use std::time::Instant;

use common::{
    ids::{Attempt, TaskId},
    outcome::Outcome,
};

/// The reason why the broker did not take a message. It does not mean that no queue has the message: of several
/// queues behind one exchange, some may have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// No queue was bound for the route.
    Unroutable,
    /// A queue was full, or could not keep the message.
    Nacked,
    /// The broker closed the channel over this message, and would do so over each copy. It is no fault of the route.
    Unacceptable { reason: String },
}

#[derive(Clone, Debug)]
pub struct Published {
    pub id: TaskId,
    pub attempt: Attempt,
    /// The time at which the message was handed to the socket. `None` when it certainly was not, or when that
    /// is unknown.
    pub sent_at: Option<Instant>,
    pub outcome: Outcome<(), NotTaken>,
}
