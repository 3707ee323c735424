//! The errors of statements, and what each says about the statement's effect.

use std::{borrow::Cow, sync::Arc};

use common::ids::DatabaseName;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use super::StoreOp;

#[derive(Clone, Debug, thiserror::Error)]
#[error("{op} in database `{database}`: {effect}")]
pub struct Error {
    pub database: DatabaseName,
    pub op: StoreOp,
    pub effect: Effect,
    #[source]
    pub source: Option<Arc<sqlx::Error>>,
}

/// The effect of a failed statement, as far as this node can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Effect {
    /// The database refused the statement or never received it. Nothing has changed.
    #[error("it failed without effect")]
    None,
    /// The statement may have been done. The node does not guess: it looks again at every row concerned.
    #[error("the outcome is unknown")]
    Unknown,
}

/// The kind of a failure. A loop uses it to decide whether to try again, and a client's answer depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The database is away, full, starting, stopping or read-only, has no partition for a row yet, or denies this node
    /// a permission. The same statement may pass later.
    Outage,
    /// Another transaction was in the way, or the statement ran out of its time. The same statement may pass now.
    Contention,
    /// The task's shard is in another database by now. The same statement passes there.
    Moved,
    /// The database refuses a value that the statement carries (SQLSTATE classes 21, 22, 23, 44, 54), and always
    /// will. The other rows of the same batch are not at fault.
    Data,
    /// Code and schema disagree, or an answer could not be read. Trying again does not
    /// help; a person has to fix it.
    Bug,
}

/// The SQLSTATE that the database raises for a write to a shard that it does not have (any more).
const MOVED: &str = "DT001";

/// The SQLSTATE of the server's answer. `None`: the error is not the server's.
pub(super) fn sqlstate(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error()?.code()
}

impl Fault {
    fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(answer) => {
                let fault = answer.code().map_or(Self::Bug, |code| Self::of_sqlstate(&code));
                let may_pass_later = |answer: &PgDatabaseError| is_server_wide(answer) || lacks_partition(answer);
                let is_outage = answer.try_downcast_ref().is_some_and(may_pass_later);
                if fault != Self::Contention && is_outage { Self::Outage } else { fault }
            }
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Configuration(_) => Self::Outage,
            sqlx::Error::Encode(_) => Self::Data,
            _ => Self::Bug,
        }
    }

    /// Classifies an SQLSTATE by the classes of PostgreSQL's manual, appendix A.
    fn of_sqlstate(code: &str) -> Self {
        match code {
            // The statement hit statement_timeout or transaction_timeout, could not get a lock, or had a plan from
            // before a migration.
            "57014" | "25P04" | "55P03" | "55006" | "0A000" => Self::Contention,
            MOVED => Self::Moved,
            // The server has become a standby.
            "25006" => Self::Outage,
            _ => match code.get(..2).unwrap_or_default() {
                "40" => Self::Contention,
                // Connection, credentials, missing database, resources, an operator's intervention, the system.
                "08" | "28" | "3D" | "53" | "57" | "58" => Self::Outage,
                "21" | "22" | "23" | "44" | "54" | "P0" => Self::Data,
                _ => Self::Bug,
            },
        }
    }
}

/// Whether the server answers every statement like this at the moment. The SQLSTATE does not tell: 54000 may also be
/// about a large value, 42501 about a policy for rows, and 55000 about almost anything.
fn is_server_wide(answer: &PgDatabaseError) -> bool {
    // The server ended the session or did not begin one, as while the database allows no connections.
    let has_ended_session = matches!(answer.severity(), PgSeverity::Fatal | PgSeverity::Panic);
    // The server has no transaction ids until a vacuum, or this role lacks a privilege.
    let routines = ["GetNewTransactionId", "GetNewMultiXactId", "aclcheck_error", "aclcheck_error_col"];
    has_ended_session || answer.routine().is_some_and(|routine| routines.contains(&routine))
}

