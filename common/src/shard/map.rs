//! Which database has which shard, read from the fence rows of all databases.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ids::{DatabaseIndex, DatabaseName, Epoch, ShardId};

crate::labelled! {
    /// The place of a shard, as one database's fence row tells it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ShardStatus {
        /// The shard's tasks are in this database.
        Here = "here",
        /// They are, and another database receives a copy.
        Leaving = "leaving",
        /// They are in another database, or go through the last part of a move.
        Gone = "gone",
        /// This database receives a copy.
        Arriving = "arriving",
    }
}

impl ShardStatus {
    /// Whether statements may write the shard's tasks in this database.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Here | Self::Leaving)
    }
}

/// One row of a database's fence, as far as it tells places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceRow {
    pub shard: ShardId,
    pub status: ShardStatus,
    /// Of an arriving copy, the epoch of its source.
    pub epoch: Epoch,
}

/// The database of each shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardMap {
    /// By shard number. `None`: no database that was read has the shard.
    places: Vec<Option<Place>>,
    /// By database: shards that it has rows of, but whose place is another database.
    elsewhere: Vec<BTreeSet<ShardId>>,
    /// By database: whether its rows were ever read.
    is_read: Vec<bool>,
}

/// The database of a shard, and whether it is open for writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub database: DatabaseIndex,
    pub status: ShardStatus,
    /// The epoch of the fence when it was read.
    pub epoch: Epoch,
}

impl ShardMap {
    /// The map after a look at the databases, in their order. `None`: that database could not be read, and its shards
    /// stay where they were, unless another database has them now.
    ///
    /// A shard is in the database whose row is open. While no row is open, the last part of a move is under way: the
    /// shard counts as in its source, the closed row of the highest epoch, because only its owner there can finish it.
    /// But while a database was never read, the shard may have moved there long ago. Then it counts as in its source
    /// only if it was known to be there, or if its copy from there is still closed.
    #[must_use]
    pub fn after(&self, looks: &[Option<Vec<FenceRow>>]) -> Self {
        let was_read = |index: usize| self.is_read.get(index).copied().unwrap_or(false);
        let is_read = looks.iter().enumerate().map(|(index, rows)| rows.is_some() || was_read(index)).collect();
        let mut map = Self { places: Vec::new(), elsewhere: vec![BTreeSet::new(); looks.len()], is_read };
        for (index, rows) in looks.iter().enumerate() {
            for row in rows.iter().flatten() {
                map.consider(DatabaseIndex::new(index), *row);
            }
        }
        for (shard, place) in self.iter() {
            let is_unread = looks.get(place.database.get()).is_none_or(Option::is_none);
            let is_open = map.of(shard).is_some_and(|found| found.status.is_open());
            if is_unread && !is_open {
                map.put(shard, Some(place));
            }
        }
        if map.is_read.contains(&false) {
            let rows = looks.iter().flatten().flatten().filter(|row| row.status == ShardStatus::Arriving);
            map.forget_closed(self, &rows.map(|row| (row.shard, row.epoch)).collect());
        }
        for (index, rows) in looks.iter().enumerate() {
            let is_here = |shard| map.of(shard).is_some_and(|place| place.database.get() == index);
            let listed: BTreeSet<ShardId> = match rows {
                Some(rows) => rows.iter().map(|row| row.shard).filter(|shard| !is_here(*shard)).collect(),
                None => self.elsewhere(DatabaseIndex::new(index)).filter(|shard| !is_here(*shard)).collect(),
            };
            map.elsewhere[index] = listed;
        }
        map
    }

    /// Takes a row as the shard's place if it is a better one than the place so far.
    fn consider(&mut self, database: DatabaseIndex, row: FenceRow) {
        if row.status == ShardStatus::Arriving {
            return;
        }
        let rank = |place: &Place| (place.status.is_open(), place.epoch);
        let place = Place { database, status: row.status, epoch: row.epoch };
        if self.of(row.shard).is_none_or(|known| rank(&place) > rank(&known)) {
            self.put(row.shard, Some(place));
        }
    }

