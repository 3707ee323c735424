//! Rows whose statement fails for them alone, with an error that looks like a bug.
//!
//! Either such a row is at fault, or the schema or the server is for a while: a table was renamed, or a migration is
//! under way. So the row is tried again for some time. It is refused if it fails for longer than a trouble of the
//! server lasts, and much sooner if other rows pass.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::ids::TaskId;
use parking_lot::Mutex;

use super::retry::{Refused, Tried};
use crate::{
    clock,
    store::{Fault, StoreOp},
};

/// A row that fails for this long while others pass is at fault. Some rows need a table that the others do not, so this
/// is longer than a table is away.
const BESIDE_OTHERS: Duration = Duration::from_secs(10);

/// A row that fails for this long while no row passes is refused all the same: it must not be tried for ever.
const ALONE: Duration = Duration::from_secs(120);

/// A row that was not tried for this long is gone. This is far longer than the pause between two tries.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The most suspects. Further rows are tried again until there is room.
const MOST: usize = 1_000;

/// The suspects of one database, by the statement that fails.
#[derive(Clone, Debug, Default)]
pub struct Suspects(Arc<Mutex<BTreeMap<(StoreOp, TaskId), Suspect>>>);

#[derive(Debug)]
struct Suspect {
    since: Instant,
    failed_at: Instant,
    /// Other rows have passed since then.
    others_pass: bool,
}

impl Suspects {
    /// Puts the suspects of `items` last, those that failed most recently at the end. In a trouble a pass tries a few
    /// rows alone, so each pass must try others: one that passes shows that the rows are at fault, and not the server.
    pub fn put_last<I>(&self, op: StoreOp, items: &mut [I], id: impl Fn(&I) -> TaskId) {
        let suspects = self.0.lock();
        if !suspects.is_empty() {
            items.sort_by_key(|item| suspects.get(&(op, id(item))).map(|suspect| suspect.failed_at));
        }
    }

    /// Moves the rows of `tried` that are at fault from those that are left to those that are refused. `op` and
    /// `items`: the statement that was tried, and its rows.
    pub fn judge<'a, I, T>(
        &self,
        op: StoreOp,
        items: &'a [I],
        mut tried: Tried<'a, I, T>,
        id: impl Fn(&I) -> TaskId,
    ) -> Tried<'a, I, T> {
        let others_pass = !tried.answers.is_empty();
        if others_pass {
            let left = tried.left.iter().flat_map(|(part, _)| *part);
            let failed = left.chain(tried.refused.iter().map(|refused| refused.item)).map(&id).collect();
            self.note_passed(op, items.iter().map(&id), &failed);
        }
        for (part, error) in std::mem::take(&mut tried.left) {
            match part {
                [item] if error.fault() == Fault::Bug && self.is_at_fault(op, id(item), others_pass) => {
                    tried.refused.push(Refused { item, error });
                }
                part => tried.left.push((part, error)),
            }
        }
        tried
    }

    /// Forgets the rows that have passed: those of `ids` that have not `failed`. All other suspects have failed where
    /// others pass.
    fn note_passed(&self, op: StoreOp, ids: impl Iterator<Item = TaskId>, failed: &BTreeSet<TaskId>) {
        let mut suspects = self.0.lock();
        if suspects.is_empty() {
            return;
        }
        for id in ids.filter(|id| !failed.contains(id)) {
            suspects.remove(&(op, id));
        }
        suspects.iter_mut().filter(|((of, _), _)| *of == op).for_each(|(_, suspect)| suspect.others_pass = true);
    }

    /// Decides on a row that has just failed alone.
    fn is_at_fault(&self, op: StoreOp, id: TaskId, others_pass: bool) -> bool {
        let (mut suspects, now) = (self.0.lock(), clock::instant());
        suspects.retain(|_, suspect| now.saturating_duration_since(suspect.failed_at) < FORGOTTEN_AFTER);
        if suspects.len() >= MOST && !suspects.contains_key(&(op, id)) {
            return false;
        }
        let new = Suspect { since: now, failed_at: now, others_pass };
        let suspect = suspects.entry((op, id)).or_insert(new);
        suspect.failed_at = now;
        suspect.others_pass |= others_pass;
        let patience = if suspect.others_pass { BESIDE_OTHERS } else { ALONE };
        let is_at_fault = now.saturating_duration_since(suspect.since) >= patience;
        if is_at_fault {
            suspects.remove(&(op, id));
        }
        is_at_fault
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests;
