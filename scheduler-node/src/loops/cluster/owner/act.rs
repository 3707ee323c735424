//! Acts that run beside the owner's loop: one request, or one wait, and its result.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use common::{
    cluster::AssignmentRecord,
    ids::{Epoch, NodeId, ShardId},
};
use futures::future::join_all;
use tokio::sync::Semaphore;

use super::{Fence, OwnerDatabase};
use crate::{
    coordination::{Coordination, Error, LeaseId, OwnerKey},
    store,
    supervise::at_work,
    working_set::owned_shards::OwnedShards,
};

/// Most drains end within this time: they only wait for the confirms of the last published tasks.
const QUICK_DRAIN: Duration = Duration::from_millis(100);

/// The longest wait for the fences before lost owner keys are created again. Until then other nodes take the shards for
/// ones without an owner.
const FENCES_READ_WITHIN: Duration = Duration::from_secs(1);

/// A look at the fences that failed comes again after this long: the connections of the pool may be dead just then.
const FENCES_READ_AGAIN: Duration = Duration::from_millis(50);

/// The result of an act. `index`: the index of the shard's database.
#[derive(Debug)]
pub(super) enum ActResult {
    Created {
        index: usize,
        shards: Vec<ShardId>,
        result: Result<Vec<OwnerKey>, Error>,
    },
    Fenced {
        index: usize,
        keys: Vec<OwnerKey>,
        /// Whether the statement has waited for claims that hold the fences.
        waited: bool,
        result: Result<Vec<(ShardId, Epoch)>, store::Error>,
    },
    Confirmed {
        index: usize,
        taken: Vec<(ShardId, Epoch)>,
        result: Result<Vec<ShardId>, Error>,
    },
    /// `overtaken`: fences that another node has taken. Their keys are not created again.
    Reregistered {
        index: usize,
        shards: Vec<ShardId>,
        overtaken: Vec<(ShardId, Epoch)>,
        result: Result<Vec<OwnerKey>, Error>,
    },
    Looked {
        shards: Vec<ShardId>,
        result: Result<Option<AssignmentRecord>, Error>,
    },
    /// `slow`: shards that are not drained yet, and still hold their keys.
    Released {
        index: usize,
        shards: Vec<ShardId>,
        slow: Vec<ShardId>,
        result: Result<(), Error>,
    },
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
    /// `shards`: up to [`KEYS_PER_TRANSACTION`].
    ///
    /// [`KEYS_PER_TRANSACTION`]: crate::coordination::KEYS_PER_TRANSACTION
    pub(super) async fn create(self, index: usize, shards: Vec<ShardId>, lease: LeaseId) -> ActResult {
        let _turn = self.requests.acquire().await;
        let _work = at_work();
        let keys: Vec<_> = shards.iter().map(|shard| (*shard, None)).collect();
        let result = self.coordination.owners_create(&keys, &self.me, lease).await;
        ActResult::Created { index, shards, result }
    }

    /// Takes the fences that are free, or `waits` for those that claims hold.
    pub(super) async fn fence<F: Fence>(
        self,
        index: usize,
        keys: Vec<OwnerKey>,
        fence: Arc<F>,
        waits: bool,
    ) -> ActResult {
        let shards: Vec<ShardId> = keys.iter().map(|key| key.shard).collect();
        let _work = at_work();
        let result =
            if waits { fence.acquire(&shards, &self.me).await } else { fence.acquire_free(&shards, &self.me).await };
        if result.as_ref().is_ok_and(|taken| !taken.is_empty()) {
            fail::fail_point!("after_fence", |_| std::process::abort());
        }
        ActResult::Fenced { index, keys, waited: waits, result }
    }

    pub(super) async fn confirm(self, index: usize, keys: Vec<(OwnerKey, Epoch)>) -> ActResult {
        let _turn = self.last_requests.acquire().await;
        let _work = at_work();
        let result = self.coordination.owners_confirm(&keys, &self.me).await;
        let taken = keys.into_iter().map(|(key, epoch)| (key.shard, epoch)).collect();
        ActResult::Confirmed { index, taken, result }
    }

    /// Asks the database first: while this node stood still, another one may have owned the shards and ended.
    pub(super) async fn reregister<F: Fence>(
        self,
        index: usize,
        owned: Vec<(ShardId, Epoch)>,
        database: OwnerDatabase<F>,
        lease: LeaseId,
    ) -> ActResult {
        let overtaken = overtaken(&owned, &database).await;
        let _turn = self.requests.acquire().await;
        let _work = at_work();
        let held = owned.iter().filter(|fence| !overtaken.contains(fence));
        let keys: Vec<_> = held.map(|(shard, epoch)| (*shard, Some(*epoch))).collect();
        let result = if keys.is_empty() {
            Ok(Vec::new())
        } else {
            self.coordination.owners_create(&keys, &self.me, lease).await
        };
        ActResult::Reregistered { index, shards: keys.into_iter().map(|(shard, _)| shard).collect(), overtaken, result }
    }

    /// Reads the assignment from etcd itself before anything is stopped: the mirror may be as old as an outage.
    pub(super) async fn look(self, shards: Vec<ShardId>) -> ActResult {
        let _work = at_work();
        let result = self.coordination.assignment_read().await;
        ActResult::Looked { shards, result }
    }

