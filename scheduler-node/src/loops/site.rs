//! One database as the loops see it: its statements and what this node holds of it.

use std::sync::Arc;

use common::ids::{DatabaseName, ShardId};

use super::held::Held;
use crate::store::Database;

#[derive(Clone, Debug)]
pub struct Site {
    pub database: Arc<Database>,
    pub held: Arc<Held>,
}

impl Site {
    pub fn name(&self) -> &DatabaseName {
        self.database.name()
    }
}

/// Every database, in the order of the configuration.
#[derive(Clone, Debug)]
pub struct Sites(Arc<[Site]>);

impl Sites {
    pub fn new(sites: Vec<Site>) -> Self {
        Self(sites.into())
    }

    pub fn all(&self) -> &[Site] {
        &self.0
    }

    /// The database of a shard and its place in [`Self::all`].
    pub fn of(&self, shard: ShardId) -> Option<(usize, &Site)> {
        self.0.iter().enumerate().find(|(_, site)| site.database.shards().contains(shard))
    }
}
