//! Claimed messages on their way to the broker, lane by lane, and the batches in which they leave at their due
//! instants.
//!
//! A lane without a batch out sends at once. Otherwise, while the node sends many messages, a few of them wait for the
//! end of a batch, a moment at most, and what comes due meanwhile leaves with them. So a busy broker gets fewer and
//! larger batches, as Nagle's algorithm (RFC 896) does with the segments of a connection.

mod lane;
mod rate;
#[cfg(test)]
mod tests;
mod window;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::{Duration, Instant},
};

use lane::Lane;
use rate::Rate;
pub use rate::{MANY, SPAN};
use window::Window;

use crate::{
    ids::{DatabaseIndex, QueueName},
    task::Delivery,
};

/// Batches of one lane under way at a time: enough to keep the broker busy, few enough to leave channels to others.
const BATCHES_PER_LANE: usize = 16;

/// Batches under way of a lane while all lanes have [`MANY_BATCHES`], or [`SOME_BATCHES`] and the lane is quiet. Each
/// holds a channel until the broker has confirmed it, or for half a minute. So many full ones fill the window: with
/// more, no lane is quicker.
const FEW_BATCHES: usize = window::BATCHES;

/// A lane is quiet when none of its batches has ended for so long. A busy broker takes some tens of milliseconds, and a
/// slow one ends batches as often as they left.
const QUIET_AFTER: Duration = Duration::from_millis(250);

/// A lane whose messages must wait for batches of its own or of others is looked at again after so long. The end of one
/// of its own is a look, too, but its own may be stuck. If they are, it is quiet by then.
const LOOK_AGAIN_AFTER: Duration = QUIET_AFTER;

/// With so many batches of all lanes, a quarter of the channels are taken, and quiet lanes leave the others alone. With
/// fewer, a quiet lane goes on. The next message may get through where some are stuck: one lane may serve several
/// queues, and a confirm that was lost is found by a later answer.
const SOME_BATCHES: usize = 64;

/// With so many batches of all lanes, half of the channels are taken. The others are left to lanes that have few.
const MANY_BATCHES: usize = 128;

/// Messages of one batch. A batch is settled as a whole, so a larger one waits longer for its slowest confirm.
const MESSAGES_PER_BATCH: usize = 256;

/// So many messages do not wait for a batch under way: more of them would make the batch hardly cheaper.
const ENOUGH: usize = 64;

/// A lane is silent when none of its batches has ended for so long. A busy broker takes some tens of milliseconds.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// The interval between two looks for silent lanes, which ask every lane.
const LOOK_FOR_SILENT_EVERY: Duration = Duration::from_millis(250);

/// The longest wait for the end of a batch: about the time in which a busy broker confirms one.
pub const HOLD: Duration = Duration::from_millis(5);

/// A claimed task on its way to the broker.
#[derive(Debug)]
pub struct Dispatch {
    /// The index of its database among the databases.
    pub database: DatabaseIndex,
    pub delivery: Delivery,
    /// Its due instant by the clock of this database. It leaves at this instant or later.
    pub publish_at: Instant,
    /// The claim had not run before this instant.
    pub claimed_at: Instant,
}

/// All claimed messages that the broker does not have yet, and the number of those in batches.
#[derive(Debug, Default)]
pub struct Outbox {
    lanes: HashMap<QueueName, Lane>,
    /// The messages of all lanes that are not in batches.
    waiting: usize,
    /// The messages of all lanes that stand ready for a batch. While one is due and not in a batch, this is not 0.
    ready: usize,
    /// Those of them that quiet lanes hold until one of their own batches ends, or a look finds channels free again.
    held: usize,
    /// The batches of all lanes.
    batches: usize,
    /// The messages of all lanes in batches.
    under_way: usize,
    /// Those of them that lanes without an answer have. They take no room from other lanes.
    silent: usize,
    looked_for_silent_at: Option<Instant>,
    /// The moments at which lanes must be looked at: a message comes due, has waited long enough, or had to wait for
    /// batches a while ago. One that its lane does not plan any more is passed over.
    looks: BinaryHeap<Reverse<(Instant, QueueName)>>,
    rate: Rate,
    window: Window,
}

impl Outbox {
    /// Adds a message, which leaves at its due instant or later.
    pub fn add(&mut self, dispatch: Dispatch) {
        let queue = dispatch.delivery.queue.clone();
        let lane = self.lanes.entry(queue.clone()).or_default();
        let at = lane.add(dispatch);
        self.waiting += 1;
        plan_look(&mut self.looks, lane, &queue, at);
    }

