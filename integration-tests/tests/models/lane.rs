//! Two tasks of one partition key, in a queue that becomes ordered or limited to one task at a time.
//!
//! A pick and an insert that claims its task run as PostgreSQL runs a statement in READ COMMITTED. They take their
//! snapshot and lock the fence, and the table of the fences with it. Later they lock the row and check it again as it
//! is by then. They may be executed long after their node has given up on them. A claim is one compare-and-set, so it
//! is one step. The unique index of what was started in order is not in the model: the order holds without it.
//!
//! The new policy is written in the queues' home database, noted in that of the tasks, and answered. Nodes learn of
//! it at any time. What is promised concerns the tasks that are accepted after the answer.

#[path = "lane/state.rs"]
mod state;
#[path = "lane/steps.rs"]
mod steps;

use stateright::{Model, Property};

use self::state::{Action, GATED, Kind, PLAIN, Place, Policy, State, Task, Work};
use super::search::{Guarded, explore};

/// What keeps the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// A claim, also one by an insert, presents the revision of the queues that its node knows.
    ClaimRevision,
    /// A pick does too.
    PickRevision,
    /// A change of the queue waits for the statements that hold a fence.
    AwaitClaims,
    /// A change is answered after the database of the tasks has noted it.
    AnswerAfterTurn,
    /// A claim of a queue with an order or a limit makes the task ready.
    Gate,
    /// An ordered lane gives only its head.
    Head,
    /// A task that was started under the order or the limit stays so over its retry.
    MarkStays,
    /// A pick locks the fence FOR SHARE. Without it the pick reads the fence in its snapshot.
    FenceLock,
    /// A pick presents its epoch.
    Epoch,
    /// A node counts what is out after its acquire.
    CountAfterAcquire,
    /// A node has one pick of a queue under way.
    OnePick,
    /// A node that gave up on a pick counts again when that pick has ended.
    Rest,
}

/// The model without one guard, or with all.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    without: Option<Guard>,
}

impl Guarded for Lanes {
    type Guard = Guard;
    const NAME: &'static str = "lanes";
    const GUARDS: &'static [(Guard, &'static str)] = &[
        (Guard::ClaimRevision, "G12"),
        (Guard::PickRevision, "G12"),
        (Guard::AwaitClaims, "G12"),
        (Guard::AnswerAfterTurn, "G12"),
        (Guard::Gate, "G8"),
        (Guard::Head, "G8"),
        (Guard::MarkStays, "G8"),
        (Guard::FenceLock, "G8"),
        (Guard::Epoch, "G8"),
        (Guard::CountAfterAcquire, "G8"),
        (Guard::OnePick, "G8"),
        (Guard::Rest, "G8"),
    ];

    fn without(guard: Option<Guard>) -> Self {
        Self { without: guard }
    }
}

impl Lanes {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    fn change(&self, state: &State, actions: &mut Vec<Action>) {
        if state.home == PLAIN {
            actions.push(Action::Change);
        } else if state.turn == PLAIN && !(state.is_executing() && self.has(Guard::AwaitClaims)) {
            actions.push(Action::Turn);
        }
        let is_noted = state.turn == GATED || state.home == GATED && !self.has(Guard::AnswerAfterTurn);
        if is_noted && !state.is_answered {
            actions.push(Action::Answer);
        }
    }

    /// What senders and consumers do. The second task is accepted after the first.
    fn tasks(state: &State, actions: &mut Vec<Action>) {
        let is_inserting = |at| state.statements.iter().flatten().any(|statement| statement.kind == Kind::Insert(at));
        for (at, task) in state.tasks.iter().enumerate() {
            match task.place {
                Place::Absent if (at == 0 || state.tasks[0].place != Place::Absent) && !is_inserting(at) => {
                    actions.push(Action::Accept(at));
                    let may_claim = |node: &usize| state.nodes[*node].epoch > 0 && state.nodes[*node].known == PLAIN;
                    if state.statements.contains(&None) {
                        actions.extend((0..2).filter(may_claim).map(|node| Action::Insert(node, at)));
                    }
                }
                Place::Out => {
                    actions.push(Action::Finish(at));
                    if at == 0 && !task.has_failed {
                        actions.push(Action::Fail(at));
                    }
                }
                _ => {}
            }
        }
    }
}

impl Model for Lanes {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(Policy::Ordered), State::first(Policy::Limited)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.tasks[1].place == Place::Finished {
            return;
        }
        self.change(state, actions);
        Self::tasks(state, actions);
        for at in 0..2 {
            self.node(state, at, actions);
        }
        for (at, statement) in state.statements.iter().enumerate() {
            match statement {
                Some(statement) if statement.read.is_some() => actions.push(Action::Write(at)),
                Some(_) => actions.extend([Action::Read(at), Action::Lose(at)]),
                None => {}
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Change => next.home = GATED,
            Action::Turn => next.turn = GATED,
            Action::Answer => next.is_answered = true,
            Action::Learn(node) => next.nodes[node].known = next.home,
            Action::TakeOver(node) => self.take_over(&mut next, node),
            Action::Accept(task) => next.accept(task),
            Action::Insert(node, task) => next.send(Kind::Insert(task), node, PLAIN)?,
            Action::Claim(node, task) => self.claim(&mut next, node, task),
            Action::Count(node) => {
                next.forget(node);
                next.nodes[node].work = Work::Counted(next.nodes[node].known);
            }
            Action::Pick(node) => {
                let Work::Counted(known) = next.nodes[node].work else { return None };
                next.nodes[node].work = Work::Asked;
                next.send(Kind::Pick, node, known)?;
            }
            Action::GiveUp(node) => {
                next.nodes[node].work = Work::Resting;
                next.forget(node);
            }
            Action::Read(at) => self.read(&mut next, at)?,
            Action::Write(at) => self.write(&mut next, at)?,
            Action::Lose(at) => next.statements[at] = None,
            Action::Finish(task) => next.tasks[task].place = Place::Finished,
            Action::Fail(task) => next.fail(task, self.without),
        }
        next.statements.sort_unstable();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("G8 one task at a time, in order where the queue asks for it", |_, state: &State| {
                let is_out = |task: &&Task| task.is_promised && task.place == Place::Out;
                state.tasks.iter().filter(is_out).count() <= 1 && !state.was_overtaken
            }),
            Property::always("G12 no task is started by a policy older than its acceptance", |_, state: &State| {
                !state.was_started_by_old_policy
            }),
        ]
    }
}

#[test]
fn an_order_and_a_limit_are_exact_and_in_force_across_changes_retries_and_takeovers() {
    explore::<Lanes>();
}
