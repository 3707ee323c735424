//! Judges what was submitted in SQL, as any other submission is judged.

use common::{
    shard::route::bound_to,
    task::NewTask,
    wire::{Problem, TaskRequest, ValidTask},
};

use super::{Desk, limits::Limited, meter::Admission};
use crate::store::inbox::{InboxRow, LONGEST_REQUEST};

impl Desk {
    /// One answer a row, in their order: the task it is to be, or why it cannot be one. The caller keeps the [`Admission`]
    /// until the tasks are stored.
    pub async fn judge(&self, rows: &[InboxRow]) -> (Vec<Result<NewTask, Problem>>, Admission) {
        let limits = self.limits();
        // Times count from the submission, however long the row has waited.
        let read = |row: &InboxRow| {
            let request = row.request.as_ref().ok_or_else(too_large)?;
            TaskRequest::parse(request)?.validate(row.submitted_at, &limits)
        };
        let read: Vec<Result<ValidTask, Problem>> = rows.iter().map(read).collect();
        let (read, room) = self.admitted(read, Limited::Pending).await;
        let judged = |(row, task): (&InboxRow, Result<ValidTask, Problem>)| {
            let task = task?;
            self.check_shard(row, &task)?;
            Ok(NewTask { asked_now: false, ..task.into_new(row.id) })
        };
        (rows.iter().zip(read).map(judged).collect(), room)
    }

    /// A database that had not heard of the queue's policy yet has put the task on another shard than its kin.
    fn check_shard(&self, row: &InboxRow, task: &ValidTask) -> Result<(), Problem> {
        let placement = self.parts().books.load().get(&task.queue).policy.placement;
        let key = task.keyed.as_ref().map(|keyed| keyed.key.as_str());
        let count = self.parts().store.shard_count();
        match bound_to(&task.queue, placement, task.partition_key.as_deref(), key, count) {
            Some(shard) if shard != row.id.shard() => {
                let detail = format!(
                    "the placement of queue `{}` changed at the moment of the submission; submit the task again",
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
