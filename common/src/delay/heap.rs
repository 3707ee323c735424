//! The heap: the next due entries of the shards that a node owns.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    delay::{buckets::Buckets, index::SlotIndex},
    ids::{ShardId, TaskId},
    time::UnixMicros,
};

/// Tasks that have been due for longer are counted together: when each of them was due decides nothing.
const LONG_AGO: Duration = Duration::from_secs(60);

/// Tasks to claim leave this part of a full heap to other entries. A rescue comes due now, and so after each task of a
/// backlog: a heap that is full of those would turn it away.
const PART_OF_OTHERS: usize = 16;

/// Why a row needs a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WakeKind {
    /// The task is due: claim and publish it.
    Claim,
    /// The task is delivered or running, and its deadline has passed.
    Deadline,
    /// The task is dispatching, and its owner may be gone.
    Rescue,
    /// The task waits for others: check whether they have succeeded.
    Look,
}

/// A key, never a payload. The id contains the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub wake_at: UnixMicros,
    pub id: TaskId,
    pub kind: WakeKind,
}

/// The earliest entries of the owned shards, at most `budget` of them, each id once.
///
/// The heap is only an index of rows in PostgreSQL. An entry may be stale, gone, or also in another node's heap
/// without harm, because the claim checks the row. An entry takes about 70 bytes. Each 8 ms with a task to claim take
/// some 30 more. Those of more than a minute ago are counted together when their count is asked for.
///
/// A full heap drops its latest entry to make room for an earlier one. For entries that are no tasks to claim, up to a
/// sixteenth of the budget, it drops the latest task to claim instead, however early that is due.
/// [`Self::complete_until`] then returns the moment from which entries may be missing. The preloader reads that part
/// again once there is room.
#[derive(Clone, Debug)]
pub struct DelayHeap {
    budget: usize,
    /// The entries by slot; a free slot keeps its last entry.
    slots: Vec<Entry>,
    free: Vec<u32>,
    /// The slots of tasks to claim, ordered by the moment they are due.
    claim_order: BTreeSet<(UnixMicros, u32)>,
    /// Those of all other entries.
    other_order: BTreeSet<(UnixMicros, u32)>,
    index: SlotIndex,
    /// How many tasks to claim are due when.
    claims: Buckets,
    /// Whether the last place that all kinds shared was for other entries than tasks to claim.
    was_turn_of_others: bool,
    /// The earliest moment of an entry that was turned away or pushed out since the last reopening.
    complete_until: Option<UnixMicros>,
}

impl DelayHeap {
    /// Creates a heap for at most `budget` entries. A budget of 0 becomes 1, and a large one is cut to what 32 bits
    /// can count.
    pub fn new(budget: usize) -> Self {
        let most = usize::try_from(u32::MAX - 1).unwrap_or(usize::MAX);
        Self {
            budget: budget.clamp(1, most),
            slots: Vec::new(),
            free: Vec::new(),
            claim_order: BTreeSet::new(),
            other_order: BTreeSet::new(),
            index: SlotIndex::default(),
            claims: Buckets::default(),
            was_turn_of_others: true,
            complete_until: None,
        }
    }

    /// Adds an entry. Of two entries with the same id the earlier one stays, because the later one may come from a
    /// stale read. A task that was moved to a later moment gets a new entry from the claim that comes too early. At
    /// equal moments the newer entry's kind counts.
    pub fn push(&mut self, entry: Entry) {
        if let Some(slot) = self.slot_of(entry.id) {
            return self.advance(slot, entry);
        }
        if self.len() >= self.budget && !self.make_room(entry) {
            return;
        }
        let slot = self.occupy(entry);
        self.list(slot, entry);
        let slots = &self.slots;
        self.index.insert(slot, |slot| slots[slot as usize].id);
    }

    /// The moment at which the next entry is due.
    pub fn next_due(&self) -> Option<UnixMicros> {
        self.first().map(|(wake_at, _)| wake_at)
    }

