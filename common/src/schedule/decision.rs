//! The decision about a schedule: the tasks to make, and the schedule's state afterwards. Pure. A compare-and-set
//! writes the decision, so each fire time is decided once, however many nodes look and however often.

use std::{collections::VecDeque, time::Duration};

use super::{Calendar, Fire, Overlap, Rules};
use crate::time::UnixMicros;

/// How long before a fire time it is decided. The task then exists in time, in spite of the statements that it takes,
/// and even if a node dies meanwhile. A change, a pause or a delete within this time no longer affects the fire time.
pub(crate) const AHEAD: Duration = Duration::from_secs(3);

/// How soon a fire time that waits for the previous task checks again whether that task has finished.
pub(crate) const CHECK_AGAIN: Duration = Duration::from_millis(500);

/// The longest pause between such checks. Each writes the schedule's row; once a fire time has waited for a quarter of
/// an hour, some seconds more matter little.
const CHECK_AGAIN_WITHIN: Duration = Duration::from_secs(10);

/// How long a node that is not the master leaves a due schedule to others. Without a master, fire times are decided
/// this long and [`CHECK_AGAIN`] after each other, which must be less than the shortest interval. Otherwise two of
/// them come due between two looks, and the rule `skip` leaves the second one out.
pub const STAND_IN_AFTER: Duration = Duration::from_millis(400);

/// The most that `since` can be ahead of the clock. Fire times are decided ahead, and the clock of a server that takes
/// over may be a minute behind. Beyond it, the clock was set back.
pub const MOST_AHEAD: Duration = AHEAD.saturating_add(Duration::from_secs(60));

/// How long ago the moment of a look may be. Looks beside an old transaction begin a minute ago
/// ([`crate::delay::LowWater`]), and the rest is for the time until the moment is stored.
const MOST_OVERDUE: Duration = Duration::from_secs(30);

/// The most tasks of one look; after an outage, the newest fire times get them. With the largest payloads that is a
/// statement of 6 MiB.
pub(crate) const MAX_MADE_UP: usize = 100;

/// The most missed fire times that are counted one by one, which takes two milliseconds. The count of a longer run
/// leaves some out.
const MAX_MISSED_COUNTED: u64 = 10_000;

/// The state of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleState {
    /// The first undecided fire time.
    pub next_at: Option<UnixMicros>,
    /// Besides `next_at`, only fire times after this moment can follow. It is the moment of the last decision, change
    /// or resume.
    pub since: UnixMicros,
    pub paused_at: Option<UnixMicros>,
    /// A fire time that waits until the last task is finished.
    pub buffered_at: Option<UnixMicros>,
}

impl ScheduleState {
    /// The state of a schedule that is new at `now`.
    pub fn new(calendar: &Calendar, now: UnixMicros) -> Self {
        Self { next_at: calendar.next_after(now), since: now, paused_at: None, buffered_at: None }
    }

    /// Changes the calendar from `now` on. A fire time that has come and is not decided yet stays.
    pub fn change(&mut self, calendar: &Calendar, now: UnixMicros) {
        self.follow_clock(now);
        self.since = self.since.max(now);
        self.next_at = self.next_at.filter(|next_at| *next_at <= now);
        if self.next_at.is_none() && self.paused_at.is_none() {
            self.next_at = calendar.next_after(self.since);
        }
    }

    /// Pauses the schedule. Fire times that have come by `now` still get their tasks.
    pub fn pause(&mut self, now: UnixMicros) {
        if self.paused_at.is_none() {
            self.paused_at = Some(now);
            self.next_at = self.next_at.filter(|next_at| *next_at <= now);
        }
    }

    /// Resumes the schedule. Fire times during the pause get no tasks, and an undecided one from before it still gets
    /// its task. If several from before it are undecided, the pause has no effect: otherwise all but the first would
    /// be left out.
    pub fn resume(&mut self, calendar: &Calendar, now: UnixMicros) {
        self.correct(calendar, now);
        let Some(paused_at) = self.paused_at.take() else { return };
        let since = self.since;
        let is_last = |at: UnixMicros| calendar.next_after(at.max(since)).is_none_or(|next| next > paused_at);
        if self.next_at.is_none_or(is_last) {
            self.since = since.max(now);
        }
        if self.next_at.is_none() {
            self.next_at = calendar.next_after(self.since);
        }
    }

