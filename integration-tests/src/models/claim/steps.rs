//! The steps that a guard changes.

use super::{
    Claims, Guard,
    state::{
        Kind,
        Place::{Cancelled, Dead, Delivered, Dispatching, Scheduled},
        State, Statement, Work,
    },
};

impl Claims {
    /// The first half of a claim or a rescue: the snapshot, and the fence.
    pub(super) fn read(&self, state: &mut State, at: usize) -> Option<()> {
        let mut statement = state.statements[at]?;
        let wanted = if statement.kind == Kind::Claim { Scheduled } else { Dispatching };
        let is_fenced = statement.epoch == state.fence || !self.has(Guard::Epoch);
        statement.read = Some((is_fenced, state.place == wanted));
        state.statements[at] = Some(statement);
        Some(())
    }

    pub(super) fn cancel(&self, state: &mut State) {
        state.was_taken_in_flight = state.place != Scheduled;
        state.place = Cancelled;
        state.is_promised = state.attempt == 0 || !self.has(Guard::CancelByAttempt);
    }

    /// The second half of a statement: the row as it is now, and the answer.
    pub(super) fn write(&self, state: &mut State, at: usize) {
        let Some(statement) = state.statements[at].take() else { return };
        match statement.kind {
            Kind::Deliver(attempt) => {
                let of_attempt = state.attempt == attempt || !self.has(Guard::SettleAttempt);
                let is_open = state.place == Dispatching || !self.has(Guard::SettleState) && state.place == Scheduled;
                if of_attempt && is_open {
                    state.place = Delivered;
                }
                if statement.is_awaited {
                    state.nodes[statement.node].work = Work::Idle;
                }
            }
            Kind::Claim | Kind::Rescue => {
                let taken = self.take(state, &statement);
                if statement.is_awaited {
                    state.nodes[statement.node].work = taken.unwrap_or(Work::Idle);
                }
            }
        }
    }

    pub(super) fn take(&self, state: &mut State, statement: &Statement) -> Option<Work> {
        let (is_fenced, was_right) = statement.read?;
        let is_claim = statement.kind == Kind::Claim;
        let is_right = match (is_claim, state.place) {
            (true, Scheduled) | (false, Dispatching) => true,
            (true, Dispatching | Delivered) => !self.has(Guard::ClaimState),
            _ => false,
        };
        if !(is_fenced && was_right && is_right) || is_claim && state.attempt == self.bounds.attempts {
            return None;
        }
        state.was_claimed_under_old_epoch |= statement.epoch != state.fence;
        if is_claim {
            state.attempt += 1;
            state.place = Dispatching;
        } else if !self.has(Guard::RescueInPlace) {
            self.undo(state);
            return None;
        }
        Some(Work::Held { attempt: state.attempt, is_marked: !is_claim && self.has(Guard::Mark) })
    }

    /// Takes a claim back, which Duetime never does.
    pub(super) fn undo(&self, state: &mut State) {
        state.place = Scheduled;
        state.attempt -= 1;
    }

    pub(super) fn reject(&self, state: &mut State, attempt: u8) {
        state.copies[usize::from(attempt - 1)].rejected += 1;
        let of_attempt = state.attempt == attempt || !self.has(Guard::RejectAttempt);
        if !of_attempt || !matches!(state.place, Dispatching | Delivered) {
            return;
        }
        state.failed |= 1 << state.attempt;
        state.place = if self.bounds.last & (1 << state.attempt) != 0 { Dead } else { Scheduled };
        if !self.has(Guard::AttemptGoesOn) {
            state.attempt = 0;
        }
    }

    pub(super) fn unknown(&self, state: &mut State, node: usize) {
        let Work::Sent(attempt) = state.nodes[node].work else { return };
        state.nodes[node].work = Work::Idle;
        let is_mine = state.place == Dispatching && state.attempt == attempt;
        if is_mine && !self.has(Guard::Unknown) {
            self.undo(state);
        }
        if is_mine && !self.has(Guard::SettleOnConfirm) {
            state.place = Delivered;
        }
    }
}