/// Whether the row has no partition to go to at the moment. Until the archiver has made it, the archive has none for a
/// queue that has just got a longer retention. The SQLSTATE, 23514, does not tell: a trigger of an operator may raise
/// it as well, to refuse a row for good, and neither error names a constraint.
fn lacks_partition(answer: &PgDatabaseError) -> bool {
    // The second speaks of a default partition beside which the row's own was made a moment ago.
    let routines = ["ExecFindPartition", "ExecPartitionCheckEmitError"];
    answer.routine().is_some_and(|routine| routines.contains(&routine))
}

impl Effect {
    pub(super) fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(answer) => {
                let severity = answer.try_downcast_ref().map(PgDatabaseError::severity);
                Self::of_answer(answer.code().as_deref().unwrap_or_default(), severity)
            }
            sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::Configuration(_)
            | sqlx::Error::RowNotFound
            | sqlx::Error::Encode(_) => Self::None,
            _ => Self::Unknown,
        }
    }

    /// The server answered with an error, so the statement was rolled back. Errors 08xxx, 57P0x and 25P04 end the
    /// session, and then the lost answer may be that of a commit. A panic may come when the commit is in the log
    /// already and the next segment is not; then the server commits it when it recovers.
    fn of_answer(code: &str, severity: Option<PgSeverity>) -> Self {
        let may_be_a_commit = ["08", "57P", "25P04"].iter().any(|class| code.starts_with(class));
        if may_be_a_commit || severity == Some(PgSeverity::Panic) { Self::Unknown } else { Self::None }
    }
}

impl Error {
    /// The SQLSTATE of the server's answer, if it answered.
    pub fn sqlstate(&self) -> Option<String> {
        match self.source.as_deref()? {
            sqlx::Error::Database(answer) => answer.code().map(|code| code.to_string()),
            _ => None,
        }
    }

    /// Whether another unfinished task has this key and version.
    pub fn is_key_taken(&self) -> bool {
        let Some(sqlx::Error::Database(answer)) = self.source.as_deref() else { return false };
        answer.is_unique_violation() && answer.constraint() == Some("task_key_version")
    }

    /// Whether no statement was sent, because the node has not found the schema and the cluster of the database to fit.
    pub fn is_schema_unproven(&self) -> bool {
        matches!(self.source.as_deref(), Some(sqlx::Error::Configuration(why)) if why.is::<super::SchemaUnproven>())
    }

    /// The kind of the failure. No answer within the deadline is an outage.
    pub fn fault(&self) -> Fault {
        self.source.as_deref().map_or(Fault::Outage, Fault::of)
    }

    /// The reason in the database's own words.
    pub fn reason(&self) -> String {
        match self.source.as_deref() {
            Some(sqlx::Error::Database(answer)) => answer.message().to_owned(),
            Some(other) => other.to_string(),
            None => "the database did not answer in time".to_owned(),
        }
    }

    /// Whether two statements took locks in opposite order, or one waited too long for a lock. The
    /// same statement may well pass now.
    pub fn is_contention(&self) -> bool {
        self.fault() == Fault::Contention
    }

    /// Whether the statement waited for a lock for the longest time that it may (`lock_timeout`).
    pub fn has_waited_in_vain(&self) -> bool {
        self.sqlstate().as_deref() == Some("55P03")
    }

    /// Whether the server ended the statement because it took too long.
    pub fn is_out_of_time(&self) -> bool {
        self.sqlstate().as_deref() == Some("57014")
    }

    /// Whether the node ended its wait for an answer: after the deadline, or because the server is not the writer any
    /// more. A connection that broke has a source.
    pub const fn is_unanswered(&self) -> bool {
        self.source.is_none()
    }

    /// Whether the server refused the statement because its time window was not open (`duetime.out_of_time` in SQL), or
    /// because of another serialization failure. [`Self::is_out_of_time`] is the statement timeout.
    pub fn is_outside_window(&self) -> bool {
        self.sqlstate().as_deref() == Some("40001")
    }

    /// Whether the archive has no partition for a row yet. The archiver makes it within a second or two.
    pub fn lacks_partition(&self) -> bool {
        let Some(sqlx::Error::Database(answer)) = self.source.as_deref() else { return false };
        answer.try_downcast_ref().is_some_and(lacks_partition)
    }

