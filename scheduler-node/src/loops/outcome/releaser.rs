//! Releases tasks that waited for others.
//!
//! The writer of a success looks for tasks that wait for it. The writer of a waiting task looks whether it must
//! still wait. Each looks after its commit, so one of the two sees the other. If a node dies in between, the task
//! is looked at again at its own `wake_at`.

use std::{sync::Arc, time::Duration};

use common::ids::TaskId;

use crate::{
    clock,
    loops::nudger::Nudger,
    store::{
        Database, Error, Fault, Statements, StoreOp,
        depend::{ReleaseCheck, Released, Succeeded},
    },
    working_set::{database::NodeDatabase, retry::try_each, set_aside::Kind},
};

/// The pause before a row that another transaction holds is looked at again. Another look holds it for some
/// milliseconds, an application for as long as its transaction is open.
const HELD_AGAIN: Duration = Duration::from_millis(100);

/// The most waiting tasks that one statement looks at. With 100 names each, that is some seconds in the worst case, and
/// a statement has five.
pub const LOOKED_AT_ONCE: usize = 50;

/// The most statements of one look that run out of their five seconds before the rest of it is left. That is enough
/// for a part of [`LOOKED_AT_ONCE`] to become a single task, and such a look ends before it counts as stalled.
const MOST_OUT_OF_TIME: u32 = 7;

#[derive(Clone, Debug)]
pub struct Releaser<S = Arc<Database>> {
    pub nudger: Nudger<S>,
}

impl<S: Statements> Releaser<S> {
    /// Releases the tasks that wait for these successes.
    pub async fn succeeded(&self, database: &NodeDatabase<S>, succeeded: &[Succeeded]) {
        if succeeded.is_empty() {
            return;
        }
        if let Err(error) = self.release(database, &[], succeeded).await {
            tracing::debug!(database = %database.name(), error = &error as &dyn std::error::Error, "could not check tasks that waited for a success; their next check finds them");
        }
    }

    /// Looks at waiting tasks whose moment has come. Returns those that wait no longer. A part that ran out of its time
    /// is halved, so that its tasks do not come together again for ever.
    pub async fn look(&self, database: &NodeDatabase<S>, ids: &[TaskId]) -> Result<Vec<Released>, Error> {
        let mut parts: Vec<&[TaskId]> = ids.chunks(LOOKED_AT_ONCE).collect();
        let (mut released, mut failed, mut out_of_time) = (Vec::new(), None, 0);
        while let Some(part) = parts.pop() {
            let error = match self.release(database, part, &[]).await {
                Ok(more) => {
                    released.extend(more);
                    continue;
                }
                Err(error) => error,
            };
            let is_late = error.is_out_of_time();
            if error.fault() == Fault::Outage || (is_late && out_of_time == MOST_OUT_OF_TIME) {
                return Err(error);
            }
            if is_late && part.len() > 1 {
                let (before, after) = part.split_at(part.len() / 2);
                parts.extend([after, before]);
            } else {
                failed = Some(error);
            }
            out_of_time += u32::from(is_late);
        }
        failed.map_or(Ok(released), Err)
    }

    /// Releases tasks. A row whose change the database refuses is left alone for a while.
    async fn release(
        &self,
        database: &NodeDatabase<S>,
        ids: &[TaskId],
        succeeded: &[Succeeded],
    ) -> Result<Vec<Released>, Error> {
        let mut ids = ids.to_vec();
        let look = |part| database.sql.task_release(part, &[]);
        // A look at a task that no longer waits reads nothing, so it shows nothing.
        let released = |check: &ReleaseCheck| check.released.iter().map(|task| task.id).collect::<Vec<_>>();
        let (_, mut asked) = database.suspects.try_each(StoreOp::TaskRelease, &mut ids, |id| *id, look, released).await;
        // If the dependents of a success are refused, each is looked at on its own at its `wake_at`.
        let mut told = try_each(succeeded, |part| database.sql.task_release(&[], part)).await;
        database.set_aside(Kind::Release, asked.refused).await;
        let (mut released, mut held) = (Vec::new(), Vec::new());
        for looked in asked.answers.into_iter().chain(told.answers) {
            released.extend(looked.released);
            held.extend(looked.held);
        }
        if let Some(now) = database.sql.clock().at(clock::instant()) {
            self.nudger.written_all(held.into_iter().map(|id| (id, now.plus(HELD_AGAIN))));
        }
        self.nudger.written_all(released.iter().map(|task| (task.id, task.due_at)));
        for task in &released {
            tracing::debug!(task = %task.id, queue = %task.queue, due_at = %task.due_at, "task no longer waits");
        }
        let asked_left = asked.left.pop().map(|(_, error)| error);
        match asked_left.or_else(|| told.left.pop().map(|(_, error)| error)) {
            Some(error) => Err(error),
            None => Ok(released),
        }
    }
}
