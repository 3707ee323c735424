//! Writes the broker's confirms in batches: finished, or delivered with a deadline.
//!
//! No delivery waits for these writes, so they give way to due messages for a while. A confirm is a fact, so its
//! write is repeated until the database takes it. Meanwhile the task stays in flight, so no node publishes it again. A
//! task whose confirm the database refuses is set aside. If this loop stops, the next owner publishes the tasks again
//! whose confirms were not written.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use common::{
    ids::{Attempt, QueueName, TaskId},
    task::{
        TaskState,
        verdict::{AfterConfirm, CONFIRMED_FROM},
    },
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::releaser::Releaser;
use crate::{
    metrics::Metrics,
    store::{
        Database, Error, Statements,
        depend::Succeeded,
        settle::{Deliver, Finish, Report},
    },
    supervise::at_work,
    working_set::{
        database::{DatabaseIndex, NodeDatabases},
        lanes::Lanes,
        retry::until_done,
        set_aside::Kind,
    },
};

/// Confirms are gathered for this long. The write delays no delivery, so fewer, larger statements win.
const GATHER: Duration = Duration::from_millis(50);

/// The most confirms of one statement.
const BATCH: usize = 1_000;

/// The most batches of confirms that wait for the database. The dispatcher's window is full before this is.
const WAITING: usize = 1_024;

/// The name of these writes in the log. Compare-and-set on attempt and state makes a second write harmless.
const WHAT: &str = "confirms";

/// One confirmed publish.
#[derive(Clone, Debug)]
pub struct Confirmed {
    pub id: TaskId,
    pub attempt: Attempt,
    pub queue: QueueName,
    pub verdict: AfterConfirm,
}

/// The channel that takes confirms to the settler.
#[derive(Clone, Debug)]
pub struct Settlements(mpsc::Sender<Vec<Confirmed>>);

impl Settlements {
    pub fn channel() -> (Self, mpsc::Receiver<Vec<Confirmed>>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    pub async fn confirmed(&self, confirmed: Vec<Confirmed>) {
        if !confirmed.is_empty() {
            // The settler ends last; without it the next owner publishes these again.
            let _ = self.0.send(confirmed).await;
        }
    }
}

#[derive(Debug)]
pub struct Settler<S = Arc<Database>> {
    pub databases: NodeDatabases<S>,
    /// The database in which the tasks were claimed. A shard that has moved since has its tasks in another one.
    pub index: DatabaseIndex,
    pub releaser: Releaser<S>,
    /// The most tasks in flight.
    pub window: usize,
    pub lanes: Arc<Lanes>,
    pub metrics: Arc<Metrics>,
}

impl<S: Statements> Settler<S> {
    /// Runs until every sender is gone and everything is written, or until `stop` ends the wait.
    pub async fn run(self, mut confirms: mpsc::Receiver<Vec<Confirmed>>, stop: CancellationToken) {
        while let Some(first) = confirms.recv().await {
            let _work = at_work();
            tokio::time::sleep(GATHER).await;
            let mut batch = first;
            self.give_way(&mut batch, &mut confirms).await;
            while batch.len() < BATCH
                && let Ok(more) = confirms.try_recv()
            {
                batch.extend(more);
            }
            // All statements that touch several tasks take them in the order of their ids, so that no two deadlock.
            batch.sort_unstable_by_key(|confirmed| confirmed.id);
            for part in batch.chunks(BATCH) {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = self.settle(part) => {}
                }
            }
        }
    }

    /// Adds the confirms that come while due messages wait to be sent, as long as the window has room for more tasks.
    async fn give_way(&self, batch: &mut Vec<Confirmed>, confirms: &mut mpsc::Receiver<Vec<Confirmed>>) {
        if self.databases[self.index].owned_shards.in_flight() > self.window / 2 {
            return;
        }
        let way = self.lanes.backlog.give_way();
        tokio::pin!(way);
        loop {
            tokio::select! {
                biased;
                () = &mut way => return,
                more = confirms.recv() => match more {
                    Some(more) => batch.extend(more),
                    None => return,
                }
            }
        }
    }

