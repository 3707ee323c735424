//! One task from its submission, sent once or twice, to its end or its cancel.
//!
//! The answer to the first sending may get lost, and the node then sends the task again. Either sending may be executed
//! late, step by step: its snapshot, its insert, its commit. In between the task may be claimed, may finish or may be
//! cancelled: over HTTP by one statement, or in SQL by an application that keeps its transaction open and may roll it
//! back. Time has three parts: the window of the first sending, that of the second, and what comes after.

#[path = "submit/state.rs"]
mod state;

use stateright::{Model, Property};

use self::state::{Action, COPIES, Cancel, Finished, Place, Sending, State};
use super::search::{Guarded, explore};

/// What keeps the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The answer comes after the commit.
    CommitFirst,
    /// A sending inserts nothing after its window.
    Until,
    /// The second sending does nothing before the window of the first is over.
    After,
    /// A repeated sending checks after its insert, with a new snapshot, that the task has not finished.
    NotFinished,
    /// A task that its own insert has claimed is published after the answer to the insert.
    PublishAfterCommit,
    /// A cancel checks the state on the row that it has locked.
    CancelState,
    /// A cancel in an application's transaction holds the row until that ends.
    RowLock,
}

/// The model without one guard, or with all.
#[derive(Clone, Debug)]
pub(crate) struct Submits {
    without: Option<Guard>,
}

impl Guarded for Submits {
    type Guard = Guard;
    const NAME: &'static str = "submits";
    const GUARDS: &'static [(Guard, &'static str)] = &[
        (Guard::CommitFirst, "G1"),
        (Guard::Until, "G3"),
        (Guard::Until, "G5"),
        (Guard::After, "G3"),
        (Guard::After, "G5"),
        (Guard::NotFinished, "G3"),
        (Guard::NotFinished, "G5"),
        (Guard::PublishAfterCommit, "G3"),
        (Guard::PublishAfterCommit, "G5"),
        (Guard::CancelState, "G3"),
        (Guard::RowLock, "G3"),
    ];

    fn without(guard: Option<Guard>) -> Self {
        Self { without: guard }
    }
}

impl Submits {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    /// An insert waits for another one with the same id, and for a transaction that deletes the row.
    fn must_wait(&self, state: &State) -> bool {
        state.sendings.contains(&Sending::Inserted) || self.is_row_locked(state)
    }

    fn is_row_locked(&self, state: &State) -> bool {
        self.has(Guard::RowLock) && state.application == Cancel::Found
    }

    fn insert(&self, state: &State, at: usize) -> Sending {
        let Sending::Read { was_finished } = state.sendings[at] else { return state.sendings[at] };
        // The id is there: the statement leaves it alone.
        if state.place != Place::Absent || at == 1 && was_finished {
            return Sending::Committed;
        }
        let is_late = usize::from(state.time) > at;
        let has_finished = at == 1 && state.finished != Finished::No;
        if is_late && self.has(Guard::Until) || has_finished && self.has(Guard::NotFinished) {
            return Sending::Failed;
        }
        Sending::Inserted
    }

    fn sending(&self, state: &mut State, action: Action) {
        match action {
            Action::Send(at) => {
                state.sendings[at] = Sending::Sent;
                state.is_awaited = true;
            }
            Action::SendToClaim => {
                state.sendings[0] = Sending::Sent;
                (state.is_awaited, state.is_claiming) = (true, true);
            }
            Action::Read(1) if state.time == 0 && self.has(Guard::After) => state.sendings[1] = Sending::Failed,
            Action::Read(at) => {
                state.sendings[at] = Sending::Read { was_finished: state.finished != Finished::No };
            }
            Action::Insert(at) => {
                state.sendings[at] = self.insert(state, at);
                let is_claimed = at == 0 && state.is_claiming && state.sendings[0] == Sending::Inserted;
                state.is_held |= is_claimed && !self.has(Guard::PublishAfterCommit);
            }
            Action::Commit(at) => {
                state.sendings[at] = Sending::Committed;
                state.place = if at == 0 && state.is_claiming { Place::Dispatching } else { Place::Scheduled };
            }
            Action::Abort(at) => state.sendings[at] = Sending::Failed,
            Action::Answer(at) => {
                state.is_accepted = true;
                let is_claimed = at == 0 && state.is_claiming && state.place == Place::Dispatching;
                state.is_held |= is_claimed && self.has(Guard::PublishAfterCommit);
            }
            _ => state.is_awaited = false,
        }
    }

