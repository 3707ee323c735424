//! The tasks of decided fire times: they are written, and the fire times forgotten.

use std::sync::Arc;

use common::{
    ids::{ScheduleName, TaskId},
    task::NewTask,
};

use super::Firer;
use crate::{
    loops::submit::submitter::{Accepted, SubmitError},
    store::{Error, schedules::FireRecord},
    supervise::{at_work, spawn_child},
    working_set::set_aside::{Kept, Kind},
};

/// The value of the metrics' label `source`.
const SOURCE: &str = "schedule";

/// The most decisions whose tasks are being made. A decision beyond it is left to a node that takes it on.
pub(super) const MADE_AT_ONCE: usize = 64;

impl Firer {
    /// Has the tasks of decided fire times written in the background. If the outcome is unknown, a node takes them
    /// on again after the hold. Returns whether any is written.
    pub(super) fn make(&self, mut fires: Vec<FireRecord>) -> bool {
        fires.retain(|fire| self.fit(fire.id).is_some());
        let Some(room) = Arc::clone(&self.making).try_acquire_owned().ok().filter(|_| !fires.is_empty()) else {
            return false;
        };
        let this = self.clone();
        spawn_child(async move {
            this.write_tasks(fires).await;
            drop(room);
        });
        true
    }

    async fn write_tasks(&self, fires: Vec<FireRecord>) {
        let _work = at_work();
        let decided: Vec<(TaskId, ScheduleName)> = fires.iter().map(|fire| (fire.id, fire.schedule.clone())).collect();
        let task = |FireRecord { id, schedule, rules, payload, fire, .. }| NewTask {
            id,
            task: rules.task_of(&schedule, payload, fire),
        };
        let answers = self.submitter.write(fires.into_iter().map(task).collect(), SOURCE).await;
        fail::fail_point!("after_fire_made", |_| std::process::abort());
        let home = self.store.home();
        let (mut done, mut found) = (Vec::with_capacity(decided.len()), Vec::new());
        for ((id, schedule), answer) in decided.into_iter().zip(answers) {
            match answer {
                // The schedule was deleted and put again, or the clock was set back, and the fire time had its task.
                Ok(Accepted::Keyed(put)) if put.id != id => found.push((id, schedule, put.id)),
                Ok(_) => done.push(id),
                // The task can never be made. Its schedule goes on.
                Err(SubmitError::Refused(why)) => {
                    self.set_aside.keep(home, Kind::Fire, Kept::task(id), &why).await;
                    done.push(id);
                }
                Err(_) => {}
            }
        }
        log_failure(home.fire_done(&done).await);
        // Each on its own, after the others: an application's transaction may hold the schedule.
        for (decided, schedule, there) in found {
            log_failure(home.fire_found(decided, &schedule, there).await);
        }
    }

    /// Waits until no task is being made, and prevents further ones, as if the firer died after a decision.
    #[cfg(test)]
    pub(crate) async fn keep_from_making(&self) -> tokio::sync::OwnedSemaphorePermit {
        let all = u32::try_from(MADE_AT_ONCE).expect("a small number");
        Arc::clone(&self.making).acquire_many_owned(all).await.expect("it is never closed")
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
