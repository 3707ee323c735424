//! `[scheduler]`: how much a node holds in memory and how much it requests at once.

use std::time::Duration;

use serde::Deserialize;

use super::complaint::Complaints;

/// The claims of 50,000 tasks with one due time take so long, with three nodes on two cores. A message may be held for
/// five seconds after its claim, and a burst needs most of this time for itself.
const CLAIM_AHEAD_MOST_MS: u64 = 2_000;

/// Bounds of the path from the due time to the broker.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scheduler {
    /// How far ahead the heap is filled.
    pub horizon_ms: u64,
    /// Most entries of the heap of each database, about 70 bytes each.
    pub heap_entries: usize,
    /// How long before its due time a task may be claimed at most, to hide the database's round trip. Beyond
    /// 100 ms, the node uses as much of it as claims lately took, or as those of many tasks with one due time take. A
    /// quarter of the lease's time to live is the most that it uses.
    pub claim_ahead_ms: u64,
    /// Most tasks in one statement.
    pub batch: usize,
    /// Most claimed tasks of each database whose outcome is not written yet.
    pub window: usize,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self { horizon_ms: 10_000, heap_entries: 1_000_000, claim_ahead_ms: 100, batch: 500, window: 10_000 }
    }
}

impl Scheduler {
    pub fn horizon(&self) -> Duration {
        Duration::from_millis(self.horizon_ms)
    }

    pub fn claim_ahead(&self) -> Duration {
        Duration::from_millis(self.claim_ahead_ms)
    }

    pub(super) fn check(&self, complaints: &mut Complaints) {
        complaints.unless(
            (1_000..=3_600_000).contains(&self.horizon_ms),
            "scheduler.horizon_ms",
            format!("is {}; it must be between 1000 and 3600000", self.horizon_ms),
        );
        complaints.unless(
            (1..=10_000).contains(&self.batch),
            "scheduler.batch",
            format!("is {}; it must be between 1 and 10000", self.batch),
        );
        complaints.unless(
            (1..=60_000).contains(&self.window),
            "scheduler.window",
            format!("is {}; it must be between 1 and 60000", self.window),
        );
        complaints.unless(
            (1_000..=100_000_000).contains(&self.heap_entries),
            "scheduler.heap_entries",
            format!("is {}; it must be between 1000 and 100000000", self.heap_entries),
        );
        complaints.unless(
            self.claim_ahead_ms <= CLAIM_AHEAD_MOST_MS,
            "scheduler.claim_ahead_ms",
            format!(
                "is {}; it must be at most {CLAIM_AHEAD_MOST_MS}: a claimed task can no longer be cancelled",
                self.claim_ahead_ms
            ),
        );
        self.check_relations(complaints);
    }

    fn check_relations(&self, complaints: &mut Complaints) {
        complaints.unless(
            self.claim_ahead_ms < self.horizon_ms,
            "scheduler.claim_ahead_ms",
            format!("is {}, but scheduler.horizon_ms is {}; it must be less", self.claim_ahead_ms, self.horizon_ms),
        );
        complaints.unless(
            self.window >= self.batch,
            "scheduler.window",
            format!(
                "is {}, but scheduler.batch is {}; a whole batch must fit into the window",
                self.window, self.batch
            ),
        );
        complaints.unless(
            self.heap_entries >= self.batch,
            "scheduler.heap_entries",
            format!(
                "is {}, but scheduler.batch is {}; a whole batch must fit into the heap",
                self.heap_entries, self.batch
            ),
        );
    }
}
