//! The loop that the readers of this node's copies share. It reads a copy when a glance shows that it has changed.
//! While a read fails, the copy stays as it is.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::select_all};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    by_database::ByDatabase,
    store::{Database, Error, glance::Glance},
    supervise::at_work,
};

/// The interval of the checks. Well below the second within which a policy or a token must be in force everywhere.
const CHECK_EVERY: Duration = Duration::from_millis(400);

/// A reader of one copy.
pub(super) trait PollRevision {
    /// The name of the copied data in the log.
    const OF: &'static str;

    /// Whether glances show that the copy is up to date. Without a fresh glance it counts as outdated.
    fn is_current(&self) -> impl Future<Output = bool> + Send;

    /// Brings the copy up to date.
    fn read(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Reads until `stop`, and at once after `outdated`. Of several failures in a row only the first is logged.
pub(super) async fn poll_revision<R: PollRevision>(
    mut reader: R,
    databases: ByDatabase<Arc<Database>>,
    outdated: &Notify,
    stop: CancellationToken,
) {
    let mut is_logged = false;
    let mut glances = Glances { databases, receivers: Vec::new() };
    let mut must_read = true;
    loop {
        let work = at_work();
        let read = if must_read || !reader.is_current().await { reader.read().await } else { Ok(()) };
        drop(work);
        must_read = read.is_err();
        match read {
            Ok(()) => is_logged = false,
            Err(error) if !is_logged => {
                is_logged = true;
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the {} cannot be read; the last ones read stay in force", R::OF);
            }
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(CHECK_EVERY) => {}
            () = glances.next(), if !must_read => {}
            () = outdated.notified() => must_read = true,
            () = stop.cancelled() => return,
        }
    }
}

/// Waits for glances at any database of the node.
struct Glances {
    databases: ByDatabase<Arc<Database>>,
    receivers: Vec<watch::Receiver<Option<Glance>>>,
}

impl Glances {
    /// Waits for the next glance. One that came between two calls counts.
    async fn next(&mut self) {
        let joined = self.databases.iter().skip(self.receivers.len());
        self.receivers.extend(joined.map(|database| database.glances()));
        let changes = self.receivers.iter_mut().map(|receiver| receiver.changed().boxed());
        // A database exists as long as the node, so its sender does too.
        let _ = select_all(changes).await;
    }
}
