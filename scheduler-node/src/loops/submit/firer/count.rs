//! The master's passes over all schedules: it counts them, and corrects those whose clock was set back or whose time
//! zone has other rules since an upgrade. What such a clock has put off is looked at now.

use std::time::{Duration, Instant};

use common::{
    ids::{ScheduleName, Term},
    schedule::{FireDecision, MOST_AHEAD},
};
use futures::StreamExt;
use tokio::task::JoinSet;

use super::{Firer, HOLD, POSTPONE_REFUSED, READ_AT_ONCE, STATEMENTS_AT_ONCE};
use crate::{
    store::{
        Error, Fault,
        schedules::{LookedAtWithin, ScheduleRecord},
    },
    supervise::{Work, at_work},
};

/// The pause after a pass that failed, or that corrected nothing although schedules lie ahead of the clock: it cannot
/// read them, or knows the former clock. Each pass reads all schedules.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The longest back-off and the longest hold, and what the clock of a server that takes over may be behind. What waits
/// longer was put off by a clock that was ahead.
const LOOKED_AT_WITHIN: LookedAtWithin = LookedAtWithin {
    schedule: POSTPONE_REFUSED.saturating_add(Duration::from_secs(300)),
    fire: HOLD.saturating_add(Duration::from_secs(60)),
};

/// The most schedules, and the most fire times, of one statement that has them looked at now. It takes a second.
const WOKEN_AT_ONCE: i64 = 10_000;

/// The passes that correct schedules. One runs at a time, beside the decisions.
#[derive(Debug, Default)]
pub(super) struct Corrections {
    pass: JoinSet<Result<usize, Error>>,
    /// The term in which the last pass began.
    term: Option<Term>,
    /// The schedules ahead of the clock when the last pass began, unless it has corrected some.
    left: i64,
    /// Whether the last pass failed, so that it is to be repeated.
    has_failed: bool,
    /// After a pass that failed without an outage, or was in vain: when the next one may begin without further ones
    /// ahead of the clock.
    rests_until: Option<Instant>,
}

impl Corrections {
    /// Takes the result of a pass that has ended. One that failed is repeated, without an outage after a rest: an open
    /// transaction may hold one schedule for hours.
    fn end(&mut self) {
        let rest = || Some(Instant::now() + AGAIN_AFTER);
        match self.pass.try_join_next() {
            None => {}
            Some(Ok(Ok(0))) => self.rests_until = rest(),
            Some(Ok(Ok(_))) => (self.left, self.rests_until) = (0, None),
            Some(Ok(Err(error))) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "cannot correct the schedules");
                // An outage passes soon, and ends a pass at once.
                (self.has_failed, self.rests_until) = (true, rest().filter(|_| error.fault() != Fault::Outage));
            }
            Some(Err(error)) => {
                tracing::error!(error = &error as &dyn std::error::Error, "the correction of schedules broke off");
                (self.has_failed, self.rests_until) = (true, rest());
            }
        }
    }

    /// Whether a pass is to begin, with so many schedules ahead of the clock.
    fn is_wanted(&self, term: Option<Term>, ahead: i64) -> bool {
        let rests = self.rests_until.is_some_and(|until| Instant::now() < until);
        self.term != term || ahead > self.left || (self.has_failed || ahead > 0) && !rests
    }
}

impl Firer {
    /// Counts the schedules on the master. It begins to correct them if it has not yet done so in its term, or if some
    /// lie far ahead of the clock. What was put off is looked at now.
    pub(super) async fn count(&self, corrections: &mut Corrections) {
        let _work = at_work();
        corrections.end();
        let term = self.mastership.borrow().term;
        if term.is_none() {
            self.metrics.schedules.set(0);
            return;
        }
        let home = self.store.home();
        let Ok(count) = home.schedule_count(MOST_AHEAD, LOOKED_AT_WITHIN).await else { return };
        self.metrics.schedules.set(count.schedules);
        if count.put_off > 0 {
            self.wake_put_off().await;
        }
        let is_wanted = corrections.is_wanted(term, count.ahead);
        if is_wanted && corrections.pass.is_empty() && home.clock().at(Instant::now()).is_some() {
            (corrections.term, corrections.left, corrections.has_failed) = (term, count.ahead, false);
            let (this, work) = (self.clone(), at_work());
            corrections.pass.spawn(async move { this.correct_all(work).await });
        }
    }

