//! What the session keeper is told, and what it tells.

use std::collections::BTreeSet;

use common::ids::{DatabaseName, NodeId, Term};
use tokio::time::Instant;

use crate::coordination::LeaseId;

/// What this node cannot reach, as whoever tries to reach it has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fitness {
    pub unfit: BTreeSet<DatabaseName>,
    pub broker_unfit: bool,
}

/// Where this node stands in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not registered: etcd does not answer, or the lease was lost a moment ago.
    Joining,
    /// Another start of a node of this name is registered. It goes when its lease runs out, unless it is alive.
    NameTaken {
        by: Option<NodeId>,
    },
    Joined,
    /// Gone of its own will.
    Left,
}

/// The node's registration, as last heard from etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub standing: Standing,
    /// What keys can be put on. Present only while joined.
    pub lease: Option<LeaseId>,
    /// The node's place in the queue for master.
    pub candidacy: Option<Term>,
    /// When the newest renewal that succeeded was asked for.
    pub last_renewal: Option<Instant>,
}
