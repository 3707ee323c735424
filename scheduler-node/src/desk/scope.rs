//! For which queues somebody asks. Where a request names a queue that is not his, the answer is 403 before anything is looked at;
//! where it names something in such a queue, 404, as though it were not there. Neither tells what there is.

use std::sync::Arc;

use common::{
    access::{Caller, Permission, Scope},
    ids::{QueueName, TaskId},
    wire::Problem,
};

use super::{Desk, refusal::failed};

impl Desk {
    /// The same desk, for somebody who may know of these queues only.
    pub fn within(&self, scope: Scope) -> Self {
        Self { scope, ..self.clone() }
    }

    /// The same desk, for this caller.
    pub fn of(&self, caller: &Caller) -> Self {
        Self {
            caller: Arc::clone(&caller.name),
            shows_data: caller.may(Permission::Payloads),
            limits: caller.limits,
            ..self.within(caller.queues.clone())
        }
    }

    /// Refuses a queue that is not for whoever asks.
    pub(super) fn ask_for(&self, queue: &QueueName) -> Result<(), Problem> {
        if self.scope.has(queue) {
            return Ok(());
        }
        let detail = format!("this token is not for queue `{queue}`; its queues are {}", self.scope);
        Err(Problem::forbidden(detail))
    }

    /// Refuses a look at tasks of all queues by whoever may not know of them all.
    pub(super) fn ask_for_tasks(&self, queue: Option<&QueueName>) -> Result<(), Problem> {
        match queue {
            Some(queue) => self.ask_for(queue),
            None if self.scope.is_all() => Ok(()),
            None => {
                let detail =
                    format!("this token is for some queues only: name one with `queue`; its queues are {}", self.scope);
                Err(Problem::forbidden(detail))
            }
        }
    }

    /// Refuses a task that is not for whoever asks. It keeps its queue, so what is read here is still so when it is written.
    pub(super) async fn ask_for_task(&self, id: TaskId) -> Result<(), Problem> {
        if self.scope.is_all() {
            return Ok(());
        }
        match self.database(id)?.task_read(id).await.map_err(|error| failed(&error))? {
            Some(task) if self.scope.has(&task.queue) => Ok(()),
            _ => Err(self.missing(id).await),
        }
    }

    /// Refuses what concerns all queues to whoever may know of some only.
    pub fn ask_for_everything(&self) -> Result<(), Problem> {
        if self.scope.is_all() {
            return Ok(());
        }
        Err(Problem::forbidden("this token is for some queues only, and this concerns them all"))
    }
}