    /// Takes closed shards from the places at which `before` did not have them. `arriving`: the copies that are not
    /// open yet. One of the closed row is that of a cut. One of a later row has another source, or its cut is half
    /// undone: the two cannot be told apart before all databases are read.
    fn forget_closed(&mut self, before: &Self, arriving: &BTreeMap<ShardId, Epoch>) {
        for (index, place) in self.places.iter_mut().enumerate() {
            let Some(Place { database, status, epoch }) = *place else { continue };
            let shard = ShardId::new(u16::try_from(index).unwrap_or(u16::MAX));
            let was_there = before.of(shard).is_some_and(|known| known.database == database);
            let is_cut = arriving.get(&shard).is_some_and(|source| *source <= epoch);
            if !status.is_open() && !was_there && !is_cut {
                *place = None;
            }
        }
    }

    /// Notes that a shard is in `database` from now on, open under `epoch`.
    pub fn moved(&mut self, shard: ShardId, database: DatabaseIndex, epoch: Epoch) {
        if let Some(from) = self.of(shard)
            && let Some(elsewhere) = self.elsewhere.get_mut(from.database.get())
        {
            elsewhere.insert(shard);
        }
        if let Some(elsewhere) = self.elsewhere.get_mut(database.get()) {
            elsewhere.remove(&shard);
        }
        self.put(shard, Some(Place { database, status: ShardStatus::Here, epoch }));
    }

    fn put(&mut self, shard: ShardId, place: Option<Place>) {
        let index = usize::from(shard.number());
        if self.places.len() <= index {
            self.places.resize(index + 1, None);
        }
        self.places[index] = place;
    }

    pub fn of(&self, shard: ShardId) -> Option<Place> {
        self.places.get(usize::from(shard.number())).copied().flatten()
    }

