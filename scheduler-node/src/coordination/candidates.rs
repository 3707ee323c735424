//! The queue for master. The node whose key is oldest leads; the revision that created the key is the node's term.

use common::ids::{NodeId, Term};

use super::{Coordination, Error, EtcdOp, LeaseId, records::Kept};

impl Coordination {
    /// Queues up, or finds the node's place. A lease has one place and keeps it as long as it lives.
    pub async fn candidate_put(&self, node: &NodeId, lease: LeaseId) -> Result<Term, Error> {
        let value = serde_json::to_vec(node).expect("a node id is plain text");
        let op = EtcdOp::CandidatePut;
        match self.record_keep(op, self.keys.candidate(lease), value, lease, |_| true).await? {
            Kept::Ours { create_revision } => Ok(Term::from_revision(create_revision)),
            Kept::Anothers { .. } => unreachable!("the key of our own lease is ours, whatever its value"),
        }
    }

    /// Resigns as master, or leaves the queue.
    pub async fn candidate_remove(&self, lease: LeaseId) -> Result<(), Error> {
        self.record_remove(EtcdOp::CandidateRemove, &self.keys.candidate(lease), |_| true).await
    }
}
