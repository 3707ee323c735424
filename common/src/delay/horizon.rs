//! Which part of the future the preloader reads into the heap next.
//!
//! There are three kinds of reads, because each alone is too slow or misses rows:
//! - *ahead*: the part between the last read and the horizon. It is cheap, and would be enough if no nudge were ever
//!   lost.
//! - *repair*: from the low-water mark to a few moments ahead. It finds rows that were inserted behind the horizon
//!   while their nudge was lost. It starts at the mark and not at the beginning: finished rows that cannot be
//!   vacuumed yet make the beginning slow to scan.
//! - *full*: from the beginning. It comes first for a new shard or after a gap. Later full reads find rows whose
//!   transaction stayed open longer than the repair looks back.

use std::time::Duration;

use super::rest::rest;
use crate::time::UnixMicros;

/// How often and how far the preloader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadIntervals {
    /// How far ahead the heap is filled.
    pub horizon: Duration,
    /// The time between two repairs. A row whose nudge was lost is found within this time.
    pub repair_every: Duration,
    /// The longest time between two repairs, however long one took. A slow repair may have waited for a lock or a
    /// lost connection, which does not predict the next one.
    pub repair_at_least_every: Duration,
    /// The time between two full reads.
    pub full_every: Duration,
    /// How far behind the low-water mark a repair starts: longer than an insert takes to commit. The next full read
    /// finds rows of transactions that stay open longer. A longer look back makes every repair pass more dead rows.
    pub look_back: Duration,
}

impl ReadIntervals {
    /// The usual intervals for that horizon: repairs every second, slow ones every 3 s, full reads every 30 s, 10 s
    /// of look back.
    pub const fn of(horizon: Duration) -> Self {
        Self {
            horizon,
            repair_every: Duration::from_secs(1),
            repair_at_least_every: Duration::from_secs(3),
            full_every: Duration::from_secs(30),
            look_back: Duration::from_secs(10),
        }
    }
}

/// One read: every row that wakes after `after` (`None`: from the beginning) and not after `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub pass: ReadKind,
    pub after: Option<UnixMicros>,
    pub until: UnixMicros,
}

