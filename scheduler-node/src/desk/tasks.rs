//! Requests about one task: get, change, cancel, run, retry, report.

use std::{sync::Arc, time::Duration};

use common::{
    ids::{Attempt, QueueName, TaskId},
    task::{
        TaskState,
        report::ResultBody,
        state::{CancelOutcome, cancel_outcome},
    },
    wire::{CancelAnswer, ChangeRequest, Problem, TaskView, ValidChange, format},
};

use super::{Desk, refusal, revival::placed_anew, run_to_end};
use crate::{
    loops::outcome::reporter::Reported,
    store::{
        Database,
        change::{Cancelled, Guarded, Keep, would_lapse},
        rows::TaskRecord,
    },
};

impl Desk {
    pub(crate) async fn get(&self, id: TaskId) -> Result<TaskView, Problem> {
        let task = self.visible_task(id).await?;
        self.with_dependencies(task).await
    }

    /// The newest task with this key: an unfinished one, or else a finished one that is still kept.
    pub(crate) async fn get_by_key(
        &self,
        queue: &str,
        partition_key: Option<&str>,
        key: &str,
    ) -> Result<TaskView, Problem> {
        let task = self.read_by_key(queue, partition_key, key).await?;
        self.with_dependencies(task).await
    }

    async fn with_dependencies(&self, task: TaskRecord) -> Result<TaskView, Problem> {
        let mut depends_on = match task.state {
            TaskState::Waiting => self.database(task.id)?.task_dependencies(task.id).await?,
            _ => Vec::new(),
        };
        // A task of AMQP, of SQL or of a caller with more queues may depend on tasks that this caller may not see.
        for other in &mut depends_on {
            if !self.scope.has(&other.queue) {
                other.state = None;
            }
        }
        Ok(TaskView { depends_on, ..self.shown(task) })
    }

    /// Changes a task that is not claimed yet.
    pub(crate) async fn change(&self, id: TaskId, request: ChangeRequest) -> Result<TaskView, Problem> {
        let change = request.validate(self.present(), &self.limits())?;
        self.change_to(id, change).await
    }

    /// Changes the newest task with this key, as [`Self::change`] does by id. A new due time alone needs no look-up of
    /// the id, unless the shared statement leaves the task.
    pub(crate) async fn change_by_key(
        &self,
        queue: &str,
        partition_key: Option<&str>,
        key: &str,
        request: ChangeRequest,
    ) -> Result<TaskView, Problem> {
        let key = self.place_of_key(queue, partition_key, key).await?;
        let change = request.validate(self.present(), &self.limits());
        let due_at = change.as_ref().ok().and_then(ValidChange::only_due_time);
        let desk = self.clone();
        run_to_end(async move {
            if let (Some(database), Some(due_at)) = (&key.database, due_at)
                && let Some(task) = database.task_change_key(key.key(), due_at).await?
            {
                return Ok(desk.changed(task));
            }
            let id = desk.find_placed(&key).await?;
            desk.change_to(id, change?).await
        })
        .await
    }

    async fn change_to(&self, id: TaskId, change: ValidChange) -> Result<TaskView, Problem> {
        let desk = self.clone();
        run_to_end(async move {
            desk.require_task(id).await?;
            desk.check_format(id, &change).await?;
            let change = &change;
            let write = |database: Arc<Database>| async move { database.task_change(id, change).await };
            match desk.write_in_place(id, write).await?? {
                Guarded::Done(task) => Ok(desk.changed(task)),
                Guarded::Refused(task) => Err(unchanged(&task, change)),
                Guarded::Missing => Err(desk.missing_task(id).await),
            }
        })
        .await
    }

    /// Refuses a new payload that cannot have the format of the task's queue.
    async fn check_format(&self, id: TaskId, change: &ValidChange) -> Result<(), Problem> {
        let Some(payload) = &change.payload else { return Ok(()) };
        // A task never changes its queue, so the queue read here is still the task's when the change is written.
        let task = self.visible_task(id).await?;
        self.know_rules(&task).await?;
        Ok(format::check(self.parts().books.load().get(&task.queue).policy.format, payload)?)
    }

