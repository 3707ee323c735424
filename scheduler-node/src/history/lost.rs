//! Counts the lines that a history file lacks.

use prometheus::{IntCounter, Registry};

// The parent names the atomics, so that a test can put those of a model checker in their place.
use super::{Arc, AtomicU64, Ordering};

/// The lines that the file lacks. One atomic number is enough: each addition is counted by exactly one `take`, and
/// nothing else has to agree with it.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    untold: Arc<AtomicU64>,
    pub(super) total: IntCounter,
}

impl Lost {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let total = IntCounter::new(
            "duetime_history_lines_lost_total",
            "lines of the history file that were not written, because the disk was full or slow",
        )?;
        registry.register(Box::new(total.clone()))?;
        Ok(Self { untold: Arc::default(), total })
    }

    pub(super) fn add(&self, lines: u64) {
        self.untold.fetch_add(lines, Ordering::Relaxed);
        self.total.inc_by(lines);
    }

    /// Whether lines were lost since the last [`Self::take`].
    pub(super) fn is_any(&self) -> bool {
        self.untold.load(Ordering::Relaxed) > 0
    }

    /// The lines lost since the last call.
    pub(super) fn take(&self) -> u64 {
        self.untold.swap(0, Ordering::Relaxed)
    }

    /// Undoes a [`Self::take`] whose lines the file does not tell.
    pub(super) fn give_back(&self, lines: u64) {
        self.untold.fetch_add(lines, Ordering::Relaxed);
    }
}
