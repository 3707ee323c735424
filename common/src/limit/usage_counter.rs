//! A node's tally of the tasks that count towards a limit: the last count, plus what the node has admitted since.
//!
//! A limit is soft by what other nodes accept between two counts. A submission is therefore admitted only by a count
//! younger than [`OUTDATED`], and refused for good only by a count that is fresh, or has found the limit reached.

use std::time::{Duration, Instant};

use super::{Excess, PendingLimits, Usage};

/// A refusal needs a count no older than this, or one that took long: see [`REFUSAL_COST_SHARE`].
const FRESH: Duration = Duration::from_millis(100);

/// Where there is room, the next count comes after twenty times what the last one took. Counting thus costs the
/// database 5 % of one connection, however many tasks there are.
const COST_SHARE: u32 = 20;

/// Where a count takes long, a refusal needs one no older than a second, or than four times what it took, so that room
/// which finished tasks made is seen soon. While there is no room, counting costs 20 % of one connection.
const REFUSAL_COST_SHARE: u32 = 4;

/// A count within a twentieth of the limit counts as one that found it reached.
const NEARLY_FULL_SHARE: i64 = 20;

/// Where no newer count comes, one of this age refuses nothing any more, because its tasks may have ended, unless it
/// found the limit reached itself. A busy node takes less from the end of a count to the refusal.
const REFUSES_FOR: Duration = Duration::from_secs(1);

/// A count of this age is renewed, while submissions are still admitted by it.
const RENEWED: Duration = Duration::from_secs(1);

/// A count of this age admits nothing: other nodes may have filled the queue meanwhile.
const OUTDATED: Duration = Duration::from_secs(10);

/// After a failed count, no submission waits for another one for this long: the last good count decides, or none.
const FAILED_FOR: Duration = Duration::from_secs(1);

/// What a submission has to do about a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitDecision {
    /// There is room, and the submission has taken it.
    Fits,
    /// There is room, and the submission has taken it; the caller should start a count meanwhile.
    FitsButCount,
    /// The caller must count first, then admit again.
    CountFirst,
    Exceeds(Excess),
    /// By the last count there is no room, but that is too old to refuse by, and there is no newer one yet.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    usage: Usage,
    /// When the count ended.
    at: Instant,
    cost: Duration,
    extent: CountCoverage,
}

/// How much a count covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountCoverage {
    /// The count did not stop at a limit.
    pub whole: bool,
    /// The count includes bytes.
    pub bytes: bool,
}

#[derive(Clone, Debug, Default)]
pub struct UsageCounter {
    count: Option<Count>,
    /// Tasks admitted and answered since the count began.
    accepted: Usage,
    /// Tasks admitted and still on the way into the database.
    admitted: Usage,
    /// The part of `accepted` that the running count sees, and when that count began.
    counting: Option<(Usage, Instant)>,
    failed: Option<Instant>,
}

impl UsageCounter {
    /// Takes room for `more` within `most` if there is some. With `last` the caller cannot wait for another count.
    pub fn admit(&mut self, most: PendingLimits, more: Usage, now: Instant, last: bool) -> LimitDecision {
        let last = last || self.failed.is_some_and(|at| now.saturating_duration_since(at) < FAILED_FOR);
        let ruling = self.rule(most, more, now, last);
        if matches!(ruling, LimitDecision::Fits | LimitDecision::FitsButCount) {
            self.admitted = self.admitted.plus(more);
        }
        ruling
    }

    fn rule(&self, most: PendingLimits, more: Usage, now: Instant, last: bool) -> LimitDecision {
        let Some(count) = self.count else {
            // A database that cannot be counted stores nothing either, and the insert then reports that.
            return if last { LimitDecision::Fits } else { LimitDecision::CountFirst };
        };
        let age = now.saturating_duration_since(count.at);
        let pause = count.cost.saturating_mul(COST_SHARE);
        let refusal_pause = pause.min(REFUSES_FOR.max(count.cost.saturating_mul(REFUSAL_COST_SHARE)));
        let excess = most.exceeded(self.used(), more);
        // No count makes room for a task that exceeds the limit alone.
        let may_fit = most.exceeded(Usage::default(), more).is_none();
        // Of what was accepted since the count, nothing says how much has ended. Where tasks come and go all the time,
        // a full queue has a little room whenever it is counted.
        let was_full = most.exceeded(count.usage.plus(count.usage.part(NEARLY_FULL_SHARE)), more).is_some();
        let refuses_for = if was_full { REFUSES_FOR.max(refusal_pause) } else { REFUSES_FOR };
        let is_blind = most.bytes.is_some() && !count.extent.bytes;
        let count_first = match excess {
            Some(_) => age > FRESH.max(refusal_pause),
            // A count that stopped at a lower limit does not cover this limit.
            None => !count.extent.whole || is_blind || age > OUTDATED.max(pause),
        };
        match excess {
            _ if count_first && !last => LimitDecision::CountFirst,
            Some(_) if may_fit && age > refuses_for => LimitDecision::Unknown,
            Some(excess) => LimitDecision::Exceeds(excess),
            None if age > RENEWED.max(pause) => LimitDecision::FitsButCount,
            None => LimitDecision::Fits,
        }
    }

    /// Gives back room that was taken and is not needed.
    pub fn withdraw(&mut self, taken: Usage) {
        self.admitted = self.admitted.minus(taken);
    }

    /// Notes that admitted tasks have their answer, and may be stored.
    pub fn answered(&mut self, taken: Usage) {
        self.admitted = self.admitted.minus(taken);
        self.accepted = self.accepted.plus(taken);
    }

    pub(crate) fn used(&self) -> Usage {
        let counted = self.count.map(|count| count.usage).unwrap_or_default();
        counted.plus(self.accepted).plus(self.admitted)
    }

    pub fn is_counting(&self) -> bool {
        self.counting.is_some()
    }

    pub fn count_begins(&mut self, now: Instant) {
        self.counting = Some((self.accepted, now));
    }

    /// Stores the result of a count. Tasks answered while it ran may count twice until the next one.
    pub fn counted(&mut self, usage: Usage, extent: CountCoverage, now: Instant) {
        let (seen, began) = self.counting.take().unwrap_or_else(|| (Usage::default(), now));
        self.accepted = self.accepted.minus(seen);
        self.failed = None;
        self.count = Some(Count { usage, at: now, cost: now.saturating_duration_since(began), extent });
    }

    pub fn count_failed(&mut self, now: Instant) {
        self.counting = None;
        self.failed = Some(now);
    }
}
