//! Who is alive, who leads, who should own what and who says he does: one consistent picture of what etcd holds.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{DatabaseName, Epoch, NodeId, NodeName, ShardId, Term},
    shard::{
        ShardRange,
        assign::{Assignment, Group, Problem},
    },
    time::UnixMicros,
};

/// Everything under the cluster's prefix as of one revision. A hint, never a permission: the fence decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterView {
    pub revision: i64,
    pub members: BTreeMap<NodeName, Member>,
    /// Starts of nodes that an operator has drained. One that has ended since drains nothing.
    pub drained: BTreeSet<NodeId>,
    /// By term, so the master is the first.
    pub candidates: Vec<Candidate>,
    pub assignment: Option<AssignmentRecord>,
    pub owners: BTreeMap<ShardId, OwnerRecord>,
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub node: NodeId,
    /// Where its HTTP interface is reached.
    #[serde(default)]
    pub url: Option<String>,
    /// On its way out: gives its shards up and takes no new ones.
    #[serde(default)]
    pub leaving: bool,
    /// Databases it cannot reach.
    #[serde(default)]
    pub unfit: BTreeSet<DatabaseName>,
    /// It cannot reach the broker.
    #[serde(default)]
    pub broker_unfit: bool,
    #[serde(default)]
    pub version: String,
    pub started_at: UnixMicros,
}

impl Member {
    /// Whether it could own shards of that database.
    pub fn is_fit_for(&self, database: &DatabaseName) -> bool {
        !self.leaving && !self.broker_unfit && !self.unfit.contains(database)
    }
}

/// One in the queue for master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The create revision of its key: its term, once it is master.
    pub term: Term,
    pub node: NodeId,
}

/// Which node should own which shard, and under which term that was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignmentRecord {
    pub term: Term,
    pub assignment: Assignment,
}

/// Which node says that it owns a shard. `epoch` is missing until its fence is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRecord {
    pub node: NodeId,
    #[serde(default)]
    pub epoch: Option<Epoch>,
}

impl ClusterView {
    /// The candidate that came first.
    pub fn master(&self) -> Option<&Candidate> {
        self.candidates.first()
    }

    /// The candidate right before `me`, the only one `me` has to watch. `None` when `me` is master, or not a candidate.
    pub fn predecessor(&self, me: &NodeId) -> Option<&Candidate> {
        let place = self.candidates.iter().position(|candidate| candidate.node == *me)?;
        self.candidates.get(place.checked_sub(1)?)
    }

    /// The member that is exactly this start of the node.
    pub fn member(&self, node: &NodeId) -> Option<&Member> {
        self.members.get(&node.name).filter(|member| member.node == *node)
    }

    /// The node that should own `shard`.
    pub fn assigned(&self, shard: ShardId) -> Option<&NodeId> {
        self.assignment.as_ref()?.assignment.owner(shard)
    }

    /// The question the master has to answer, given which database holds which shards.
    ///
    /// Drained members are not asked, unless a database has no others: its shards must never be without an owner.
    pub fn problem(&self, databases: &[(DatabaseName, ShardRange)]) -> Problem {
        let fit = |database: &DatabaseName| {
            let fit = || self.members.values().filter(|member| member.is_fit_for(database)).map(|member| &member.node);
            let staying: BTreeSet<NodeId> = fit().filter(|node| !self.drained.contains(*node)).cloned().collect();
            if staying.is_empty() { fit().cloned().collect() } else { staying }
        };
        let groups = databases
            .iter()
            .map(|(database, shards)| Group { database: database.clone(), shards: *shards, fit: fit(database) })
            .collect();
        Problem { groups }
    }
}

#[cfg(test)]
mod tests;