    /// Removes the entries that are due at `until`, earliest first, at most `max` of them.
    pub fn pop_due(&mut self, until: UnixMicros, max: usize) -> Vec<Entry> {
        let mut due = Vec::new();
        while due.len() < max
            && let Some((wake_at, slot)) = self.first()
            && wake_at <= until
        {
            due.push(self.vacate(slot));
        }
        due
    }

    /// Removes the entries that are due at `until` and are no tasks to claim, earliest first, at most `max` of them.
    /// Tasks to claim stay.
    pub fn pop_others(&mut self, until: UnixMicros, max: usize) -> Vec<Entry> {
        let due = self.other_order.range(..=(until, u32::MAX));
        let slots: Vec<u32> = due.map(|(_, slot)| *slot).take(max).collect();
        slots.into_iter().map(|slot| self.vacate(slot)).collect()
    }

    /// Whether a single place is for entries that are no tasks to claim. The answer changes with each call.
    pub const fn is_turn_of_others(&mut self) -> bool {
        self.was_turn_of_others = !self.was_turn_of_others;
        self.was_turn_of_others
    }

    /// The moments of the tasks to claim that are due at `until`, earliest first.
    pub fn claims_until(&self, until: UnixMicros) -> impl Iterator<Item = UnixMicros> {
        self.claim_slots(until).map(|(wake_at, _)| wake_at)
    }

    /// How many tasks to claim are due by `until`, some milliseconds of due times in each count, with the earliest of
    /// these. The first is exact; a later one may be earlier than its tasks. The last count may have some that are due
    /// a little after `until`. What is due long before `until` has two counts at most, from now on.
    pub fn claim_counts(&mut self, until: UnixMicros) -> impl Iterator<Item = (UnixMicros, usize)> {
        self.claims.join_before(until.minus(LONG_AGO));
        let heap = &*self;
        let counts = move |first: UnixMicros| heap.claims.until(until).map(move |(at, tasks)| (at.max(first), tasks));
        heap.first_claim(until).into_iter().flat_map(counts)
    }

    /// When the first task to claim is due, if it is at `until` or before.
    fn first_claim(&self, until: UnixMicros) -> Option<UnixMicros> {
        self.claim_order.first().map(|(wake_at, _)| *wake_at).filter(|wake_at| *wake_at <= until)
    }

    /// Removes the tasks to claim that are due at `until`, earliest first, at most `max` of them. Other entries stay.
    pub fn pop_claims(&mut self, until: UnixMicros, max: usize) -> Vec<Entry> {
        let slots: Vec<u32> = self.claim_slots(until).map(|(_, slot)| slot).take(max).collect();
        slots.into_iter().map(|slot| self.vacate(slot)).collect()
    }

    /// Removes the tasks to claim that are due after `from` and at `until`, latest first, at most `max` of them. Other
    /// entries stay.
    pub fn pop_latest_claims(&mut self, from: UnixMicros, until: UnixMicros, max: usize) -> Vec<Entry> {
        if from >= until {
            return Vec::new();
        }
        let latest = self.claim_order.range((from, u32::MAX)..=(until, u32::MAX)).rev();
        let slots: Vec<u32> = latest.map(|(_, slot)| *slot).take(max).collect();
        slots.into_iter().map(|slot| self.vacate(slot)).collect()
    }

    fn claim_slots(&self, until: UnixMicros) -> impl Iterator<Item = (UnixMicros, u32)> {
        self.claim_order.range(..=(until, u32::MAX)).copied()
    }

    /// The place of the next entry of any kind.
    fn first(&self) -> Option<(UnixMicros, u32)> {
        [self.claim_order.first(), self.other_order.first()].into_iter().flatten().min().copied()
    }

    /// Removes the entry of that id.
    pub fn remove(&mut self, id: TaskId) -> Option<Entry> {
        let slot = self.slot_of(id)?;
        Some(self.vacate(slot))
    }

    /// Removes every entry of these shards. Looks at all entries.
    pub fn drop_shards(&mut self, shards: &[ShardId]) {
        let of_shard = |(_, slot): &(UnixMicros, u32)| shards.contains(&self.slots[*slot as usize].id.shard());
        let order = self.claim_order.iter().chain(&self.other_order);
        let slots: Vec<u32> = order.filter(|place| of_shard(place)).map(|(_, slot)| *slot).collect();
        for slot in slots {
            self.vacate(slot);
        }
    }

