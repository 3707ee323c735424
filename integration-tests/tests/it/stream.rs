//! Tasks that are submitted beside a story, for as long as it takes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use integration_tests::{load::Load, sandbox::Sandbox};
use tokio::task::JoinHandle;

use crate::lasts;

/// The time for which it goes on after the story: tasks of a cluster that has recovered must arrive like all others.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// The longest time that an ended stream takes to notice.
const NOTICED_WITHIN: Duration = Duration::from_millis(500);

/// A load without an end of its own. It covers the whole story on a slow machine, and wastes no time on a quick one.
pub(crate) struct Stream {
    over: Arc<AtomicBool>,
    work: JoinHandle<()>,
}

impl Stream {
    pub(crate) fn start(sandbox: &Sandbox, nodes: &[usize], load: Load) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = nodes.iter().map(|number| sandbox.client(*number)).collect();
        let (is_over, ledger) = (Arc::clone(&over), Arc::clone(&sandbox.ledger));
        let work = tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                load.run(&clients, &ledger, NOTICED_WITHIN).await;
            }
        });
        Self { over, work }
    }

    /// The story is over. Submits a while longer, then ends.
    pub(crate) async fn end(self) -> Result<()> {
        lasts(AFTERWARDS).await;
        self.over.store(true, Ordering::Relaxed);
        Ok(self.work.await?)
    }
}
