//! The members, the master, the assignment and the owner keys: one consistent picture of what etcd holds.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{DatabaseIndex, DatabaseName, Epoch, NodeId, NodeName, ShardId, Term},
    shard::{
        assign::{Assignment, AssignmentProblem, ShardGroup},
        map::ShardMap,
    },
    time::UnixMicros,
};

/// Everything under the cluster's prefix as of one revision. It is a hint, never a permission: the fence decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterView {
    pub revision: i64,
    pub members: BTreeMap<NodeName, Member>,
    /// The starts of nodes that an operator has drained. An entry for a start that has ended has no effect.
    pub drained: BTreeSet<NodeId>,
    /// The candidates by term, so the master is the first.
    pub candidates: Vec<Candidate>,
    pub assignment: Option<AssignmentRecord>,
    pub owners: BTreeMap<ShardId, OwnerRecord>,
}

/// A node's record of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub node: NodeId,
    /// The URL of its HTTP interface.
    pub url: Option<String>,
    /// The node is leaving: it gives up its shards and takes no new ones.
    #[serde(default)]
    pub leaving: bool,
    /// The databases that it cannot reach.
    #[serde(default)]
    pub unfit: BTreeSet<DatabaseName>,
    /// The databases that it has used since it started; none before it has read the queues and the keys of receipts.
    /// Version 0.1.0 does not say.
    #[serde(default)]
    pub databases: Option<BTreeSet<DatabaseName>>,
    /// Whether it cannot reach the broker.
    #[serde(default)]
    pub broker_unfit: bool,
    /// A session of the first database holds its presence lock. Earlier versions take none.
    #[serde(default)]
    pub presence: bool,
    #[serde(default)]
    pub version: String,
    pub started_at: UnixMicros,
}

impl Member {
    /// Whether the node could own shards of that database.
    pub(crate) fn is_fit_for(&self, database: &DatabaseName) -> bool {
        let is_used = self.databases.as_ref().is_none_or(|databases| databases.contains(database));
        !self.leaving && !self.broker_unfit && is_used && !self.unfit.contains(database)
    }
}

/// A node in the queue for master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The create revision of its key, which is its term once it is master.
    pub term: Term,
    pub node: NodeId,
}

/// Which node should own which shard, and the term of the master that decided it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignmentRecord {
    pub term: Term,
    pub assignment: Assignment,
}

/// The node that has put its owner key on a shard. `epoch` is missing until its fence is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRecord {
    pub node: NodeId,
    pub epoch: Option<Epoch>,
}

impl ClusterView {
    /// The candidate that came first.
    pub fn master(&self) -> Option<&Candidate> {
        self.candidates.first()
    }

    /// The member that is exactly this start of the node.
    pub fn member(&self, node: &NodeId) -> Option<&Member> {
        self.members.get(&node.name).filter(|member| member.node == *node)
    }

    /// Why no shard may come to the database yet: a member does not use it, or does not say. The shard would be out of
    /// its reach.
    pub fn not_used_by(&self, database: &DatabaseName) -> Option<String> {
        let uses = |member: &Member| member.databases.as_ref().is_some_and(|databases| databases.contains(database));
        let without: Vec<&str> =
            self.members.iter().filter(|(_, member)| !uses(member)).map(|(name, _)| name.as_str()).collect();
        (!without.is_empty()).then(|| {
            format!(
                "database `{database}` receives no shards before every node uses it; these do not: {}. Each must have it \
                 in its configuration, and reach it and the first database; look at their logs",
                without.join(", ")
            )
        })
    }

    /// Whether a member reaches the database.
    pub fn is_reached(&self, database: &DatabaseName) -> bool {
        self.members.values().any(|member| !member.unfit.contains(database))
    }

    /// The node that should own `shard`.
    pub(crate) fn assigned(&self, shard: ShardId) -> Option<&NodeId> {
        self.assignment.as_ref()?.assignment.owner(shard)
    }