    async fn settle(&self, batch: &[Confirmed]) {
        let (mut finishing, mut open) = (Vec::new(), Vec::new());
        for confirmed in batch {
            match confirmed.verdict {
                AfterConfirm::Succeed { keep_ms } => finishing.push((confirmed, keep_ms)),
                AfterConfirm::Deliver { timeout_ms } => open.push((confirmed, timeout_ms)),
            }
        }
        let ((), succeeded) = tokio::join!(self.deliver(&open), self.finish(&finishing));
        fail::fail_point!("after_settle", |_| std::process::abort());
        for (_, database) in self.databases.indexed() {
            database.owned_shards.end(batch.iter().map(|confirmed| confirmed.id));
        }
        for (index, succeeded) in succeeded {
            self.releaser.succeeded(&self.databases[index], &succeeded).await;
        }
    }

    /// Writes rows until each is written or refused, each in the place of its shard. Rows that no place takes in time
    /// are left to a rescue. Returns the answers of each database.
    async fn write<R: Clone, T, F>(
        &self,
        rows: Vec<R>,
        name: impl Fn(&R) -> (TaskId, Attempt),
        write: impl Fn(S, Vec<R>) -> F,
    ) -> Vec<(DatabaseIndex, T)>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut answers = Vec::new();
        let mut parts = vec![(self.index, rows)];
        let mut refusals = 0;
        while !parts.is_empty() {
            let mut moved = Vec::new();
            for (index, rows) in parts {
                let database = &self.databases[index];
                let done = until_done(WHAT, &rows, |part| write(database.sql.clone(), part.to_vec())).await;
                for refused in done.refused {
                    let (id, attempt) = name(refused.item);
                    database.set_attempt_aside(Kind::Confirm, id, attempt, &refused.error).await;
                }
                answers.extend(done.answers.into_iter().map(|answer| (index, answer)));
                moved.extend(done.moved.into_iter().cloned());
            }
            parts = match self.databases.divide_again(refusals, moved, |row| name(row).0).await {
                Ok(parts) => parts,
                Err(left) => {
                    tracing::warn!(
                        rows = left.len(),
                        "no database takes these confirms, because a shard is moving; the next owner publishes their tasks again"
                    );
                    Vec::new()
                }
            };
            refusals += 1;
        }
        answers
    }

    async fn deliver(&self, open: &[(&Confirmed, i64)]) {
        if open.is_empty() {
            return;
        }
        let tasks: Vec<Deliver> = open
            .iter()
            .map(|(confirmed, timeout_ms)| Deliver {
                id: confirmed.id,
                attempt: confirmed.attempt,
                timeout_ms: *timeout_ms,
            })
            .collect();
        let name = |task: &Deliver| (task.id, task.attempt);
        self.write(tasks, name, |database, part| async move { database.task_deliver(&part).await }).await;
    }

    async fn finish(&self, finishing: &[(&Confirmed, i64)]) -> Vec<(DatabaseIndex, Vec<Succeeded>)> {
        if finishing.is_empty() {
            return Vec::new();
        }
        let tasks: Vec<Finish> = finishing
            .iter()
            .map(|(confirmed, keep_ms)| Finish {
                id: confirmed.id,
                attempt: confirmed.attempt,
                final_state: TaskState::Succeeded,
                was: CONFIRMED_FROM,
                keep_ms: *keep_ms,
                report: Report::default(),
                at_deadline: false,
                entry: None,
            })
            .collect();
        let name = |task: &Finish| (task.id, task.attempt);
        let answers = self.write(tasks, name, |database, part| async move { database.task_finish(&part).await }).await;
        // Tasks that a report has finished meanwhile were counted there.
        let mut finished: HashSet<TaskId> = HashSet::new();
        let mut succeeded = Vec::new();
        for (index, answer) in answers {
            finished.extend(answer.ids);
            succeeded.push((index, answer.succeeded));
        }
        let mut queues: BTreeMap<&QueueName, u64> = BTreeMap::new();
        for (confirmed, _) in finishing.iter().filter(|(confirmed, _)| finished.contains(&confirmed.id)) {
            *queues.entry(&confirmed.queue).or_default() += 1;
        }
        for (queue, count) in queues {
            self.metrics.finished(queue, TaskState::Succeeded.text(), count);
        }
        succeeded
    }
}
