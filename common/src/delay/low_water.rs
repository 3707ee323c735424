//! Where a look at a table begins that is emptied from its head.
//!
//! Deleted rows stay in an index for as long as an old transaction keeps them from being vacuumed, and each look from
//! the head passes all of them. After such a look the next ones begin a while before the oldest row that it found. The
//! looks from the head use a tenth of the time: as long as they are quick, there are no others. One of them finds a row
//! whose transaction stayed open for longer than the others look back.

use std::time::{Duration, Instant};

use crate::time::UnixMicros;

/// How far before the oldest row a look begins: longer than most transactions stay open after their submission.
const LOOK_BACK: Duration = Duration::from_secs(60);

/// The memory of the looks from the head.
#[derive(Clone, Copy, Debug, Default)]
pub struct LowWater {
    mark: Option<UnixMicros>,
    /// Until then looks begin at the mark.
    rests_until: Option<Instant>,
}

impl LowWater {
    /// The moment from which to look at `now`. `None`: from the head.
    pub fn from(&self, now: Instant) -> Option<UnixMicros> {
        self.mark.filter(|_| self.rests_until.is_some_and(|until| now < until))
    }

    /// Records a look from the head that ran out of time after so long. Without a mark, the next looks begin a while
    /// ago.
    pub fn ran_out_of_time(&mut self, database_now: UnixMicros, took: Duration, now: Instant) {
        self.mark = self.mark.or_else(|| Some(database_now.minus(LOOK_BACK)));
        self.rests_until = Some(now + took * 9);
    }

    /// Records a look from the head that ended at `now`, on the database's clock at `database_now`, and its oldest row.
    pub fn note(&mut self, oldest: Option<UnixMicros>, database_now: UnixMicros, took: Duration, now: Instant) {
        let oldest = oldest.map_or(database_now, |oldest| oldest.min(database_now));
        self.mark = Some(oldest.minus(LOOK_BACK));
        self.rests_until = Some(now + took * 9);
    }
}

#[cfg(test)]
mod tests;
