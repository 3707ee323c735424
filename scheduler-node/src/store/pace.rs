//! How many rows a look examines, by the time that looks like it take.
//!
//! A filter by `error` and the groups of dead tasks decompress the history of each row, which may have 2 MB. So the
//! rows that one table shows within 20 ms take another longer than a statement may. So do the rows of a count where the
//! table is larger than memory. A look that runs out of its time comes again with a tenth of its rows, and the next one
//! begins with as few. The pages and rounds of moves have such paces, and so have the writes that follow them.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::Error;
use crate::clock;

/// The most times that the rows of a look are divided by ten: a hundredth of them ends in time even where each has the
/// longest history. The three tries of a table end within 15 s, and clients wait for 30 s.
const MOST_TENTHS: u32 = 2;

/// After a quicker look the next one examines ten times as many rows. That should take half of a statement's time.
const QUICK: Duration = Duration::from_millis(250);

/// A write that has waited so long for its answer may have been too large. What the node itself refuses fails at once.
const UNANSWERED_FOR: Duration = Duration::from_secs(5);

/// One look in so many tries ten times as many rows however long it took: a wait for a connection, and the search of
/// many queues, take as long for few rows.
const TRY_MORE_EACH: u32 = 20;

/// The paces of a database's looks.
#[derive(Debug, Default)]
pub(super) struct Paces {
    /// Of lists and of walks: without and with a filter by `error`.
    pub(super) lists: [Pace; 2],
    pub(super) walks: [Pace; 2],
    pub(super) dead_groups: Pace,
    /// Of the counts of queues.
    pub(super) counts: Pace,
    /// Of moves of shards: of their pages, and of their rounds.
    pub(super) pages: Pace,
    pub(super) rounds: Pace,
}

/// The part of its rows that one kind of look examines at present: how many times they are divided by ten.
#[derive(Debug, Default)]
pub(super) struct Pace {
    tenths: AtomicU32,
    looks: AtomicU32,
}

/// A look under way, from its first try to the last.
#[derive(Debug)]
pub(super) struct PacedLook<'a> {
    pace: &'a Pace,
    tenths: u32,
    /// Whether this try is as small as it is for the sake of the writes that follow.
    is_of_writes: bool,
    began: Instant,
}

impl Pace {
    pub(super) fn begin(&self) -> PacedLook<'_> {
        self.begun(clock::instant())
    }

    /// A look that has begun at `began`.
    pub(super) fn begun(&self, began: Instant) -> PacedLook<'_> {
        PacedLook { pace: self, tenths: self.tenths.load(Relaxed), is_of_writes: false, began }
    }

    /// The number by which the next try divides its rows.
    fn divisor(&self) -> u16 {
        10_u16.pow(self.tenths.load(Relaxed))
    }
}

impl PacedLook<'_> {
    /// The number by which this try divides its rows.
    pub(super) const fn divisor(&self) -> u16 {
        10_u16.pow(self.tenths)
    }

    /// The same, where what is read here is then written at the pace of `writes`. A quick try that is smaller for the
    /// sake of the writes says nothing of larger ones.
    pub(super) fn divisor_before(&mut self, writes: &Pace) -> u16 {
        self.is_of_writes = writes.divisor() > self.divisor();
        self.divisor().max(writes.divisor())
    }

    /// Takes note of the end of a try. Returns whether the look comes again, with fewer rows.
    pub(super) fn comes_again<T>(&mut self, looked: &Result<T, Error>) -> bool {
        self.notes(looked.is_ok(), looked.as_ref().is_err_and(Error::is_out_of_time))
    }

    /// Takes note of the end of a write. One without an answer was too large for the way to the database, or nothing
    /// gets there.
    pub(super) fn wrote<T>(&mut self, written: &Result<T, Error>) {
        let has_waited = clock::instant().saturating_duration_since(self.began) >= UNANSWERED_FOR;
        let is_late = |error: &Error| error.is_out_of_time() || (has_waited && error.is_unanswered());
        self.notes(written.is_ok(), written.as_ref().is_err_and(is_late));
    }

    fn notes(&mut self, is_ok: bool, is_late: bool) -> bool {
        let now = clock::instant();
        let took = now.saturating_duration_since(std::mem::replace(&mut self.began, now));
        let next = if is_late {
            MOST_TENTHS.min(self.tenths + 1)
        } else if is_ok && !self.is_of_writes && (took < QUICK || self.tries_more()) {
            self.tenths.saturating_sub(1)
        } else {
            self.tenths
        };
        if next != self.tenths {
            self.pace.tenths.store(next, Relaxed);
        }
        std::mem::replace(&mut self.tenths, next) < next
    }

    fn tries_more(&self) -> bool {
        self.pace.looks.fetch_add(1, Relaxed) % TRY_MORE_EACH == TRY_MORE_EACH - 1
    }
}

#[cfg(test)]
mod tests {
    use common::ids::DatabaseName;

    use super::*;
    use crate::store::{Effect, StoreOp};

    #[test]
    fn a_write_whose_answer_does_not_come_is_followed_by_smaller_ones() {
        let (pace, now) = (Pace::default(), clock::instant());
        let database = DatabaseName::new("main");
        let written: Result<(), _> =
            Err(Error { database, op: StoreOp::MoveWrite, effect: Effect::Unknown, source: None });
        pace.begun(now).wrote(&written);
        assert_eq!(pace.divisor(), 1, "it failed at once");
        pace.begun(now.checked_sub(UNANSWERED_FOR).expect("this machine runs for longer")).wrote(&written);
        assert_eq!(pace.divisor(), 10);
    }

    #[test]
    fn a_quick_read_that_is_small_for_the_sake_of_its_writes_makes_no_other_read_larger() {
        let [reads, writes] = [1, 2].map(|tenths| Pace { tenths: tenths.into(), ..Pace::default() });
        let read = || {
            let mut look = reads.begin();
            let divisor = look.divisor_before(&writes);
            look.comes_again(&Ok(()));
            divisor
        };
        assert_eq!((read(), reads.divisor()), (100, 10));
        writes.tenths.store(0, Relaxed);
        assert_eq!((read(), reads.divisor()), (10, 1));
    }
}
