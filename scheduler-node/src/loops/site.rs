//! One database as the loops see it: its statements and what this node holds of it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::ids::{DatabaseName, ShardId, TaskId};
use tokio::sync::Notify;

use super::{held::Held, waiting::Waiting};
use crate::store::Database;

/// A task whose claim has no known outcome is looked at again after this long.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Site {
    pub database: Arc<Database>,
    pub held: Arc<Held>,
    pub waiting: Arc<Waiting>,
    /// Something was submitted in SQL.
    pub inbox: Arc<Notify>,
    /// A claim was refused because this node does not know a queue's policy. One for all sites.
    pub outdated: Arc<Notify>,
}

impl Site {
    pub fn name(&self) -> &DatabaseName {
        self.database.name()
    }

    /// Nobody knows what became of these: a rescue looks after `pause`. Without a clock the next preload finds them.
    pub fn look_again(&self, ids: impl IntoIterator<Item = TaskId>, pause: Duration) {
        match self.database.clock().at(Instant::now()) {
            Some(now) => self.held.end_unknown(ids, now.plus(pause)),
            None => self.held.end(ids),
        }
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
