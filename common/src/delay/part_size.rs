//! How many tasks a statement takes whose answer brings their payloads.
//!
//! Those of 500 tasks may have 100 MB and more. Where the way is slow, such an answer does not come in the time of a
//! statement, and the same tasks would run out of it again. So the statements after it take half as many, down to a
//! single one. They grow again once none has run out of its time for a while: quickly while they are quick.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

/// A statement that took less ends in time with twice as many tasks, too: it has five seconds.
const QUICK: Duration = Duration::from_secs(1);

/// Statements do not grow for so long after one ran out of its time. Its tasks come again meanwhile, and take ten
/// seconds at most to do so once more. Other tasks, with small payloads, must not make them as many as before.
const REST: Duration = Duration::from_secs(15);

/// Slow statements grow by this part: they may take long because of something else than their tasks.
const SLOWLY: usize = 8;

/// The bound of one kind of statement.
#[derive(Clone, Copy, Debug)]
pub struct PartSize {
    most: usize,
    rests_until: Option<Instant>,
}

impl Default for PartSize {
    fn default() -> Self {
        Self { most: usize::MAX, rests_until: None }
    }
}

impl PartSize {
    /// The most tasks of the next statement, if there is no other bound than `of`.
    pub fn most(&self, of: usize) -> usize {
        self.most.min(of)
    }

    /// Records that a statement of so many tasks ran out of its time. A single one cannot be divided.
    pub fn ran_out_of_time(&mut self, tasks: usize, now: Instant) {
        if tasks > 1 {
            self.most = self.most.min(tasks / 2);
            self.rests_until = Some(now + REST);
        }
    }

    /// Records that a statement of so many tasks passed, and how long it took. One of few says nothing about more.
    pub fn passed(&mut self, tasks: usize, took: Duration, now: Instant) {
        let rests = self.rests_until.is_some_and(|until| now < until);
        if tasks > self.most / 2 && !rests {
            let more = if took < QUICK { self.most } else { self.most.div_ceil(SLOWLY) };
            self.most = self.most.saturating_add(more);
        }
    }
}
