//! The nodes that operators have drained. One key holds all of them: of two operators who drain the last two
//! nodes at the same time, one finds the key changed and has to read it again.

use std::collections::BTreeSet;

use common::{
    cluster::{Member, drain::Roll},
    ids::NodeId,
};
use etcd_client::{Compare, CompareOp, GetOptions, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse};

use super::{Coordination, Error, EtcdOp};

/// The registered nodes and the drained ones, read from the leader of etcd at one revision.
#[derive(Clone, Debug)]
pub struct Drained {
    pub roll: Roll,
    /// The revision of the key of drained nodes. 0: there is no key.
    mod_revision: i64,
}

impl Coordination {
    pub async fn drained_read(&self) -> Result<Drained, Error> {
        let nodes = TxnOp::get(self.keys.nodes(), Some(GetOptions::new().with_prefix()));
        let txn = Txn::new().and_then([TxnOp::get(self.keys.drained(), None), nodes]);
        let answer = self.transact(EtcdOp::DrainRead, txn).await?;
        let mut parts = answer.op_responses().into_iter().filter_map(|part| match part {
            TxnOpResponse::Get(get) => Some(get),
            _ => None,
        });
        let drained = parts.next().and_then(|mut get: GetResponse| get.take_kvs().pop());
        let nodes = parts.next().map(|mut get| get.take_kvs()).unwrap_or_default();
        // A key on no lease, and a value that cannot be parsed, count as absent, as in the mirror.
        let leased = nodes.into_iter().filter(|found| found.lease() != 0);
        let member = |found: KeyValue| serde_json::from_slice::<Member>(found.value()).ok();
        let members = leased.filter_map(member).map(|member| (member.node.name.clone(), member)).collect();
        let starts = drained.as_ref().and_then(|found| serde_json::from_slice(found.value()).ok()).unwrap_or_default();
        let mod_revision = drained.map_or(0, |found| found.mod_revision());
        Ok(Drained { roll: Roll { members, drained: starts }, mod_revision })
    }

    /// Writes the drained starts, unless the key has changed since it was read. Returns the revision of the write.
    pub async fn drained_write(&self, read: &Drained, next: &BTreeSet<NodeId>) -> Result<Option<i64>, Error> {
        let key = self.keys.drained();
        let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, read.mod_revision);
        let value = serde_json::to_vec(next).expect("node ids are plain text");
        let txn = Txn::new().when([unchanged]).and_then([TxnOp::put(key, value, None)]);
        let answer = self.transact(EtcdOp::DrainWrite, txn).await?;
        Ok(answer.header().map(|header| header.revision()).filter(|_| answer.succeeded()))
    }
}
