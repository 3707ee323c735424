//! What the model of claims consists of, and the steps that no guard changes.

pub(super) const ATTEMPTS: u8 = 2;
pub(super) const EPOCHS: u8 = 2;
pub(super) const COPIES: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Scheduled,
    Dispatching,
    Delivered,
    Succeeded,
    Dead,
    Cancelled,
}

use Place::{Dead, Delivered, Dispatching, Scheduled};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    Claim,
    Rescue,
    /// Writes the confirm of this attempt.
    Deliver(u8),
}

/// A statement on its way, or in PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Statement {
    pub(super) kind: Kind,
    pub(super) node: usize,
    pub(super) epoch: u8,
    /// Whether its node waits for the answer.
    pub(super) is_awaited: bool,
    /// Once it has its snapshot: whether the fence was that of its epoch, and the row in the right state.
    pub(super) read: Option<(bool, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    Idle,
    Asked,
    /// A claimed task that is to be published, perhaps as a copy.
    Held {
        attempt: u8,
        is_marked: bool,
    },
    /// A message without a confirm yet.
    Sent(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    /// The epoch under which it owns the shard, as it believes; 0: it does not.
    pub(super) epoch: u8,
    pub(super) work: Work,
}

/// The copies of one attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Copies {
    pub(super) on_way: u8,
    pub(super) arrived: u8,
    pub(super) rejected: u8,
    pub(super) unmarked: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(super) place: Place,
    pub(super) attempt: u8,
    /// The attempts whose failure was written.
    pub(super) failed: u8,
    pub(super) fence: u8,
    pub(super) nodes: [Node; 2],
    pub(super) statements: [Option<Statement>; 2],
    pub(super) copies: [Copies; ATTEMPTS as usize],
    /// A cancel was answered with `cancelled`.
    pub(super) is_promised: bool,
    pub(super) came_after_promise: bool,
    /// A cancel took a claimed task.
    pub(super) was_taken_in_flight: bool,
    pub(super) was_claimed_under_old_epoch: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    TakeOver(usize),
    Crash(usize),
    Claim(usize),
    Rescue(usize),
    /// The statement in this place takes its snapshot.
    Read(usize),
    /// It writes and commits.
    Write(usize),
    GiveUp(usize),
    Publish(usize),
    Arrive(u8),
    Confirm(usize),
    Unknown(usize),
    Reject(u8),
    Succeed(u8),
    Cancel,
}

impl State {
    pub(super) fn send(&mut self, kind: Kind, node: usize) -> Option<()> {
        let place = self.statements.iter().position(Option::is_none)?;
        let epoch = self.nodes[node].epoch;
        self.statements[place] = Some(Statement { kind, node, epoch, is_awaited: true, read: None });
        self.nodes[node].work = Work::Asked;
        Some(())
    }

    /// The node does not wait for its statements any more; they may be executed all the same.
    pub(super) fn forget(&mut self, node: usize) {
        self.nodes[node].work = Work::Idle;
        for statement in self.statements.iter_mut().flatten().filter(|statement| statement.node == node) {
            statement.is_awaited = false;
        }
    }

    pub(super) fn copies(&mut self, attempt: u8) -> &mut Copies {
        &mut self.copies[usize::from(attempt - 1)]
    }

    pub(super) fn is_true_to_the_broker(&self) -> bool {
        match self.place {
            Delivered => {
                let arrived = self.attempt > 0 && self.copies[usize::from(self.attempt - 1)].arrived > 0;
                arrived && self.failed & (1 << self.attempt) == 0
            }
            Dead => self.copies.iter().all(|copies| copies.rejected > 0),
            _ => true,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.place, Scheduled | Dispatching)
    }

    /// What a node does about its ownership and its statements.
    pub(super) fn by_owner(&mut self, action: Action) -> Option<()> {
        match action {
            Action::TakeOver(node) => {
                self.fence += 1;
                self.nodes[node].epoch = self.fence;
            }
            Action::Crash(node) => {
                self.forget(node);
                self.nodes[node].epoch = 0;
            }
            Action::Claim(node) => self.send(Kind::Claim, node)?,
            Action::Rescue(node) => self.send(Kind::Rescue, node)?,
            Action::GiveUp(node) => self.forget(node),
            _ => {}
        }
        Some(())
    }

    /// What happens between a node and the broker.
    pub(super) fn by_broker(&mut self, action: Action) -> Option<()> {
        match action {
            Action::Publish(node) => {
                let Work::Held { attempt, is_marked } = self.nodes[node].work else { return None };
                self.copies(attempt).on_way += 1;
                self.copies(attempt).unmarked += u8::from(!is_marked);
                self.nodes[node].work = Work::Sent(attempt);
            }
            Action::Arrive(attempt) => {
                self.copies(attempt).on_way -= 1;
                self.copies(attempt).arrived += 1;
                self.came_after_promise |= self.is_promised;
            }
            Action::Confirm(node) => {
                let Work::Sent(attempt) = self.nodes[node].work else { return None };
                self.send(Kind::Deliver(attempt), node)?;
            }
            _ => {}
        }
        Some(())
    }
}
