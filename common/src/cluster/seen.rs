//! What the nodes have seen of a database's server: its identity, its timelines, and how far it acknowledged their
//! commits. A server that takes its place and lacks some of that has lost commits.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

/// The most timelines that are remembered. Each promotion of a standby begins one, and only the newest matter.
const TIMELINES_MOST: usize = 8;

/// A position in PostgreSQL's write-ahead log, in bytes from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lsn(i64);

impl Lsn {
    /// Beyond every position.
    pub const MAX: Self = Self(i64::MAX);

    pub const fn new(bytes: i64) -> Self {
        Self(bytes)
    }

    /// Reads PostgreSQL's own notation, such as `16/B374D848`.
    pub fn parse(text: &str) -> Option<Self> {
        let (high, low) = text.split_once('/')?;
        let part = |text: &str| u32::from_str_radix(text, 16).ok().map(i64::from);
        Some(Self((part(high)? << 32) + part(low)?))
    }

    /// The bytes from `earlier` to here; 0 if that is not earlier.
    pub fn bytes_after(self, earlier: Self) -> u64 {
        u64::try_from(self.0 - earlier.0).unwrap_or(0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// The answers of a primary about the history of its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The system identifier, which `initdb` mints. A server and its standbys share it.
    pub system: i64,
    /// The timeline to which it writes. Each promotion of a standby begins one.
    pub timeline: i64,
    /// The end of what it has made durable.
    pub flushed: Lsn,
    /// The timelines before this one, oldest first, each with the position at which it was left. `None`: the server
    /// does not say.
    pub left: Option<Vec<(i64, Lsn)>>,
}

/// The part of a timeline that the nodes know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The position of the server when a node met it on this timeline for the first time.
    pub first: Lsn,
    /// The last position at which a commit was acknowledged. 0: none was.
    pub last: Lsn,
}

/// What the nodes have seen of one database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub system: i64,
    /// The number of losses that operators have accepted. A record with more of them replaces all that was seen before.
    pub losses_accepted: u32,
    pub timelines: BTreeMap<i64, Span>,
}

/// The reason why a server may lack commits that were acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// It holds other data.
    Stranger { found: i64, known: i64 },
    /// It has not taken part in the last promotion.
    LeftBehind { found: i64, newest: i64 },
    /// Its log ends, or left a timeline, this many bytes before a commit that was acknowledged.
    Behind { bytes: u64 },
}

impl Seen {
    /// The record that begins with this server. `losses_accepted`: how many losses were accepted before.
    pub fn beginning(server: &Lineage, losses_accepted: u32) -> Self {
        let mut seen = Self { system: server.system, losses_accepted, timelines: BTreeMap::new() };
        seen.meet(server);
        seen
    }

    pub fn newest_timeline(&self) -> i64 {
        self.timelines.last_key_value().map_or(0, |(timeline, _)| *timeline)
    }

    /// The highest position at which a commit was acknowledged.
    pub fn last(&self) -> Lsn {
        self.timelines.values().map(|span| span.last).max().unwrap_or_default()
    }

    /// Whether `server` has everything that was acknowledged, as far as can be seen.
    pub fn judge(&self, server: &Lineage) -> Result<(), Mismatch> {
        if server.system != self.system {
            return Err(Mismatch::Stranger { found: server.system, known: self.system });
        }
        let newest = self.newest_timeline();
        if server.timeline < newest {
            return Err(Mismatch::LeftBehind { found: server.timeline, newest });
        }
        let missing = |(timeline, span): (&i64, &Span)| span.last.bytes_after(self.end_of(*timeline, server));
        match self.timelines.iter().map(missing).max() {
            None | Some(0) => Ok(()),
            Some(bytes) => Err(Mismatch::Behind { bytes }),
        }
    }

    /// The end of the part of a timeline that `server` has.
    fn end_of(&self, timeline: i64, server: &Lineage) -> Lsn {
        if timeline >= server.timeline {
            return server.flushed;
        }
        match &server.left {
            Some(left) => {
                // A timeline that it never was on: its own line left the one before.
                let entry = left.iter().filter(|(of, _)| *of <= timeline).max_by_key(|(of, _)| *of);
                entry.map_or_else(Lsn::default, |(_, at)| *at)
            }
            // The position at which a node met it after the promotion. It is a little later than the end.
            None => {
                let next = self.timelines.range(timeline + 1..=server.timeline).next();
                next.map_or(server.flushed, |(_, span)| span.first.min(server.flushed))
            }
        }
    }

    /// Notes a server that may be used. Returns whether its timeline is new.
    pub fn meet(&mut self, server: &Lineage) -> bool {
        let is_new = !self.timelines.contains_key(&server.timeline);
        if is_new {
            self.timelines.insert(server.timeline, Span { first: server.flushed, last: Lsn::default() });
            self.forget_old();
        }
        is_new
    }

    /// Notes that a commit on `timeline` was acknowledged which ends after `at`.
    pub fn acknowledge(&mut self, timeline: i64, at: Lsn) {
        if let Some(span) = self.timelines.get_mut(&timeline) {
            span.last = span.last.max(at);
        }
    }

    /// Adds what `other` has seen. Of two with different servers, that of more accepted losses stands; of equals,
    /// `other`. Returns whether anything changed.
    pub fn add(&mut self, other: &Self) -> bool {
        let before = self.clone();
        match other.losses_accepted.cmp(&self.losses_accepted) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal if other.system == self.system => {
                for (timeline, theirs) in &other.timelines {
                    let span = self.timelines.entry(*timeline).or_insert(*theirs);
                    *span = Span { first: span.first.min(theirs.first), last: span.last.max(theirs.last) };
                }
                self.forget_old();
            }
            std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => self.clone_from(other),
        }
        *self != before
    }

    fn forget_old(&mut self) {
        while self.timelines.len() > TIMELINES_MOST {
            self.timelines.pop_first();
        }
    }
}

#[cfg(test)]
mod tests;
