//! One task that waits for two others: its write, their successes and the looks at it, in every order.
//!
//! The writer of a success looks for tasks that wait for it, and the writer of a waiting task looks at that task.
//! Both look after their commit. A look runs as PostgreSQL runs a statement in READ COMMITTED: it takes its snapshot,
//! and any time later it locks the row and checks that as it is by then. It passes over a row that another
//! transaction holds. The tasks of the names are read in the snapshot. The dependant may be submitted again in place
//! while it waits, with more to wait for. A name may get a newer task, and a task that succeeded is dropped after its
//! time. Nodes die with the looks that they owe; the next owner looks at the row's `wake_at`, as often as it likes.

#[path = "depend/circle.rs"]
mod circle;
#[path = "depend/state.rs"]
mod state;
#[path = "depend/steps.rs"]
mod steps;

use stateright::{Model, Property};

use self::state::{Action, Look, NAMES, Place, Put, State};
use super::search::{Guarded, explore};

/// What keeps the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The writer of a waiting task looks after its commit. Without it the write decides, by its own snapshot.
    LookAfterCommit,
    /// The writer of a success looks for tasks that wait for it.
    LookAfterSuccess,
    /// A look that finds the row held is repeated.
    AskAgain,
    /// A waiting row has a time at which its owner looks again.
    WakeAt,
    /// A look judges a row that is as its snapshot shows it. Without it the look judges the row as it is by then, with
    /// the successes of the snapshot.
    Unchanged,
    /// A task waits for all that it names.
    All,
}

/// The model without one guard, or with all.
#[derive(Clone, Debug)]
pub(crate) struct Depends {
    without: Option<Guard>,
}

impl Guarded for Depends {
    type Guard = Guard;
    const NAME: &'static str = "depends";
    const GUARDS: &'static [(Guard, &'static str)] = &[
        (Guard::LookAfterCommit, "G1"),
        (Guard::LookAfterSuccess, "G1"),
        (Guard::AskAgain, "G1"),
        (Guard::WakeAt, "G1"),
        (Guard::Unchanged, "G10"),
        (Guard::Unchanged, "G5"),
        (Guard::All, "G10"),
    ];

    fn without(guard: Option<Guard>) -> Self {
        Self { without: guard }
    }
}

impl Depends {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    /// Whether a waiting task that no open task holds back any more goes on: without the death of a node at once, and
    /// otherwise at its `wake_at`.
    fn goes_on(&self, state: &State) -> bool {
        let is_open = state.waits & !(state.succeeded | state.dropped) != 0;
        if state.place != Place::Waiting || is_open || state.is_busy() {
            return true;
        }
        !state.is_lucky && self.has(Guard::WakeAt) && state.waits & state.dropped == 0
    }

    fn puts(state: &State, actions: &mut Vec<Action>) {
        for (at, put) in state.puts.iter().enumerate() {
            let may_come = match at {
                0 => true,
                _ => matches!(state.place, Place::Waiting | Place::Scheduled) && !state.is_held(),
            };
            match put {
                Put::Unsent if may_come => actions.push(Action::Write(at)),
                Put::Written { .. } => actions.push(Action::Commit(at)),
                Put::Unsent | Put::Ended => {}
            }
        }
    }

    /// What becomes of the tasks that the dependant names.
    fn names(state: &State, actions: &mut Vec<Action>) {
        for name in NAMES {
            if (state.succeeded | state.dropped) & name == 0 {
                actions.push(Action::Succeed(name));
            }
            let is_waited_for = state.waits & name != 0 || state.puts[1] != Put::Ended;
            if state.succeeded & name != 0 && !is_waited_for && state.place == Place::Waiting {
                actions.push(Action::Drop(name));
            }
        }
        if state.succeeded & NAMES[0] != 0 && !state.is_renewed {
            actions.push(Action::Renew);
        }
    }

    fn looks(&self, state: &State, actions: &mut Vec<Action>) {
        let is_woken = !state.is_lucky && self.has(Guard::WakeAt) && state.place == Place::Waiting;
        if state.looks.contains(&None) {
            if state.owes_row || is_woken {
                actions.push(Action::LookAtRow);
            }
            let owed = NAMES.into_iter().filter(|name| state.owes_names & name != 0);
            actions.extend(owed.map(Action::LookForName));
        }
    }
}

impl Model for Depends {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, look) in state.looks.iter().enumerate() {
            match look {
                Some(Look { held: None, .. }) => actions.push(Action::Lock(at)),
                Some(_) => actions.push(Action::Release(at)),
                None => {}
            }
        }
        if state.place == Place::Started {
            return;
        }
        Self::puts(state, actions);
        Self::names(state, actions);
        self.looks(state, actions);
        if state.place == Place::Scheduled && !state.is_held() {
            actions.push(Action::Start);
        }
        if state.is_lucky {
            actions.push(Action::Crash);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Write(at) => self.write(&mut next, at),
            Action::Commit(at) => self.commit(&mut next, at)?,
            Action::Succeed(name) => self.succeed(&mut next, name),
            Action::Renew => (next.succeeded, next.is_renewed) = (next.succeeded & !NAMES[0], true),
            Action::Drop(name) => (next.succeeded, next.dropped) = (next.succeeded & !name, next.dropped | name),
            Action::LookAtRow => {
                next.owes_row = false;
                next.look(true)?;
            }
            Action::LookForName(name) => {
                next.owes_names &= !name;
                let is_wanted = next.waits & name != 0;
                next.look(is_wanted)?;
            }
            Action::Lock(at) => self.lock(&mut next, at)?,
            Action::Release(at) => self.release(&mut next, at)?,
            Action::Start => next.start(),
            Action::Crash => next.crash(),
        }
        next.looks.sort_unstable();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("G1 a task whose wait is over goes on", Self::goes_on),
            Property::always("G5 a task that was started is not let go again", |_, state: &State| {
                !state.was_started_twice
            }),
            Property::always("G10 a task starts after all that it names have succeeded", |_, state: &State| {
                !state.was_early
            }),
        ]
    }
}

#[test]
fn a_task_that_waits_for_others_starts_after_them_in_whatever_order_they_come() {
    explore::<Depends>();
}
