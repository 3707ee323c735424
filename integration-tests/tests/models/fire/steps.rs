//! The steps that a guard changes.

use super::{
    Fires, Guard,
    state::{Fire, Put, State, Step, Task},
};

impl Fires {
    /// Moves the schedule on, and notes the fire time with the id of its task.
    pub(super) fn turn(&self, state: &mut State, at: usize) -> Option<()> {
        let read = state.turns[at].take()?;
        if read.revision != state.revision && self.has(Guard::TurnCompares) {
            return Some(());
        }
        let place = state.fires.iter().position(Option::is_none)?;
        let is_noted = self.has(Guard::NoteWithTurn);
        state.fires[place] = Some(Fire { time: read.next, is_noted, is_held: true, task: Task::Absent });
        state.revision += 1;
        state.next = read.next + 1;
        Some(())
    }

    /// Sets the schedule anew, from now on. A fire time is decided some seconds ahead, so it may be to come.
    pub(super) fn change(&self, state: &mut State) -> Option<()> {
        let read = state.change.take()?;
        if read.revision != state.revision && self.has(Guard::ChangeCompares) {
            return Some(());
        }
        state.revision += 1;
        state.next = if self.has(Guard::Since) { read.next } else { read.next.saturating_sub(1) };
        Some(())
    }

    /// A put takes the lock of its key and looks whether the task is there.
    pub(super) fn look(&self, state: &mut State, at: usize) -> Option<()> {
        let put = state.puts[at]?;
        if put.is_late && self.has(Guard::Until) {
            state.puts[at] = None;
            return Some(());
        }
        let Fire { time, task, .. } = state.fires[put.fire]?;
        let is_kept = task != Task::Absent && task != Task::Dropped;
        let by_id = task == Task::Live || is_kept && self.has(Guard::KnownById);
        // What was cancelled does not hold its key.
        let by_key = state.has(time, Task::Live) || state.has(time, Task::Succeeded);
        state.puts[at] = Some(Put { step: Step::Looked(!by_id && !by_key), ..put });
        Some(())
    }

    /// The put writes and commits. Of two live tasks with one id or one key, a unique index refuses the second.
    pub(super) fn insert(state: &mut State, at: usize) -> Option<()> {
        let put = state.puts[at]?;
        let fire = state.fires[put.fire]?;
        if put.step == Step::Looked(true) {
            if state.has(fire.time, Task::Live) {
                state.puts[at] = None;
                return Some(());
            }
            state.fires[put.fire] = Some(Fire { task: Task::Live, ..fire });
            let made = &mut state.made[usize::from(fire.time)];
            *made = (*made + 1).min(2);
        }
        state.puts[at] = Some(Put { step: Step::Answered, ..put });
        Some(())
    }

    pub(super) fn done(&self, state: &mut State, at: usize) -> Option<()> {
        let put = state.puts[at]?;
        state.fires[put.fire].as_mut()?.is_noted = false;
        if put.step == Step::Answered {
            state.puts[at] = None;
        }
        Some(())
    }

    /// Whether a decided fire time has its task, or a node will make it.
    pub(super) fn is_kept(&self, state: &State, at: usize) -> bool {
        let Some(fire) = state.fires[at] else { return true };
        let is_made = state.made[usize::from(fire.time)] > 0;
        is_made || fire.is_held || state.has_put(at) || fire.is_noted && self.has(Guard::AnyNodeMakes)
    }
}
