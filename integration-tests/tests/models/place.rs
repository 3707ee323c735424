//! Which database has a shard, as each node believes it, and which node dispatches it from there.
//!
//! The shard moves to the second database and perhaps back. Each node has a map of its own, which it reads one database
//! after the other at any time, and the fences that it holds. Its owner loop and its mover change both, step by step.
//! The assignment changes at any time, a node may lose its lease or crash, and answers of statements may be lost.
//!
//! A move back is asked for once each node's map shows the end of the first: a move ends 5 s after its cut, and a look
//! takes 1 s at most. Two looks are not under way at once.
//!
//! Left out: what is copied (`cuts`), how the assignment is made and seen (`masters`), and moves that are called off.
//! Of the statements that are executed after their node has given up on them, the model has the one that began the
//! first move.

#[path = "place/action.rs"]
mod action;
#[path = "place/map.rs"]
mod map;
#[path = "place/mover.rs"]
mod mover;
#[path = "place/owner.rs"]
mod owner;
#[path = "place/state.rs"]
mod state;

use stateright::{Model, Property};

use self::{
    action::Action,
    state::{Bounds, DATABASES, NODES, Node, OPENS_ABOVE, State, Status},
};
use super::search::{Guarded, explore};

/// What may happen in each of the spaces that are explored.
const BOUNDS: [Bounds; 4] = [
    Bounds { moves_back: 0, assignments: 2, faults: 0 },
    Bounds { moves_back: 0, assignments: 0, faults: 2 },
    Bounds { moves_back: 0, assignments: 1, faults: 1 },
    Bounds { moves_back: 1, assignments: 0, faults: 1 },
];

/// The first of them show each fault that the guards prevent, some together with [`INTERRUPTED`].
const BOUNDS_OF_GUARDS: usize = 2;

/// The last of them shows the fault that [`Guard::SeenTarget`] prevents.
const BOUNDS_WITH_MOVE_BACK: usize = 3;

/// What may happen in the space that begins with an interrupted cut.
const INTERRUPTED: Bounds = Bounds { moves_back: 0, assignments: 0, faults: 2 };

/// The invariant that [`Guard::OpenFarAbove`] keeps.
const ONE_OWNER: &str = "G4 an epoch has one owner, in one database";

/// What keeps the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// An acquire raises the epoch. Without it the acquire takes the epoch that it finds.
    Epoch,
    /// A fence that an acquire has taken is given up once the map shows the shard elsewhere, whatever the epochs.
    Acquired,
    /// Claims go on when the source has opened the shard again.
    Resume,
    /// A map that is older than the held fence takes nothing away.
    NewerEpoch,
    /// The fence of a closed shard is taken only where the map shows the shard closed.
    ClosedOnly,
    /// It is taken there, so that its new owner ends the cut.
    TakeClosed,
    /// A look that an own move has overtaken is not put in force.
    MovesCounted,
    /// The target opens under an epoch above those of the source.
    OpenAbove,
    /// That epoch is also above those of nodes that take the fence of the closed source meanwhile.
    OpenFarAbove,
    /// A cut that the target refuses already is undone. Without it the mover only tries to end the cut.
    UndoRefused,
    /// A database begins to receive the shard only as the mover has seen it.
    SeenTarget,
}

/// The model without one guard, or with all.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    without: Option<Guard>,
}

impl Guarded for Places {
    type Guard = Guard;
    const NAME: &'static str = "places";
    const GUARDS: &'static [(Guard, &'static str)] = &[
        (Guard::Epoch, "G4"),
        (Guard::Acquired, "G6"),
        (Guard::Resume, "G6"),
        (Guard::NewerEpoch, "G5"),
        (Guard::ClosedOnly, "G5"),
        (Guard::TakeClosed, "G6"),
        (Guard::MovesCounted, "G5"),
        (Guard::OpenAbove, "G5"),
        (Guard::OpenFarAbove, ONE_OWNER),
        (Guard::UndoRefused, "G6"),
        (Guard::SeenTarget, "G6"),
    ];

    fn without(guard: Option<Guard>) -> Self {
        Self { without: guard }
    }
}

