//! The schedules that no node decides are postponed.
//!
//! A node leaves what it cannot decide in the row as it came due, so that another one finds it there. What has stayed
//! for some seconds, no node has decided. It would come before all that is due later, and looks would read past it and
//! past all index entries that fire times have left since. So it is postponed in the row, a bounded number a second.
//!
//! While the first database was away, no node could decide anything, and right after a start this node does not know
//! yet which databases it reaches. So it postpones only after it has looked for some seconds without a gap.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use common::delay::rest;

use super::{Firer, LEFT_ALONE_MOST, POSTPONE};
use crate::store::schedules::Revision;

/// What has been due for this long, no node could decide. The others look after half a second.
const OVERDUE_AFTER: Duration = Duration::from_secs(5);

/// A longer pause between two looks is a gap. Mostly it is half a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The most schedules that are postponed together.
const POSTPONED_AT_ONCE: i64 = 500;

/// The back-off where there are as many: with the number of them, looks and writes would get more and more. It is half
/// the smallest `catch_up_ms`.
const POSTPONE_MANY: Duration = Duration::from_secs(5);

/// The shortest interval at which a node postpones. It writes a thousand of them a second at the most.
const EVERY: Duration = Duration::from_millis(500);

/// How long after its back-off a schedule counts as one that this node could not decide.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// The schedules that this node read and could not decide, and until when it remembers each.
    undecided: VecDeque<(Revision, Instant)>,
    /// The end of the last look, if the first database answered.
    looked_at: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Overdue {
    /// Notes a look that ended at `now`. After a gap nothing is postponed for as long as a schedule has to be due. That
    /// counts from the end of the look: it may itself have waited for the database.
    pub(super) fn looked(&mut self, began: Instant, is_answered: bool, now: Instant) {
        if self.looked_at.is_none_or(|at| at + LONGEST_PAUSE < began) {
            self.rests_until = self.rests_until.max(Some(now + OVERDUE_AFTER));
        }
        self.looked_at = is_answered.then_some(now);
    }

    /// Notes a schedule that this node could not decide and leaves alone for so long.
    pub(super) fn note(&mut self, revision: Revision, left_alone_for: Duration) {
        self.undecided.retain(|(noted, _)| *noted != revision);
        self.undecided.push_back((revision, Instant::now() + left_alone_for + REMEMBERED_FOR));
        if self.undecided.len() > LEFT_ALONE_MOST {
            self.undecided.pop_front();
        }
    }

    /// The schedules that this node could not decide. `None`: it has just postponed some, or has not looked for long
    /// enough.
    fn undecided(&mut self, now: Instant) -> Option<Vec<Revision>> {
        self.undecided.retain(|(_, until)| *until > now);
        let may_begin = self.rests_until.is_none_or(|until| until <= now);
        may_begin.then(|| self.undecided.iter().map(|(revision, _)| *revision).collect())
    }

    /// Acts as if this node had looked for some seconds.
    #[cfg(test)]
    pub(super) fn has_looked(&mut self) {
        (self.looked_at, self.rests_until) = (Some(Instant::now()), None);
    }
}

impl Firer {
    /// Postpones schedules that no node has decided for some seconds and that this one cannot decide: those that it
    /// could not, and those that depend on a last task of which it cannot learn now. It uses a tenth of the time.
    pub(super) async fn postpone_overdue(&self) {
        let began = Instant::now();
        let Some(undecided) = self.overdue.lock().undecided(began) else { return };
        let unknown = self.unknown_shards();
        if undecided.is_empty() && unknown.is_empty() {
            return;
        }
        let one = self.statement().await;
        // Others leave this to the master.
        let (home, during) = (self.store.home(), OVERDUE_AFTER + self.lag());
        let later = [POSTPONE, POSTPONE_MANY];
        let postponed = home.schedule_overdue(during, POSTPONED_AT_ONCE, &undecided, &unknown, later).await;
        drop(one);
        if let Err(error) = postponed {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(error, "schedules that no node decides could not be postponed; retrying");
        }
        self.overdue.lock().rests_until = Some(Instant::now() + rest(began.elapsed()).max(EVERY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_postponed_only_after_some_seconds_of_looks_without_a_gap() {
        let (mut overdue, began) = (Overdue::default(), Instant::now());
        let may_begin = |overdue: &mut Overdue, at: Instant| overdue.undecided(at).is_some();
        let mut look = |from: Instant, is_answered: bool| {
            overdue.looked(from, is_answered, from);
            may_begin(&mut overdue, from)
        };
        let seconds = |count: u64| began + Duration::from_secs(count);
        // Each node has just started.
        assert_eq!([0, 1, 2, 3, 4, 5].map(|at| look(seconds(at), true)), [false, false, false, false, false, true]);
        // The first database did not answer.
        assert!(look(seconds(6), false));
        assert_eq!([7, 9, 11, 12].map(|at| look(seconds(at), true)), [false, false, false, true]);
        // The node stood still, or knew the first database to be away.
        assert_eq!([15, 17, 19, 20].map(|at| look(seconds(at), true)), [false, false, false, true]);
        // The first look waited for the database, or read past very many schedules.
        let mut overdue = Overdue::default();
        overdue.looked(began, true, seconds(8));
        assert!(!may_begin(&mut overdue, seconds(8)) && may_begin(&mut overdue, seconds(13)));
    }

    #[test]
    fn a_schedule_that_is_undecided_again_is_remembered_once() {
        let mut overdue = Overdue::default();
        for revision in [1, 2, 1] {
            overdue.note(Revision::of(revision), Duration::from_secs(1));
        }
        assert_eq!(overdue.undecided(Instant::now()), Some([2, 1].map(Revision::of).to_vec()));
    }
}
