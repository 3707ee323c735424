//! Inserts gathered tasks, and answers each caller after the commit.

use std::collections::{BTreeMap, HashMap};

use common::{
    ids::{QueueName, TaskId},
    task::NewTask,
    time::UnixMicros,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::InsertJob;
use crate::{
    clock,
    loops::{
        dispatch::claim_on_insert::ClaimOnInsert,
        nudger::Nudger,
        submit::{
            batch::{Bounds, SubmitError, answer, routed, run_batches, sources, take_tasks},
            resend::{Known, handed_back, refused, stored, until_known},
        },
    },
    store::{
        Database, Error,
        submit::{InsertResult, KnownRevisions, Sending, Window},
    },
    traces,
    working_set::database::DatabaseIndex,
};

/// The approximate number of rows in one insert. With more rows the time for each no longer falls.
const ROWS_PER_INSERT: usize = 2_000;

/// Inserts of one database under way: one commits while the next is filled.
const INSERTS_IN_FLIGHT: usize = 3;

/// Writes submissions to the database at `index`. Runs until `stop`, and then until all that have arrived are
/// written.
pub async fn run(
    index: DatabaseIndex,
    jobs: mpsc::Receiver<InsertJob>,
    claim_on_insert: ClaimOnInsert,
    nudger: Nudger,
    stop: CancellationToken,
) {
    let bounds = Bounds { in_flight: INSERTS_IN_FLIGHT, tasks: ROWS_PER_INSERT };
    run_batches(jobs, stop, bounds, |batch| {
        let insert = Insert { index, claim_on_insert: claim_on_insert.clone(), nudger: nudger.clone() };
        async move { insert.write(batch).await }
    })
    .await;
}

struct Insert {
    index: DatabaseIndex,
    claim_on_insert: ClaimOnInsert,
    nudger: Nudger,
}

impl Insert {
    async fn write(&self, mut batch: Vec<InsertJob>) {
        let counts = count(&batch);
        let (tasks, lengths) = take_tasks(&mut batch);
        let begun = self.claim_on_insert.begin(self.index, &tasks);
        let window = Window::first(self.database());
        let known = KnownRevisions { claims: begun.known, routes: routed(&batch) };
        let written = match self.database().task_submit_claimed(&tasks, &begun.epochs, known, window).await {
            Ok(written) => written,
            Err(error) => {
                self.claim_on_insert.lost(&begun, &tasks);
                return self.write_again(batch, lengths, tasks, (window, error)).await;
            }
        };
        fail::fail_point!("after_submit", |_| std::process::abort());
        stored(&self.claim_on_insert.databases[self.index]);
        self.note(&tasks, counts, &written);
        answer(batch, &lengths, answers(&tasks, &written, Sending::First));
        let (dispatches, scheduled) = self.claim_on_insert.written(begun, &written, tasks);
        self.nudge(&scheduled, written.asked_at);
        self.claim_on_insert.publish(dispatches).await;
    }

    /// Sends a batch again whose first sending failed. From here on the insert claims nothing.
    async fn write_again(
        &self,
        batch: Vec<InsertJob>,
        lengths: Vec<usize>,
        tasks: Vec<NewTask>,
        first: (Window, Error),
    ) {
        let node_database = &self.claim_on_insert.databases[self.index];
        let database = &node_database.sql;
        let sources = sources(&batch, &lengths);
        let routed = routed(&batch);
        let sent = until_known(node_database, &tasks, Sending::First, first, |part, sending, window| async move {
            database.task_submit_within(part, sending, window, routed).await.map(|written| (written, sending))
        })
        .await;
        let mut given = Vec::with_capacity(tasks.len());
        for (part, stored) in sent {
            let sources = &sources[given.len()..][..part.len()];
            refused(node_database, part, &stored);
            match stored {
                Known::Stored((written, sending)) => {
                    self.written(part, sources, &written);
                    given.extend(answers(part, &written, sending));
                }
                Known::Failed(why) => given.extend(std::iter::repeat_n(Err(why), part.len())),
                Known::Elsewhere(Sending::First) => given.extend(handed_back(part, Sending::First)),
                Known::Elsewhere(Sending::Again) => given.extend(self.write_elsewhere(part, sources, routed).await),
            }
        }
        answer(batch, &lengths, given);
    }

    /// Sends tasks whose earlier sending has an unknown end to the present places of their shards. The former database
    /// writes none of them any more.
    async fn write_elsewhere(
        &self,
        part: &[NewTask],
        sources: &[&'static str],
        routed: i64,
    ) -> Vec<Result<UnixMicros, SubmitError>> {
        let databases = &self.claim_on_insert.databases;
        let mut known: HashMap<TaskId, Result<UnixMicros, SubmitError>> = HashMap::new();
        let mut left: Vec<(NewTask, &'static str)> = part.iter().cloned().zip(sources.iter().copied()).collect();
        let (mut refusals, refused_at) = (0, clock::instant());
        let id = |(task, _): &(NewTask, &'static str)| task.id;
        while let Ok(parts) = databases.divide_again(refusals, refused_at, std::mem::take(&mut left), id).await
            && !parts.is_empty()
        {
            refusals += 1;
            for (index, rows) in parts {
                let (tasks, sources): (Vec<NewTask>, Vec<&'static str>) = rows.into_iter().unzip();
                let database = &databases[index].sql;
                let window = Window::first(database);
                let send = |part, sending, window| async move {
                    database.task_submit_within(part, sending, window, routed).await.map(|written| (written, sending))
                };
                let sent = match send(tasks.as_slice(), Sending::Again, window).await {
                    Ok(stored) => vec![(tasks.as_slice(), Known::Stored(stored))],
                    Err(error) => until_known(&databases[index], &tasks, Sending::Again, (window, error), send).await,
                };
                let mut begin = 0;
                for (part, stored) in sent {
                    let sources = &sources[begin..][..part.len()];
                    begin += part.len();
                    let ids = part.iter().map(|task| task.id);
                    match stored {
                        Known::Stored((written, sending)) => {
                            self.written(part, sources, &written);
                            known.extend(ids.zip(answers(part, &written, sending)));
                        }
                        Known::Failed(why) => known.extend(ids.map(|id| (id, Err(why.clone())))),
                        Known::Elsewhere(_) => left.extend(part.iter().cloned().zip(sources.iter().copied())),
                    }
                }
            }
        }
        let unknown = || Err(SubmitError::Unknown("its shard is moving to another database".to_owned()));
        part.iter().map(|task| known.get(&task.id).cloned().unwrap_or_else(unknown)).collect()
    }

    /// Notes tasks that a later sending wrote.
    fn written(&self, part: &[NewTask], sources: &[&'static str], written: &InsertResult) {
        self.note(part, count_tasks(part.iter().zip(sources.iter().copied())), written);
        self.nudge(part, written.asked_at);
    }

    fn database(&self) -> &Database {
        &self.claim_on_insert.databases[self.index].sql
    }

    fn nudge(&self, tasks: &[NewTask], asked_at: UnixMicros) {
        self.nudger.written_all(tasks.iter().map(|task| (task.id, task.due_at_when(asked_at))));
    }

    fn note(&self, tasks: &[NewTask], counts: Counts, written: &InsertResult) {
        let is_written = |queue: &QueueName| !written.rules_changed.contains(queue);
        for task in tasks.iter().filter(|task| is_written(&task.queue)) {
            let due_at = task.due_at_when(written.asked_at);
            let ids = || traces::ids(task.trace());
            tracing::debug!(task = %task.id, queue = %task.queue, %due_at, trace_id = ids().0, span_id = ids().1, "task submitted");
        }
        for ((queue, source), count) in counts.into_iter().filter(|((queue, _), _)| is_written(queue)) {
            self.claim_on_insert.metrics.submitted(&queue, source, count);
        }
    }
}

/// One answer for each task. Tasks of queues that have other rules by now are not written, unless an earlier sending
/// with an unknown end did so.
fn answers(tasks: &[NewTask], written: &InsertResult, sending: Sending) -> Vec<Result<UnixMicros, SubmitError>> {
    let answer = |task: &NewTask| match (written.rules_changed.contains(&task.queue), sending) {
        (false, _) => Ok(written.asked_at),
        (true, Sending::First) => Err(SubmitError::RulesChanged(Box::new(task.clone()))),
        (true, Sending::Again) => {
            Err(SubmitError::Unknown("the rules of its queue for submissions changed meanwhile".to_owned()))
        }
    };
    tasks.iter().map(answer).collect()
}

/// The number of tasks for each queue and source.
type Counts = BTreeMap<(QueueName, &'static str), u64>;

fn count(batch: &[InsertJob]) -> Counts {
    count_tasks(batch.iter().flat_map(|job| job.tasks.iter().map(|task| (task, job.source))))
}

fn count_tasks<'a>(tasks: impl Iterator<Item = (&'a NewTask, &'static str)>) -> Counts {
    let mut counts = Counts::new();
    for (task, source) in tasks {
        *counts.entry((task.queue.clone(), source)).or_default() += 1;
    }
    counts
}
