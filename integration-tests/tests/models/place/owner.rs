//! The loop that owns shards (`loops::cluster::owner`).

use super::{
    Guard, Places,
    action::Action,
    state::{
        Act, DATABASES, Held, Node, State,
        Status::{Arriving, Gone},
    },
};

impl Places {
    /// The steps of `common::cluster::ownership`, and those of acts that are under way.
    pub(super) fn owner(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[at];
        for database in 0..DATABASES {
            let is_refused = |held: Held| !held.is_draining && held.epoch != state.rows[database].epoch;
            if node.held[database].is_some_and(is_refused) {
                actions.push(Action::Refuse(at, database));
            }
        }
        if self.followed(node) != node.held {
            actions.push(Action::Follow(at));
        }
        match node.act {
            Act::Asked { .. } => {
                actions.push(Action::Take(at, true));
                if state.left.faults > 0 {
                    actions.push(Action::Take(at, false));
                }
            }
            Act::Taken { .. } => actions.push(Action::Confirm(at)),
            Act::Releasing { .. } => actions.push(Action::EndRelease(at)),
            Act::None => self.act(state, at, actions),
        }
    }

    fn act(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[at];
        let (is_mine, is_anothers) = (state.key == Some(at), state.key.is_some_and(|key| key != at));
        let is_assigned = state.assigned == at;
        let Some(place) = node.place else { return };
        if node.is_owner() {
            if is_anothers {
                actions.push(Action::Drop(at));
            } else if !is_assigned {
                actions.push(Action::Release(at));
            } else if !is_mine {
                actions.push(Action::Register(at));
            }
        } else if is_assigned && !is_anothers {
            // An acquire that would find no row changes nothing, so it need not be a step.
            if self.would_take(state, place.database, place.is_closed()) {
                actions.push(Action::Ask(at));
            }
        } else if is_mine {
            actions.push(Action::Abandon(at));
        }
    }

    /// `shard_acquire.sql`.
    fn would_take(&self, state: &State, database: usize, even_closed: bool) -> bool {
        match state.rows[database].status {
            Arriving => false,
            Gone => self.takes_closed(even_closed),
            _ => true,
        }
    }

    fn takes_closed(&self, even_closed: bool) -> bool {
        even_closed && self.has(Guard::TakeClosed) || !self.has(Guard::ClosedOnly)
    }

    pub(super) fn own(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Follow(at) => self.follow(state, at),
            Action::Refuse(at, database) => state.nodes[at].held[database] = None,
            Action::Ask(at) => {
                let place = state.nodes[at].place?;
                state.key = Some(at);
                state.nodes[at].act = Act::Asked { database: place.database, even_closed: place.is_closed() };
            }
            Action::Take(at, is_answered) => self.take(state, at, is_answered)?,
            Action::Confirm(at) => self.confirm(state, at)?,
            Action::Drop(at) => state.nodes[at].held = [None; DATABASES],
            Action::Release(at) => {
                let node = &mut state.nodes[at];
                let database = node.place?.database;
                node.act = Act::Releasing { database };
                if let Some(held) = &mut node.held[database] {
                    held.is_draining = true;
                }
            }
            Action::EndRelease(at) => {
                let Act::Releasing { database } = state.nodes[at].act else { return None };
                state.key = state.key.filter(|key| *key != at);
                state.nodes[at].held[database] = None;
                state.nodes[at].act = Act::None;
            }
            Action::Abandon(_) => state.key = None,
            Action::Register(at) => state.key = Some(at),
            _ => return None,
        }
        Some(())
    }

    fn take(&self, state: &mut State, at: usize, is_answered: bool) -> Option<()> {
        let Act::Asked { database, even_closed } = state.nodes[at].act else { return None };
        state.nodes[at].act = Act::None;
        if self.would_take(state, database, even_closed) {
            let epoch = state.rows[database].epoch + u8::from(self.has(Guard::Epoch));
            state.mint(database, epoch);
            state.rows[database].owner = Some(at);
            if is_answered {
                state.nodes[at].act = Act::Taken { database, epoch };
            }
        }
        Some(())
    }

    /// The key is still this node's: it adopts the shard, wherever the map shows it by now.
    fn confirm(&self, state: &mut State, at: usize) -> Option<()> {
        let node = &mut state.nodes[at];
        let Act::Taken { database, epoch } = node.act else { return None };
        node.act = Act::None;
        if state.key == Some(at) {
            node.held[database] = Some(Held { epoch, is_acquired: true, is_draining: false, is_closed: false });
        }
        Some(())
    }

    fn follow(&self, state: &mut State, at: usize) {
        let followed = self.followed(&state.nodes[at]);
        let is_given_up = |database: usize| {
            let is_used = state.nodes[at].held[database].is_some_and(|held| !held.is_draining);
            is_used && state.can_claim(at, database) && followed[database].is_none()
        };
        state.was_given_up |= state.assigned == at && (0..DATABASES).any(is_given_up);
        state.nodes[at].held = followed;
    }

    /// `Owner::follow`: the fences that the node still holds, by its map.
    fn followed(&self, node: &Node) -> [Option<Held>; DATABASES] {
        let Some(place) = node.place else { return node.held };
        std::array::from_fn(|database| {
            let held = node.held[database]?;
            if place.database != database {
                let is_newer = place.epoch > held.epoch || !self.has(Guard::NewerEpoch);
                let is_acquired = held.is_acquired && self.has(Guard::Acquired);
                return (!is_newer && !is_acquired).then_some(Held { is_closed: false, ..held });
            }
            if place.is_closed() {
                let is_closed = held.is_closed || !held.is_draining;
                return Some(Held { is_draining: true, is_closed, ..held });
            }
            let resumes = held.is_closed && node.act == Act::None && self.has(Guard::Resume);
            Some(Held { is_draining: held.is_draining && !resumes, is_closed: false, ..held })
        })
    }
}
