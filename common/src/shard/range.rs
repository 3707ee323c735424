//! Which shards a database holds.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::ids::{DatabaseName, ShardId};

/// Shards `first..=last`; never empty. Written as `0-127`, or as `5` for a single shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ShardRange {
    first: u16,
    last: u16,
}

impl ShardRange {
    /// `None` when `last` is before `first`.
    pub const fn new(first: ShardId, last: ShardId) -> Option<Self> {
        if last.number() < first.number() {
            return None;
        }
        Some(Self { first: first.number(), last: last.number() })
    }

    /// Shards 0 to `count - 1`; `count` is cut to 1..=65,536.
    pub fn all(count: u32) -> Self {
        Self { first: 0, last: u16::try_from(count.max(1) - 1).unwrap_or(u16::MAX) }
    }

    pub const fn first(self) -> ShardId {
        ShardId::new(self.first)
    }

    pub const fn last(self) -> ShardId {
        ShardId::new(self.last)
    }

    /// The number of shards, at least 1.
    pub fn count(self) -> usize {
        usize::from(self.last) - usize::from(self.first) + 1
    }

    pub fn contains(self, shard: ShardId) -> bool {
        (self.first..=self.last).contains(&shard.number())
    }

    pub fn iter(self) -> impl Iterator<Item = ShardId> + Clone {
        (self.first..=self.last).map(ShardId::new)
    }
}

impl fmt::Display for ShardRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

/// The error for a text that is not a range of shards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a range of shards: write `0-127`, the first not above the last, both at most 65535")]
pub struct NotARange(String);

impl NotARange {
    pub(super) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl FromStr for ShardRange {
    type Err = NotARange;

    fn from_str(text: &str) -> Result<Self, NotARange> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |part: &str| part.trim().parse().map(ShardId::new).map_err(|_| NotARange(text.to_owned()));
        Self::new(number(first)?, number(last)?).ok_or_else(|| NotARange(text.to_owned()))
    }
}

impl TryFrom<String> for ShardRange {
    type Error = NotARange;

    fn try_from(text: String) -> Result<Self, NotARange> {
        text.parse()
    }
}

impl From<ShardRange> for String {
    fn from(range: ShardRange) -> Self {
        range.to_string()
    }
}

/// Why the databases do not hold every shard exactly once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoverError {
    #[error("no database holds any shard")]
    Nothing,
    #[error("no database holds the shards {0}")]
    Gap(ShardRange),
    #[error("databases `{one}` and `{other}` both hold the shards {shared}")]
    Overlap { one: DatabaseName, other: DatabaseName, shared: ShardRange },
    #[error("database `{database}` holds shards up to {last}, but there are only {count}, numbered from 0")]
    Beyond { database: DatabaseName, last: u16, count: u32 },
}

/// Checks that `ranges` hold each of the shards 0 to `count - 1` exactly once, in whatever order they are listed.
pub fn check_cover(ranges: &[(DatabaseName, ShardRange)], count: u32) -> Result<(), CoverError> {
    let mut sorted: Vec<_> = ranges.iter().collect();
    sorted.sort_by_key(|(name, range)| (*range, name));
    let mut next: u32 = 0;
    let mut before: Option<&(DatabaseName, ShardRange)> = None;
    for entry in sorted {
        let (database, range) = entry;
        if u32::from(range.last) >= count {
            return Err(CoverError::Beyond { database: database.clone(), last: range.last, count });
        }
        if let Some((one, earlier)) = before.filter(|(_, earlier)| range.first <= earlier.last) {
            let shared = ShardRange { first: range.first, last: range.last.min(earlier.last) };
            return Err(CoverError::Overlap { one: one.clone(), other: database.clone(), shared });
        }
        if u32::from(range.first) > next {
            return Err(CoverError::Gap(between(next, u32::from(range.first))));
        }
        next = u32::from(range.last) + 1;
        before = Some(entry);
    }
    match before {
        None => Err(CoverError::Nothing),
        Some(_) if next < count => Err(CoverError::Gap(between(next, count))),
        Some(_) => Ok(()),
    }
}

/// Shards `first..end`, where `first < end`.
fn between(first: u32, end: u32) -> ShardRange {
    let number = |number| u16::try_from(number).unwrap_or(u16::MAX);
    ShardRange { first: number(first), last: number(end - 1) }
}

#[cfg(test)]
mod tests;