impl Places {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    /// How far an open raises the epoch. Where a guard is taken out it does so by one: the gap prevents the
    /// faults that [`Guard::Acquired`], [`Guard::ClosedOnly`] and [`Guard::OpenAbove`] have to prevent, too.
    fn opens_above(&self) -> u8 {
        if self.without.is_none() { OPENS_ABOVE } else { 1 }
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        if state.left.assignments > 0 {
            actions.push(Action::Assign);
        }
        let is_shown = |node: &Node| node.look.is_none() && node.known.iter().all(Option::is_some);
        if state.left.moves_back > 0 && state.source.is_none() && state.nodes.iter().all(is_shown) {
            actions.push(Action::MoveBack);
        }
        if state.left.faults > 0 {
            actions.extend((0..NODES).map(Action::Crash));
            actions.extend((0..NODES).filter(|node| state.key == Some(*node)).map(Action::LoseLease));
            // The second database had no epoch when the first move began.
            let row = state.rows[1];
            if row.status == Status::Gone && (row.epoch == 0 || !self.has(Guard::SeenTarget)) {
                actions.push(Action::ArriveLate);
            }
        }
    }

    fn crash(state: &mut State, at: usize) {
        state.nodes[at] = Node::started();
        state.key = state.key.filter(|key| *key != at);
        for row in &mut state.rows {
            row.owner = row.owner.filter(|owner| *owner != at);
        }
    }
}

impl Model for Places {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let explored = match self.without {
            None => &BOUNDS[..],
            Some(Guard::SeenTarget) => &BOUNDS[BOUNDS_WITH_MOVE_BACK..],
            Some(_) => &BOUNDS[..BOUNDS_OF_GUARDS],
        };
        let first = explored.iter().map(|bounds| State::first(*bounds));
        first.chain([State::interrupted(INTERRUPTED)]).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for at in 0..NODES {
            self.look(state, at, actions);
            self.owner(state, at, actions);
            self.mover(state, at, actions);
        }
        self.faults(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Assign => {
                next.assigned = 1 - next.assigned;
                next.left.assignments -= 1;
            }
            Action::MoveBack => {
                next.source = (0..DATABASES).find(|database| next.rows[*database].status == Status::Here);
                next.left.moves_back -= 1;
            }
            Action::LoseLease(_) => next.key = None,
            Action::ArriveLate => {
                Self::turn(&mut next, 1, Status::Arriving);
                next.rows[1].move_epoch = 1;
            }
            Action::Crash(at) => Self::crash(&mut next, at),
            Action::Read(at, database) => self.read(&mut next, at, database, true),
            Action::Miss(at, database) => self.read(&mut next, at, database, false),
            _ => match action.mover() {
                Some(at) => self.go_on(&mut next, at, action)?,
                None => self.own(&mut next, action)?,
            },
        }
        if action.is_fault() && !matches!(action, Action::Assign | Action::MoveBack) {
            next.left.faults -= 1;
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("G4 one node claims from the shard, in one database", |_, state: &State| {
                let claims = (0..NODES).flat_map(|node| (0..DATABASES).map(move |database| (node, database)));
                let is_doubled = |database: usize| {
                    let [one, other] = [0, 1].map(|node| state.nodes[node].held[database].map(|held| held.epoch));
                    one.is_some() && one == other
                };
                let are_open = state.rows.iter().all(|row| row.status.is_open());
                let count = claims.filter(|(node, database)| state.can_claim(*node, *database)).count();
                count <= 1 && !are_open && !(0..DATABASES).any(is_doubled)
            }),
            Property::always(ONE_OWNER, |_, state: &State| !state.was_minted_twice),
            Property::always("G5 no node gives up a fence in force for its map", |_, state: &State| {
                !state.was_given_up
            }),
            Property::always("G6 the assigned node dispatches the shard in the end", |model: &Self, state| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                let goes_on = |action: &Action| !action.is_fault() && model.next_state(state, *action).is_some();
                actions.iter().any(goes_on) || state.is_whole()
            }),
        ]
    }
}

#[test]
fn a_shard_is_dispatched_from_where_it_is_whatever_the_nodes_believe() {
    explore::<Places>();
}
