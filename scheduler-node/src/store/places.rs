//! The map of shards to databases that all rooms of this node share.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use common::{
    ids::{DatabaseId, DatabaseIndex, DatabaseName, Epoch, ShardId},
    shard::map::{FenceRow, Place, ShardMap},
};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::{
    Database, Error,
    connect::ACQUIRE_DEADLINE,
    shared_read::{SharedRead, Turn},
};
use crate::{by_database::ByDatabase, clock};

/// A database that takes longer than this to tell its shards does not delay the map of the others.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// The pause before the second try, which doubles up to the longest. The first try comes at once: the map was old.
const REREAD_PAUSE: Duration = Duration::from_millis(25);
const REREAD_PAUSE_LONGEST: Duration = Duration::from_millis(400);

/// A shard that opens after a move counts as opened lately for this long: then what was refused while it was closed has
/// been sent again, several times.
const OPENED_LATELY: Duration = Duration::from_secs(10);

/// How long a statement that is refused, because its shard has moved, is sent again.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// A caller waits for the answer.
    Long,
    /// The sender holds up others, and can send again later.
    Short,
}

impl Patience {
    /// How often a refused statement is sent again, at most.
    const fn tries(self) -> u32 {
        match self {
            // With the pauses more than 5 s: longer than the longest cut.
            Self::Long => 17,
            // More than 1 s: twice as long as a first cut.
            Self::Short => 7,
        }
    }

    /// How long it is sent again, at most. The tries bound no time: while a database is silent, each waits for
    /// [`READ_WITHIN`], and perhaps for the statement.
    const fn within(self) -> Duration {
        match self {
            Self::Long => Duration::from_millis(5_500),
            Self::Short => Duration::from_millis(1_300),
        }
    }
}

/// What this node knows of the places of the shards. It may be older than the fence rows: a statement that is sent to
/// a former place is refused there ([`Error::is_moved`]), and its sender reads the map anew ([`Self::refresh`]).
#[derive(Clone, Debug)]
pub struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    databases: ByDatabase<Arc<Database>>,
    map: ArcSwap<ShardMap>,
    facts: watch::Sender<Facts>,
    /// The databases that have told their ids.
    names: Mutex<HashMap<DatabaseId, DatabaseName>>,
    /// Counts the moves that this node has ended. Changes of the map hold it, and a look that began before one of these
    /// moves is not put in force.
    moves: Mutex<u64>,
    looks: SharedRead<Looks>,
    /// When the map showed last that a shard has opened in a database, after a move or in the middle of one.
    opened: Mutex<BTreeMap<ShardId, Instant>>,
    /// Changes with the map.
    changes: watch::Sender<u64>,
    wanted: Notify,
}

/// What the databases have told since the start of this node.
#[derive(Clone, Copy, Debug, Default)]
struct Facts {
    /// The number of shards of the cluster.
    shard_count: Option<u16>,
    /// Whether the fence rows of a database were read.
    is_read: bool,
}

/// What the last read found.
#[derive(Debug, Default)]
struct Looks {
    /// The last look at each database.
    of: Vec<Option<Look>>,
    /// The first database that did not answer.
    silent: Option<Arc<Database>>,
}

/// What one database told.
#[derive(Clone, Debug)]
struct Look {
    revision: i64,
    rows: Vec<FenceRow>,
}

impl Places {
    /// `databases`: all that the node uses, also those that join later. Until they are read, no shard has a place.
    pub fn new(databases: ByDatabase<Arc<Database>>) -> Self {
        Self(Arc::new(Shared {
            databases,
            map: ArcSwap::default(),
            facts: watch::Sender::default(),
            names: Mutex::default(),
            moves: Mutex::default(),
            looks: SharedRead::default(),
            opened: Mutex::default(),
            changes: watch::Sender::default(),
            wanted: Notify::new(),
        }))
    }

    pub fn load(&self) -> Arc<ShardMap> {
        self.0.map.load_full()
    }

    pub fn of(&self, shard: ShardId) -> Option<Place> {
        self.0.map.load().of(shard)
    }