    /// The shards whose place is known, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (ShardId, Place)> + '_ {
        (0..=u16::MAX).map(ShardId::new).zip(&self.places).filter_map(|(shard, place)| Some((shard, (*place)?)))
    }

    /// The shards of one database, ascending.
    pub fn in_database(&self, database: DatabaseIndex) -> impl Iterator<Item = ShardId> + '_ {
        self.iter().filter(move |(_, place)| place.database == database).map(|(shard, _)| shard)
    }

    /// The shards of one database whose tasks statements may write, ascending.
    pub fn open(&self, database: DatabaseIndex) -> impl Iterator<Item = ShardId> + '_ {
        let is_open = move |place: &Place| place.database == database && place.status.is_open();
        self.iter().filter(move |(_, place)| is_open(place)).map(|(shard, _)| shard)
    }

    /// A number that changes when a shard's database does. It is the same on every node with the same map, in whatever
    /// order the nodes have the databases. `databases`: all that this node uses, in its order.
    pub fn fingerprint(&self, databases: &[DatabaseName]) -> u32 {
        // FNV-1a. Statuses and epochs stay out: they change without a move.
        let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
        self.iter().fold(2_166_136_261, |hash, (shard, place)| {
            let name = databases.get(place.database.get()).map_or("", DatabaseName::as_str);
            // No name has a zero byte, so names of different lengths do not run into one another.
            shard.number().to_be_bytes().into_iter().chain(name.bytes()).chain([0]).fold(hash, mix)
        })
    }

    /// The shards of each of `databases`, which are all that this node uses, in its order.
    pub fn divided(&self, databases: &[DatabaseName]) -> Vec<(DatabaseName, BTreeSet<ShardId>)> {
        let mut divided: Vec<_> = databases.iter().map(|name| (name.clone(), BTreeSet::new())).collect();
        for (shard, place) in self.iter() {
            if let Some((_, shards)) = divided.get_mut(place.database.get()) {
                shards.insert(shard);
            }
        }
        divided
    }

    /// Whether each database was read, so that a shard without a place does not exist.
    pub fn is_whole(&self) -> bool {
        !self.is_read.is_empty() && !self.is_read.contains(&false)
    }

    /// Those of `databases`, which are all that this node uses, in its order, whose rows were never read.
    pub fn unread<'a>(&self, databases: &'a [DatabaseName]) -> Vec<&'a DatabaseName> {
        let is_read = |index: usize| self.is_read.get(index).copied().unwrap_or(false);
        databases.iter().enumerate().filter(|(index, _)| !is_read(*index)).map(|(_, name)| name).collect()
    }

    /// The shards that a database shows as open and did not at the map `before`. Those that it shows the first time
    /// that it is read are left out: they may have been open for long.
    pub fn opened_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = ShardId> + 'a {
        let was_read = move |index: usize| before.is_read.get(index).copied().unwrap_or(false);
        let is_open_in = |place: Place, index: DatabaseIndex| place.database == index && place.status.is_open();
        let has_opened = move |(shard, place): &(ShardId, Place)| {
            let was_open = before.of(*shard).is_some_and(|known| is_open_in(known, place.database));
            place.status.is_open() && !was_open && was_read(place.database.get())
        };
        self.iter().filter(has_opened).map(|(shard, _)| shard)
    }

    /// The shards that go through the last part of a move away from `database`: no statement may write their tasks,
    /// and only their owner there can finish the move.
    pub fn closed(&self, database: DatabaseIndex) -> impl Iterator<Item = ShardId> + '_ {
        let is_closed = move |place: &Place| place.database == database && !place.status.is_open();
        self.iter().filter(move |(_, place)| is_closed(place)).map(|(shard, _)| shard)
    }

    /// Shards that `database` has rows of although their place is another database: copies that arrive, and rows
    /// that are about to be deleted. A list leaves them out.
    pub fn elsewhere(&self, database: DatabaseIndex) -> impl Iterator<Item = ShardId> + '_ {
        self.elsewhere.get(database.get()).into_iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ShardStatus::{Arriving, Gone, Here, Leaving};

    const EAST: DatabaseIndex = DatabaseIndex::new(0);
    const WEST: DatabaseIndex = DatabaseIndex::new(1);
    const SHARD: ShardId = ShardId::new(3);

    fn look(status: ShardStatus, epoch: i64) -> Option<Vec<FenceRow>> {
        Some(vec![FenceRow { shard: SHARD, status, epoch: Epoch::from_store(epoch) }])
    }

    fn place(looks: &[Option<Vec<FenceRow>>]) -> Option<(DatabaseIndex, ShardStatus)> {
        ShardMap::default().after(looks).of(SHARD).map(|place| (place.database, place.status))
    }

    #[test]
    fn a_shard_is_where_its_row_is_open() {
        assert_eq!(place(&[look(Leaving, 4), look(Arriving, 0)]), Some((EAST, Leaving)));
        assert_eq!(place(&[look(Gone, 5), look(Here, 6)]), Some((WEST, Here)));
    }

    #[test]
    fn between_the_databases_a_shard_counts_as_in_its_source() {
        assert_eq!(place(&[look(Gone, 5), look(Arriving, 0)]), Some((EAST, Gone)));
        assert_eq!(place(&[look(Arriving, 5), look(Gone, 7)]), Some((WEST, Gone)), "on the way back");
    }

    #[test]
    fn while_a_database_was_never_read_a_closed_shard_may_be_there_unless_it_was_known_to_be_in_its_source() {
        let first = ShardMap::default().after(&[look(Gone, 5), None]);
        let again = first.after(&[look(Gone, 5), None]);
        for map in [&first, &again] {
            assert_eq!((map.of(SHARD), map.closed(EAST).count()), (None, 0));
            assert_eq!(map.elsewhere(EAST).collect::<Vec<_>>(), [SHARD], "a list leaves out what is left over");
        }
        let read = |target| again.after(&[look(Gone, 5), target]).of(SHARD).map(|place| (place.database, place.status));
        assert_eq!(read(look(Here, 6)), Some((WEST, Here)));
        assert_eq!(read(look(Arriving, 0)), Some((EAST, Gone)), "it is between the two");
        let third = |arriving| ShardMap::default().after(&[look(Gone, 5), look(Arriving, arriving), None]).of(SHARD);
        assert_eq!(third(4).map(|place| (place.database, place.status)), Some((EAST, Gone)), "its cut was interrupted");
        assert_eq!(third(6), None, "the copy has another source");
        let joined = ShardMap::default().after(&[look(Leaving, 4)]).after(&[look(Gone, 5), None]);
        assert_eq!(joined.of(SHARD).map(|place| (place.database, place.status)), Some((EAST, Gone)));
    }

    #[test]
    fn a_shard_of_an_unread_database_stays_where_it_was() {
        let known = ShardMap::default().after(&[look(Gone, 5), look(Here, 6)]);
        let later = known.after(&[look(Gone, 5), None]);
        assert_eq!(later.of(SHARD), known.of(SHARD));
        let back = known.after(&[look(Here, 9), None]);
        assert_eq!(back.of(SHARD).map(|place| place.database), Some(EAST), "another database has it now");
    }

    #[test]
    fn what_an_unread_database_has_left_over_stays_left_out() {
        let known = ShardMap::default().after(&[look(Gone, 5), look(Here, 6)]);
        let later = known.after(&[None, look(Here, 6)]);
        assert_eq!(later.elsewhere(EAST).collect::<Vec<_>>(), [SHARD]);
    }

    #[test]
    fn only_the_source_has_a_closed_shard() {
        let map = ShardMap::default().after(&[look(Gone, 5), look(Arriving, 0)]);
        assert_eq!((map.closed(EAST).count(), map.closed(WEST).count()), (1, 0));
        let names = ["east", "west"].map(DatabaseName::new);
        let shards = map.divided(&names).into_iter().map(|(_, shards)| shards.len()).collect::<Vec<_>>();
        assert_eq!(shards, [1, 0]);
    }

    #[test]
    fn a_shard_has_opened_where_it_is_open_and_was_not_if_the_database_was_read_before() {
        let has_opened = |before: &ShardMap, looks: &[Option<Vec<FenceRow>>]| {
            before.after(looks).opened_since(before).collect::<Vec<_>>() == [SHARD]
        };
        let unread = ShardMap::default();
        assert!(!has_opened(&unread, &[look(Here, 4), look(Arriving, 0)]), "a node has started");
        let leaving = unread.after(&[look(Leaving, 4), look(Arriving, 4)]);
        let closed = leaving.after(&[look(Gone, 5), look(Arriving, 4)]);
        assert!(!has_opened(&leaving, &[look(Gone, 5), look(Arriving, 4)]));
        assert!(has_opened(&closed, &[look(Gone, 5), look(Here, 1_005)]));
        assert!(has_opened(&closed, &[look(Leaving, 6), look(Arriving, 6)]), "it stays in its source");
        assert!(has_opened(&leaving, &[None, look(Here, 1_005)]), "its close was not seen");
        assert!(!has_opened(&leaving, &[look(Leaving, 5), look(Arriving, 5)]), "it has another owner");
        let other = unread.after(&[None, look(Arriving, 4)]);
        assert!(has_opened(&other, &[None, look(Here, 1_005)]), "its place was not known");
        assert!(!has_opened(&other, &[look(Here, 4), look(Arriving, 4)]), "its source is read the first time");
    }

    #[test]
    fn rows_of_a_shard_that_is_elsewhere_are_left_out_of_lists() {
        let mut map = ShardMap::default().after(&[look(Leaving, 4), look(Arriving, 0)]);
        assert_eq!(map.elsewhere(WEST).collect::<Vec<_>>(), [SHARD]);
        map.moved(SHARD, WEST, Epoch::from_store(6));
        assert_eq!(map.elsewhere(WEST).count(), 0);
        assert_eq!(map.elsewhere(EAST).collect::<Vec<_>>(), [SHARD]);
        assert_eq!(map.in_database(WEST).collect::<Vec<_>>(), [SHARD]);
        assert_eq!(map.open(WEST).chain(map.closed(WEST)).collect::<Vec<_>>(), [SHARD]);
        let before = ShardMap::default().after(&[look(Here, 4), look(Arriving, 0)]);
        let leaving = before.after(&[look(Leaving, 9), look(Arriving, 0)]);
        let names = ["east", "west"].map(DatabaseName::new);
        assert_eq!(before.fingerprint(&names), leaving.fingerprint(&names));
        assert_ne!(before.fingerprint(&names), map.fingerprint(&names));
        let turned = ShardMap::default().after(&[look(Arriving, 0), look(Here, 4)]);
        let other = ["west", "east"].map(DatabaseName::new);
        assert_eq!(before.fingerprint(&names), turned.fingerprint(&other), "a node has them in another order");
    }
}