    /// Has schedules and decided fire times looked at now that a clock which was ahead has put off. Those that are left
    /// are found by the next count.
    pub(crate) async fn wake_put_off(&self) {
        match self.store.home().schedule_wake(LOOKED_AT_WITHIN, WOKEN_AT_ONCE).await {
            Ok(0) => {}
            Ok(woken) => tracing::warn!(
                woken,
                "schedules and fire times waited for a moment of a clock that was ahead, and are looked at now"
            ),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(error, "cannot look at schedules that a clock which was ahead has put off");
            }
        }
    }

    /// Corrects each schedule that waits for a moment which the present clock or calendar cannot have led to. Its right
    /// fire time may be earlier, so its next look would come too late. Returns how many were corrected. One that fails,
    /// as while a transaction holds it, fails the pass after all others have had their turn.
    pub(crate) async fn correct_all(&self, work: Work) -> Result<usize, Error> {
        let (mut after, mut corrected): (Option<ScheduleName>, usize) = (None, 0);
        let mut failed: Option<Error> = None;
        loop {
            work.beat();
            let after_name = after.as_ref().map(ScheduleName::as_str);
            let page = self.store.home().schedule_page(after_name, READ_AT_ONCE).await?;
            after = page.last().map(|read| match read {
                Ok(record) => record.name.clone(),
                Err(unreadable) => unreadable.name.clone(),
            });
            let is_last = i64::try_from(page.len()).is_ok_and(|read| read < READ_AT_ONCE);
            let mut corrections = futures::stream::iter(page.into_iter().flatten())
                .map(|record| async move { self.correct(&record).await })
                .buffer_unordered(STATEMENTS_AT_ONCE);
            while let Some(correction) = corrections.next().await {
                // Each that is locked takes seconds.
                work.beat();
                match correction {
                    Ok(is_corrected) => corrected += usize::from(is_corrected),
                    Err(error) if error.fault() == Fault::Outage => return Err(error),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            if is_last {
                return failed.map_or(Ok(corrected), Err);
            }
        }
    }

    /// Corrects a schedule, if it needs that and has not changed meanwhile. Returns whether it did.
    async fn correct(&self, record: &ScheduleRecord) -> Result<bool, Error> {
        let home = self.store.home();
        // The firer reports a calendar that this version cannot read when the schedule is due.
        let Ok(calendar) = record.rules.when.calendar() else { return Ok(false) };
        let Some(now) = home.clock().at(Instant::now()) else { return Ok(false) };
        let mut state = record.standing;
        if !state.correct(&calendar, now) {
            return Ok(false);
        }
        let wake_at = state.wake_at(now);
        let turn = FireDecision { fires: Vec::new(), skipped: 0, missed: 0, state, wake_at };
        match home.schedule_turn(&record.name, record.revision, &turn, &[], Duration::ZERO).await {
            Ok(Some(_)) => {
                let next_at = state.next_at.map(|next_at| next_at.to_string());
                tracing::warn!(schedule = %record.name, next_at, "a schedule waited for a moment that it cannot fire at, and was corrected");
                Ok(true)
            }
            // It was changed meanwhile, or the database refuses the row, which the next look at it reports.
            Ok(None) => Ok(false),
            Err(error) if error.fault() == Fault::Data => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use common::ids::DatabaseName;

    use super::*;
    use crate::store::{Effect, StoreOp};

    impl Corrections {
        /// Lets a pass end with an error.
        async fn fail(&mut self, error: Error) {
            self.pass.spawn(async { Err(error) });
            while !self.pass.is_empty() {
                tokio::task::yield_now().await;
                self.end();
            }
        }
    }

    #[tokio::test]
    async fn a_pass_that_failed_is_repeated_after_a_rest_and_one_that_an_outage_ended_at_the_next_count() {
        let term = Some(Term::from_revision(1));
        let mut corrections = Corrections { term, left: 1, ..Corrections::default() };
        let held = Error::unreadable(DatabaseName::new("main"), StoreOp::ScheduleTurn);
        let away = Error { effect: Effect::Unknown, source: None, ..held.clone() };
        corrections.fail(away).await;
        assert!(corrections.is_wanted(term, 1), "the database may be back");
        corrections.fail(held).await;
        assert!(!corrections.is_wanted(term, 1), "it rests");
        assert!(corrections.is_wanted(term, 2), "there is another one to correct");
        assert!(corrections.is_wanted(Some(Term::from_revision(2)), 1), "the master has a new term");
        corrections.rests_until = Some(Instant::now());
        assert!(corrections.is_wanted(term, 0), "the rest is over");
    }
}
