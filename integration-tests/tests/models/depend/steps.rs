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

    /// A look comes to the row. It passes over a row that another transaction holds.
    pub(super) fn lock(&self, state: &mut State, at: usize) -> Option<()> {
        let look = state.looks[at].take()?;
        if state.is_held() {
            state.owes_row |= state.is_lucky && self.has(Guard::AskAgain);
            return Some(());
        }
        if state.place == Place::Waiting || !self.has(Guard::StillWaiting) {
            let waits = if self.has(Guard::LockedRow) { state.waits } else { look.waits };
            let rest = waits & !look.succeeded;
            let is_free = rest == 0 || rest != waits && !self.has(Guard::All);
            state.looks[at] = Some(Look { held: Some((rest, is_free)), ..look });
        }
        Some(())
    }

    pub(super) fn release(&self, state: &mut State, at: usize) -> Option<()> {
        let (rest, is_free) = state.looks[at].take()?.held?;
        state.waits = rest;
        if is_free {
            state.was_started_twice |= state.place == Place::Started;
            state.place = Place::Scheduled;
        }
        Some(())
    }
}
