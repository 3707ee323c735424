//! Schedules: put, shown, paused, run by hand, deleted. They are kept in the first database; the firer makes
//! their tasks.

use std::time::Duration;

use common::{
    field::FieldError,
    ids::ScheduleName,
    limit::Limit,
    schedule::{Calendar, FireDecision, ScheduleState},
    time::UnixMicros,
    wire::{NamePage, Problem, ScheduleList, ScheduleRequest, ScheduleView, TaskView, schedule::ValidSchedule},
};

use super::{
    Desk, last_of_full,
    limits::AppliedLimits,
    refusal, run_to_end,
    seen::{self, Seen},
    submit::Unread,
};
use crate::{
    internal::{self, Origin},
    store::schedules::{ScheduleContents, ScheduleQuota, ScheduleRecord, ScheduleWrite},
};

/// The most tries of a change to a schedule that fires, or that others change, at the same moment. Each time, one of
/// them is written. A schedule fires at most once a second.
const TRIES: usize = 10;

/// A schedule that was put.
#[derive(Debug)]
pub(crate) struct PutSchedule {
    pub(crate) view: ScheduleView,
    /// Whether the request created it.
    pub(crate) created: bool,
}

/// The number of next fire times that the answer to a change shows.
const NEXT_SHOWN: usize = 5;

impl Desk {
    /// Sets a schedule. Fire times that are already decided still get the tasks of the schedule before the change.
    pub(crate) async fn schedule_put(
        &self,
        name: ScheduleName,
        request: ScheduleRequest,
    ) -> Result<PutSchedule, Problem> {
        self.schedule_put_seen(name, request, None).await
    }

    /// Like [`Self::schedule_put`], unless the stored schedule is not as the caller has `seen` it.
    pub(crate) async fn schedule_put_seen(
        &self,
        name: ScheduleName,
        request: ScheduleRequest,
        seen: Option<Seen>,
    ) -> Result<PutSchedule, Problem> {
        let valid = request.validate(self.now(), &self.limits())?;
        self.require_queue(&valid.rules.queue)?;
        let queue = &valid.rules.queue;
        // The database that has the queues is the one that keeps the schedule.
        if self.read_unknown([queue]).await.contains(queue) {
            return Err(refusal::unread(queue));
        }
        self.admit_payload(queue, &valid.payload, &Unread::new())?;
        // The firer creates no queue, so a schedule that is stored without one never gets it.
        match self.create_unknown([queue], &Unread::new()).await {
            None => return Err(refusal::uncreated(queue)),
            Some(refused) if !refused.is_empty() => return Err(self.no_queue_more(queue)),
            Some(_) => {}
        }
        let desk = self.clone();
        run_to_end(async move {
            for _ in 0..TRIES {
                if let Some((record, created)) = desk.put_once(&name, &valid, seen).await? {
                    tracing::info!(schedule = %name, created, "schedule set");
                    return Ok(PutSchedule { view: desk.shown_schedule(record, NEXT_SHOWN), created });
                }
            }
            Err(too_busy(&name))
        })
        .await
    }

    /// Makes one try. `None`: another change came in between.
    async fn put_once(
        &self,
        name: &ScheduleName,
        valid: &ValidSchedule,
        seen: Option<Seen>,
    ) -> Result<Option<(ScheduleRecord, bool)>, Problem> {
        let home = self.parts().store.home();
        let before = home.schedule_read(name).await?;
        if before.as_ref().is_some_and(|before| !self.scope.has(&before.rules.queue)) {
            return Err(Problem::conflict(format!(
                "the name `{name}` is in use; choose another name for the schedule"
            )));
        }
        if before.is_none() {
            FieldError::path_part("name", name.as_str())?;
        }
        let is_wanted = |before: &ScheduleRecord| {
            let is_paused = before.standing.paused_at.is_some();
            before.rules == valid.rules
                && before.payload == valid.payload
                && valid.paused.is_none_or(|it| it == is_paused)
        };
        let own = before.as_ref().filter(|before| is_wanted(before)).map(|before| before.updated_at);
        let seen = seen::or_own(seen, own);
        seen::check(seen, before.as_ref().map(|before| before.updated_at), &format!("schedule `{name}`"))?;
        let now = self.now();
        let mut standing = match &before {
            Some(before) => {
                let mut standing = before.standing;
                if before.rules.when == valid.rules.when {
                    standing.correct(&valid.calendar, now);
                } else {
                    standing.change(&valid.calendar, now);
                }
                standing
            }
            None => ScheduleState::new(&valid.calendar, now),
        };
        pause_or_resume(&mut standing, &valid.calendar, valid.paused, now);
        let change =
            ScheduleContents { rules: &valid.rules, payload: &valid.payload, standing, wake_at: standing.wake_at(now) };
        let quota = ScheduleQuota { of_caller: self.limits.schedules, queues: self.scope.patterns() };
        let put = match &before {
            Some(before) => home.schedule_change(name, before.revision, change).await,
            None => home.schedule_add(name, change, quota).await,
        };
        match put? {
            ScheduleWrite::Done(record) => Ok(Some((*record, before.is_none()))),
            ScheduleWrite::Overtaken => Ok(None),
            ScheduleWrite::Held => Err(held(name)),
            ScheduleWrite::QueueFull { used, most } => Err(self.too_many_made(Limit::QueueSchedules, most, used)),
            ScheduleWrite::CallerFull(used) => {
                Err(self.too_many_made(Limit::TokenSchedules, quota.of_caller.unwrap_or_default(), used))
            }
        }
    }

