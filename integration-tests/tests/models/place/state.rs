//! What the model of places consists of.

pub(super) const NODES: usize = 2;
pub(super) const DATABASES: usize = 2;

/// As the 1,000 of `move_open.sql`: more epochs than a closed source mints in any of the spaces.
pub(super) const OPENS_ABOVE: u8 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Status {
    Here,
    Leaving,
    Gone,
    Arriving,
}

use Status::{Arriving, Gone, Here, Leaving};

impl Status {
    pub(super) fn is_open(self) -> bool {
        matches!(self, Here | Leaving)
    }
}

/// How much may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bounds {
    pub(super) moves_back: u8,
    /// Changes of the assignment.
    pub(super) assignments: u8,
    /// Crashes, lost leases, lost answers, cuts that are given up, and databases that a look cannot read.
    pub(super) faults: u8,
}

/// The fence row of the shard in one database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) status: Status,
    pub(super) epoch: u8,
    /// The start of a node that took the fence last. `None`: none yet, or one that has crashed.
    pub(super) owner: Option<usize>,
    /// The epoch in the source of the owner that fills the arriving shard.
    pub(super) move_epoch: u8,
}

/// What a look has read of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    pub(super) status: Status,
    pub(super) epoch: u8,
    /// The status has not changed since.
    pub(super) is_current: bool,
}

/// The place of the shard as a map has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) database: usize,
    pub(super) status: Status,
    pub(super) epoch: u8,
}

/// A look at the databases that is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Look {
    /// By database. `None`: not read yet; `Some(None)`: it could not be read.
    pub(super) rows: [Option<Option<Seen>>; DATABASES],
    /// The node has ended a move since the look began.
    pub(super) is_overtaken: bool,
}

/// A fence that a node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) epoch: u8,
    /// An acquire has taken it, and not the mover.
    pub(super) is_acquired: bool,
    /// Nothing is claimed under it.
    pub(super) is_draining: bool,
    /// The owner loop has seen the shard closed.
    pub(super) is_closed: bool,
}

impl Held {
    /// The mover has opened the shard under this epoch.
    pub(super) fn new(epoch: u8) -> Self {
        Self { epoch, is_acquired: false, is_draining: false, is_closed: false }
    }
}

/// What the owner loop of a node has under way for the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Act {
    None,
    /// It has the owner key and asks a database for the fence, also if the shard is closed there (`even_closed`).
    Asked {
        database: usize,
        even_closed: bool,
    },
    /// It has the fence.
    Taken {
        database: usize,
        epoch: u8,
    },
    Releasing {
        database: usize,
    },
}

/// How far the mover of a node is with its cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Idle,
    /// It has stopped the claims and is about to close the source.
    Stopped {
        epoch: u8,
    },
    Closed {
        epoch: u8,
        closed: u8,
    },
    /// It is about to open the source again. `stopped`: the epoch under which this cut has stopped the claims; `None`:
    /// an interrupted cut has.
    Reopening {
        stopped: Option<u8>,
        closed: u8,
    },
    /// The source was closed by an interrupted cut, and this node fills the target.
    Finishing {
        epoch: u8,
    },
    /// The target does not take the last part of an interrupted cut, so the source is to open again.
    Refusing {
        closed: u8,
    },
    Opened {
        epoch: u8,
    },
    /// The shard is adopted in the target, and not forgotten in the source yet.
    Adopted {
        epoch: u8,
    },
    /// It is forgotten in the source. The map does not show the target yet.
    Forgotten {
        epoch: u8,
    },
    Reopened {
        epoch: u8,
    },
    /// The map shows the source open again. The shard is not adopted under the new epoch yet.
    ReopenedInMap {
        epoch: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) place: Option<Place>,
    /// By database: the epoch that was read last. `None`: the status has changed since, and so has the revision. A
    /// change of the epoch alone changes no revision.
    pub(super) known: [Option<u8>; DATABASES],
    /// The databases that the node has read since it started.
    pub(super) is_read: [bool; DATABASES],
    pub(super) look: Option<Look>,
    /// A look is wanted although no database shows a new revision: one was wasted, or could not read a database.
    pub(super) is_look_wanted: bool,
    pub(super) held: [Option<Held>; DATABASES],
    pub(super) act: Act,
    pub(super) step: Step,
    /// The source of the move that the mover works on.
    pub(super) source: Option<usize>,
}