    /// A client's cancel has the row now and checks it again.
    fn take(&self, state: &mut State) {
        state.client = Cancel::Ended;
        let is_claimed = matches!(state.place, Place::Dispatching | Place::Delivered);
        if state.place == Place::Scheduled || is_claimed && !self.has(Guard::CancelState) {
            state.end(Finished::Cancelled);
            state.was_taken_in_flight |= is_claimed;
        }
    }
}

impl Model for Submits {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.time < 2 {
            actions.push(Action::Tick);
        }
        self.sendings(state, actions);
        self.cancels(state, actions);
        match state.place {
            Place::Scheduled if !self.is_row_locked(state) => actions.push(Action::Claim),
            Place::Dispatching if !state.is_held && state.on_way + state.arrived < COPIES => {
                actions.push(Action::Rescue)
            }
            Place::Delivered => actions.push(Action::Finish),
            _ => {}
        }
        if state.is_held {
            actions.push(Action::Publish);
        }
        if state.on_way > 0 {
            actions.push(Action::Arrive);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Tick => next.time += 1,
            Action::Claim => (next.place, next.is_held) = (Place::Dispatching, true),
            Action::Publish | Action::Rescue | Action::Arrive => next.message(action),
            Action::Finish => next.end(Finished::Succeeded),
            Action::ClientCancels => next.client = Cancel::Found,
            Action::ClientTakes => self.take(&mut next),
            Action::ApplicationCancels => next.application = Cancel::Found,
            Action::ApplicationCommits => {
                next.application = Cancel::Ended;
                next.was_taken_in_flight |= next.is_taken();
                next.end(Finished::Cancelled);
            }
            Action::ApplicationRollsBack => next.application = Cancel::Ended,
            sending => self.sending(&mut next, sending),
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("G1 an accepted task is in one of the two tables", |_, state: &State| {
                !state.is_accepted || state.place != Place::Absent || state.finished != Finished::No
            }),
            Property::always(
                "G3 no claimed task is cancelled, and nothing comes after `cancelled`",
                |_, state: &State| !state.came_after_promise && !state.was_taken_in_flight,
            ),
            Property::always("G5 no finished task comes back, and a copy says so", |_, state: &State| {
                state.unmarked <= 1 && (state.place == Place::Absent || state.finished == Finished::No)
            }),
        ]
    }
}

impl Submits {
    fn sendings(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, sending) in state.sendings.iter().enumerate() {
            match sending {
                Sending::Unsent if at == 0 => actions.extend([Action::Send(0), Action::SendToClaim]),
                Sending::Unsent if state.sendings[0] != Sending::Unsent && !state.is_awaited => {
                    actions.push(Action::Send(1));
                }
                Sending::Sent => actions.extend([Action::Read(at), Action::Abort(at)]),
                Sending::Read { .. } if !self.must_wait(state) => actions.push(Action::Insert(at)),
                Sending::Inserted => actions.extend([Action::Commit(at), Action::Abort(at)]),
                _ => {}
            }
        }
        let last = usize::from(state.sendings[1] != Sending::Unsent);
        let is_early = state.sendings[last] == Sending::Inserted && !self.has(Guard::CommitFirst);
        if state.is_awaited && !state.is_accepted {
            if state.sendings[last] == Sending::Committed || is_early {
                actions.push(Action::Answer(last));
            }
            actions.push(Action::LoseAnswer);
        }
    }

    fn cancels(&self, state: &State, actions: &mut Vec<Action>) {
        if state.place == Place::Scheduled {
            if state.client == Cancel::Unsent {
                actions.push(Action::ClientCancels);
            }
            if state.application == Cancel::Unsent {
                actions.push(Action::ApplicationCancels);
            }
        }
        if state.client == Cancel::Found && !self.is_row_locked(state) {
            actions.push(Action::ClientTakes);
        }
        if state.application == Cancel::Found {
            if state.place != Place::Absent {
                actions.push(Action::ApplicationCommits);
            }
            actions.push(Action::ApplicationRollsBack);
        }
    }
}

#[test]
fn submits_and_cancels_hold_when_sendings_are_repeated_and_executed_late() {
    explore::<Submits>();
}
