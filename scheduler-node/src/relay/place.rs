//! The wait of a call for its place, which ends when the call is given up.

use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

/// Waits for a place. `None`: the call was given up before it had one. With a place, it can no longer be given up.
pub(super) async fn place(places: &Semaphore, mut given_up: oneshot::Receiver<()>) -> Option<SemaphorePermit<'_>> {
    let place = tokio::select! {
        biased;
        // Without a sender, the call cannot be given up.
        Ok(()) = &mut given_up => return None,
        place = places.acquire() => place.expect("the semaphore is never closed"),
    };
    given_up.close();
    // It may have been given up at the last moment.
    given_up.try_recv().is_err().then_some(place)
}
