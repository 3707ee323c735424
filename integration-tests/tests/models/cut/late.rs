//! Statements about a fence that are executed long after their mover has given up on them.

use super::{
    Cuts, Guard,
    state::{
        Action, FenceStep, Late, State,
        Status::{Absent, Arriving, Gone, Here, Leaving},
        Step,
    },
};

impl Cuts {
    /// The first owner may give up on one statement under its first epoch: of the first move, or of its call-off.
    pub(super) fn late(&self, state: &State, actions: &mut Vec<Action>) {
        let mover = &state.movers[0];
        let fills = state.target == Arriving && state.move_epoch == 1;
        match state.late {
            Late::NotYet if mover.epoch == 1 && state.epoch == 1 && mover.step == Step::Idle => {
                let is_first = state.call_offs == 0;
                let mut may_give_up = |step| actions.push(Action::HoldUp(step));
                match state.source {
                    Here if state.target == Absent => may_give_up(FenceStep::Arrive),
                    Here if fills && is_first => may_give_up(FenceStep::Leave),
                    Here if fills && state.is_called_off => may_give_up(FenceStep::Drop),
                    Leaving if fills && state.is_called_off => may_give_up(FenceStep::Return),
                    Leaving if fills && is_first && mover.is_copied => may_give_up(FenceStep::Close),
                    _ => {}
                }
            }
            Late::HeldUp { step: FenceStep::Arrive | FenceStep::Drop, .. } => actions.push(Action::ExecuteLate),
            // A statement that changes the fence of the source waits for the writers that hold it.
            Late::HeldUp { .. } if !self.has(Guard::GateLock) || !state.is_written() => {
                actions.push(Action::ExecuteLate);
            }
            Late::NotYet | Late::HeldUp { .. } | Late::Executed => {}
        }
    }

    /// Before the end of a copy its rows go, and writes before that do nothing any more.
    pub(super) fn hold_up(&self, state: &mut State, step: FenceStep) {
        if step == FenceStep::Drop {
            state.movers[0].writes += u8::from(state.target_row.is_some());
            state.target_row = None;
            if self.has(Guard::WriteFloor) {
                state.move_write = state.movers[0].writes;
            }
        }
        state.late = Late::HeldUp { step, is_overtaken: false };
    }

    pub(super) fn execute_late(&self, state: &mut State) -> Option<()> {
        let Late::HeldUp { step, is_overtaken } = std::mem::replace(&mut state.late, Late::Executed) else {
            return None;
        };
        let is_of_owner = state.epoch == 1 && (!is_overtaken || !self.has(Guard::SourceNumber));
        let is_of_filler = state.move_epoch == 1 && (!is_overtaken || !self.has(Guard::DropNumber));
        match step {
            // It was sent when the target had no fence.
            FenceStep::Arrive if state.target == Absent || state.target == Gone && !self.has(Guard::SeenTarget) => {
                (state.target, state.move_epoch, state.move_write) = (Arriving, 1, 0);
            }
            FenceStep::Leave if is_of_owner && state.source == Here => state.source = Leaving,
            FenceStep::Close if is_of_owner && state.source == Leaving => {
                (state.source, state.epoch, state.owner) = (Gone, 2, 0);
                state.movers[0].is_final = false;
            }
            FenceStep::Return if is_of_owner && matches!(state.source, Here | Leaving) => {
                (state.source, state.notes) = (Here, 0);
            }
            FenceStep::Drop if is_of_filler && state.target == Arriving => state.target = Gone,
            _ => {}
        }
        Some(())
    }
}
