//! When tasks are due, and the clocks that submit and publish them in time.

use std::time::Duration;

use anyhow::Result;
use integration_tests::clock::now_us;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

use super::work::{AHEAD, BURST_AHEAD, Order};

const TICK: Duration = Duration::from_millis(25);
/// Small batches on their way at once.
const IN_FLIGHT: usize = 64;
/// What each peer of this program submits at least.
const SUBMITTED_PER_S: u64 = 5_000;
pub(super) const MONTH: Duration = Duration::from_secs(30 * 86_400);
pub(super) const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub number: u64,
    pub due_us: i64,
}

impl Task {
    /// JSON of the length that was asked for: first the due instant, then the number.
    pub(super) fn payload(self, bytes: usize) -> String {
        let bare = format!("{{\"t\":{},\"n\":{},\"x\":\"\"}}", self.due_us, self.number);
        let fill = "x".repeat(bytes.saturating_sub(bare.len()));
        format!("{{\"t\":{},\"n\":{},\"x\":\"{fill}\"}}", self.due_us, self.number)
    }
}

/// `count` tasks from `first` on, all due at one instant.
pub(super) fn due_at(due_us: i64, first: u64, count: u64) -> Vec<Task> {
    (first..first + count).map(|number| Task { number, due_us }).collect()
}

/// The instant `ahead` from now, in whole milliseconds, which all peers can name.
pub(super) fn instant_in(ahead: Duration) -> i64 {
    whole_ms(now_us() + micros(ahead))
}

/// When the tasks of `burst` are due: far enough ahead for all of them to be submitted [`BURST_AHEAD`] before.
pub(super) fn burst_instant(order: &Order) -> i64 {
    instant_in(BURST_AHEAD + Duration::from_secs(order.tasks / SUBMITTED_PER_S))
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// The tasks of `late`: evenly spread, the first due [`AHEAD`] from now, in whole milliseconds.
pub(super) fn evenly(order: &Order) -> Vec<Task> {
    let (from_us, rate) = (now_us() + micros(AHEAD), order.rate.max(1));
    let due_us = |number: u64| whole_ms(from_us + i64::try_from(number * 1_000_000 / rate).unwrap_or(i64::MAX));
    (0..order.rate * order.seconds).map(|number| Task { number, due_us: due_us(number) }).collect()
}

fn whole_ms(us: i64) -> i64 {
    us.div_euclid(1_000) * 1_000
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

/// Gives out each task when it is `lead` before its instant. A thread of its own sleeps until then: the runtime's
/// clock counts whole milliseconds.
pub(super) fn at_their_instants(tasks: Vec<Task>, lead: Duration) -> mpsc::Receiver<Vec<Task>> {
    let (sender, receiver) = mpsc::channel(tasks.len().max(1));
    std::thread::spawn(move || {
        let mut rest = &tasks[..];
        while let Some(next) = rest.first() {
            let wait_us = next.due_us - micros(lead) - now_us();
            if let Ok(wait_us @ 1..) = u64::try_from(wait_us) {
                std::thread::sleep(Duration::from_micros(wait_us));
            }
            let until_us = now_us() + micros(lead);
            let (now, later) = rest.split_at(rest.partition_point(|task| task.due_us <= until_us));
            rest = later;
            if !now.is_empty() && sender.blocking_send(now.to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The tokio instant of a wall-clock instant.
pub(super) fn instant_of(us: i64) -> Instant {
    Instant::now() + Duration::from_micros(u64::try_from(us - now_us()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_the_length_that_was_asked_for_and_is_json() {
        let task = Task { number: 17, due_us: 1_700_000_000_000_000 };
        assert_eq!(task.payload(80).len(), 80);
        assert!(serde_json::from_str::<serde_json::Value>(&task.payload(0)).is_ok(), "what must be in it is in it");
    }
}
