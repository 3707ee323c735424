//! One task from its claim to its end: two nodes, takeovers, publishes of unknown outcome, attempts and a cancel.
//!
//! A claim and a rescue run as PostgreSQL runs a statement in READ COMMITTED. Such a statement takes its snapshot and
//! locks the fence; later it locks the row and checks that row again as it is by then. It may be executed long after
//! its node has given up on it or died. Statements that are one compare-and-set on the row are one step: whatever they
//! read before, PostgreSQL checks again on the row.

pub mod state;
mod steps;

use stateright::{Model, Property};

use self::state::{
    Action, Bounds, Copies, Kind, Node,
    Place::{Cancelled, Dead, Delivered, Dispatching, Scheduled, Succeeded},
    State, Statement, Work,
};
use super::search::Guarded;

/// What keeps the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A claim locks the fence FOR SHARE. Without it the claim reads the fence in its snapshot.
    FenceLock,
    /// A claim presents its epoch.
    Epoch,
    /// A claim checks the state on the row that it has locked.
    ClaimState,
    /// A claimed row has a time at which its owner looks again.
    LookAgain,
    /// A rescue leaves the row claimed. Without it the rescue takes the claim back.
    RescueInPlace,
    /// A rescue says that its message may be a copy.
    Mark,
    /// An unknown outcome is not a refusal. Without it the row goes back to `scheduled`.
    Unknown,
    /// Only a confirm settles. Without it an unknown outcome does too.
    SettleOnConfirm,
    /// A confirm names its attempt.
    SettleAttempt,
    /// A confirm applies to `dispatching` only.
    SettleState,
    /// A rejection names its attempt.
    RejectAttempt,
    /// A retry goes on counting attempts. Without it the count begins anew.
    AttemptGoesOn,
    /// A cancel takes unclaimed tasks only.
    CancelUnclaimed,
    /// `cancelled` is the answer for a task that was never claimed.
    CancelByAttempt,
}

/// The model without one guard, or with all.
#[derive(Clone, Debug)]
pub struct Claims {
    without: Option<Guard>,
    bounds: Bounds,
}

impl Guarded for Claims {
    type Guard = Guard;
    const NAME: &'static str = "claims";
    const GUARDS: &'static [(Guard, &'static str)] = &[
        (Guard::FenceLock, "G4"),
        (Guard::Epoch, "G4"),
        (Guard::ClaimState, "G5"),
        (Guard::LookAgain, "G1"),
        (Guard::RescueInPlace, "G3"),
        (Guard::Mark, "G5"),
        (Guard::Unknown, "G3"),
        (Guard::SettleOnConfirm, "G2"),
        (Guard::SettleAttempt, "G2"),
        (Guard::SettleState, "G2"),
        (Guard::RejectAttempt, "G2"),
        (Guard::AttemptGoesOn, "G3"),
        (Guard::CancelUnclaimed, "G3"),
        (Guard::CancelByAttempt, "G3"),
    ];

    fn without(guard: Option<Guard>) -> Self {
        Self { without: guard, bounds: Bounds::SMALL }
    }
}

impl Claims {
    /// The model with all guards, in bounds that a run needs.
    pub const fn within(bounds: Bounds) -> Self {
        Self { without: None, bounds }
    }

    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }
}

