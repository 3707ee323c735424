//! The loop that the readers of this node's copies share. It reads a copy again and again; while a read fails, the
//! copy stays as it is.

use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{store::Error, supervise::at_work};

/// Well below the second within which a policy or a token must be in force everywhere.
const READ_EVERY: Duration = Duration::from_millis(400);

/// A reader of one copy.
pub(super) trait PollRevision {
    /// The name of the copied data in the log.
    const OF: &'static str;

    /// Brings the copy up to date.
    fn read(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Reads until `stop`, and at once after `outdated`. Of several failures in a row only the first is logged.
pub(super) async fn poll_revision<R: PollRevision>(mut reader: R, outdated: &Notify, stop: CancellationToken) {
    let mut is_logged = false;
    loop {
        let work = at_work();
        let read = reader.read().await;
        drop(work);
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
            () = tokio::time::sleep(READ_EVERY) => {}
            () = outdated.notified() => {}
            () = stop.cancelled() => return,
        }
    }
}
