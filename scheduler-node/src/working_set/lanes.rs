//! The lanes to the broker, one for each queue: which are open, and when a closed one is tried again.
//!
//! A lane closes when its queue is full, missing, or does not confirm. While it is closed, its due tasks are not
//! claimed. They become `ready` in the database, where they can still be cancelled, and every other lane goes on.
//! Tasks that were already claimed are published again in place after the back-off, and one more task may be
//! claimed as a probe. The first of these that is confirmed opens the lane.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

use common::{ids::QueueName, queue::QueueBook};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::backlog::Backlog;
use crate::clock;

/// The first back-off of a closed lane. It doubles after each failure in a row, unless the queue has taken a part: a
/// queue that is full, and whose consumers make room, is tried again soon.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The longest back-off: a queue that has room again is found within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// A lane with unconfirmed messages is stuck when no confirm arrived for this long. A healthy broker confirms in
/// milliseconds, a busy one in tens of them.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// A closed lane is forgotten when no task has tried it for this long after its pause. The node's tasks of the queue
/// ended or moved, or something else keeps them from starting, such as a pause or a limit of the queue.
const FORGOTTEN_AFTER: Duration = LONGEST_PAUSE.saturating_mul(4);

/// Messages that reach no consumer are news again when there was none for this long. One that waits for a binding comes
/// back every 30 s, and one that a full queue did not take within 23 s.
const UNREACHED_OVER_AFTER: Duration = Duration::from_secs(60);

/// Why messages reach no consumer, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unreached {
    /// No queue is bound for them: they are published again by themselves.
    Waiting,
    /// No queue is bound for them: their tasks are cancelled.
    Dropped,
    /// No queue is bound for them: their tasks are dead.
    SetAside,
    /// Their delay exchange has left the exchange that they are for: they are published again by themselves.
    LeftBehind,
    /// The broker refuses them.
    Refused,
    /// They do not fit their queue's format.
    Unfit,
    /// Their queue takes no more for now, or does not answer: they are published again by themselves.
    Full,
}

/// The state of one lane.
#[derive(Clone, Debug, Default)]
struct Lane {
    unconfirmed: usize,
    /// The unconfirmed messages, by the moment since which no answer tells of them: that of their sending, or of a
    /// later confirm.
    silent: BTreeMap<Instant, usize>,
    /// Rounds in a row in which the broker took nothing, or 1 after one in which it took a part.
    failures: u32,
    /// Whether the broker has taken a message since the lane closed: its consumers make room.
    is_moving: bool,
    closed_until: Option<Instant>,
}

impl Lane {
    fn is_open(&self, now: Instant) -> bool {
        self.failures == 0 && !self.is_stuck(now)
    }

    fn is_stuck(&self, now: Instant) -> bool {
        self.silent.first_key_value().is_some_and(|(since, _)| now.saturating_duration_since(*since) > STUCK_AFTER)
    }

    /// An answer that says nothing about others has come for messages that were sent at this moment.
    fn end_silence(&mut self, messages: usize, sent_at: Instant) {
        let first = self.silent.keys().next().copied();
        // After a confirm, those that were sent before it are silent since then, and so before all others.
        let Some(since) = self.silent.contains_key(&sent_at).then_some(sent_at).or(first) else { return };
        let left = self.silent.remove(&since).unwrap_or(0).saturating_sub(messages);
        if left > 0 {
            self.silent.insert(since, left);
        }
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        self.unconfirmed == 0 && self.closed_until.is_some_and(|until| now >= until + FORGOTTEN_AFTER)
    }

    /// The pause of a lane with at least one failure.
    fn pause(&self) -> Duration {
        (FIRST_PAUSE * 2_u32.saturating_pow(self.failures.saturating_sub(1).min(10))).min(LONGEST_PAUSE)
    }

    fn is_idle(&self) -> bool {
        self.unconfirmed == 0 && self.failures == 0 && self.closed_until.is_none()
    }
}

