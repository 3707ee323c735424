//! The right to take the fence of a shard: it belongs to the node that created the shard's owner key.

use common::{
    cluster::OwnerRecord,
    ids::{Epoch, NodeId, ShardId},
};
use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use futures::{StreamExt, TryStreamExt, stream};

use super::{Coordination, Error, EtcdOp, LeaseId, records::Kept};

/// The most owner keys in one transaction: half of what etcd allows by default (`--max-txn-ops`), because one key that
/// is not as expected makes all of them single requests.
pub const KEYS_PER_TRANSACTION: usize = 64;

/// Single requests under way after a transaction of several keys was refused.
const SINGLE_REQUESTS: usize = 8;

/// An owner key that belonged to this node when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerKey {
    pub shard: ShardId,
    lease: LeaseId,
    create_revision: i64,
}

impl Coordination {
    /// Creates the key, or finds that it is already `node`'s. `None`: the key is another node's. A value that cannot be
    /// parsed names no owner and is overwritten.
    ///
    /// `epoch` is the epoch of a fence that the node still holds, where only the key was lost.
    pub async fn owner_create(
        &self,
        shard: ShardId,
        node: &NodeId,
        epoch: Option<Epoch>,
        lease: LeaseId,
    ) -> Result<Option<OwnerKey>, Error> {
        let key = self.keys.owner(shard);
        let value = value(node, epoch);
        let may_overwrite = |value: &[u8]| owner_of(value).is_none_or(|owner| owner == *node);
        match self.record_keep(EtcdOp::OwnerCreate, key, value, lease, may_overwrite).await? {
            Kept::Ours { create_revision } => Ok(Some(OwnerKey { shard, lease, create_revision })),
            Kept::Anothers { .. } => Ok(None),
        }
    }

    /// Like [`Self::owner_create`], for up to [`KEYS_PER_TRANSACTION`] keys in one request. Returns the keys that are
    /// `node`'s; the others are other nodes'.
    pub async fn owners_create(
        &self,
        shards: &[(ShardId, Option<Epoch>)],
        node: &NodeId,
        lease: LeaseId,
    ) -> Result<Vec<OwnerKey>, Error> {
        let op = EtcdOp::OwnerCreate;
        let key = |shard: ShardId| self.keys.owner(shard);
        let absent = shards.iter().map(|(shard, _)| Compare::create_revision(key(*shard), CompareOp::Equal, 0));
        let put = |(shard, epoch): &(ShardId, Option<Epoch>)| {
            TxnOp::put(key(*shard), value(node, *epoch), Some(PutOptions::new().with_lease(lease.number())))
        };
        let txn = Txn::new().when(absent.collect::<Vec<_>>()).and_then(shards.iter().map(put).collect::<Vec<_>>());
        match self.transact(op, txn).await {
            Ok(answer) if answer.succeeded() => {
                let create_revision = answer.header().map_or(0, |header| header.revision());
                Ok(shards.iter().map(|(shard, _)| OwnerKey { shard: *shard, lease, create_revision }).collect())
            }
            Ok(_) | Err(Error::Refused { .. }) => {
                let singly = stream::iter(shards.to_vec());
                let singly = singly.map(|(shard, epoch)| self.owner_create(shard, node, epoch, lease));
                let created: Vec<_> = singly.buffer_unordered(SINGLE_REQUESTS).try_collect().await?;
                Ok(created.into_iter().flatten().collect())
            }
            Err(error) => Err(error),
        }
    }

