//! The current time of a database, estimated on this node without a query each time.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use common::time::UnixMicros;
use parking_lot::Mutex;

use crate::clock;

/// The most readings kept. More of them within [`DatabaseClock::KEPT`] add no information.
const READINGS: usize = 64;

/// The database's clock as seen from this node: a lower bound that is never ahead of the real one, and an upper bound
/// that is never behind it.
///
/// A statement returns the server's `clock_timestamp()`. When the answer arrives, the server's clock shows at least
/// that much. So `reading + time since the answer arrived` never runs ahead, and the largest such bound of the last
/// readings is the closest. This is the one-way half of Cristian's algorithm (1989). A task published when this
/// bound has reached its due time is never early on the database's clock. The other half: the statement ran after it
/// was sent, so `reading + time since it was sent` is never behind, and the least of these bounds is the closest. A
/// delay that is counted from it is never too short. The node's own wall clock plays no part: the monotonic clock
/// measures the time that passes.
///
/// A server's clock may be set, or run at another pace than this node's. Its next answer tells: earlier readings whose
/// bounds contradict it are void, however little it is.
#[derive(Debug, Default)]
pub struct DatabaseClock {
    readings: Mutex<Readings>,
}

#[derive(Debug, Default)]
struct Readings {
    kept: VecDeque<Reading>,
    /// Counts the servers that took the database's place.
    server: u64,
    /// The last reading of the server that was there before.
    former: Option<Reading>,
}

/// A question about the time that was sent with a statement.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// A moment before the statement ran.
    pub sent: Instant,
    server: u64,
}

/// One reading: the server's clock showed `server` at a moment from `sent` to `arrived`.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub server: UnixMicros,
    pub sent: Instant,
    pub arrived: Instant,
}

impl Reading {
    /// The least that the server's clock shows at `moment`.
    fn at_least(&self, moment: Instant) -> UnixMicros {
        shifted(self.server, self.arrived, moment)
    }

    /// The most that the server's clock shows at `moment`.
    fn at_most(&self, moment: Instant) -> UnixMicros {
        shifted(self.server, self.sent, moment)
    }
}

/// The time at `moment` of a clock that shows `shown` at `then`.
fn shifted(shown: UnixMicros, then: Instant, moment: Instant) -> UnixMicros {
    match moment.checked_duration_since(then) {
        Some(later) => shown.plus(later),
        None => shown.minus(then.duration_since(moment)),
    }
}

impl Readings {
    fn add(&mut self, new: Reading) {
        let kept = &mut self.kept;
        // The server gave the new answer between these two moments. A reading that has no room for it is void.
        kept.retain(|reading| reading.at_least(new.sent) <= new.server && new.server <= reading.at_most(new.arrived));
        while kept.front().is_some_and(|oldest| {
            kept.len() >= READINGS || new.arrived.saturating_duration_since(oldest.arrived) > DatabaseClock::KEPT
        }) {
            kept.pop_front();
        }
        kept.push_back(new);
    }

    fn at_least(&self, moment: Instant) -> Option<UnixMicros> {
        self.kept.iter().map(|reading| reading.at_least(moment)).max()
    }

    fn at_most(&self, moment: Instant) -> Option<UnixMicros> {
        self.kept.iter().map(|reading| reading.at_most(moment)).min()
    }
}

impl DatabaseClock {
    /// The age at which a reading is dropped. Crystals drift apart by some 50 microseconds a second at the worst, so by
    /// half a millisecond within this time.
    pub(crate) const KEPT: Duration = Duration::from_secs(10);

    /// Begins a reading. Call before the statement's server is chosen.
    pub fn ask(&self, sent: Instant) -> Asked {
        Asked { sent, server: self.readings.lock().server }
    }

    /// Notes the `server`'s time in an answer. The answer of a former server, which may come late, is void: its clock
    /// may be ahead of the one in use.
    pub fn observe(&self, server: UnixMicros, asked: Asked, arrived: Instant) {
        let mut readings = self.readings.lock();
        if readings.server == asked.server {
            readings.add(Reading { server, sent: asked.sent, arrived });
        }
    }

    /// Drops all readings: another server, with another clock, takes the database's place. Call once statements are
    /// sent to it.
    pub(crate) fn forget(&self) {
        let mut readings = self.readings.lock();
        readings.server += 1;
        if let Some(last) = readings.kept.pop_back() {
            readings.former = Some(last);
        }
        readings.kept.clear();
    }

