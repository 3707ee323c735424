//! What a node has to do about its shards, given what it owns and what the cluster looks like.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    cluster::view::ClusterView,
    ids::{Epoch, NodeId, ShardId},
};

/// One step towards the assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Another took it: forget it at once. The fence has moved on or is about to; nothing is drained.
    Drop { shard: ShardId },
    /// Stop claiming, drain what is in flight, then delete the owner key, if it is still ours.
    Release { shard: ShardId },
    /// The owner key is lost, the shard is not: create the key again, with the epoch as it is.
    Reregister { shard: ShardId, epoch: Epoch },
    /// Create the owner key (or find it is ours), then take the fence.
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

/// What `me` has to do now, in order of shards.
///
/// `owned` is what it holds the fence of, `unfit` the shards whose database it cannot reach. No view, no action: losing etcd
/// stops nothing and starts nothing.
///
/// | owned | owner key | assigned to | action |
/// |---|---|---|---|
/// | yes | another's | any | Drop |
/// | yes | mine | another who is there and stays | Release |
/// | yes | mine | me, nobody, or one who is gone or going | none; Release if I am leaving and nobody stays |
/// | yes | absent | another who is there and stays | Release |
/// | yes | absent | me, nobody, or one who is gone or going | Reregister, once I am a member; Release if I am leaving and nobody stays |
/// | no | absent or mine | me | Acquire, if I am a member, not leaving, and fit |
/// | no | mine | another, nobody, or me while I am leaving | Release: the key of an acquire that was given up |
/// | no | another's | any | none: it is released first, or its lease runs out |
/// | no | absent | another or nobody | none |
///
/// "There" means that very start of the node is a member; an assignment to an earlier start is not waited for.
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
    /// Without a registration of its own a node holds no lease to put a key on.
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

    fn about_owned(&self, shard: ShardId, epoch: Epoch) -> Option<Action> {
        let key = self.key(shard);
        if key == Key::Anothers {
            return Some(Action::Drop { shard });
        }
        if self.is_for_another(shard) || (self.leaving && !self.anyone_stays()) {
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

    /// Assigned to another node that is there and stays.
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
