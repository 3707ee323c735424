//! The end of another node's lease, before it runs out by itself.
//!
//! A lease belongs to one start of a node, and its number is never used again. Revoking the lease that was read with a
//! start's record therefore removes the keys of that start only, even when another start has registered meanwhile.

use common::{
    cluster::Member,
    ids::{NodeId, NodeName, Term},
};
use etcd_client::{Txn, TxnOp};

use super::{Coordination, Error, EtcdOp, LeaseId, records::found, session::registered_by};

/// A node's registration, as read from the leader of etcd.
#[derive(Clone, Debug)]
pub struct Registration {
    pub member: Member,
    pub lease: LeaseId,
}

/// The outcome of an attempt to revoke a member's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    Done,
    /// That start of the node is not registered any more.
    Absent,
    /// Not revoked: the asking node no longer stands as candidate of that term.
    Deposed,
}

impl Coordination {
    /// The registration under this name. `None`: there is none, it cannot be parsed, or it is on no lease.
    pub async fn member_read(&self, name: &NodeName) -> Result<Option<Registration>, Error> {
        let seen = self.record_read(EtcdOp::MemberRead, &self.keys.node(name)).await?;
        Ok(seen.and_then(|seen| {
            let member = serde_json::from_slice(&seen.value).ok()?;
            Some(Registration { member, lease: LeaseId::of_key(seen.lease)? })
        }))
    }

    /// Revokes the lease of exactly this start of a node, on behalf of the candidate of `term` on `lease`.
    ///
    /// The read compares the term; etcd cannot revoke in a transaction. A candidate that is deposed between the two
    /// revokes a lease that it was allowed to revoke a moment before.
    pub async fn member_revoke(&self, of: &NodeId, term: Term, lease: LeaseId) -> Result<Revocation, Error> {
        let read = TxnOp::get(self.keys.node(&of.name), None);
        let txn = Txn::new().when([self.is_candidate(term, lease)]).and_then([read]);
        let answer = self.transact(EtcdOp::MemberRevoke, txn).await?;
        if !answer.succeeded() {
            return Ok(Revocation::Deposed);
        }
        let registered = found(&answer).filter(|found| registered_by(found.value()).as_ref() == Some(of));
        let Some(lease) = registered.and_then(|found| LeaseId::of_key(found.lease())) else {
            return Ok(Revocation::Absent);
        };
        self.lease_revoke(lease).await?;
        Ok(Revocation::Done)
    }
}
