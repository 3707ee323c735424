//! Restricts a desk to the caller's queues. A request that names a queue outside them gets 403 before any
//! look-up. A request that names an object in such a queue gets 404, as though the object did not exist.
//! Neither answer reveals what exists.

use std::sync::Arc;

use common::{
    access::{Caller, Permission, Scope},
    ids::{QueueName, TaskId},
    wire::Problem,
};

use super::Desk;
use crate::store::rows::TaskRecord;

impl Desk {
    /// The same desk, for a caller who may see these queues only.
    pub(crate) fn within(&self, scope: Scope) -> Self {
        Self { scope, ..self.clone() }
    }

    /// The same desk, for this caller.
    pub(crate) fn of(&self, caller: &Caller) -> Self {
        Self {
            caller: Arc::clone(&caller.name),
            shows_data: caller.may(Permission::Payloads),
            limits: caller.limits,
            ..self.within(caller.queues.clone())
        }
    }

    /// Refuses a queue outside the caller's scope.
    pub(super) fn require_queue(&self, queue: &QueueName) -> Result<(), Problem> {
        if self.scope.has(queue) {
            return Ok(());
        }
        let detail = format!("this token does not cover queue `{queue}`; its queues are {}", self.scope);
        Err(Problem::forbidden(detail))
    }

    /// Refuses tasks of all queues to a caller who may see only some queues.
    pub(super) fn require_queue_or_all(&self, queue: Option<&QueueName>) -> Result<(), Problem> {
        match queue {
            Some(queue) => self.require_queue(queue),
            None if self.scope.is_all() => Ok(()),
            None => {
                let detail =
                    format!("this token covers only some queues: name one with `queue`; its queues are {}", self.scope);
                Err(Problem::forbidden(detail))
            }
        }
    }

    /// Refuses a task outside the caller's scope. A task never changes its queue, so the check still holds at a
    /// later write.
    pub(super) async fn require_task(&self, id: TaskId) -> Result<(), Problem> {
        if self.scope.is_all() {
            return Ok(());
        }
        self.visible_task(id).await.map(drop)
    }

    /// Reads a task, unless it is outside the caller's scope.
    pub(super) async fn visible_task(&self, id: TaskId) -> Result<TaskRecord, Problem> {
        match self.read_in_place(id).await? {
            Some(task) if self.scope.has(&task.queue) => Ok(task),
            _ => Err(self.missing_task(id).await),
        }
    }

    /// Refuses a request about all queues to a caller who may see only some of them.
    pub(crate) fn require_all_queues(&self) -> Result<(), Problem> {
        if self.scope.is_all() {
            return Ok(());
        }
        Err(Problem::forbidden("this token covers only some queues, but the request concerns all of them"))
    }
}
