//! Many times, of which only quantiles count: how late something was, or how long it took.

use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use super::report::Report;

/// Longer times are recorded as this: ten minutes.
const LONGEST_US: u64 = 600_000_000;
/// The significant digits of each time.
const DIGITS: u8 = 3;

#[derive(Debug)]
pub(crate) struct Times(Mutex<Histogram<u64>>);

impl Times {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Histogram::new_with_bounds(1, LONGEST_US, DIGITS).expect("the bounds are in order")))
    }

    pub(crate) fn note(&self, time: Duration) {
        self.note_us(u64::try_from(time.as_micros()).unwrap_or(LONGEST_US));
    }

    pub(crate) fn note_us(&self, time_us: u64) {
        self.0.lock().saturating_record(time_us);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.0.lock().len()
    }

    /// The quantile, in milliseconds; NaN where there are none.
    pub(crate) fn ms(&self, share: f64) -> f64 {
        let times = self.0.lock();
        if times.is_empty() { f64::NAN } else { times.value_at_quantile(share) as f64 / 1e3 }
    }

    pub(crate) fn max_ms(&self) -> f64 {
        let times = self.0.lock();
        if times.is_empty() { f64::NAN } else { times.max() as f64 / 1e3 }
    }

    /// Tells median, p99 and maximum, where the p99 may have a limit.
    pub(super) fn tell(&self, part: &str, what: &str, p99_limit_ms: Option<f64>, report: &mut Report) {
        report.figure(part, &format!("{what}: p50"), self.ms(0.5), "ms");
        report.limited(part, &format!("{what}: p99"), self.ms(0.99), "ms", p99_limit_ms);
        report.figure(part, &format!("{what}: max"), self.max_ms(), "ms");
    }
}
