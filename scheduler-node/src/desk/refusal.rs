//! What a client is told when a store could not do what it was asked.

use common::wire::Problem;

use crate::{
    loops::submitter::Unstored,
    store::{Effect, Error, StoreOp},
};

/// When to ask again, in seconds: about as long as a store takes to come back or to get out of the way.
const AGAIN_AFTER_S: u32 = 1;

/// Not stored, or not known to be: the client has to send it again.
pub(super) fn unstored(error: &Unstored) -> Problem {
    let detail = match error {
        Unstored::Unavailable(_) => "the task could not be made durable and was not accepted; send it again",
        Unstored::Unknown(_) => {
            "nobody knows whether the task was stored: the database stopped answering at the wrong moment; if it is sent again it \
             may be there twice"
        }
        Unstored::Overloaded => "too many submissions are waiting for the database; the task was not accepted, send it again",
    };
    Problem::unavailable(detail).retry_after(AGAIN_AFTER_S)
}

/// A statement that failed. Logged here, once.
pub(super) fn failed(error: &Error) -> Problem {
    let database = &error.database;
    if reads(error.op) {
        return match answered(error) {
            true => broken(error),
            false => unreachable(format!("database `{database}` cannot be reached at the moment"), error),
        };
    }
    if error.effect == Effect::Unknown {
        let detail = format!(
            "nobody knows whether it was done: database `{database}` stopped answering at the wrong moment; look, or ask again"
        );
        return unreachable(detail, error);
    }
    if error.is_contention() {
        return unreachable(format!("database `{database}` is too busy; it was not done"), error);
    }
    match answered(error) {
        true => broken(error),
        false => unreachable(format!("database `{database}` cannot be reached at the moment; it was not done"), error),
    }
}

/// The server understood the statement and refused it: trying again will not help.
fn answered(error: &Error) -> bool {
    // 57: shutting down, starting up; 53: out of connections, memory or disk; 08: the connection.
    let passing = |code: &str| ["08", "53", "57"].iter().any(|class| code.starts_with(class));
    error.sqlstate().is_some_and(|code| !passing(&code)) && !error.is_contention()
}

fn unreachable(detail: String, error: &Error) -> Problem {
    tracing::debug!(error = error as &dyn std::error::Error, "a request was not done");
    Problem::unavailable(detail).retry_after(AGAIN_AFTER_S)
}

fn broken(error: &Error) -> Problem {
    tracing::error!(error = error as &dyn std::error::Error, "the database refuses a statement");
    Problem::internal(format!("database `{}` refuses the statement {}; the log of this node says why", error.database, error.op))
}

/// Statements that change nothing, whatever becomes of them.
fn reads(op: StoreOp) -> bool {
    matches!(
        op,
        StoreOp::TaskRead
            | StoreOp::TaskList
            | StoreOp::QueueRevision
            | StoreOp::QueueRead
            | StoreOp::QueueCounts
            | StoreOp::ShardRead
    )
}
