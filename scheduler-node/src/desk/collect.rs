//! Judges tasks submitted in SQL by the rules for every other submission.

use std::time::Duration;

use common::{
    shard::route::bound_to,
    task::{NewTask, ValidTask},
    time::Present,
    wire::{Problem, TaskRequest},
};

use super::{Desk, limits::AppliedLimits, meter::Admission, refusal, submit::queues_of};
use crate::store::inbox::{InboxRow, LONGEST_REQUEST};

/// How long the intake leaves rows alone that cannot be judged before their queues are read.
pub(crate) const ROWS_WAIT: Duration = Duration::from_secs(5);

/// How long a failure to read the queues also answers for the rows of later passes. All rows of a pass wait for a read,
/// those of other queues too. So it is longer than [`ROWS_WAIT`]: rows that come back find the failure, as a rule. Once
/// this node knows the change, as its reader does half a second after the outage, none waits.
const ROWS_FAILURE_ANSWERS: Duration = Duration::from_secs(6 * ROWS_WAIT.as_secs());

impl Desk {
    /// Returns one answer for each row of a read, in their order: the task to store, or the reason why the row cannot
    /// be one. The caller keeps the [`Admission`] until the tasks are stored.
    pub(crate) async fn judge(&self, rows: &[InboxRow]) -> (Vec<Result<NewTask, Problem>>, Admission) {
        let limits = self.limits();
        // Times count from the submission, however long the row has waited.
        let read = |row: &InboxRow| -> Result<ValidTask, Problem> {
            let request = row.request.as_ref().ok_or_else(too_large)?;
            TaskRequest::parse(request)?.validate(Present::exactly(row.submitted_at), &limits)
        };
        let mut read: Vec<Result<ValidTask, Problem>> = rows.iter().map(read).collect();
        self.learn_rules(rows, &mut read).await;
        let (read, room) = self.admit_all(read, AppliedLimits::Pending).await;
        let judged = |(row, task): (&InboxRow, Result<ValidTask, Problem>)| {
            let task = task?;
            self.check_shard(row, &task)?;
            Ok(NewTask { id: row.id, task: ValidTask { due_now: false, ..task } })
        };
        (rows.iter().zip(read).map(judged).collect(), room)
    }

    /// Reads the queues if a task names one whose change this node may not know, although it was answered before one of
    /// the rows was committed. Such tasks wait while it cannot read them. After a second, a node that knows the change
    /// takes them. Where the read shows no change, the first database was set back, and what it has counts.
    async fn learn_rules(&self, rows: &[InboxRow], read: &mut [Result<ValidTask, Problem>]) {
        let Some(changed) = rows.first().map(|row| &row.rules_changed) else { return };
        let is_changed = |task: &ValidTask| queues_of(task).any(|queue| changed.queues.contains(queue));
        let knows = || self.knows(changed.revision);
        if !read.iter().flatten().any(is_changed) || self.read_unless(knows, ROWS_FAILURE_ANSWERS).await {
            return;
        }
        for task in read {
            if task.as_ref().is_ok_and(is_changed) {
                *task = Err(refusal::outdated());
            }
        }
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
    Problem::payload_too_large(format!("the submission is longer than {LONGEST_REQUEST} bytes"))
}
