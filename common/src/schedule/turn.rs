//! What a look at a schedule comes to: the tasks to be made, and where the schedule stands afterwards. Pure; the look is written
//! by compare-and-set, so that each fire time is decided once, whoever looks and how often.

use std::{collections::VecDeque, time::Duration};

use super::{Calendar, Fire, Overlap, Rules};
use crate::time::UnixMicros;

/// A fire time is decided this long before it comes, so that its task is there in time in spite of the statements that it
/// takes, and of a node that dies in between. What is changed, paused or deleted later than that is too late for it.
pub const AHEAD: Duration = Duration::from_secs(3);

/// A fire time that waits for the task before it looks for its end this often.
pub const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Tasks of one look; after an outage, the newest are made up. With the largest payloads that is a statement of 6 MiB.
pub const MADE_UP_MOST: usize = 100;

/// Fire times that nobody makes up are counted so far, two milliseconds of work; more of them count as so many.
const MISSED_COUNTED: u64 = 10_000;

/// Where a schedule stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The first fire time that is not decided.
    pub next_at: Option<UnixMicros>,
    /// Beside `next_at`, only fire times after this are to come: it was decided, changed or resumed then.
    pub since: UnixMicros,
    pub paused_at: Option<UnixMicros>,
    /// A fire time that waits until the last task is finished.
    pub buffered_at: Option<UnixMicros>,
}

impl Standing {
    /// Of a schedule that is new at `now`.
    pub fn new(calendar: &Calendar, now: UnixMicros) -> Self {
        Self { next_at: calendar.next_after(now), since: now, paused_at: None, buffered_at: None }
    }

    /// From `now` on another calendar counts. The first fire time that has come and is not decided yet stays.
    pub fn change(&mut self, calendar: &Calendar, now: UnixMicros) {
        self.since = self.since.max(now);
        self.next_at = self.next_at.filter(|next_at| *next_at <= now);
        if self.next_at.is_none() && self.paused_at.is_none() {
            self.next_at = calendar.next_after(self.since);
        }
    }

    /// What has come by `now` is still made.
    pub fn pause(&mut self, now: UnixMicros) {
        if self.paused_at.is_none() {
            self.paused_at = Some(now);
            self.next_at = self.next_at.filter(|next_at| *next_at <= now);
        }
    }

    /// What came during the pause is not made up. A pause in which nobody decided what had come before it was none.
    pub fn resume(&mut self, calendar: &Calendar, now: UnixMicros) {
        if self.paused_at.take().is_some() && self.next_at.is_none() {
            self.since = self.since.max(now);
            self.next_at = calendar.next_after(self.since);
        }
    }

    /// When to look next. `None`: not before somebody changes it.
    pub fn wake_at(&self, now: UnixMicros) -> Option<UnixMicros> {
        let next = self.next_at.map(|next_at| next_at.minus(AHEAD));
        let waiting = self.buffered_at.filter(|_| self.paused_at.is_none()).map(|_| now.plus(LOOK_AGAIN));
        [next, waiting].into_iter().flatten().min()
    }
}

/// What one look decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// In their order.
    pub fires: Vec<Fire>,
    /// Fire times that came while the last task was unfinished, and come to nothing.
    pub skipped: u64,
    /// Fire times that came while nobody looked, and are not made up.
    pub missed: u64,
    pub standing: Standing,
    pub wake_at: Option<UnixMicros>,
}

impl Turn {
    /// `unfinished`: the schedule's last task is. It stays finished once it is, so a fire time may be decided ahead when it is
    /// finished by then; while it is not, the decision waits for the fire time itself.
    pub fn take(rules: &Rules, calendar: &Calendar, standing: Standing, unfinished: bool, now: UnixMicros) -> Self {
        let turn = Self { fires: Vec::new(), skipped: 0, missed: 0, standing, wake_at: None };
        turn.buffered(rules.overlap, unfinished).fired(rules, calendar, unfinished, now)
    }

    /// What waits, unless it has to go on waiting.
    fn buffered(mut self, overlap: Overlap, unfinished: bool) -> Self {
        let blocked = unfinished && overlap != Overlap::Allow || self.standing.paused_at.is_some();
        if let Some(at) = self.standing.buffered_at.filter(|_| !blocked) {
            self.standing.buffered_at = None;
            self.fires.push(Fire { at, buffered: true });
        }
        self
    }

    fn fired(mut self, rules: &Rules, calendar: &Calendar, unfinished: bool, now: UnixMicros) -> Self {
        let (come, next_at) = self.come(rules, calendar, now);
        self.standing.next_at = next_at;
        for at in come {
            let blocked = unfinished || !self.fires.is_empty();
            if rules.overlap == Overlap::Allow || !blocked {
                self.fires.push(Fire { at, buffered: false });
            } else if at > now {
                self.standing.next_at = Some(at);
                self.wake_at = Some(at.min(now.plus(LOOK_AGAIN)));
                return self;
            } else if rules.overlap == Overlap::BufferOne && self.standing.buffered_at.is_none() {
                self.standing.buffered_at = Some(at);
            } else {
                self.skipped += 1;
            }
            self.standing.since = self.standing.since.max(at);
        }
        self.wake_at = self.standing.wake_at(now);
        self
    }

    /// The fire times to be decided now, and the first one after them. Counts those that were missed.
    fn come(
        &mut self,
        rules: &Rules,
        calendar: &Calendar,
        now: UnixMicros,
    ) -> (VecDeque<UnixMicros>, Option<UnixMicros>) {
        let (since, paused_at) = (self.standing.since, self.standing.paused_at);
        let until = paused_at.unwrap_or_else(|| now.plus(AHEAD));
        let catch_up = Duration::from_millis(u64::try_from(rules.catch_up_ms).unwrap_or(0));
        let earliest = now.minus(catch_up);
        let after = |at: UnixMicros| calendar.next_after(at.max(since));
        let mut next_at = self.standing.next_at;
        let mut come = VecDeque::new();
        while let Some(at) = next_at.filter(|at| *at <= until) {
            if at < earliest {
                self.missed += 1;
                next_at =
                    after(if self.missed < MISSED_COUNTED { at } else { earliest.minus(Duration::from_micros(1)) });
                continue;
            }
            come.push_back(at);
            if come.len() > MADE_UP_MOST {
                come.pop_front();
                self.missed += 1;
            }
            next_at = after(at);
        }
        (come, next_at.filter(|_| paused_at.is_none()))
    }
}

#[cfg(test)]
mod tests;
