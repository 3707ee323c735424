//! What can go wrong with a statement, and what that says about its effect.

use common::ids::DatabaseName;

use super::StoreOp;

#[derive(Debug, thiserror::Error)]
#[error("{op} in database `{database}`: {effect}")]
pub struct Error {
    pub database: DatabaseName,
    pub op: StoreOp,
    pub effect: Effect,
    #[source]
    pub source: Option<sqlx::Error>,
}

/// What the failed statement has done, as far as anyone knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Effect {
    /// The database said no, or was never asked: nothing has changed.
    #[error("it was not done")]
    None,
    /// It may have been done. Whatever it concerned is looked at again; nobody guesses.
    #[error("nobody knows whether it was done")]
    Unknown,
}

impl Effect {
    pub(super) fn of(error: &sqlx::Error) -> Self {
        match error {
            // The server answered with an error: the statement was rolled back. 08xxx and 57P0x end the session, and then
            // the answer of a commit may be what was lost.
            sqlx::Error::Database(answer) => match answer.code().as_deref() {
                Some(code) if code.starts_with("08") || code.starts_with("57P") => Self::Unknown,
                _ => Self::None,
            },
            sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::Configuration(_)
            | sqlx::Error::RowNotFound
            | sqlx::Error::Encode(_) => Self::None,
            _ => Self::Unknown,
        }
    }
}

impl Error {
    /// The SQLSTATE the server answered with, if it answered.
    pub fn sqlstate(&self) -> Option<String> {
        match self.source.as_ref()? {
            sqlx::Error::Database(answer) => answer.code().map(|code| code.to_string()),
            _ => None,
        }
    }

    /// Another task that is not finished has this key and version.
    pub fn is_key_taken(&self) -> bool {
        let Some(sqlx::Error::Database(answer)) = &self.source else { return false };
        answer.is_unique_violation() && answer.constraint() == Some("task_key_version")
    }

    /// Two statements met in opposite order, or one waited too long for a lock: the same statement may well pass now.
    pub fn is_contention(&self) -> bool {
        matches!(self.sqlstate().as_deref(), Some("40P01" | "40001" | "55P03" | "57014"))
    }
}
