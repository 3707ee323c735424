//! The problems that answer a client when a store could not do what the request asked for.

use common::{ids::QueueName, wire::Problem};

use crate::{
    coordination::{self, EtcdOp},
    internal::{self, Origin},
    loops::submit::submitter::SubmitError,
    store::{
        Effect, Error, Fault, StoreOp,
        put::{Put, PutOutcome},
    },
};

/// `Retry-After` in seconds: about as long as a store takes to come back or to get out of the way.
const AGAIN_AFTER_S: u32 = 1;

/// The problem for a failed statement. Logs the failure; callers need not.
impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        failed(&error)
    }
}

/// The problem for a failed request to etcd. Logs the failure; callers need not.
impl From<coordination::Error> for Problem {
    fn from(error: coordination::Error) -> Self {
        uncoordinated(&error)
    }
}

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Self {
        unstored(&error)
    }
}

/// The problem for a submission that is not stored, or not known to be stored: the client has to send it again.
fn unstored(error: &SubmitError) -> Problem {
    let detail = match error {
        SubmitError::Refused(why) => {
            return Problem::unprocessable(format!("the database refuses the task, and will refuse it again: {why}"));
        }
        SubmitError::Unreplicated(why) => {
            let detail = format!("the task was not accepted, send it again later: {why}");
            return Problem::unavailable(detail).retry_after(AGAIN_AFTER_S);
        }
        SubmitError::Unavailable(_)
        | SubmitError::InDoubt { .. }
        | SubmitError::RulesChanged(_)
        | SubmitError::Elsewhere(..) => "the task could not be made durable and was not accepted; send it again",
        SubmitError::Unknown(_) => {
            "the outcome is unknown: the database stopped answering while it stored the task; if you send it again, \
             the task may exist twice"
        }
        SubmitError::Overloaded => {
            "too many submissions are waiting for the database; the task was not accepted, send it again"
        }
    };
    Problem::unavailable(detail).retry_after(AGAIN_AFTER_S)
}

/// Turns the outcome of a keyed submission into a problem where the task that has the key already forbids the
/// new one.
pub(crate) fn put(put: Put) -> Result<Put, Problem> {
    match put.outcome {
        PutOutcome::Created | PutOutcome::Existing | PutOutcome::Replaced => Ok(put),
        PutOutcome::Refused => Err(Problem::duplicate(put.id, put.state)),
        PutOutcome::Stale => Err(Problem::stale_version(put.id, put.version, put.state)),
        PutOutcome::Cycle => {
            Err(Problem::invalid_field("depends_on", "through its dependencies, the task would wait for itself"))
        }
        PutOutcome::Deep => Err(Problem::invalid_field(
            "depends_on",
            "more than 10000 tasks wait before this one, too many to check whether it would wait for itself",
        )),
        PutOutcome::Busy | PutOutcome::RulesChanged => {
            Err(unstored(&SubmitError::Unavailable("a task with this key is held".to_owned())))
        }
    }
}

/// The problem for a queue that the node does not know while it cannot read the queues.
pub(super) fn unread(queue: &QueueName) -> Problem {
    let detail =
        format!("the queues cannot be read, and this node does not know `{queue}` yet; nothing was changed, try again");
    Problem::unavailable(detail).retry_after(AGAIN_AFTER_S)
}

/// The problem for a stop while the node cannot read whether the consumers of the queue report.
pub(super) fn unsettled(queue: &QueueName) -> Problem {
    let detail = format!(
        "the queues cannot be read, so it is unknown whether consumers of `{queue}` report; nothing was changed, try \
         again"
    );
    Problem::unavailable(detail).retry_after(AGAIN_AFTER_S)
}

/// The problem for a new payload while the node cannot read the format of the task's queue, which has changed.
pub(super) fn unformatted(queue: &QueueName) -> Problem {
    let detail = format!(
        "the queues cannot be read, so it is unknown which payloads `{queue}` takes since its last change; nothing was \
         changed, try again"
    );
    Problem::unavailable(detail).retry_after(AGAIN_AFTER_S)
}

/// The problem for a schedule whose queue does not exist and could not be created.
pub(super) fn uncreated(queue: &QueueName) -> Problem {
    let detail = format!("queue `{queue}` could not be created, so the schedule was not set; try again");
    Problem::unavailable(detail).retry_after(AGAIN_AFTER_S)
}

/// The problem of a submission while the node cannot read a queue that has changed.
pub(super) fn outdated() -> Problem {
    let detail = "a queue has changed, and the queues cannot be read; nothing was changed, try again";
    Problem::unavailable(detail).retry_after(AGAIN_AFTER_S)
}

