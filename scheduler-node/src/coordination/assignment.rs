//! Which node should own which shard: written by the master, under its term.

use common::{cluster::AssignmentRecord, ids::Term};
use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use super::{Coordination, Error, EtcdOp, LeaseId};

/// What became of an assignment that the master wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Done,
    /// Not written: the writer is no longer master of that term.
    Deposed,
    /// Not written: it no longer says what the decision was based on.
    Moved,
}

impl Coordination {
    /// Replaces `previous`, if that still stands and `lease` still holds the term that `next` was decided under.
    pub async fn assignment_write(
        &self,
        previous: Option<&AssignmentRecord>,
        next: &AssignmentRecord,
        lease: LeaseId,
    ) -> Result<Written, Error> {
        let op = EtcdOp::AssignmentWrite;
        let key = self.keys.assignment();
        let seen = self.record_read(op, &key).await?;
        // What cannot be read is nobody's decision and is written over.
        let standing: Option<AssignmentRecord> =
            seen.as_ref().and_then(|seen| serde_json::from_slice(&seen.value).ok());
        if standing.as_ref() == Some(next) {
            return Ok(Written::Done);
        }
        if standing.as_ref() != previous {
            return Ok(Written::Moved);
        }
        let value = serde_json::to_vec(next).expect("an assignment lists its nodes as text");
        let unchanged = seen.map_or(0, |seen| seen.mod_revision);
        let txn = Txn::new()
            .when([self.is_master(next.term, lease), Compare::mod_revision(key.clone(), CompareOp::Equal, unchanged)])
            .and_then([TxnOp::put(key.clone(), value, None)]);
        if self.transact(op, txn).await?.succeeded() {
            return Ok(Written::Done);
        }
        self.why_refused(next, lease).await
    }

    /// The assignment as the leader of etcd has it now.
    pub async fn assignment_read(&self) -> Result<Option<AssignmentRecord>, Error> {
        let seen = self.record_read(EtcdOp::AssignmentRead, &self.keys.assignment()).await?;
        Ok(seen.and_then(|seen| serde_json::from_slice(&seen.value).ok()))
    }

    fn is_master(&self, term: Term, lease: LeaseId) -> Compare {
        Compare::create_revision(self.keys.candidate(lease), CompareOp::Equal, term.revision())
    }

    async fn why_refused(&self, next: &AssignmentRecord, lease: LeaseId) -> Result<Written, Error> {
        // The first copy of a request whose answer was lost may have done it.
        if self.assignment_read().await?.as_ref() == Some(next) {
            return Ok(Written::Done);
        }
        let txn = Txn::new().when([self.is_master(next.term, lease)]);
        let is_master = self.transact(EtcdOp::AssignmentWrite, txn).await?.succeeded();
        Ok(if is_master { Written::Moved } else { Written::Deposed })
    }
}
