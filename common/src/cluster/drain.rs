//! An operator's request to drain a node, or to end its drain.
//!
//! A drain applies to one start of a node and ends with the process. A pod that restarts under the same name thus
//! owns shards again, and an operator need not remember an old drain.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    cluster::view::Member,
    ids::{NodeId, NodeName},
};

/// The most entries. With more, most of them would be of nodes that are gone.
const MOST: usize = 256;

/// The members and the drained starts of nodes, as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roll {
    pub members: BTreeMap<NodeName, Member>,
    pub drained: BTreeSet<NodeId>,
}

/// Why a node is not drained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("there is no node `{name}`; there are: {}", listed(there))]
    Unknown { name: NodeName, there: Vec<NodeName> },
    #[error(
        "node `{name}` is the last one that is neither drained nor leaving, so no other node can own its shards; \
         undrain or start another node first"
    )]
    Last { name: NodeName },
}

fn listed(names: &[NodeName]) -> String {
    names.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ")
}

impl Roll {
    /// The set of drained starts after `name` is drained or undrained. Repeating a request changes nothing.
    pub fn set(&self, name: &NodeName, drained: bool) -> Result<BTreeSet<NodeId>, Refused> {
        let Some(member) = self.members.get(name) else {
            return Err(Refused::Unknown { name: name.clone(), there: self.members.keys().cloned().collect() });
        };
        let node = &member.node;
        if self.drained.contains(node) == drained {
            return Ok(self.drained.clone());
        }
        if drained && !self.members.values().any(|other| other.node != *node && self.stays(other)) {
            return Err(Refused::Last { name: name.clone() });
        }
        // Earlier starts of this node have ended.
        let mut next: BTreeSet<NodeId> = self.drained.iter().filter(|other| other.name != *name).cloned().collect();
        if drained {
            next.insert(node.clone());
        }
        if next.len() > MOST {
            next.retain(|node| self.members.values().any(|member| member.node == *node));
        }
        Ok(next)
    }

    fn stays(&self, member: &Member) -> bool {
        !member.leaving && !self.drained.contains(&member.node)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{
        cluster::ownership::scenes::{node, view_of},
        ids::Incarnation,
    };

    fn roll(members: &[&str], drained: &[&str]) -> Roll {
        Roll { members: view_of(members).members, drained: drained.iter().map(|name| node(name)).collect() }
    }

    fn names(drained: Result<BTreeSet<NodeId>, Refused>) -> Vec<String> {
        drained.expect("not refused").into_iter().map(|node| node.name.to_string()).collect()
    }

    #[test]
    fn a_node_is_drained_and_put_back_and_the_same_again_changes_nothing() {
        let (a, b) = (NodeName::new("a"), NodeName::new("b"));
        assert_eq!(names(roll(&["a", "b", "c"], &["a"]).set(&b, true)), ["a", "b"]);
        assert_eq!(names(roll(&["a", "b", "c"], &["a"]).set(&a, true)), ["a"]);
        assert_eq!(names(roll(&["a", "b", "c"], &["a", "b"]).set(&a, false)), ["b"]);
        assert_eq!(names(roll(&["a", "b", "c"], &["b"]).set(&a, false)), ["b"]);
    }

    #[test]
    fn the_last_one_that_stays_is_not_drained() {
        let c = NodeName::new("c");
        assert_eq!(roll(&["c"], &[]).set(&c, true), Err(Refused::Last { name: c.clone() }));
        let mut others = roll(&["a", "b", "c"], &["a"]);
        others.members.get_mut("b").expect("is a member").leaving = true;
        assert_eq!(others.set(&c, true), Err(Refused::Last { name: c.clone() }));
        // A repeated drain succeeds on a node that is drained already, even if the other nodes have left meanwhile.
        assert_eq!(names(roll(&["c"], &["c"]).set(&c, true)), ["c"]);
        assert_eq!(names(roll(&["c"], &["c"]).set(&c, false)), Vec::<String>::new());
    }

    #[test]
    fn an_unknown_node_is_told_which_there_are() {
        for drained in [true, false] {
            let refused = roll(&["a", "b"], &["b"]).set(&NodeName::new("d"), drained).expect_err("refused");
            assert_eq!(refused.to_string(), "there is no node `d`; there are: a, b");
        }
    }

    #[test]
    fn another_start_of_a_drained_node_is_not_drained_and_takes_the_place_of_the_old_one() {
        let mut reborn = roll(&["a", "b"], &["a"]);
        let new = NodeId { incarnation: Incarnation::new(Uuid::from_u128(9)), ..node("a") };
        reborn.members.get_mut("a").expect("is a member").node = new.clone();
        assert_eq!(reborn.set(&new.name, true), Ok([new].into()));
    }

    #[test]
    fn what_is_kept_of_nodes_that_are_gone_is_bounded() {
        let mut roll = roll(&["a", "b", "c"], &["b"]);
        roll.drained.extend((0..MOST).map(|number| node(&format!("gone-{number}"))));
        assert_eq!(names(roll.set(&NodeName::new("a"), true)), ["a", "b"]);
    }
}
