//! The work `submit`: many clients, each of which submits one task after another.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use anyhow::Result;
use futures::future::try_join_all;

use super::{
    pace::{self, HOUR, Task},
    work::{Order, Told},
};

/// Calls each client for one task after another until the time is over, all of them due in an hour.
pub(super) async fn submit<C>(order: &Order, clients: &[C], one: impl AsyncFn(&C, Task) -> Result<()>) -> Result<Told> {
    let (next, began, due_us) = (AtomicU64::new(0), Instant::now(), pace::instant_in(HOUR));
    try_join_all(clients.iter().map(async |client| {
        while began.elapsed() < order.time() {
            one(client, Task { number: next.fetch_add(1, Ordering::Relaxed), due_us }).await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    Ok(Told { submitted: next.into_inner(), submit_seconds: began.elapsed().as_secs_f64(), ..Told::default() })
}
