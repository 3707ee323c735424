//! The queue for master: who created his key first leads, and the revision that created it is his term.

use common::ids::{NodeId, Term};

use super::{Coordination, Error, EtcdOp, LeaseId, records::Kept};

impl Coordination {
    /// Queues up, or finds the place it has. A lease has one place, so it keeps it as long as it lives.
    pub async fn candidate_put(&self, node: &NodeId, lease: LeaseId) -> Result<Term, Error> {
        let value = serde_json::to_vec(node).expect("a node id is plain text");
        let op = EtcdOp::CandidatePut;
        match self.record_keep(op, self.keys.candidate(lease), value, lease, |_| true).await? {
            Kept::Ours { create_revision } => Ok(Term::from_revision(create_revision)),
            Kept::Anothers { .. } => unreachable!("the key of our own lease is ours whatever it says"),
        }
    }

    /// Resigns, or leaves the queue.
    pub async fn candidate_remove(&self, lease: LeaseId) -> Result<(), Error> {
        self.record_remove(EtcdOp::CandidateRemove, &self.keys.candidate(lease), |_| true).await
    }
}
