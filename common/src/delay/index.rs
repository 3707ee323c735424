//! Finds an id's slot: open addressing over slot numbers, 4 to 8 bytes an entry. A map with a second copy of the ids
//! would take more memory than the entries themselves.

use xxhash_rust::xxh3::xxh3_64;

use crate::ids::TaskId;

/// Marks a free cell. No slot has this number: the entries would take 128 GiB.
const FREE: u32 = u32::MAX;

/// Slot numbers by the hash of the id in that slot. The ids stay in the slots; every call takes a function that looks
/// one up.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotIndex {
    /// The cells: a power of two of them, at most 7/8 full, with linear probing.
    cells: Vec<u32>,
    len: usize,
}

impl SlotIndex {
    /// The slot of `id`.
    pub(super) fn find(&self, id: TaskId, id_of: impl Fn(u32) -> TaskId) -> Option<u32> {
        self.cell_of(id, id_of).map(|cell| self.cells[cell])
    }

    /// Adds a slot whose id is not in the index yet.
    pub(super) fn insert(&mut self, slot: u32, id_of: impl Fn(u32) -> TaskId) {
        if (self.len + 1) * 8 > self.cells.len() * 7 {
            self.grow(&id_of);
        }
        self.place(slot, id_of(slot));
        self.len += 1;
    }

    /// Removes the slot of `id` and closes the gap, so that no probe ends too early.
    pub(super) fn remove(&mut self, id: TaskId, id_of: impl Fn(u32) -> TaskId) -> Option<u32> {
        let mut gap = self.cell_of(id, &id_of)?;
        let removed = self.cells[gap];
        let mask = self.cells.len() - 1;
        let mut cell = gap;
        loop {
            cell = (cell + 1) & mask;
            let slot = self.cells[cell];
            if slot == FREE {
                break;
            }
            // The slot may move into the gap only if the gap is not before the cell where its probe starts.
            let from_home = cell.wrapping_sub(self.home(id_of(slot))) & mask;
            let from_gap = cell.wrapping_sub(gap) & mask;
            if from_home >= from_gap {
                self.cells[gap] = slot;
                gap = cell;
            }
        }
        self.cells[gap] = FREE;
        self.len -= 1;
        Some(removed)
    }

    fn cell_of(&self, id: TaskId, id_of: impl Fn(u32) -> TaskId) -> Option<usize> {
        if self.cells.is_empty() {
            return None;
        }
        let mask = self.cells.len() - 1;
        let mut cell = self.home(id);
        loop {
            match self.cells[cell] {
                FREE => return None,
                slot if id_of(slot) == id => return Some(cell),
                _ => cell = (cell + 1) & mask,
            }
        }
    }

    fn place(&mut self, slot: u32, id: TaskId) {
        let mask = self.cells.len() - 1;
        let mut cell = self.home(id);
        while self.cells[cell] != FREE {
            cell = (cell + 1) & mask;
        }
        self.cells[cell] = slot;
    }

    fn grow(&mut self, id_of: impl Fn(u32) -> TaskId) {
        let wider = vec![FREE; (self.cells.len() * 2).max(16)];
        for slot in std::mem::replace(&mut self.cells, wider) {
            if slot != FREE {
                self.place(slot, id_of(slot));
            }
        }
    }

    fn home(&self, id: TaskId) -> usize {
        let mask = self.cells.len() as u64 - 1;
        usize::try_from(xxh3_64(id.uuid().as_bytes()) & mask).expect("below the number of cells")
    }
}

#[cfg(test)]
mod tests;
