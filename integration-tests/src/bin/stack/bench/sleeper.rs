//! Lateness of the machine itself: a thread that only sleeps, and how much it oversleeps.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use super::report::Report;

const NAP: Duration = Duration::from_millis(1);
/// Longer delays are recorded as this.
const LONGEST_US: u64 = 60_000_000;

/// Sleeps a millisecond at a time until it is dropped. A delay of this thread would delay tasks too.
#[derive(Debug)]
pub(crate) struct Sleeper(Arc<Mutex<Histogram<u64>>>);

impl Sleeper {
    pub(crate) fn start() -> Self {
        let late = Histogram::new_with_bounds(1, LONGEST_US, 3).expect("a minute in three digits");
        let late = Arc::new(Mutex::new(late));
        let seen = Arc::downgrade(&late);
        std::thread::spawn(move || sleep(&seen));
        Self(late)
    }

    pub(super) fn tell(&self, part: &str, report: &mut Report) {
        report.figure(part, "the machine: a sleeper late, p99", self.p99_ms(), "ms");
        report.figure(part, "the machine: a sleeper late, max", self.0.lock().max() as f64 / 1e3, "ms");
    }

    pub(crate) fn p99_ms(&self) -> f64 {
        self.0.lock().value_at_quantile(0.99) as f64 / 1e3
    }
}

/// Each delay is weighted by its length, because it affects every wake-up within it.
fn sleep(late: &Weak<Mutex<Histogram<u64>>>) {
    loop {
        let began = Instant::now();
        std::thread::sleep(NAP);
        let over = began.elapsed().saturating_sub(NAP);
        let over_us = u64::try_from(over.as_micros()).unwrap_or(LONGEST_US);
        let Some(late) = late.upgrade() else { return };
        late.lock().saturating_record_n(over_us, 1 + over_us / 1_000);
    }
}
