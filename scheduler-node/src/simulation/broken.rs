//! Statements with a broken rule, for the [mutants](super::mutant::Mutant).

use common::{ids::TaskId, task::TaskState};

use super::statement::Statement;
use crate::store::claim::Claimed;

/// A rescue that makes its tasks `scheduled` again, as if nothing of them could have been published.
pub fn reverted(rescue: Statement<Claimed>) -> Statement<Claimed> {
    let write = rescue.write;
    Statement {
        write: Box::new(|table, snapshot, locks, now| {
            let mut claimed = write(table, snapshot, locks, now);
            claimed.deliveries.clear();
            for row in locks.rows.iter().filter_map(|id| snapshot.get(id)) {
                let mut row = row.clone();
                (row.state, row.attempt, row.wake_at) = (TaskState::Scheduled, row.attempt - 1, row.due_at);
                table.rows.insert(row.id, row);
            }
            claimed
        }),
        ..rescue
    }
}

/// A rescue that does not count the copy.
pub fn unmarked(rescue: Statement<Claimed>) -> Statement<Claimed> {
    let write = rescue.write;
    Statement {
        write: Box::new(|table, snapshot, locks, now| {
            let mut claimed = write(table, snapshot, locks, now);
            claimed.deliveries.iter_mut().for_each(|delivery| delivery.redelivered = false);
            claimed
        }),
        ..rescue
    }
}

/// A confirm that settles whatever it finds.
pub fn blind(deliver: Statement<()>, ids: Vec<TaskId>) -> Statement<()> {
    Statement {
        choose: Box::new(move |rows, _, _| ids.into_iter().filter(|id| rows.contains_key(id)).collect()),
        recheck: Box::new(|_, _| true),
        ..deliver
    }
}

/// A retry that ends its tasks.
pub fn buried(retry: Statement<Vec<TaskId>>) -> Statement<Vec<TaskId>> {
    Statement {
        write: Box::new(|table, _, locks, _| {
            locks.rows.iter().for_each(|id| table.archive(*id, TaskState::Dead));
            locks.rows.clone()
        }),
        ..retry
    }
}