    /// Corrects a state that the calendar and the clock cannot have led to, and returns whether it was one. After a
    /// clock was set back far, fire times follow from `now` on. A fire time that was decided before has its key, so it
    /// gets no second task while the key is kept.
    ///
    /// The rules of a time zone change with a release. A `next_at` that the calendar does not have any more gives way
    /// to the first fire time after `since`. One that is not after `since` is left of a former calendar, and stays.
    pub fn correct(&mut self, calendar: &Calendar, now: UnixMicros) -> bool {
        let before = *self;
        let is_dropped = self.follow_clock(now) && self.next_at.is_none();
        let is_wrong = self.next_at.is_some_and(|next_at| next_at > self.since && !calendar.fires_at(next_at));
        if is_dropped || is_wrong {
            let until = self.paused_at.map_or(UnixMicros::LAST, |paused_at| paused_at.min(now));
            self.next_at = calendar.next_after(self.since).filter(|next_at| *next_at <= until);
        }
        *self != before
    }

    /// If the clock was set back far since the last decision: fire times follow from `now` on, and the one that was
    /// next by the former clock is dropped. Returns whether the clock was.
    fn follow_clock(&mut self, now: UnixMicros) -> bool {
        let is_set_back = self.since > now.plus(MOST_AHEAD);
        if is_set_back {
            self.since = now;
            self.next_at = self.next_at.filter(|next_at| *next_at <= now);
        }
        is_set_back
    }

    /// The next `count` fire times after `now`: those that are decided, up to `last_fire_at`, and those to come.
    pub fn next_times(
        &self,
        calendar: &Calendar,
        last_fire_at: Option<UnixMicros>,
        now: UnixMicros,
        count: usize,
    ) -> Vec<UnixMicros> {
        let next_at = match self.next_at {
            Some(next_at) if next_at <= now => calendar.next_after(now.max(self.since)),
            next_at => next_at,
        };
        let last = last_fire_at.filter(|last| *last > now && next_at.is_none_or(|next_at| *last < next_at));
        let decided = match last {
            // Several are decided ahead where the interval is short.
            Some(last) if calendar.fires_at(last) => {
                let mut decided = calendar.next_times(now, count);
                decided.retain(|at| *at <= last);
                decided
            }
            // It is left of a former calendar.
            last => last.into_iter().collect(),
        };
        let to_come = std::iter::successors(next_at, |last| calendar.next_after(*last));
        decided.into_iter().chain(to_come).take(count).collect()
    }

    /// When to look next. `None`: not before a change of the schedule. A fire time may be long overdue, after looks at
    /// it were postponed; its next look is found like one of now.
    pub fn wake_at(&self, now: UnixMicros) -> Option<UnixMicros> {
        let next = self.next_at.map(|next_at| next_at.minus(AHEAD).max(now.minus(MOST_OVERDUE)));
        let buffered_at = self.buffered_at.filter(|_| self.paused_at.is_none());
        let waiting = buffered_at.map(|at| now.plus((now.since(at) / 100).clamp(CHECK_AGAIN, CHECK_AGAIN_WITHIN)));
        [next, waiting].into_iter().flatten().min()
    }
}

/// What a schedule does at one moment, and its state afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FireDecision {
    /// The fire times that get a task, in their order.
    pub fires: Vec<Fire>,
    /// The number of fire times that came while the last task was unfinished, and get no task.
    pub skipped: u64,
    /// The number of fire times that came while no node looked, and get no task.
    pub missed: u64,
    pub state: ScheduleState,
    pub wake_at: Option<UnixMicros>,
}

