//! `[queues]`: bounds of submissions.

use serde::Deserialize;

use super::complaint::Complaints;

/// The upper bound of any configured payload size.
const PAYLOAD_BYTES_MAX: usize = 1_048_576;

/// Each queue costs a queue of RabbitMQ and some 60 metric series.
const QUEUES_MAX: u32 = 100_000;

/// Settings that apply to every queue.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Queues {
    /// Whether a submission to a queue that does not exist creates it with the default policy.
    pub auto_create: bool,
    pub max_payload_bytes: usize,
    /// Most queues in the cluster.
    pub max: u32,
    /// Of these, most queues that one caller's submissions created.
    pub max_per_caller: u32,
}

impl Default for Queues {
    fn default() -> Self {
        Self { auto_create: true, max_payload_bytes: 262_144, max: 5_000, max_per_caller: 1_000 }
    }
}

impl Queues {
    pub(super) fn check(&self, complaints: &mut Complaints) {
        complaints.unless(
            (1..=PAYLOAD_BYTES_MAX).contains(&self.max_payload_bytes),
            "queues.max_payload_bytes",
            format!("is {}; it must be between 1 and {PAYLOAD_BYTES_MAX}", self.max_payload_bytes),
        );
        complaints.limit_and_part(
            ("queues.max", self.max),
            1..=QUEUES_MAX,
            ("queues.max_per_caller", self.max_per_caller),
        );
    }
}
