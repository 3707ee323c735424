//! How many messages may be under way to the broker.
//!
//! Messages that the broker has not confirmed yet wait there, and those of other lanes wait behind them. So a burst
//! begins with few, and has more while the broker is quick to confirm them: the slow start of TCP (RFC 5681), with the
//! delay as the sign of congestion, as in TCP Vegas. That is how much longer a batch took than the quickest one lately.
//! It does not count where all lanes have more than they may send: none of them would gain by a short wait at the
//! broker.

use std::time::{Duration, Instant};

use crate::delay::quickest::Quickest;

use super::MESSAGES_PER_BATCH;

/// The messages with which a burst begins. Those of all nodes leave at one instant, and the broker works on all of
/// them at a time, so the first one waits for most of the others.
pub(super) const FIRST: usize = 16;

/// Where messages come more evenly, so many are under way before a lane waits. A lane with as many is busy, and a
/// window in which as many are under way is in use.
pub(super) const BUSY: usize = 64;

/// A broker that is slow still has so many. With fewer, batches become so small that they cost more than they gain
/// where the broker waits for a processor and not for its messages.
pub(super) const LEAST: usize = 256;

/// The most messages under way. More do not make the broker quicker.
pub(super) const MOST: usize = 1_024;

/// A window has so many batches, so that the broker works on one while another is on its way.
pub(super) const BATCHES: usize = 4;

/// A batch that takes so much longer than the quickest one lately has waited behind others. With a longer wait the
/// broker is hardly quicker, and other lanes are later.
pub(super) const LONGEST_WAIT: Duration = Duration::from_millis(30);

/// A window that was not used for so long begins anew, and a lane that was not busy for so long shares it with those
/// that are.
pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_secs(1);

/// After so long a burst is over, whether or not its answers have come.
pub(super) const LATE: Duration = Duration::from_secs(5);

/// The bound of messages under way, beyond one batch of each lane.
#[derive(Debug)]
pub(super) struct Window {
    messages: usize,
    /// The last moment at which a burst began, a lane had to wait for room, or [`BUSY`] messages were under way.
    used_at: Option<Instant>,
    /// The last moment at which an answer kept it in use: the lanes of a burst had waited for that one. The answer
    /// counts for what was sent around [`Self::used_at`] only. Otherwise answers alone would keep it in use for ever.
    kept_at: Option<Instant>,
    /// The last moment at which a lane sent that was not busy.
    shared_at: Option<Instant>,
    quickest: Quickest,
}

impl Default for Window {
    fn default() -> Self {
        Self { messages: BUSY, used_at: None, kept_at: None, shared_at: None, quickest: Quickest::default() }
    }
}

impl Window {
    pub(super) const fn has_room(&self, under_way: usize) -> bool {
        under_way < self.messages
    }

    /// The most messages of one batch.
    pub(super) fn batch(&self) -> usize {
        (self.messages / BATCHES).min(MESSAGES_PER_BATCH)
    }

    /// The most messages of a lane that stand ready. While a burst begins, a lane makes ready no more than a batch
    /// takes: each costs some time, and the first ones wait for it.
    pub(super) fn ready(&self) -> usize {
        if self.messages < BUSY { self.batch() } else { MESSAGES_PER_BATCH }
    }

    /// A lane is about to send. If the window is not in use, and the lane has a burst, that begins.
    pub(super) fn begins(&mut self, is_burst: impl FnOnce() -> bool, now: Instant) {
        if self.is_in_use(now) {
            return;
        }
        if is_burst() {
            (self.messages, self.used_at) = (FIRST, Some(now));
        } else {
            self.messages = self.messages.max(BUSY);
        }
    }

    /// A lane waits for room.
    pub(super) fn limits(&mut self, now: Instant) {
        if !self.is_in_use(now) {
            self.messages = BUSY;
        }
        self.used_at = Some(now);
    }

    /// A lane sends, and so many messages of all lanes are under way now. Those of a lane that is not busy wait behind
    /// the others.
    pub(super) fn sends(&mut self, under_way: usize, is_busy: bool, now: Instant) {
        if under_way >= BUSY {
            self.used_at = Some(now);
        }
        if !is_busy {
            self.shared_at = Some(now);
        }
    }

    /// The broker has answered a batch of so many messages within `took`.
    pub(super) fn answered(&mut self, messages: usize, took: Duration, now: Instant) {
        let has_waited = took > self.quickest.with(took, now) + LONGEST_WAIT;
        if !self.is_in_use(now) {
            // Where the broker takes longer than a use counts, no lane had a chance to wait for room meanwhile.
            let sent_at = now.checked_sub(took).filter(|_| (FORGOTTEN_AFTER..LATE).contains(&took));
            let was_used = sent_at.zip(self.used_at).is_some_and(|(sent_at, used_at)| is_recent(used_at, sent_at));
            if !was_used {
                return;
            }
            self.kept_at = Some(now);
        }
        let is_shared = self.shared_at.is_some_and(|at| is_recent(at, now));
        let most = if has_waited && is_shared { LEAST } else { MOST };
        self.messages = if self.messages <= most {
            (self.messages + messages).min(most)
        } else {
            self.messages.saturating_sub(messages / 2).max(most)
        };
    }

    /// Whether a burst began lately, or lanes had to wait for room, or nearly.
    fn is_in_use(&self, now: Instant) -> bool {
        [self.used_at, self.kept_at].into_iter().flatten().any(|at| is_recent(at, now))
    }
}

/// Whether what happened then still counts.
pub(super) fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < FORGOTTEN_AFTER
}