    /// The database's time at `moment`, never behind its clock: a delay that begins then counts from it. Until the
    /// present server has answered, the former one's clock serves. `None`: no server has answered yet.
    pub fn at_most(&self, moment: Instant) -> Option<UnixMicros> {
        let readings = self.readings.lock();
        readings.at_most(moment).or_else(|| readings.former.map(|reading| reading.at_most(moment)))
    }

    /// The database's time at `moment`, never ahead of its clock. `None`: there is no reading yet.
    pub fn at(&self, moment: Instant) -> Option<UnixMicros> {
        self.readings.lock().at_least(moment)
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
        clock.observe(noon, clock.ask(start), start + SECOND / 10);
        // This answer took longer, so its reading is further behind.
        clock.observe(noon.plus(SECOND), clock.ask(start + SECOND / 2), start + SECOND * 2);
        assert_eq!(clock.at(start + SECOND * 2), Some(noon.plus(SECOND * 19 / 10)));
    }

    #[test]
    fn a_delay_counts_from_a_time_that_is_not_behind_the_clock() {
        let (clock, start) = (DatabaseClock::default(), Instant::now());
        let noon = UnixMicros::new(1_000_000_000);
        // The server answered as soon as it was asked, and the answer took a second.
        clock.observe(noon, clock.ask(start), start + SECOND);
        assert_eq!(clock.at_most(start + SECOND), Some(noon.plus(SECOND)));
        // This one was quick on both ways, and tells more.
        clock.observe(noon.plus(SECOND * 3 / 2), clock.ask(start + SECOND * 2), start + SECOND * 2);
        assert_eq!(clock.at_most(start + SECOND * 3), Some(noon.plus(SECOND * 5 / 2)));
    }

    #[test]
    fn the_first_answer_after_a_clock_was_set_ahead_voids_what_was_read_before() {
        let (clock, start) = (DatabaseClock::default(), Instant::now());
        let noon = UnixMicros::new(1_000_000_000);
        clock.observe(noon, clock.ask(start), start);
        clock.observe(noon.plus(SECOND * 30), clock.ask(start + SECOND), start + SECOND);
        assert_eq!(clock.at_most(start + SECOND), Some(noon.plus(SECOND * 30)));
    }

    #[test]
    fn the_first_answer_after_a_clock_was_set_back_voids_what_was_read_before() {
        let (clock, start) = (DatabaseClock::default(), Instant::now());
        let noon = UnixMicros::new(1_000_000_000);
        clock.observe(noon, clock.ask(start), start);
        let back = noon.minus(SECOND * 30);
        clock.observe(back.plus(SECOND), clock.ask(start + SECOND), start + SECOND);
        assert_eq!(clock.at(start + SECOND * 2), Some(back.plus(SECOND * 2)));
    }

    #[test]
    fn until_another_server_answers_delays_count_by_the_former_one_and_nothing_is_due() {
        let (clock, start) = (DatabaseClock::default(), Instant::now());
        assert_eq!(clock.at_most(start), None);
        let noon = UnixMicros::new(1_000_000_000);
        clock.observe(noon, clock.ask(start), start);
        clock.forget();
        clock.forget();
        assert_eq!(clock.at_most(start + SECOND), Some(noon.plus(SECOND)));
        assert_eq!(clock.at(start + SECOND), None);
        let other = noon.minus(SECOND);
        clock.observe(other, clock.ask(start), start);
        assert_eq!(clock.at_most(start), Some(other));
    }

    #[test]
    fn a_clock_that_was_set_back_by_a_little_is_not_read_ahead() {
        let (clock, start) = (DatabaseClock::default(), Instant::now());
        let (noon, little) = (UnixMicros::new(1_000_000_000), Duration::from_micros(500));
        clock.observe(noon, clock.ask(start), start);
        // This answer took longer, so its reading is far behind and stays true.
        clock.observe(noon, clock.ask(start), start + SECOND / 2);
        let back = noon.plus(SECOND).minus(little);
        clock.observe(back, clock.ask(start + SECOND), start + SECOND);
        assert_eq!(clock.at(start + SECOND), Some(back));
        assert_eq!(clock.readings.lock().kept.len(), 2, "only what runs ahead is void");
    }

    #[test]
    fn the_answer_of_a_former_server_that_comes_late_is_no_reading() {
        let (clock, start) = (DatabaseClock::default(), Instant::now());
        let ahead = UnixMicros::new(1_000_000_000).plus(SECOND * 30);
        let asked = clock.ask(start);
        clock.forget();
        clock.observe(ahead, asked, start);
        assert_eq!(clock.at(start), None, "the clock of the new server may be behind");
        clock.observe(UnixMicros::new(1_000_000_000), clock.ask(start), start);
        assert_eq!(clock.at(start), Some(UnixMicros::new(1_000_000_000)));
    }
}
