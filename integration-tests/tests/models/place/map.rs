//! How a node reads the places and puts them in force (`store::Places` and `common::shard::ShardMap`).

use super::{
    Guard, Places,
    action::Action,
    state::{
        DATABASES, Look, Place, Seen, State,
        Status::{self, Arriving, Gone, Here},
    },
};

impl Places {
    /// A node looks when a database shows a new revision, or when a look was wasted. One look is under way at a time.
    pub(super) fn look(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[at];
        let is_wanted = node.is_look_wanted || node.known.iter().any(Option::is_none);
        let may_begin = is_wanted && state.nodes.iter().all(|node| node.look.is_none());
        let is_left = |database: &usize| match node.look {
            Some(look) => look.rows[*database].is_none(),
            None => may_begin,
        };
        for database in (0..DATABASES).filter(is_left) {
            actions.push(Action::Read(at, database));
            if state.left.faults > 0 {
                actions.push(Action::Miss(at, database));
            }
        }
    }

    /// One database is read, or cannot be. While its revision is the known one, the known row counts, with its old
    /// epoch. The second of them ends the look.
    pub(super) fn read(&self, state: &mut State, at: usize, database: usize, is_readable: bool) {
        let row = state.rows[database];
        let node = &mut state.nodes[at];
        let epoch = node.known[database].unwrap_or(row.epoch);
        let seen = Seen { status: row.status, epoch, is_current: true };
        node.is_look_wanted = false;
        let mut look = node.look.take().unwrap_or_default();
        look.rows[database] = Some(is_readable.then_some(seen));
        if look.rows.iter().any(Option::is_none) {
            node.look = Some(look);
            return;
        }
        let rows = look.rows.map(Option::flatten);
        // The reader of the map looks again until it has read each database in one look.
        node.is_look_wanted = rows.contains(&None);
        for ((known, is_read), seen) in node.known.iter_mut().zip(&mut node.is_read).zip(rows) {
            *known = seen.map_or(*known, |seen| seen.is_current.then_some(seen.epoch));
            *is_read |= seen.is_some();
        }
        if look.is_overtaken && self.has(Guard::MovesCounted) {
            node.is_look_wanted = true;
        } else {
            node.place = after(node.place, rows, node.is_read);
        }
    }

    /// The status of a row changes, and with it the revision that its database shows.
    pub(super) fn turn(state: &mut State, database: usize, status: Status) {
        state.rows[database].status = status;
        for node in &mut state.nodes {
            node.known[database] = None;
            if let Some(Look { rows, .. }) = &mut node.look
                && let Some(Some(seen)) = &mut rows[database]
            {
                seen.is_current = false;
            }
        }
    }

    /// `Places::moved`: the node itself has opened the shard in `database`.
    pub(super) fn moved(state: &mut State, at: usize, database: usize, epoch: u8) {
        let node = &mut state.nodes[at];
        node.place = Some(Place { database, status: Here, epoch });
        if let Some(look) = &mut node.look {
            look.is_overtaken = true;
        }
    }
}

/// `ShardMap::after`.
fn after(known: Option<Place>, rows: [Option<Seen>; DATABASES], is_read: [bool; DATABASES]) -> Option<Place> {
    let mut found: Option<Place> = None;
    for (database, seen) in rows.iter().enumerate() {
        let Some(Seen { status, epoch, .. }) = seen.filter(|seen| seen.status != Arriving) else { continue };
        let rank = |place: &Place| (place.status.is_open(), place.epoch);
        let place = Place { database, status, epoch };
        if found.is_none_or(|found| rank(&place) > rank(&found)) {
            found = Some(place);
        }
    }
    let stays = |place: &Place| rows[place.database].is_none() && !found.is_some_and(|found| found.status.is_open());
    let was_there = |place: &Place| known.is_some_and(|known| known.database == place.database);
    let is_sure = |place: &Place| place.status.is_open() || !is_read.contains(&false) || was_there(place);
    known.filter(stays).or(found).filter(is_sure)
}

impl Place {
    pub(super) fn is_closed(self) -> bool {
        self.status == Gone
    }
}
