//! Which entries leave the heap next: the earliest, and of a crowd the latest too.
//!
//! A burst in one queue may take seconds to claim. If all tasks went by their due times, those of every other queue
//! would wait until its last one is claimed. So while the earliest entry is overdue, or hundreds are within reach, half
//! of what leaves comes from the other end: tasks that come due now, or after a burst that is being claimed ahead. The
//! oldest keep their half, so none of them starves. Facebook's "adaptive LIFO" treats requests alike (Maurer, "Fail at
//! Scale", ACM Queue 2015).
//!
//! A backlog may take minutes. Rescues and deadlines come due behind all of it, but a row that waits for one holds up
//! its queue: the place of a limit, or the next task of an order. So some leave beside the oldest tasks to claim, and
//! where there is one place for both, they take turns.
//!
//! For the same reason the overdue may not fill the window. A part of it stays free for tasks that come due now.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::heap::{DelayHeap, Entry};
use crate::time::UnixMicros;

/// In a crowd, a task counts as one that comes due now until it is late by so much. It is more than a slow claim
/// takes, whose successors would otherwise join the overdue, and little for the tasks of a burst.
const ON_TIME: Duration = Duration::from_millis(250);

/// More tasks within reach are a crowd: they fill several claims, and a node rarely has as many of an even stream.
pub const CROWD: usize = 500;

/// A claim of a crowd may be larger than the others by this part, so that the tasks of a shard stay together.
const MORE: usize = 8;

/// The moments up to which entries leave the heap.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    pub now: UnixMicros,
    /// For entries of any kind.
    pub until: UnixMicros,
    /// For tasks to claim.
    pub claims_until: UnixMicros,
    /// Whether so many tasks are to be claimed that they are a [`CROWD`].
    pub is_crowd: bool,
    /// Whether the overdue stay, because so many messages wait to be sent that they would only wait there.
    pub overdue_wait: bool,
}

impl Reach {
    /// Tasks that are due after this come due now.
    fn on_time_after(&self) -> UnixMicros {
        if self.overdue_wait { self.now } else { self.now.minus(ON_TIME) }
    }
}

/// The number of entries that may leave the heap; `overdue` is no more than `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub most: usize,
    /// The most of them that leave by their due times, the overdue among them.
    pub overdue: usize,
}

impl Room {
    /// The room that a window leaves. A quarter of it takes only tasks that come due now.
    pub fn of(window: usize, in_flight: usize, most: usize) -> Self {
        let left = |of: usize| of.saturating_sub(in_flight).min(most);
        Self { most: left(window), overdue: left(window - window / 4) }
    }
}

/// Removes the entries that leave next.
pub fn take(heap: &mut DelayHeap, reach: Reach, room: Room) -> Vec<Entry> {
    let is_overdue = heap.next_due().is_some_and(|due| due < reach.now);
    let room = if is_overdue && reach.overdue_wait { Room { overdue: 0, ..room } } else { room };
    if !is_overdue && !reach.is_crowd {
        return earliest(heap, reach, room.overdue);
    }
    let oldest = room.overdue.min(room.most.div_ceil(2));
    let part = if oldest == 1 { usize::from(heap.is_turn_of_others()) } else { oldest / 2 };
    let others = heap.pop_others(reach.until, part);
    // Rescues that are older than all of them leave the claims their part, too.
    let mut entries = heap.pop_claims(reach.until.max(reach.claims_until), oldest - others.len());
    entries.extend(others);
    let left = room.overdue - entries.len();
    entries.extend(heap.pop_latest_claims(reach.on_time_after(), reach.claims_until, room.most - entries.len()));
    let left = left.min(room.most - entries.len());
    entries.extend(earliest(heap, reach, left));
    entries
}

/// Divides entries into claims of about `each` tasks, `most` at most. A claim locks the fence of each of its shards, so
/// each has tasks of few shards, and no other has tasks of the same ones where the sizes allow that.
pub fn divide(mut entries: Vec<Entry>, each: usize, most: usize) -> Vec<Vec<Entry>> {
    let claims = entries.len().div_ceil(each.max(1));
    if claims <= 1 {
        return vec![entries];
    }
    entries.sort_by_key(|entry| entry.id.shard());
    let each = entries.len().div_ceil(claims);
    let most = most.min(each + each / MORE).max(1);
    let mut divided = Vec::with_capacity(claims);
    while entries.len() > most {
        let is_between = |at: &usize| entries[at - 1].id.shard() != entries[*at].id.shard();
        let end = (each..=most).find(is_between).unwrap_or_else(|| each.min(most));
        let rest = entries.split_off(end);
        divided.push(std::mem::replace(&mut entries, rest));
    }
    divided.push(entries);
    divided
}

fn earliest(heap: &mut DelayHeap, reach: Reach, most: usize) -> Vec<Entry> {
    let mut entries = heap.pop_due(reach.until, most);
    if reach.claims_until > reach.until {
        entries.extend(heap.pop_claims(reach.claims_until, most - entries.len()));
    }
    entries
}
