//! The file of what the workers ran.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The number of the first task that is due in a month; it never arrives.
pub const FIRST_PENDING: i64 = 1_000_000_000;

pub struct Arrivals(Mutex<(BufWriter<File>, HashSet<i64>)>);

/// Microseconds since 1970.
pub fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock shows a time after 1970");
    i64::try_from(since.as_micros()).expect("microseconds fit until the year 294247")
}

impl Arrivals {
    pub fn create(path: &str) -> std::io::Result<Self> {
        Ok(Self(Mutex::new((BufWriter::with_capacity(1 << 20, File::create(path)?), HashSet::new()))))
    }

    pub fn record(&self, number: i64, due_us: i64, got_us: i64) {
        let (file, seen) = &mut *self.0.lock().expect("no holder panics");
        writeln!(file, "{number} {due_us} {got_us}").expect("the disk has room");
        if number < FIRST_PENDING {
            seen.insert(number);
        }
    }

    /// How many different tasks have arrived.
    pub fn count(&self) -> i64 {
        let count = self.0.lock().expect("no holder panics").1.len();
        i64::try_from(count).expect("fewer than 2^63")
    }

    /// Returns when so many have arrived, or after `at_most`.
    pub async fn until(&self, count: i64, at_most: Duration) {
        let end = Instant::now() + at_most;
        while self.count() < count && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn flush(&self) -> std::io::Result<()> {
        self.0.lock().expect("no holder panics").0.flush()
    }
}
