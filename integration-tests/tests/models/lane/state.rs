//! What the model of lanes consists of, and the steps that no guard changes.

use super::Guard;

/// The most epochs of the shard.
pub(super) const EPOCHS: u8 = 2;
/// The revision of the queue's first policy, and that of the one with the order or the limit.
pub(super) const PLAIN: u8 = 1;
pub(super) const GATED: u8 = 2;

/// What the second policy asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Policy {
    /// One task at a time, in the order of their due times.
    Ordered,
    /// One task at a time, in any order.
    Limited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Absent,
    Scheduled,
    Ready,
    /// Started, and without an outcome.
    Out,
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Task {
    pub(super) place: Place,
    /// Its first attempt failed, and it is due later than the other task.
    pub(super) has_failed: bool,
    /// It was started under the order or the limit.
    pub(super) is_marked: bool,
    /// It was accepted after the change of the policy was answered.
    pub(super) is_promised: bool,
}

/// What a statement is to do: insert this task and claim it at once, or start one that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    Insert(usize),
    Pick,
}

/// A statement on its way, or in PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Statement {
    pub(super) kind: Kind,
    pub(super) node: usize,
    pub(super) epoch: u8,
    /// The revision of the queues that its node knew.
    pub(super) known: u8,
    /// Whether its node waits for the answer.
    pub(super) is_awaited: bool,
    /// Once it has its snapshot: the task that it is to start, if it may start any.
    pub(super) read: Option<Option<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    Idle,
    /// It has found room for a task, by the policy of this revision.
    Counted(u8),
    Asked,
    /// It rests after a pick of unknown outcome.
    Resting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    /// The epoch under which it owns the shard, as it believes; 0: it does not.
    pub(super) epoch: u8,
    /// The revision of the queues that it knows.
    pub(super) known: u8,
    pub(super) work: Work,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(super) policy: Policy,
    /// The revision in the queues' home database, and the turn that is noted in the tasks' database.
    pub(super) home: u8,
    pub(super) turn: u8,
    /// The change was answered.
    pub(super) is_answered: bool,
    pub(super) fence: u8,
    pub(super) nodes: [Node; 2],
    /// Two tasks of one partition key. The first is accepted first and due first.
    pub(super) tasks: [Task; 2],
    pub(super) statements: [Option<Statement>; 2],
    pub(super) was_overtaken: bool,
    pub(super) was_started_by_old_policy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The policy changes in its home database, is noted in that of the tasks, and is answered.
    Change,
    Turn,
    Answer,
    /// The node reads the queues.
    Learn(usize),
    TakeOver(usize),
    Accept(usize),
    /// The node inserts the task and claims it in one statement.
    Insert(usize, usize),
    /// The node claims the task, which is due.
    Claim(usize, usize),
    /// The node counts what is out.
    Count(usize),
    Pick(usize),
    GiveUp(usize),
    /// The statement in this place takes its snapshot; writes and commits; or is never executed.
    Read(usize),
    Write(usize),
    Lose(usize),
    Finish(usize),
    Fail(usize),
}

impl State {
    pub(super) fn first(policy: Policy) -> Self {
        let task = Task { place: Place::Absent, has_failed: false, is_marked: false, is_promised: false };
        let node = Node { epoch: 0, known: PLAIN, work: Work::Idle };
        Self {
            policy,
            home: PLAIN,
            turn: PLAIN,
            is_answered: false,
            fence: 1,
            nodes: [Node { epoch: 1, ..node }, node],
            tasks: [task; 2],
            statements: [None; 2],
            was_overtaken: false,
            was_started_by_old_policy: false,
        }
    }

    pub(super) fn send(&mut self, kind: Kind, node: usize, known: u8) -> Option<()> {
        let place = self.statements.iter().position(Option::is_none)?;
        let epoch = self.nodes[node].epoch;
        self.statements[place] = Some(Statement { kind, node, epoch, known, is_awaited: true, read: None });
        Some(())
    }

    /// The node waits for none of its statements any more; they may be executed all the same.
    pub(super) fn forget(&mut self, node: usize) {
        for statement in self.statements.iter_mut().flatten().filter(|statement| statement.node == node) {
            statement.is_awaited = false;
        }
    }

    /// Whether a pick of the node is under way that has the node's epoch. No older one can commit.
    pub(super) fn is_picking(&self, node: usize) -> bool {
        let epoch = self.nodes[node].epoch;
        let is_its = |pick: &Statement| pick.kind == Kind::Pick && pick.node == node && pick.epoch == epoch;
        self.statements.iter().flatten().any(is_its)
    }

    /// Whether a statement in PostgreSQL holds the fence.
    pub(super) fn is_fence_held(&self) -> bool {
        let holds = |statement: &Statement| statement.read.is_some() && statement.epoch == self.fence;
        self.statements.iter().flatten().any(holds)
    }

    /// Whether a statement in PostgreSQL has its snapshot and its locks.
    pub(super) fn is_executing(&self) -> bool {
        self.statements.iter().flatten().any(|statement| statement.read.is_some())
    }

    /// The task of which an ordered lane gives the first: the one that was started in order, or else the first that is
    /// due.
    pub(super) fn head(&self) -> Option<usize> {
        let is_live = |at: &usize| !matches!(self.tasks[*at].place, Place::Absent | Place::Finished);
        let rank = |at: &usize| (!self.tasks[*at].is_marked, self.tasks[*at].has_failed, *at);
        (0..2).filter(is_live).min_by_key(rank)
    }

    pub(super) fn start(&mut self, at: usize, known: u8) {
        let is_behind = at == 1 && self.tasks[0].is_promised && self.tasks[0].place != Place::Finished;
        let task = &mut self.tasks[at];
        task.place = Place::Out;
        task.is_marked |= known == GATED;
        self.was_overtaken |= self.policy == Policy::Ordered && task.is_promised && is_behind;
        self.was_started_by_old_policy |= task.is_promised && known == PLAIN;
    }

    pub(super) fn accept(&mut self, at: usize) {
        self.tasks[at].place = Place::Scheduled;
        self.tasks[at].is_promised = self.is_answered;
    }

    /// An attempt fails: the task is due again later.
    pub(super) fn fail(&mut self, at: usize, without: Option<Guard>) {
        let task = &mut self.tasks[at];
        (task.place, task.has_failed) = (Place::Scheduled, true);
        task.is_marked &= without != Some(Guard::MarkStays);
    }
}