    /// Pauses or resumes a schedule. The fire times during the pause are not made up.
    pub(crate) async fn schedule_pause(&self, name: ScheduleName, paused: bool) -> Result<ScheduleView, Problem> {
        let desk = self.clone();
        run_to_end(async move {
            for _ in 0..TRIES {
                let before = desk.schedule(&name).await?;
                let now = desk.now();
                let calendar = calendar_of(&before)?;
                let mut state = before.standing;
                pause_or_resume(&mut state, &calendar, Some(paused), now);
                let wake_at = state.wake_at(now);
                let turn = FireDecision { fires: Vec::new(), skipped: 0, missed: 0, state, wake_at };
                let home = desk.parts().store.home();
                let turned = home.schedule_turn(&name, before.revision, &turn, &[], Duration::ZERO).await?;
                if let Some(record) = turned {
                    tracing::info!(schedule = %name, paused, "schedule {}", if paused { "paused" } else { "resumed" });
                    return Ok(desk.shown_schedule(record, NEXT_SHOWN));
                }
            }
            Err(too_busy(&name))
        })
        .await
    }

    /// A schedule with its next `next` fire times.
    pub(crate) async fn schedule_get(&self, name: ScheduleName, next: usize) -> Result<ScheduleView, Problem> {
        Ok(self.shown_schedule(self.schedule(&name).await?, next))
    }

    /// One page of schedules, by name, without payloads.
    pub(crate) async fn schedule_list(&self, page: NamePage) -> Result<ScheduleList, Problem> {
        page.validate(common::schedule::check_name)?;
        let limit = i64::from(page.limit());
        let home = self.parts().store.home();
        let records = home.schedule_list(page.cursor.as_deref(), limit, self.scope.patterns()).await?;
        let next_cursor = last_of_full(&records, limit).map(|last| last.name.to_string());
        let schedules = records.iter().map(|record| self.listed_schedule(record)).collect();
        Ok(ScheduleList { schedules, next_cursor })
    }

    /// Makes a task now, outside the calendar. The task plays no part in the rule for overlaps.
    pub(crate) async fn schedule_run(&self, name: ScheduleName) -> Result<TaskView, Problem> {
        let ScheduleRecord { rules, payload, .. } = self.schedule(&name).await?;
        let task = rules.task_now(payload, self.now());
        let desk = self.clone();
        run_to_end(async move { desk.store_one(task, AppliedLimits::No).await }).await
    }

    /// Deletes a schedule. Fire times that are already decided still get tasks, and existing tasks stay.
    pub(crate) async fn schedule_delete(&self, name: ScheduleName) -> Result<(), Problem> {
        let desk = self.clone();
        run_to_end(async move {
            let home = desk.parts().store.home();
            for _ in 0..TRIES {
                // A caller who may not see all schedules deletes the schedule that was read, not one that took
                // its place.
                let read = if desk.scope.is_all() { None } else { Some(desk.schedule(&name).await?.revision) };
                if home.schedule_delete(&name, read).await? {
                    tracing::info!(schedule = %name, "schedule deleted");
                    return Ok(());
                }
                if read.is_none() {
                    return Err(no_schedule(&name));
                }
            }
            Err(too_busy(&name))
        })
        .await
    }

    async fn schedule(&self, name: &ScheduleName) -> Result<ScheduleRecord, Problem> {
        let found = self.parts().store.home().schedule_read(name).await?;
        found.filter(|record| self.scope.has(&record.rules.queue)).ok_or_else(|| no_schedule(name))
    }

    fn shown_schedule(&self, mut record: ScheduleRecord, next: usize) -> ScheduleView {
        let payload = std::mem::take(&mut record.payload);
        self.visible_schedule(self.whole_view(&record, next).with_payload(payload))
    }

    fn listed_schedule(&self, record: &ScheduleRecord) -> ScheduleView {
        self.visible_schedule(self.whole_view(record, 1))
    }

    /// Not yet what the caller may see.
    fn whole_view(&self, record: &ScheduleRecord, next: usize) -> ScheduleView {
        let paused = record.standing.paused_at.is_some();
        let calendar = record.rules.when.calendar().ok().filter(|_| !paused);
        let next_times =
            |calendar: Calendar| record.standing.next_times(&calendar, record.last_fire_at, self.now(), next);
        ScheduleView {
            name: record.name.clone(),
            rules: record.rules.clone(),
            paused,
            payload: None,
            payload_base64: None,
            data_hidden: false,
            next_fire_times: calendar.map(next_times).unwrap_or_default(),
            buffered_at: record.standing.buffered_at,
            last_fire_at: record.last_fire_at,
            last_task_id: record.last_task,
            created_at: record.created_at,
            updated_at: record.updated_at,
        }
    }
}

/// Pauses or resumes the schedule. `paused: None` changes nothing.
fn pause_or_resume(standing: &mut ScheduleState, calendar: &Calendar, paused: Option<bool>, now: UnixMicros) {
    match paused {
        Some(true) => standing.pause(now),
        Some(false) => standing.resume(calendar, now),
        None => {}
    }
}

fn calendar_of(record: &ScheduleRecord) -> Result<Calendar, Problem> {
    record
        .rules
        .when
        .calendar()
        .map_err(|error| internal::problem(Origin::Database, Some(&error), "the schedule cannot be read"))
}

fn no_schedule(name: &ScheduleName) -> Problem {
    Problem::not_found(format!("there is no schedule `{name}`"))
}

fn held(name: &ScheduleName) -> Problem {
    let detail = format!("open transactions hold the schedule `{name}`; nothing was changed, try again");
    Problem::unavailable(detail).retry_after(1)
}

fn too_busy(name: &ScheduleName) -> Problem {
    let detail = format!("other requests kept changing the schedule `{name}`; nothing was changed, try again");
    Problem::unavailable(detail).retry_after(1)
}
