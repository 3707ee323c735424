//! The queues with tasks that wait for room in one database, as far as this node knows. Each has the time of its
//! next look.
//!
//! It is a hint, not a fact: the ready starter reads these queues from the database now and then. Only one look at a
//! queue is under way at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use common::{ids::QueueName, time::UnixMicros};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::floors::Floors;

#[derive(Debug, Default)]
pub struct ReadyQueues {
    looks: Mutex<Looks>,
    /// Wakes the ready starter: a look is due earlier than before.
    pub sooner: Notify,
    /// Where looks begin.
    pub floors: Floors,
}

#[derive(Debug, Default)]
struct Looks {
    of: BTreeMap<QueueName, Look>,
    /// The queues with a next look and none under way, in the order of their turns.
    turns: BTreeSet<(Instant, QueueName)>,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    /// `None`: only the look under way knows when the next one is.
    at: Option<Instant>,
    under_way: bool,
    /// A queue was added, or there may be room, since the previous look began.
    is_news: bool,
}

impl Look {
    const NEW: Self = Self { at: None, under_way: false, is_news: false };

    fn hear(&mut self, now: Instant) {
        self.at = Some(self.at.map_or(now, |at| at.min(now)));
        self.is_news = true;
    }

    /// When it is the queue's turn.
    fn turn(&self) -> Option<Instant> {
        self.at.filter(|_| !self.under_way)
    }
}

impl Looks {
    /// Changes the look of a queue, if it has one, and its turn with it.
    fn change(&mut self, queue: &QueueName, change: impl FnOnce(&mut Look)) {
        let Some(look) = self.of.get_mut(queue) else { return };
        let before = look.turn();
        change(look);
        let after = look.turn();
        if before != after {
            before.map(|at| self.turns.remove(&(at, queue.clone())));
            self.turns.extend(after.map(|at| (at, queue.clone())));
        }
    }
}

impl ReadyQueues {
    /// Adds queues that may have waiting tasks. They are looked at by `now`.
    pub fn add(&self, queues: impl IntoIterator<Item = QueueName>, now: Instant) {
        let mut looks = self.looks.lock();
        for queue in queues {
            looks.of.entry(queue.clone()).or_insert(Look::NEW);
            looks.change(&queue, |look| look.hear(now));
        }
        drop(looks);
        self.sooner.notify_one();
    }

    /// Adds the queues of tasks that became ready, with their due times. They are looked at by `now`.
    pub fn add_ready<'a>(&self, tasks: impl IntoIterator<Item = (&'a QueueName, UnixMicros)>, now: Instant) {
        let mut queues = BTreeSet::new();
        for (queue, due_at) in tasks {
            self.floors.lower(queue, due_at);
            if !queues.contains(queue) {
                queues.insert(queue.clone());
            }
        }
        self.add(queues, now);
    }

    /// Notes that there may be room in these queues. Those with waiting tasks are looked at.
    pub fn room_in<'a>(&self, queues: impl IntoIterator<Item = &'a QueueName>, now: Instant) {
        let mut looks = self.looks.lock();
        for queue in queues {
            looks.change(queue, |look| look.hear(now));
        }
        drop(looks);
        self.sooner.notify_one();
    }

    /// Notes that there may be room in every queue.
    pub fn room_in_all(&self, now: Instant) {
        let mut looks = self.looks.lock();
        let queues: Vec<QueueName> = looks.of.keys().cloned().collect();
        for queue in queues {
            looks.change(&queue, |look| look.hear(now));
        }
        drop(looks);
        self.sooner.notify_one();
    }

    /// Begins a look at the queue whose turn it is. Also returns whether there is news of it since the previous
    /// look.
    pub fn begin(&self, now: Instant) -> Option<(QueueName, bool)> {
        let mut looks = self.looks.lock();
        let (_, queue) = looks.turns.first().filter(|(at, _)| *at <= now)?.clone();
        let mut is_news = false;
        looks.change(&queue, |look| {
            is_news = look.is_news;
            *look = Look { under_way: true, ..Look::NEW };
        });
        Some((queue, is_news))
    }

    /// Ends a look. `again`: when the next one is due. The queue is forgotten if that is `None` and no news has
    /// come meanwhile.
    pub fn end(&self, queue: &QueueName, again: Option<Instant>) {
        let mut looks = self.looks.lock();
        let mut is_over = false;
        looks.change(queue, |look| {
            look.under_way = false;
            look.at = match (look.at, again) {
                (Some(at), Some(again)) => Some(at.min(again)),
                (at, again) => at.or(again),
            };
            is_over = look.at.is_none();
        });
        if is_over {
            looks.of.remove(queue);
        }
        drop(looks);
        self.sooner.notify_one();
    }

    /// When the next look is due.
    pub fn next_look(&self) -> Option<Instant> {
        self.looks.lock().turns.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn queue() -> QueueName {
        QueueName::new("orders")
    }

    #[test]
    fn one_look_at_a_queue_is_under_way_at_a_time() {
        let (queues, now) = (ReadyQueues::default(), Instant::now());
        queues.add([queue()], now);
        assert_eq!(queues.begin(now), Some((queue(), true)));
        queues.add([queue()], now);
        assert_eq!((queues.begin(now), queues.next_look()), (None, None));
        queues.end(&queue(), None);
        assert_eq!(queues.begin(now), Some((queue(), true)), "something was added during the look");
        queues.end(&queue(), Some(now));
        assert_eq!(queues.begin(now), Some((queue(), false)), "nothing has happened since");
    }

    #[test]
    fn the_queue_whose_turn_is_first_is_looked_at_first() {
        let (queues, now) = (ReadyQueues::default(), Instant::now());
        let [first, second] = ["b", "a"].map(QueueName::new);
        queues.add([first.clone()], now);
        queues.add([second.clone()], now + Duration::from_secs(1));
        let late = now + Duration::from_secs(2);
        assert_eq!(queues.begin(late).map(|(queue, _)| queue), Some(first.clone()));
        queues.room_in_all(late);
        queues.end(&first, Some(now));
        assert_eq!(queues.begin(late).map(|(queue, _)| queue), Some(first), "its next turn is earlier");
        assert_eq!(queues.begin(late).map(|(queue, _)| queue), Some(second));
        assert_eq!((queues.begin(late), queues.next_look()), (None, None));
    }

    #[test]
    fn what_has_nothing_waiting_is_forgotten_and_room_in_it_means_nothing() {
        let (queues, now) = (ReadyQueues::default(), Instant::now());
        queues.add([queue()], now);
        assert!(queues.begin(now).is_some());
        queues.end(&queue(), None);
        queues.room_in([&queue()], now);
        assert_eq!(queues.next_look(), None);
    }

    #[test]
    fn room_makes_the_next_look_earlier_and_never_later() {
        let (queues, now) = (ReadyQueues::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        queues.add([queue()], now);
        queues.begin(now);
        queues.end(&queue(), Some(later));
        assert_eq!((queues.begin(now), queues.next_look()), (None, Some(later)));
        queues.room_in([&queue()], now);
        queues.room_in_all(later);
        assert_eq!(queues.next_look(), Some(now));
    }

    #[test]
    fn the_look_that_is_due_first_goes_first() {
        let (queues, now) = (ReadyQueues::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        queues.add([queue()], later);
        queues.add([QueueName::new("z")], now);
        assert_eq!(queues.begin(later), Some((QueueName::new("z"), true)));
    }
}
