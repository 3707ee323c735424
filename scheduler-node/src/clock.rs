//! The node's own clocks. No other module reads its wall clock.
//!
//! Due times are compared on the databases' clocks, not on the wall clock.

use std::time::Instant;

use common::time::UnixMicros;

pub fn now() -> UnixMicros {
    #[expect(clippy::disallowed_methods, reason = "this is the one reader of the wall clock")]
    chrono::Utc::now().into()
}

/// The monotonic clock, as the runtime's timers count it. In the simulation it is virtual, as they are.
pub fn instant() -> Instant {
    tokio::time::Instant::now().into_std()
}
