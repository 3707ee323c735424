//! Acts that run beside the owner's loop: one request, or one wait, and its result.

use std::{sync::Arc, time::Duration};

use common::{
    cluster::AssignmentRecord,
    ids::{Epoch, NodeId, ShardId},
};
use tokio::sync::Semaphore;

use super::Fence;
use crate::{
    coordination::{Coordination, Error, LeaseId, OwnerKey},
    store,
    supervise::at_work,
    working_set::owned_shards::OwnedShards,
};

/// Most drains end within this time: they only wait for the confirms of the last published tasks.
const QUICK_DRAIN: Duration = Duration::from_millis(100);

/// The result of an act. `index`: the index of the shard's database.
#[derive(Debug)]
pub(super) enum ActResult {
    Created { index: usize, shard: ShardId, result: Result<Option<OwnerKey>, Error> },
    Fenced { index: usize, keys: Vec<OwnerKey>, result: Result<Vec<(ShardId, Epoch)>, store::Error> },
    Confirmed { index: usize, shard: ShardId, epoch: Epoch, result: Result<bool, Error> },
    Reregistered { shard: ShardId, result: Result<Option<OwnerKey>, Error> },
    Looked { shards: Vec<ShardId>, result: Result<Option<AssignmentRecord>, Error> },
    Released { index: usize, shard: ShardId, result: Result<(), Error> },
}

/// The parts that every act needs.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    pub(super) me: NodeId,
    pub(super) coordination: Coordination,
    /// Limits the requests to etcd.
    pub(super) requests: Arc<Semaphore>,
    /// Limits the requests that end an acquire or a release. They go first, because until then no node serves the
    /// shard.
    pub(super) last_requests: Arc<Semaphore>,
}

impl Actor {
    pub(super) async fn create(self, index: usize, shard: ShardId, lease: LeaseId) -> ActResult {
        let _turn = self.requests.acquire().await;
        let _work = at_work();
        let result = self.coordination.owner_create(shard, &self.me, None, lease).await;
        ActResult::Created { index, shard, result }
    }

    pub(super) async fn fence<F: Fence>(self, index: usize, keys: Vec<OwnerKey>, fence: Arc<F>) -> ActResult {
        let shards: Vec<ShardId> = keys.iter().map(|key| key.shard).collect();
        let _work = at_work();
        let result = fence.acquire(&shards, &self.me).await;
        if result.is_ok() {
            fail::fail_point!("after_fence", |_| std::process::abort());
        }
        ActResult::Fenced { index, keys, result }
    }

    pub(super) async fn confirm(self, index: usize, key: OwnerKey, epoch: Epoch) -> ActResult {
        let _turn = self.last_requests.acquire().await;
        let _work = at_work();
        let result = self.coordination.owner_confirm(&key, &self.me, epoch).await;
        ActResult::Confirmed { index, shard: key.shard, epoch, result }
    }

    pub(super) async fn reregister(self, shard: ShardId, epoch: Epoch, lease: LeaseId) -> ActResult {
        let _turn = self.requests.acquire().await;
        let _work = at_work();
        let result = self.coordination.owner_create(shard, &self.me, Some(epoch), lease).await;
        ActResult::Reregistered { shard, result }
    }

    /// Reads the assignment from etcd itself before anything is stopped: the mirror may be as old as an outage.
    pub(super) async fn look(self, shards: Vec<ShardId>) -> ActResult {
        let _work = at_work();
        let result = self.coordination.assignment_read().await;
        ActResult::Looked { shards, result }
    }

    /// Stops claiming only when it is the shard's turn: while many shards move, the waiting ones are still
    /// dispatched.
    pub(super) async fn release(
        self,
        index: usize,
        shard: ShardId,
        owned_shards: Arc<OwnedShards>,
        drain: Duration,
    ) -> ActResult {
        let turn = self.requests.acquire().await;
        let _work = at_work();
        owned_shards.stop_claiming(&[shard]);
        if tokio::time::timeout(QUICK_DRAIN.min(drain), owned_shards.drained(&[shard])).await.is_err() {
            // A slow drain does not keep the other shards waiting.
            drop(turn);
            if tokio::time::timeout(drain, owned_shards.drained(&[shard])).await.is_err() {
                tracing::warn!(%shard, "handing over with tasks in flight; the next owner publishes them again");
            }
            return self.release_key(index, shard).await;
        }
        let result = self.coordination.owner_remove(shard, &self.me).await;
        ActResult::Released { index, shard, result }
    }

    pub(super) async fn release_key(self, index: usize, shard: ShardId) -> ActResult {
        let _turn = self.last_requests.acquire().await;
        let _work = at_work();
        let result = self.coordination.owner_remove(shard, &self.me).await;
        ActResult::Released { index, shard, result }
    }
}
