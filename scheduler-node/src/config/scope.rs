//! The queues that a token or a role is for.

use common::access::Scope;

use super::complaint::Complaints;

/// Parses the queue patterns under `key`.
pub(super) fn scope(patterns: Option<Vec<String>>, key: String, complaints: &mut Complaints) -> Scope {
    Scope::of(patterns).unwrap_or_else(|error| {
        complaints.add(key, error.detail);
        Scope::ALL
    })
}
