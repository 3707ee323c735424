//! Many clients at once, each of which makes one call after another.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::Result;
use futures::{TryStreamExt, stream::FuturesUnordered};

use super::times::Times;

/// The calls of all clients.
#[derive(Debug)]
pub(crate) struct Calls {
    pub count: u64,
    /// Until the last answer.
    pub seconds: f64,
    pub took: Times,
}

/// Lets each client make one call after another until the time is over. Each call has a number of its own, from 0.
pub(crate) async fn one_after_another<C>(
    time: Duration,
    clients: &[C],
    one: impl AsyncFn(&C, u64) -> Result<()>,
) -> Result<Calls> {
    let (next, took, began) = (AtomicU64::new(0), Times::new(), Instant::now());
    let calls = clients.iter().map(async |client| {
        while began.elapsed() < time {
            let called = Instant::now();
            one(client, next.fetch_add(1, Ordering::Relaxed)).await?;
            took.note(called.elapsed());
        }
        anyhow::Ok(())
    });
    // Up to 30 futures, `try_join_all` polls all of them whenever one was woken.
    calls.collect::<FuturesUnordered<_>>().try_collect::<()>().await?;
    Ok(Calls { count: next.into_inner(), seconds: began.elapsed().as_secs_f64(), took })
}
