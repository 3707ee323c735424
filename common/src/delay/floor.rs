//! Where looks at a queue's ready tasks begin, by their due times.
//!
//! A task that was started leaves an entry in the index of ready tasks. While an old transaction keeps these entries
//! from being vacuumed, each look passes all of them. Once a look was slow, a read finds the due time of the oldest
//! ready task, and looks begin there: at the floor. Before each look the read goes on from the floor, and raises it.
//!
//! A task that becomes ready below the floor lowers it. Where a node does not notice, because the answer to a claim was
//! lost or a due time was changed by hand, the next read from the head finds the task. Such reads use a tenth of the
//! time, and once one is quick, no floor is needed any more.

use std::time::{Duration, Instant};

use super::rest::rest;
use crate::time::UnixMicros;

/// From this time on a look is slow: some hundred times as long as one that passes few entries.
pub const SLOW_LOOK: Duration = Duration::from_millis(100);

/// A read from the head that is this quick passes few entries: a look without a floor may pass each some ten times, and
/// is not slow even so.
const QUICK_READ: Duration = Duration::from_millis(5);

/// How long ago the floor is at least after a read that has run out of time: the newest tasks go on.
const LOOK_BACK: Duration = Duration::from_secs(60);

/// Where a look begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookFrom {
    /// Nothing is known to be slow.
    Everywhere,
    /// A read from the head comes first, and shows the floor.
    Head,
    /// A read from here on comes first, and raises the floor.
    Floor(UnixMicros),
}

/// The floor of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Floor {
    at: Option<UnixMicros>,
    /// The due time of the oldest task that became ready since the look under way began.
    lowered_to: Option<UnixMicros>,
    /// The next read from the head. `None`: looks begin everywhere.
    head_at: Option<Instant>,
    /// Whether tasks came whose due times are unknown, so that the next look reads from the head.
    is_unsure: bool,
}

impl Floor {
    /// Where a look begins at `now`.
    pub fn begin(&mut self, now: Instant) -> LookFrom {
        self.at = self.at.map(|at| self.lowered_to.map_or(at, |low| at.min(low)));
        self.lowered_to = None;
        let is_unsure = std::mem::take(&mut self.is_unsure);
        match (self.head_at, self.at) {
            (None, _) => LookFrom::Everywhere,
            (Some(_), _) if is_unsure => LookFrom::Head,
            (Some(head_at), Some(at)) if now < head_at => LookFrom::Floor(at),
            (Some(_), _) => LookFrom::Head,
        }
    }

    /// Records a look that began everywhere and was slow.
    pub fn was_slow(&mut self, now: Instant) {
        self.head_at = Some(self.head_at.unwrap_or(now));
    }

    /// Records what a read from the head found, or the database's time if no task is ready.
    pub fn read_head(&mut self, oldest: UnixMicros, took: Duration, now: Instant) {
        self.at = Some(oldest);
        self.head_at = (took > QUICK_READ).then(|| now + rest(took));
    }

    /// Records a read that ran out of time after so long. The floor stays, or is a while ago if that is earlier: a task
    /// may have become ready below it unnoticed.
    pub fn ran_out_of_time(&mut self, database_now: UnixMicros, took: Duration, now: Instant) {
        let a_while_ago = database_now.minus(LOOK_BACK);
        self.at = Some(self.at.map_or(a_while_ago, |at| at.min(a_while_ago)));
        self.head_at = Some(now + rest(took));
    }

    /// Records what a read from the floor found.
    pub fn raise(&mut self, oldest: UnixMicros) {
        self.at = Some(oldest);
    }

    /// A task due at `due_at` became ready.
    pub fn lower(&mut self, due_at: UnixMicros) {
        self.lowered_to = Some(self.lowered_to.map_or(due_at, |low| low.min(due_at)));
    }

    /// Tasks came whose due times are unknown.
    pub fn doubt(&mut self) {
        self.is_unsure = true;
    }

    /// The due time from which on the look under way finds all ready tasks. `None`: everywhere.
    pub fn get(&self) -> Option<UnixMicros> {
        self.at.filter(|_| self.head_at.is_some())
    }

    /// Whether there is a floor, or there will be one.
    pub fn is_needed(&self) -> bool {
        self.head_at.is_some()
    }
}

#[cfg(test)]
mod tests;
