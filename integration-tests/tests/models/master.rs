//! The master, its assignment and the owners: two nodes whose leases end, and two shards.
//!
//! A node acts on what it has last seen of etcd, however old that is. Each write to etcd is one transaction with its
//! comparisons, and may be executed long after its node lost its lease: a stopped master goes on. Both nodes use the
//! database of shard 0; only node 1 uses that of shard 1. So in a balanced assignment node 0 has shard 0.
//!
//! An owner that sees another's key gives the shard up at once. The model shows that the refusal of the fence would
//! do; it comes with the next claim.
//!
//! Left out: the freeze after a loss of many members at once, the early end of a lease by a witness, and drains. The
//! assignment is solved for these two shards only; `common::shard::assign` has tests of its own.

#[path = "master/state.rs"]
mod state;
#[path = "master/steps.rs"]
mod steps;

use stateright::{Model, Property};

use self::state::{Action, Etcd, LOSSES, NODES, Node, Owners, SHARDS, State};
use super::search::{Guarded, explore};

/// What keeps the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// A write of an assignment compares the candidacy of its term.
    Term,
    /// It compares the assignment that it replaces.
    Unchanged,
    /// An acquire raises the epoch. Without it the acquire takes the epoch that it finds.
    Epoch,
    /// Only members that have used a database get its shards.
    UsedBy,
    /// An assignment gives the shards of a gone member away.
    Total,
    /// An owner key ends with its owner's lease.
    KeyOnLease,
    /// An owner whose key is lost creates it again.
    Reregister,
    /// An owner that the fence refuses gives the shard up. Without it an owner goes by the keys alone.
    Refusal,
    /// A node that has a key and should not own the shard deletes it.
    Abandon,
}

/// The model without one guard, or with all.
#[derive(Clone, Debug)]
pub(crate) struct Masters {
    without: Option<Guard>,
}

impl Guarded for Masters {
    type Guard = Guard;
    const NAME: &'static str = "masters";
    const GUARDS: &'static [(Guard, &'static str)] = &[
        (Guard::Term, "G4"),
        (Guard::Unchanged, "G4"),
        (Guard::Epoch, "G4"),
        (Guard::UsedBy, "G6"),
        (Guard::Total, "G6"),
        (Guard::KeyOnLease, "G6"),
        (Guard::Reregister, "G6"),
        (Guard::Refusal, "G6"),
        (Guard::Abandon, "G6"),
    ];

    fn without(guard: Option<Guard>) -> Self {
        Self { without: guard }
    }
}

impl Masters {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    /// Whether the node has used the shard's database.
    const fn has_used(node: usize, shard: usize) -> bool {
        node == 1 || shard == 0
    }

    /// The assignment for the members that a node sees: the first member that may own the shard.
    fn solve(&self, view: &Etcd) -> Owners {
        std::array::from_fn(|shard| {
            let may_own = |node: &usize| {
                let is_there =
                    view.is_member(*node) || !self.has(Guard::Total) && view.assigned[shard] == Some(*node as u8);
                is_there && (Self::has_used(*node, shard) || !self.has(Guard::UsedBy))
            };
            // Without a node that may own it, the shard keeps its owner.
            (0..NODES).find(may_own).map(|node| node as u8).or(view.assigned[shard])
        })
    }

    fn of_node(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[at];
        if node.write.is_some() {
            actions.extend([Action::Write(at), Action::Forget(at)]);
        }
        if node.is_dead {
            return;
        }
        if !state.etcd.is_member(at) {
            actions.push(Action::Join(at));
        } else if state.losses < LOSSES {
            actions.extend([Action::LoseLease(at), Action::Die(at)]);
        }
        if node.view != state.etcd {
            actions.push(Action::See(at));
        }
        let is_master = node.term > 0 && node.view.master() == Some(node.term);
        let next = self.solve(&node.view);
        if is_master && next != node.view.assigned && node.write.is_none() {
            actions.push(Action::Decide(at));
        }
        (0..SHARDS).for_each(|shard| self.of_owner(state, at, shard, actions));
    }

