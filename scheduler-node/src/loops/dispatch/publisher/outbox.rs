//! Due messages on their way to the broker, lane by lane, and the batches in which they leave.
//!
//! A lane without a batch out sends at once. Otherwise, while the node sends many messages, a few of them wait for the
//! end of a batch, a moment at most, and what comes due meanwhile leaves with them. So a busy broker gets fewer and
//! larger batches, as Nagle's algorithm (RFC 896) does with the segments of a connection.

#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    time::{Duration, Instant},
};

use common::ids::QueueName;

use super::Dispatch;

/// Batches of one lane under way at a time: enough to keep the broker busy, few enough to leave channels to others.
const BATCHES_PER_LANE: usize = 16;

/// Messages under way at a time, beyond one batch of each lane. All lanes share one connection, so a message of a
/// small lane may wait behind so many. Fewer keep the broker less busy.
const MESSAGES_UNDER_WAY: usize = 1_024;

/// Messages of one batch. A batch is settled as a whole, so a larger one waits longer for its slowest confirm.
const MESSAGES_PER_BATCH: usize = 256;

/// So many messages do not wait for a batch under way: more of them would make the batch hardly cheaper.
const ENOUGH: usize = 64;

/// The longest wait for the end of a batch: about the time in which a busy broker confirms one.
pub(super) const HOLD: Duration = Duration::from_millis(5);

/// The rate is that of so long a time: the last one that has passed.
pub(super) const SPAN: Duration = Duration::from_millis(100);

/// The messages of a span from which on they wait for one another. Fewer leave the node time to send each at once.
pub(super) const MANY: usize = 150;

/// The messages that wait for a batch, and the number of those in batches.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    lanes: HashMap<QueueName, Lane>,
    /// The messages of all lanes that wait for a batch.
    waiting: usize,
    /// The messages of all lanes in batches.
    under_way: usize,
    /// The moments at which lanes must be looked at again, because their messages have waited long enough.
    looks: BinaryHeap<Reverse<(Instant, QueueName)>>,
    rate: Rate,
}

/// How many messages came in the last span, and in the present one.
#[derive(Debug, Default)]
struct Rate {
    began: Option<Instant>,
    last: usize,
    present: usize,
}

/// The messages that one lane has to send.
#[derive(Debug, Default)]
struct Lane {
    messages: VecDeque<Dispatch>,
    batches: usize,
    /// The messages of these batches.
    under_way: usize,
    /// Whether `looks` has this lane, so that it has it once.
    has_look: bool,
}

impl Outbox {
    /// Adds a due message, behind the others of its lane. Returns whether the lane has a full batch now.
    pub(super) fn add(&mut self, dispatch: Dispatch, now: Instant) -> bool {
        self.rate.count(now);
        let lane = self.lanes.entry(dispatch.delivery.queue.clone()).or_default();
        lane.messages.push_back(dispatch);
        self.waiting += 1;
        lane.messages.len() == MESSAGES_PER_BATCH
    }

    /// The next batch that may leave, all of one route. `None`: the lane has nothing to send, or must wait.
    pub(super) fn next_batch(&mut self, queue: &QueueName, now: Instant) -> Option<Vec<Dispatch>> {
        let lane = self.lanes.get_mut(queue)?;
        if lane.messages.is_empty() || !lane.may_send(self.under_way) {
            return None;
        }
        let are_many = self.rate.is_of_many(now);
        if let Some(until) = lane.held_until().filter(|until| are_many && now < *until) {
            if !lane.has_look {
                lane.has_look = true;
                self.looks.push(Reverse((until, queue.clone())));
            }
            return None;
        }
        let batch = lane.take_batch();
        self.waiting -= batch.len();
        self.under_way += batch.len();
        Some(batch)
    }

    /// Ends a batch of so many messages. A lane that has nothing more to send is forgotten.
    pub(super) fn ended(&mut self, queue: &QueueName, messages: usize) {
        self.under_way -= messages;
        let Some(lane) = self.lanes.get_mut(queue) else { return };
        lane.batches -= 1;
        lane.under_way -= messages;
        if lane.batches == 0 && lane.messages.is_empty() {
            self.lanes.remove(queue);
        }
    }

    /// The messages of all lanes that wait for a batch.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// When a lane must be looked at again.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.looks.peek().map(|Reverse((at, _))| *at)
    }

    /// A lane that must be looked at again by now.
    pub(super) fn look(&mut self, now: Instant) -> Option<QueueName> {
        self.next_look().filter(|at| *at <= now)?;
        let Reverse((_, queue)) = self.looks.pop()?;
        if let Some(lane) = self.lanes.get_mut(&queue) {
            lane.has_look = false;
        }
        Some(queue)
    }
}

impl Lane {
    /// Whether the lane may have another batch out; `all`: the messages of all lanes under way. A lane that must wait
    /// for others has a batch out, whose end is the next chance.
    const fn may_send(&self, all: usize) -> bool {
        let has_share = self.under_way < MESSAGES_PER_BATCH || all < MESSAGES_UNDER_WAY;
        self.batches < BATCHES_PER_LANE && has_share
    }

    /// Until when its messages wait for the end of a batch: too few to leave before. `None`: they do not wait.
    fn held_until(&self) -> Option<Instant> {
        let are_few = self.batches > 0 && self.messages.len() < ENOUGH;
        self.messages.front().filter(|_| are_few).map(|first| first.publish_at + HOLD)
    }

    /// Takes the next batch from the front. All its messages have one route.
    fn take_batch(&mut self) -> Vec<Dispatch> {
        let first = self.messages.front().and_then(exchange_of);
        let alike = self.messages.iter().take(MESSAGES_PER_BATCH).take_while(|dispatch| exchange_of(dispatch) == first);
        let most = alike.count();
        self.batches += 1;
        self.under_way += most;
        self.messages.drain(..most).collect()
    }
}

impl Rate {
    fn count(&mut self, now: Instant) {
        if self.age(now).is_none_or(|age| age >= SPAN) {
            *self = Self { began: Some(now), last: self.last_at(now), present: 0 };
        }
        self.present += 1;
    }

    /// Whether so many messages come that they wait for one another.
    fn is_of_many(&self, now: Instant) -> bool {
        self.last_at(now) >= MANY
    }

    /// The messages of the last span that has passed.
    fn last_at(&self, now: Instant) -> usize {
        match self.age(now) {
            Some(age) if age < SPAN => self.last,
            Some(age) if age < 2 * SPAN => self.present,
            _ => 0,
        }
    }

    /// How long ago the present span began.
    fn age(&self, now: Instant) -> Option<Duration> {
        self.began.map(|began| now.saturating_duration_since(began))
    }
}

/// The envelope's exchange, if any.
fn exchange_of(dispatch: &Dispatch) -> Option<&str> {
    dispatch.delivery.envelope.as_ref().map(|envelope| envelope.exchange.as_str())
}
