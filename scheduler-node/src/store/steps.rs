//! The steps of tasks that statements take, as the node's history records them.

use std::collections::{BTreeMap, BTreeSet};

use common::{
    ids::{Attempt, Epoch, ShardId, TaskId},
    task::{Delivery, NewTask},
    time::UnixMicros,
};

use super::{
    Database, StoreOp,
    settle::{Finish, Finished, Retry},
    submit::InsertResult,
};
use crate::history::{History, Step};

/// A statement that changes tasks and whose outcome is not known. Unless it ends, the history says that it may be
/// executed, also when its caller no longer waits.
#[must_use]
pub(super) struct Doubt<'a> {
    history: &'a History,
    op: StoreOp,
    is_open: bool,
}

impl<'a> Doubt<'a> {
    pub(super) fn of(history: &'a History, op: StoreOp) -> Self {
        Self { history, op, is_open: history.is_on() && op.changes_tasks() }
    }

    /// The statement is known to have been executed, or never to be.
    pub(super) fn end(mut self) {
        self.is_open = false;
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.history.record(Step::Doubt { op: self.op.text() });
        }
    }
}

impl StoreOp {
    /// Whether the statement may be a step of a task.
    const fn changes_tasks(self) -> bool {
        let is_of_no_task = matches!(
            self,
            Self::ScheduleTurn | Self::QuarantineAdd | Self::MoveWrite | Self::MoveClose | Self::MoveOpen
        );
        let only_claims = matches!(self, Self::TaskClaim | Self::TaskPick | Self::TaskRescue);
        only_claims || self.is_relied_on() && !is_of_no_task
    }
}

impl Database {
    /// Records the tasks that a claim, a pick or a rescue took.
    pub(super) fn note_claimed(
        &self,
        op: StoreOp,
        taken: &[Delivery],
        fences: &BTreeMap<ShardId, Epoch>,
        now: UnixMicros,
    ) {
        self.history.record_all(taken.iter().filter_map(|one| {
            let (task, attempt, epoch, now) = (one.id, one.attempt, *fences.get(&one.id.shard())?, Some(now));
            Some(match op {
                StoreOp::TaskRescue => Step::Rescued { task, attempt, epoch, now },
                _ => Step::Claimed { task, attempt, epoch, now },
            })
        }));
    }

    /// Records the tasks of an insert, and the claims of those that it claimed.
    pub(super) fn note_submitted(&self, tasks: &[NewTask], epochs: &[Option<Epoch>], written: &InsertResult) {
        let written_tasks = tasks.iter().zip(epochs).filter(|(task, _)| !written.rules_changed.contains(&task.queue));
        for (task, epoch) in written_tasks.filter(|_| self.history.is_on()) {
            self.history.record(Step::Submitted { task: task.id });
            let is_claimed = written.held.contains(&task.id.shard()) && !written.turned.contains(&task.queue);
            if let Some(epoch) = epoch.filter(|_| is_claimed) {
                let (task, attempt, now) = (task.id, Attempt::new(1), Some(written.asked_at));
                self.history.record(Step::Claimed { task, attempt, epoch, now });
            }
        }
    }

    /// Records the tasks that moved to the archive.
    pub(super) fn note_finished(&self, asked: &[Finish], finished: &Finished) {
        if self.history.is_on() {
            let ids: BTreeSet<TaskId> = finished.ids.iter().copied().collect();
            self.history.record_all(asked.iter().filter(|task| ids.contains(&task.id)).map(|task| Step::Finished {
                task: task.id,
                attempt: task.attempt,
                outcome: task.final_state.text(),
            }));
        }
    }

    /// Records the attempts that failed and are followed by another one.
    pub(super) fn note_failed(&self, asked: &[Retry], retried: &[TaskId]) {
        if self.history.is_on() {
            let ids: BTreeSet<&TaskId> = retried.iter().collect();
            let failed = asked.iter().filter(|task| ids.contains(&task.id));
            self.history.record_all(failed.map(|task| Step::Failed { task: task.id, attempt: task.attempt }));
        }
    }
}
