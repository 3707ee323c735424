//! The work `submit`: many clients, each of which submits one task after another.

use anyhow::Result;

use super::{
    pace::{self, HOUR, Task},
    work::{Order, Told},
};
use crate::bench::singles::one_after_another;

/// Calls each client for one task after another until the time is over, all of them due in an hour.
pub(super) async fn submit<C>(order: &Order, clients: &[C], one: impl AsyncFn(&C, Task) -> Result<()>) -> Result<Told> {
    let due_us = pace::instant_in(HOUR);
    let submit = async |client: &C, number| one(client, Task { number, due_us }).await;
    let calls = one_after_another(order.time(), clients, submit).await?;
    Ok(Told { submitted: calls.count, submit_seconds: calls.seconds, ..Told::default() })
}
