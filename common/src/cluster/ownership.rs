//! The actions of a node on its shards, given the fences it holds and its view of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    cluster::view::ClusterView,
    ids::{Epoch, NodeId, ShardId},
};

/// One step towards the assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Another node owns the shard: forget it at once. The fence has moved on or is about to; nothing is drained.
    Drop { shard: ShardId },
    /// Stop claiming, drain the attempts in flight, then delete the owner key, if it is still this node's.
    Release { shard: ShardId },
    /// The owner key is lost: create it again, with the same epoch, unless the fence is lost too.
    Reregister { shard: ShardId, epoch: Epoch },
    /// Create the owner key (or find that it is this node's), then take the fence.
    Acquire { shard: ShardId },
}

impl Action {
    pub const fn shard(self) -> ShardId {
        match self {
            Self::Drop { shard }
            | Self::Release { shard }
            | Self::Reregister { shard, .. }
            | Self::Acquire { shard } => shard,
        }
    }
}

/// The actions for `me` now, in order of shards.
///
/// `owned` has the shards whose fence the node holds, `unfit` those whose database it does not use or cannot reach.
/// Without a view there is no action: losing etcd stops nothing and starts nothing.
///
/// | owned | owner key | assigned to | action |
/// |---|---|---|---|
/// | yes | another's | any | Drop |
/// | yes | an earlier owner's | any | none; Release if I leave last |
/// | yes | mine | another that stays | Release |
/// | yes | mine | me, no node, or one that does not stay | none; Release if I leave last |
/// | yes | absent | another that stays | Release |
/// | yes | absent | me, no node, or one that does not stay | Reregister, once I am a member; Release if I leave last |
/// | no | absent or mine | me | Acquire, if I am a member, not leaving, and fit |
/// | no | mine | another, no node, or me while I am leaving | Release: the key of an abandoned acquire |
/// | no | another's | any | none: its owner releases it first, or its lease runs out |
/// | no | absent | another or no node | none |
///
/// An earlier owner's key has an epoch below that of the fence held. There are two cases, and the fence decides:
/// - etcd was restored from a backup. The key ends with its lease or with its node's release; until then no node could
///   take the shard over.
/// - This node has lost its own key, and has opened a shard in the target of its move before it knew that. The node of
///   the key has taken the fence in the source meanwhile, where the shard is closed. It drops that, and takes the fence
///   of the target or deletes the key.
///
/// A node "stays" if that very start of it is a member and is not leaving; an assignment to an earlier start is not
/// waited for. A node "leaves last" if it is leaving and no other member stays.
pub fn step(
    me: &NodeId,
    owned: &BTreeMap<ShardId, Epoch>,
    view: Option<&ClusterView>,
    unfit: &BTreeSet<ShardId>,
    leaving: bool,
) -> Vec<Action> {
    let Some(view) = view else { return Vec::new() };
    let scene = Scene { me, view, leaving, registered: view.member(me).is_some() };
    let assigned = view.assignment.iter().flat_map(|record| record.assignment.of(me));
    let keyed = view.owners.iter().filter(|(_, owner)| owner.node == *me).map(|(shard, _)| *shard);
    let concerned: BTreeSet<ShardId> = owned.keys().copied().chain(assigned).chain(keyed).collect();
    concerned
        .into_iter()
        .filter_map(|shard| match owned.get(&shard) {
            Some(epoch) => scene.about_owned(shard, *epoch),
            None => scene.about_other(shard, unfit.contains(&shard)),
        })
        .collect()
}

struct Scene<'a> {
    me: &'a NodeId,
    view: &'a ClusterView,
    leaving: bool,
    /// Whether the node is a member. Without a registration of its own, a node has no lease to put a key on.
    registered: bool,
}

#[derive(PartialEq)]
enum Key {
    Mine,
    Anothers,
    Absent,
}

impl Scene<'_> {
    fn key(&self, shard: ShardId) -> Key {
        match self.view.owners.get(&shard) {
            None => Key::Absent,
            Some(owner) if owner.node == *self.me => Key::Mine,
            Some(_) => Key::Anothers,
        }
    }

    /// Whether the key is from before the fence of `epoch` was taken. A key without an epoch is of a node that is about
    /// to take the fence.
    fn is_earlier(&self, shard: ShardId, epoch: Epoch) -> bool {
        self.view.owners.get(&shard).and_then(|owner| owner.epoch).is_some_and(|before| before < epoch)
    }

    fn about_owned(&self, shard: ShardId, epoch: Epoch) -> Option<Action> {
        let key = self.key(shard);
        let is_earlier = key == Key::Anothers && self.is_earlier(shard, epoch);
        if key == Key::Anothers && !is_earlier {
            return Some(Action::Drop { shard });
        }
        let hands_over = self.is_for_another(shard) && !is_earlier;
        if hands_over || (self.leaving && !self.anyone_stays()) {
            return Some(Action::Release { shard });
        }
        (key == Key::Absent && self.registered).then_some(Action::Reregister { shard, epoch })
    }

    fn about_other(&self, shard: ShardId, unfit: bool) -> Option<Action> {
        let key = self.key(shard);
        if key == Key::Anothers {
            return None;
        }
        let wanted = self.view.assigned(shard) == Some(self.me) && !self.leaving;
        if wanted {
            return (self.registered && !unfit).then_some(Action::Acquire { shard });
        }
        (key == Key::Mine).then_some(Action::Release { shard })
    }

    /// Whether the shard is assigned to another node that is a member and stays.
    fn is_for_another(&self, shard: ShardId) -> bool {
        self.view.assigned(shard).is_some_and(|node| node != self.me && self.stays(node))
    }

    fn stays(&self, node: &NodeId) -> bool {
        self.view.member(node).is_some_and(|member| !member.leaving)
    }

    fn anyone_stays(&self) -> bool {
        self.view.members.values().any(|member| member.node != *self.me && !member.leaving)
    }
}

#[cfg(test)]
pub(crate) mod scenes;
#[cfg(test)]
mod tests;
