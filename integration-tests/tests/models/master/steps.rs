//! The steps of nodes and of etcd.

use super::{
    Guard, Masters,
    state::{Action, Node, State, Write},
};

impl Masters {
    /// The candidacy, the membership and the owner keys end with the lease. The node does not know yet.
    pub(super) fn lose_lease(&self, state: &mut State, node: usize, is_dead: bool) {
        state.losses += 1;
        state.etcd.terms[node] = 0;
        if self.has(Guard::KeyOnLease) {
            let etcd = &mut state.etcd;
            etcd.keys.iter_mut().filter(|key| **key == Some(node as u8)).for_each(|key| *key = None);
        }
        if is_dead {
            // Its write may still be executed.
            state.nodes[node] = Node { is_dead, write: state.nodes[node].write, ..Node::default() };
        }
    }

    pub(super) fn join(state: &mut State, node: usize) {
        state.last_term += 1;
        state.etcd.terms[node] = state.last_term;
        state.nodes[node].term = state.last_term;
    }

    pub(super) fn decide(&self, state: &mut State, node: usize) {
        let view = state.nodes[node].view;
        let write = Write { term: state.nodes[node].term, after: view.writes, next: self.solve(&view) };
        state.nodes[node].write = Some(write);
    }

    /// `Coordination::assignment_write`: the candidacy stands, and the assignment is the one that was read.
    pub(super) fn write(&self, state: &mut State, node: usize) -> Option<()> {
        let write = state.nodes[node].write.take()?;
        let etcd = &mut state.etcd;
        let is_candidate = etcd.terms[node] == write.term || !self.has(Guard::Term);
        let is_unchanged = etcd.writes == write.after || !self.has(Guard::Unchanged);
        if is_candidate && is_unchanged {
            state.was_written_by_former |= etcd.master() != Some(write.term);
            state.was_replaced_unseen |= etcd.writes != write.after;
            (etcd.assigned, etcd.writes) = (write.next, etcd.writes + 1);
        }
        Some(())
    }

    /// What a node does about a shard. A key is created on the node's lease, and only where there is none.
    pub(super) fn own(&self, state: &mut State, action: Action) {
        let State { etcd, nodes, fences, .. } = state;
        match action {
            Action::Create(node, shard) => {
                let is_free = etcd.keys[shard].is_none_or(|key| key == node as u8);
                if is_free && etcd.terms[node] > 0 && etcd.terms[node] == nodes[node].term {
                    etcd.keys[shard] = Some(node as u8);
                    nodes[node].is_taking[shard] = true;
                }
            }
            Action::Take(node, shard) => {
                fences[shard] = if self.has(Guard::Epoch) { fences[shard] + 1 } else { fences[shard].max(1) };
                nodes[node].epochs[shard] = fences[shard];
                nodes[node].is_taking[shard] = false;
            }
            Action::Release(node, shard) | Action::Abandon(node, shard) => {
                nodes[node].epochs[shard] = 0;
                if etcd.keys[shard] == Some(node as u8) {
                    etcd.keys[shard] = None;
                }
            }
            Action::Drop(node, shard) | Action::Refuse(node, shard) => nodes[node].epochs[shard] = 0,
            Action::Reregister(node, shard)
                if etcd.keys[shard].is_none() && etcd.terms[node] > 0 && etcd.terms[node] == nodes[node].term =>
            {
                etcd.keys[shard] = Some(node as u8);
            }
            _ => {}
        }
    }
}
