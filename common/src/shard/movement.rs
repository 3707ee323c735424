//! What comes next in the move of a shard to another database, by the fence rows of its source and its target.
//!
//! The rows are all that a node knows after a crash, so every pair of statuses has an answer. A node asks again after
//! each step.

use super::ShardStatus;

/// The state of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveState {
    /// `None`: the database has no fence of the shard.
    pub source: Option<ShardStatus>,
    pub target: Option<ShardStatus>,
    pub is_called_off: bool,
    /// Whether every page of the shard is in the target. Changes since then may not be.
    pub is_copied: bool,
}

/// The next step of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStep {
    /// Let the target receive the shard: its row becomes `arriving`.
    Arrive,
    /// Note the changes in the source from now on: its row becomes `leaving`.
    Leave,
    /// Copy the next page, or the changes.
    Copy,
    /// Stop claims, close the shard in the source, write the last changes, open it in the target.
    Cut,
    /// The shard is closed already: write the last changes, open it in the target. If the target does not take them,
    /// the source opens again, as in `Reopen`.
    FinishCut,
    /// The shard is closed, and stays in the source: have the target refuse every open so far, open it in the source.
    Reopen,
    /// Delete what is left in the source; then the move has ended.
    CleanSource,
    /// Go on in the source as before: its row becomes `here`.
    Return,
    /// Delete the copy in the target.
    CleanTarget,
    /// The move was called off, and nothing is left of it.
    EndCalledOff,
    /// The rows contradict the move. Only a person can tell what has happened.
    Stuck,
}

/// Decides the next step.
///
/// | source | target | step |
/// |---|---|---|
/// | here | none or gone | Arrive; called off: the end |
/// | here | arriving | Leave; called off: CleanTarget |
/// | leaving | arriving | Copy, and then Cut; called off: Return |
/// | leaving | none or gone | Return: the target has lost its row, and the copy begins anew |
/// | gone | arriving | FinishCut; called off: Reopen |
/// | gone | here or leaving | CleanSource |
/// | any other | | Stuck |
///
/// A shard that is leaving is open, so a mover that knows of a call-off returns it without asking the target.
pub fn next_step(state: MoveState) -> MoveStep {
    use ShardStatus::{Arriving, Gone, Here, Leaving};
    let is_called_off = state.is_called_off;
    match (state.source, state.target) {
        (Some(Here), None | Some(Gone)) if is_called_off => MoveStep::EndCalledOff,
        (Some(Here), None | Some(Gone)) => MoveStep::Arrive,
        (Some(Here), Some(Arriving)) if is_called_off => MoveStep::CleanTarget,
        (Some(Here), Some(Arriving)) => MoveStep::Leave,
        (Some(Leaving), Some(Arriving)) if is_called_off => MoveStep::Return,
        (Some(Leaving), Some(Arriving)) if state.is_copied => MoveStep::Cut,
        (Some(Leaving), Some(Arriving)) => MoveStep::Copy,
        (Some(Leaving), None | Some(Gone)) => MoveStep::Return,
        (Some(Gone), Some(Arriving)) if is_called_off => MoveStep::Reopen,
        (Some(Gone), Some(Arriving)) => MoveStep::FinishCut,
        (Some(Gone), Some(Here | Leaving)) => MoveStep::CleanSource,
        (Some(Here | Leaving), Some(Here | Leaving)) | (Some(Gone), None | Some(Gone)) => MoveStep::Stuck,
        (None | Some(Arriving), _) => MoveStep::Stuck,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ShardStatus::{Arriving, Gone, Here, Leaving};

    const ALL: [Option<ShardStatus>; 5] = [None, Some(Here), Some(Leaving), Some(Gone), Some(Arriving)];

    fn states() -> impl Iterator<Item = MoveState> {
        ALL.into_iter().flat_map(|source| {
            ALL.into_iter().flat_map(move |target| {
                [false, true].into_iter().flat_map(move |is_called_off| {
                    [false, true].map(|is_copied| MoveState { source, target, is_called_off, is_copied })
                })
            })
        })
    }

    /// The state after a step, or `None` at the end.
    fn after(state: MoveState) -> Option<MoveState> {
        let row = |source, target| Some(MoveState { source, target, ..state });
        match next_step(state) {
            MoveStep::Arrive => row(state.source, Some(Arriving)),
            MoveStep::Leave => row(Some(Leaving), state.target),
            MoveStep::Copy => Some(MoveState { is_copied: true, ..state }),
            MoveStep::Cut => row(Some(Gone), state.target),
            MoveStep::FinishCut => row(state.source, Some(Here)),
            MoveStep::Reopen => row(Some(Leaving), state.target),
            MoveStep::Return => Some(MoveState { source: Some(Here), is_copied: false, ..state }),
            MoveStep::CleanTarget => row(state.source, Some(Gone)),
            MoveStep::CleanSource | MoveStep::EndCalledOff | MoveStep::Stuck => None,
        }
    }

    fn is_open(status: Option<ShardStatus>) -> bool {
        status.is_some_and(ShardStatus::is_open)
    }

    #[test]
    fn from_wherever_a_crash_left_it_a_move_ends_in_a_few_steps() {
        for start in states() {
            let mut state = start;
            for step in 0.. {
                assert!(step < 8, "no end from {start:?}");
                let Some(next) = after(state) else { break };
                state = next;
            }
        }
    }

    #[test]
    fn no_step_opens_a_shard_in_a_second_database() {
        for state in states().filter(|state| !(is_open(state.source) && is_open(state.target))) {
            let Some(next) = after(state) else { continue };
            assert!(!(is_open(next.source) && is_open(next.target)), "{state:?}");
        }
    }

    #[test]
    fn a_shard_that_is_open_in_both_databases_or_in_none_is_left_to_a_person() {
        for state in states() {
            let is_doubled = is_open(state.source) && is_open(state.target);
            let is_lost = state.source == Some(Gone) && matches!(state.target, None | Some(Gone));
            if is_doubled || is_lost {
                assert_eq!(next_step(state), MoveStep::Stuck, "{state:?}");
            }
        }
    }

    #[test]
    fn no_rows_are_deleted_in_the_database_that_has_the_shard() {
        for state in states() {
            match next_step(state) {
                MoveStep::CleanSource => assert!(is_open(state.target) && !is_open(state.source), "{state:?}"),
                MoveStep::CleanTarget => assert!(is_open(state.source) && !is_open(state.target), "{state:?}"),
                _ => {}
            }
        }
    }

    #[test]
    fn a_move_is_called_off_until_its_target_has_the_shard_and_no_later() {
        let state = |source, target| MoveState { source, target, is_called_off: true, is_copied: true };
        assert_eq!(next_step(state(Some(Leaving), Some(Arriving))), MoveStep::Return);
        assert_eq!(next_step(state(Some(Here), Some(Arriving))), MoveStep::CleanTarget);
        assert_eq!(next_step(state(Some(Here), None)), MoveStep::EndCalledOff);
        assert_eq!(next_step(state(Some(Gone), Some(Arriving))), MoveStep::Reopen);
        assert_eq!(next_step(state(Some(Gone), Some(Here))), MoveStep::CleanSource);
    }

    #[test]
    fn the_cut_waits_for_the_whole_copy() {
        let state =
            |is_copied| MoveState { source: Some(Leaving), target: Some(Arriving), is_called_off: false, is_copied };
        assert_eq!(next_step(state(false)), MoveStep::Copy);
        assert_eq!(next_step(state(true)), MoveStep::Cut);
    }
}
