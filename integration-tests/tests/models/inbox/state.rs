//! What the model of inboxes consists of.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Transaction {
    Open,
    Committed,
    RolledBack,
}

/// The row of the inbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) is_leaving: bool,
    /// It was cancelled while its shard was in the other database.
    pub(super) is_cancelled: bool,
}

/// A collection of the row: the statement that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Collection {
    /// A node has read the row. It goes into this database, by way of the notes or by the statement for an own inbox.
    Read { to: u8, by_note: bool },
    /// The row is marked. It was cancelled before, or it was not.
    Left { to: u8, is_cancelled: bool },
    /// The task is made, and the row is to be deleted.
    Arrived,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Task {
    Absent,
    Scheduled,
    Succeeded,
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(super) transaction: Transaction,
    pub(super) row: Option<Row>,
    /// The database of the shard.
    pub(super) place: u8,
    pub(super) has_moved: bool,
    pub(super) collections: [Option<Collection>; 2],
    /// Whether a database has the note of the arrival.
    pub(super) is_noted: [bool; 2],
    pub(super) task: Task,
    /// How often a task was made.
    pub(super) made: u8,
    /// A task was made in a database that did not have the shard.
    pub(super) was_made_elsewhere: bool,
    /// A cancel was answered with `cancelled`.
    pub(super) is_promised: bool,
    pub(super) came_after_promise: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Commit,
    RollBack,
    /// A node reads the inbox.
    Look,
    /// The next statement of the collection in this place is executed.
    Collect(usize),
    /// Its node dies or gives up, or the statement is never executed.
    BreakOff(usize),
    Cancel,
    /// The task is claimed, delivered and done.
    Deliver,
    Move,
    /// The note is so old that it is deleted.
    Forget,
}

impl State {
    pub(super) fn first(place: u8) -> Self {
        Self {
            transaction: Transaction::Open,
            row: Some(Row::default()),
            place,
            has_moved: false,
            collections: [None; 2],
            is_noted: [false; 2],
            task: Task::Absent,
            made: 0,
            was_made_elsewhere: false,
            is_promised: false,
            came_after_promise: false,
        }
    }

    pub(super) fn make(&mut self, database: u8) {
        self.made = (self.made + 1).min(2);
        self.was_made_elsewhere |= database != self.place;
        self.task = Task::Scheduled;
    }
}
