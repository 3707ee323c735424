//! Tasks that are submitted beside a story, for as long as it takes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use integration_tests::{
    ledger::{Ledger, Number},
    load::Load,
    sandbox::Sandbox,
};
use tokio::task::JoinHandle;

use crate::{lasts, until};

/// The time for which it goes on after the story: tasks of a cluster that has recovered must arrive like all others.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// The limit for the first submission to be accepted after the story: a request to a node that is cut off takes 10 s.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(60);

/// Of the submissions after that, so many of a hundred are accepted. On a busy machine, a request that hangs takes some
/// of the others of these seconds with it.
const ACCEPTED_PERCENT: usize = 50;

/// The longest time that an ended stream takes to notice.
const NOTICED_WITHIN: Duration = Duration::from_millis(500);

/// A load without an end of its own. It covers the whole story on a slow machine, and wastes no time on a quick one.
pub(crate) struct Stream {
    over: Arc<AtomicBool>,
    work: JoinHandle<()>,
    queue: String,
    ledger: Arc<Ledger>,
}

impl Stream {
    pub(crate) fn start(sandbox: &Sandbox, nodes: &[usize], load: Load) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = nodes.iter().map(|number| sandbox.client(*number)).collect();
        let (is_over, ledger) = (Arc::clone(&over), Arc::clone(&sandbox.ledger));
        let queue = load.queue.clone();
        let work = tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                load.run(&clients, &ledger, NOTICED_WITHIN).await;
            }
        });
        Self { over, work, queue, ledger: Arc::clone(&sandbox.ledger) }
    }

    /// The story is over. Submits a while longer, and checks that the cluster takes what comes.
    pub(crate) async fn end(self) -> Result<()> {
        let ended = self.next();
        until("submissions are accepted after the story", ACCEPTED_WITHIN, async || {
            (self.ledger.accepted_since(&self.queue, ended).1 > 0).then_some(())
        })
        .await?;
        let first = self.next();
        lasts(AFTERWARDS).await;
        self.over.store(true, Ordering::Relaxed);
        let (queue, ledger) = (self.queue, self.ledger);
        self.work.await?;
        let (sent, accepted) = ledger.accepted_since(&queue, first);
        ensure!(accepted * 100 >= sent * ACCEPTED_PERCENT, "{accepted} of {sent} were accepted after the story");
        Ok(())
    }

    /// The number of the next submission.
    fn next(&self) -> Number {
        self.ledger.progress().submitted as Number
    }
}
