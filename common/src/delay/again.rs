//! The entry to push again for a task that a claim passed over.

use std::time::Duration;

use super::heap::{Entry, WakeKind};
use crate::{ids::TaskId, task::TaskState, time::UnixMicros};

/// The shortest pause: most rows are held for only a few milliseconds, by one statement.
const SOONEST: Duration = Duration::from_millis(5);

/// The longest pause: an application's open transaction may hold a row for minutes, and there may be thousands of
/// such rows.
const LATEST: Duration = Duration::from_millis(500);

/// The pause for a task whose publish is under way or unconfirmed: its owner does not know the outcome yet.
const UNKNOWN: Duration = Duration::from_secs(1);

/// The entry to push for a task that a claim or a rescue passed over; `None` when the task needs no further look. The
/// task is in `state`, and its row wakes at `wake_at`. `ahead` is how long before its moment an entry leaves the heap.
///
/// A due task that was passed over is held by another transaction, or its queue has changed. The pause grows with the
/// time the task is overdue, up to a bound. A row that becomes free is thus found within a fraction of the time it
/// was held.
pub fn again(id: TaskId, state: TaskState, wake_at: UnixMicros, now: UnixMicros, ahead: Duration) -> Option<Entry> {
    let (kind, wake_at) = match state {
        TaskState::Scheduled => {
            let pause = (now.since(wake_at) / 4).clamp(SOONEST, LATEST);
            (WakeKind::Claim, wake_at.max(now.plus(ahead + pause)))
        }
        TaskState::Dispatching => (WakeKind::Rescue, now.plus(UNKNOWN)),
        // A nudge said that the task's dependencies may have succeeded.
        TaskState::Waiting => (WakeKind::Look, now),
        TaskState::Delivered | TaskState::Running => (WakeKind::Deadline, wake_at),
        TaskState::Ready
        | TaskState::Succeeded
        | TaskState::Dead
        | TaskState::Cancelled
        | TaskState::Superseded
        | TaskState::Expired => return None,
    };
    Some(Entry { wake_at, id, kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ShardId;

    const AHEAD: Duration = Duration::from_millis(30);

    fn at_ms(millis: i64) -> UnixMicros {
        UnixMicros::new(millis * 1_000)
    }

    fn asked_again(state: TaskState, wake_at: UnixMicros, now: UnixMicros) -> Option<(WakeKind, UnixMicros)> {
        let id = TaskId::mint(uuid::Uuid::nil(), ShardId::new(3));
        again(id, state, wake_at, now, AHEAD).map(|entry| (entry.kind, entry.wake_at))
    }

    #[test]
    fn a_task_that_was_moved_wakes_at_its_new_moment() {
        assert_eq!(
            asked_again(TaskState::Scheduled, at_ms(9_000), at_ms(1_000)),
            Some((WakeKind::Claim, at_ms(9_000)))
        );
        assert_eq!(
            asked_again(TaskState::Delivered, at_ms(9_000), at_ms(1_000)),
            Some((WakeKind::Deadline, at_ms(9_000)))
        );
    }

    #[test]
    fn a_task_that_is_held_is_asked_for_soon_and_then_less_and_less_often_up_to_a_bound() {
        let pause = |overdue_ms| {
            let (_, at) = asked_again(TaskState::Scheduled, at_ms(0), at_ms(overdue_ms)).expect("it is still due");
            at.since(at_ms(overdue_ms)) - AHEAD
        };
        assert_eq!(pause(0), SOONEST);
        assert_eq!(pause(400), Duration::from_millis(100));
        assert_eq!(pause(3_600_000), LATEST);
    }

    #[test]
    fn what_is_out_is_rescued_and_what_waits_is_looked_at() {
        assert_eq!(
            asked_again(TaskState::Dispatching, at_ms(46_000), at_ms(1_000)),
            Some((WakeKind::Rescue, at_ms(2_000)))
        );
        assert_eq!(asked_again(TaskState::Waiting, at_ms(60_000), at_ms(1_000)), Some((WakeKind::Look, at_ms(1_000))));
        assert_eq!(asked_again(TaskState::Ready, at_ms(0), at_ms(1_000)), None);
    }
}
