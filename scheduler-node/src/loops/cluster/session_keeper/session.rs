//! The session keeper's inputs and outputs.

use std::collections::BTreeSet;

use common::ids::{DatabaseName, NodeId, Term};
use tokio::time::Instant;

use crate::coordination::LeaseId;

/// The stores that this node can reach and those that it cannot, as the prober found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberFitness {
    pub unfit: BTreeSet<DatabaseName>,
    pub broker_unfit: bool,
    /// Databases that have answered since the node started; none before it knows what it needs to dispatch their tasks.
    pub used: BTreeSet<DatabaseName>,
}

impl MemberFitness {
    /// Whether the node can own shards of the database, by what the master is told.
    pub fn is_fit_for(&self, database: &DatabaseName) -> bool {
        self.used.contains(database) && !self.unfit.contains(database)
    }
}

/// This node's standing in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Not registered: etcd does not answer, or the lease was lost a moment ago.
    Joining,
    /// Another start of a node of this name is registered. Unless it is alive, its registration ends with its
    /// lease.
    NameTaken { by: Option<NodeId> },
    Joined {
        /// The lease that keys of this node can be attached to.
        lease: LeaseId,
        /// The node's place in the queue for master.
        term: Term,
    },
    /// The node has left the cluster by itself.
    Left,
}

/// The node's registration, as last read from etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub standing: SessionState,
    /// When the newest successful renewal was requested.
    pub last_renewal: Option<Instant>,
    /// Why etcd refuses to register the node, while it does.
    pub refusal: Option<String>,
}

impl Session {
    /// The lease and the place in the queue for master, while the node has joined.
    pub fn joined(&self) -> Option<(LeaseId, Term)> {
        match self.standing {
            SessionState::Joined { lease, term } => Some((lease, term)),
            SessionState::Joining | SessionState::NameTaken { .. } | SessionState::Left => None,
        }
    }

    pub fn lease(&self) -> Option<LeaseId> {
        self.joined().map(|(lease, _)| lease)
    }

    pub fn candidacy(&self) -> Option<Term> {
        self.joined().map(|(_, term)| term)
    }

    /// A session that has joined, for tests that need no etcd.
    #[cfg(test)]
    pub(crate) fn of_test() -> Self {
        let (lease, term) = (crate::coordination::tests::some_lease(), Term::from_revision(1));
        Self { standing: SessionState::Joined { lease, term }, last_renewal: None, refusal: None }
    }
}
