//! One database as the loops see it: its statements, and what this node holds of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Index,
    sync::Arc,
    time::{Duration, Instant},
};

pub use common::ids::DatabaseIndex;
use common::{
    delay::Hearing,
    ids::{Attempt, DatabaseName, ShardId, TaskId},
    time::UnixMicros,
};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Interval, MissedTickBehavior},
};

use super::{
    failures::Failures,
    owned_shards::OwnedShards,
    ready_queues::ReadyQueues,
    retry::Refused,
    set_aside::{Kept, Kind, SetAside, why},
    suspects::Suspects,
};
use crate::{
    by_database::ByDatabase,
    clock,
    store::{Database, Error, Patience, Places, Statements, StoreOp, watch::Nudge},
};

/// The pause before a task whose claim has no known outcome is looked at again.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The pause before rows that another transaction holds are tried again. A try waits for no lock, so an open
/// transaction costs one small statement in this time, however long it lasts.
const HELD_AGAIN: Duration = Duration::from_secs(1);

/// The pause before a refused row is tried again: an operator who removes the cause need not tell the node.
pub const LEFT_ALONE: Duration = Duration::from_secs(600);

/// A database counts as one that leaves messages unwritten for this long after the last of them: longer than one more
/// try of them takes.
pub const UNWRITTEN_FOR: Duration = Duration::from_secs(60);

/// Whether an attempt is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aside {
    Done,
    /// The database refuses that too.
    Refused,
    /// Another transaction holds the row, its shard has moved, or the database is away: to be tried again.
    Open,
}

#[derive(Clone, Debug)]
pub struct NodeDatabase<S = Arc<Database>> {
    /// The statements.
    pub sql: S,
    pub owned_shards: Arc<OwnedShards>,
    pub ready_queues: Arc<ReadyQueues>,
    /// Wakes the intake of SQL: a task was submitted in SQL.
    pub inbox: Arc<Notify>,
    /// Wakes the queue reader: a claim was refused because this node does not know a queue's policy. One for all
    /// databases.
    pub outdated: Arc<Notify>,
    pub set_aside: SetAside,
    /// Rows that may be at fault.
    pub suspects: Suspects,
    /// Writes that failed because the archive has no partition for a row yet. Such rows come again each second or so,
    /// so the log has only the first.
    pub without_partition: Failures,
    /// The nudges to send to its other nodes.
    pub nudge: Arc<Mutex<Nudge>>,
    /// The failures to store submitted tasks.
    pub unstored: Failures,
    /// Whether deadlines wait for messages.
    pub hearing: Arc<Mutex<Hearing>>,
    /// When it left a message or a submitted task unwritten the last time, as in an outage.
    pub unwritten: Arc<Mutex<Option<Instant>>>,
}

impl<S: Statements> NodeDatabase<S> {
    pub fn name(&self) -> &DatabaseName {
        self.sql.name()
    }

    /// Notes that the database does not take what messages say: consumers' reports, submitted tasks, or what is to be
    /// quarantined. The messages go back to the broker. Tasks that were submitted over HTTP count too.
    pub fn leave_messages(&self) {
        *self.unwritten.lock() = Some(clock::instant());
    }

    /// Whether the database has left messages unwritten lately.
    pub fn leaves_messages(&self) -> bool {
        self.unwritten.lock().is_some_and(|last| clock::instant().saturating_duration_since(last) < UNWRITTEN_FOR)
    }

    /// Leaves tasks with an unknown outcome to a rescue after `pause`. Without a clock, as after a failover, it comes
    /// with the first reading: the preloader reads a claimed row only when its look-again time is near.
    pub fn look_again(&self, ids: impl IntoIterator<Item = TaskId>, pause: Duration) {
        let now = self.sql.clock().at(clock::instant());
        if seeded!(DoubtForgotten) && now.is_none() {
            return self.owned_shards.end(ids);
        }
        self.owned_shards.end_unknown(ids, now.map_or(UnixMicros::FIRST, |now| now.plus(pause)));
    }

    /// Sets refused rows aside: leaves them alone for a while, and keeps each with its reason the first time.
    pub async fn set_aside(&self, kind: Kind, refused: Vec<Refused<'_, TaskId>>) {
        for Refused { item: id, error } in refused {
            if self.owned_shards.set_aside(*id, clock::instant() + LEFT_ALONE) {
                self.set_aside.keep(&self.sql, kind, Kept::task(*id), &why(&error)).await;
            }
        }
    }

