//! One submission in SQL, from the application's transaction to its task: the inbox, its collection and a cancel.
//!
//! The row is in the inbox of database 0. Its shard is in database 0 or 1, and moves once. Nodes collect the row; each
//! collection is a chain of statements that may be executed late, break off at any point, and overlap with another.
//! Each statement is one compare-and-set on the row, on the note of the arrival or on the task, and is one step here:
//! PostgreSQL checks the row that it has locked again, and passes over a row that another transaction holds.
//!
//! The notes of arrivals go with the shard when it moves. A note is kept longer than the row, and longer than a
//! statement may be late. Keys, and rows that are refused, are left out.

#[path = "inbox/state.rs"]
mod state;

use stateright::{Model, Property};

use self::state::{Action, Collection, Row, State, Task, Transaction};
use super::search::{Guarded, explore};

/// What keeps the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The row commits with the application's transaction. Without it nodes see the row at once.
    WithTransaction,
    /// The row and the task change places in one statement. Without it the row goes afterwards.
    OneStatement,
    /// The arrival of a row in another database is noted, and a noted row makes no task.
    Note,
    /// The notes go with the shard when it moves.
    NotesMove,
    /// A note is kept longer than its row.
    NoteOutlivesRow,
    /// A row is marked before it goes into another database, and a marked row cannot be cancelled.
    LeavingMark,
    /// A row that is leaving goes by way of the notes, even if its shard is here by now.
    LeavingStays,
    /// A row is deleted after it has arrived in the other database. Without it the row goes first.
    DeleteAfterArrival,
    /// A cancelled row becomes a cancelled task. Without it the row makes a task.
    KeepCancelled,
    /// A statement finds out that the shard has moved. Without it a row arrives in the former database.
    Place,
}

/// The model without one guard, or with all.
#[derive(Clone, Debug)]
pub(crate) struct Inboxes {
    without: Option<Guard>,
}

impl Guarded for Inboxes {
    type Guard = Guard;
    const NAME: &'static str = "inboxes";
    const GUARDS: &'static [(Guard, &'static str)] = &[
        (Guard::WithTransaction, "G1"),
        (Guard::OneStatement, "G1"),
        (Guard::Note, "G1"),
        (Guard::NotesMove, "G1"),
        (Guard::NoteOutlivesRow, "G1"),
        (Guard::LeavingMark, "G3"),
        (Guard::LeavingStays, "G1"),
        (Guard::DeleteAfterArrival, "G1"),
        (Guard::KeepCancelled, "G3"),
        (Guard::Place, "G1"),
    ];

    fn without(guard: Option<Guard>) -> Self {
        Self { without: guard }
    }
}

impl Inboxes {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    /// A node reads the row and decides by which way it goes.
    fn look(&self, state: &State) -> Option<Collection> {
        let row = state.row?;
        let by_note = state.place != 0 || (row.is_leaving || row.is_cancelled) && self.has(Guard::LeavingStays);
        Some(Collection::Read { to: state.place, by_note })
    }

    fn collect(&self, state: &mut State, at: usize) -> Option<()> {
        match state.collections[at]? {
            Collection::Read { to, by_note: false } => self.take(state, at, to),
            Collection::Read { to, by_note: true } => self.leave(state, at, to),
            Collection::Left { to, is_cancelled } => self.arrive(state, at, to, is_cancelled),
            Collection::Arrived => {
                state.row = state.row.filter(|row| !row.is_leaving && self.has(Guard::LeavingMark));
                state.collections[at] = None;
            }
        }
        Some(())
    }

    /// `task_collect.sql` in the database of the inbox.
    fn take(&self, state: &mut State, at: usize, to: u8) {
        state.collections[at] = None;
        let is_here = state.place == to || !self.has(Guard::Place);
        let stays = |row: Row| row.is_leaving && self.has(Guard::LeavingStays);
        let is_free = |row: Row| !row.is_cancelled && !stays(row);
        if !is_here || !state.row.is_some_and(is_free) {
            return;
        }
        state.make(to);
        if self.has(Guard::OneStatement) {
            state.row = None;
        } else {
            state.row = state.row.map(|row| Row { is_leaving: true, ..row });
            state.collections[at] = Some(Collection::Arrived);
        }
    }

