//! Whether the server of some pools may be used without a look at the servers.

use parking_lot::Mutex;

/// The doubts about a server so far. A look answers those that it found at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doubts(u64);

/// Counts doubts, and how many of them a look has answered. A doubt that comes during a look outlives it: what the look
/// saw may be older.
#[derive(Debug)]
pub(super) struct Trust(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    doubts: u64,
    answered: u64,
}

impl Trust {
    /// `is_doubted`: a look comes before the first use.
    pub(super) fn new(is_doubted: bool) -> Self {
        Self(Mutex::new(Counts { doubts: is_doubted.into(), answered: 0 }))
    }

    pub(super) fn is_whole(&self) -> bool {
        let counts = self.0.lock();
        counts.answered >= counts.doubts
    }

    pub(super) fn doubt(&self) {
        self.0.lock().doubts += 1;
    }

    /// Ask at the start of a look.
    pub(super) fn doubts(&self) -> Doubts {
        Doubts(self.0.lock().doubts)
    }

    pub(super) fn answer(&self, Doubts(doubts): Doubts) {
        let mut counts = self.0.lock();
        counts.answered = counts.answered.max(doubts);
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
