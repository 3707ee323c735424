//! Keeps this node's map of the shards true: which database has which shard.
//!
//! Each glance at a database shows one small number, and when that has changed, the fence rows are read. The shards
//! of a database that cannot be read stay where they were. A writer that was refused because a shard has moved does
//! not wait for this loop, but reads the map itself.

use tokio_util::sync::CancellationToken;

use super::poll_revision::{PollRevision, poll_revision};
use crate::store::{Error, Places};

#[derive(Debug)]
pub struct MapReader {
    pub places: Places,
}

impl MapReader {
    pub async fn run(self, stop: CancellationToken) {
        let places = self.places.clone();
        poll_revision(self, places.databases().clone(), places.wanted(), stop).await;
    }
}

impl PollRevision for MapReader {
    const OF: &'static str = "places of the shards";

    async fn is_current(&self) -> bool {
        self.places.is_current().await
    }

    async fn read(&mut self) -> Result<(), Error> {
        self.places.refresh().await
    }
}
