//! How early a message may come while the clock of its database is ahead.

use std::collections::HashMap;

use super::super::history::{Ahead, Delivery, Entry, History};

/// After a clock was set back, a node goes by its former reading for half a second at most, and what it published then
/// is on its way for a moment.
const NOTICED_WITHIN_US: i64 = 1_000_000;

/// The clocks that were set ahead, and the shard of each task, which the rows at the end tell.
pub(super) struct Clocks<'a> {
    ahead: &'a [Ahead],
    shards: HashMap<&'a str, u32>,
}

impl<'a> Clocks<'a> {
    pub(super) fn of(history: &'a History) -> Self {
        let rows = if history.ahead.is_empty() { &[][..] } else { &history.rows };
        let shards = rows.iter().map(|row| (row.task.as_str(), row.shard)).collect();
        Self { ahead: &history.ahead, shards }
    }

    /// Whether a task has its place in an order of due times: not when its database took it while its clock was ahead,
    /// nor when it came early by that clock. Then it may have been due before another one was known.
    pub(super) fn is_ordered(&self, entry: &Entry, first: &Delivery) -> bool {
        let was_ahead = self
            .of_task(first)
            .any(|one| entry.invoked_us <= one.until_us.unwrap_or(i64::MAX) && entry.accepted_us >= one.from_us);
        !was_ahead && (first.at_us >= entry.due_us || self.may_be_early_us(first) == 0)
    }

    /// By how much this message may have come early: by nothing, unless the clock of its own database was ahead then.
    pub(super) fn may_be_early_us(&self, delivery: &Delivery) -> i64 {
        let is_meant = |one: &&Ahead| {
            let until_us = one.until_us.map_or(i64::MAX, |until_us| until_us + NOTICED_WITHIN_US);
            (one.from_us..=until_us).contains(&delivery.at_us)
        };
        self.of_task(delivery).filter(is_meant).map(|one| one.ahead_us).max().unwrap_or(0)
    }

    /// The times at which the clock of the task's database was ahead.
    fn of_task(&self, delivery: &Delivery) -> impl Iterator<Item = &'a Ahead> {
        let shard = self.shards.get(delivery.task.as_str()).copied();
        self.ahead.iter().filter(move |one| shard.is_some_and(|shard| one.shards.contains(&shard)))
    }
}