    /// Sets an attempt aside whose state the database refuses to write. Until a person has looked (runbook
    /// DuetimeSetAside), no node publishes it again, and its deadline ends nothing.
    pub async fn set_attempt_aside(&self, kind: Kind, id: TaskId, attempt: Attempt, error: &Error) -> Aside {
        self.set_aside.keep_attempt(&self.sql, kind, (id, attempt), &why(error)).await;
        let mut ids = [id];
        let set_aside = |_: &[TaskId]| self.sql.task_set_aside(id, attempt);
        let (_, mut tried) =
            self.suspects.try_each(StoreOp::TaskSetAside, &mut ids, |id| *id, set_aside, |()| [id]).await;
        // The row was judged to be at fault before.
        let fails_again = |(_, left): &mut (_, Error)| left.blames_row_after(error);
        let refused = tried.left.extract_if(.., fails_again).map(|(part, error)| Refused { item: &part[0], error });
        tried.refused.extend(refused);
        if !tried.left.is_empty() {
            return Aside::Open;
        }
        self.set_aside.close((id, attempt));
        let is_refused = !tried.refused.is_empty();
        // The database refuses any change of this row, so no rescue can publish it either.
        self.set_aside(kind, tried.refused).await;
        if is_refused { Aside::Refused } else { Aside::Done }
    }
}

/// Ticks whenever rows that another transaction holds are to be tried again.
pub fn held_again() -> Interval {
    let mut again = tokio::time::interval(HELD_AGAIN);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    again
}

/// Every database that the node uses.
#[derive(Clone, Debug)]
pub struct NodeDatabases<S = Arc<Database>> {
    databases: ByDatabase<NodeDatabase<S>>,
    places: Places,
}

impl<S> NodeDatabases<S> {
    pub fn new(databases: Vec<NodeDatabase<S>>, places: Places) -> Self {
        Self { databases: databases.into_iter().collect(), places }
    }

    /// Adds a database. It must be here before it is in the [store](crate::store::Store), so that each place of a
    /// shard is one of these.
    pub fn add(&self, database: NodeDatabase<S>) -> DatabaseIndex {
        self.databases.push(database)
    }

    pub fn all(&self) -> &ByDatabase<NodeDatabase<S>> {
        &self.databases
    }

    pub fn indexed(&self) -> impl Iterator<Item = (DatabaseIndex, &NodeDatabase<S>)> {
        self.databases.indexed()
    }

    pub fn home(&self) -> &NodeDatabase<S> {
        &self[DatabaseIndex::HOME]
    }

    /// The database of a shard, and its index.
    pub fn of(&self, shard: ShardId) -> Option<(DatabaseIndex, &NodeDatabase<S>)> {
        let index = self.places.of(shard)?.database;
        Some((index, self.databases.get(index)?))
    }

    /// Divides rows by the places of their shards, after a database refused them because a shard has moved.
    /// `refusals` counts the refusals before, and the first one came at `since`. `Err`: no place took them in time.
    pub async fn divide_again<I>(
        &self,
        refusals: u32,
        since: Instant,
        rows: Vec<I>,
        id: impl Fn(&I) -> TaskId,
    ) -> Result<Vec<(DatabaseIndex, Vec<I>)>, Vec<I>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        if !self.places.reread_after_move(refusals, since, Patience::Long).await {
            return Err(rows);
        }
        let (parts, lost) = self.divide(rows, id);
        if lost.is_empty() {
            return Ok(parts.into_iter().collect());
        }
        Err(parts.into_values().flatten().chain(lost).collect())
    }

    /// Divides rows by the places of their shards. The second part has the rows whose shards have no known place.
    pub fn divide<I>(
        &self,
        rows: impl IntoIterator<Item = I>,
        id: impl Fn(&I) -> TaskId,
    ) -> (BTreeMap<DatabaseIndex, Vec<I>>, Vec<I>) {
        let (mut parts, mut lost) = (BTreeMap::<_, Vec<I>>::new(), Vec::new());
        for row in rows {
            match self.of(id(&row).shard()) {
                Some((index, _)) => parts.entry(index).or_default().push(row),
                None => lost.push(row),
            }
        }
        (parts, lost)
    }

    /// Where the shards are.
    pub fn places(&self) -> &Places {
        &self.places
    }
}

impl<S: Statements> NodeDatabases<S> {
    /// Those of `ids` whose rows another transaction holds. A row of a database that does not answer counts as free:
    /// its write meets the same failure.
    pub async fn held(&self, ids: impl IntoIterator<Item = TaskId>) -> BTreeSet<TaskId> {
        let (parts, _) = self.divide(ids, |id| *id);
        let mut held = BTreeSet::new();
        for (index, part) in parts {
            match self[index].sql.task_held(&part).await {
                Ok(ids) => held.extend(ids),
                Err(error) => {
                    tracing::debug!(database = %error.database, error = &error as &dyn std::error::Error, "could not check which rows are locked");
                }
            }
        }
        held
    }

    /// Whether another transaction holds the row of each of `ids`.
    pub async fn are_held(&self, ids: Vec<TaskId>) -> Vec<bool> {
        let held = self.held(ids.iter().copied()).await;
        ids.iter().map(|id| held.contains(id)).collect()
    }
}

impl<S> Index<DatabaseIndex> for NodeDatabases<S> {
    type Output = NodeDatabase<S>;

    fn index(&self, index: DatabaseIndex) -> &NodeDatabase<S> {
        &self.databases[index]
    }
}
