//! What the model of submits consists of.

/// The most messages of the task.
pub(super) const COPIES: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sending {
    Unsent,
    Sent,
    /// It has its snapshot: whether the archive had the task.
    Read {
        was_finished: bool,
    },
    /// Its row is in the table and is not committed yet.
    Inserted,
    Committed,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Absent,
    Scheduled,
    Dispatching,
    /// A message has arrived.
    Delivered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Finished {
    No,
    Succeeded,
    Cancelled,
}

/// A cancel: of a client, or in the open transaction of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cancel {
    Unsent,
    /// It has found an unclaimed task; a client's waits for the row, an application's has deleted it.
    Found,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(super) time: u8,
    pub(super) sendings: [Sending; 2],
    /// Whether the node waits for the answer of the first sending.
    pub(super) is_awaited: bool,
    pub(super) is_accepted: bool,
    pub(super) place: Place,
    /// The first sending claims the task that it inserts.
    pub(super) is_claiming: bool,
    /// A node holds the claimed task and has not published it yet.
    pub(super) is_held: bool,
    pub(super) on_way: u8,
    pub(super) arrived: u8,
    pub(super) finished: Finished,
    pub(super) client: Cancel,
    pub(super) application: Cancel,
    pub(super) unmarked: u8,
    pub(super) is_promised: bool,
    pub(super) came_after_promise: bool,
    pub(super) was_taken_in_flight: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    Send(usize),
    /// The first sending, which claims what it inserts.
    SendToClaim,
    Read(usize),
    Insert(usize),
    Commit(usize),
    Abort(usize),
    Answer(usize),
    LoseAnswer,
    Claim,
    Publish,
    Rescue,
    Arrive,
    Finish,
    ClientCancels,
    ClientTakes,
    ApplicationCancels,
    ApplicationCommits,
    ApplicationRollsBack,
}

impl State {
    pub(super) fn first() -> Self {
        Self {
            time: 0,
            sendings: [Sending::Unsent; 2],
            is_awaited: false,
            is_accepted: false,
            place: Place::Absent,
            is_claiming: false,
            is_held: false,
            on_way: 0,
            arrived: 0,
            finished: Finished::No,
            client: Cancel::Unsent,
            application: Cancel::Unsent,
            unmarked: 0,
            is_promised: false,
            came_after_promise: false,
            was_taken_in_flight: false,
        }
    }

    /// The row moves to the archive.
    pub(super) fn end(&mut self, how: Finished) {
        self.place = Place::Absent;
        self.finished = how;
        self.is_promised |= how == Finished::Cancelled;
    }

    pub(super) fn message(&mut self, action: Action) {
        match action {
            Action::Publish => {
                self.is_held = false;
                self.unmarked += 1;
                self.on_way += 1;
            }
            Action::Rescue => self.on_way += 1,
            _ => {
                self.on_way -= 1;
                self.arrived += 1;
                self.came_after_promise |= self.is_promised;
                if self.place == Place::Dispatching {
                    self.place = Place::Delivered;
                }
            }
        }
    }

    pub(super) fn is_taken(&self) -> bool {
        matches!(self.place, Place::Dispatching | Place::Delivered)
    }
}
