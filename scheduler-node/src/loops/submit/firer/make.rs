//! The tasks of decided fire times: they are written, and the fire times forgotten.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use common::{
    ids::{DatabaseIndex, DatabaseName, ScheduleName, TaskId},
    schedule::Fire,
    task::NewTask,
    time::UnixMicros,
};
use tokio::sync::OwnedSemaphorePermit;

use super::{Firer, decide::Turn};
use crate::{
    loops::submit::submitter::{Accepted, SubmitError},
    store::{
        Error, StoreOp,
        put::PutOutcome,
        schedules::{FireRecord, ScheduleRecord},
    },
    supervise::{at_work, spawn_child},
    working_set::set_aside::{Kept, Kind},
};

/// The value of the metrics' label `source`.
const SOURCE: &str = "schedule";

/// The most tasks that are being made. Those beyond it are left to a node that takes them on. With the largest payloads
/// they take 26 MiB.
pub(super) const MADE_AT_ONCE: usize = 400;

/// A fire time whose task failed alone as with a bug.
#[derive(Debug)]
struct Doubt {
    id: TaskId,
    why: String,
    /// Whether other tasks were written beside it.
    others_pass: bool,
}

impl Firer {
    /// Writes the tasks of fire times that this node has taken on, in the background. Returns whether any is written.
    pub(super) fn make(&self, mut fires: Vec<FireRecord>) -> bool {
        fires.retain(|fire| self.fit(fire.id).is_some());
        let Some(room) = self.room(fires.len()) else { return false };
        fires.truncate(room.num_permits());
        self.make_within(room, fires);
        true
    }

    /// Has the tasks of decisions written, those of each database by themselves. A slow one delays no other until its
    /// tasks take all the room; then a node that has room makes the others after the hold. Each gets a copy of the
    /// payload, once there is room for it.
    pub(super) fn make_decided(&self, turns: &[&Turn]) {
        let mut decided: BTreeMap<&DatabaseName, Vec<(&ScheduleRecord, Fire, TaskId)>> = BTreeMap::new();
        for turn in turns {
            for (fire, id) in turn.decision.fires.iter().zip(&turn.ids) {
                if let Some(database) = self.fit(*id) {
                    decided.entry(database.name()).or_default().push((&turn.record, *fire, *id));
                }
            }
        }
        for decided in decided.into_values() {
            let Some(room) = self.room(decided.len()) else { return };
            let fires = decided.into_iter().take(room.num_permits()).map(|(record, fire, id)| FireRecord {
                id,
                schedule: record.name.clone(),
                fire,
                rules: record.rules.clone(),
                payload: record.payload.clone(),
            });
            self.make_within(room, fires.collect());
        }
    }

    /// Takes places for so many tasks, or as many as there are. `None`: for none.
    fn room(&self, tasks: usize) -> Option<OwnedSemaphorePermit> {
        let places = u32::try_from(tasks.min(self.making.available_permits())).ok()?;
        if places == 0 {
            return None;
        }
        Arc::clone(&self.making).try_acquire_many_owned(places).ok()
    }

    /// Has tasks written in the background. If the outcome is unknown, a node takes them on again after the hold.
    fn make_within(&self, room: OwnedSemaphorePermit, fires: Vec<FireRecord>) {
        let this = self.clone();
        spawn_child(async move {
            this.write_tasks(fires).await;
            drop(room);
        });
    }

    async fn write_tasks(&self, fires: Vec<FireRecord>) {
        let _work = at_work();
        let decided: Vec<(TaskId, ScheduleName)> = fires.iter().map(|fire| (fire.id, fire.schedule.clone())).collect();
        let task = |FireRecord { id, schedule, rules, payload, fire, .. }| NewTask {
            id,
            task: rules.task_of(&schedule, payload, fire),
        };
        let began = Instant::now();
        let answers = self.submitter.write(fires.into_iter().map(task).collect(), SOURCE).await;
        fail::fail_point!("after_fire_made", |_| std::process::abort());
        let passed: Vec<TaskId> = decided
            .iter()
            .map(|(id, _)| *id)
            .zip(&answers)
            .filter_map(|(id, answer)| {
                let began_at = self.store.of(id.shard()).and_then(|database| database.clock().at(began));
                is_written(answer, began_at).then_some(id)
            })
            .collect();
        self.note_refusing(decided.iter().map(|(id, _)| *id).zip(&answers), &passed);
        let home = self.store.home();
        let (mut done, mut found) = (Vec::with_capacity(decided.len()), Vec::new());
        let (mut refused, mut doubts) = (Vec::new(), Vec::new());
        for ((id, schedule), answer) in decided.into_iter().zip(answers) {
            match answer {
                // The schedule was deleted and put again, or the clock was set back, and the fire time had its task.
                Ok(Accepted::Keyed(put)) if put.id != id => found.push((id, schedule, put.id)),
                Ok(_) => done.push(id),
                Err(SubmitError::Refused(why)) => refused.push((id, why)),
                Err(SubmitError::InDoubt { why, others_pass }) => doubts.push(Doubt { id, why, others_pass }),
                Err(_) => {}
            }
        }
        refused.extend(self.at_fault(&passed, doubts));
        // These tasks can never be made. Their schedules go on.
        for (id, why) in refused {
            self.set_aside.keep(home, Kind::Fire, Kept::task(id), &why).await;
            done.push(id);
        }
        log_failure(home.fire_done(&done).await);
        // Each on its own, after the others: an application's transaction may hold the schedule.
        for (decided, schedule, there) in found {
            log_failure(home.fire_found(decided, &schedule, there).await);
        }
    }

