//! Arrivals of the tasks that are due while a measurement runs, by the consumer's clock.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    drain::{Eye, Seen},
    findings::Arrived,
    moments::{Moments, STEP_US},
    report::Report,
    times::Times,
};

/// The limit for the last tasks of a measurement to arrive. A machine that is too slow for the rate drains what it has
/// behind within this time: late tasks do not count as missing.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of these moments, the latest task is told.
const MOMENTS: usize = 3;

#[derive(Debug)]
pub(super) struct Arrivals {
    from_us: AtomicI64,
    until_us: AtomicI64,
    /// All messages, the first ones included.
    pub seen: AtomicU64,
    /// How late each one was that was not early.
    pub late: Times,
    counted: Mutex<Counted>,
    /// The due instant and the lateness of each, where they are to be kept.
    each: Option<Mutex<Vec<(i64, u64)>>>,
}

#[derive(Debug, Default)]
struct Counted {
    arrived: Arrived,
    moments: Moments,
}

impl Arrivals {
    pub(super) fn new(keeps_each: bool) -> Arc<Self> {
        let (from_us, until_us, seen, counted) = Default::default();
        let (late, each) = (Times::new(), keeps_each.then(Mutex::default));
        Arc::new(Self { from_us, until_us, seen, late, counted, each })
    }

    pub(super) fn eye(self: &Arc<Self>) -> Eye {
        let arrivals = Arc::clone(self);
        Arc::new(move |seen| arrivals.note(seen))
    }

    /// Only tasks that are due in this time count.
    pub(super) fn expect(&self, from_us: i64, until_us: i64) {
        self.from_us.store(from_us, Ordering::Relaxed);
        self.until_us.store(until_us, Ordering::Relaxed);
    }

    fn note(&self, seen: Seen) {
        self.seen.fetch_add(1, Ordering::Relaxed);
        let from_us = self.from_us.load(Ordering::Relaxed);
        if !(from_us..self.until_us.load(Ordering::Relaxed)).contains(&seen.stamp_us) {
            return;
        }
        let counted = &mut *self.counted.lock();
        counted.arrived.note(seen);
        let Ok(late_us) = u64::try_from(seen.at_us - seen.stamp_us) else { return };
        self.late.note_us(late_us);
        if let Some(each) = &self.each {
            each.lock().push((seen.stamp_us, late_us));
        }
        counted.moments.note((seen.stamp_us - from_us).unsigned_abs(), late_us);
    }

    fn different(&self) -> u64 {
        self.counted.lock().arrived.tasks.different()
    }

    /// Returns when so many tasks have arrived, or no more are waited for.
    pub(super) async fn wait(&self, expected: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.different() < expected && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Judges whether each of so many tasks has come once, and none too early.
    pub(super) fn judge(&self, part: &str, what: &str, expected: u64, report: &mut Report) {
        let missing = expected.saturating_sub(self.different());
        self.counted.lock().arrived.findings(missing).tell(part, what, report);
    }

    /// Tells the moments in which many tasks were late, and with details when and how long each was.
    pub(super) fn tell_moments(&self, part: &str, details: bool, report: &mut Report) {
        let moments = self.counted.lock().moments.worst();
        let name = format!("moments later than {} ms", STEP_US / 1_000);
        report.figure(part, &name, moments.len() as f64, "");
        for (number, moment) in (1..=MOMENTS).zip(moments) {
            report.figure(part, &format!("moment {number}: the latest task"), moment.latest_us as f64 / 1e3, "ms");
            if details {
                report.figure(part, &format!("moment {number}: length"), moment.length_us as f64 / 1e3, "ms");
                report.figure(part, &format!("moment {number}: began after"), moment.from_us as f64 / 1e6, "s");
            }
        }
    }

    pub(super) fn write_each(&self, file: &Path) -> Result<()> {
        let Some(each) = &self.each else { return Ok(()) };
        let mut lines = BufWriter::new(File::options().create(true).append(true).open(file)?);
        for (due_us, late_us) in each.lock().iter() {
            writeln!(lines, "{due_us},{late_us}")?;
        }
        Ok(lines.flush()?)
    }
}
