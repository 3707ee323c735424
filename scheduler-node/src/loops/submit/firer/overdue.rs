//! The schedules that no node decides are postponed.
//!
//! A node leaves what it cannot decide in the row as it came due, so that another one finds it there. What has stayed
//! for some seconds, no node has decided. It would come before all that is due later, and looks would read past it and
//! past all index entries that fire times have left since. So it is postponed in the row, a bounded number a second.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use common::{delay::rest, ids::ShardId};

use super::{Firer, LEFT_ALONE_MOST, POSTPONE, is_full};
use crate::{store::schedules::Revision, working_set::retry::try_each};

/// What has been due for this long, no node could decide. The others look after half a second.
const OVERDUE_AFTER: Duration = Duration::from_secs(5);

/// The most schedules that are postponed together.
const POSTPONED_AT_ONCE: i64 = 500;

/// The back-off where there are more than that: with the number of them, looks and writes would get more and more.
const POSTPONE_MANY: Duration = Duration::from_secs(10);

/// The shortest interval at which a node postpones. It writes a thousand of them a second at the most.
const EVERY: Duration = Duration::from_millis(500);

/// How long after its back-off a schedule counts as one that this node could not decide.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// The schedules that this node read and could not decide, and until when it remembers each.
    undecided: VecDeque<(Revision, Instant)>,
    rests_until: Option<Instant>,
}

impl Overdue {
    /// Notes a schedule that this node could not decide and leaves alone for so long.
    pub(super) fn note(&mut self, revision: Revision, left_alone_for: Duration) {
        self.undecided.push_back((revision, Instant::now() + left_alone_for + REMEMBERED_FOR));
        if self.undecided.len() > LEFT_ALONE_MOST {
            self.undecided.pop_front();
        }
    }

    /// The schedules that this node could not decide. `None`: it has just postponed some.
    fn undecided(&mut self, now: Instant) -> Option<Vec<Revision>> {
        self.undecided.retain(|(_, until)| *until > now);
        let may_begin = self.rests_until.is_none_or(|until| until <= now);
        may_begin.then(|| self.undecided.iter().map(|(revision, _)| *revision).collect())
    }
}

impl Firer {
    /// Postpones schedules that no node has decided for some seconds and that this one cannot decide: those that it
    /// could not, and those that depend on a last task of the shards in `unknown`. It uses a tenth of the time.
    pub(super) async fn postpone_overdue(&self, unknown: &[ShardId]) {
        let began = Instant::now();
        let Some(undecided) = self.overdue.lock().undecided(began) else { return };
        if undecided.is_empty() && unknown.is_empty() {
            return;
        }
        self.postpone_those(&undecided, unknown).await;
        self.overdue.lock().rests_until = Some(Instant::now() + rest(began.elapsed()).max(EVERY));
    }

    async fn postpone_those(&self, undecided: &[Revision], unknown: &[ShardId]) {
        let _one = self.statement().await;
        let home = self.store.home();
        // Others leave this to the master.
        let during = OVERDUE_AFTER + self.lag();
        // Where the first database does not answer, the look says so.
        let Ok(overdue) = home.schedule_overdue(during, POSTPONED_AT_ONCE, undecided, unknown).await else { return };
        let later = if is_full(overdue.len(), POSTPONED_AT_ONCE) { POSTPONE_MANY } else { POSTPONE };
        // One that another transaction holds, or whose write is refused, stays as it is, and keeps no other back.
        let tried = try_each(&overdue, |part| async move {
            let read: Vec<_> = part.iter().map(|(name, revision)| (name, *revision)).collect();
            home.schedule_postpone(&read, later).await
        });
        let tried = tried.await;
        if let Some((part, error)) = tried.left.first() {
            let (schedules, error) = (part.len(), error as &dyn std::error::Error);
            tracing::debug!(schedules, error, "schedules that no node decides could not be postponed; retrying");
        }
    }
}
