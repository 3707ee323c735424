//! Knows how far a database's server has acknowledged this cluster's commits, so that a server that comes back without
//! some of them is noticed.

use std::time::Duration;

use common::cluster::seen::{Lsn, Seen};
use sqlx::Row;

use super::{Database, Error, StoreOp, history::Loss};

impl StoreOp {
    /// Whether a client, the outcome of a task, the deletion of another copy, or the opening of a shard in another
    /// database relies on the commit of this statement.
    pub(super) const fn is_relied_on(self) -> bool {
        use StoreOp::*;
        matches!(
            self,
            TaskSubmit
                | TaskPut
                | TaskCollect
                | TaskCollectKeyed
                | TaskCollectCancelled
                | TaskDeliver
                | TaskFinish
                | TaskRetry
                | TaskExtend
                | TaskRelease
                | TaskChange
                | TaskCancel
                | TaskStop
                | TaskRun
                | TaskRevive
                | BulkCancel
                | BulkRun
                | BulkMove
                | BulkRevive
                | QueueAdd
                | QueuePut
                | QueueDelete
                | QueuePause
                | ScheduleAdd
                | ScheduleChange
                | ScheduleDelete
                | ScheduleTurn
                | FireDone
                | FireFound
                | TokenAdd
                | TokenRevoke
                | QuarantineAdd
                | MoveWrite
                | MoveClose
                | MoveOpen
        )
    }
}

impl Database {
    /// Waits until a commit has been acknowledged that a client or an outcome relies on, since the last call.
    pub async fn wrote(&self) {
        self.wrote.notified().await;
    }

    /// Commits a mark and remembers its position: from now on every commit acknowledged so far would be missed.
    pub async fn mark_position(&self) -> Result<(), Error> {
        let marked = self.run(StoreOp::PositionMark, |pool| async move {
            let row = sqlx::query(include_str!("queries/position_mark.sql")).fetch_one(&pool).await?;
            let server: (i64, i64) = (row.try_get("system_identifier")?, row.try_get("timeline")?);
            Ok((server, Lsn::new(row.try_get("at")?)))
        });
        let ((system, timeline), at) = marked.await?;
        self.writer.known().acknowledge(system, timeline, at);
        Ok(())
    }

    /// What this node has seen of the server. `None`: it has met none that says who it is.
    pub fn seen(&self) -> Option<Seen> {
        self.writer.known().seen()
    }

    /// Waits until the other nodes should learn what this one has seen: another server is in use, or its server is in
    /// doubt.
    pub async fn history_changed(&self) {
        self.writer.known().changed().await;
    }

    /// Waits until this node knows what the others have seen, at most `within`: without etcd a node starts all the
    /// same.
    pub async fn await_learned(&self, within: Duration) {
        let mut has_learned = self.has_learned.subscribe();
        // The error means that the time is up; the sender lives in `self`.
        let _ = tokio::time::timeout(within, has_learned.wait_for(|has_learned| *has_learned)).await;
    }

    /// Notes that the record of the other nodes has been read.
    pub fn learned(&self) {
        self.has_learned.send_replace(true);
    }

    /// Adds what other nodes have seen. If the server in use lacks some of it, its statements end.
    pub fn learn(&self, record: &Seen) {
        if self.writer.known().learn(record) {
            tracing::warn!(database = %self.name, "the server in use lacks what another node has seen; leaving it");
            self.pools.load().ended().cancel();
        }
    }

    /// Forgets what was learned from a record of another cluster. Call it only before this node may use the database:
    /// no commit has been acknowledged to it yet.
    pub fn unlearn(&self) {
        self.writer.known().unlearn();
    }

    /// The loss that keeps this node from the only server that could be used, until an operator accepts it.
    pub fn loss(&self) -> Option<Loss> {
        self.writer.loss()
    }

    /// The server in use and its timeline.
    pub fn server(&self) -> (String, Option<i64>) {
        (self.writer.name(self.pools.load().server), self.writer.known().timeline())
    }
}