impl Node {
    pub(super) fn started() -> Self {
        Self {
            place: None,
            known: [None; DATABASES],
            is_read: [false; DATABASES],
            look: None,
            is_look_wanted: false,
            held: [None; DATABASES],
            act: Act::None,
            step: Step::Idle,
            source: None,
        }
    }

    /// The source of the move that the mover works on, or would begin to work on.
    pub(super) fn source(&self, state: &State) -> Option<usize> {
        self.source.or(state.source)
    }

    pub(super) fn is_owner(&self) -> bool {
        self.held.iter().any(Option::is_some)
    }

    /// `OwnedShards::resume_claiming`.
    pub(super) fn resume_claiming(&mut self, database: usize, epoch: u8) {
        if let Some(held) = self.held[database].as_mut().filter(|held| held.epoch == epoch) {
            held.is_draining = false;
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(super) rows: [Row; DATABASES],
    pub(super) assigned: usize,
    /// The node that has the owner key in etcd.
    pub(super) key: Option<usize>,
    /// The source of the move that was asked for and has not ended.
    pub(super) source: Option<usize>,
    pub(super) nodes: [Node; NODES],
    pub(super) left: Bounds,
    /// A node has given up a fence in force, under which it claimed, because of its map.
    pub(super) was_given_up: bool,
    /// One database has minted an epoch that the other had minted.
    pub(super) was_minted_twice: bool,
}

impl State {
    /// The first database has the shard, and its copy in the second is complete. Node 0 owns it.
    pub(super) fn first(left: Bounds) -> Self {
        let source = Row { status: Leaving, epoch: 1, owner: Some(0), move_epoch: 0 };
        let target = Row { status: Arriving, epoch: 0, owner: None, move_epoch: 1 };
        let place = Some(Place { database: 0, status: Leaving, epoch: 1 });
        let node = Node { place, known: [Some(1), Some(0)], is_read: [true; DATABASES], ..Node::started() };
        Self {
            rows: [source, target],
            assigned: 0,
            key: Some(0),
            source: Some(0),
            nodes: [Node { held: [Some(Held { is_acquired: true, ..Held::new(1) }), None], ..node }, node],
            left,
            was_given_up: false,
            was_minted_twice: false,
        }
    }

    /// The first node has closed the shard and died, and no node owns it.
    pub(super) fn interrupted(left: Bounds) -> Self {
        let mut state = Self::first(left);
        let closed = Row { status: Gone, epoch: 2, owner: None, ..state.rows[0] };
        (state.rows[0], state.key, state.nodes) = (closed, None, [Node::started(); NODES]);
        state
    }

    /// The fence row of a database gets a new epoch. An epoch that the other row had before its newest one is not
    /// noticed: where such a one is minted twice, another order of the same steps meets it while it is the newest.
    pub(super) fn mint(&mut self, database: usize, epoch: u8) {
        self.was_minted_twice |= self.rows[1 - database].epoch == epoch;
        self.rows[database].epoch = epoch;
    }

    /// Whether the node can claim from the shard in this database.
    pub(super) fn can_claim(&self, node: usize, database: usize) -> bool {
        let row = self.rows[database];
        row.status.is_open() && self.nodes[node].held[database].is_some_and(|held| held.epoch == row.epoch)
    }

    /// Whether the assigned node dispatches the shard, no other node believes that it owns it, and no move is left.
    pub(super) fn is_whole(&self) -> bool {
        let owner = &self.nodes[self.assigned];
        let dispatches = |database: usize| {
            let is_placed = owner.place.is_some_and(|place| place.database == database && place.status.is_open());
            let is_active = owner.held[database].is_some_and(|held| !held.is_draining);
            self.can_claim(self.assigned, database) && is_active && is_placed && owner.held[1 - database].is_none()
        };
        (0..DATABASES).any(dispatches)
            && !self.nodes[1 - self.assigned].is_owner()
            && self.key == Some(self.assigned)
            && self.source.is_none()
    }
}
