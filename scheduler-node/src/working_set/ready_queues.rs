//! The queues with tasks that wait for room in one database, as far as this node knows. Each has the time of its
//! next look.
//!
//! It is a hint, not a fact: the ready starter reads these queues from the database now and then. Only one look at a
//! queue is under way at a time. Queues whose last looks were slow share fewer places than there are, so that one stays
//! for the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use common::{ids::QueueName, time::UnixMicros};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::floors::Floors;

/// Looks at different queues under way: a lane of a thousand keys does not delay the others.
pub const LOOKS_IN_FLIGHT: usize = 4;

/// The most of them at queues whose last looks were slow. Beside an old transaction a look may take as long as a
/// statement may, and one place stays for the queues that are quick.
const SLOW_IN_FLIGHT: usize = LOOKS_IN_FLIGHT - 1;

/// From this time on a look is slow. Most take some milliseconds; one at many lanes takes some tenths of a second on a
/// busy machine, and news of room must bring the next one at once.
const SLOW_LOOK: Duration = Duration::from_secs(1);

/// The most queues without a look that are known to be slow. Beyond it, one counts as quick until its next look ends.
const WERE_SLOW_MOST: usize = 1_000;

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
    turns: Turns,
    /// The same for those whose last looks were slow, which are not in `turns`.
    slow_turns: Turns,
    /// Looks under way at queues whose last looks were slow.
    slow_under_way: usize,
    /// Queues without a look whose last one was slow.
    were_slow: BTreeSet<QueueName>,
}

type Turns = BTreeSet<(Instant, QueueName)>;

#[derive(Clone, Copy, Debug)]
struct Look {
    /// `None`: only the look under way knows when the next one is.
    at: Option<Instant>,
    under_way: bool,
    /// A queue was added, or there may be room, since the previous look began.
    is_news: bool,
    /// The last look took long.
    is_slow: bool,
}

impl Look {
    const NEW: Self = Self { at: None, under_way: false, is_news: false, is_slow: false };

    /// News makes the next look earlier, but ends no rest after a slow one.
    fn hear(&mut self, now: Instant) {
        let at = self.at.map_or(now, |at| if self.is_slow { at } else { at.min(now) });
        self.at = Some(at);
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
        let before = (look.turn(), look.is_slow);
        change(look);
        let after = (look.turn(), look.is_slow);
        if before != after {
            before.0.map(|at| self.turns_of(before.1).remove(&(at, queue.clone())));
            self.turns_of(after.1).extend(after.0.map(|at| (at, queue.clone())));
        }
    }

    fn turns_of(&mut self, is_slow: bool) -> &mut Turns {
        if is_slow { &mut self.slow_turns } else { &mut self.turns }
    }

    /// The queue whose turn is first, of those that have a place.
    fn first(&self) -> Option<&(Instant, QueueName)> {
        let slow = self.slow_turns.first().filter(|_| self.slow_under_way < SLOW_IN_FLIGHT);
        self.turns.first().into_iter().chain(slow).min()
    }
}

impl ReadyQueues {
    /// The number of queues that have looks.
    pub fn known(&self) -> usize {
        self.looks.lock().of.len()
    }