    /// Reads the queues if the format of the task's queue may have changed on another node. The task's own database
    /// tells that: to read the first one for each new payload would make it a part of all of them.
    async fn know_rules(&self, task: &TaskRecord) -> Result<(), Problem> {
        let known = self.parts().books.load().revision();
        let changed = self.database(task.id)?.queue_rules(&task.queue, known).await?;
        if let Some(revision) = changed
            && !self.read_as_of(revision).await
        {
            return Err(refusal::unformatted(&task.queue));
        }
        Ok(())
    }

    /// Cancels a task that is not claimed yet. A repeated request gets the same answer.
    pub(crate) async fn cancel(&self, id: TaskId) -> Result<CancelAnswer, Problem> {
        let desk = self.clone();
        run_to_end(async move {
            desk.require_task(id).await?;
            let keep = Keep::of(&desk.parts().books.load());
            let keep = &keep;
            let write = |database: Arc<Database>| async move { database.task_cancel(id, keep).await };
            let attempt = match desk.write_in_place(id, write).await?? {
                Guarded::Done(cancelled) => return desk.cancelled(id, &cancelled),
                Guarded::Refused(task) if task.state == TaskState::Cancelled => task.attempt,
                Guarded::Refused(task) => return Err(Problem::in_flight(task.state)),
                Guarded::Missing => return Err(desk.missing_task(id).await),
            };
            cancel_answer(id, attempt)
        })
        .await
    }

    /// Cancels the newest task with this key, as [`Self::cancel`] does by id. It looks the id up only if the
    /// shared statement leaves the task.
    pub(crate) async fn cancel_by_key(
        &self,
        queue: &str,
        partition_key: Option<&str>,
        key: &str,
    ) -> Result<CancelAnswer, Problem> {
        let key = self.place_of_key(queue, partition_key, key).await?;
        let desk = self.clone();
        run_to_end(async move {
            if let Some(database) = &key.database {
                let keep = Keep::of(&desk.parts().books.load());
                if let Some((id, cancelled)) = database.task_cancel_key(key.key(), &keep).await? {
                    return desk.cancelled(id, &cancelled);
                }
            }
            let id = desk.find_placed(&key).await?;
            desk.cancel(id).await
        })
        .await
    }

    /// Cancels a task that is not claimed yet. If it is claimed, asks its consumer to stop.
    pub(crate) async fn stop(&self, id: TaskId) -> Result<CancelAnswer, Problem> {
        let desk = self.clone();
        run_to_end(async move {
            let refused = match desk.cancel(id).await {
                Err(problem) if problem.state.is_some_and(TaskState::is_in_flight) => problem,
                answer => return answer,
            };
            let task = desk.get(id).await?;
            if !desk.expects_reports(&task.queue).await? {
                let detail = "the task is in flight, and its queue settles without reports: its consumer cannot be \
                              asked to stop";
                return Err(Problem { detail: detail.to_owned(), ..refused });
            }
            let write = |database: Arc<Database>| async move { database.task_stop(id).await };
            match desk.write_in_place(id, write).await?? {
                Guarded::Done(task) => {
                    tracing::debug!(task = %id, queue = %task.queue, attempt = %task.attempt, "task is asked to stop");
                    Ok(CancelAnswer { id, outcome: CancelOutcome::Stopping })
                }
                // The task failed or finished a moment ago.
                Guarded::Refused(_) | Guarded::Missing => desk.cancel(id).await,
            }
        })
        .await
    }

    /// Tells whether the consumers of a queue report. The queue may have got its policy on another node a moment ago,
    /// so a refusal reads the queues first. Requests that wait for the same read share it.
    pub(super) async fn expects_reports(&self, queue: &QueueName) -> Result<bool, Problem> {
        let in_book = || self.parts().books.load().get(queue).policy.settle.needs_report();
        if self.read_unless(in_book, Duration::ZERO).await { Ok(in_book()) } else { Err(refusal::unsettled(queue)) }
    }

    /// Makes a task that is not claimed yet due now.
    pub(crate) async fn run(&self, id: TaskId) -> Result<TaskView, Problem> {
        let desk = self.clone();
        run_to_end(async move {
            desk.require_task(id).await?;
            let write = |database: Arc<Database>| async move { database.task_run(id).await };
            match desk.write_in_place(id, write).await?? {
                Guarded::Done(task) => Ok(desk.changed(task)),
                Guarded::Refused(task) => Err(Problem::in_flight(task.state)),
                Guarded::Missing => Err(desk.missing_task(id).await),
            }
        })
        .await
    }

