//! The steps that a guard changes.

use super::{
    Depends, Guard,
    state::{ASKED, Look, Place, Put, State},
};

impl Depends {
    pub(super) fn write(&self, state: &mut State, at: usize) {
        let saw = if self.has(Guard::LookAfterCommit) { 0 } else { state.succeeded };
        state.puts[at] = Put::Written { saw };
    }

    /// The dependant is there as submitted last, and waits. Its writer looks at it next.
    pub(super) fn commit(&self, state: &mut State, at: usize) -> Option<()> {
        let Put::Written { saw } = state.puts[at] else { return None };
        state.puts[at] = Put::Ended;
        state.place = Place::Waiting;
        state.asked = ASKED[at];
        state.met = state.asked & state.succeeded;
        state.waits = state.asked & !saw;
        state.version += 1;
        if self.has(Guard::LookAfterCommit) {
            state.owes_row |= state.is_lucky;
        } else if state.waits == 0 {
            state.place = Place::Scheduled;
        }
        Some(())
    }

    pub(super) fn succeed(&self, state: &mut State, name: u8) {
        state.succeeded |= name;
        state.met |= state.asked & name;
        if state.is_lucky && self.has(Guard::LookAfterSuccess) {
            state.owes_names |= name;
        }
    }

    /// A look comes to the row. It passes over a row that another transaction holds, or has written since the snapshot.
    pub(super) fn lock(&self, state: &mut State, at: usize) -> Option<()> {
        let look = state.looks[at].take()?;
        if state.is_held() || look.version != state.version && self.has(Guard::Unchanged) {
            state.owes_row |= state.is_lucky && self.has(Guard::AskAgain);
            return Some(());
        }
        let rest = state.waits & !look.succeeded;
        let is_free = rest == 0 || rest != state.waits && !self.has(Guard::All);
        state.looks[at] = Some(Look { held: Some((rest, is_free)), ..look });
        Some(())
    }

    pub(super) fn release(&self, state: &mut State, at: usize) -> Option<()> {
        let (rest, is_free) = state.looks[at].take()?.held?;
        state.version += u8::from(is_free || rest != state.waits);
        state.waits = rest;
        if is_free {
            state.was_started_twice |= state.place == Place::Started;
            state.place = Place::Scheduled;
        }
        Some(())
    }
}
