//! Gathers concurrent submissions into one statement, and gives each caller its part of the answers.

use std::{sync::Arc, time::Duration};

use common::task::NewTask;
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    store::submit::Sending,
    supervise::{at_work, spawn_child},
};

/// As many tasks as make a statement's own cost small beside theirs.
const WORTH_A_STATEMENT: usize = 64;

/// While a statement is under way, the next one waits this long for so many tasks. Clients that each wait for their
/// answer then share few statements. The runtime's timer rounds it up by a millisecond at most.
const PATIENCE: Duration = Duration::from_millis(1);

/// How many tasks share a statement, and how many statements are under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub in_flight: usize,
    /// A statement with this many tasks takes no further job.
    pub tasks: usize,
}

/// Why a submitted task is not durable, as far as this node knows.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    #[error("it was not stored: {0}")]
    Unavailable(String),
    /// No standby confirms commits, and the configuration requires one.
    #[error("it was not stored: {0}")]
    Unreplicated(String),
    #[error("it may or may not have been stored: {0}")]
    Unknown(String),
    #[error("too many submissions are waiting")]
    Overloaded,
    /// The task can never be stored: the database refuses its values.
    #[error("the database refuses it: {0}")]
    Refused(String),
    /// A statement with this task only failed as with a bug: the task or the server is at fault. `others_pass`: others
    /// of its batch were stored.
    #[error("it was not stored: {why}")]
    InDoubt { why: String, others_pass: bool },
    /// The task was admitted or got its shard by rules of its queue that are no longer in force. It is handed back.
    #[error("it was not stored: the rules of its queue for submissions changed")]
    RulesChanged(Box<NewTask>),
    /// The task's shard is in another database by now, and this sending stored nothing here. The task is handed back,
    /// with the kind of this sending.
    #[error("it was not stored: its shard is moving to another database")]
    Elsewhere(Box<NewTask>, Sending),
}

/// Tasks of one caller for one database, and where the answers go.
#[derive(Debug)]
pub struct Job<T> {
    pub tasks: Vec<NewTask>,
    /// The value of the metrics' label `source`.
    pub source: &'static str,
    /// The revision of the queues by which the tasks were admitted and got their shards.
    pub routed: i64,
    /// `Again`: the end of an earlier sending, to a former place of a shard, is unknown.
    pub sending: Sending,
    /// Receives one answer for each task, in their order.
    pub answer: oneshot::Sender<Vec<Result<T, SubmitError>>>,
}

/// Gathers jobs that arrive at the same time, and writes them together. Runs until `stop`, and then until all jobs
/// that have arrived are written.
pub(super) async fn run_batches<T, F>(
    mut jobs: mpsc::Receiver<Job<T>>,
    stop: CancellationToken,
    bounds: Bounds,
    write: impl Fn(Vec<Job<T>>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let statements = Arc::new(Semaphore::new(bounds.in_flight));
    let mut of_next = None;
    loop {
        let room = Arc::clone(&statements).acquire_owned().await.expect("the semaphore is never closed");
        let first = match of_next.take() {
            Some(job) => Some(job),
            None => tokio::select! {
                job = jobs.recv() => job,
                () = stop.cancelled() => {
                    jobs.close();
                    jobs.recv().await
                }
            },
        };
        let Some(first) = first else { break };
        let is_alone = statements.available_permits() + 1 == bounds.in_flight;
        let patience = if is_alone { Duration::ZERO } else { PATIENCE };
        let (batch, other) = gather(first, &mut jobs, bounds.tasks, patience).await;
        of_next = other;
        let writing = write(batch);
        spawn_child(async move {
            let _work = at_work();
            writing.await;
            drop(room);
        });
    }
    // The last statements hold permits until they have answered.
    let all = u32::try_from(bounds.in_flight).expect("a small number");
    let _ = statements.acquire_many(all).await;
}

/// Takes the jobs that have arrived. As long as they are not worth a statement, it also takes those that come within
/// `patience`. It ends before a job of the other kind of sending, and returns that one for the next statement: a first
/// sending beside one with an unknown end would be repeated as long, and be called unknown, though it was never sent.
async fn gather<T>(
    first: Job<T>,
    jobs: &mut mpsc::Receiver<Job<T>>,
    most: usize,
    patience: Duration,
) -> (Vec<Job<T>>, Option<Job<T>>) {
    let (until, sending) = (Instant::now() + patience, first.sending);
    let mut tasks = first.tasks.len();
    let mut batch = vec![first];
    while tasks < most {
        let job = match jobs.try_recv() {
            Ok(job) => job,
            Err(_) if tasks < WORTH_A_STATEMENT && !patience.is_zero() => {
                match tokio::time::timeout_at(until, jobs.recv()).await {
                    Ok(Some(job)) => job,
                    Ok(None) | Err(_) => break,
                }
            }
            Err(_) => break,
        };
        if job.sending != sending {
            return (batch, Some(job));
        }
        tasks += job.tasks.len();
        batch.push(job);
    }
    (batch, None)
}

/// The oldest revision of the queues by which tasks of the batch were admitted and got their shards.
pub(super) fn routed<T>(batch: &[Job<T>]) -> i64 {
    batch.iter().map(|job| job.routed).min().unwrap_or(i64::MAX)
}

/// Whether the tasks of the batch may have been sent before, to an unknown end. All its jobs are of one kind.
pub(super) fn sending<T>(batch: &[Job<T>]) -> Sending {
    batch.first().map_or(Sending::First, |job| job.sending)
}

/// The tasks of a batch in one list, and how many each job had.
pub(super) fn take_tasks<T>(batch: &mut [Job<T>]) -> (Vec<NewTask>, Vec<usize>) {
    let lengths = batch.iter().map(|job| job.tasks.len()).collect();
    (batch.iter_mut().flat_map(|job| std::mem::take(&mut job.tasks)).collect(), lengths)
}

/// The `source` of each task of a batch.
pub(super) fn sources<T>(batch: &[Job<T>], lengths: &[usize]) -> Vec<&'static str> {
    batch.iter().zip(lengths).flat_map(|(job, length)| std::iter::repeat_n(job.source, *length)).collect()
}

/// Sends each caller its part of the answers: as many as it had tasks.
pub(super) fn answer<T>(batch: Vec<Job<T>>, lengths: &[usize], answers: Vec<Result<T, SubmitError>>) {
    let mut answers = answers.into_iter();
    for (job, length) in batch.into_iter().zip(lengths) {
        // A caller that hung up does not need its answer.
        let _ = job.answer.send(answers.by_ref().take(*length).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_first_sending_shares_no_statement_with_one_whose_earlier_end_is_unknown() {
        use Sending::{Again, First};
        let (to_write, jobs) = mpsc::channel(8);
        for kind in [First, First, Again, Again, First] {
            let (tasks, answer) = (Vec::new(), oneshot::channel().0);
            let job = Job::<()> { tasks, source: "http", routed: 0, sending: kind, answer };
            to_write.try_send(job).expect("there is room");
        }
        drop(to_write);
        let (written, mut batches) = mpsc::channel(8);
        let write = move |batch: Vec<Job<()>>| {
            written.try_send((batch.len(), sending(&batch))).expect("there is room");
            std::future::ready(())
        };
        run_batches(jobs, CancellationToken::new(), Bounds { in_flight: 1, tasks: 10 }, write).await;
        let mut found = Vec::new();
        while let Some(batch) = batches.recv().await {
            found.push(batch);
        }
        assert_eq!(found, [(2, First), (2, Again), (1, First)]);
    }
}
