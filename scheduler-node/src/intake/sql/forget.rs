//! Deletes old rows: those of the inbox that were refused, and the notes of those that arrived in a database.

use std::time::Duration;

use super::SqlIntake;
use crate::{
    store::{Error, partition::DEFAULT_KEEP_DAYS},
    supervise::at_work,
};

/// Refused rows are kept for as long as dead tasks are by default.
const REFUSED_KEPT: Duration = Duration::from_secs(DEFAULT_KEEP_DAYS * 86_400);

/// Arrivals from another inbox are remembered for this much longer than any row stays there. This detects a node
/// that was frozen while it moved a row.
const RECEIVED_KEPT: Duration = Duration::from_secs(3_600);

impl SqlIntake {
    pub(super) async fn forget(&self) -> Result<(), Error> {
        let work = at_work();
        let source = self.source();
        while source.inbox_forget(REFUSED_KEPT).await? {
            work.beat();
        }
        // A row before the mark may have arrived, and becomes a second task without its note. So only a look at all
        // rows tells how old a note must be. While glances from the head are slow, the notes wait instead of the rows
        // that are collected.
        if !source.is_inbox_head_quick() {
            return Ok(());
        }
        let age = source.inbox_standing_from_head().await?.oldest + RECEIVED_KEPT;
        // Also in its own database: rows come back to it, and the notes of a shard move with it.
        let mut failed = Ok(());
        for database in self.databases.all().iter() {
            // One that is away keeps no other from its turn.
            loop {
                work.beat();
                match database.sql.received_forget(source.name(), age).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        failed = failed.and(Err(error));
                        break;
                    }
                }
            }
        }
        failed
    }
}
