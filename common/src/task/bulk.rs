//! One action on many tasks: which of the found tasks it may apply to.
//!
//! The SQL statements check the same conditions on the rows themselves. The decision here shows which rows need no
//! statement, and what a dry run answers.

use serde::{Deserialize, Serialize};

use crate::{ids::TaskId, task::TaskState, time::UnixMicros};

/// The action on each task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkAction {
    Cancel,
    /// Gives a dead task new attempts.
    Retry,
    Run,
    Move(Target),
}

/// The due time that a move sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Moves all tasks to one moment; a past moment means now.
    At(UnixMicros),
    /// Shifts each task by so many milliseconds, to no earlier than now.
    By { shift_ms: i64 },
}

/// A task as the walk found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkCandidate {
    pub id: TaskId,
    pub state: TaskState,
    pub due_at: UnixMicros,
    pub expires_at: Option<UnixMicros>,
    /// Another task has its key, in its version or a newer one.
    pub key_taken: bool,
}

/// Why a found task stays unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// The task is claimed, or it has finished.
    InFlight,
    /// The task would expire before it is due.
    WouldExpire,
    /// Another task has the key of this dead task by now.
    KeyTaken,
    /// The queue of this dead task has another `placement` by now, so its tasks are on other shards.
    PlacedAnew,
    /// The queue of this dead task was deleted, so no consumer would read its message.
    QueueDeleted,
    /// Another transaction locks the task's row.
    Held,
    /// The database stopped answering before this task of a shift had its turn, or during it.
    Unavailable,
    /// A reason that this version does not know: a newer node gave it. A client must be able to read the answer all the
    /// same, because the action has taken effect by then.
    #[serde(other)]
    Other,
}

impl BulkAction {
    /// Checks whether the action may apply to the task in the state it was found in.
    pub fn check(self, seen: &BulkCandidate, now: UnixMicros) -> Result<(), SkipReason> {
        match self {
            Self::Retry if seen.state != TaskState::Dead => Err(SkipReason::InFlight),
            Self::Retry if seen.key_taken => Err(SkipReason::KeyTaken),
            Self::Retry => Ok(()),
            Self::Cancel if !seen.state.may_be_cancelled() => Err(SkipReason::InFlight),
            Self::Run | Self::Move(_) if !seen.state.may_be_changed() => Err(SkipReason::InFlight),
            Self::Move(target) => match seen.expires_at {
                Some(expires_at) if expires_at <= target.of(seen.due_at, now) => Err(SkipReason::WouldExpire),
                _ => Ok(()),
            },
            // An expired task may not be archived yet.
            Self::Run => Self::Move(Target::At(now)).check(seen, now),
            Self::Cancel => Ok(()),
        }
    }
}

impl Target {
    /// The due time after the move of a task that was due at `due_at`.
    pub fn of(self, due_at: UnixMicros, now: UnixMicros) -> UnixMicros {
        let moved = match self {
            Self::At(moment) => moment,
            Self::By { shift_ms } => due_at.shifted(shift_ms),
        };
        moved.max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMicros = UnixMicros::new(1_700_000_000_000_000);
    const ACTS: [BulkAction; 4] =
        [BulkAction::Cancel, BulkAction::Retry, BulkAction::Run, BulkAction::Move(Target::At(NOW))];

    fn seen(state: TaskState) -> BulkCandidate {
        BulkCandidate {
            id: TaskId::from_uuid(uuid::Uuid::nil()),
            state,
            due_at: NOW,
            expires_at: None,
            key_taken: false,
        }
    }

    #[test]
    fn what_may_be_done_to_one_task_may_be_done_to_many_and_nothing_else() {
        use crate::task::oracle::{Event, transition};
        for state in TaskState::ALL {
            for (act, event) in ACTS.into_iter().zip([Event::Cancel, Event::Revive, Event::Move, Event::Move]) {
                let allowed = act.check(&seen(state), NOW);
                assert_eq!(allowed.is_ok(), transition(state, event).is_ok(), "{act:?} of a {state} task");
                assert!(matches!(allowed, Ok(()) | Err(SkipReason::InFlight)));
            }
        }
    }

    #[test]
    fn a_move_may_not_lead_past_the_expiry_and_a_retry_not_to_a_key_that_is_taken() {
        let later = |ms| NOW.shifted(ms);
        let expiring = BulkCandidate { expires_at: Some(later(1_000)), ..seen(TaskState::Scheduled) };
        for (target, allowed) in [
            (Target::At(later(999)), Ok(())),
            (Target::At(later(1_000)), Err(SkipReason::WouldExpire)),
            (Target::By { shift_ms: 999 }, Ok(())),
            (Target::By { shift_ms: 1_000 }, Err(SkipReason::WouldExpire)),
            (Target::By { shift_ms: -5 }, Ok(())),
        ] {
            assert_eq!(BulkAction::Move(target).check(&expiring, NOW), allowed, "{target:?}");
        }
        assert_eq!(BulkAction::Run.check(&expiring, NOW), Ok(()));
        assert_eq!(BulkAction::Run.check(&expiring, later(1_000)), Err(SkipReason::WouldExpire));
        let taken = BulkCandidate { key_taken: true, ..seen(TaskState::Dead) };
        assert_eq!(BulkAction::Retry.check(&taken, NOW), Err(SkipReason::KeyTaken));
    }

    #[test]
    fn nothing_is_moved_into_the_past_or_out_of_time() {
        assert_eq!(Target::At(UnixMicros::new(5)).of(NOW, NOW), NOW);
        assert_eq!(Target::By { shift_ms: -1 }.of(NOW, NOW), NOW);
        assert_eq!(Target::By { shift_ms: i64::MAX }.of(NOW, NOW), UnixMicros::LAST);
        assert_eq!(Target::By { shift_ms: i64::MIN }.of(NOW, NOW), NOW);
    }
}
