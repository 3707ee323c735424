//! Which part of the future to read into the heap next.
//!
//! Three kinds of read, because each alone is too slow or too blind:
//! - *ahead*: what lies between what was read and the horizon. Cheap, and the only one needed if no nudge were ever lost.
//! - *repair*: from the low-water mark to a few moments ahead. Finds what was inserted behind the horizon while its nudge
//!   was lost. Starts at the mark and not at the beginning, because rows long finished make the beginning slow to scan
//!   while they cannot be vacuumed.
//! - *full*: from the beginning. First thing for a new shard or after a gap; now and then for rows whose transaction stayed open
//!   longer than the repair looks back.

use std::time::Duration;

use crate::time::UnixMicros;

/// How often and how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// How far ahead the heap is filled.
    pub horizon: Duration,
    /// Between two repairs. A row whose nudge was lost is found within this time.
    pub repair_every: Duration,
    /// Between two repairs at the most, however long one took: it may have waited for a lock or a lost connection, and that says nothing
    /// about the next.
    pub repair_at_least_every: Duration,
    /// Between two full reads.
    pub full_every: Duration,
    /// How far behind the low-water mark a repair starts: longer than an insert takes to commit. Rows of transactions that stay open
    /// longer are found by the next full read. The more is looked at again, the more dead rows are passed.
    pub look_back: Duration,
}

impl Reach {
    /// The usual rhythm for that horizon: repairs every second, slow ones every 3, full reads every 30, 10 s looked back.
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

/// What is read: every row that wakes after `after` (`None`: from the beginning) and not after `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub pass: Pass,
    pub after: Option<UnixMicros>,
    pub until: UnixMicros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    Ahead,
    Repair,
    Full,
}

/// What a read found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The earliest row in the window.
    pub earliest: Option<UnixMicros>,
    /// The moment from which on rows are missing: the heap was full, or the read was cut short.
    pub complete_until: Option<UnixMicros>,
}

/// How much of the future is in the heap, and what to read next. One for all shards that are read together.
#[derive(Clone, Debug)]
pub struct Horizon {
    reach: Reach,
    /// Everything up to here has been read once. `None`: nothing yet.
    read_until: Option<UnixMicros>,
    /// Nothing unclaimed wakes before this, as far as was seen.
    low_water: Option<UnixMicros>,
    /// When the next repair is due, and how long the wait for it was.
    repair_at: UnixMicros,
    repair_gap: Duration,
    full_at: UnixMicros,
}

impl Horizon {
    pub fn new(reach: Reach) -> Self {
        let never = UnixMicros::new(i64::MIN);
        Self {
            reach,
            read_until: None,
            low_water: None,
            repair_at: never,
            repair_gap: reach.repair_every,
            full_at: never,
        }
    }

    /// Makes the next read a full one: a shard came in, or the connection was lost.
    pub fn reset(&mut self) {
        *self = Self::new(self.reach);
    }

    /// Whether what wakes then belongs into the heap at once.
    pub fn covers(&self, wake_at: UnixMicros, now: UnixMicros) -> bool {
        wake_at <= now.plus(self.reach.horizon)
    }

    /// What to read at `now`, if anything. `has_room`: the heap is at most half full, so that reading on is worth it.
    pub fn next(&self, now: UnixMicros, has_room: bool) -> Option<Window> {
        let edge = now.plus(self.reach.horizon);
        let Some(read_until) = self.read_until else {
            return Some(Window { pass: Pass::Full, after: None, until: edge });
        };
        if has_room && now >= self.full_at {
            return Some(Window { pass: Pass::Full, after: None, until: edge });
        }
        // Before reading on, which may find something to read time and again.
        if now >= self.repair_at {
            let after = self.low_water.map(|mark| mark.minus(self.reach.look_back));
            // Twice the wait: every row is seen by one repair at least before it is due. What lies past `read_until`
            // found no room before.
            let until = now.plus(self.repair_gap * 2).min(edge).min(read_until);
            return Some(Window { pass: Pass::Repair, after, until });
        }
        // Read on when an eighth of the horizon is used up, or when there is room for what was left out.
        if has_room && edge.since(read_until) > self.reach.horizon / 8 {
            return Some(Window { pass: Pass::Ahead, after: Some(read_until), until: edge });
        }
        None
    }

    /// The latest moment to ask [`Self::next`] again.
    pub fn ask_again_at(&self, now: UnixMicros) -> UnixMicros {
        now.plus(self.reach.horizon / 8).min(self.repair_at).max(now)
    }

    /// Takes note of a read that was decided at `started` and is done at `ended`. Repairs and full reads that take long
    /// become rarer, so that they use no more than a tenth of the time, as far as the bounds of [`Reach`] allow.
    pub fn note(&mut self, window: Window, found: Found, started: UnixMicros, ended: UnixMicros) {
        let read_until = found.complete_until.map_or(window.until, |until| until.min(window.until));
        if window.pass != Pass::Repair {
            self.read_until = Some(read_until);
        } else if found.complete_until.is_some() {
            self.read_until = self.read_until.map(|until| until.min(read_until));
        }
        if window.pass == Pass::Ahead {
            return;
        }
        // Not past the start: what comes in from there on may be due at once.
        self.low_water = Some(found.earliest.unwrap_or(read_until).min(read_until).min(started));
        let rest = ended.since(started) * 9;
        self.repair_gap = rest.clamp(self.reach.repair_every, self.reach.repair_at_least_every);
        self.repair_at = ended.plus(self.repair_gap);
        if window.pass == Pass::Full {
            self.full_at = ended.plus(self.reach.full_every.max(rest));
        }
    }
}

#[cfg(test)]
mod tests;
