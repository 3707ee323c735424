//! The record of the cluster and the realm that the prefix belongs to.

use common::{cluster::realm::RealmRecord, ids::ClusterId};
use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use super::{
    Coordination, Error, EtcdOp,
    records::{Seen, found},
};

/// Why a node must not join under a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the prefix `{prefix}` belongs to cluster {found}, and the databases to cluster {expected}: set `etcd.prefix` to a \
     prefix of its own for each cluster; if the other cluster is gone, delete the key `{prefix}/cluster`"
)]
pub struct ForeignPrefix {
    pub prefix: String,
    pub found: ClusterId,
    pub expected: ClusterId,
}

impl Coordination {
    /// Puts `wanted` if there is no record, and returns the one that is there then. Of two nodes that put one at the
    /// same time, both return the first.
    pub async fn realm_keep(&self, wanted: &RealmRecord) -> Result<RealmRecord, Error> {
        let op = EtcdOp::RealmKeep;
        let key = self.keys.realm();
        let seen = self.record_read(op, &key).await?;
        if let Some(record) = seen.as_ref().and_then(read) {
            return Ok(record);
        }
        // A value that cannot be parsed is no valid record and is overwritten.
        let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, seen.map_or(0, |seen| seen.mod_revision));
        let value = serde_json::to_vec(wanted).expect("ids are plain text");
        let txn = Txn::new()
            .when([unchanged])
            .and_then([TxnOp::put(key.clone(), value, None)])
            .or_else([TxnOp::get(key, None)]);
        let answer = self.transact(op, txn).await?;
        if answer.succeeded() {
            return Ok(*wanted);
        }
        let record = found(&answer).and_then(|found| serde_json::from_slice(found.value()).ok());
        record.ok_or(Error::Contended { op })
    }

    /// The record, read from the leader of etcd.
    pub async fn realm_read(&self) -> Result<Option<RealmRecord>, Error> {
        let seen = self.record_read(EtcdOp::RealmRead, &self.keys.realm()).await?;
        Ok(seen.as_ref().and_then(read))
    }

    /// Why the nodes of `cluster` must write nothing under the prefix. `None`: it is theirs, or free.
    pub async fn realm_refusal(&self, cluster: ClusterId) -> Result<Option<ForeignPrefix>, Error> {
        let prefix = self.keys.prefix().trim_end_matches('/').to_owned();
        let foreign = self.realm_read().await?.filter(|found| found.cluster != cluster);
        Ok(foreign.map(|found| ForeignPrefix { prefix, found: found.cluster, expected: cluster }))
    }
}

fn read(seen: &Seen) -> Option<RealmRecord> {
    serde_json::from_slice(&seen.value).ok()
}
