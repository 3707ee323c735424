//! How many entries leave the heap together, and how many of them one statement takes.

use common::delay::turn::Room;

use super::{CLAIMS_IN_FLIGHT, Dispatcher, PLACES_OF_A_SLOW_CLAIM};
use crate::store::Statements;

impl<S: Statements> Dispatcher<S> {
    /// The most entries of one statement. Their payloads must come in its time.
    pub(super) fn most(&self) -> usize {
        self.size.lock().in_time().min(self.pace.batch)
    }

    /// How many tasks of a crowd a claim takes, how many claims leave together, and how many places each holds.
    pub(super) fn of_a_crowd(&self) -> (usize, usize, u32) {
        let size = self.size.lock();
        let places = if size.is_slow() { PLACES_OF_A_SLOW_CLAIM } else { 1 };
        (size.most(), CLAIMS_IN_FLIGHT / places as usize, places)
    }

    /// The room for up to `most` entries.
    pub(super) fn room(&self, most: usize) -> Room {
        Room::of(self.pace.window, self.claims.database.owned_shards.in_flight(), most)
    }
}
