//! Refuses new tasks and shards that move here while no standby confirms commits, where the configuration requires one.

use std::sync::Arc;

use parking_lot::Mutex;
use sqlx::Row;

use super::{Database, Error, StoreOp};

/// The reason why commits are not replicated, where they must be.
#[derive(Debug, Default)]
pub(super) struct Unreplicated(Mutex<Option<Arc<str>>>);

/// The error of a statement that would accept tasks. It was not sent.
#[derive(Debug, thiserror::Error)]
#[error("no task is accepted while commits are not replicated: {0}")]
pub(super) struct NotReplicated(Arc<str>);

impl Unreplicated {
    /// `required`: nothing is accepted until a look has found a standby.
    pub(super) fn new(required: bool) -> Self {
        Self(Mutex::new(required.then(|| "the server has not been asked yet".into())))
    }
}

impl Error {
    /// The reason, if the statement was not sent because commits are not replicated.
    pub fn not_replicated(&self) -> Option<String> {
        match self.source.as_deref()? {
            sqlx::Error::Configuration(reason) => reason.downcast_ref::<NotReplicated>().map(ToString::to_string),
            _ => None,
        }
    }
}

impl StoreOp {
    /// Whether the statement stores tasks that were not there before.
    pub(super) const fn accepts_tasks(self) -> bool {
        matches!(self, Self::TaskSubmit | Self::TaskPut | Self::TaskCollect | Self::TaskCollectKeyed)
    }
}

impl Database {
    /// Lets nothing be accepted while no synchronous standby confirms commits. [`Self::look_for_standby`] then has to
    /// be called again and again.
    pub fn require_standby(mut self) -> Self {
        self.unreplicated = Unreplicated::new(true);
        self.requires_standby = true;
        self
    }

    /// Looks whether a standby confirms commits, if one is required.
    pub async fn look_for_standby(&self) -> Result<(), Error> {
        if !self.requires_standby {
            return Ok(());
        }
        let read = self.run(StoreOp::ReplicationRead, |pool| async move {
            let row = sqlx::query(include_str!("queries/replication_read.sql")).fetch_one(&pool).await?;
            Ok::<(bool, bool, bool, bool), sqlx::Error>((
                row.try_get("names_standbys")?,
                row.try_get("waits")?,
                row.try_get("may_see")?,
                row.try_get("has_standby")?,
            ))
        });
        let found = match read.await? {
            (false, ..) => Some("synchronous_standby_names is empty"),
            (_, false, ..) => Some("synchronous_commit is off or local for this role"),
            (_, _, false, _) => Some("this role may not see the standbys; grant it pg_monitor"),
            (_, _, _, false) => Some("no synchronous standby is connected"),
            (true, true, true, true) => None,
        };
        let before = std::mem::replace(&mut *self.unreplicated.0.lock(), found.map(Arc::from));
        if before.as_deref() != found {
            match found {
                Some(why) => {
                    tracing::warn!(database = %self.name, why, "commits are not replicated; accepting no task")
                }
                None => tracing::info!(database = %self.name, "a standby confirms commits; accepting tasks"),
            }
        }
        Ok(())
    }

    /// The reason why no task is accepted, while commits are not replicated and must be.
    pub fn unreplicated(&self) -> Option<Arc<str>> {
        self.unreplicated.0.lock().clone()
    }

    /// The reason why no shard may move here: the move would end with the only replicated copy of its tasks deleted.
    pub fn may_receive_no_shard(&self) -> Option<String> {
        self.unreplicated().map(|why| format!("commits of database `{}` are not replicated: {why}", self.name))
    }

    /// Has commits count as not replicated for this reason, or as replicated again.
    #[cfg(test)]
    pub(crate) fn pretend_unreplicated(&self, why: Option<&str>) {
        *self.unreplicated.0.lock() = why.map(Arc::from);
    }

    pub(super) fn may_run(&self, op: StoreOp) -> Result<(), sqlx::Error> {
        match self.unreplicated() {
            Some(why) if op.accepts_tasks() => Err(sqlx::Error::Configuration(NotReplicated(why).into())),
            _ => Ok(()),
        }
    }
}
