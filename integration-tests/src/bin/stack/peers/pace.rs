//! When the tasks of each work are due, and how they are submitted ahead of that.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration_tests::clock::now_us;
use tokio::{task::JoinSet, time::MissedTickBehavior};

use super::work::{AHEAD, BURST_AHEAD, Order};
use crate::bench::instants::{self, micros};

pub(super) use crate::bench::instants::{Task, at_their_instants, due_at, instant_in, instant_of};

const TICK: Duration = Duration::from_millis(25);
/// Small batches on their way at once.
const IN_FLIGHT: usize = 64;
/// What each peer of this program submits at least.
const SUBMITTED_PER_S: u64 = 5_000;
pub(super) const MONTH: Duration = Duration::from_secs(30 * 86_400);
pub(super) const HOUR: Duration = Duration::from_secs(3_600);

/// When the tasks of `burst` are due: far enough ahead for all of them to be submitted [`BURST_AHEAD`] before. The
/// programs of other peers begin their submissions [`AHEAD`] too.
pub(super) fn burst_instant(order: &Order) -> i64 {
    instant_in(AHEAD + Duration::from_secs(order.tasks / SUBMITTED_PER_S))
}

/// Fails when a burst that has just been submitted is due sooner than [`BURST_AHEAD`] from now.
pub(super) fn ensure_ahead(due_us: i64) -> Result<()> {
    let ahead = BURST_AHEAD.as_secs();
    ensure!(now_us() + micros(BURST_AHEAD) <= due_us, "not all of the burst was submitted {ahead} s before it was due");
    Ok(())
}

/// The tasks of `late`: evenly spread, the first due [`AHEAD`] from now, in whole milliseconds.
pub(super) fn evenly(order: &Order) -> Vec<Task> {
    instants::evenly(AHEAD, order.rate, order.rate * order.seconds)
}

/// Submits `tasks` in small batches, each task [`AHEAD`] of its instant.
pub(super) async fn submit_ahead<F>(tasks: &[Task], submit: impl Fn(Vec<Task>) -> F) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut sending = JoinSet::new();
    let mut rest = tasks;
    while !rest.is_empty() {
        ticks.tick().await;
        let until_us = now_us() + micros(AHEAD);
        let (now, later) = rest.split_at(rest.partition_point(|task| task.due_us <= until_us));
        rest = later;
        if !now.is_empty() {
            sending.spawn(submit(now.to_vec()));
        }
        while sending.len() > IN_FLIGHT
            && let Some(ended) = sending.join_next().await
        {
            ended??;
        }
    }
    while let Some(ended) = sending.join_next().await {
        ended??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::work::made_up, *};

    #[test]
    fn a_burst_is_submitted_three_seconds_before_it_is_due() {
        ensure_ahead(burst_instant(&made_up())).expect("there is time to submit it");
        assert!(ensure_ahead(instant_in(Duration::from_secs(2))).is_err());
    }
}