    /// Stops claiming only when it is the shards' turn: while many shards move, the waiting ones are still
    /// dispatched. A slow drain keeps the others waiting for [`QUICK_DRAIN`] at most. `everywhere`: the node's shares
    /// of all databases, because a shard may move meanwhile.
    pub(super) async fn release(
        self,
        index: usize,
        shards: Vec<ShardId>,
        everywhere: Vec<Arc<OwnedShards>>,
        drain: Duration,
    ) -> ActResult {
        let _turn = self.requests.acquire().await;
        let _work = at_work();
        everywhere.iter().for_each(|owned_shards| owned_shards.begin_release(&shards));
        let is_quick = is_drained(&everywhere, &shards, QUICK_DRAIN.min(drain)).await;
        let busy = everywhere.iter().flat_map(|owned_shards| owned_shards.busy(&shards));
        let slow: BTreeSet<ShardId> = if is_quick { BTreeSet::new() } else { busy.collect() };
        let shards: Vec<ShardId> = shards.into_iter().filter(|shard| !slow.contains(shard)).collect();
        let result = self.coordination.owners_remove(&shards, &self.me).await;
        ActResult::Released { index, shards, slow: slow.into_iter().collect(), result }
    }

    /// Releases a shard whose drain takes longer. It waits for no turn, because it claims nothing any more.
    pub(super) async fn release_slow(
        self,
        index: usize,
        shard: ShardId,
        everywhere: Vec<Arc<OwnedShards>>,
        drain: Duration,
    ) -> ActResult {
        {
            let _work = at_work();
            if !is_drained(&everywhere, &[shard], drain).await {
                tracing::warn!(%shard, "handing over with tasks in flight; the next owner publishes them again");
            }
        }
        self.release_key(index, shard).await
    }

    pub(super) async fn release_key(self, index: usize, shard: ShardId) -> ActResult {
        let _turn = self.last_requests.acquire().await;
        let _work = at_work();
        let result = self.coordination.owner_remove(shard, &self.me).await;
        ActResult::Released { index, shards: vec![shard], slow: Vec::new(), result }
    }
}

/// The fences that the database no longer has under these epochs. Without an answer in time, or where the schema
/// does not fit: none. Leaves out shards whose claims have stopped: the cut of a move raises their epoch, and the mover
/// adopts it.
async fn overtaken<F: Fence>(owned: &[(ShardId, Epoch)], database: &OwnerDatabase<F>) -> Vec<(ShardId, Epoch)> {
    let _work = at_work();
    let claimable = database.owned_shards.claimable();
    let asked = owned.iter().copied().filter(|(shard, epoch)| claimable.get(shard) == Some(epoch));
    let asked: BTreeMap<ShardId, Epoch> = asked.collect();
    let look = async {
        loop {
            match database.fence.still_held(&asked).await {
                Ok(held) => return Some(held),
                Err(error) if matches!(error.fault(), store::Fault::Bug | store::Fault::Data) => return None,
                Err(_) => {}
            }
            tokio::time::sleep(FENCES_READ_AGAIN).await;
        }
    };
    let Ok(Some(held)) = tokio::time::timeout(FENCES_READ_WITHIN, look).await else { return Vec::new() };
    asked.into_iter().filter(|(shard, _)| !held.contains(shard)).collect()
}

/// Whether no task of the shards is in flight in any database within `time`.
async fn is_drained(everywhere: &[Arc<OwnedShards>], shards: &[ShardId], time: Duration) -> bool {
    let drained = join_all(everywhere.iter().map(|owned_shards| owned_shards.drained(shards)));
    tokio::time::timeout(time, drained).await.is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use common::ids::DatabaseName;

    use super::*;
    use crate::store::StoreOp;

    /// Fences in a table that this node's statements do not fit.
    #[derive(Debug, Default)]
    struct Unreadable {
        looks: AtomicU32,
    }

    impl Fence for Unreadable {
        async fn acquire_free(&self, _: &[ShardId], _: &NodeId) -> Result<Vec<(ShardId, Epoch)>, store::Error> {
            Ok(Vec::new())
        }

        async fn acquire(&self, _: &[ShardId], _: &NodeId) -> Result<Vec<(ShardId, Epoch)>, store::Error> {
            Ok(Vec::new())
        }

        async fn still_held(&self, _: &BTreeMap<ShardId, Epoch>) -> Result<Vec<ShardId>, store::Error> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            Err(store::Error::unreadable(DatabaseName::new("main"), StoreOp::ShardHeld))
        }
    }

    #[tokio::test]
    async fn fences_that_cannot_be_read_are_read_once() {
        let (name, owned_shards) = (DatabaseName::new("main"), Arc::new(OwnedShards::new(1)));
        let (hearing, fence) = (Arc::default(), Arc::new(Unreadable::default()));
        let database = OwnerDatabase { name, owned_shards, hearing, fence };
        assert_eq!(overtaken(&[], &database).await, []);
        assert_eq!(database.fence.looks.load(Ordering::Relaxed), 1);
    }
}
