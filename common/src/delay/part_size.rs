//! How many tasks a statement takes whose answer brings their payloads.
//!
//! Those of 500 tasks may have 100 MB and more. Where the way is slow, such an answer does not come in the time of a
//! statement, and the same tasks would run out of it again. So the statements after it take at most half as many as
//! before, down to a single one. They grow again once none has run out of its time for a while: quickly while they are
//! quick.
//!
//! An answer that comes in the time of a statement may still come too late. Its messages may be sent for a while only,
//! the hold, which counts from the sending of the statement. After it, their rows must be read again, by a statement
//! that would come as late. So the statements after it take at most half as many as it brought. Statements of more than
//! [`FEW`] grow only as long as half of the hold is left for the way to the broker. Four claims may be under way
//! together. Where they share a slow way, some that grew by what a single one took may be late once, and are halved
//! again.
//!
//! A database may be slow whatever a statement takes, as with commits that take seconds. Then smaller ones only make
//! fewer tasks leave in time. An answer with so few bytes that they were not what took long shows such a database. It
//! counts as late only if nothing of it can be sent, and makes statements no smaller than [`FEW`]. Those that are, as
//! after an outage, grow to [`FEW`] with such answers, however slow these are.
//!
//! In an outage all statements run out of their time, small ones too, and a small one shows the same as a large one. So
//! where no answer came, it is the bound that is halved, and not the statement's own size. Statements that were under
//! way together halve it once. After a long outage it may be a single task. But [`FEW`] tasks are hardly ever too many,
//! so quick statements double it at once until it is as much.
//!
//! Small statements must count. The tasks that are too many may be fewer than half of the bound, and come together
//! again and again.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

/// A statement that took less than one part in so many of the hold comes in time with twice as many tasks, too. That
/// is so if no more of them share the way than before.
const QUICK: u32 = 5;

/// Statements do not grow for so long after one ran out of its time. Its tasks come again meanwhile, and take ten
/// seconds at most to do so once more. Other tasks, with small payloads, must not make them as many as before.
const REST: Duration = Duration::from_secs(15);

/// The payloads of so many tasks have some megabytes at most as a rule, and come in time over any way that is fit for a
/// database. Claims of so many cost more than larger ones, but take thousands of tasks a second.
const FEW: usize = 16;

/// So many bytes come in a moment over any way that is fit for a database. They are as much as a single task may have
/// by default.
const LIGHT_BYTES: i64 = 256 << 10;

/// Slow statements grow by this part: they may take long because of something else than their tasks.
const SLOWLY: usize = 8;

/// The bound of one kind of statement.
#[derive(Clone, Copy, Debug)]
pub struct PartSize {
    most: usize,
    halved_at: Option<Instant>,
    rests_until: Option<Instant>,
    /// Whether statements grew to a few tasks during the rest, and whether one of so few ran out of its time since.
    grew: bool,
    stays: bool,
}

impl Default for PartSize {
    fn default() -> Self {
        Self { most: usize::MAX, halved_at: None, rests_until: None, grew: false, stays: false }
    }
}

impl PartSize {
    /// The most tasks of the next statement, if there is no other bound than `of`.
    pub fn most(&self, of: usize) -> usize {
        self.most.min(of)
    }

    /// Records that a statement of so many tasks, which began then, ran out of its time. `of`: as in [`Self::most`]. A
    /// single task cannot be divided. One that began before the last halving was under way together with another.
    pub fn ran_out_of_time(&mut self, tasks: usize, of: usize, began: Instant, now: Instant) {
        if tasks <= 1 {
            return;
        }
        // A few tasks that are as heavy must not grow again with each quick statement beside them.
        self.stays |= std::mem::take(&mut self.grew) && tasks <= FEW;
        if self.halved_at.is_none_or(|at| began >= at) {
            self.most = (self.most(of) / 2).max(1);
            self.halved_at = Some(now);
        }
        self.rests_until = Some(now + REST);
    }

    /// Records that an answer with the payloads of so many tasks, of so many bytes, came too late.
    pub fn came_too_late(&mut self, tasks: usize, bytes: i64, now: Instant) {
        let fewest = if bytes > LIGHT_BYTES { 1 } else { FEW };
        if tasks <= fewest {
            return;
        }
        self.stays |= std::mem::take(&mut self.grew) && tasks <= FEW;
        // Several such answers that were under way together do so once.
        let half = (tasks / 2).max(fewest);
        if half < self.most {
            (self.most, self.halved_at) = (half, Some(now));
        }
        self.rests_until = Some(now + REST);
    }

    /// Whether an answer that took so long came too late for its messages, which may be sent until `hold` has passed.
    /// `bytes`: of their payloads. Where these are many, a quarter of the hold is left for a burst: what cannot be sent
    /// by then is read once more.
    pub fn is_too_late(took: Duration, bytes: i64, hold: Duration) -> bool {
        took > if bytes > LIGHT_BYTES { hold / 4 * 3 } else { hold }
    }

    /// Records that a statement of so many tasks, with payloads of so many bytes, passed, and how long it took. One of
    /// few says nothing about more. A slow one with few bytes says that the database is slow whatever it does, and one
    /// without any was slow because of a lock or the like.
    pub fn passed(&mut self, tasks: usize, bytes: i64, took: Duration, hold: Duration, now: Instant) {
        let is_slow = took > hold / 2;
        if tasks <= self.most / 2 || is_slow && (bytes == 0 || bytes > LIGHT_BYTES || self.most >= FEW) {
            return;
        }
        let (rests, is_quick) = (self.rests_until.is_some_and(|until| now < until), took < hold / QUICK);
        let more = if is_quick { self.most } else { self.most.div_ceil(SLOWLY) };
        let larger = self.most.saturating_add(more).min(if is_slow { FEW } else { usize::MAX });
        if !rests {
            (self.most, self.grew, self.stays) = (larger, false, false);
        } else if is_quick && !self.stays && self.most < FEW {
            (self.most, self.grew) = (larger.min(FEW), true);
        }
    }
}