fn failed(error: &Error) -> Problem {
    let database = &error.database;
    if is_ours(error) {
        let op = error.op;
        let detail = match (error.fault(), error.effect) {
            (Fault::Data, _) => format!("database `{database}` refuses a value in {op}, and nothing was changed"),
            (_, Effect::Unknown) if !reads(op) => {
                format!("the answer of database `{database}` to {op} cannot be read; the request may have taken effect")
            }
            _ => format!("database `{database}` and this node disagree about {op}, and nothing was changed"),
        };
        return internal::problem(Origin::Database, Some(error), &detail);
    }
    tracing::debug!(error = error as &dyn std::error::Error, "request failed");
    let why = match error.fault() {
        Fault::Contention => "is too busy",
        Fault::Moved => "is handing shards over to another database",
        _ if error.is_schema_unproven() => {
            "is not used by this node, whose log says why: its schema or its cluster does not fit, or was not checked yet"
        }
        // An outage: `is_ours` has the others.
        _ => match error.sqlstate().as_deref() {
            // The archive has no partition yet for a retention as long as the queue's.
            Some("23514") => "has no place for finished tasks yet",
            Some("25006") => "is read-only",
            Some("53100") => "is full",
            Some("42501") => "denies this node a permission",
            Some("54000") => "takes no changes until a vacuum",
            _ => "cannot be reached",
        },
    };
    let detail = if reads(error.op) {
        format!("database `{database}` {why}; try again")
    } else if error.effect == Effect::Unknown {
        format!(
            "the outcome is unknown: database `{database}` stopped answering during the request; check, or send it \
             again"
        )
    } else {
        format!("database `{database}` {why}; nothing was changed, try again")
    };
    let problem = Problem::unavailable(detail).retry_after(AGAIN_AFTER_S);
    Problem { is_contention: error.is_contention(), ..problem }
}

fn uncoordinated(error: &coordination::Error) -> Problem {
    use coordination::Error;
    let detail = match error {
        Error::Unanswered { op: EtcdOp::DrainWrite | EtcdOp::SeenWrite, .. } => {
            "the outcome is unknown: etcd stopped answering during the request; check, or send it again"
        }
        Error::Unanswered { .. } => "etcd cannot be reached; nothing was changed, try again",
        Error::Contended { .. } => "other requests keep changing the same key; nothing was changed, try again",
        Error::Refused { .. } | Error::LeaseGone { .. } | Error::Endpoint { .. } => {
            return internal::problem(Origin::Etcd, Some(error), "etcd refuses the request");
        }
    };
    tracing::debug!(error = error as &dyn std::error::Error, "request failed");
    Problem::unavailable(detail).retry_after(AGAIN_AFTER_S)
}

/// Whether the fault is in the data or in Duetime itself, so that a repeated request will not help.
pub(super) fn is_ours(error: &Error) -> bool {
    matches!(error.fault(), Fault::Data | Fault::Bug)
}

/// Whether the statement changes nothing, whatever its outcome.
fn reads(op: StoreOp) -> bool {
    matches!(
        op,
        StoreOp::TaskRead
            | StoreOp::TaskFind
            | StoreOp::TaskList
            | StoreOp::TaskDependencies
            | StoreOp::TaskStanding
            | StoreOp::TaskCensus
            | StoreOp::TaskOutlook
            | StoreOp::DeadGroups
            | StoreOp::BulkLook
            | StoreOp::BulkQueue
            | StoreOp::ExportRead
            | StoreOp::QueueFind
            | StoreOp::QueueRead
            | StoreOp::QueuePage
            | StoreOp::QueueChanges
            | StoreOp::QueueRules
            | StoreOp::QueueCounts
            | StoreOp::QueueAwaited
            | StoreOp::QueueLook
            | StoreOp::QueueUsage
            | StoreOp::ScheduleRead
            | StoreOp::ScheduleNames
            | StoreOp::TokenBook
            | StoreOp::TokenList
            | StoreOp::AuditList
            | StoreOp::ShardRead
            | StoreOp::ShardMapRead
            | StoreOp::InboxFind
            | StoreOp::InboxStanding
            | StoreOp::MoveProbe
            | StoreOp::MoveList
            | StoreOp::MoveEndedList
            | StoreOp::DatabaseStandingList
            | StoreOp::ShardWeights
    )
}

#[cfg(test)]
mod tests {
    use common::ids::DatabaseName;

    use super::*;

    fn error(op: StoreOp, effect: Effect) -> Error {
        Error { database: DatabaseName::new("east"), op, effect, source: None }
    }

    #[test]
    fn nobody_guesses_whether_a_write_was_done() {
        let unknown = failed(&error(StoreOp::TaskCancel, Effect::Unknown));
        assert_eq!((unknown.status, unknown.retry_after_s), (503, Some(AGAIN_AFTER_S)));
        assert!(unknown.detail.contains("the outcome is unknown") && unknown.detail.contains("`east`"));
        let known = failed(&error(StoreOp::TaskCancel, Effect::None));
        assert!(known.detail.contains("nothing was changed"), "{known}");
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_an_error_of_ours_with_an_id() {
        for op in [StoreOp::TaskList, StoreOp::TaskCancel] {
            let counted = internal::count(Origin::Database);
            let problem = failed(&Error::unreadable(DatabaseName::new("east"), op));
            assert_eq!((problem.status, problem.slug(), problem.retry_after_s), (500, "internal", None), "{op}");
            assert!(!problem.detail.contains("cannot be reached"), "{problem}");
            assert_eq!(problem.detail.contains("may have taken effect"), op == StoreOp::TaskCancel, "{problem}");
            let id = problem.error_id.expect("an id");
            assert!(problem.detail.contains(&id), "{} has {id}", problem.detail);
            assert!(internal::count(Origin::Database) > counted);
        }
    }

    #[test]
    fn a_look_that_failed_has_done_nothing_whatever_became_of_it() {
        for op in [StoreOp::TaskRead, StoreOp::QueueFind, StoreOp::ShardMapRead, StoreOp::TokenBook] {
            let problem = failed(&error(op, Effect::Unknown));
            assert_eq!(problem.status, 503);
            assert!(!problem.detail.contains("the outcome is unknown"), "{op}: {problem}");
        }
    }
}
