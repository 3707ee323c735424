//! Judges tasks submitted in SQL by the rules for every other submission.

use common::{
    shard::route::bound_to,
    task::{NewTask, ValidTask},
    time::Present,
    wire::{Problem, TaskRequest},
};

use super::{Desk, limits::AppliedLimits, meter::Admission, refusal};
use crate::store::inbox::{InboxRow, LONGEST_REQUEST};

impl Desk {
    /// Returns one answer for each row, in their order: the task to store, or the reason why the row cannot be
    /// one. The caller keeps the [`Admission`] until the tasks are stored.
    pub(crate) async fn judge(&self, rows: &[InboxRow]) -> (Vec<Result<NewTask, Problem>>, Admission) {
        if let Err(why) = self.learn_turns(rows).await {
            return (rows.iter().map(|_| Err(why.clone())).collect(), Admission::default());
        }
        let limits = self.limits();
        // Times count from the submission, however long the row has waited.
        let read = |row: &InboxRow| {
            let request = row.request.as_ref().ok_or_else(too_large)?;
            TaskRequest::parse(request)?.validate(Present::exactly(row.submitted_at), &limits)
        };
        let read: Vec<Result<ValidTask, Problem>> = rows.iter().map(read).collect();
        let (read, room) = self.admit_all(read, AppliedLimits::Pending).await;
        let judged = |(row, task): (&InboxRow, Result<ValidTask, Problem>)| {
            let task = task?;
            self.check_shard(row, &task)?;
            Ok(NewTask { id: row.id, task: ValidTask { due_now: false, ..task } })
        };
        (rows.iter().zip(read).map(judged).collect(), room)
    }

    /// Reads the queues if this node may not know a change that was answered before one of the rows was committed.
    /// While it cannot read them, the rows wait; after a second, a node that knows the change takes them. Where the
    /// read shows no change, the first database was set back, and what it has counts.
    async fn learn_turns(&self, rows: &[InboxRow]) -> Result<(), Problem> {
        let known = self.parts().books.load().revision();
        if rows.iter().all(|row| row.turned <= known) {
            return Ok(());
        }
        self.catch_up().await.map_err(|error| {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "the changed queues of rows in SQL cannot be read"
            );
            refusal::outdated()
        })
    }

    /// Refuses a row whose shard does not fit the queue's placement. A database that did not know the queue's
    /// policy yet has put the task on another shard than the tasks that belong with it.
    fn check_shard(&self, row: &InboxRow, task: &ValidTask) -> Result<(), Problem> {
        let placement = self.parts().books.load().get(&task.queue).policy.placement;
        let key = task.keyed.as_ref().map(|keyed| keyed.key.as_str());
        let count = self.parts().store.places().shard_count().expect("told before the row was read");
        match bound_to(&task.queue, placement, task.partition_key.as_deref(), key, count.into()) {
            Some(shard) if shard != row.id.shard() => {
                let detail = format!(
                    "the placement of queue `{}` changed, or the queue was deleted, during the submission; submit the task again",
                    task.queue
                );
                Err(Problem::invalid_field("queue", detail))
            }
            _ => Ok(()),
        }
    }
}

fn too_large() -> Problem {
    Problem::payload_too_large(format!("the submission is longer than {LONGEST_REQUEST} bytes, or cannot be read"))
}
