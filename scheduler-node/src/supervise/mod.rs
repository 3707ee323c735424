//! Runs the loops: what the end of each means for the node, and in which order they stop.

mod loop_kind;
mod pulse;

use std::{future::Future, time::Duration};

use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

pub use self::{
    loop_kind::LoopKind,
    pulse::{Pulse, Work, at_work},
};

/// The signals of a stop, in their order. Intake ends before output. The registration ends last, because the
/// ownership of all shards depends on it.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// Hand over all owned shards; acquire no new ones.
    pub leaving: CancellationToken,
    /// Accept no more requests.
    pub intake: CancellationToken,
    /// No more submissions, claims, reads and looks. Claimed tasks are still published and settled.
    pub work: CancellationToken,
    /// Stop waiting for a database to take the remaining settlements.
    pub patience: CancellationToken,
    /// Leave the cluster.
    pub cluster: CancellationToken,
}

/// The loops of one node that end together.
#[derive(Debug)]
pub struct Crew {
    pulse: Pulse,
    loops: JoinSet<LoopKind>,
}

impl Crew {
    /// Makes a crew whose loops `pulse` watches.
    pub fn new(pulse: &Pulse) -> Self {
        Self { pulse: pulse.clone(), loops: JoinSet::new() }
    }

    pub fn spawn(&mut self, kind: LoopKind, run: impl Future<Output = ()> + Send + 'static) {
        let run = self.pulse.run(kind, run);
        self.loops.spawn(async move {
            run.await;
            kind
        });
    }

    /// Waits for the first loop that ends. Before a stop that means a broken node.
    pub async fn first_end(&mut self) -> String {
        match self.loops.join_next().await {
            Some(Ok(kind)) => format!("the loop {kind} ended by itself"),
            Some(Err(error)) => format!("a loop panicked: {error}"),
            None => "no loop is running".to_owned(),
        }
    }

    /// Waits for all loops to end after a stop. Returns `false` if some did not in time.
    pub async fn all_end(&mut self, within: Duration) -> bool {
        let end = async { while self.loops.join_next().await.is_some() {} };
        tokio::time::timeout(within, end).await.is_ok()
    }
}

/// Runs a future that must finish even if its caller goes away: a statement whose HTTP client hung up, a batch on
/// its channel.
pub fn spawn_child<T: Send + 'static>(child: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    #[expect(clippy::disallowed_methods, reason = "this is where tasks are spawned")]
    tokio::spawn(pulse::inherited(child))
}