    /// Whether a shard has opened in its place lately, as far as this node has seen.
    pub fn has_opened_lately(&self, shard: ShardId) -> bool {
        let at = self.0.opened.lock().get(&shard).copied();
        at.is_some_and(|at| clock::instant().saturating_duration_since(at) < OPENED_LATELY)
    }

    /// Whether a database was read. Before, no place is known.
    pub fn is_read(&self) -> bool {
        self.0.facts.borrow().is_read
    }

    /// The number of shards of the cluster. `None`: no database has told it yet. A database tells it before any other
    /// statement of this node passes.
    pub fn shard_count(&self) -> Option<u16> {
        self.0.facts.borrow().shard_count
    }

    /// Takes note of the number of shards that a database tells. Returns the number of the cluster, which is that of
    /// the first database that told one, and whether this was the first.
    pub fn learn_shard_count(&self, told: u16) -> (u16, bool) {
        let mut known = told;
        let is_first = self.0.facts.send_if_modified(|facts| {
            let is_first = facts.shard_count.is_none();
            known = *facts.shard_count.get_or_insert(told);
            is_first
        });
        if is_first {
            self.want();
        }
        (known, is_first)
    }

    /// Takes note of the id that a database tells. An error names another database that has told the same: it is the
    /// same one under another name.
    pub fn learn_id(&self, id: DatabaseId, name: &DatabaseName) -> Result<(), DatabaseName> {
        let mut names = self.0.names.lock();
        let known = names.entry(id).or_insert_with(|| name.clone());
        if known == name { Ok(()) } else { Err(known.clone()) }
    }

    /// Waits until the number of shards and their places are known, as long as for a free connection.
    pub async fn known(&self) -> Option<u16> {
        let mut facts = self.0.facts.subscribe();
        let come = facts.wait_for(|facts| facts.is_read && facts.shard_count.is_some());
        tokio::time::timeout(ACQUIRE_DEADLINE, come).await.ok()?.ok()?.shard_count
    }

    /// Has each database's shards open there, as if they were read.
    #[cfg(test)]
    pub(crate) fn presume(&self, databases: &[common::shard::ShardRange], shard_count: u16) {
        let here = |shard| FenceRow { shard, status: common::shard::ShardStatus::Here, epoch: Epoch::NONE };
        let looks: Vec<_> = databases.iter().map(|shards| Some(shards.iter().map(here).collect())).collect();
        self.0.map.store(Arc::new(ShardMap::default().after(&looks)));
        self.0.facts.send_replace(Facts { shard_count: Some(shard_count), is_read: true });
    }

    /// Forgets the map, as a node that starts.
    #[cfg(test)]
    pub(crate) fn forget(&self) {
        self.0.map.store(Arc::default());
    }

    /// Takes these rows of each database as if they were read.
    #[cfg(test)]
    pub(crate) fn tell(&self, looks: &[Option<Vec<FenceRow>>]) {
        let _moves = self.0.moves.lock();
        self.put_in_force(self.load().after(looks));
    }

    /// Changes with the map.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Has the map read soon, by the reader of the map.
    pub fn want(&self) {
        self.0.wanted.notify_one();
    }

    /// Wakes the reader of the map.
    pub fn wanted(&self) -> &Notify {
        &self.0.wanted
    }

    pub fn databases(&self) -> &ByDatabase<Arc<Database>> {
        &self.0.databases
    }

    /// Whether the last glance at each database shows the rows that the map was made of.
    pub async fn is_current(&self) -> bool {
        let looks = self.0.looks.last().await;
        let read = |index: usize| looks.of.get(index)?.as_ref().map(|look| look.revision);
        self.0.databases.indexed().all(|(index, database)| {
            let seen = database.glance().map(|glance| glance.map_revision);
            seen.is_some() && seen == read(index.get())
        })
    }