    pub fn len(&self) -> usize {
        self.claim_order.len() + self.other_order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The moment up to which the heap is complete. Every entry that was pushed since [`Self::reopen`] and wakes
    /// before it is in the heap, or was removed on purpose. `None`: no entry was ever turned away.
    pub fn complete_until(&self) -> Option<UnixMicros> {
        self.complete_until
    }

    /// Forgets that entries were turned away. A caller that is about to push everything from [`Self::complete_until`]
    /// on again calls this first, and reads afterwards.
    pub fn reopen(&mut self) {
        self.complete_until = None;
    }

    fn slot_of(&self, id: TaskId) -> Option<u32> {
        self.index.find(id, |slot| self.slots[slot as usize].id)
    }

    /// Moves the entry in `slot` to an earlier moment; a later moment changes nothing.
    fn advance(&mut self, slot: u32, entry: Entry) {
        let known = self.slots[slot as usize];
        // Each read for repairs brings most entries once more, as they are.
        if entry.wake_at > known.wake_at || entry == known {
            return;
        }
        self.unlist(slot, known);
        self.slots[slot as usize] = entry;
        self.list(slot, entry);
    }

    fn list(&mut self, slot: u32, entry: Entry) {
        if entry.kind == WakeKind::Claim {
            self.claims.add(entry.wake_at);
        }
        self.order_of(entry.kind).insert((entry.wake_at, slot));
    }

    /// Returns whether the entry was listed.
    fn unlist(&mut self, slot: u32, entry: Entry) -> bool {
        if entry.kind == WakeKind::Claim {
            self.claims.remove(entry.wake_at);
        }
        self.order_of(entry.kind).remove(&(entry.wake_at, slot))
    }

    const fn order_of(&mut self, kind: WakeKind) -> &mut BTreeSet<(UnixMicros, u32)> {
        if matches!(kind, WakeKind::Claim) { &mut self.claim_order } else { &mut self.other_order }
    }

    /// Pushes an entry out in favour of `entry`: the latest one if it is later, or a task to claim while the others
    /// have no more than their part. Returns whether it did. Either way an entry is missing from now on.
    fn make_room(&mut self, entry: Entry) -> bool {
        let is_other = entry.kind != WakeKind::Claim;
        let others = self.other_order.len() + usize::from(is_other);
        let have_room = others <= self.budget / PART_OF_OTHERS;
        let (claim, other) = (self.claim_order.last().copied(), self.other_order.last().copied());
        let last = claim.filter(|_| have_room).or_else(|| claim.max(other));
        let (latest, slot) = last.expect("a full heap has a last entry");
        let stays = (is_other && have_room) || entry.wake_at < latest;
        let missing = if stays { latest } else { entry.wake_at };
        self.complete_until = Some(self.complete_until.map_or(missing, |earlier| earlier.min(missing)));
        if stays {
            self.vacate(slot);
        }
        stays
    }

    fn occupy(&mut self, entry: Entry) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = entry;
            return slot;
        }
        if self.slots.len() == self.slots.capacity() {
            // Grows by a quarter: doubling would leave up to half of the memory unused.
            let more = (self.slots.len() / 4).clamp(64, self.budget.max(64));
            self.slots.reserve_exact(more);
        }
        self.slots.push(entry);
        u32::try_from(self.slots.len() - 1).expect("the budget fits into 32 bits")
    }

    fn vacate(&mut self, slot: u32) -> Entry {
        let entry = self.slots[slot as usize];
        let listed = self.unlist(slot, entry);
        let slots = &self.slots;
        let indexed = self.index.remove(entry.id, |slot| slots[slot as usize].id);
        assert!(listed && indexed == Some(slot), "order and index name the same entries");
        self.free.push(slot);
        if self.is_empty() {
            self.shrink();
        }
        entry
    }

    /// Gives back the memory of a past peak.
    fn shrink(&mut self) {
        self.free = Vec::new();
        self.slots = Vec::new();
        self.index = SlotIndex::default();
    }
}

#[cfg(test)]
mod tests;
