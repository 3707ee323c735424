//! What the readers of this node's copies share: the copy is read again and again, and while it cannot be, it stays as it is.

use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{store::Error, supervise::at_work};

/// Well below the second within which a policy or a token is to be in force everywhere.
const READ_EVERY: Duration = Duration::from_millis(400);

/// A reader of one copy.
pub(super) trait Reread {
    /// What it is a copy of.
    const OF: &'static str;

    /// Brings the copy up to date.
    fn read(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Reads until `stop`, and at once when `outdated`. Of several failures in a row the first is told.
pub(super) async fn reread<R: Reread>(mut reader: R, outdated: &Notify, stop: CancellationToken) {
    let mut told = false;
    loop {
        let work = at_work();
        let read = reader.read().await;
        drop(work);
        match read {
            Ok(()) => told = false,
            Err(error) if !told => {
                told = true;
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the {} cannot be read; those that were read last count", R::OF);
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
