//! What the model of fires consists of.

/// The fire times of the schedule.
pub(super) const TIMES: u8 = 2;
/// The most decisions that owe a task.
pub(super) const FIRES: usize = 3;

/// The task of a fire time, under the id that the decision gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Task {
    Absent,
    Live,
    Succeeded,
    Cancelled,
    /// Finished, and dropped from the archive.
    Dropped,
}

/// A decided fire time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fire {
    pub(super) time: u8,
    pub(super) is_noted: bool,
    /// The node that decided lives, and still makes the task.
    pub(super) is_held: bool,
    pub(super) task: Task,
}

/// What a node or a client has read of the schedule, and writes on: a statement on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Reading {
    pub(super) revision: u8,
    pub(super) next: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Step {
    Sent,
    /// It holds the key and has looked: whether it is to insert the task.
    Looked(bool),
    Answered,
}

/// The insert of a decided fire time's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Put {
    pub(super) fire: usize,
    pub(super) step: Step,
    /// Its time window is over.
    pub(super) is_late: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(super) revision: u8,
    /// The first fire time that is not decided.
    pub(super) next: u8,
    pub(super) turns: [Option<Reading>; 2],
    pub(super) change: Option<Reading>,
    pub(super) has_changed: bool,
    pub(super) fires: [Option<Fire>; FIRES],
    pub(super) puts: [Option<Put>; 2],
    /// How often a task was made for each fire time.
    pub(super) made: [u8; TIMES as usize],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A node reads the schedule and decides; the statement in this place is executed.
    Decide,
    Turn(usize),
    /// The node that decided notes the fire time, where the decision has not.
    Note(usize),
    /// A client reads the schedule and changes it; the change is executed.
    Edit,
    Change,
    /// The nodes that decided die.
    Crash,
    /// A node sends the task of this fire time.
    Send(usize),
    /// The put in this place takes the key and looks; inserts and commits; is never executed; has no time left.
    Look(usize),
    Insert(usize),
    Lose(usize),
    Expire(usize),
    /// Its node deletes the note.
    Done(usize),
    Finish(usize),
    Cancel(usize),
    Drop(usize),
}

impl State {
    pub(super) fn first() -> Self {
        Self {
            revision: 0,
            next: 0,
            turns: [None; 2],
            change: None,
            has_changed: false,
            fires: [None; FIRES],
            puts: [None; 2],
            made: [0; TIMES as usize],
        }
    }

    pub(super) fn reading(&self) -> Reading {
        Reading { revision: self.revision, next: self.next }
    }

    pub(super) fn has_put(&self, fire: usize) -> bool {
        self.puts.iter().flatten().any(|put| put.fire == fire)
    }

    /// Whether any task with the key of this fire time is in this state.
    pub(super) fn has(&self, time: u8, task: Task) -> bool {
        self.fires.iter().flatten().any(|fire| fire.time == time && fire.task == task)
    }

    /// Whether a finished task may be dropped: it is kept longer than any sending of it may be executed.
    pub(super) fn may_drop(&self, at: usize) -> bool {
        let is_noted = self.fires[at].is_some_and(|fire| fire.is_noted || fire.is_held);
        let mut puts = self.puts.iter().flatten().filter(|put| put.fire == at);
        !is_noted && puts.all(|put| put.is_late && put.step == Step::Sent)
    }

    pub(super) fn send(&mut self, fire: usize) -> Option<()> {
        let place = self.puts.iter().position(Option::is_none)?;
        self.puts[place] = Some(Put { fire, step: Step::Sent, is_late: false });
        self.fires[fire].as_mut()?.is_held = false;
        Some(())
    }
}