    /// The problem that the master has to solve, as far as it knows the places of the shards. `databases`: all that it
    /// uses, in its order.
    ///
    /// A shard without a place is in one of the databases that the master has not read since it started, or that its
    /// configuration lacks, although other members may reach them. Those that reach all of these can own it.
    pub fn problem(&self, map: &ShardMap, databases: &[DatabaseName], shard_count: u16) -> AssignmentProblem {
        let mut divided = map.divided(databases);
        let closed = self.take_closed(map, databases, &mut divided);
        let mut problem = self.problem_of(&divided);
        problem.groups.extend(closed);
        let unplaced: BTreeSet<ShardId> =
            (0..shard_count).map(ShardId::new).filter(|shard| map.of(*shard).is_none()).collect();
        let mut unread = map.unread(databases);
        unread.extend(self.foreign(databases));
        if let Some(first) = unread.first().filter(|_| !unplaced.is_empty()) {
            let (database, fit) = ((*first).clone(), self.fit_for(&unread));
            problem.groups.push(ShardGroup { database, shards: unplaced, fit });
        }
        problem
    }

    pub(super) fn problem_of(&self, databases: &[(DatabaseName, BTreeSet<ShardId>)]) -> AssignmentProblem {
        let group = |(database, shards): &(DatabaseName, BTreeSet<ShardId>)| ShardGroup {
            database: database.clone(),
            shards: shards.clone(),
            fit: self.fit_for(&[database]),
        };
        AssignmentProblem { groups: databases.iter().map(group).collect() }
    }

    /// The databases that members use and reach, and that the master does not use, as one whose configuration lacks a
    /// section.
    fn foreign(&self, databases: &[DatabaseName]) -> BTreeSet<&DatabaseName> {
        let reached = self
            .members
            .values()
            .flat_map(|member| member.databases.iter().flatten().filter(move |name| !member.unfit.contains(*name)));
        reached.filter(|name| !databases.contains(name)).collect()
    }

    /// Takes the closed shards out of those of their sources. Returns those that need another owner, if there are any.
    ///
    /// The map shows a shard as closed in its source for as long as the master cannot read the database that the shard
    /// has moved to, or does not know it. So an owner should reach all databases that any member reaches, and one that
    /// does keeps the shard. If no member does, closed shards count as in their sources.
    fn take_closed(
        &self,
        map: &ShardMap,
        databases: &[DatabaseName],
        divided: &mut [(DatabaseName, BTreeSet<ShardId>)],
    ) -> Option<ShardGroup> {
        // No shard moves to a database that some member does not use. A node that has just started uses none. A foreign
        // database may have received shards before a member came that lacks it, such as the master, so it counts.
        let uses = |member: &Member, database: &DatabaseName| {
            member.databases.as_ref().is_some_and(|used| used.is_empty() || used.contains(database))
        };
        let may_have = |database: &&DatabaseName| {
            self.is_reached(database) && self.members.values().all(|member| uses(member, database))
        };
        let mut reached: Vec<&DatabaseName> = databases.iter().filter(may_have).collect();
        reached.extend(self.foreign(databases));
        let (database, fit) = ((*reached.first()?).clone(), self.fit_for(&reached));
        if fit.is_empty() {
            return None;
        }
        // After a loss of all of etcd, the owner keys are there before the next assignment.
        let by_key = |shard: ShardId| self.owners.get(&shard).map(|record| &record.node);
        let mut shards = BTreeSet::new();
        for (index, (_, of_source)) in divided.iter_mut().enumerate() {
            for shard in map.closed(DatabaseIndex::new(index)) {
                of_source.remove(&shard);
                let owner = if self.assignment.is_some() { self.assigned(shard) } else { by_key(shard) };
                if owner.is_none_or(|owner| !fit.contains(owner)) {
                    shards.insert(shard);
                }
            }
        }
        (!shards.is_empty()).then_some(ShardGroup { database, shards, fit })
    }

    /// The members that can own shards of all of `databases`. Drained members are left out, unless there are no others:
    /// the shards must never be without an owner.
    fn fit_for(&self, databases: &[&DatabaseName]) -> BTreeSet<NodeId> {
        let is_fit = |member: &&Member| databases.iter().all(|database| member.is_fit_for(database));
        let fit = || self.members.values().filter(is_fit).map(|member| &member.node);
        let staying: BTreeSet<NodeId> = fit().filter(|node| !self.drained.contains(*node)).cloned().collect();
        if staying.is_empty() { fit().cloned().collect() } else { staying }
    }
}

#[cfg(test)]
mod tests;
