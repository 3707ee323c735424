//! The cluster in `GET /v1/cluster`: the intended state beside the actual one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    cluster::ClusterView,
    ids::{DatabaseName, Epoch, Incarnation, NodeId, NodeName, ShardId, Term},
    time::UnixMicros,
};

/// The cluster as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterReport {
    /// The node that answers.
    pub node: NodeId,
    pub nodes: Vec<NodeReport>,
    pub master: Option<MasterReport>,
    pub shards: Vec<ShardReport>,
    /// Shards whose last owner is no member. No node dispatches them, unless that owner still runs.
    #[serde(default)]
    pub shards_orphaned: usize,
    /// Set after too many nodes vanished together: the master reassigns nothing until then.
    pub frozen_until: Option<UnixMicros>,
    pub lag: Lag,
    /// The parts that could not be read, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    pub name: NodeName,
    pub incarnation: Incarnation,
    pub url: Option<String>,
    pub leaving: bool,
    /// An operator has drained the node: it owns no shards until the drain is undone or the node restarts.
    #[serde(default)]
    pub drained: bool,
    /// The databases that the node cannot reach.
    pub unfit: BTreeSet<DatabaseName>,
    pub broker_unfit: bool,
    pub version: String,
    pub started_at: UnixMicros,
    pub shards_owned: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterReport {
    pub name: NodeName,
    pub term: Term,
}

/// One shard. `assigned` and `owner` differ while the shard moves, or when something is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardReport {
    pub shard: ShardId,
    pub database: DatabaseName,
    pub assigned: Option<NodeName>,
    pub owner: Option<NodeName>,
    pub epoch: Option<Epoch>,
}

/// How far the cluster is behind. Absent: this node does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lag {
    /// The time since etcd last confirmed the view shown here.
    pub view_age_ms: Option<i64>,
    /// How long the most overdue task on this node's shards has been due.
    pub oldest_overdue_ms: Option<i64>,
}

impl ClusterReport {
    /// The report of `view`, without any lag. Without a view, this node has not reached etcd yet.
    pub fn of(
        me: &NodeId,
        view: Option<&ClusterView>,
        databases: &[(DatabaseName, BTreeSet<ShardId>)],
        frozen_until: Option<UnixMicros>,
    ) -> Self {
        let nothing = ClusterView::default();
        let view = view.unwrap_or(&nothing);
        let mut shards: Vec<ShardReport> = databases
            .iter()
            .flat_map(|(database, shards)| shards.iter().map(move |shard| shard_report(view, database, *shard)))
            .collect();
        shards.sort_by_key(|report| report.shard);
        Self {
            node: me.clone(),
            nodes: node_reports(view),
            master: view.master().map(|master| MasterReport { name: master.node.name.clone(), term: master.term }),
            shards,
            shards_orphaned: 0,
            frozen_until,
            lag: Lag::default(),
            notes: Vec::new(),
        }
    }

    /// What a person should know beside the tables, a sentence each.
    pub fn remarks(&self) -> Vec<String> {
        let count = self.shards_orphaned;
        let (have, them) = if count == 1 { ("shard has", "it") } else { ("shards have", "them") };
        let orphaned = format!(
            "{count} {have} a last owner that is not a member of the cluster, as far as this node knows from etcd; unless it still runs, no node dispatches {them}"
        );
        self.notes.iter().cloned().chain((count > 0).then_some(orphaned)).collect()
    }
}

fn shard_report(view: &ClusterView, database: &DatabaseName, shard: ShardId) -> ShardReport {
    let owner = view.owners.get(&shard);
    ShardReport {
        shard,
        database: database.clone(),
        assigned: view.assigned(shard).map(|node| node.name.clone()),
        owner: owner.map(|owner| owner.node.name.clone()),
        epoch: owner.and_then(|owner| owner.epoch),
    }
}

fn node_reports(view: &ClusterView) -> Vec<NodeReport> {
    let mut owned: BTreeMap<&NodeId, usize> = BTreeMap::new();
    for owner in view.owners.values() {
        *owned.entry(&owner.node).or_default() += 1;
    }
    let report = |member: &crate::cluster::Member| NodeReport {
        name: member.node.name.clone(),
        incarnation: member.node.incarnation,
        url: member.url.clone(),
        leaving: member.leaving,
        drained: view.drained.contains(&member.node),
        unfit: member.unfit.clone(),
        broker_unfit: member.broker_unfit,
        version: member.version.clone(),
        started_at: member.started_at,
        shards_owned: owned.get(&member.node).copied().unwrap_or(0),
    };
    view.members.values().map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{
        Candidate,
        ownership::scenes::{assign, me, node, own, view_of},
    };

    #[test]
    fn a_report_puts_what_is_beside_what_is_intended() {
        let mut view = view_of(&["me", "other"]);
        assign(&mut view, vec![Some(me()), Some(node("other")), None]);
        own(&mut view, ShardId::new(0), node("other"));
        view.candidates = vec![Candidate { term: Term::from_revision(9), node: node("other") }];
        view.drained = [node("other")].into();
        let databases = [(DatabaseName::new("main"), (0..3).map(ShardId::new).collect())];
        let report = ClusterReport::of(&me(), Some(&view), &databases, Some(UnixMicros::new(5)));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["master"], serde_json::json!({"name": "other", "term": 9}));
        let first = serde_json::json!({"shard": 0, "database": "main", "assigned": "me", "owner": "other", "epoch": 5});
        assert_eq!(json["shards"][0], first);
        assert_eq!(
            (&json["shards"][1]["assigned"], &json["shards"][1]["owner"]),
            (&"other".into(), &serde_json::Value::Null)
        );
        let nodes: Vec<_> =
            report.nodes.iter().map(|node| (node.name.as_str(), node.shards_owned, node.drained)).collect();
        assert_eq!(nodes, [("me", 0, false), ("other", 1, true)]);
        assert_eq!(report.frozen_until, Some(UnixMicros::new(5)));
        let mut older = json.clone();
        older.as_object_mut().unwrap().remove("shards_orphaned");
        for json in [json, older] {
            assert_eq!(serde_json::from_value::<ClusterReport>(json).unwrap(), report);
        }
    }

    #[test]
    fn a_remark_counts_the_shards_whose_last_owner_is_no_member() {
        let remarks = |shards_orphaned| {
            let notes = vec!["a note".to_owned()];
            ClusterReport { shards_orphaned, notes, ..ClusterReport::of(&me(), None, &[], None) }.remarks()
        };
        assert_eq!(remarks(0), ["a note"]);
        for (count, shards) in [(1, "1 shard has "), (2, "2 shards have ")] {
            let remarks = remarks(count);
            assert!(remarks.len() == 2 && remarks[1].starts_with(shards), "{remarks:?}");
        }
    }

    #[test]
    fn before_etcd_is_reached_every_shard_is_shown_without_an_owner() {
        let databases = [(DatabaseName::new("main"), (0..2).map(ShardId::new).collect())];
        let report = ClusterReport::of(&me(), None, &databases, None);
        assert_eq!((report.nodes.len(), report.master, report.shards.len()), (0, None, 2));
        assert!(report.shards.iter().all(|shard| shard.owner.is_none() && shard.assigned.is_none()));
    }
}
