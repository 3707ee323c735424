//! An even stream of tasks that are due some seconds after their submission, measured after a warm-up.

use std::{ops::Range, sync::Arc, time::Duration};

use anyhow::Result;
use integration_tests::{clock::now_us, sandbox::Sandbox};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Options,
    feed::{Accepted, Feed, Way},
    machine::Watch,
    report::progress,
    scrape::{Scrape, watched},
};

/// Until the stream's first tasks are all due.
const WARM_UP: Duration = Duration::from_secs(10);

/// What nodes and machine did while a stream was measured.
#[derive(Debug)]
pub(super) struct Steady {
    /// The tasks that are due in this time belong to the measurement.
    pub due_us: Range<i64>,
    pub nodes: Scrape,
    pub watch: Watch,
}

/// Offers so many tasks a second, over the ways in turn. Accepted tasks go to `accepted`.
pub(super) async fn offer(
    part: &str,
    options: &Options,
    (cluster, feed): (&Sandbox, &Arc<Feed>),
    ways: &[Way],
    per_second: u32,
    accepted: &Arc<Mutex<Vec<Accepted>>>,
) -> Result<Steady> {
    progress(&format!("{part}: {} s to warm up, {} s measured ...", WARM_UP.as_secs(), options.seconds));
    let from_us = now_us() + WARM_UP.as_micros() as i64;
    let end = Instant::now() + WARM_UP + options.time();
    let (watched, ()) = tokio::join!(watched(cluster, WARM_UP, end), feed.stream(ways, per_second, end, accepted));
    let (nodes, watch) = watched?;
    Ok(Steady { due_us: from_us..from_us + options.time().as_micros() as i64, nodes, watch })
}