    /// Adds queues that may have waiting tasks. They are looked at by `now`.
    pub fn add(&self, queues: impl IntoIterator<Item = QueueName>, now: Instant) {
        let mut looks = self.looks.lock();
        for queue in queues {
            let is_slow = looks.were_slow.remove(&queue);
            looks.of.entry(queue.clone()).or_insert(Look { is_slow, ..Look::NEW });
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
        let (_, queue) = looks.first().filter(|(at, _)| *at <= now)?.clone();
        let (mut is_news, mut was_slow) = (false, false);
        looks.change(&queue, |look| {
            (is_news, was_slow) = (look.is_news, look.is_slow);
            *look = Look { under_way: true, is_slow: look.is_slow, ..Look::NEW };
        });
        looks.slow_under_way += usize::from(was_slow);
        Some((queue, is_news))
    }

    /// Ends a look that took so long. `again`: when the next one is due; no earlier after a look that was slow. The
    /// queue is forgotten if that is `None` and no news has come meanwhile.
    pub fn end(&self, queue: &QueueName, again: Option<Instant>, took: Duration) {
        let is_slow = took >= SLOW_LOOK;
        let mut looks = self.looks.lock();
        let (mut is_over, mut was_slow) = (false, false);
        looks.change(queue, |look| {
            was_slow = std::mem::replace(&mut look.is_slow, is_slow);
            look.under_way = false;
            look.at = match (look.at, again) {
                (Some(at), Some(again)) if !is_slow => Some(at.min(again)),
                (at, again) => again.or(at),
            };
            is_over = look.at.is_none();
        });
        looks.slow_under_way -= usize::from(was_slow);
        if is_over {
            looks.of.remove(queue);
            if is_slow && looks.were_slow.len() < WERE_SLOW_MOST {
                looks.were_slow.insert(queue.clone());
            }
        }
        drop(looks);
        self.sooner.notify_one();
    }

    /// When the next look is due, of those that have a place.
    pub fn next_look(&self) -> Option<Instant> {
        self.looks.lock().first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
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
        queues.end(&queue(), None, Duration::ZERO);
        assert_eq!(queues.begin(now), Some((queue(), true)), "something was added during the look");
        queues.end(&queue(), Some(now), Duration::ZERO);
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
        queues.end(&first, Some(now), Duration::ZERO);
        assert_eq!(queues.begin(late).map(|(queue, _)| queue), Some(first), "its next turn is earlier");
        assert_eq!(queues.begin(late).map(|(queue, _)| queue), Some(second));
        assert_eq!((queues.begin(late), queues.next_look()), (None, None));
    }

    #[test]
    fn what_has_nothing_waiting_is_forgotten_and_room_in_it_means_nothing() {
        let (queues, now) = (ReadyQueues::default(), Instant::now());
        queues.add([queue()], now);
        assert!(queues.begin(now).is_some());
        queues.end(&queue(), None, Duration::ZERO);
        queues.room_in([&queue()], now);
        assert_eq!(queues.next_look(), None);
    }

    #[test]
    fn room_makes_the_next_look_earlier_and_never_later() {
        let (queues, now) = (ReadyQueues::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        queues.add([queue()], now);
        queues.begin(now);
        queues.end(&queue(), Some(later), Duration::ZERO);
        assert_eq!((queues.begin(now), queues.next_look()), (None, Some(later)));
        queues.room_in([&queue()], now);
        queues.room_in_all(later);
        assert_eq!(queues.next_look(), Some(now));
    }

    /// As beside an old transaction, where each look at some queues runs out of its time.
    #[test]
    fn queues_whose_looks_are_slow_never_take_all_places() {
        let (queues, now) = (ReadyQueues::default(), Instant::now());
        // They come before it by name.
        let names: Vec<QueueName> = (0..=LOOKS_IN_FLIGHT).map(|number| QueueName::new(format!("a-{number}"))).collect();
        queues.add(names.clone(), now);
        while let Some((name, _)) = queues.begin(now) {
            queues.end(&name, Some(now + SLOW_LOOK), SLOW_LOOK);
        }
        let later = now + SLOW_LOOK;
        queues.add([queue()], later);
        let begun: Vec<QueueName> = std::iter::from_fn(|| queues.begin(later)).map(|(name, _)| name).collect();
        let is_slow = |name: &&QueueName| names.contains(name);
        assert_eq!(begun.iter().filter(is_slow).count(), SLOW_IN_FLIGHT);
        assert!(begun.contains(&queue()));
        assert_eq!(queues.next_look(), None, "the others wait for a place");
        queues.end(begun.iter().find(is_slow).expect("three are slow"), None, Duration::ZERO);
        assert_eq!(queues.next_look(), Some(later), "its place is free");
    }

    #[test]
    fn news_ends_no_rest_after_a_slow_look() {
        let (queues, now) = (ReadyQueues::default(), Instant::now());
        let later = now + Duration::from_secs(5);
        queues.add([queue()], now);
        queues.begin(now);
        queues.room_in_all(now);
        queues.end(&queue(), Some(later), SLOW_LOOK);
        queues.room_in_all(now);
        assert_eq!((queues.begin(now), queues.next_look()), (None, Some(later)));
        assert_eq!(queues.begin(later), Some((queue(), true)));
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
