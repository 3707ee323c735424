//! The node's wall clock. No other module reads it.
//!
//! Due times are compared on the databases' clocks, not on this one.

use common::time::UnixMicros;

pub fn now() -> UnixMicros {
    #[expect(clippy::disallowed_methods, reason = "this is the one reader of the wall clock")]
    chrono::Utc::now().into()
}
