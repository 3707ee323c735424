//! The wall clock that all stores, nodes and consumers of a sandbox share: they run on one machine.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since 1970.
pub fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    i64::try_from(since.as_micros()).expect("the clock is before the year 294000")
}

/// Milliseconds since 1970, the API's unit.
pub fn now_ms() -> i64 {
    now_us() / 1_000
}