    /// Reads the map now. A read that began after the call counts as well, so many callers cause few reads. The shards
    /// of a database that cannot be read stay where they were; the error is that of the first such database.
    pub async fn refresh(&self) -> Result<(), Error> {
        let mut looks = match self.0.looks.turn().await {
            Turn::Mine(looks) => looks,
            Turn::Shared(looks) => return looks.silent.as_ref().map_or(Ok(()), |database| Err(database.silent_map())),
        };
        let moves = *self.0.moves.lock();
        let databases: Vec<&Arc<Database>> = self.0.databases.iter().collect();
        looks.of.resize(databases.len(), None);
        let known: Vec<Option<i64>> = looks.of.iter().map(|look| look.as_ref().map(|look| look.revision)).collect();
        let reads = databases.iter().zip(known).map(|(database, revision)| async move {
            let read = tokio::time::timeout(READ_WITHIN, database.shard_map_read(revision)).await;
            read.unwrap_or_else(|_| Err(database.silent_map()))
        });
        let mut failure = None;
        let mut found: Vec<Option<Vec<FenceRow>>> = Vec::with_capacity(databases.len());
        let reads = futures::future::join_all(reads).await;
        looks.silent =
            databases.iter().zip(&reads).find(|(_, read)| read.is_err()).map(|(silent, _)| Arc::clone(silent));
        for (look, read) in looks.of.iter_mut().zip(reads) {
            match read {
                Ok((revision, rows)) => {
                    if look.as_ref().is_none_or(|look| look.revision != revision) {
                        *look = Some(Look { revision, rows });
                    }
                    found.push(look.as_ref().map(|look| look.rows.clone()));
                }
                Err(error) => {
                    failure.get_or_insert(error);
                    found.push(None);
                }
            }
        }
        let held = self.0.moves.lock();
        if *held == moves {
            let next = self.load().after(&found);
            self.put_in_force(next);
            if found.iter().any(Option::is_some) {
                self.0.facts.send_if_modified(|facts| !std::mem::replace(&mut facts.is_read, true));
            }
        } else {
            // This node has ended a move meanwhile; the look may be older than that.
            self.want();
        }
        drop(held);
        looks.end();
        failure.map_or(Ok(()), Err)
    }

    /// Reads the map after a refusal because a shard has moved; `refusals` counts those before, and the first one came
    /// at `since`. Between the two databases of a move no place takes a write, so the later tries wait a little.
    /// Returns whether the caller may try again.
    pub async fn reread_after_move(&self, refusals: u32, since: Instant, patience: Patience) -> bool {
        if refusals >= patience.tries() || clock::instant().saturating_duration_since(since) > patience.within() {
            return false;
        }
        if refusals > 0 {
            tokio::time::sleep((REREAD_PAUSE * 2_u32.pow(refusals - 1)).min(REREAD_PAUSE_LONGEST)).await;
        }
        // The shards of a database that cannot be read stay where they were.
        let _ = self.refresh().await;
        true
    }

    /// Reads the map, and returns whether the shard's place is another one than `before`.
    pub async fn is_elsewhere(&self, shard: ShardId, before: Option<Place>) -> bool {
        let _ = self.refresh().await;
        self.of(shard).map(|place| place.database) != before.map(|place| place.database)
    }

    /// Notes that this node has opened a shard in `database`. The working set of `database` must have the shard before.
    pub fn moved(&self, shard: ShardId, database: DatabaseIndex, epoch: Epoch) {
        let mut moves = self.0.moves.lock();
        *moves += 1;
        let mut map = ShardMap::clone(&self.load());
        map.moved(shard, database, epoch);
        self.put_in_force(map);
    }

    /// The caller holds `moves`.
    fn put_in_force(&self, map: ShardMap) {
        let before = self.load();
        if *before == map {
            return;
        }
        let now = clock::instant();
        self.0.opened.lock().extend(map.opened_since(&before).map(|shard| (shard, now)));
        let map = Arc::new(map);
        for (index, database) in self.0.databases.indexed() {
            database.note_places(&map, index);
        }
        self.0.map.store(map);
        self.0.changes.send_modify(|changes| *changes += 1);
    }
}
