//! `POST /v1/databases/{name}/accept-loss`: what an operator has accepted.

use serde::{Deserialize, Serialize};

use crate::{
    cluster::seen::{Lineage, Seen},
    ids::DatabaseName,
};

/// The server that the cluster uses from now on, and what it may lack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedLoss {
    pub database: DatabaseName,
    /// How much of the log of acknowledged commits may be missing.
    pub missing_bytes: u64,
    /// As text, because JSON readers round numbers of this size.
    pub system_identifier: String,
    pub timeline: i64,
    /// How many losses of this database have been accepted so far, this one included.
    pub losses_accepted: u32,
}

impl AcceptedLoss {
    pub fn new(database: &DatabaseName, missing_bytes: u64, server: &Lineage, record: &Seen) -> Self {
        Self {
            database: database.clone(),
            missing_bytes,
            system_identifier: server.system.to_string(),
            timeline: server.timeline,
            losses_accepted: record.losses_accepted,
        }
    }
}