    /// The next batch that may leave, all of one route. `None`: the lane has nothing to send, or must wait.
    pub fn next_batch(&mut self, queue: &QueueName, now: Instant) -> Option<Vec<Dispatch>> {
        let lane = self.lanes.get_mut(queue)?;
        self.window.begins(|| lane.has_burst(now), now);
        let came = lane.make_ready(self.window.ready(), now);
        self.ready += came;
        self.rate.count(came, now);
        self.held -= std::mem::take(&mut lane.held);
        let (most, has_room) = (self.window.batch(), self.has_room(now));
        let lane = self.lanes.get_mut(queue)?;
        let batches = lane.most_batches(self.batches, now);
        let held_until = lane.held_until(now).filter(|until| now < *until && self.rate.is_of_many(now));
        if held_until.is_none() && lane.may_send(has_room, most, batches) {
            let batch = lane.take_batch(most, now);
            self.batches += 1;
            self.ready -= batch.len();
            self.waiting -= batch.len();
            self.under_way += batch.len();
            self.window.sends(self.under_way, lane.was_busy(now), now);
            return Some(batch);
        }
        if held_until.is_none() && lane.waits() {
            if !has_room {
                lane.busy_at = Some(now);
                self.window.limits(now);
            }
            let again_at = now + LOOK_AGAIN_AFTER;
            if lane.plans_another_look(again_at) {
                self.looks.push(Reverse((again_at, queue.clone())));
            }
        }
        if lane.batches >= batches && lane.is_quiet(now) {
            lane.held = lane.ready.len();
            self.held += lane.held;
        }
        let next_due = lane.next_due().filter(|at| *at > now);
        if let Some(at) = next_due.into_iter().chain(held_until).min() {
            plan_look(&mut self.looks, lane, queue, at);
        }
        None
    }

    /// Whether messages of the queue wait, or are under way.
    pub fn has_lane(&self, queue: &QueueName) -> bool {
        self.lanes.contains_key(queue)
    }

    /// The most batches that leave at once when all messages come due: those of the window with which they begin, and
    /// one of each lane.
    pub fn batches_at_once(&self) -> usize {
        window::BATCHES + self.lanes.len()
    }

    /// Ends a batch of so many messages. A lane that has nothing more to send is forgotten. `took`: how long the broker
    /// took for it, if it has confirmed a message.
    pub fn ended(&mut self, queue: &QueueName, messages: usize, took: Option<Duration>, now: Instant) {
        self.batches -= 1;
        self.under_way -= messages;
        if let Some(took) = took {
            self.window.answered(messages, took, now);
        }
        let Some(lane) = self.lanes.get_mut(queue) else { return };
        self.silent -= lane.ended(messages, now);
        if lane.is_idle() {
            self.lanes.remove(queue);
        }
    }

    /// Whether there is room for another batch. If there is none, silent lanes give back theirs.
    fn has_room(&mut self, now: Instant) -> bool {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < LOOK_FOR_SILENT_EVERY;
        let has_room = self.window.has_room(self.under_way - self.silent);
        if has_room || self.looked_for_silent_at.is_some_and(is_recent) {
            return has_room;
        }
        self.looked_for_silent_at = Some(now);
        self.silent = self.lanes.values_mut().map(|lane| lane.count_silent(now)).sum();
        self.window.has_room(self.under_way - self.silent)
    }

    /// Whether a due message waits for a batch. Those that a quiet lane holds do not count. They wait for the end of
    /// one of its own batches, or until all lanes have so few that channels are free again: nothing that gives way to
    /// them makes them leave sooner.
    pub const fn has_due(&self) -> bool {
        self.ready > self.held
    }

    /// The messages that are not in batches, due or not.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether all messages have left, and all batches have ended.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// When a lane must be looked at.
    pub fn next_look(&self) -> Option<Instant> {
        self.looks.peek().map(|Reverse((at, _))| *at)
    }

    /// A lane that must be looked at by now.
    pub fn look(&mut self, now: Instant) -> Option<QueueName> {
        while self.next_look().is_some_and(|at| at <= now) {
            let Reverse((at, queue)) = self.looks.pop()?;
            if self.lanes.get_mut(&queue).is_some_and(|lane| lane.look_comes(at)) {
                return Some(queue);
            }
        }
        None
    }
}

fn plan_look(looks: &mut BinaryHeap<Reverse<(Instant, QueueName)>>, lane: &mut Lane, queue: &QueueName, at: Instant) {
    if lane.plans_look(at) {
        looks.push(Reverse((at, queue.clone())));
    }
}
