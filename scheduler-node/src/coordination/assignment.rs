//! The assignment of shards to nodes: written by the master, under its term.

use common::{cluster::AssignmentRecord, ids::Term};
use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use super::{Coordination, Error, EtcdOp, LeaseId};

/// The outcome of the master's write of an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssignmentWrite {
    Done,
    /// Not written: the writer is no longer master of that term.
    Deposed,
    /// Not written: the assignment is no longer the one on which the decision was based.
    Moved,
}

impl Coordination {
    /// Replaces `previous`, if that still stands and `lease` still holds the term under which `next` was decided.
    pub async fn assignment_write(
        &self,
        previous: Option<&AssignmentRecord>,
        next: &AssignmentRecord,
        lease: LeaseId,
    ) -> Result<AssignmentWrite, Error> {
        let op = EtcdOp::AssignmentWrite;
        let key = self.keys.assignment();
        let seen = self.record_read(op, &key).await?;
        // A value that cannot be parsed is no valid assignment and is overwritten.
        let standing: Option<AssignmentRecord> =
            seen.as_ref().and_then(|seen| serde_json::from_slice(&seen.value).ok());
        if standing.as_ref() == Some(next) {
            return Ok(AssignmentWrite::Done);
        }
        if standing.as_ref() != previous {
            return Ok(AssignmentWrite::Moved);
        }
        let value = serde_json::to_vec(next).expect("an assignment lists its nodes as text");
        let unchanged = seen.map_or(0, |seen| seen.mod_revision);
        let txn = Txn::new()
            .when([
                self.is_candidate(next.term, lease),
                Compare::mod_revision(key.clone(), CompareOp::Equal, unchanged),
            ])
            .and_then([TxnOp::put(key.clone(), value, None)]);
        if self.transact(op, txn).await?.succeeded() {
            return Ok(AssignmentWrite::Done);
        }
        self.why_refused(next, lease).await
    }

    /// The present assignment, read from the leader of etcd.
    pub async fn assignment_read(&self) -> Result<Option<AssignmentRecord>, Error> {
        let seen = self.record_read(EtcdOp::AssignmentRead, &self.keys.assignment()).await?;
        Ok(seen.and_then(|seen| serde_json::from_slice(&seen.value).ok()))
    }

    /// The condition that the candidate on `lease` still stands, with `term`.
    pub(super) fn is_candidate(&self, term: Term, lease: LeaseId) -> Compare {
        Compare::create_revision(self.keys.candidate(lease), CompareOp::Equal, term.revision())
    }

    async fn why_refused(&self, next: &AssignmentRecord, lease: LeaseId) -> Result<AssignmentWrite, Error> {
        // An earlier copy of this request, whose answer was lost, may have written it.
        if self.assignment_read().await?.as_ref() == Some(next) {
            return Ok(AssignmentWrite::Done);
        }
        let txn = Txn::new().when([self.is_candidate(next.term, lease)]);
        let is_master = self.transact(EtcdOp::AssignmentWrite, txn).await?.succeeded();
        Ok(if is_master { AssignmentWrite::Moved } else { AssignmentWrite::Deposed })
    }
}
