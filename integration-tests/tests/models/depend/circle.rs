//! Three tasks of one partition, each of which is to wait for the next: the last of them is refused.
//!
//! A write takes the partition's lock, looks along the chain of what waits, writes and commits; the lock ends with the
//! commit. Its statement has begun before it waits for the lock.

use stateright::{Model, Property};

use super::super::search::{Guarded, explore};

/// What keeps the guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// A write holds the lock of its partition.
    PartitionLock,
    /// The search along the chain has a snapshot of its own, taken under the lock. Without it the search reads in the
    /// snapshot with which the statement began.
    NewSnapshot,
    /// A write that finds itself in the chain is refused.
    Refuse,
}

/// The model without one guard, or with all.
#[derive(Clone, Debug)]
pub(crate) struct Circles {
    without: Option<Guard>,
}

impl Guarded for Circles {
    type Guard = Guard;
    const NAME: &'static str = "circles";
    const GUARDS: &'static [(Guard, &'static str)] =
        &[(Guard::PartitionLock, "G10"), (Guard::NewSnapshot, "G10"), (Guard::Refuse, "G10")];

    fn without(guard: Option<Guard>) -> Self {
        Self { without: guard }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Put {
    Unsent,
    /// It has begun, with a snapshot of what waits, and wants the lock.
    Begun([bool; 3]),
    Locked([bool; 3]),
    Written,
    Committed,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Begin(usize),
    Lock(usize),
    /// Looks along the chain; writes, or refuses.
    Judge(usize),
    Commit(usize),
}

impl Circles {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }
}

/// Which tasks wait, as a snapshot of this moment shows them.
fn waiting(puts: &[Put; 3]) -> [bool; 3] {
    puts.map(|put| put == Put::Committed)
}

impl Model for Circles {
    type State = [Put; 3];
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        vec![[Put::Unsent; 3]]
    }

    fn actions(&self, puts: &Self::State, actions: &mut Vec<Action>) {
        let is_locked = puts.iter().any(|put| matches!(put, Put::Locked(_) | Put::Written));
        for (at, put) in puts.iter().enumerate() {
            match put {
                Put::Unsent => actions.push(Action::Begin(at)),
                Put::Begun(_) if !is_locked || !self.has(Guard::PartitionLock) => actions.push(Action::Lock(at)),
                Put::Locked(_) => actions.push(Action::Judge(at)),
                Put::Written => actions.push(Action::Commit(at)),
                Put::Begun(_) | Put::Committed | Put::Refused => {}
            }
        }
    }

    fn next_state(&self, puts: &Self::State, action: Action) -> Option<Self::State> {
        let mut next = *puts;
        match action {
            Action::Begin(at) => next[at] = Put::Begun(waiting(puts)),
            Action::Lock(at) => {
                let Put::Begun(first) = puts[at] else { return None };
                next[at] = Put::Locked(if self.has(Guard::NewSnapshot) { waiting(puts) } else { first });
            }
            Action::Judge(at) => {
                let Put::Locked(waits) = puts[at] else { return None };
                let is_circle = (1..3).all(|further| waits[(at + further) % 3]);
                next[at] = if is_circle && self.has(Guard::Refuse) { Put::Refused } else { Put::Written };
            }
            Action::Commit(at) => next[at] = Put::Committed,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("G10 no tasks wait for one another in a circle", |_, puts: &[Put; 3]| {
            !waiting(puts).into_iter().all(|waits| waits)
        })]
    }
}

#[test]
fn tasks_that_would_wait_for_one_another_in_a_circle_do_not_all_come_in() {
    explore::<Circles>();
}
