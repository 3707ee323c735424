//! Which node should own which shard: a pure function of the fit nodes and of the previous assignment.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Serialize};

use crate::ids::{DatabaseName, NodeId, ShardId};

/// The nodes that could own shards, by database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssignmentProblem {
    pub groups: Vec<ShardGroup>,
}

/// The shards of one database, and the nodes that can reach it. Shards whose places are not known are a group, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardGroup {
    /// The first of those that may have the shards, where their places are not known or may be out of date.
    pub database: DatabaseName,
    pub shards: BTreeSet<ShardId>,
    pub fit: BTreeSet<NodeId>,
}

/// The owner that each shard should have. In JSON every node is spelled once:
/// `{"nodes": [...], "owners": [0, 0, 1, null]}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Compact", into = "Compact")]
pub struct Assignment {
    /// The owners, indexed by shard. `None`: no node was ever fit to own it.
    pub owners: Vec<Option<NodeId>>,
}

impl Assignment {
    pub fn owner(&self, shard: ShardId) -> Option<&NodeId> {
        self.owners.get(usize::from(shard.number()))?.as_ref()
    }

    /// The shards that `node` should own, ascending.
    pub fn of<'a>(&'a self, node: &'a NodeId) -> impl Iterator<Item = ShardId> + 'a {
        self.iter().filter(move |(_, owner)| *owner == Some(node)).map(|(shard, _)| shard)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ShardId, Option<&NodeId>)> {
        (0..=u16::MAX).map(ShardId::new).zip(self.owners.iter().map(Option::as_ref))
    }
}

/// The assignment for `problem` that moves the fewest shards away from `previous`.
///
/// In each group every shard has an owner, all owners are fit, and no two fit nodes differ by more than one shard. A
/// group without a fit node keeps its owners: an owner in trouble is better than none. So does a shard of no group.
///
/// The same problem always has the same answer, in whatever order the groups are listed. Solving again with the
/// answer as `previous` changes nothing. Between choices with equally many moves, the node with the least load in all
/// groups goes first, then the first by name.
pub fn solve(problem: &AssignmentProblem, previous: &Assignment) -> Assignment {
    let mut groups: Vec<&ShardGroup> = problem.groups.iter().collect();
    groups.sort_by(|one, other| one.shards.cmp(&other.shards));
    let last = groups.iter().filter_map(|group| group.shards.last()).max();
    let shard_count = last.map_or(0, |last| usize::from(last.number()) + 1);
    let mut solution = previous.clone();
    solution.owners.resize(shard_count.max(previous.owners.len()), None);
    let mut load: BTreeMap<&NodeId, usize> = BTreeMap::new();
    for group in groups {
        let owners =
            if group.fit.is_empty() { unchanged_owners(group, previous) } else { divided(group, previous, &load) };
        for (shard, owner) in group.shards.iter().zip(owners) {
            if let Some(owner) = owner {
                *load.entry(owner).or_default() += 1;
            }
            solution.owners[usize::from(shard.number())] = owner.cloned();
        }
    }
    solution
}

fn unchanged_owners<'a>(group: &ShardGroup, previous: &'a Assignment) -> Vec<Option<&'a NodeId>> {
    group.shards.iter().map(|shard| previous.owner(*shard)).collect()
}

/// Divides one group's shards among its fit nodes: each node keeps shards up to its quota, and the rest goes where
/// room is.
fn divided<'a>(
    group: &'a ShardGroup,
    previous: &Assignment,
    load: &BTreeMap<&'a NodeId, usize>,
) -> Vec<Option<&'a NodeId>> {
    let held = |shard: &ShardId| previous.owner(*shard).and_then(|node| group.fit.get(node));
    let mut room = quotas(group, &held, load);
    let mut owners: Vec<Option<&NodeId>> = group
        .shards
        .iter()
        .map(|shard| {
            let owner = held(shard)?;
            let room = room.get_mut(owner).expect("every fit node has a quota");
            *room = room.checked_sub(1)?;
            Some(owner)
        })
        .collect();
    let mut rooms = room.into_iter().flat_map(|(node, room)| std::iter::repeat_n(node, room));
    for owner in owners.iter_mut().filter(|owner| owner.is_none()) {
        *owner = rooms.next();
    }
    assert!(rooms.next().is_none() && owners.iter().all(Option::is_some), "quotas add up to the number of shards");
    owners
}

