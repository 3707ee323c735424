//! The unanswered messages of a connection: how much memory they take, and what is wrong with each.
//!
//! Prefetch counts messages, so it bounds no memory. The hold counts bytes, queue by queue. Once a queue has
//! brought too much, the hold leaves out the bodies that follow as they arrive. Their messages go back to the
//! broker once there is room, and come again.

use std::{collections::HashMap, sync::Arc};

use common::wire::screen::{Arrival, Trouble};
use parking_lot::Mutex;

/// The limit of each queue that a node reads: several inserts' worth of usual messages, and eight of the
/// largest. On its way into the database a message is copied up to four times.
pub(super) const HELD_BYTES: usize = 16 << 20;

/// The unanswered messages of one connection.
#[derive(Debug)]
pub(super) struct MemoryHold {
    /// The limit of each channel, in bytes.
    limit: usize,
    rooms: Mutex<HashMap<u16, Room>>,
}

/// The unanswered messages of one channel, which reads one queue.
#[derive(Debug, Default)]
struct Room {
    bytes: usize,
    /// Set when a message found too little room, until half of the limit is free. Without this, the messages
    /// given back to the broker would again and again find the room taken by later ones.
    is_closed: bool,
    /// Notes on messages that arrived and that the client has not handed over yet, by delivery tag.
    noted: HashMap<u64, Note>,
}

#[derive(Debug)]
struct Note {
    weight: usize,
    is_deferred: bool,
    trouble: Option<Trouble>,
}

/// The form in which a message came.
#[derive(Debug)]
pub(super) enum MessageForm {
    Whole(HeldBytes),
    /// The message is damaged or cut in the way that the note describes.
    Troubled(HeldBytes, Trouble),
    /// The message came without its body, for which there is no room now.
    Deferred {
        weight: usize,
    },
}

impl MemoryHold {
    pub(super) fn of(limit: usize) -> Self {
        Self { limit, rooms: Mutex::default() }
    }

    /// A hold without a limit, which counts nothing.
    pub(super) fn unlimited() -> Self {
        Self::of(usize::MAX)
    }

    /// Forgets the messages of an earlier channel of this number that the client never handed over: it ended first. The
    /// client gives the number to another channel once the broker sends no more on the earlier one.
    pub(super) fn begin(&self, channel: u16) {
        self.rooms.lock().remove(&channel);
    }

    /// Whether there is room for the body of an arriving message.
    pub(super) fn arrives(&self, arrival: Arrival) -> bool {
        let Arrival { channel, delivery_tag: Some(tag), weight, trouble } = arrival else { return true };
        if self.limit == usize::MAX && trouble.is_none() {
            return true;
        }
        let mut rooms = self.rooms.lock();
        let room = rooms.entry(channel).or_default();
        // A message larger than the whole limit is taken alone.
        if room.bytes > 0 && room.bytes.saturating_add(weight) > self.limit {
            room.is_closed = true;
        }
        let is_deferred = room.is_closed;
        if !is_deferred {
            room.bytes += weight;
        }
        room.noted.insert(tag, Note { weight, is_deferred, trouble });
        !is_deferred
    }

    /// The form of a message that the client hands over now.
    pub(super) fn form_of(self: &Arc<Self>, channel: u16, tag: u64) -> MessageForm {
        let note = self.rooms.lock().get_mut(&channel).and_then(|room| room.noted.remove(&tag));
        let held = |weight| HeldBytes { hold: Arc::clone(self), channel, weight };
        match note {
            None => MessageForm::Whole(held(0)),
            Some(Note { is_deferred: true, weight, .. }) => MessageForm::Deferred { weight },
            Some(Note { weight, trouble: None, .. }) => MessageForm::Whole(held(weight)),
            Some(Note { weight, trouble: Some(trouble), .. }) => MessageForm::Troubled(held(weight), trouble),
        }
    }

    pub(super) fn is_open(&self, channel: u16) -> bool {
        self.rooms.lock().get(&channel).is_none_or(|room| !room.is_closed)
    }

    fn release(&self, channel: u16, weight: usize) {
        if let Some(room) = self.rooms.lock().get_mut(&channel) {
            room.bytes = room.bytes.saturating_sub(weight);
            if room.bytes <= self.limit / 2 {
                room.is_closed = false;
            }
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.rooms.lock().values().map(|room| room.bytes).sum()
    }
}

/// The room that one message takes. Dropping it frees the room.
#[derive(Debug)]
pub(super) struct HeldBytes {
    hold: Arc<MemoryHold>,
    channel: u16,
    weight: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.hold.release(self.channel, self.weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(tag: u64, weight: usize) -> Arrival {
        Arrival { channel: 1, delivery_tag: Some(tag), weight, trouble: None }
    }

    #[test]
    fn what_finds_no_room_is_deferred_until_half_of_it_is_free() {
        let hold = Arc::new(MemoryHold::of(100));
        assert!(hold.arrives(arrival(1, 40)) && hold.arrives(arrival(2, 40)));
        assert!(!hold.arrives(arrival(3, 40)), "no room");
        assert!(!hold.arrives(arrival(4, 1)), "the room is closed, for small ones too");
        assert!(hold.arrives(Arrival { channel: 2, ..arrival(1, 90) }), "another queue has a room of its own");
        let (MessageForm::Whole(first), MessageForm::Whole(second)) = (hold.form_of(1, 1), hold.form_of(1, 2)) else {
            panic!("whole")
        };
        assert!(matches!(hold.form_of(1, 3), MessageForm::Deferred { weight: 40 }));
        assert!(!hold.is_open(1));
        drop(first);
        assert!(hold.is_open(1) && hold.arrives(arrival(3, 40)));
        drop(second);
        let MessageForm::Whole(third) = hold.form_of(1, 3) else { panic!("whole") };
        drop(third);
        assert_eq!(hold.bytes(), 90);
    }

    #[test]
    fn messages_that_a_channel_left_behind_take_no_room_of_the_next_one_of_its_number() {
        let hold = Arc::new(MemoryHold::of(100));
        assert!(hold.arrives(arrival(1, 90)));
        assert!(!hold.arrives(arrival(2, 90)));
        hold.begin(1);
        assert!(hold.is_open(1) && hold.arrives(arrival(1, 40)));
        assert!(matches!(hold.form_of(1, 2), MessageForm::Whole(_)), "the next channel counts its own");
        drop(hold.form_of(1, 1));
        assert_eq!(hold.bytes(), 0);
    }

    #[test]
    fn one_that_is_larger_than_the_room_comes_alone() {
        let hold = Arc::new(MemoryHold::of(100));
        assert!(hold.arrives(arrival(1, 500)));
        assert!(!hold.arrives(arrival(2, 1)));
        drop(hold.form_of(1, 1));
        assert!(hold.arrives(arrival(2, 500)));
    }
}
