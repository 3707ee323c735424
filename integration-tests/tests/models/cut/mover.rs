//! The steps of a mover, and the statements that it sends.

use super::{
    Cuts, Guard,
    state::{
        Action, EPOCHS, End, Mover, Reading, Row, State,
        Status::{Absent, Arriving, Gone, Here, Leaving},
        Step, WRITES,
    },
};

impl Cuts {
    /// What a mover may do next. It reads the fences before each step, so it begins a step only where they allow that.
    pub(super) fn mover(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let mover = &state.movers[at];
        // A statement that changes a fence waits for the writers that hold it.
        let is_free = !self.has(Guard::GateLock) || !state.is_written();
        if state.epoch < EPOCHS && mover.epoch < state.epoch && is_free && state.target != Here && state.call_offs == 0
        {
            actions.push(Action::TakeOver(at));
        }
        let has_refused = mover.step == Step::Refusing(state.epoch);
        let is_closed_by_it = state.source == Gone && (mover.closed == state.epoch || has_refused);
        if is_closed_by_it && state.epoch < EPOCHS && state.call_offs == 0 {
            actions.push(Action::Reopen(at));
        }
        if mover.epoch == 0 || state.target == Here {
            return;
        }
        match mover.step {
            Step::Idle if mover.epoch == state.epoch || state.source == Gone => self.idle(state, at, is_free, actions),
            Step::Idle => {}
            Step::Read(_)
                if state.movers.iter().map(|mover| mover.writes).sum::<u8>() < WRITES
                    && state.writes.iter().any(Option::is_none) =>
            {
                actions.push(Action::Send(at));
            }
            Step::Read(_) => {}
            Step::Writing => actions.push(Action::GiveUp(at)),
            Step::Written(_) => actions.push(Action::Forget(at)),
            Step::Opening(_) => {
                actions.push(Action::Open(at));
                if state.late_open.is_none() {
                    actions.push(Action::GiveUpOpen(at));
                }
            }
            Step::Refusing(_) => {}
        }
    }

    fn idle(&self, state: &State, at: usize, is_free: bool, actions: &mut Vec<Action>) {
        let mover = &state.movers[at];
        let (is_owner, fills) = (mover.epoch == state.epoch, state.move_epoch == mover.epoch);
        match (state.source, state.target) {
            (Here, Absent | Gone) if !state.is_called_off && is_owner => actions.push(Action::Arrive(at)),
            (Here | Leaving | Gone, Arriving) if state.move_epoch < mover.epoch => actions.push(Action::Arrive(at)),
            (Here, Arriving) if state.is_called_off && fills => actions.push(Action::CleanTarget(at)),
            (Here, Arriving) if is_owner && fills => {
                if is_free {
                    actions.push(Action::Leave(at));
                }
                if !self.has(Guard::LeaveFirst) && !mover.is_copied {
                    actions.push(Action::ReadPage(at));
                }
            }
            (Leaving, Arriving) if state.is_called_off && is_owner && is_free => actions.push(Action::Return(at)),
            (Leaving, Arriving) if fills => Self::copy(state, at, is_free, actions),
            (Gone, Arriving) if fills => self.finish(state, at, actions),
            _ => {}
        }
        // The owner of a closed shard that the target does not take.
        let is_closed = (state.source, state.target) == (Gone, Arriving) && state.owner == at;
        if is_closed && state.move_epoch <= state.epoch && state.epoch < EPOCHS && state.call_offs == 0 {
            actions.push(Action::RefuseOpen(at));
        }
    }

    fn copy(state: &State, at: usize, is_free: bool, actions: &mut Vec<Action>) {
        let mover = &state.movers[at];
        if !mover.is_copied {
            actions.push(Action::ReadPage(at));
        }
        if state.notes != 0 {
            actions.push(Action::ReadChanges(at));
        }
        if mover.is_copied && mover.epoch == state.epoch && !state.is_called_off && is_free && state.epoch < EPOCHS {
            actions.push(Action::Close(at));
        }
    }

    fn finish(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let mover = &state.movers[at];
        if mover.is_final || !self.has(Guard::LastDelta) {
            actions.push(Action::SendOpen(at));
        } else if state.notes == 0 {
            actions.push(Action::LastChanges(at));
        } else {
            actions.push(Action::ReadChanges(at));
        }
    }

