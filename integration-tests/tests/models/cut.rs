//! The move of a shard to another database, with one of its tasks: the copy, the notes of changes and the cut.
//!
//! Two transactions change the task at any time and stay open as long as they like; in the target nothing but the move
//! writes before it has the shard. Two nodes own the shard, one after the other, and the former one goes on as if it
//! still did. A write into the target may be executed long after its node has given up on it, and so may one open of
//! the target. The same holds for one other statement by which the first owner changes a fence. The move may be called
//! off once, and be asked for again.
//!
//! Left out: that the tasks of an earlier copy go before the shard leaves.

#[path = "cut/late.rs"]
mod late;
#[path = "cut/mover.rs"]
mod mover;
#[path = "cut/state.rs"]
mod state;

use stateright::{Model, Property};

use self::state::{
    Action, MOVERS, State,
    Status::{Absent, Arriving, Gone, Here, Leaving},
    Writer,
};
use super::search::{Guarded, explore};

/// What keeps the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// A writer locks the fence FOR SHARE until its transaction ends.
    GateLock,
    /// The gate notes each change of a leaving shard.
    Notes,
    /// The gate refuses a write to a closed shard.
    GateRefuses,
    /// The copy begins once the shard is leaving.
    LeaveFirst,
    /// Exactly the notes that were read are forgotten.
    ForgetRead,
    /// A write that comes after a later one of its mover does nothing.
    WriteNumber,
    /// The target counts on from the writes of the moves before. Without it each move begins at 0.
    WriteFloor,
    /// A write of an older owner does nothing.
    MoveEpoch,
    /// The last changes go over after the close.
    LastDelta,
    /// A shard is not opened in its source again once the mover has begun to open it in the target, unless the target
    /// refuses that.
    OpenOnce,
    /// Before a closed shard opens in its source again, the target is filled under the next epoch.
    RefuseOpen,
    /// The target begins to receive only as the mover has seen it.
    SeenTarget,
    /// In the source, a statement that comes after a later one of its mover does nothing.
    SourceNumber,
    /// The end of a copy does nothing either if it comes after a later write of its mover.
    DropNumber,
    /// A call-off numbers the source of a shard that has not left, too.
    ReturnUnleft,
}

/// The model without one guard, or with all.
#[derive(Clone, Debug)]
pub(crate) struct Cuts {
    without: Option<Guard>,
}

impl Guarded for Cuts {
    type Guard = Guard;
    const NAME: &'static str = "cuts";
    const GUARDS: &'static [(Guard, &'static str)] = &[
        (Guard::GateLock, "G1"),
        (Guard::Notes, "G1"),
        (Guard::Notes, "G3"),
        (Guard::GateRefuses, "G1"),
        (Guard::LeaveFirst, "G1"),
        (Guard::ForgetRead, "G3"),
        (Guard::WriteNumber, "G1"),
        (Guard::WriteFloor, "G3"),
        (Guard::MoveEpoch, "G1"),
        (Guard::LastDelta, "G3"),
        (Guard::OpenOnce, "G4"),
        (Guard::RefuseOpen, "G4"),
        (Guard::SeenTarget, "G3"),
        (Guard::SourceNumber, "G1"),
        (Guard::DropNumber, "G6"),
        (Guard::ReturnUnleft, "G6"),
    ];

    fn without(guard: Option<Guard>) -> Self {
        Self { without: guard }
    }
}

impl Cuts {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    /// The gate: whether a writer may pass, and whether its change is noted.
    fn pass(&self, state: &State) -> Option<bool> {
        match state.source {
            Here => Some(false),
            Leaving => Some(self.has(Guard::Notes)),
            Gone if !self.has(Guard::GateRefuses) => Some(false),
            _ => None,
        }
    }

    fn commit(state: &mut State, at: usize) {
        let Writer::Open { is_noted } = state.writers[at] else { return };
        state.writers[at] = Writer::Ended;
        let row = (at == 0).then_some(1);
        (state.source_row, state.truth) = (row, row);
        state.notes |= u8::from(is_noted) << at;
    }

    fn writers(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, writer) in state.writers.iter().enumerate() {
            match writer {
                Writer::Idle if state.source_row.is_some() && !state.is_written() && self.pass(state).is_some() => {
                    actions.push(Action::Change(at));
                }
                Writer::Open { .. } => actions.push(Action::Commit(at)),
                Writer::Idle | Writer::Ended => {}
            }
        }
    }
}

impl Model for Cuts {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.writers(state, actions);
        for at in 0..MOVERS {
            self.mover(state, at, actions);
        }
        if state.target == Here {
            return;
        }
        let pending = state.writes.iter().enumerate().filter(|(_, write)| write.is_some());
        actions.extend(pending.map(|(at, _)| Action::Execute(at)));
        actions.extend(state.late_open.map(|_| Action::OpenLate));
        self.late(state, actions);
        if state.is_called_off {
            if state.source == Here && state.target == Gone {
                actions.push(Action::Again);
            }
        } else if state.call_offs == 0
            && state.epoch == 1
            && matches!(state.source, Here | Leaving)
            && state.target == Arriving
        {
            actions.push(Action::CallOff);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Change(at) => next.writers[at] = Writer::Open { is_noted: self.pass(state)? },
            Action::Commit(at) => Self::commit(&mut next, at),
            Action::CallOff => (next.is_called_off, next.call_offs) = (true, 1),
            Action::Again => next.is_called_off = false,
            step => self.step(&mut next, step)?,
        }
        next.writes.sort_unstable();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("G1 what was committed is there after the cut", |_, state: &State| {
                state.target != Here || state.truth.is_none() || state.target_row == state.truth
            }),
            Property::always("G3 what was cancelled does not come back with the cut", |_, state: &State| {
                state.target != Here || state.truth.is_some() || state.target_row.is_none()
            }),
            Property::always("G4 one database has the shard", |_, state: &State| {
                state.target != Here || !matches!(state.source, Here | Leaving)
            }),
            Property::always(
                "G6 a shard that leaves or is closed has a target that receives it",
                |_, state: &State| !matches!((state.source, state.target), (Leaving | Gone, Absent | Gone)),
            ),
        ]
    }
}

#[test]
fn a_shard_that_moves_keeps_what_was_committed_and_has_one_place() {
    explore::<Cuts>();
}