impl FireDecision {
    /// Decides at `now`. `unfinished` says whether the schedule's last task is unfinished. A finished task stays
    /// finished, so the fire time may then be decided ahead. While the task is unfinished, the decision waits for the
    /// fire time itself.
    pub fn decide(
        rules: &Rules,
        calendar: &Calendar,
        mut state: ScheduleState,
        unfinished: bool,
        now: UnixMicros,
    ) -> Self {
        state.correct(calendar, now);
        let decision = Self { fires: Vec::new(), skipped: 0, missed: 0, state, wake_at: None };
        decision.buffered(rules.overlap, unfinished).fired(rules, calendar, unfinished, now)
    }

    /// Fires the buffered fire time, unless it has to wait longer.
    fn buffered(mut self, overlap: Overlap, unfinished: bool) -> Self {
        let blocked = unfinished && overlap != Overlap::Allow || self.state.paused_at.is_some();
        if let Some(at) = self.state.buffered_at.filter(|_| !blocked) {
            self.state.buffered_at = None;
            self.fires.push(Fire { at, buffered: true });
        }
        self
    }

    fn fired(mut self, rules: &Rules, calendar: &Calendar, unfinished: bool, now: UnixMicros) -> Self {
        let (due, next_at) = self.due_fire_times(rules, calendar, now);
        self.state.next_at = next_at;
        for at in due {
            let blocked = unfinished || !self.fires.is_empty();
            if rules.overlap == Overlap::Allow || !blocked {
                self.fires.push(Fire { at, buffered: false });
            } else if at > now {
                self.state.next_at = Some(at);
                self.wake_at = Some(at.min(now.plus(CHECK_AGAIN)));
                return self;
            } else if rules.overlap == Overlap::BufferOne && self.state.buffered_at.is_none() {
                self.state.buffered_at = Some(at);
            } else {
                self.skipped += 1;
            }
            self.state.since = self.state.since.max(at);
        }
        self.wake_at = self.state.wake_at(now);
        self
    }

    /// The fire times to decide now, and the first one after them. Counts the missed ones.
    fn due_fire_times(
        &mut self,
        rules: &Rules,
        calendar: &Calendar,
        now: UnixMicros,
    ) -> (VecDeque<UnixMicros>, Option<UnixMicros>) {
        let (since, paused_at) = (self.state.since, self.state.paused_at);
        let until = paused_at.unwrap_or_else(|| now.plus(AHEAD));
        let catch_up = Duration::from_millis(u64::try_from(rules.catch_up_ms).unwrap_or(0));
        let earliest = now.minus(catch_up);
        let after = |at: UnixMicros| calendar.next_after(at.max(since));
        let (mut next_at, mut newest) = (self.state.next_at, None);
        let mut due = VecDeque::new();
        while let Some(at) = next_at.filter(|at| *at <= until) {
            if at < earliest {
                self.missed += 1;
                // Decided by this clock, so that a clock which is set back later is noticed.
                self.state.since = self.state.since.max(earliest.minus(Duration::from_micros(1)));
                next_at =
                    after(if self.missed < MAX_MISSED_COUNTED { at } else { earliest.minus(Duration::from_micros(1)) });
                continue;
            }
            due.push_back(at);
            if due.len() > MAX_MADE_UP {
                due.pop_front();
                self.missed += 1;
            }
            // Computing all fire times of a week could keep this thread from all else for seconds.
            next_at = after(if self.missed < MAX_MISSED_COUNTED {
                at
            } else {
                at.max(*newest.get_or_insert_with(|| before_newest(calendar, until)))
            });
        }
        (due, next_at.filter(|_| paused_at.is_none()))
    }
}

/// The moment after which come the last [`MAX_MADE_UP`] fire times up to `until`; the first of all if there are fewer.
fn before_newest(calendar: &Calendar, until: UnixMicros) -> UnixMicros {
    let next = calendar.next_after(until);
    let oldest = next.and_then(|next| calendar.last_times(next, MAX_MADE_UP).get(MAX_MADE_UP - 1).copied());
    oldest.map_or(UnixMicros::FIRST, |oldest| oldest.minus(Duration::from_micros(1)))
}

#[cfg(test)]
mod tests;
