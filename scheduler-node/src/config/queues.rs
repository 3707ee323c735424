//! `[queues]`: what a submission may bring.

use serde::Deserialize;

use super::complaint::Complaints;

/// Above this no payload is taken, whatever is configured.
const PAYLOAD_BYTES_MAX: usize = 1_048_576;

/// What holds for every queue.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Queues {
    /// Whether a submission to a queue that does not exist creates it with the default policy.
    pub auto_create: bool,
    pub max_payload_bytes: usize,
}

impl Default for Queues {
    fn default() -> Self {
        Self { auto_create: true, max_payload_bytes: 262_144 }
    }
}

impl Queues {
    pub(super) fn check(&self, complaints: &mut Complaints) {
        complaints.unless(
            (1..=PAYLOAD_BYTES_MAX).contains(&self.max_payload_bytes),
            "queues.max_payload_bytes",
            format!("is {}; it must be between 1 and {PAYLOAD_BYTES_MAX}", self.max_payload_bytes),
        );
    }
}