impl Model for Claims {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let node = Node { epoch: 0, work: Work::Idle };
        vec![State {
            place: Scheduled,
            attempt: 0,
            failed: 0,
            fence: 0,
            nodes: vec![node; self.bounds.nodes],
            statements: vec![None; self.bounds.statements],
            copies: vec![Copies::default(); usize::from(self.bounds.attempts)],
            is_promised: false,
            came_after_promise: false,
            was_taken_in_flight: false,
            was_claimed_under_old_epoch: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let is_over = matches!(state.place, Succeeded | Dead) || state.place == Cancelled && !state.is_promised;
        if is_over && self.bounds.ends_at_end {
            return;
        }
        let is_locked = self.has(Guard::FenceLock)
            && state.statements.iter().flatten().any(|statement| matches!(statement.read, Some((true, _))));
        for (at, node) in state.nodes.iter().enumerate() {
            // The nodes are alike, so the first is the first owner.
            let is_news = (at == 0 || state.fence > 0) && (state.fence == 0 || node.epoch != state.fence);
            if state.fence < self.bounds.epochs && (is_news || !self.bounds.ends_at_end) && !is_locked {
                actions.push(Action::TakeOver(at));
            }
            self.work_of(state, at, actions);
        }
        for (at, statement) in state.statements.iter().enumerate() {
            match statement {
                Some(Statement { kind: Kind::Claim | Kind::Rescue, read: None, .. }) => actions.push(Action::Read(at)),
                Some(_) => actions.push(Action::Write(at)),
                None => {}
            }
        }
        for (attempt, copies) in (1..).zip(&state.copies) {
            if copies.on_way > 0 {
                actions.push(Action::Arrive(attempt));
            }
            if copies.arrived > copies.rejected {
                actions.extend([Action::Reject(attempt), Action::Succeed(attempt)]);
            }
        }
        if state.place == Scheduled || state.place == Dispatching && !self.has(Guard::CancelUnclaimed) {
            actions.push(Action::Cancel);
        }
        if state.place == Dead && state.attempt < self.bounds.attempts {
            actions.push(Action::Revive);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::TakeOver(_) | Action::Crash(_) | Action::Claim(_) | Action::Rescue(_) | Action::GiveUp(_) => {
                next.by_owner(action)?;
            }
            Action::Read(at) => self.read(&mut next, at)?,
            Action::Write(at) => self.write(&mut next, at),
            Action::Publish(_) | Action::Arrive(_) | Action::Confirm(_) => next.by_broker(action)?,
            Action::Unknown(node) => self.unknown(&mut next, node),
            Action::Reject(attempt) => self.reject(&mut next, attempt),
            Action::Succeed(attempt) => {
                let is_known = attempt <= next.attempt && matches!(next.place, Scheduled | Dispatching | Delivered);
                next.place = if is_known { Succeeded } else { return None };
            }
            Action::Cancel => self.cancel(&mut next),
            Action::Revive => next.place = Scheduled,
        }
        next.statements.sort_unstable();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("G1 a task that is open goes on under its owner", Self::goes_on),
            Property::always("G2 an attempt ends only with what became of it at the broker", |_, state: &State| {
                state.is_true_to_the_broker()
            }),
            Property::always(
                "G3 no claimed task is cancelled, and nothing comes after `cancelled`",
                |_, state: &State| !state.came_after_promise && !state.was_taken_in_flight,
            ),
            Property::always("G4 no claim under an old epoch", |_, state: &State| !state.was_claimed_under_old_epoch),
            Property::always("G5 a copy says so, and an attempt follows a failed one", |_, state: &State| {
                let is_second = state.attempt > 1 && state.failed & (1 << (state.attempt - 1)) == 0;
                !is_second && state.copies.iter().all(|copies| copies.unmarked <= 1)
            }),
        ]
    }
}

impl Claims {
    /// What a node may do next.
    fn work_of(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[at];
        if node.epoch > 0 {
            actions.push(Action::Crash(at));
        }
        let has_room = state.statements.iter().any(Option::is_none);
        match node.work {
            Work::Idle if node.epoch > 0 && has_room => match state.place {
                Scheduled if state.attempt < self.bounds.attempts => actions.push(Action::Claim(at)),
                Dispatching if self.has(Guard::LookAgain) => actions.push(Action::Rescue(at)),
                _ => {}
            },
            Work::Idle => {}
            Work::Asked => actions.push(Action::GiveUp(at)),
            Work::Held { attempt, .. } => {
                // A message that was held for too long is let go; a rescue looks at its task.
                actions.push(Action::GiveUp(at));
                let copies = &state.copies[usize::from(attempt - 1)];
                if copies.on_way + copies.arrived < self.bounds.copies {
                    actions.push(Action::Publish(at));
                }
            }
            Work::Sent(attempt) => {
                if state.copies[usize::from(attempt - 1)].arrived > 0 && has_room {
                    actions.push(Action::Confirm(at));
                }
                actions.push(Action::Unknown(at));
            }
        }
    }

    /// Whether the owner, the statements under way or the network can still do something for an open task. The bound of
    /// copies belongs to the model, not to Duetime.
    fn goes_on(&self, state: &State) -> bool {
        let owner = state.nodes.iter().position(|node| node.epoch > 0 && node.epoch == state.fence);
        let (Some(owner), true) = (owner, state.is_open()) else { return true };
        let is_at_bound = |copies: &Copies| copies.on_way + copies.arrived >= self.bounds.copies;
        if state.copies.iter().any(is_at_bound) {
            return true;
        }
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions.iter().any(|action| match action {
            Action::Claim(node) | Action::Rescue(node) => *node == owner,
            Action::Read(_) | Action::Write(_) | Action::Publish(_) | Action::Arrive(_) | Action::Confirm(_) => true,
            _ => false,
        })
    }
}
