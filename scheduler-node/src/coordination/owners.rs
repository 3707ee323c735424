//! The right to take the fence of a shard: it belongs to the node that created the shard's owner key.

use common::{
    cluster::OwnerRecord,
    ids::{Epoch, NodeId, ShardId},
};
use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};

use super::{Coordination, Error, EtcdOp, LeaseId, records::Kept};

/// An owner key that belonged to this node when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerKey {
    pub shard: ShardId,
    lease: LeaseId,
    create_revision: i64,
}

impl Coordination {
    /// Creates the key, or finds that it is already `node`'s. `None`: the key is another node's.
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
        match self.record_keep(EtcdOp::OwnerCreate, key, value, lease, |value| is_owned_by(value, node)).await? {
            Kept::Ours { create_revision } => Ok(Some(OwnerKey { shard, lease, create_revision })),
            Kept::Anothers { .. } => Ok(None),
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

fn is_owned_by(value: &[u8], node: &NodeId) -> bool {
    serde_json::from_slice(value).is_ok_and(|record: OwnerRecord| record.node == *node)
}
