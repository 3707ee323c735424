//! How many tasks of a crowd one claim takes, and how many any claim or rescue.
//!
//! Tasks that come due now are as late as the claim that they share, and as the claims before it. While all nodes claim
//! a burst, a claim of 500 tasks takes a tenth of a second. Fewer tasks cost more each. So a claim takes what lately
//! took a moment, beyond what the quickest claims took: a slow network does not make claims smaller.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use super::{part_size::PartSize, quickest::Quickest};

/// A claim's tasks take so long. Others come due within their lead meanwhile, which is longer.
const MOMENT: Duration = Duration::from_millis(25);

/// The fewest tasks of a full claim: a statement costs as much as some twenty tasks.
const LEAST: usize = 100;

/// Each full claim changes the estimate by this part of the difference, so that one slow one does not decide.
const PART: u32 = 4;

/// The size of one database's claims; every claim adjusts it.
#[derive(Clone, Debug)]
pub struct ClaimSize {
    most: usize,
    quickest: Quickest,
    /// What a task of a claim takes.
    each: Duration,
    /// The bound of claims and rescues of any tasks.
    pub part: PartSize,
}

impl ClaimSize {
    /// Claims of at most so many tasks.
    pub fn new(most: usize) -> Self {
        Self { most, quickest: Quickest::default(), each: Duration::ZERO, part: PartSize::default() }
    }

    /// Records how long a claim of so many tasks took.
    pub fn took(&mut self, tasks: usize, claim: Duration, now: Instant) {
        let waited = claim.saturating_sub(self.quickest.with(claim, now));
        let Ok(tasks) = u32::try_from(tasks) else { return };
        if tasks as usize >= LEAST.min(self.most) {
            self.each = self.each * (PART - 1) / PART + waited / tasks / PART;
        }
    }

    /// Whether full claims lately took longer than a moment: more of them at a time would only wait for one another.
    pub fn is_slow(&self) -> bool {
        self.within_a_moment() < self.most
    }

    /// The most tasks of the next claim of a crowd.
    pub fn most(&self) -> usize {
        self.within_a_moment().min(self.in_time())
    }

    /// The most tasks of the next claim or rescue, so that its answer comes in time.
    pub fn in_time(&self) -> usize {
        self.part.most(self.most)
    }

    fn within_a_moment(&self) -> usize {
        let quick = MOMENT.as_nanos().checked_div(self.each.as_nanos()).and_then(|tasks| usize::try_from(tasks).ok());
        quick.map_or(self.most, |quick| quick.clamp(LEAST.min(self.most), self.most))
    }
}
