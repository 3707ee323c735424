//! Sets of shards as requests and answers write them: `0-15,20`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::range::{NotARange, ShardRange};
use crate::ids::ShardId;

/// Any number of shards, written as ranges with commas between them. The empty set is the empty text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ShardSet {
    /// Ascending, with at least one shard between two of them, so that each set has one text.
    ranges: Vec<ShardRange>,
}

impl ShardSet {
    /// Ranges may overlap and come in any order. The cost depends on their number, not on that of the shards.
    fn of_ranges(mut ranges: Vec<ShardRange>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<ShardRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(last) if u32::from(range.first().number()) <= u32::from(last.last().number()) + 1 => {
                    let end = last.last().max(range.last());
                    *last = ShardRange::new(last.first(), end).expect("the end is not before the first shard");
                }
                _ => merged.push(range),
            }
        }
        Self { ranges: merged }
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The number of shards.
    pub fn count(&self) -> usize {
        self.ranges.iter().map(|range| range.count()).sum()
    }

    pub fn contains(&self, shard: ShardId) -> bool {
        let after = self.ranges.partition_point(|range| range.first() <= shard);
        after.checked_sub(1).is_some_and(|index| self.ranges[index].contains(shard))
    }

    /// The shards, ascending.
    pub fn iter(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.ranges.iter().flat_map(|range| range.iter())
    }
}

impl FromIterator<ShardId> for ShardSet {
    fn from_iter<T: IntoIterator<Item = ShardId>>(shards: T) -> Self {
        Self::of_ranges(shards.into_iter().filter_map(|shard| ShardRange::new(shard, shard)).collect())
    }
}

impl From<ShardRange> for ShardSet {
    fn from(range: ShardRange) -> Self {
        Self { ranges: vec![range] }
    }
}

impl fmt::Display for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, range) in self.ranges.iter().enumerate() {
            write!(f, "{}{range}", if nth == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The error for a text that is not a set of shards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; several ranges have commas between them: `0-15,20`")]
pub struct NotASet(#[from] NotARange);

impl FromStr for ShardSet {
    type Err = NotASet;

    fn from_str(text: &str) -> Result<Self, NotASet> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let ranges: Result<Vec<ShardRange>, NotARange> = text.split(',').map(range).collect();
        Ok(Self::of_ranges(ranges?))
    }
}

/// Reads a range of digits and a dash only: a range of the configuration may have blanks and signs.
fn range(text: &str) -> Result<ShardRange, NotARange> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    if plain { text.parse() } else { Err(NotARange::of(text)) }
}

impl TryFrom<String> for ShardSet {
    type Error = NotASet;

    fn try_from(text: String) -> Result<Self, NotASet> {
        text.parse()
    }
}

impl From<ShardSet> for String {
    fn from(set: ShardSet) -> Self {
        set.to_string()
    }
}

#[cfg(test)]
mod tests;
