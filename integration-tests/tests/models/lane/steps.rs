//! The steps of nodes and statements that a guard changes.

use super::{
    Guard, Lanes,
    state::{Action, EPOCHS, GATED, Kind, Place, Policy, State, Statement, Task, Work},
};

impl Lanes {
    /// What a node may do next.
    pub(super) fn node(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[at];
        if node.known < state.home {
            actions.push(Action::Learn(at));
        }
        if state.fence < EPOCHS && !(state.is_fence_held() && self.has(Guard::FenceLock)) {
            actions.push(Action::TakeOver(at));
        }
        let may_count = match node.work {
            Work::Idle => !state.is_picking(at) || !self.has(Guard::OnePick),
            Work::Asked => !self.has(Guard::OnePick),
            Work::Resting => !state.is_picking(at) || !self.has(Guard::Rest),
            Work::Counted(_) => false,
        };
        let is_owner = node.epoch > 0 || !self.has(Guard::CountAfterAcquire);
        if may_count && is_owner && has_room(state, node.known) {
            actions.push(Action::Count(at));
        }
        let has_place = state.statements.contains(&None);
        match node.work {
            Work::Counted(_) if node.epoch > 0 && has_place => actions.push(Action::Pick(at)),
            Work::Asked => actions.push(Action::GiveUp(at)),
            _ => {}
        }
        for (task, row) in state.tasks.iter().enumerate() {
            if row.place == Place::Scheduled && node.epoch == state.fence {
                actions.push(Action::Claim(at, task));
            }
        }
    }

    /// A statement takes its snapshot and its locks, and decides what it is to start.
    pub(super) fn read(&self, state: &mut State, at: usize) -> Option<()> {
        let mut statement = state.statements[at]?;
        let is_fenced = statement.epoch == state.fence || !self.has(Guard::Epoch);
        let has_turned = statement.known < state.turn;
        let task = match statement.kind {
            Kind::Insert(task) => (!has_turned || !self.has(Guard::ClaimRevision)).then_some(task),
            Kind::Pick if has_turned && self.has(Guard::PickRevision) => None,
            Kind::Pick => self.ready(state, statement.known),
        };
        statement.read = Some(task.filter(|_| is_fenced));
        state.statements[at] = Some(statement);
        Some(())
    }

    /// The task that a pick by this policy would start.
    fn ready(&self, state: &State, known: u8) -> Option<usize> {
        let is_ready = |at: &usize| state.tasks[*at].place == Place::Ready;
        if known == GATED && state.policy == Policy::Ordered && self.has(Guard::Head) {
            return state.head().filter(is_ready);
        }
        (0..2).find(is_ready)
    }

    /// The statement writes and commits: the row is checked as it is now.
    pub(super) fn write(&self, state: &mut State, at: usize) -> Option<()> {
        let Statement { kind, node, known, is_awaited, read, .. } = state.statements[at].take()?;
        let task = read?;
        match (kind, task) {
            (Kind::Insert(task), claimed) => {
                state.accept(task);
                if claimed.is_some() {
                    state.start(task, known);
                }
            }
            (Kind::Pick, Some(task)) if state.tasks[task].place == Place::Ready => state.start(task, known),
            (Kind::Pick, _) => {}
        }
        if is_awaited && kind == Kind::Pick {
            state.nodes[node].work = Work::Idle;
        }
        Some(())
    }

    /// A claim is a compare-and-set on the row, by a node that owns the shard. A node that knows of the order or the
    /// limit makes the task ready.
    pub(super) fn claim(&self, state: &mut State, node: usize, task: usize) {
        let known = state.nodes[node].known;
        if known < state.turn && self.has(Guard::ClaimRevision) {
            return;
        }
        if known == GATED && self.has(Guard::Gate) {
            state.tasks[task].place = Place::Ready;
        } else {
            state.start(task, known);
        }
    }

    pub(super) fn take_over(&self, state: &mut State, node: usize) {
        state.fence += 1;
        state.forget(node);
        state.nodes[node].epoch = state.fence;
        if self.has(Guard::CountAfterAcquire) || !matches!(state.nodes[node].work, Work::Counted(_)) {
            state.nodes[node].work = Work::Idle;
        }
    }
}

/// Whether a task is ready and there is room for it, by the policy of this revision. An ordered queue needs no count.
fn has_room(state: &State, known: u8) -> bool {
    let is_out = |task: &Task| task.place == Place::Out && task.is_marked;
    let is_limited = known == GATED && state.policy == Policy::Limited;
    state.tasks.iter().any(|task| task.place == Place::Ready) && !(is_limited && state.tasks.iter().any(is_out))
}