    /// The steps of `common::cluster::ownership`, for one shard.
    fn of_owner(&self, state: &State, at: usize, shard: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[at];
        let Node { view, .. } = node;
        let (me, key, assigned) = (Some(at as u8), view.keys[shard], view.assigned[shard]);
        let is_registered = view.is_member(at);
        if node.is_taking[shard] {
            actions.push(Action::Take(at, shard));
        } else if node.epochs[shard] == 0 {
            if assigned == me && key.is_none_or(|key| Some(key) == me) && is_registered && Self::has_used(at, shard) {
                actions.push(Action::Create(at, shard));
            } else if key == me && assigned != me && self.has(Guard::Abandon) {
                actions.push(Action::Abandon(at, shard));
            }
        } else {
            let is_for_another = assigned.is_some_and(|node| Some(node) != me && view.is_member(usize::from(node)));
            if key.is_some() && key != me {
                actions.push(Action::Drop(at, shard));
            } else if is_for_another {
                actions.push(Action::Release(at, shard));
            } else if key.is_none() && is_registered && self.has(Guard::Reregister) {
                actions.push(Action::Reregister(at, shard));
            }
            if node.epochs[shard] < state.fences[shard] && self.has(Guard::Refusal) {
                actions.push(Action::Refuse(at, shard));
            }
        }
    }

    /// Whether each shard that a live node may own has one owner, under the newest epoch and with its key.
    fn is_whole(state: &State) -> bool {
        (0..SHARDS).all(|shard| {
            let may = (0..NODES).any(|node| state.etcd.is_member(node) && Self::has_used(node, shard));
            let owners: Vec<usize> = (0..NODES).filter(|node| state.nodes[*node].epochs[shard] > 0).collect();
            let is_owned = |owner: usize| {
                state.nodes[owner].epochs[shard] == state.fences[shard] && state.etcd.keys[shard] == Some(owner as u8)
            };
            !may || matches!(owners[..], [owner] if is_owned(owner))
        })
    }
}

impl Model for Masters {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // Node 1 is the master, and node 0 is about to join.
        let etcd = Etcd { terms: [0, 1], ..Etcd::default() };
        let master = Node { term: 1, view: etcd, ..Node::default() };
        vec![State {
            etcd,
            nodes: [Node::default(), master],
            fences: [0; SHARDS],
            last_term: 1,
            losses: 0,
            was_written_by_former: false,
            was_replaced_unseen: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        (0..NODES).for_each(|node| self.of_node(state, node, actions));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::LoseLease(node) => self.lose_lease(&mut next, node, false),
            Action::Die(node) => self.lose_lease(&mut next, node, true),
            Action::Join(node) => Self::join(&mut next, node),
            Action::See(node) => next.nodes[node].view = next.etcd,
            Action::Decide(node) => self.decide(&mut next, node),
            Action::Write(node) => self.write(&mut next, node)?,
            Action::Forget(node) => next.nodes[node].write = None,
            owner => self.own(&mut next, owner),
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("G4 one assignment is in force, and one owner for each epoch", |_, state: &State| {
                let [one, other] = &state.nodes;
                let is_shared = |shard: usize| one.epochs[shard] > 0 && one.epochs[shard] == other.epochs[shard];
                let is_single = !(0..SHARDS).any(is_shared);
                is_single && !state.was_written_by_former && !state.was_replaced_unseen
            }),
            Property::always("G6 a shard that a live node may own has one owner in the end", |model: &Self, state| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                let moves = |action: &Action| !action.is_fault() && model.next_state(state, *action).is_some();
                actions.iter().any(moves) || Self::is_whole(state)
            }),
        ]
    }
}

#[test]
fn one_assignment_is_in_force_and_each_shard_has_one_owner_in_the_end() {
    explore::<Masters>();
}
