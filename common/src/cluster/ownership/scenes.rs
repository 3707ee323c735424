//! Scenes for the tests of ownership.

use uuid::Uuid;

use crate::{
    cluster::view::{AssignmentRecord, ClusterView, Member, OwnerRecord},
    ids::{Epoch, Incarnation, NodeId, NodeName, ShardId, Term},
    shard::Assignment,
    time::UnixMicros,
};

pub(crate) const SHARD: ShardId = ShardId::new(0);

pub(crate) fn node(name: &str) -> NodeId {
    NodeId { name: NodeName::new(name), incarnation: Incarnation::new(Uuid::from_u128(1)) }
}

pub(crate) fn me() -> NodeId {
    node("me")
}

pub(crate) fn member(name: &str) -> Member {
    Member {
        node: node(name),
        url: None,
        leaving: false,
        unfit: [].into(),
        databases: None,
        broker_unfit: false,
        presence: true,
        version: "0.1.0".to_owned(),
        started_at: UnixMicros::new(0),
    }
}

pub(crate) fn view_of(names: &[&str]) -> ClusterView {
    let members = names.iter().map(|name| (NodeName::new(name), member(name))).collect();
    ClusterView { members, ..ClusterView::default() }
}

pub(crate) fn assign(view: &mut ClusterView, owners: Vec<Option<NodeId>>) {
    let assignment = Assignment { owners };
    view.assignment = Some(AssignmentRecord { term: Term::from_revision(1), assignment });
}

/// The epoch of the key is above those that the nodes of a scene hold.
pub(crate) fn own(view: &mut ClusterView, shard: ShardId, owner: NodeId) {
    own_since(view, shard, owner, Some(Epoch::from_store(5)));
}

pub(crate) fn own_since(view: &mut ClusterView, shard: ShardId, node: NodeId, epoch: Option<Epoch>) {
    view.owners.insert(shard, OwnerRecord { node, epoch });
}
