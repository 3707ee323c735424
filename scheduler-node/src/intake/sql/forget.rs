//! Deletes old rows: those of the inbox that were refused, the notes of those that arrived in a database, and the notes
//! of submissions that replaced a task.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{FORGET_EVERY, SqlIntake};
use crate::{
    store::{Error, partition::DEFAULT_KEEP_DAYS},
    supervise::at_work,
    working_set::database::DatabaseIndex,
};

/// Refused rows are kept for as long as dead tasks are by default.
const REFUSED_KEPT: Duration = Duration::from_secs(DEFAULT_KEEP_DAYS * 86_400);

/// Arrivals from another inbox are remembered for this much longer than any row stays there. This detects a node
/// that was frozen while it moved a row.
const RECEIVED_KEPT: Duration = Duration::from_secs(3_600);

/// A submission is sent again within half a minute, wherever its shard is by then. The note that it replaced a task is
/// kept for much longer, also after a move to a server whose clock differs.
const REPLACED_KEPT: Duration = Duration::from_secs(600);

/// The most statements of one turn, each of which deletes 1,000 rows at most. Submissions that come meanwhile wait for
/// the turn to end, as a rule for less than a second.
pub(super) const STATEMENTS_PER_TURN: usize = 20;

/// A statement that takes longer passes many deleted rows, which an old transaction keeps from being vacuumed, and so
/// would each one after it. The rest of its kind waits for a turn in a minute.
const SLOW: Duration = Duration::from_millis(200);

impl SqlIntake {
    /// Returns whether more may be left for a turn after the next pass. `failing`: the databases that have failed in a
    /// turn, each with the moment at which the turn began. They are left out for a minute.
    pub(super) async fn forget(&self, failing: &mut BTreeMap<DatabaseIndex, Instant>) -> Result<bool, Error> {
        let (work, began) = (at_work(), Instant::now());
        let (source, fitness) = (self.source(), self.fitness.borrow().clone());
        if !fitness.is_fit(source.name()) {
            return Ok(false);
        }
        failing.retain(|_, since| began.saturating_duration_since(*since) < FORGET_EVERY);
        let mut statements_left = STATEMENTS_PER_TURN;
        while statements_left > 0 && has_more_now(source.inbox_forget(REFUSED_KEPT)).await? {
            statements_left -= 1;
            work.beat();
        }
        // A table that takes no deletion keeps no other database from its turns.
        while statements_left > 0
            && self.logged(has_more_now(source.replaced_forget(REPLACED_KEPT)).await) == Some(true)
        {
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
        for (index, database) in self.databases.indexed() {
            if !fitness.is_fit(database.name()) || failing.contains_key(&index) {
                continue;
            }
            while statements_left > 0 {
                statements_left -= 1;
                work.beat();
                match has_more_now(database.sql.received_forget(source.name(), age)).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        // It keeps no other from its turns.
                        self.logged(Err::<(), _>(error));
                        failing.insert(index, began);
                        break;
                    }
                }
            }
        }
        Ok(statements_left == 0)
    }
}

/// Whether a statement left more for this turn: it may have, and was quick.
async fn has_more_now(statement: impl Future<Output = Result<bool, Error>>) -> Result<bool, Error> {
    let asked = Instant::now();
    Ok(statement.await? && asked.elapsed() < SLOW)
}