#[derive(Debug, Default)]
pub struct Lanes {
    /// The due messages of all lanes that wait to be sent.
    pub backlog: Backlog,
    lanes: Mutex<HashMap<QueueName, Lane>>,
    /// The queues with messages that reached no consumer lately, each with the moment of the last one. Each reason is
    /// news by itself.
    unreached: Mutex<HashMap<(QueueName, Unreached), Instant>>,
    opened: watch::Sender<()>,
}

impl Lanes {
    pub fn sent(&self, queue: &QueueName, messages: usize, now: Instant) {
        let mut lanes = self.lanes.lock();
        let lane = lanes.entry(queue.clone()).or_default();
        lane.unconfirmed += messages;
        *lane.silent.entry(now).or_default() += messages;
    }

    /// Notes the outcomes of a batch: the broker confirmed `taken` of its `messages`. Returns how long to wait
    /// before the others are published again.
    pub fn heard(&self, queue: &QueueName, messages: usize, taken: usize, now: Instant) -> Duration {
        let mut lanes = self.lanes.lock();
        let lane = lanes.entry(queue.clone()).or_default();
        lane.unconfirmed = lane.unconfirmed.saturating_sub(messages);
        lane.silent = (lane.unconfirmed > 0).then_some((now, lane.unconfirmed)).into_iter().collect();
        lane.is_moving |= taken > 0;
        if taken == messages {
            let was_closed = lane.closed_until.take().is_some();
            lane.failures = 0;
            if lane.is_idle() {
                lanes.remove(queue);
            }
            if was_closed {
                self.opened.send_replace(());
            }
            return Duration::ZERO;
        }
        // Several batches that fail together count as one failure.
        if lane.closed_until.is_none_or(|until| now >= until) {
            lane.failures = if lane.is_moving { 1 } else { lane.failures + 1 };
            lane.is_moving = taken > 0;
            lane.closed_until = Some(now + lane.pause());
        }
        lane.pause()
    }

    /// Forgets unconfirmed messages because the broker is away, which says nothing about any lane.
    pub fn lost(&self, queue: &QueueName, messages: usize) {
        self.forget(queue, messages, |lane| lane.silent.clear());
    }

    /// Forgets messages that say nothing about the lane. If one of them may be its probe, another may follow from
    /// `probe_at` on.
    pub fn passed_by(&self, queue: &QueueName, messages: usize, probe_at: Option<Instant>) {
        self.forget(queue, messages, |lane| {
            // Others may wait for an exchange that the queue has left, as these did.
            lane.silent.clear();
            lane.closed_until = lane.closed_until.map(|until| probe_at.map_or(until, |at| until.min(at)));
        });
    }

    /// Forgets messages, sent at `sent_at`, that the broker returned once more, which says nothing about others of the
    /// lane. A closed lane may be probed as before, and is not forgotten while they are tried. Others that are silent
    /// stay so.
    pub fn returned_again(&self, queue: &QueueName, messages: usize, sent_at: Instant, now: Instant) {
        self.forget(queue, messages, |lane| {
            lane.end_silence(messages, sent_at);
            lane.closed_until = lane.closed_until.map(|until| until.max(now));
        });
    }

    fn forget(&self, queue: &QueueName, messages: usize, change: impl FnOnce(&mut Lane)) {
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.get_mut(queue) {
            lane.unconfirmed = lane.unconfirmed.saturating_sub(messages);
            if lane.unconfirmed == 0 {
                lane.silent.clear();
            }
            change(lane);
            if lane.is_idle() {
                lanes.remove(queue);
            }
        }
    }

    /// Notes messages that reach no consumer. Returns whether they are the first for some time.
    pub fn note_unreached(&self, queue: &QueueName, why: Unreached) -> bool {
        let (mut unreached, now) = (self.unreached.lock(), clock::instant());
        unreached.retain(|_, last| now.saturating_duration_since(*last) < UNREACHED_OVER_AFTER);
        unreached.insert((queue.clone(), why), now).is_none()
    }

