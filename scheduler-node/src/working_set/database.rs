//! One database as the loops see it: its statements, and what this node holds of it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::ids::{Attempt, DatabaseName, ShardId, TaskId};
use tokio::sync::Notify;

use super::{
    owned_shards::Held,
    ready_queues::Waiting,
    retry::{Done, Refused, until_done},
    set_aside::{Asides, Kept, Kind, why},
};
use crate::store::{Database, Error};

/// The pause before a task whose claim has no known outcome is looked at again.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The pause before a refused row is tried again: an operator who removes the cause need not tell the node.
pub const LEFT_ALONE: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
pub struct Site {
    pub database: Arc<Database>,
    pub held: Arc<Held>,
    pub waiting: Arc<Waiting>,
    /// Wakes the collector: a task was submitted in SQL.
    pub inbox: Arc<Notify>,
    /// Wakes the queue reader: a claim was refused because this node does not know a queue's policy. One for all
    /// sites.
    pub outdated: Arc<Notify>,
    pub asides: Asides,
}

impl Site {
    pub fn name(&self) -> &DatabaseName {
        self.database.name()
    }

    /// Leaves tasks with an unknown outcome to a rescue after `pause`. Without a clock the next preload finds them.
    pub fn look_again(&self, ids: impl IntoIterator<Item = TaskId>, pause: Duration) {
        match self.database.clock().at(Instant::now()) {
            Some(now) => self.held.end_unknown(ids, now.plus(pause)),
            None => self.held.end(ids),
        }
    }

    /// Sets refused rows aside: leaves them alone for a while, and keeps each with its reason the first time.
    pub async fn set_aside(&self, kind: Kind, refused: Vec<Refused<'_, TaskId>>) {
        for Refused { item: id, error } in refused {
            if self.held.set_aside(*id, Instant::now() + LEFT_ALONE) {
                self.asides.keep(&self.database, kind, Kept::task(*id), &why(&error)).await;
            }
        }
    }

    /// Sets an attempt aside whose state the database refuses to write. Until a person has looked (runbook
    /// DuetimeSetAside), no node publishes it again, and its deadline ends nothing.
    pub async fn set_attempt_aside(&self, kind: Kind, id: TaskId, attempt: Attempt, error: &Error) {
        self.asides.keep(&self.database, kind, Kept::attempt(id, attempt), &why(error)).await;
        let attempts = [(id, attempt)];
        let parked: Done<'_, _, ()> = until_done("tasks to set aside", &attempts, |attempts| {
            let (id, attempt) = attempts[0];
            self.database.task_set_aside(id, attempt)
        })
        .await;
        // The database refuses any change of this row, so no rescue can publish it either.
        let refused = parked.refused.into_iter().map(|Refused { item, error }| Refused { item: &item.0, error });
        self.set_aside(kind, refused.collect()).await;
    }
}

/// Every database, in the order of the configuration.
#[derive(Clone, Debug)]
pub struct Sites(Arc<[Site]>);

impl Sites {
    pub fn new(sites: Vec<Site>) -> Self {
        Self(sites.into())
    }

    pub fn all(&self) -> &[Site] {
        &self.0
    }

    /// The first database, which also keeps the queues and the quarantine.
    pub fn home(&self) -> &Site {
        &self.0[0]
    }

    /// The database of a shard and its index in [`Self::all`].
    pub fn of(&self, shard: ShardId) -> Option<(usize, &Site)> {
        self.0.iter().enumerate().find(|(_, site)| site.database.shards().contains(shard))
    }
}
