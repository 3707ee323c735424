//! Where a look at a table begins that is emptied from its head.
//!
//! Deleted rows stay in an index for as long as an old transaction keeps them from being vacuumed, and each look from
//! the head passes all of them. After such a look the next ones begin a while before the oldest row that it found. The
//! looks from the head use a tenth of the time: as long as they are quick, there are no others. One of them finds a row
//! that was written with an older moment than the others look back to, or whose transaction stayed open for as long.

use std::time::{Duration, Instant};

use super::rest::rest;
use crate::time::UnixMicros;

/// How far before the oldest row a look begins: longer than most transactions stay open after their submission, and
/// than any statement of a node runs.
const LOOK_BACK: Duration = Duration::from_secs(60);

/// A look from the head that took less passed few deleted rows: another one soon after it hardly takes longer.
const QUICK: Duration = Duration::from_secs(1);

/// The memory of the looks from the head.
#[derive(Clone, Copy, Debug, Default)]
pub struct LowWater {
    mark: Option<UnixMicros>,
    /// How long the last look from the head took.
    took: Duration,
    /// Until then looks begin at the mark.
    rests_until: Option<Instant>,
}

impl LowWater {
    /// The moment from which to look at `now`. `None`: from the head.
    pub fn from(&self, now: Instant) -> Option<UnixMicros> {
        self.mark.filter(|_| self.rests_until.is_some_and(|until| now < until))
    }

    /// The same for a look beside those that are recorded. It begins at the mark also while one of those looks from the
    /// head. Where none is recorded any more, it begins at the head itself.
    pub fn from_beside(&self, now: Instant) -> Option<UnixMicros> {
        self.mark.filter(|_| self.rests_until.is_some_and(|until| now < until + self.took * 2))
    }

    /// Whether the last look from the head was quick, so that one beside those that are recorded is likely to end.
    /// Where none is recorded yet, that is not known, and it may be tried.
    pub fn is_quick(&self) -> bool {
        self.took < QUICK
    }

    /// Has the next looks begin at the head, up to one that is recorded. The mark stays for those after it.
    pub fn look_from_head(&mut self) {
        self.rests_until = None;
    }

    /// Records a look from the head that ran out of time after so long. Without a mark, or with one that a clock which
    /// was ahead has left, the next looks begin a while ago.
    pub fn ran_out_of_time(&mut self, database_now: UnixMicros, took: Duration, now: Instant) {
        let a_while_ago = database_now.minus(LOOK_BACK);
        self.mark = Some(self.mark.map_or(a_while_ago, |mark| mark.min(a_while_ago)));
        self.rest(took, now);
    }

    /// Records a look from the head that ended at `now`, on the database's clock at `database_now`, and its oldest row.
    pub fn note(&mut self, oldest: Option<UnixMicros>, database_now: UnixMicros, took: Duration, now: Instant) {
        self.note_from_mark(oldest, database_now);
        self.rest(took, now);
    }

    /// Records a look from the mark that ended, and its oldest row. While each look from the head runs out of time,
    /// only these looks move the mark. Otherwise they would pass more deleted rows each time, until they ran out of
    /// time too.
    pub fn note_from_mark(&mut self, oldest: Option<UnixMicros>, database_now: UnixMicros) {
        let oldest = oldest.map_or(database_now, |oldest| oldest.min(database_now));
        self.mark = Some(oldest.minus(LOOK_BACK));
    }

    fn rest(&mut self, took: Duration, now: Instant) {
        self.took = took;
        self.rests_until = Some(now + rest(took));
    }
}

#[cfg(test)]
mod tests;
