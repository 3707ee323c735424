//! Entries that left the heap together, and the parts in which they are handed out.

use std::{collections::VecDeque, time::Duration};

use common::delay::{
    heap::{Entry, WakeKind},
    turn,
};

/// Entries that left the heap together, this far ahead at most.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) entries: Vec<Entry>,
    pub(super) ahead: Duration,
    /// Whether they fill a claim, and all the room for overdue tasks.
    pub(super) is_full: bool,
    /// How many of them a claim takes.
    pub(super) each: usize,
    /// How many places a claim holds.
    pub(super) places: u32,
}

impl Batch {
    /// Whether it is handed out in parts, as a crowd is.
    pub(super) fn is_divided(&self) -> bool {
        self.places > 1 || self.entries.len() > self.each
    }

    /// Removes entries that are no tasks to claim, at most `most` of them.
    pub(super) fn take_others(&mut self, most: usize) -> Vec<Entry> {
        self.entries.extract_if(.., |entry| entry.kind != WakeKind::Claim).take(most).collect()
    }

    /// The parts that it is handed out in, each with the places that it holds. `most`: the most entries of a part.
    /// Deadlines wait for their moments, so those of a crowd, and its rescues, hold one place beside its claims.
    pub(super) fn into_parts(mut self, most: usize) -> VecDeque<(Vec<Entry>, u32)> {
        if !self.is_divided() {
            return VecDeque::from([(self.entries, 1)]);
        }
        let others = turn::divide(self.take_others(usize::MAX), most, most).into_iter().map(|part| (part, 1));
        let (places, claims) = (self.places, turn::divide(self.entries, self.each, most));
        let claims = claims.into_iter().map(|part| (part, places));
        claims.chain(others).filter(|(part, _)| !part.is_empty()).collect()
    }
}