/// What comes due about now: two repairs see every row of it, inserted before or after it was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NowWindow {
    pub from: UnixMicros,
    pub until: UnixMicros,
    /// Whether all of it has been read once, except of shards whose reads were cut short.
    pub is_ahead: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadKind {
    Ahead,
    Repair,
    Full,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadResult {
    /// The earliest row in the window.
    pub earliest: Option<UnixMicros>,
    /// The moment from which rows are missing: the heap was full, or the read was cut short.
    pub complete_until: Option<UnixMicros>,
}

/// How much of the future is in the heap, and what to read next. Shards that are read together share one horizon.
#[derive(Clone, Debug)]
pub struct Horizon {
    reach: ReadIntervals,
    /// Everything up to this moment has been read once. `None`: nothing has been read yet.
    read_until: Option<UnixMicros>,
    /// The low-water mark: no unclaimed row that the reads found wakes before it.
    low_water: Option<UnixMicros>,
    /// When the next repair is due, and the length of the wait for it.
    repair_at: UnixMicros,
    repair_gap: Duration,
    full_at: UnixMicros,
    /// The database's time as it was last seen.
    seen: UnixMicros,
}

/// A step back of the database's clock beyond this is no inaccuracy of its readings.
const STEP_BACK: Duration = Duration::from_millis(200);

impl Horizon {
    pub fn new(reach: ReadIntervals) -> Self {
        let never = UnixMicros::new(i64::MIN);
        Self {
            reach,
            read_until: None,
            low_water: None,
            repair_at: never,
            repair_gap: reach.repair_every,
            full_at: never,
            seen: never,
        }
    }

    /// Makes the next read a full one, after a new shard or a lost connection.
    pub fn reset(&mut self) {
        *self = Self::new(self.reach);
    }

    /// Follows the database's clock. If it was set back, all moments of reads lie too far ahead, so the next read is a
    /// full one. Returns whether it was.
    pub fn follow(&mut self, now: UnixMicros) -> bool {
        let is_set_back = now.plus(STEP_BACK) < self.seen;
        if is_set_back {
            self.reset();
        }
        self.seen = now;
        is_set_back
    }

    /// The read to do at `now`, if any. `has_room`: the heap is at most half full, so that an ahead read is worth it.
    pub fn next(&self, now: UnixMicros, has_room: bool) -> Option<Window> {
        let edge = now.plus(self.reach.horizon);
        let Some(read_until) = self.read_until else {
            return Some(Window { pass: ReadKind::Full, after: None, until: edge });
        };
        if has_room && now >= self.full_at {
            return Some(Window { pass: ReadKind::Full, after: None, until: edge });
        }
        // Repairs come before ahead reads, which may find rows to read again and again.
        if now >= self.repair_at {
            let after = self.low_water.map(|mark| mark.minus(self.reach.look_back));
            // Twice the wait, so that at least one repair sees every row before it is due. Rows past `read_until`
            // found no room before.
            let until = now.plus(self.repair_gap * 2).min(edge).min(read_until);
            return Some(Window { pass: ReadKind::Repair, after, until });
        }
        if has_room && now >= self.ahead_at(read_until) {
            return Some(Window { pass: ReadKind::Ahead, after: Some(read_until), until: edge });
        }
        None
    }

    /// The part of the future that comes due about now. It is read beside each repair for the shards whose older tasks
    /// fill their reads, and for all while the heap has no room to read ahead. Otherwise what comes due now waits until
    /// those are gone. It says nothing about what lies before it, so no mark moves with it.
    pub fn about_now(&self, now: UnixMicros) -> NowWindow {
        let around = self.repair_gap * 2;
        let until = now.plus(around).min(now.plus(self.reach.horizon));
        let is_ahead = self.read_until.is_some_and(|read_until| read_until >= until);
        NowWindow { from: now.minus(around), until, is_ahead }
    }

    /// When to read ahead: when an eighth of the horizon is used up, or when there is room for rows that were left out.
    fn ahead_at(&self, read_until: UnixMicros) -> UnixMicros {
        read_until.minus(self.reach.horizon / 8 * 7)
    }

    /// The moment to ask [`Self::next`] again. After a repair that is at once, if there is something to read ahead:
    /// otherwise the next repair would always come first.
    pub fn ask_again_at(&self, now: UnixMicros, has_room: bool) -> UnixMicros {
        let ahead_at = self.read_until.filter(|_| has_room).map(|read_until| self.ahead_at(read_until));
        self.repair_at.min(ahead_at.unwrap_or(UnixMicros::LAST)).max(now)
    }

    /// Records a read that was decided at `started` and done at `ended`. Slow repairs and full reads become rarer, so
    /// that they use at most a tenth of the time, as far as the bounds of [`ReadIntervals`] allow.
    pub fn note(&mut self, window: Window, found: ReadResult, started: UnixMicros, ended: UnixMicros) {
        let read_until = found.complete_until.map_or(window.until, |until| until.min(window.until));
        if window.pass != ReadKind::Repair {
            self.read_until = Some(read_until);
        } else if found.complete_until.is_some() {
            self.read_until = self.read_until.map(|until| until.min(read_until));
        }
        if window.pass == ReadKind::Ahead {
            return;
        }
        // The mark never passes the start of the read: a row inserted since then may be due at once.
        self.low_water = Some(found.earliest.unwrap_or(read_until).min(read_until).min(started));
        let rest = rest(ended.since(started));
        self.repair_gap = rest.clamp(self.reach.repair_every, self.reach.repair_at_least_every);
        self.repair_at = ended.plus(self.repair_gap);
        if window.pass == ReadKind::Full {
            self.full_at = ended.plus(self.reach.full_every.max(rest));
        }
    }
}

#[cfg(test)]
mod tests;
