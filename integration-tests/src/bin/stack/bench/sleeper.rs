//! How late the machine itself is: a thread that only sleeps, and how much longer than it asked for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;

use super::report::Report;

const NAP: Duration = Duration::from_millis(1);
/// Anything longer is as bad as this.
const LONGEST_US: u64 = 60_000_000;

/// Sleeps a millisecond at a time from now on. Whatever wakes it late makes tasks late too.
#[derive(Debug)]
pub(super) struct Sleeper {
    over: Arc<AtomicBool>,
    sleeping: Option<JoinHandle<Histogram<u64>>>,
}

impl Sleeper {
    pub(super) fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        Self { over, sleeping: Some(std::thread::spawn(move || sleep(&is_over))) }
    }

    pub(super) fn end(mut self, part: &str, report: &mut Report) -> Result<()> {
        self.over.store(true, Ordering::Relaxed);
        let sleeping = self.sleeping.take().expect("it ends once");
        let late = sleeping.join().map_err(|_| anyhow!("the sleeper panicked"))?;
        report.figure(part, "the machine: a sleeper late, p99", late.value_at_quantile(0.99) as f64 / 1e3, "ms");
        report.figure(part, "the machine: a sleeper late, max", late.max() as f64 / 1e3, "ms");
        Ok(())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Weighted by time: while it oversleeps, everything that wants to wake does.
fn sleep(is_over: &AtomicBool) -> Histogram<u64> {
    let mut late = Histogram::new_with_bounds(1, LONGEST_US, 3).expect("a minute in three digits");
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        std::thread::sleep(NAP);
        let over = began.elapsed().saturating_sub(NAP);
        let over_us = u64::try_from(over.as_micros()).unwrap_or(LONGEST_US);
        late.saturating_record_n(over_us, 1 + over_us / 1_000);
    }
    late
}