    /// Like [`Self::owner_confirm`], for up to [`KEYS_PER_TRANSACTION`] keys in one request. Returns the shards whose
    /// keys are still the ones that were created.
    pub async fn owners_confirm(&self, taken: &[(OwnerKey, Epoch)], node: &NodeId) -> Result<Vec<ShardId>, Error> {
        let op = EtcdOp::OwnerConfirm;
        let key = |created: &OwnerKey| self.keys.owner(created.shard);
        let is_same =
            |(of, _): &(OwnerKey, Epoch)| Compare::create_revision(key(of), CompareOp::Equal, of.create_revision);
        let put = |(of, epoch): &(OwnerKey, Epoch)| {
            TxnOp::put(key(of), value(node, Some(*epoch)), Some(PutOptions::new().with_lease(of.lease.number())))
        };
        let txn = Txn::new()
            .when(taken.iter().map(is_same).collect::<Vec<_>>())
            .and_then(taken.iter().map(put).collect::<Vec<_>>());
        match self.transact(op, txn).await {
            Ok(answer) if answer.succeeded() => Ok(taken.iter().map(|(of, _)| of.shard).collect()),
            Ok(_) | Err(Error::Refused { .. } | Error::LeaseGone { .. }) => {
                let singly = stream::iter(taken.to_vec()).map(|(of, epoch)| async move {
                    Ok::<_, Error>(self.owner_confirm(&of, node, epoch).await?.then_some(of.shard))
                });
                let confirmed: Vec<_> = singly.buffer_unordered(SINGLE_REQUESTS).try_collect().await?;
                Ok(confirmed.into_iter().flatten().collect())
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the epoch of the fence that was taken. `false`: the key is not the one that was created, so the
    /// fence was taken too late and another node may hold it by now.
    pub async fn owner_confirm(&self, created: &OwnerKey, node: &NodeId, epoch: Epoch) -> Result<bool, Error> {
        let key = self.keys.owner(created.shard);
        let is_same = Compare::create_revision(key.clone(), CompareOp::Equal, created.create_revision);
        let options = PutOptions::new().with_lease(created.lease.number());
        let put = TxnOp::put(key, value(node, Some(epoch)), Some(options));
        match self.transact(EtcdOp::OwnerConfirm, Txn::new().when([is_same]).and_then([put])).await {
            Ok(answer) => Ok(answer.succeeded()),
            // The key expired with its lease.
            Err(Error::LeaseGone { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Like [`Self::owner_remove`], for up to [`KEYS_PER_TRANSACTION`] keys in two requests.
    pub async fn owners_remove(&self, shards: &[ShardId], node: &NodeId) -> Result<(), Error> {
        if shards.is_empty() {
            return Ok(());
        }
        let op = EtcdOp::OwnerRemove;
        let gets: Vec<TxnOp> = shards.iter().map(|shard| TxnOp::get(self.keys.owner(*shard), None)).collect();
        let answer = self.transact(op, Txn::new().and_then(gets)).await?;
        let found = answer.op_responses().into_iter().filter_map(|found| match found {
            TxnOpResponse::Get(mut found) => found.take_kvs().pop(),
            _ => None,
        });
        let ours: Vec<(Vec<u8>, i64)> = found
            .filter(|found| is_owned_by(found.value(), node))
            .map(|found| (found.key().to_vec(), found.mod_revision()))
            .collect();
        if ours.is_empty() {
            return Ok(());
        }
        // The delete names the revisions: a copy of this request that arrives late must not delete a later key.
        let unchanged =
            ours.iter().map(|(key, revision)| Compare::mod_revision(key.clone(), CompareOp::Equal, *revision));
        let deletes = ours.iter().map(|(key, _)| TxnOp::delete(key.clone(), None));
        let txn = Txn::new().when(unchanged.collect::<Vec<_>>()).and_then(deletes.collect::<Vec<_>>());
        if self.transact(op, txn).await?.succeeded() {
            return Ok(());
        }
        let singly = stream::iter(shards.to_vec()).map(|shard| self.owner_remove(shard, node));
        singly.buffer_unordered(SINGLE_REQUESTS).try_collect().await
    }

    /// Removes the owner key, which lets the next owner in. Does nothing when the key is not `node`'s.
    pub async fn owner_remove(&self, shard: ShardId, node: &NodeId) -> Result<(), Error> {
        let key = self.keys.owner(shard);
        self.record_remove(EtcdOp::OwnerRemove, &key, |value| is_owned_by(value, node)).await
    }
}

fn value(node: &NodeId, epoch: Option<Epoch>) -> Vec<u8> {
    let record = OwnerRecord { node: node.clone(), epoch };
    serde_json::to_vec(&record).expect("an owner record is text and a number")
}

fn owner_of(value: &[u8]) -> Option<NodeId> {
    serde_json::from_slice(value).ok().map(|record: OwnerRecord| record.node)
}

fn is_owned_by(value: &[u8], node: &NodeId) -> bool {
    owner_of(value).is_some_and(|owner| owner == *node)
}
