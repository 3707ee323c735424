//! What the model of dependencies consists of.

/// The two tasks that a third waits for, a bit each.
pub(super) const NAMES: [u8; 2] = [1, 2];
/// What the dependant waits for as it is first submitted, and as it is submitted again in place.
pub(super) const ASKED: [u8; 2] = [1, 3];

/// The dependant's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Absent,
    Waiting,
    Scheduled,
    Started,
}

/// A write of the dependant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Put {
    Unsent,
    /// It has written and is not committed yet; a second one holds the row.
    Written {
        /// What had succeeded in its snapshot. Only a write that decides by itself needs that.
        saw: u8,
    },
    Ended,
}

/// A look at the dependant that has its snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Look {
    /// What had succeeded in the snapshot.
    pub(super) succeeded: u8,
    /// What the row waited for in the snapshot.
    pub(super) waits: u8,
    /// The writes of the row in the snapshot.
    pub(super) version: u8,
    /// Once it holds the row: what the row goes on waiting for, and whether it waits no longer.
    pub(super) held: Option<(u8, bool)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The names whose newest task has succeeded and is kept.
    pub(super) succeeded: u8,
    /// The names whose task was dropped from the archive.
    pub(super) dropped: u8,
    /// The first name had a newer task.
    pub(super) is_renewed: bool,
    pub(super) place: Place,
    /// What the row waits for.
    pub(super) waits: u8,
    /// How often the row was written.
    pub(super) version: u8,
    /// What its last submission asked for, and what of that has succeeded since or had succeeded then.
    pub(super) asked: u8,
    pub(super) met: u8,
    pub(super) puts: [Put; 2],
    pub(super) looks: [Option<Look>; 2],
    /// The successes whose writers still look for dependants.
    pub(super) owes_names: u8,
    /// A node still looks at the dependant: the writer of it, or one that found the row held.
    pub(super) owes_row: bool,
    /// No node has died. Afterwards no node owes a look, and only the owner looks, at the row's `wake_at`.
    pub(super) is_lucky: bool,
    pub(super) was_early: bool,
    pub(super) was_started_twice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The dependant is written, for the first time or in place; then committed.
    Write(usize),
    Commit(usize),
    Succeed(u8),
    /// A newer task takes the first name.
    Renew,
    /// Retention drops the task with this name.
    Drop(u8),
    /// A look at the row, or at what waits for a name, takes its snapshot.
    LookAtRow,
    LookForName(u8),
    /// The look in this place locks the row; then it writes and commits.
    Lock(usize),
    Release(usize),
    Start,
    /// The nodes that owe something die, and another one takes over.
    Crash,
}

impl State {
    pub(super) fn first() -> Self {
        Self {
            succeeded: 0,
            dropped: 0,
            is_renewed: false,
            place: Place::Absent,
            waits: 0,
            version: 0,
            asked: 0,
            met: 0,
            puts: [Put::Unsent; 2],
            looks: [None; 2],
            owes_names: 0,
            owes_row: false,
            is_lucky: true,
            was_early: false,
            was_started_twice: false,
        }
    }

    /// Whether a transaction holds the row.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.puts[1], Put::Written { .. }) || self.looks.iter().flatten().any(|look| look.held.is_some())
    }

    /// Whether a write or a look of the dependant is under way or owed.
    pub(super) fn is_busy(&self) -> bool {
        let is_written = self.puts.iter().any(|put| matches!(put, Put::Written { .. }));
        is_written || self.owes_row || self.owes_names != 0 || self.looks.iter().any(Option::is_some)
    }

    /// A look takes its snapshot. It ends at once where it finds no row that waits.
    pub(super) fn look(&mut self, is_wanted: bool) -> Option<()> {
        if self.place == Place::Waiting && is_wanted {
            let at = self.looks.iter().position(Option::is_none)?;
            self.looks[at] =
                Some(Look { succeeded: self.succeeded, waits: self.waits, version: self.version, held: None });
        }
        Some(())
    }

    pub(super) fn start(&mut self) {
        self.place = Place::Started;
        self.was_early |= self.asked & !self.met != 0;
    }

    pub(super) fn crash(&mut self) {
        (self.is_lucky, self.owes_row, self.owes_names) = (false, false, 0);
    }
}
