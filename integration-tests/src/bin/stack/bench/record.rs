//! Every arrival of a measurement: its faults, its lateness, and how long all of them took.

use std::{
    collections::HashSet,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    drain::{Eye, Seen},
    feed::Accepted,
    findings::Arrived,
    report::Report,
};

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A look at each arrival takes a while, so it is rare.
const LOOK_AT_EACH_EVERY: Duration = Duration::from_millis(200);
/// The limit for missing tasks: a minute more than a stream submits ahead.
const PATIENCE: Duration = Duration::from_secs(70);

/// The messages that consumers have received.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// All messages, those included that only show that the way is open.
    pub seen: AtomicU64,
    tasks: Mutex<Vec<Seen>>,
}

impl Record {
    pub(super) fn eye(self: &Arc<Self>) -> Eye {
        let record = Arc::clone(self);
        Arc::new(move |seen| {
            record.seen.fetch_add(1, Ordering::Relaxed);
            if seen.serial > 0 {
                record.tasks.lock().push(seen);
            }
        })
    }

    /// Returns when so many tasks have arrived, or at the deadline.
    pub(super) async fn wait(&self, count: usize, deadline: Instant) {
        while self.tasks.lock().len() < count && Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The arrivals of tasks so far.
    pub(super) fn all(&self) -> Vec<Seen> {
        self.tasks.lock().clone()
    }

    /// The arrivals of tasks since the last call.
    pub(super) fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.tasks.lock())
    }
}

/// Waits for the accepted tasks, and reports those that are missing in the end, came early or came twice.
pub(super) async fn judge(part: &str, what: &str, accepted: &[Accepted], of: &[&Record], report: &mut Report) {
    let missing = missing(accepted, of).await;
    let arrived: Vec<Seen> = of.iter().flat_map(|record| record.all()).collect();
    Arrived::of(&arrived).findings(missing).tell(part, &format!("{what}: "), report);
}

/// Waits for the accepted tasks; returns how many have not arrived in the end.
pub(super) async fn missing(accepted: &[Accepted], of: &[&Record]) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let arrived: HashSet<u64> = of
            .iter()
            .flat_map(|record| record.tasks.lock().iter().map(|seen| seen.serial).collect::<Vec<_>>())
            .collect();
        let missing = accepted.iter().filter(|task| !arrived.contains(&task.serial)).count() as u64;
        if missing == 0 || Instant::now() >= deadline {
            return missing;
        }
        tokio::time::sleep(LOOK_AT_EACH_EVERY).await;
    }
}

/// The lateness of tasks, as their consumer saw it.
#[derive(Debug)]
pub(super) struct Late(Vec<i64>);

impl Late {
    /// Of the tasks that were due in this time.
    pub(super) fn of(arrived: &[Seen], due_us: &Range<i64>) -> Self {
        let due = arrived.iter().filter(|seen| due_us.contains(&seen.stamp_us));
        let mut late_us: Vec<i64> = due.map(|seen| seen.at_us - seen.stamp_us).collect();
        late_us.sort_unstable();
        Self(late_us)
    }

    /// The quantile; NaN without any arrival.
    pub(super) fn ms(&self, share: f64) -> f64 {
        let place = (self.0.len() as f64 * share) as usize;
        self.0.get(place.min(self.0.len().saturating_sub(1))).map_or(f64::NAN, |us| *us as f64 / 1e3)
    }
}

/// After how many ms the first task, half of them and the last one had arrived. NaN without any arrival.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub first_ms: f64,
    pub half_ms: f64,
    pub last_ms: f64,
}

impl Spread {
    pub(super) fn of(arrived: &[Seen], from_us: i64) -> Self {
        let mut at_us: Vec<i64> = arrived.iter().map(|seen| seen.at_us).collect();
        at_us.sort_unstable();
        let after = |at_us: Option<&i64>| at_us.map_or(f64::NAN, |at_us| (at_us - from_us) as f64 / 1e3);
        Self {
            first_ms: after(at_us.first()),
            half_ms: after(at_us.get(at_us.len().saturating_sub(1) / 2)),
            last_ms: after(at_us.last()),
        }
    }
}

/// The most of these instants within any second.
pub(super) fn busiest_second(mut at_us: Vec<i64>) -> usize {
    const SECOND_US: i64 = 1_000_000;
    at_us.sort_unstable();
    let within = |(place, from_us): (usize, &i64)| at_us.partition_point(|at_us| at_us - from_us < SECOND_US) - place;
    at_us.iter().enumerate().map(within).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(at_us: &[i64]) -> Vec<Seen> {
        at_us
            .iter()
            .map(|at_us| Seen {
                at_us: *at_us,
                stamp_us: 0,
                serial: 1,
                shard: None,
                attempt: 1,
                due_ms: None,
                marked: false,
            })
            .collect()
    }

    #[test]
    fn the_busiest_second_may_begin_at_any_moment() {
        assert_eq!(busiest_second(vec![]), 0);
        assert_eq!(busiest_second(vec![0, 900_000, 1_000_000, 1_800_000, 1_899_999, 1_900_000]), 4);
    }

    #[test]
    fn half_of_a_burst_has_come_with_the_middle_arrival() {
        let spread = Spread::of(&arrivals(&[5_000, 2_000, 3_000, 9_000]), 1_000);
        assert_eq!((spread.first_ms, spread.half_ms, spread.last_ms), (1.0, 2.0, 8.0));
        assert!(Spread::of(&[], 0).last_ms.is_nan());
    }
}
