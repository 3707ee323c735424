//! Presence locks: which starts of nodes have a session in the database.
//!
//! A node holds an advisory lock, named by its incarnation, on its connection for nudges. PostgreSQL releases it when
//! the session ends. Unlike `pg_stat_activity`, a lock is visible to every role, and its name is never cut short.

use std::collections::BTreeSet;

use common::ids::Incarnation;
use sqlx::Row;

use super::{Database, Error, StoreOp};

/// The key of a start's presence lock.
pub(super) fn key(start: Incarnation) -> i64 {
    let (high, low) = start.uuid().as_u64_pair();
    (high ^ low).cast_signed()
}

impl Database {
    /// Finds which of `starts` have a session here, as a node whose own start is `me`. `None`: that node itself has no
    /// session, so the server may have ended those of all nodes, and the answer tells nothing.
    pub async fn present(
        &self,
        me: Incarnation,
        starts: &[Incarnation],
    ) -> Result<Option<BTreeSet<Incarnation>>, Error> {
        let keys: Vec<i64> = starts.iter().chain([&me]).map(|start| key(*start)).collect();
        let held: BTreeSet<i64> = self
            .run(StoreOp::PresenceRead, |pool| async move {
                let rows = sqlx::query(include_str!("queries/presence_read.sql")).bind(keys).fetch_all(&pool).await?;
                rows.iter().map(|row| row.try_get("key")).collect()
            })
            .await?;
        let present = || starts.iter().copied().filter(|start| held.contains(&key(*start))).collect();
        Ok(held.contains(&key(me)).then(present))
    }
}