    /// Notes which databases take tasks and which refuse all of them. `passed`: the tasks that were written. What is in
    /// doubt may be at fault itself, so it shows neither, unless others of its batch passed. Nor does an answer that
    /// wrote nothing.
    fn note_refusing<'a>(
        &self,
        answers: impl Iterator<Item = (TaskId, &'a Result<Accepted, SubmitError>)>,
        passed: &[TaskId],
    ) {
        let mut take_tasks: BTreeMap<DatabaseIndex, bool> = BTreeMap::new();
        for (id, answer) in answers {
            let takes_tasks = match answer {
                Err(SubmitError::Refused(_) | SubmitError::InDoubt { others_pass: true, .. }) => true,
                Ok(_) if passed.contains(&id) => true,
                Ok(_) | Err(SubmitError::InDoubt { others_pass: false, .. }) => continue,
                Err(_) => false,
            };
            if let Some(place) = self.store.places().of(id.shard()) {
                *take_tasks.entry(place.database).or_default() |= takes_tasks;
            }
        }
        let (mut refusing, now) = (self.refusing.lock(), Instant::now());
        for (database, takes_tasks) in take_tasks {
            refusing.note(database, takes_tasks, now);
        }
    }

    /// Finds the tasks in doubt that are at fault, and not the server. `passed`: those that were written beside them.
    /// Returns them with the reasons. The others are tried again after the hold.
    fn at_fault(&self, passed: &[TaskId], doubts: Vec<Doubt>) -> Vec<(TaskId, String)> {
        let mut by_database: BTreeMap<DatabaseIndex, (Vec<TaskId>, Vec<Doubt>)> = BTreeMap::new();
        let database = |id: TaskId| self.store.places().of(id.shard()).map(|place| place.database);
        for id in passed {
            if let Some(database) = database(*id) {
                by_database.entry(database).or_default().0.push(*id);
            }
        }
        for doubt in doubts {
            if let Some(database) = database(doubt.id) {
                by_database.entry(database).or_default().1.push(doubt);
            }
        }
        let mut at_fault = Vec::new();
        for (database, (passed, doubts)) in by_database {
            let suspects = self.suspects.lock().entry(database).or_default().clone();
            let others_pass = suspects.note_written(StoreOp::TaskPut, passed.into_iter());
            for Doubt { id, why, others_pass: beside_it } in doubts {
                if suspects.is_at_fault(StoreOp::TaskPut, id, others_pass || beside_it) {
                    at_fault.push((id, why));
                }
            }
        }
        at_fault
    }

    /// Waits until no task is being made, and prevents further ones, as if the firer died after a decision.
    #[cfg(test)]
    pub(crate) async fn keep_from_making(&self) -> OwnedSemaphorePermit {
        let all = u32::try_from(MADE_AT_ONCE).expect("a small number");
        Arc::clone(&self.making).acquire_many_owned(all).await.expect("it is never closed")
    }
}

/// Whether a task was written. An answer to one that was there, or whose key another task has, shows only that the
/// database can be read. `began_at`: when the sending began on the database's clock, at the earliest.
fn is_written(answer: &Result<Accepted, SubmitError>, began_at: Option<UnixMicros>) -> bool {
    match answer {
        Ok(Accepted::Stored(_)) => true,
        // A task that is sent again was there before: its fire time comes again after the hold.
        Ok(Accepted::Keyed(put)) if put.outcome == PutOutcome::Created => {
            began_at.is_some_and(|began_at| put.created_at >= began_at)
        }
        Ok(Accepted::Keyed(put)) => put.is_written(),
        Err(_) => false,
    }
}

fn log_failure(forgotten: Result<(), Error>) {
    if let Err(error) = forgotten {
        tracing::debug!(
            error = &error as &dyn std::error::Error,
            "could not delete completed fire times; repeating them has no effect"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use common::task::TaskState;

    use super::*;
    use crate::store::put::Put;

    /// Otherwise one that fails beside it would be set aside after 10 s, although no row could be written.
    #[test]
    fn an_answer_that_wrote_nothing_shows_no_task_that_passes() {
        let [before, began_at] = [1, 2].map(|seconds| UnixMicros::FIRST.plus(Duration::from_secs(seconds)));
        let id = TaskId::from_uuid(uuid::Uuid::now_v7());
        let put = |outcome, created_at| {
            let state = TaskState::Scheduled;
            let put = Put { outcome, id, state, due_at: created_at, created_at, version: 0, superseded: 0 };
            is_written(&Ok(Accepted::Keyed(put)), Some(began_at))
        };
        assert!(put(PutOutcome::Created, began_at) && put(PutOutcome::Replaced, before));
        assert!(!put(PutOutcome::Created, before), "it was sent again");
        for outcome in [PutOutcome::Existing, PutOutcome::Refused, PutOutcome::Stale] {
            assert!(!put(outcome, began_at), "{outcome:?}");
        }
    }
}
