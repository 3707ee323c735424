//! One database as the loops see it: its statements, and what this node holds of it.

use std::{
    ops::Index,
    sync::Arc,
    time::{Duration, Instant},
};

use common::ids::{Attempt, DatabaseName, ShardId, TaskId};
use tokio::sync::Notify;

use super::{
    owned_shards::OwnedShards,
    ready_queues::ReadyQueues,
    retry::{Done, Refused, until_done},
    set_aside::{Kept, Kind, SetAside, why},
};
use crate::store::{Database, Error};

/// The pause before a task whose claim has no known outcome is looked at again.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The pause before a refused row is tried again: an operator who removes the cause need not tell the node.
pub const LEFT_ALONE: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
pub struct NodeDatabase {
    /// The statements.
    pub sql: Arc<Database>,
    pub owned_shards: Arc<OwnedShards>,
    pub ready_queues: Arc<ReadyQueues>,
    /// Wakes the intake of SQL: a task was submitted in SQL.
    pub inbox: Arc<Notify>,
    /// Wakes the queue reader: a claim was refused because this node does not know a queue's policy. One for all
    /// databases.
    pub outdated: Arc<Notify>,
    pub set_aside: SetAside,
}

impl NodeDatabase {
    pub fn name(&self) -> &DatabaseName {
        self.sql.name()
    }

    /// Leaves tasks with an unknown outcome to a rescue after `pause`. Without a clock the next preload finds them.
    pub fn look_again(&self, ids: impl IntoIterator<Item = TaskId>, pause: Duration) {
        match self.sql.clock().at(Instant::now()) {
            Some(now) => self.owned_shards.end_unknown(ids, now.plus(pause)),
            None => self.owned_shards.end(ids),
        }
    }

    /// Sets refused rows aside: leaves them alone for a while, and keeps each with its reason the first time.
    pub async fn set_aside(&self, kind: Kind, refused: Vec<Refused<'_, TaskId>>) {
        for Refused { item: id, error } in refused {
            if self.owned_shards.set_aside(*id, Instant::now() + LEFT_ALONE) {
                self.set_aside.keep(&self.sql, kind, Kept::task(*id), &why(&error)).await;
            }
        }
    }

    /// Sets an attempt aside whose state the database refuses to write. Until a person has looked (runbook
    /// DuetimeSetAside), no node publishes it again, and its deadline ends nothing.
    pub async fn set_attempt_aside(&self, kind: Kind, id: TaskId, attempt: Attempt, error: &Error) {
        self.set_aside.keep(&self.sql, kind, Kept::attempt(id, attempt), &why(error)).await;
        let attempts = [(id, attempt)];
        let parked: Done<'_, _, ()> = until_done("tasks to set aside", &attempts, |attempts| {
            let (id, attempt) = attempts[0];
            self.sql.task_set_aside(id, attempt)
        })
        .await;
        // The database refuses any change of this row, so no rescue can publish it either.
        let refused = parked.refused.into_iter().map(|Refused { item, error }| Refused { item: &item.0, error });
        self.set_aside(kind, refused.collect()).await;
    }
}

/// The place of a database in the configuration's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatabaseIndex(usize);

impl DatabaseIndex {
    /// The first database, which also keeps the queues and the quarantine.
    pub const HOME: Self = Self(0);

    pub fn get(self) -> usize {
        self.0
    }
}

/// Every database, in the order of the configuration.
#[derive(Clone, Debug)]
pub struct NodeDatabases(Arc<[NodeDatabase]>);

impl NodeDatabases {
    pub fn new(databases: Vec<NodeDatabase>) -> Self {
        Self(databases.into())
    }

    pub fn all(&self) -> &[NodeDatabase] {
        &self.0
    }

    pub fn indexed(&self) -> impl Iterator<Item = (DatabaseIndex, &NodeDatabase)> {
        self.0.iter().enumerate().map(|(index, database)| (DatabaseIndex(index), database))
    }

    pub fn home(&self) -> &NodeDatabase {
        &self[DatabaseIndex::HOME]
    }

    /// The database of a shard, and its index.
    pub fn of(&self, shard: ShardId) -> Option<(DatabaseIndex, &NodeDatabase)> {
        self.indexed().find(|(_, database)| database.sql.shards().contains(shard))
    }
}

impl Index<DatabaseIndex> for NodeDatabases {
    type Output = NodeDatabase;

    fn index(&self, index: DatabaseIndex) -> &NodeDatabase {
        &self.0[index.0]
    }
}
