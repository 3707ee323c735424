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
    /// Databases that have answered since the node started.
    pub used: BTreeSet<DatabaseName>,
}

/// This node's standing in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Not registered: etcd does not answer, or the lease was lost a moment ago.
    Joining,
    /// Another start of a node of this name is registered. Unless it is alive, its registration ends with its
    /// lease.
    NameTaken {
        by: Option<NodeId>,
    },
    Joined,
    /// The node has left the cluster by itself.
    Left,
}

/// The node's registration, as last read from etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub standing: SessionState,
    /// The lease that keys of this node can be attached to. Present only while joined.
    pub lease: Option<LeaseId>,
    /// The node's place in the queue for master.
    pub candidacy: Option<Term>,
    /// When the newest successful renewal was requested.
    pub last_renewal: Option<Instant>,
}