    pub(super) fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::TakeOver(at) => state.take_over(at),
            Action::Arrive(at) => self.arrive(state, at),
            Action::Leave(at) => {
                state.source = Leaving;
                state.overtake(at, End::Source);
                state.movers[at].is_copied &= !self.has(Guard::LeaveFirst);
            }
            Action::ReadPage(at) => read(state, at, true),
            Action::ReadChanges(at) => read(state, at, false),
            Action::Send(at) => state.send(at)?,
            Action::Execute(at) => self.execute(state, at),
            Action::GiveUp(at) => state.give_up(at),
            Action::Forget(at) => self.forget(state, at),
            Action::Return(at) => {
                (state.source, state.notes) = (Here, 0);
                state.movers[at].is_copied = false;
                state.overtake(at, End::Source);
            }
            Action::CleanTarget(at) => self.clean(state, at),
            Action::HoldUp(step) => self.hold_up(state, step),
            Action::ExecuteLate => self.execute_late(state)?,
            Action::SendOpen(at) => {
                state.movers[at].step = Step::Opening(state.movers[at].epoch);
                if self.has(Guard::OpenOnce) {
                    state.movers[at].closed = 0;
                }
            }
            Action::RefuseOpen(at) => {
                if self.has(Guard::RefuseOpen) {
                    (state.move_epoch, state.move_write) = (state.epoch + 1, state.movers[at].writes);
                }
                state.movers[at].step = Step::Refusing(state.epoch);
            }
            _ => cut(state, action)?,
        }
        Some(())
    }

    /// The target receives the shard, from a new owner or for a new move.
    fn arrive(&self, state: &mut State, at: usize) {
        let Mover { epoch, writes, .. } = state.movers[at];
        if state.target != Arriving {
            state.movers[at].is_copied = false;
        }
        state.overtake(at, End::Target);
        (state.target, state.move_epoch) = (Arriving, epoch);
        state.move_write = if self.has(Guard::WriteFloor) { writes } else { 0 };
    }

    /// A write comes to the target: page or round, late or not.
    fn execute(&self, state: &mut State, at: usize) {
        let Some(write) = state.writes[at].take() else { return };
        let is_of_owner = state.move_epoch == write.epoch || !self.has(Guard::MoveEpoch);
        let is_in_time = state.move_write < write.number || !self.has(Guard::WriteNumber);
        let is_written = state.target == Arriving && is_of_owner && is_in_time;
        if is_written {
            state.move_write = write.number;
            state.target_row = write.reading.row;
        }
        if !write.is_awaited {
            return;
        }
        let mover = &mut state.movers[write.mover];
        mover.step = if is_written && !write.reading.is_page { Step::Written(write.reading.notes) } else { Step::Idle };
        mover.is_copied |= is_written && write.reading.is_page;
    }

    /// Deletes the copy of a move that was called off, and ends the move in both databases. Both fences stay.
    fn clean(&self, state: &mut State, at: usize) {
        if self.has(Guard::ReturnUnleft) {
            state.overtake(at, End::Source);
        }
        state.overtake(at, End::Target);
        state.movers[at].writes += u8::from(state.target_row.is_some());
        (state.target_row, state.target) = (None, Gone);
    }

    /// The changes that were written are forgotten. After the close they stay: nothing new comes.
    fn forget(&self, state: &mut State, at: usize) {
        let Step::Written(notes) = state.movers[at].step else { return };
        state.movers[at].step = Step::Idle;
        if state.source == Gone {
            state.movers[at].is_final |= notes == state.notes;
        } else if notes != 0 {
            state.notes = if self.has(Guard::ForgetRead) { state.notes & !notes } else { 0 };
        }
    }
}

/// One snapshot shows the row and the notes. A page without rows needs no write.
fn read(state: &mut State, at: usize, is_page: bool) {
    let row: Row = state.source_row;
    let notes = if is_page { 0 } else { state.notes };
    let mover = &mut state.movers[at];
    if is_page && row.is_none() {
        mover.is_copied = true;
    } else {
        mover.step = Step::Read(Reading { row, notes, is_page });
    }
}

/// The statements of the cut.
fn cut(state: &mut State, action: Action) -> Option<()> {
    match action {
        Action::Close(at) => {
            state.source = Gone;
            state.epoch += 1;
            state.owner = at;
            state.movers[at].closed = state.epoch;
            state.movers[at].is_final = false;
            state.overtake(at, End::Source);
        }
        Action::LastChanges(at) => state.movers[at].is_final = true,
        Action::Open(at) => {
            let Step::Opening(epoch) = state.movers[at].step else { return None };
            open(state, epoch);
            (state.movers[at].step, state.movers[at].closed) = (Step::Idle, 0);
        }
        Action::GiveUpOpen(at) => {
            let Step::Opening(epoch) = state.movers[at].step else { return None };
            (state.late_open, state.movers[at].step) = (Some(epoch), Step::Idle);
        }
        Action::OpenLate => {
            let epoch = state.late_open.take()?;
            open(state, epoch);
        }
        Action::Reopen(at) => {
            state.source = Leaving;
            state.epoch += 1;
            state.owner = at;
            let (epoch, mover) = (state.epoch, &mut state.movers[at]);
            (mover.epoch, mover.closed) = (epoch, 0);
            if matches!(mover.step, Step::Refusing(_)) {
                mover.step = Step::Idle;
            }
        }
        _ => return None,
    }
    Some(())
}

/// An open comes to the target.
fn open(state: &mut State, epoch: u8) {
    if state.target == Arriving && state.move_epoch == epoch {
        state.target = Here;
    }
}