/// The number of shards for each fit node. The remainder of an uneven division goes first to nodes that already hold
/// more than the even share, because every other choice would move one shard more.
fn quotas<'a>(
    group: &'a ShardGroup,
    held: &impl Fn(&ShardId) -> Option<&'a NodeId>,
    load: &BTreeMap<&'a NodeId, usize>,
) -> BTreeMap<&'a NodeId, usize> {
    let mut holds: BTreeMap<&NodeId, usize> = group.fit.iter().map(|node| (node, 0)).collect();
    for owner in group.shards.iter().filter_map(held) {
        *holds.get_mut(owner).expect("only fit nodes are held") += 1;
    }
    let even = group.shards.len() / holds.len();
    let uneven = group.shards.len() % holds.len();
    let mut order: Vec<(&NodeId, usize)> = holds.into_iter().collect();
    order.sort_by_key(|(node, holds)| (*holds <= even, load.get(node).copied().unwrap_or(0), *node));
    order.into_iter().enumerate().map(|(place, (node, _))| (node, even + usize::from(place < uneven))).collect()
}

/// The changes from one assignment to the next. Its `Display` writes one line for each pair of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssignmentDiff {
    pub moves: Vec<Move>,
}

/// One shard that changes hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    pub shard: ShardId,
    pub from: Option<NodeId>,
    pub to: Option<NodeId>,
}

impl AssignmentDiff {
    pub fn between(previous: &Assignment, next: &Assignment) -> Self {
        let count = previous.owners.len().max(next.owners.len());
        let moves = (0..=u16::MAX)
            .take(count)
            .map(ShardId::new)
            .map(|shard| Move { shard, from: previous.owner(shard).cloned(), to: next.owner(shard).cloned() })
            .filter(|step| step.from != step.to)
            .collect();
        Self { moves }
    }

    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    pub fn len(&self) -> usize {
        self.moves.len()
    }
}

impl fmt::Display for AssignmentDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pairs: BTreeMap<(Option<&NodeId>, Option<&NodeId>), Vec<ShardId>> = BTreeMap::new();
        for step in &self.moves {
            pairs.entry((step.from.as_ref(), step.to.as_ref())).or_default().push(step.shard);
        }
        let name = |node: Option<&NodeId>| node.map_or_else(|| "none".to_owned(), NodeId::to_string);
        for (place, ((from, to), shards)) in pairs.into_iter().enumerate() {
            if place > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{} -> {}:", name(from), name(to))?;
            for shard in shards {
                write!(f, " {shard}")?;
            }
        }
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
struct Compact {
    nodes: Vec<NodeId>,
    owners: Vec<Option<usize>>,
}

impl From<Assignment> for Compact {
    fn from(assignment: Assignment) -> Self {
        let nodes: BTreeSet<NodeId> = assignment.owners.iter().flatten().cloned().collect();
        let nodes: Vec<NodeId> = nodes.into_iter().collect();
        let place = |owner: Option<NodeId>| nodes.binary_search(&owner?).ok();
        let owners = assignment.owners.into_iter().map(place).collect();
        Self { nodes, owners }
    }
}

/// The error for a record with the index of a node that it does not list.
#[derive(Debug, thiserror::Error)]
#[error("shard {shard} is assigned to node number {node}, which is not listed")]
struct NotListed {
    shard: usize,
    node: usize,
}

impl TryFrom<Compact> for Assignment {
    type Error = NotListed;

    fn try_from(compact: Compact) -> Result<Self, NotListed> {
        let node = |(shard, place): (usize, Option<usize>)| match place {
            None => Ok(None),
            Some(node) => compact.nodes.get(node).cloned().map(Some).ok_or(NotListed { shard, node }),
        };
        let owners = compact.owners.iter().copied().enumerate().map(node).collect::<Result<_, _>>()?;
        Ok(Self { owners })
    }
}

#[cfg(test)]
mod tests;
