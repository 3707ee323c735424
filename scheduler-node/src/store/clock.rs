//! The current time of a database, estimated on this node without a query each time.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use common::time::UnixMicros;
use parking_lot::Mutex;

use crate::clock;

/// The age at which a reading is dropped. Crystals drift apart by some 50 microseconds a second at the worst, so by
/// half a millisecond within this time.
const KEPT: Duration = Duration::from_secs(10);

/// How much a reading may be behind an earlier one without a step of the clock between them: far more than crystals
/// drift apart within [`KEPT`].
const STEADY: Duration = Duration::from_millis(2);

/// The most readings kept. More of them within [`KEPT`] add no information.
const READINGS: usize = 64;

/// The database's clock as seen from this node: a lower bound that is never ahead of the real one.
///
/// A statement returns the server's `clock_timestamp()`. When the answer arrives, the server's clock shows at least
/// that much. So `reading + time since the answer arrived` never runs ahead, and the largest such bound of the last
/// readings is the closest. This is the one-way half of Cristian's algorithm (1989). A task published when this
/// bound has reached its due time is never early on the database's clock. The node's own wall clock plays no part:
/// the monotonic clock measures the time that passes.
///
/// A server's clock may be set back. Its next answer tells: the statement ran after it was sent, so it must show at
/// least what earlier readings give for that moment. Otherwise they are void.
#[derive(Debug, Default)]
pub struct DatabaseClock {
    readings: Mutex<VecDeque<Reading>>,
}

/// One reading: at `arrived`, the server's clock showed at least `server`.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub server: UnixMicros,
    pub arrived: Instant,
}

impl Reading {
    fn at(&self, moment: Instant) -> UnixMicros {
        match moment.checked_duration_since(self.arrived) {
            Some(later) => self.server.plus(later),
            None => self.server.minus(self.arrived.duration_since(moment)),
        }
    }
}

impl DatabaseClock {
    /// Notes the `server`'s time in an answer. `sent`: a moment before its statement ran.
    pub fn observe(&self, server: UnixMicros, sent: Instant, arrived: Instant) {
        let mut readings = self.readings.lock();
        if readings.iter().any(|reading| reading.at(sent) > server.plus(STEADY)) {
            readings.clear();
        }
        while readings.front().is_some_and(|oldest| {
            readings.len() >= READINGS || arrived.saturating_duration_since(oldest.arrived) > KEPT
        }) {
            readings.pop_front();
        }
        readings.push_back(Reading { server, arrived });
    }

    /// Drops all readings: another server, with another clock, takes the database's place.
    pub(crate) fn forget(&self) {
        self.readings.lock().clear();
    }

    /// The database's time at `moment`, never ahead of its clock. `None`: there is no reading yet.
    pub fn at(&self, moment: Instant) -> Option<UnixMicros> {
        let readings = self.readings.lock();
        readings.iter().map(|reading| reading.at(moment)).max()
    }

    /// The first instant at which the database's clock has certainly reached `due`.
    pub fn instant_of(&self, due: UnixMicros) -> Option<Instant> {
        let now = clock::instant();
        let shown = self.at(now)?;
        Some(if due >= shown { now + due.since(shown) } else { now.checked_sub(shown.since(due)).unwrap_or(now) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_closest_of_the_last_readings_counts_while_the_clock_is_steady() {
        let (clock, start) = (DatabaseClock::default(), Instant::now());
        let noon = UnixMicros::new(1_000_000_000);
        clock.observe(noon, start, start + SECOND / 10);
        // This answer took longer, so its reading is further behind.
        clock.observe(noon.plus(SECOND), start + SECOND / 2, start + SECOND * 2);
        assert_eq!(clock.at(start + SECOND * 2), Some(noon.plus(SECOND * 19 / 10)));
    }

    #[test]
    fn the_first_answer_after_a_clock_was_set_back_voids_what_was_read_before() {
        let (clock, start) = (DatabaseClock::default(), Instant::now());
        let noon = UnixMicros::new(1_000_000_000);
        clock.observe(noon, start, start);
        let back = noon.minus(SECOND * 30);
        clock.observe(back.plus(SECOND), start + SECOND, start + SECOND);
        assert_eq!(clock.at(start + SECOND * 2), Some(back.plus(SECOND * 2)));
    }

    #[test]
    fn crystals_that_drift_apart_void_nothing() {
        let (clock, start) = (DatabaseClock::default(), Instant::now());
        let noon = UnixMicros::new(1_000_000_000);
        clock.observe(noon, start, start);
        let slow = noon.plus(SECOND).minus(Duration::from_micros(500));
        clock.observe(slow, start + SECOND, start + SECOND);
        assert_eq!(clock.at(start + SECOND), Some(noon.plus(SECOND)));
    }
}