    /// `inbox_leave.sql`.
    fn leave(&self, state: &mut State, at: usize, to: u8) {
        let Some(row) = &mut state.row else {
            state.collections[at] = None;
            return;
        };
        row.is_leaving |= self.has(Guard::LeavingMark);
        state.collections[at] = Some(Collection::Left { to, is_cancelled: row.is_cancelled });
        if !self.has(Guard::DeleteAfterArrival) {
            state.row = None;
        }
    }

    /// `task_collect.sql` or `task_collect_cancelled.sql` in the database of the shard.
    fn arrive(&self, state: &mut State, at: usize, to: u8, is_cancelled: bool) {
        if state.place != to && self.has(Guard::Place) {
            state.collections[at] = None;
            return;
        }
        state.collections[at] = Some(Collection::Arrived);
        let noted = &mut state.is_noted[usize::from(to)];
        if std::mem::replace(noted, true) && self.has(Guard::Note) {
            return;
        }
        if is_cancelled && self.has(Guard::KeepCancelled) {
            state.task = Task::Cancelled;
        } else {
            state.make(to);
        }
    }

    /// `duetime.cancel` in the database of the inbox.
    fn cancel(&self, state: &mut State) {
        match (&mut state.row, state.place) {
            (Some(row), 1) if !row.is_leaving || row.is_cancelled => row.is_cancelled = true,
            (Some(row), 0) if !row.is_leaving => {
                state.row = None;
                state.task = Task::Cancelled;
            }
            (None, 0) if state.task == Task::Scheduled => state.task = Task::Cancelled,
            _ => return,
        }
        state.is_promised = true;
    }

    /// The shard moves to the other database, with its tasks and its notes.
    fn carry(&self, state: &mut State) {
        state.has_moved = true;
        state.place = 1 - state.place;
        if self.has(Guard::NotesMove) {
            state.is_noted.swap(0, 1);
        }
    }
}

impl Model for Inboxes {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(0), State::first(1)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.transaction == Transaction::Open {
            actions.extend([Action::Commit, Action::RollBack]);
        }
        let is_seen = state.transaction == Transaction::Committed || !self.has(Guard::WithTransaction);
        let free = state.collections.iter().position(Option::is_none);
        if is_seen && state.row.is_some() && free.is_some() {
            actions.push(Action::Look);
        }
        for at in (0..state.collections.len()).filter(|at| state.collections[*at].is_some()) {
            actions.extend([Action::Collect(at), Action::BreakOff(at)]);
        }
        if state.transaction == Transaction::Committed {
            actions.push(Action::Cancel);
        }
        if state.task == Task::Scheduled {
            actions.push(Action::Deliver);
        }
        if !state.has_moved {
            actions.push(Action::Move);
        }
        let is_over = state.row.is_none() && state.collections.iter().all(Option::is_none);
        if state.is_noted != [false; 2] && (is_over || !self.has(Guard::NoteOutlivesRow)) {
            actions.push(Action::Forget);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Commit => next.transaction = Transaction::Committed,
            Action::RollBack => (next.transaction, next.row) = (Transaction::RolledBack, None),
            Action::Look => {
                let free = next.collections.iter().position(Option::is_none)?;
                next.collections[free] = self.look(&next);
            }
            Action::Collect(at) => self.collect(&mut next, at)?,
            Action::BreakOff(at) => next.collections[at] = None,
            Action::Cancel => self.cancel(&mut next),
            Action::Deliver => {
                next.task = Task::Succeeded;
                next.came_after_promise |= next.is_promised;
            }
            Action::Move => self.carry(&mut next),
            Action::Forget => next.is_noted = [false; 2],
        }
        next.collections.sort_unstable();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("G1 a submission is one task when it commits, and none otherwise", |_, state: &State| {
                let is_kept = state.row.is_some() || state.task != Task::Absent;
                let is_one = state.made <= 1 && !state.was_made_elsewhere;
                match state.transaction {
                    Transaction::Open => state.made == 0,
                    Transaction::RolledBack => state.made == 0 && state.task == Task::Absent,
                    Transaction::Committed => is_kept && is_one,
                }
            }),
            Property::always("G3 nothing comes after `cancelled`, and the cancel is kept", |_, state: &State| {
                let is_kept = state.row.is_some() || state.task == Task::Cancelled;
                !state.came_after_promise && (!state.is_promised || is_kept)
            }),
        ]
    }
}

#[test]
fn a_submission_in_sql_is_one_task_wherever_its_shard_is_and_however_often_it_is_collected() {
    explore::<Inboxes>();
}
