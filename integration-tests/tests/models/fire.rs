//! A schedule with two fire times: their decisions, the notes of their tasks and the inserts of these.
//!
//! Two nodes read the schedule and decide; each statement may be executed late. A decision is one compare-and-set on
//! the schedule's row, and so is a change. A decided fire time has a note, with the id of its task. Any node takes
//! the note on, so the task may be sent twice, and either sending may be executed late or never. A put takes the lock
//! of the key, looks for the task by id and by key, live and in the archive, and then inserts. Each of these
//! statements sees what was committed before. The task finishes or is cancelled at any time, and is dropped from the
//! archive in the end.
//!
//! A finished task is kept longer than a sending may be executed; a cancelled one does not hold its key.

#[path = "fire/state.rs"]
mod state;
#[path = "fire/steps.rs"]
mod steps;

use stateright::{Model, Property};

use self::state::{Action, Put, State, Step, TIMES, Task};
use super::search::{Guarded, explore};

/// What keeps the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// A decision compares the revision of the schedule that it read.
    TurnCompares,
    /// A change does too.
    ChangeCompares,
    /// A change does not go back before what is decided.
    Since,
    /// The decision and the note are one statement. Without it the node notes the fire time afterwards.
    NoteWithTurn,
    /// Any node takes on a note. Without it only the node that decided makes the task.
    AnyNodeMakes,
    /// The note is deleted after the answer to the insert.
    DoneAfterAnswer,
    /// An insert finds its task in the archive by the id.
    KnownById,
    /// An insert holds the lock of its key from before it looks. Without it the insert looks first.
    KeyLock,
    /// A sending inserts nothing after its window.
    Until,
}

/// The model without one guard, or with all.
#[derive(Clone, Debug)]
pub(crate) struct Fires {
    without: Option<Guard>,
}

impl Guarded for Fires {
    type Guard = Guard;
    const NAME: &'static str = "fires";
    const GUARDS: &'static [(Guard, &'static str)] = &[
        (Guard::TurnCompares, "G11"),
        (Guard::ChangeCompares, "G11"),
        (Guard::Since, "G11"),
        (Guard::NoteWithTurn, "G1"),
        (Guard::AnyNodeMakes, "G1"),
        (Guard::DoneAfterAnswer, "G1"),
        (Guard::KnownById, "G11"),
        (Guard::KeyLock, "G11"),
        (Guard::Until, "G11"),
    ];

    fn without(guard: Option<Guard>) -> Self {
        Self { without: guard }
    }
}

impl Fires {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    fn schedule(state: &State, actions: &mut Vec<Action>) {
        if state.next < TIMES && state.turns.contains(&None) {
            actions.push(Action::Decide);
        }
        let pending = state.turns.iter().enumerate().filter(|(_, turn)| turn.is_some());
        actions.extend(pending.map(|(at, _)| Action::Turn(at)));
        if state.change.is_some() {
            actions.push(Action::Change);
        } else if !state.has_changed {
            actions.push(Action::Edit);
        }
    }

    fn fires(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, fire) in state.fires.iter().enumerate() {
            let Some(fire) = fire else { continue };
            if fire.is_held && !fire.is_noted && !self.has(Guard::NoteWithTurn) {
                actions.push(Action::Note(at));
            }
            if fire.is_noted && (fire.is_held || self.has(Guard::AnyNodeMakes)) && state.puts.contains(&None) {
                actions.push(Action::Send(at));
            }
            match fire.task {
                Task::Live => actions.extend([Action::Finish(at), Action::Cancel(at)]),
                Task::Succeeded | Task::Cancelled if state.may_drop(at) => actions.push(Action::Drop(at)),
                _ => {}
            }
        }
        if state.fires.iter().flatten().any(|fire| fire.is_held) {
            actions.push(Action::Crash);
        }
    }

    fn puts(&self, state: &State, actions: &mut Vec<Action>) {
        let time = |put: &Put| state.fires[put.fire].map(|fire| fire.time);
        for (at, put) in state.puts.iter().enumerate() {
            let Some(put) = put else { continue };
            let holds = |other: &Put| matches!(other.step, Step::Looked(_)) && time(other) == time(put);
            let is_locked = self.has(Guard::KeyLock) && state.puts.iter().flatten().any(holds);
            match put.step {
                Step::Sent => {
                    actions.push(Action::Lose(at));
                    if !is_locked {
                        actions.push(Action::Look(at));
                    }
                    if !put.is_late {
                        actions.push(Action::Expire(at));
                    }
                }
                Step::Looked(_) => actions.push(Action::Insert(at)),
                Step::Answered => actions.push(Action::Done(at)),
            }
            if put.step == Step::Sent && !self.has(Guard::DoneAfterAnswer) {
                actions.push(Action::Done(at));
            }
        }
    }
}

impl Model for Fires {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        Self::schedule(state, actions);
        self.fires(state, actions);
        self.puts(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Decide => {
                let place = next.turns.iter().position(Option::is_none)?;
                next.turns[place] = Some(state.reading());
            }
            Action::Turn(at) => self.turn(&mut next, at)?,
            Action::Note(fire) => next.fires[fire].as_mut()?.is_noted = true,
            Action::Edit => (next.change, next.has_changed) = (Some(state.reading()), true),
            Action::Change => self.change(&mut next)?,
            Action::Crash => next.fires.iter_mut().flatten().for_each(|fire| fire.is_held = false),
            Action::Send(fire) => next.send(fire)?,
            Action::Look(at) => self.look(&mut next, at)?,
            Action::Insert(at) => Self::insert(&mut next, at)?,
            Action::Lose(at) => next.puts[at] = None,
            Action::Expire(at) => next.puts[at].as_mut()?.is_late = true,
            Action::Done(at) => self.done(&mut next, at)?,
            Action::Finish(fire) => next.fires[fire].as_mut()?.task = Task::Succeeded,
            Action::Cancel(fire) => next.fires[fire].as_mut()?.task = Task::Cancelled,
            Action::Drop(fire) => next.fires[fire].as_mut()?.task = Task::Dropped,
        }
        next.turns.sort_unstable();
        next.puts.sort_unstable();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("G1 a decided fire time has its task, or will have it", |model: &Self, state: &State| {
                (0..state.fires.len()).all(|at| model.is_kept(state, at))
            }),
            Property::always("G11 a fire time has one task", |_, state: &State| {
                state.made.iter().all(|made| *made <= 1)
            }),
        ]
    }
}

#[test]
fn a_fire_time_has_one_task_whoever_decides_and_however_often_it_is_sent() {
    explore::<Fires>();
}
