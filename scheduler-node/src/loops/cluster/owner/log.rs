//! Gathers the owner's log messages, so that a hundred shards are one line.

use std::{collections::BTreeSet, fmt};

use common::ids::ShardId;

#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) acquired: BTreeSet<ShardId>,
    pub(super) released: BTreeSet<ShardId>,
    pub(super) reregistered: BTreeSet<ShardId>,
    pub(super) dropped: BTreeSet<ShardId>,
    /// Forgotten in a database because another one has them now.
    pub(super) moved: BTreeSet<ShardId>,
}

impl Log {
    pub(super) fn flush(&mut self) {
        let Self { acquired, released, reregistered, dropped, moved } = std::mem::take(self);
        if !acquired.is_empty() {
            tracing::info!(count = acquired.len(), "acquired shards {}", Ranges(&acquired));
        }
        if !released.is_empty() {
            tracing::info!(count = released.len(), "released shards {}", Ranges(&released));
        }
        if !reregistered.is_empty() {
            tracing::info!(
                count = reregistered.len(),
                "registered again as the owner of shards {}",
                Ranges(&reregistered)
            );
        }
        if !moved.is_empty() {
            tracing::info!(count = moved.len(), "in another database by now: shards {}", Ranges(&moved));
        }
        if !dropped.is_empty() {
            tracing::warn!(count = dropped.len(), "lost to other nodes: shards {}", Ranges(&dropped));
        }
    }
}

/// Writes shards as ranges: `0-12, 15`.
pub(super) struct Ranges<'a>(pub(super) &'a BTreeSet<ShardId>);

impl fmt::Display for Ranges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.0.iter().map(|shard| shard.number()).peekable();
        let mut separator = "";
        while let Some(first) = numbers.next() {
            let mut last = first;
            while let Some(next) = numbers.next_if(|next| *next == last + 1) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{first}")?
            } else {
                write!(f, "{separator}{first}-{last}")?
            }
            separator = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_written_as_ranges() {
        let shards = [0, 1, 2, 7, 9, 10, 65_535].map(ShardId::new).into();
        assert_eq!(Ranges(&shards).to_string(), "0-2, 7, 9-10, 65535");
    }
}
