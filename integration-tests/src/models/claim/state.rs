//! What the model of claims consists of, and the steps that no guard changes.

/// How far the model goes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub nodes: usize,
    pub attempts: u8,
    pub epochs: u8,
    /// The most copies of one attempt.
    pub copies: u8,
    /// The most statements under way.
    pub statements: usize,
    /// The attempts with whose failure the task is dead, one bit each.
    pub last: u32,
    /// Whether the model leaves out what can break nothing any more: steps after the end of the task, and an owner that
    /// takes its own shard again.
    pub ends_at_end: bool,
}

impl Bounds {
    /// What suffices to show each fault.
    pub const SMALL: Self =
        Self { nodes: 2, attempts: 2, epochs: 2, copies: 2, statements: 2, last: 1 << 2, ends_at_end: true };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    Scheduled,
    Dispatching,
    Delivered,
    Succeeded,
    Dead,
    Cancelled,
}

use Place::{Dead, Delivered, Dispatching, Scheduled};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Claim,
    Rescue,
    /// Writes the confirm of this attempt.
    Deliver(u8),
}

/// A statement on its way, or in PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Statement {
    pub kind: Kind,
    pub node: usize,
    pub epoch: u8,
    /// Whether its node waits for the answer.
    pub is_awaited: bool,
    /// Once it has its snapshot: whether the fence was that of its epoch, and the row in the right state.
    pub read: Option<(bool, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
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
pub struct Node {
    /// The epoch under which it owns the shard, as it believes; 0: it does not.
    pub epoch: u8,
    pub work: Work,
}

/// The copies of one attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Copies {
    pub on_way: u8,
    pub arrived: u8,
    pub rejected: u8,
    pub unmarked: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub place: Place,
    pub attempt: u8,
    /// The attempts whose failure was written.
    pub failed: u32,
    pub fence: u8,
    pub nodes: Vec<Node>,
    pub statements: Vec<Option<Statement>>,
    pub copies: Vec<Copies>,
    /// A cancel was answered with `cancelled`.
    pub is_promised: bool,
    pub came_after_promise: bool,
    /// A cancel took a claimed task.
    pub was_taken_in_flight: bool,
    pub was_claimed_under_old_epoch: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
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
    /// A dead task has a new budget of attempts.
    Revive,
}

impl State {
    pub fn send(&mut self, kind: Kind, node: usize) -> Option<()> {
        let place = self.statements.iter().position(Option::is_none)?;
        let epoch = self.nodes[node].epoch;
        self.statements[place] = Some(Statement { kind, node, epoch, is_awaited: true, read: None });
        self.nodes[node].work = Work::Asked;
        Some(())
    }

    /// The node does not wait for its statements any more; they may be executed all the same.
    pub fn forget(&mut self, node: usize) {
        self.nodes[node].work = Work::Idle;
        for statement in self.statements.iter_mut().flatten().filter(|statement| statement.node == node) {
            statement.is_awaited = false;
        }
    }

    pub fn copies(&mut self, attempt: u8) -> &mut Copies {
        &mut self.copies[usize::from(attempt - 1)]
    }

    pub fn is_true_to_the_broker(&self) -> bool {
        match self.place {
            Delivered => {
                let arrived = self.attempt > 0 && self.copies[usize::from(self.attempt - 1)].arrived > 0;
                arrived && self.failed & (1 << self.attempt) == 0
            }
            Dead => self.copies.iter().take(usize::from(self.attempt)).all(|copies| copies.rejected > 0),
            _ => true,
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.place, Scheduled | Dispatching)
    }

    /// What a node does about its ownership and its statements.
    pub fn by_owner(&mut self, action: Action) -> Option<()> {
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
    pub fn by_broker(&mut self, action: Action) -> Option<()> {
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