    /// Gives a dead task new attempts. The first of them is due now.
    pub(crate) async fn retry(&self, id: TaskId) -> Result<TaskView, Problem> {
        let desk = self.clone();
        run_to_end(async move {
            let task = desk.visible_task(id).await?;
            desk.require_queue_of_dead(&task).await?;
            let write = |database: Arc<Database>| async move { database.task_revive(id).await };
            let revived = match desk.write_in_place(id, write).await? {
                Err(error) if error.is_key_taken() => return Err(Problem::key_taken(id)),
                revived => revived?,
            };
            match revived {
                Guarded::Done(task) => Ok(desk.changed(task)),
                Guarded::Refused(task) if desk.is_placed_anew(&task) => Err(placed_anew(&task)),
                Guarded::Refused(task) if task.state == TaskState::Dead => {
                    Err(Problem::conflict("the task has died just now; try again"))
                }
                Guarded::Refused(task) => {
                    let detail = format!("only a dead task can be retried, but this one is {}", task.state);
                    Err(Problem::conflict(detail).with_state(task.state))
                }
                Guarded::Missing => Err(desk.missing_task(id).await),
            }
        })
        .await
    }

    /// Applies a consumer's report on one attempt.
    pub(crate) async fn report(&self, id: TaskId, attempt: Attempt, body: ResultBody) -> Result<TaskView, Problem> {
        let desk = self.clone();
        run_to_end(async move {
            desk.require_task(id).await?;
            let reported = desk.parts().reporter.report(id, attempt, body).await?;
            match reported {
                Reported::Applied { .. } => {}
                Reported::Stale { state, attempt: newest } => return Err(stale(attempt, state, newest)),
                // A report over HTTP needs no voucher, because its token was authenticated. It is no deadline either.
                Reported::Missing | Reported::Passed | Reported::Untrusted { .. } => {
                    let task = desk.get(id).await?;
                    return Err(stale(attempt, task.state, task.attempt));
                }
            }
            desk.get(id).await.map_err(|problem| Problem {
                detail: format!("the report was applied, but the task cannot be shown: {}", problem.detail),
                ..problem
            })
        })
        .await
    }

    /// The view of a task that a request has just changed. Tells the task's owner the moment of its next action.
    fn changed(&self, task: TaskRecord) -> TaskView {
        self.parts().nudger.written(task.id, task.wake_at);
        tracing::debug!(task = %task.id, queue = %task.queue, due_at = %task.due_at, "task changed by hand");
        self.shown(task)
    }

    /// The answer to a request that has just cancelled a task.
    fn cancelled(&self, id: TaskId, cancelled: &Cancelled) -> Result<CancelAnswer, Problem> {
        self.parts().metrics.finished(&cancelled.queue, TaskState::Cancelled.text(), 1);
        tracing::debug!(task = %id, queue = %cancelled.queue, attempt = %cancelled.attempt, "task cancelled");
        cancel_answer(id, cancelled.attempt)
    }

    fn shown(&self, task: TaskRecord) -> TaskView {
        self.view(task, &self.parts().books.load())
    }
}

/// The reason why `change` was not applied to `task`.
fn unchanged(task: &TaskRecord, change: &ValidChange) -> Problem {
    if !task.state.may_be_changed() || !would_lapse(task, change) {
        return Problem::in_flight(task.state);
    }
    let due_at = change.due_at.unwrap_or(task.due_at);
    let expires_at = change.expires_at.unwrap_or(task.expires_at).unwrap_or(due_at);
    let field = if change.expires_at.is_some() { "expires_at" } else { "due_at" };
    Problem::invalid_field(field, format!("the task would expire at {expires_at}, before it is due at {due_at}"))
}

fn cancel_answer(id: TaskId, attempt: Attempt) -> Result<CancelAnswer, Problem> {
    Ok(CancelAnswer { id, outcome: cancel_outcome(TaskState::Cancelled, attempt)? })
}

fn stale(attempt: Attempt, state: TaskState, newest: Attempt) -> Problem {
    let detail =
        format!("attempt {attempt} cannot be reported on: the task is {state}, its newest attempt is {newest}");
    Problem::stale_attempt(detail).with_state(state)
}
