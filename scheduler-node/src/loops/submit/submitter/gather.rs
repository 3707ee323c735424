//! Gathers concurrent submissions into one statement.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::supervise::{at_work, spawn_child};

/// How many tasks share a statement, and how many statements are under way.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub in_flight: usize,
    /// A statement with this many tasks takes no further job.
    pub tasks: usize,
}

/// The tasks that one caller wants written.
pub trait Part: Send + 'static {
    fn tasks(&self) -> usize;
}

/// Gathers jobs that arrive at the same time, and writes them together. Runs until `stop`, and then until all jobs
/// that have arrived are written.
pub async fn work<P, F>(
    mut jobs: mpsc::Receiver<P>,
    stop: CancellationToken,
    bounds: Bounds,
    write: impl Fn(Vec<P>) -> F,
) where
    P: Part,
    F: Future<Output = ()> + Send + 'static,
{
    let statements = Arc::new(Semaphore::new(bounds.in_flight));
    loop {
        let room = Arc::clone(&statements).acquire_owned().await.expect("the semaphore is never closed");
        let first = tokio::select! {
            job = jobs.recv() => job,
            () = stop.cancelled() => {
                jobs.close();
                jobs.recv().await
            }
        };
        let Some(first) = first else { break };
        let writing = write(gather(first, &mut jobs, bounds.tasks));
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

fn gather<P: Part>(first: P, jobs: &mut mpsc::Receiver<P>, most: usize) -> Vec<P> {
    let mut tasks = first.tasks();
    let mut batch = vec![first];
    while tasks < most
        && let Ok(job) = jobs.try_recv()
    {
        tasks += job.tasks();
        batch.push(job);
    }
    batch
}
