//! The master's passes over all schedules: it counts them, and corrects those whose clock was set back or whose time
//! zone has other rules since an upgrade.

use std::time::{Duration, Instant};

use common::{
    ids::{ScheduleName, Term},
    schedule::{FireDecision, MOST_AHEAD},
};
use futures::{StreamExt, TryStreamExt};

use super::{DECIDED_AT_ONCE, Firer, READ_AT_ONCE};
use crate::{
    store::{Error, Fault, schedules::ScheduleRecord},
    supervise::at_work,
};

impl Firer {
    /// Counts the schedules on the master. It corrects them if it has not yet done so in its term, of which `corrected`
    /// keeps note, or if one lies far ahead of the clock.
    pub(super) async fn count(&self, corrected: &mut Option<Term>) {
        let _work = at_work();
        let term = self.mastership.borrow().term;
        if term.is_none() {
            self.metrics.schedules.set(0);
            return;
        }
        let home = self.store.home();
        let Ok(count) = home.schedule_count(MOST_AHEAD).await else { return };
        self.metrics.schedules.set(count.schedules);
        if home.clock().at(Instant::now()).is_some() && (count.ahead > 0 || *corrected != term) {
            match self.correct_all().await {
                Ok(()) => *corrected = term,
                Err(error) => tracing::debug!(error = &error as &dyn std::error::Error, "cannot correct the schedules"),
            }
        }
    }

    /// Corrects each schedule that waits for a moment which the present clock or calendar cannot have led to. Its right
    /// fire time may be earlier, so its next look would come too late.
    pub(crate) async fn correct_all(&self) -> Result<(), Error> {
        let mut after: Option<ScheduleName> = None;
        loop {
            let after_name = after.as_ref().map(ScheduleName::as_str);
            let page = self.store.home().schedule_page(after_name, READ_AT_ONCE).await?;
            after = page.last().map(|read| match read {
                Ok(record) => record.name.clone(),
                Err(unreadable) => unreadable.name.clone(),
            });
            let is_last = i64::try_from(page.len()).is_ok_and(|read| read < READ_AT_ONCE);
            futures::stream::iter(page.into_iter().flatten())
                .map(|record| async move { self.correct(&record).await })
                .buffer_unordered(DECIDED_AT_ONCE)
                .try_collect::<()>()
                .await?;
            if is_last {
                return Ok(());
            }
        }
    }

    async fn correct(&self, record: &ScheduleRecord) -> Result<(), Error> {
        let home = self.store.home();
        // The firer reports a calendar that this version cannot read when the schedule is due.
        let Ok(calendar) = record.rules.when.calendar() else { return Ok(()) };
        let Some(now) = home.clock().at(Instant::now()) else { return Ok(()) };
        let mut state = record.standing;
        if !state.correct(&calendar, now) {
            return Ok(());
        }
        let wake_at = state.wake_at(now);
        let turn = FireDecision { fires: Vec::new(), skipped: 0, missed: 0, state, wake_at };
        match home.schedule_turn(&record.name, record.revision, &turn, &[], Duration::ZERO).await {
            Ok(Some(_)) => {
                let next_at = state.next_at.map(|next_at| next_at.to_string());
                tracing::warn!(schedule = %record.name, next_at, "a schedule waited for a moment that it cannot fire at, and was corrected");
                Ok(())
            }
            // It was changed meanwhile, or the database refuses the row, which the next look at it reports.
            Ok(None) => Ok(()),
            Err(error) if error.fault() == Fault::Data => Ok(()),
            Err(error) => Err(error),
        }
    }
}
