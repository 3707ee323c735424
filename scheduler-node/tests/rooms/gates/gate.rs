//! What a gate is: a write to a task, and the guards that it must have.

/// A write to a task, with its guards.
#[derive(Debug)]
pub(crate) struct Gate {
    /// The statement file, or the function.
    pub(crate) source: &'static str,
    /// Its name in WITH, or its verb and table.
    pub(crate) write: &'static str,
    pub(crate) changes: &'static str,
    pub(crate) guards: &'static [Guard],
}

/// A guard: the words of the header that state it, and where it stands.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) stated: &'static str,
    pub(crate) how: How,
}

/// Where a guard stands. Two texts are a name in WITH and a condition, unless it says otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// A condition of the write itself: PostgreSQL checks it again on a row that it waited for.
    Itself(&'static str),
    /// An expression of the outermost SELECT, which every execution evaluates.
    Statement(&'static str),
    /// A condition on rows that no other transaction changes: parameters, other conditions, what is only read.
    In(&'static str, &'static str),
    /// A condition on rows that are locked FOR SHARE.
    Share(&'static str, &'static str),
    /// A condition on rows that are locked FOR UPDATE, or FOR NO KEY UPDATE.
    Locked(&'static str, &'static str),
    /// Verb and table of an earlier command of the function, and its condition. Without a row the function returns.
    After(&'static str, &'static str),
    /// Words between the statements of the function.
    Command(&'static str),
    /// The beginning of a statement that the function executes before.
    Call(&'static str),
}

pub(crate) const fn guard(stated: &'static str, how: How) -> Guard {
    Guard { stated, how }
}

pub(crate) const fn gate(
    source: &'static str,
    write: &'static str,
    changes: &'static str,
    guards: &'static [Guard],
) -> Gate {
    Gate { source, write, changes, guards }
}

pub(crate) const NO_ROW: &str = "no row any more";
pub(crate) const NEW_ROW: &str = "a new row";
pub(crate) const TASK_UPDATE: &str = "UPDATE duetime.task";

/// The three states in which a task is unclaimed, as the statements write them.
pub(crate) const UNCLAIMED: How = How::Itself("t.state IN ('waiting', 'scheduled', 'ready')");