    /// Opens a lane: its messages go another way from now on.
    pub fn open(&self, queue: &QueueName) {
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.get_mut(queue) {
            (lane.closed_until, lane.failures) = (None, 0);
            lane.silent.clear();
            if lane.is_idle() {
                lanes.remove(queue);
            }
            self.opened.send_replace(());
        }
    }

    /// Changes when a lane opens: a ready starter then looks for its `ready` tasks. A change between two waits counts.
    pub fn openings(&self) -> watch::Receiver<()> {
        self.opened.subscribe()
    }

    pub fn is_open(&self, queue: &QueueName, now: Instant) -> bool {
        self.lanes.lock().get(queue).is_none_or(|lane| lane.is_open(now))
    }

    /// Whether one task may be claimed to probe a closed lane. At most one in each pause.
    pub fn may_probe(&self, queue: &QueueName, now: Instant) -> bool {
        let mut lanes = self.lanes.lock();
        let Some(lane) = lanes.get_mut(queue) else { return false };
        let over = lane.closed_until.is_some_and(|until| now >= until) && !lane.is_stuck(now);
        if over {
            lane.closed_until = Some(now + lane.pause());
        }
        over
    }

    /// Queues whose due tasks the dispatcher does not claim: their lane is closed, they are paused, or the ready
    /// starter starts their tasks as their order, limits and rates allow. While all lanes are open these are the
    /// book's own: it may hold thousands, and each claim asks.
    pub fn not_claimed<'a>(&self, book: &'a QueueBook, now: Instant) -> Cow<'a, BTreeSet<QueueName>> {
        let mut queues = Cow::Borrowed(book.held());
        let closed = self.closed(now);
        if !closed.is_empty() {
            queues.to_mut().extend(closed);
        }
        queues
    }

    /// The queues whose lanes are closed. Forgets those that no task has tried for long.
    pub fn closed(&self, now: Instant) -> Vec<QueueName> {
        let mut lanes = self.lanes.lock();
        lanes.retain(|_, lane| !lane.is_forgotten(now));
        lanes.iter().filter(|(_, lane)| !lane.is_open(now)).map(|(queue, _)| queue.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use common::queue::Queue;
    use futures::FutureExt;

    use super::*;

    fn queue() -> QueueName {
        QueueName::new("orders")
    }

    #[test]
    fn a_lane_closes_on_a_failure_and_opens_with_the_next_confirm() {
        let lanes = Lanes::default();
        let start = Instant::now();
        lanes.sent(&queue(), 2, start);
        assert!(lanes.heard(&queue(), 2, 1, start) >= FIRST_PAUSE);
        assert!(!lanes.is_open(&queue(), start));
        assert_eq!(lanes.closed(start), [queue()]);
        lanes.sent(&queue(), 1, start);
        assert_eq!(lanes.heard(&queue(), 1, 1, start), Duration::ZERO);
        assert!(lanes.is_open(&queue(), start));
    }

    #[test]
    fn a_message_that_is_returned_again_does_not_end_the_silence_of_the_others() {
        let (lanes, start) = (Lanes::default(), Instant::now());
        let later = start + STUCK_AFTER + Duration::from_millis(1);
        lanes.sent(&queue(), 5, start);
        lanes.sent(&queue(), 1, start);
        lanes.returned_again(&queue(), 1, start, start);
        assert!(!lanes.is_open(&queue(), later), "five messages are without an answer");
        lanes.returned_again(&queue(), 5, start, later);
        assert!(lanes.is_open(&queue(), later) && lanes.lanes.lock().is_empty(), "no message is left");
    }

    #[test]
    fn messages_that_are_returned_again_in_overlapping_batches_neither_close_a_lane_nor_keep_it_closed() {
        for is_closed in [false, true] {
            let (lanes, mut now) = (Lanes::default(), Instant::now());
            lanes.sent(&queue(), 1, now);
            if is_closed {
                lanes.sent(&queue(), 1, now);
                lanes.heard(&queue(), 1, 0, now);
            }
            for _ in 0..4 {
                let sent_at = now;
                now += STUCK_AFTER / 2;
                lanes.sent(&queue(), 1, now);
                lanes.returned_again(&queue(), 1, sent_at, now);
            }
            assert_eq!(lanes.is_open(&queue(), now), !is_closed);
            assert_eq!(lanes.may_probe(&queue(), now), is_closed);
            let later = now + STUCK_AFTER + Duration::from_millis(1);
            assert!(!lanes.is_open(&queue(), later) && !lanes.may_probe(&queue(), later), "the last one has no answer");
        }
    }

    #[test]
    fn messages_that_were_sent_before_a_confirm_are_silent_since_then_until_all_of_them_are_returned_again() {
        let (lanes, start) = (Lanes::default(), Instant::now());
        let (confirmed_at, last_at) = (start + STUCK_AFTER / 2, start + STUCK_AFTER);
        lanes.sent(&queue(), 4, start);
        lanes.heard(&queue(), 1, 1, confirmed_at);
        lanes.sent(&queue(), 1, last_at);
        let later = confirmed_at + STUCK_AFTER + Duration::from_millis(1);
        lanes.returned_again(&queue(), 2, start, last_at);
        assert!(!lanes.is_open(&queue(), later), "one of them has no answer");
        lanes.returned_again(&queue(), 1, start, last_at);
        assert!(lanes.is_open(&queue(), later), "the last one was sent lately");
    }

    #[test]
    fn the_held_queues_of_a_book_are_copied_only_beside_a_closed_lane() {
        let (lanes, now) = (Lanes::default(), Instant::now());
        let held = Queue { paused: true, ..Queue::with_defaults(QueueName::new("mails")) };
        let book = QueueBook::new(1, [held]);
        assert!(matches!(lanes.not_claimed(&book, now), Cow::Borrowed(_)));
        lanes.sent(&queue(), 1, now);
        lanes.heard(&queue(), 1, 0, now);
        assert_eq!(*lanes.not_claimed(&book, now), BTreeSet::from([QueueName::new("mails"), queue()]));
    }

    #[test]
    fn a_lane_that_opens_between_two_waits_is_noticed() {
        let lanes = Lanes::default();
        let (mut openings, now) = (lanes.openings(), Instant::now());
        lanes.sent(&queue(), 1, now);
        lanes.heard(&queue(), 1, 0, now);
        assert_eq!(openings.changed().now_or_never().map(drop), None);
        lanes.sent(&queue(), 1, now);
        lanes.heard(&queue(), 1, 1, now);
        assert!(openings.changed().now_or_never().is_some(), "it opened while no one waited");
        assert!(openings.changed().now_or_never().is_none());
    }

    #[test]
    fn a_closed_lane_is_probed_after_a_pause_that_doubles_up_to_a_bound() {
        let lanes = Lanes::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            lanes.sent(&queue(), 1, now);
            let pause = lanes.heard(&queue(), 1, 0, now);
            assert!(!lanes.may_probe(&queue(), now));
            now += pause;
            assert!(!lanes.is_open(&queue(), now), "only a confirm opens it");
            assert!(lanes.may_probe(&queue(), now));
            assert!(!lanes.may_probe(&queue(), now), "one in each pause");
            now += LONGEST_PAUSE * 2;
            pauses.push(pause);
        }
        assert_eq!(pauses[0], FIRST_PAUSE);
        assert_eq!(pauses[1], FIRST_PAUSE * 2);
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE));
    }

    #[test]
    fn a_full_queue_whose_consumers_make_room_is_tried_again_as_soon_each_time() {
        let lanes = Lanes::default();
        let mut now = Instant::now();
        for _ in 0..12 {
            lanes.sent(&queue(), 8, now);
            assert_eq!(lanes.heard(&queue(), 4, 1, now), FIRST_PAUSE);
            assert_eq!(lanes.heard(&queue(), 4, 0, now), FIRST_PAUSE, "of the same round");
            now += FIRST_PAUSE;
        }
        lanes.sent(&queue(), 4, now);
        assert_eq!(lanes.heard(&queue(), 4, 0, now), FIRST_PAUSE, "some were taken in the round before");
        lanes.sent(&queue(), 4, now + FIRST_PAUSE);
        assert_eq!(lanes.heard(&queue(), 4, 0, now + FIRST_PAUSE), FIRST_PAUSE * 2, "a round in which none was taken");
    }

    #[test]
    fn batches_that_fail_together_count_as_one_failure() {
        let lanes = Lanes::default();
        let now = Instant::now();
        lanes.sent(&queue(), 4, now);
        lanes.heard(&queue(), 2, 0, now);
        lanes.heard(&queue(), 2, 0, now);
        assert!(lanes.may_probe(&queue(), now + FIRST_PAUSE), "a second failure would have closed it for longer");
    }

    #[test]
    fn a_lane_that_does_not_confirm_is_stuck_and_the_others_are_not() {
        let lanes = Lanes::default();
        let now = Instant::now();
        lanes.sent(&queue(), 1, now);
        let later = now + STUCK_AFTER * 2;
        assert_eq!(lanes.closed(later), [queue()]);
        assert!(lanes.is_open(&QueueName::new("mails"), later));
    }

    #[test]
    fn a_closed_lane_is_forgotten_once_no_task_tries_it() {
        let lanes = Lanes::default();
        let start = Instant::now();
        lanes.sent(&queue(), 2, start);
        lanes.heard(&queue(), 1, 0, start);
        let late = start + FIRST_PAUSE + FORGOTTEN_AFTER;
        assert_eq!(lanes.closed(late), [queue()], "a message is on its way");
        lanes.heard(&queue(), 1, 0, late);
        let probed = late + FIRST_PAUSE * 2 + FORGOTTEN_AFTER / 2;
        assert!(lanes.may_probe(&queue(), probed));
        let over = probed + FIRST_PAUSE * 2 + FORGOTTEN_AFTER;
        assert_eq!(lanes.closed(over - Duration::from_millis(1)), [queue()], "it was tried since");
        assert!(lanes.closed(over).is_empty());
        assert!(lanes.is_open(&queue(), over));
    }

    #[test]
    fn a_closed_lane_is_probed_and_not_forgotten_while_messages_are_returned_again() {
        let lanes = Lanes::default();
        let mut now = Instant::now();
        lanes.sent(&queue(), 1, now);
        lanes.heard(&queue(), 1, 0, now);
        for _ in 0..10 {
            now += FORGOTTEN_AFTER / 2;
            lanes.sent(&queue(), 1, now);
            lanes.returned_again(&queue(), 1, now, now);
        }
        assert_eq!(lanes.closed(now), [queue()]);
        assert!(lanes.may_probe(&queue(), now));
        lanes.sent(&queue(), 1, now);
        lanes.returned_again(&queue(), 1, now, now);
        assert!(!lanes.may_probe(&queue(), now), "one in each pause");
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_reach_no_consumer_are_news_once_for_each_queue_and_reason_and_again_after_a_pause() {
        let (lanes, mails) = (Lanes::default(), QueueName::new("mails"));
        let is_news = |queue: &QueueName, why| lanes.note_unreached(queue, why);
        assert!(is_news(&queue(), Unreached::Waiting) && is_news(&mails, Unreached::Waiting));
        assert!(is_news(&mails, Unreached::Refused), "another reason");
        for _ in 0..10 {
            tokio::time::advance(Duration::from_secs(30)).await;
            assert!(!is_news(&queue(), Unreached::Waiting));
        }
        assert_eq!(lanes.unreached.lock().len(), 1, "the other queue is forgotten");
        assert!(is_news(&mails, Unreached::Waiting));
    }

    #[test]
    fn losing_the_broker_closes_no_lane() {
        let lanes = Lanes::default();
        let now = Instant::now();
        lanes.sent(&queue(), 3, now);
        lanes.lost(&queue(), 3);
        assert!(lanes.is_open(&queue(), now + STUCK_AFTER * 2));
    }
}
