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

/// The most statements of one turn, each of which deletes 1,000 rows at most. Submissions that come meanwhile wait for
/// the turn to end, as a rule for less than a second.
pub(super) const STATEMENTS_PER_TURN: usize = 20;

impl SqlIntake {
    /// Returns whether more may be left, for a turn after the next pass.
    pub(super) async fn forget(&self) -> Result<bool, Error> {
        let work = at_work();
        let (source, fitness) = (self.source(), self.fitness.borrow().clone());
        let mut statements_left = STATEMENTS_PER_TURN;
        while statements_left > 0 && source.inbox_forget(REFUSED_KEPT).await? {
            statements_left -= 1;
            work.beat();
        }
        if statements_left == 0 {
            return Ok(true);
        }
        // A row before the mark may have arrived, and becomes a second task without its note. So only a look at all
        // rows tells how old a note must be. While glances from the head are slow, the notes wait instead of the rows
        // that are collected.
        if !source.is_inbox_head_quick() {
            return Ok(false);
        }
        let age = source.inbox_standing_from_head().await?.oldest + RECEIVED_KEPT;
        // Also in its own database: rows come back to it, and the notes of a shard move with it.
        let mut failed = Ok(());
        for database in self.databases.all().iter().filter(|database| fitness.is_fit(database.name())) {
            // One that fails keeps no other from its turn.
            while statements_left > 0 {
                statements_left -= 1;
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
        failed.map(|()| statements_left == 0)
    }
}
