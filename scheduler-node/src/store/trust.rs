//! Whether the server of some pools may be used without a look at the servers.

use std::sync::atomic::{AtomicU64, Ordering};

/// The doubts about a server so far. A look answers those that it found at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doubts(u64);

/// Counts doubts, and how many of them a look has answered. A doubt that comes during a look outlives it: what the look
/// saw may be older.
///
/// Both counts only rise, each by one atomic step, so no order between them has to hold for more than one access: a
/// reader that sees an old count of doubts acts as if it had come before the doubt.
#[derive(Debug)]
pub(super) struct Trust {
    doubts: AtomicU64,
    answered: AtomicU64,
}

impl Trust {
    /// `is_doubted`: a look comes before the first use.
    pub(super) fn new(is_doubted: bool) -> Self {
        Self { doubts: AtomicU64::new(is_doubted.into()), answered: AtomicU64::new(0) }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.answered.load(Ordering::Acquire) >= self.doubts.load(Ordering::Acquire)
    }

    pub(super) fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::AcqRel);
    }

    /// Ask at the start of a look.
    pub(super) fn doubts(&self) -> Doubts {
        Doubts(self.doubts.load(Ordering::Acquire))
    }

    pub(super) fn answer(&self, Doubts(doubts): Doubts) {
        self.answered.fetch_max(doubts, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_that_comes_during_a_look_outlives_it() {
        let trust = Trust::new(true);
        assert!(!trust.is_whole());
        let at_start = trust.doubts();
        trust.doubt();
        trust.answer(at_start);
        assert!(!trust.is_whole(), "the look began before the doubt");
        trust.answer(trust.doubts());
        assert!(trust.is_whole());
        // A look that ends late answers no more than it found.
        trust.doubt();
        trust.answer(at_start);
        assert!(!trust.is_whole());
    }

    #[test]
    fn a_server_without_an_alternative_begins_without_a_doubt() {
        assert!(Trust::new(false).is_whole());
    }
}
