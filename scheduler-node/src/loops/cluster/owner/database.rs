//! One database as the owner of shards sees it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use common::{
    delay::Hearing,
    ids::{DatabaseName, Epoch, NodeId, ShardId},
};
use parking_lot::Mutex;

use crate::{
    clock,
    store::{self, Places},
    working_set::owned_shards::OwnedShards,
};

/// The source of epochs.
pub trait Fence: fmt::Debug + Send + Sync + 'static {
    /// Takes those fences of `shards` for `node` that no claim holds. Then no claim under an older epoch commits.
    fn acquire_free(
        &self,
        shards: &[ShardId],
        node: &NodeId,
    ) -> impl Future<Output = Result<Vec<(ShardId, Epoch)>, store::Error>> + Send;

    /// Takes all of those fences that are in this database, or none. It waits for the claims that hold them.
    fn acquire(
        &self,
        shards: &[ShardId],
        node: &NodeId,
    ) -> impl Future<Output = Result<Vec<(ShardId, Epoch)>, store::Error>> + Send;

    /// Lists the shards whose fences are still in force under these epochs.
    fn still_held(
        &self,
        fences: &BTreeMap<ShardId, Epoch>,
    ) -> impl Future<Output = Result<Vec<ShardId>, store::Error>> + Send;
}

impl Fence for store::Database {
    async fn acquire_free(&self, shards: &[ShardId], node: &NodeId) -> Result<Vec<(ShardId, Epoch)>, store::Error> {
        self.shard_acquire_free(shards, node).await
    }

    async fn acquire(&self, shards: &[ShardId], node: &NodeId) -> Result<Vec<(ShardId, Epoch)>, store::Error> {
        self.shard_acquire(shards, node).await
    }

    async fn still_held(&self, fences: &BTreeMap<ShardId, Epoch>) -> Result<Vec<ShardId>, store::Error> {
        self.shard_held(fences).await
    }
}

/// The parts of a database that the owner of shards needs.
#[derive(Debug)]
pub struct OwnerDatabase<F> {
    pub name: DatabaseName,
    pub owned_shards: Arc<OwnedShards>,
    /// Whether deadlines wait for messages.
    pub hearing: Arc<Mutex<Hearing>>,
    pub fence: Arc<F>,
}

impl<F> Clone for OwnerDatabase<F> {
    fn clone(&self) -> Self {
        let (owned_shards, fence) = (Arc::clone(&self.owned_shards), Arc::clone(&self.fence));
        Self { name: self.name.clone(), owned_shards, hearing: Arc::clone(&self.hearing), fence }
    }
}

impl<F> OwnerDatabase<F> {
    /// Call it before claims from `shards` begin or go on. Has reports come before deadlines if one of them has opened
    /// lately: while a move kept it closed, nodes held reports on its tasks, and this node cannot tell for how long.
    /// The mover that opened it knows, but its node may have ended since. No other takeover delays deadlines.
    pub(super) fn hear_first(&self, shards: &[ShardId], places: &Places) {
        if shards.iter().any(|shard| places.has_opened_lately(*shard)) {
            self.hearing.lock().shard_opens(clock::instant());
        }
    }
}
