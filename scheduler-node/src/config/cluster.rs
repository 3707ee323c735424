//! `[cluster]`: what the first migration writes into the databases. From then on the databases decide.

use common::shard::MOST_SHARDS;
use serde::Deserialize;

use super::complaint::Complaints;

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    /// The number of shards of a new cluster.
    pub shards: Option<u32>,
}

impl Cluster {
    /// An existing cluster may have more: it goes on without this key.
    pub(super) fn check(self, complaints: &mut Complaints) {
        if let Some(shards) = self.shards {
            complaints.unless(
                (1..=u32::from(MOST_SHARDS)).contains(&shards),
                "cluster.shards",
                format!("is {shards}; a new cluster has 1 to {MOST_SHARDS} shards"),
            );
        }
    }
}
