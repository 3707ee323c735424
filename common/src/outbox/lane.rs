//! The messages that one lane has to send.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use super::{
    BATCHES_PER_LANE, Dispatch, ENOUGH, FEW_BATCHES, HOLD, MANY_BATCHES, MESSAGES_PER_BATCH, QUIET_AFTER, SILENT_AFTER,
    SOME_BATCHES,
    window::{BUSY, is_recent},
};
use crate::{ids::DatabaseIndex, time::UnixMicros};

/// The due instants that a node finds for one due time differ by less, because its readings of the database's clock do.
/// If they differ by more, the clock was set.
const READINGS_DIFFER: Duration = Duration::from_millis(2);

/// The messages of a lane, in the order in which they leave.
///
/// No more of them stand ready than a batch takes, and while a burst begins that is a small one. So the first batch of
/// a burst leaves after as little work as that of a single message, however many are due with it.
///
/// Messages of one due time leave in the order in which they were claimed. Otherwise some of a burst would wait so long
/// that their rows must be read again.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Those that are not due yet, and due ones beyond a batch.
    later: BTreeMap<Place, Box<Dispatch>>,
    /// Counts the messages added.
    added: u64,
    /// The due time of the last message of each database, and the instant at which that one may leave.
    last: BTreeMap<DatabaseIndex, (UnixMicros, Instant)>,
    /// Due ones that stand ready for the next batch.
    pub(super) ready: VecDeque<Dispatch>,
    /// Those of them that waited for the end of one of its own batches, or for free channels, at the last look at it.
    pub(super) held: usize,
    pub(super) batches: usize,
    /// The messages of these batches.
    pub(super) under_way: usize,
    /// Those of them that count as silent.
    silent: usize,
    /// The last moment at which it had to wait for room, or had many messages under way.
    pub(super) busy_at: Option<Instant>,
    /// Since when batches are out, or the last one of them ended.
    heard_at: Option<Instant>,
    /// The next moment at which a message comes due, or has waited for long enough: the lane is looked at.
    look_at: Option<Instant>,
    /// When it is looked at again because a message that stands ready had to wait.
    again_at: Option<Instant>,
}

/// When a message may leave, and how many were added before it.
type Place = (Instant, u64);

impl Lane {
    /// Adds a message. Returns the instant at which it may leave.
    pub(super) fn add(&mut self, dispatch: Dispatch) -> Instant {
        let (due_at, own) = (dispatch.delivery.due_at, dispatch.publish_at);
        let is_alike = |(due, at): (UnixMicros, Instant)| due == due_at && at < own + READINGS_DIFFER;
        let last = self.last.get(&dispatch.database).copied().filter(|last| is_alike(*last));
        let leaves_at = last.map_or(own, |(_, at)| at.max(own));
        self.last.insert(dispatch.database, (due_at, leaves_at));
        self.later.insert((leaves_at, self.added), Box::new(dispatch));
        self.added += 1;
        leaves_at
    }

    /// Whether more messages are due about now than a full batch takes: those of one due time need not leave at the
    /// same instant. It reads keys only, which are close together in memory.
    pub(super) fn has_burst(&self, now: Instant) -> bool {
        let about_now = now + READINGS_DIFFER;
        let due = self.later.keys().take_while(|(at, _)| *at <= about_now).take(MESSAGES_PER_BATCH + 1).count();
        self.ready.len() + due > MESSAGES_PER_BATCH
    }

    /// Makes messages ready that are due by now, until `most` are. Returns how many.
    pub(super) fn make_ready(&mut self, most: usize, now: Instant) -> usize {
        let before = self.ready.len();
        while self.ready.len() < most && self.next_due().is_some_and(|at| at <= now) {
            let Some((_, first)) = self.later.pop_first() else { break };
            self.ready.push_back(*first);
        }
        self.ready.len() - before
    }

