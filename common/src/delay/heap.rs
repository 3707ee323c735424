//! The heap: what comes due next, of the shards a node owns.

use std::collections::BTreeSet;

use crate::{
    delay::index::SlotIndex,
    ids::{ShardId, TaskId},
    time::UnixMicros,
};

/// Why a row is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WakeKind {
    /// Due: claim and publish it.
    Claim,
    /// Delivered or running, and its time to answer is over.
    Deadline,
    /// Dispatching, and nobody may be at it any more.
    Rescue,
    /// Waiting for others: look whether they have succeeded.
    Look,
}

/// A key, never a payload. The shard is in the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub wake_at: UnixMicros,
    pub id: TaskId,
    pub kind: WakeKind,
}

/// What became of an entry that was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It is the next one due now: whoever sleeps until the head must wake up.
    Head,
    /// It is in, behind others.
    Behind,
    /// The id was there already and is due no later.
    Known,
    /// Not taken: the heap is full of earlier ones.
    Full,
}

/// The earliest entries of the shards owned, at most `budget` of them, each id once.
///
/// It is an index of what PostgreSQL holds and nothing more: an entry may be stale, doubled with another node's or gone
/// without harm, because the claim looks at the row. About 70 bytes an entry.
///
/// When it is full the latest entry makes room for an earlier one, and [`Self::complete_until`] says from which moment on
/// something may be missing. The preloader reads that part again once there is room.
#[derive(Clone, Debug)]
pub struct DelayHeap {
    budget: usize,
    /// Indexed by slot; free slots keep what they last held.
    slots: Vec<Entry>,
    free: Vec<u32>,
    /// Every taken slot in the order it comes due.
    order: BTreeSet<(UnixMicros, u32)>,
    index: SlotIndex,
    /// The earliest moment at which an entry was turned away or pushed out since the last reopening.
    complete_until: Option<UnixMicros>,
}

impl DelayHeap {
    /// `budget`: how many entries it may hold; at least 1, cut to what 32 bits can count.
    pub fn new(budget: usize) -> Self {
        let most = usize::try_from(u32::MAX - 1).unwrap_or(usize::MAX);
        Self {
            budget: budget.clamp(1, most),
            slots: Vec::new(),
            free: Vec::new(),
            order: BTreeSet::new(),
            index: SlotIndex::default(),
            complete_until: None,
        }
    }

    /// Adds an entry. Of two with the same id the earlier stays, because the later one may be what a stale read found; a task that was
    /// moved to later is offered again by the claim that comes too early. With the same moment too, the kind of the newer counts.
    pub fn push(&mut self, entry: Entry) -> Pushed {
        if let Some(slot) = self.slot_of(entry.id) {
            return self.advance(slot, entry);
        }
        if self.order.len() >= self.budget && !self.make_room(entry.wake_at) {
            return Pushed::Full;
        }
        let slot = self.occupy(entry);
        self.order.insert((entry.wake_at, slot));
        let slots = &self.slots;
        self.index.insert(slot, |slot| slots[slot as usize].id);
        self.place_of(slot)
    }

    /// The moment the next entry comes due.
    pub fn next_due(&self) -> Option<UnixMicros> {
        self.order.first().map(|(wake_at, _)| *wake_at)
    }

    /// Takes out what is due at `until`, earliest first, at most `max` entries.
    pub fn pop_due(&mut self, until: UnixMicros, max: usize) -> Vec<Entry> {
        let mut due = Vec::new();
        while due.len() < max
            && let Some((wake_at, slot)) = self.order.first().copied()
            && wake_at <= until
        {
            due.push(self.vacate(slot));
        }
        due
    }

    /// Takes out the entry of that id.
    pub fn remove(&mut self, id: TaskId) -> Option<Entry> {
        let slot = self.slot_of(id)?;
        Some(self.vacate(slot))
    }

    /// Takes out every entry of a shard and says how many there were. Looks at all entries.
    pub fn drop_shard(&mut self, shard: ShardId) -> usize {
        let of_shard = |(_, slot): &(UnixMicros, u32)| self.slots[*slot as usize].id.shard() == shard;
        let slots: Vec<u32> = self.order.iter().filter(|place| of_shard(place)).map(|(_, slot)| *slot).collect();
        for slot in &slots {
            self.vacate(*slot);
        }
        slots.len()
    }

    pub fn contains(&self, id: TaskId) -> bool {
        self.slot_of(id).is_some()
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Every entry that was pushed since [`Self::reopen`] and wakes before this moment is in, or was taken out on purpose.
    /// `None`: none was ever turned away.
    pub fn complete_until(&self) -> Option<UnixMicros> {
        self.complete_until
    }

    /// Forgets that entries were turned away. For whoever is about to push again what comes from
    /// [`Self::complete_until`] on: call this first, then read.
    pub fn reopen(&mut self) {
        self.complete_until = None;
    }

    fn slot_of(&self, id: TaskId) -> Option<u32> {
        self.index.find(id, |slot| self.slots[slot as usize].id)
    }

    /// Moves the entry in `slot` to an earlier moment, or leaves it.
    fn advance(&mut self, slot: u32, entry: Entry) -> Pushed {
        let known = &mut self.slots[slot as usize];
        if entry.wake_at == known.wake_at {
            known.kind = entry.kind;
        }
        if entry.wake_at >= known.wake_at {
            return Pushed::Known;
        }
        self.order.remove(&(known.wake_at, slot));
        *known = entry;
        self.order.insert((entry.wake_at, slot));
        self.place_of(slot)
    }

    fn place_of(&self, slot: u32) -> Pushed {
        if self.order.first().is_some_and(|(_, first)| *first == slot) { Pushed::Head } else { Pushed::Behind }
    }

    /// Pushes the latest entry out if it is later than `wake_at`. Either way something is missing from now on.
    fn make_room(&mut self, wake_at: UnixMicros) -> bool {
        let (latest, slot) = *self.order.last().expect("a full heap has a last entry");
        let missing = latest.max(wake_at);
        self.complete_until = Some(self.complete_until.map_or(missing, |earlier| earlier.min(missing)));
        let earlier = wake_at < latest;
        if earlier {
            self.vacate(slot);
        }
        earlier
    }

    fn occupy(&mut self, entry: Entry) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = entry;
            return slot;
        }
        if self.slots.len() == self.slots.capacity() {
            // By a quarter, not by half: doubling would leave up to half of it unused.
            let more = (self.slots.len() / 4).clamp(64, self.budget.max(64));
            self.slots.reserve_exact(more);
        }
        self.slots.push(entry);
        u32::try_from(self.slots.len() - 1).expect("the budget fits into 32 bits")
    }

    fn vacate(&mut self, slot: u32) -> Entry {
        let slots = &self.slots;
        let entry = slots[slot as usize];
        let listed = self.order.remove(&(entry.wake_at, slot));
        let indexed = self.index.remove(entry.id, |slot| slots[slot as usize].id);
        assert!(listed && indexed == Some(slot), "order and index name the same entries");
        self.free.push(slot);
        if self.order.is_empty() {
            self.shrink();
        }
        entry
    }

    /// Gives the memory of a past rush back.
    fn shrink(&mut self) {
        self.free = Vec::new();
        self.slots = Vec::new();
        self.index = SlotIndex::default();
    }
}

#[cfg(test)]
mod tests;
