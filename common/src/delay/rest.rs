//! The pause after work that may use a tenth of the time.

use std::time::Duration;

/// How long to pause after work that took so long.
pub fn rest(took: Duration) -> Duration {
    took * 9
}
