//! What the model of the master consists of.

pub(super) const NODES: usize = 2;
pub(super) const SHARDS: usize = 2;
/// How often a lease or a process may end.
pub(super) const LOSSES: u8 = 1;

/// The owner that each shard should have.
pub(super) type Owners = [Option<u8>; SHARDS];

/// The content of etcd that nodes act on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Etcd {
    /// The term of each node's candidacy, which is its membership too; 0: it is no member.
    pub(super) terms: [u8; NODES],
    /// The number of writes of the assignment.
    pub(super) writes: u8,
    pub(super) assigned: Owners,
    /// Who holds the owner key of each shard.
    pub(super) keys: Owners,
}

impl Etcd {
    pub(super) fn is_member(&self, node: usize) -> bool {
        self.terms[node] > 0
    }

    /// The oldest candidate's term.
    pub(super) fn master(&self) -> Option<u8> {
        self.terms.into_iter().filter(|term| *term > 0).min()
    }
}

/// A write of the assignment on its way to etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Write {
    pub(super) term: u8,
    /// The number of writes that the decision was based on.
    pub(super) after: u8,
    pub(super) next: Owners,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Node {
    /// The term of its session, as it believes; 0: it has none.
    pub(super) term: u8,
    /// What it has last seen of etcd.
    pub(super) view: Etcd,
    /// The write that it may wait for, or has given up on.
    pub(super) write: Option<Write>,
    /// Its process has ended for good.
    pub(super) is_dead: bool,
    /// It has created the owner key and is about to take the fence.
    pub(super) is_taking: [bool; SHARDS],
    /// The epoch under which it owns each shard, as it believes; 0: it does not.
    pub(super) epochs: [u8; SHARDS],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(super) etcd: Etcd,
    pub(super) nodes: [Node; NODES],
    pub(super) fences: [u8; SHARDS],
    pub(super) last_term: u8,
    pub(super) losses: u8,
    /// An assignment was written by a node that was not the master by then.
    pub(super) was_written_by_former: bool,
    /// An assignment was replaced that its writer did not know.
    pub(super) was_replaced_unseen: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The lease of this node ends; it may be stopped, or cut off, and go on later.
    LoseLease(usize),
    /// The process of the node ends, and its lease.
    Die(usize),
    /// The node gets a lease, and registers as member and candidate.
    Join(usize),
    /// The node sees etcd as it is now.
    See(usize),
    /// The node is the master, as it believes, and sends an assignment.
    Decide(usize),
    /// The write is executed, or never is.
    Write(usize),
    Forget(usize),
    /// The node creates the owner key of this shard.
    Create(usize, usize),
    /// It takes the fence.
    Take(usize, usize),
    Release(usize, usize),
    /// It sees that the key is another node's.
    Drop(usize, usize),
    /// The key is lost, and the node creates it again under its epoch.
    Reregister(usize, usize),
    /// It has a key without owning the shard, and should not own it.
    Abandon(usize, usize),
    /// The fence refuses a claim of its epoch.
    Refuse(usize, usize),
}

impl Action {
    /// Whether the step is a fault rather than a step of the protocol.
    pub(super) const fn is_fault(self) -> bool {
        matches!(self, Self::LoseLease(_) | Self::Die(_) | Self::Forget(_))
    }
}