    /// The due instant of the next message that is not ready.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((at, _), _)| *at)
    }

    /// The most batches that it may have out; `of_all`: the batches that all lanes have out. If it has as many, its
    /// messages gather until one of them ends.
    pub(super) fn most_batches(&self, of_all: usize, now: Instant) -> usize {
        let are_scarce = of_all >= MANY_BATCHES || (of_all >= SOME_BATCHES && self.is_quiet(now));
        if are_scarce { FEW_BATCHES } else { BATCHES_PER_LANE }
    }

    /// Whether none of its batches has ended for a while.
    pub(super) fn is_quiet(&self, now: Instant) -> bool {
        self.heard_at.is_some_and(|at| now.saturating_duration_since(at) >= QUIET_AFTER)
    }

    /// Whether the lane may send another batch, of `most` messages; `has_room`: whether there is room for it among
    /// those of all lanes; `batches`: the most that it may have out. A lane that must wait for others has a batch out,
    /// whose end is the next chance, if another look does not come before.
    pub(super) fn may_send(&self, has_room: bool, most: usize, batches: usize) -> bool {
        let has_share = has_room || self.under_way < most;
        self.waits() && self.batches < batches && has_share
    }

    /// Whether a message stands ready.
    pub(super) fn waits(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether it lately had to wait for room, or had many messages under way.
    pub(super) fn was_busy(&self, now: Instant) -> bool {
        self.busy_at.is_some_and(|at| is_recent(at, now))
    }

    /// Until when its messages wait for the end of a batch: too few to leave before. `None`: they do not wait.
    pub(super) fn held_until(&self, now: Instant) -> Option<Instant> {
        // Due ones that are not ready are more than this batch takes.
        let are_all = self.next_due().is_none_or(|at| at > now);
        let are_few = self.batches > 0 && self.ready.len() < ENOUGH && are_all;
        self.ready.front().filter(|_| are_few).map(|first| first.publish_at + HOLD)
    }

    /// Takes the next batch from the front, of `most` messages or fewer. All of them have one route.
    pub(super) fn take_batch(&mut self, most: usize, now: Instant) -> Vec<Dispatch> {
        let first = self.ready.front().and_then(exchange_of);
        let alike = self.ready.iter().take(most).take_while(|dispatch| exchange_of(dispatch) == first);
        let messages = alike.count();
        if self.batches == 0 {
            self.heard_at = Some(now);
        }
        self.batches += 1;
        self.under_way += messages;
        if self.under_way >= BUSY {
            self.busy_at = Some(now);
        }
        self.ready.drain(..messages).collect()
    }

    /// Ends a batch of so many messages. Returns how many counted as silent until now.
    pub(super) const fn ended(&mut self, messages: usize, now: Instant) -> usize {
        self.batches -= 1;
        self.under_way -= messages;
        self.heard_at = Some(now);
        std::mem::replace(&mut self.silent, 0)
    }

    /// Counts the messages of its batches as silent, if none has ended for long. Returns how many those are.
    pub(super) fn count_silent(&mut self, now: Instant) -> usize {
        let is_silent = |at: Instant| now.saturating_duration_since(at) >= SILENT_AFTER;
        self.silent = if self.heard_at.is_some_and(is_silent) { self.under_way } else { 0 };
        self.silent
    }

    pub(super) fn is_idle(&self) -> bool {
        self.batches == 0 && self.ready.is_empty() && self.later.is_empty()
    }

    /// Plans a look, unless one is planned that comes no later. Returns whether it did.
    pub(super) fn plans_look(&mut self, at: Instant) -> bool {
        let is_first = self.look_at.is_none_or(|planned| at < planned);
        if is_first {
            self.look_at = Some(at);
        }
        is_first
    }

    /// Plans another look at a lane that must wait, unless one is planned. Returns whether it did.
    pub(super) fn plans_another_look(&mut self, at: Instant) -> bool {
        let is_first = self.again_at.is_none();
        if is_first {
            self.again_at = Some(at);
        }
        is_first
    }

    /// Whether the look of this moment is a planned one. It is not planned any more.
    pub(super) fn look_comes(&mut self, at: Instant) -> bool {
        let comes = |planned: &mut Option<Instant>| planned.take_if(|planned| *planned == at).is_some();
        let is_look = comes(&mut self.look_at);
        comes(&mut self.again_at) || is_look
    }
}

/// The envelope's exchange, if any.
fn exchange_of(dispatch: &Dispatch) -> Option<&str> {
    dispatch.delivery.envelope.as_ref().map(|envelope| envelope.exchange.as_str())
}