    /// Whether the server could not read a block (58030) or a file (58P01) for this statement. It counts as an outage,
    /// but may concern one page or one index only. A session that cannot begin or go on says nothing about those.
    pub fn is_unreadable_file(&self) -> bool {
        let Some(sqlx::Error::Database(answer)) = self.source.as_deref() else { return false };
        let is_of_statement =
            answer.try_downcast_ref().is_some_and(|answer: &PgDatabaseError| answer.severity() == PgSeverity::Error);
        is_of_statement && matches!(answer.code().as_deref(), Some("58030" | "58P01"))
    }

    /// Whether a row of the statement may be at fault as well as the schema or the server: what looks like a bug, and
    /// a block or a file that cannot be read. Neighbours that pass tell them apart.
    pub fn puts_rows_in_doubt(&self) -> bool {
        self.fault() == Fault::Bug || self.is_unreadable_file()
    }

    /// Whether the statement may pass without some of its rows, though none is refused: those in doubt, or those that
    /// the archive has no partition for.
    pub fn may_concern_some_rows(&self) -> bool {
        self.puts_rows_in_doubt() || self.lacks_partition()
    }

    /// Whether a row of the statement is, or may be, at fault.
    pub fn may_blame_a_row(&self) -> bool {
        self.fault() == Fault::Data || self.puts_rows_in_doubt()
    }

    /// Whether this failure of another statement on one row, after `before`, shows that the row is at fault and not the
    /// server.
    pub fn blames_row_after(&self, before: &Self) -> bool {
        self.fault() == Fault::Data || (self.puts_rows_in_doubt() && before.puts_rows_in_doubt())
    }

    /// Whether the statement concerns a shard that is in another database by now. It changed nothing.
    pub fn is_moved(&self) -> bool {
        self.fault() == Fault::Moved
    }
}

#[cfg(test)]
impl Error {
    /// The error for an answer with a NULL in a column that cannot have one.
    pub(crate) fn unreadable(database: DatabaseName, op: StoreOp) -> Self {
        let source = sqlx::Error::ColumnDecode { index: "hit".into(), source: "unexpected null".into() };
        Self { database, op, effect: Effect::of(&source), source: Some(Arc::new(source)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_the_end_of_a_commit_is_unknown() {
        let error = Some(PgSeverity::Error);
        for (code, severity, effect) in [
            ("23505", error, Effect::None),
            ("57014", error, Effect::None),
            ("53100", error, Effect::None),
            ("53300", Some(PgSeverity::Fatal), Effect::None),
            ("57P01", Some(PgSeverity::Fatal), Effect::Unknown),
            ("53100", Some(PgSeverity::Panic), Effect::Unknown),
            ("58030", Some(PgSeverity::Panic), Effect::Unknown),
        ] {
            assert_eq!(Effect::of_answer(code, severity), effect, "{code} {severity:?}");
        }
    }

    #[test]
    fn a_refusal_of_the_data_is_no_outage() {
        for (code, fault) in [
            ("08006", Fault::Outage),
            ("53100", Fault::Outage),
            ("57P01", Fault::Outage),
            ("25006", Fault::Outage),
            ("57014", Fault::Contention),
            ("25P04", Fault::Contention),
            ("40P01", Fault::Contention),
            ("55P03", Fault::Contention),
            ("21000", Fault::Data),
            ("22021", Fault::Data),
            ("22P05", Fault::Data),
            ("23505", Fault::Data),
            ("54000", Fault::Data),
            ("42703", Fault::Bug),
            ("XX000", Fault::Bug),
            ("DT001", Fault::Moved),
        ] {
            assert_eq!(Fault::of_sqlstate(code), fault, "{code}");
        }
        let unreadable = sqlx::Error::ColumnDecode { index: "hit".into(), source: "unexpected null".into() };
        assert_eq!(Fault::of(&unreadable), Fault::Bug);
        assert_eq!(Fault::of(&sqlx::Error::PoolTimedOut), Fault::Outage);
    }
}
