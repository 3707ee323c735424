//! Rows whose statement fails for them alone, with an error that looks like a bug, or because the server cannot read a
//! block or a file.
//!
//! Either such a row is at fault, or the schema or the server is for a while: a table was renamed, or a migration is
//! under way. So the row is tried again for some time. It is refused if it fails for longer than a trouble of the
//! server lasts, and much sooner if other rows pass. What cannot be read is an outage while no other row passes, and
//! refuses none then.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use common::ids::TaskId;
use parking_lot::Mutex;

use super::retry::{Done, Refused, Tried, try_each};
use crate::{
    clock,
    store::{Error, Fault, StoreOp},
};

/// A row that fails for this long while others pass is at fault. Some rows need a table that the others do not, so this
/// is longer than a table is away.
pub const BESIDE_OTHERS: Duration = Duration::from_secs(10);

/// A row that fails for this long while no row passes is refused all the same: it must not be tried for ever. Where
/// several fail, the server is at fault more likely, so it is this long for each of them.
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
    /// When another row first passed since then.
    others_pass_since: Option<Instant>,
}

impl Suspects {
    /// Puts the suspects of `items` last, those that failed most recently at the end. In a trouble a pass tries a few
    /// rows alone, so each pass must try others: one that passes shows that the rows are at fault, and not the server.
    /// Returns the number of rows before them.
    pub fn put_last<I>(&self, op: StoreOp, items: &mut [I], id: impl Fn(&I) -> TaskId) -> usize {
        let suspects = self.0.lock();
        if suspects.is_empty() {
            return items.len();
        }
        items.sort_by_key(|item| suspects.get(&(op, id(item))).map(|suspect| suspect.failed_at));
        items.partition_point(|item| !suspects.contains_key(&(op, id(item))))
    }

    /// Tries each of `items` once, the suspects last, and judges them. Returns the rows in their new order, and the
    /// result. `op`, `written`: see [`Self::judge`].
    pub async fn try_each<'a, I, T, F, W>(
        &self,
        op: StoreOp,
        items: &'a mut [I],
        id: impl Fn(&I) -> TaskId,
        write: impl Fn(&'a [I]) -> F,
        written: impl Fn(&T) -> W,
    ) -> (&'a [I], Tried<'a, I, T>)
    where
        F: Future<Output = Result<T, Error>>,
        W: IntoIterator<Item = TaskId>,
    {
        self.put_last(op, items, &id);
        let items: &[I] = items;
        let tried = try_each(items, write).await;
        (items, self.judge(op, tried, id, written))
    }

    /// Adds `known`, the suspects of a batch, to its result: tries each once, and judges them and the rows in doubt.
    /// What is left of them is in doubt, and the caller tries it again later. `op`, `written`: see [`Self::judge`].
    pub async fn try_known<'a, I, T, F, W>(
        &self,
        op: StoreOp,
        mut done: Done<'a, I, T>,
        known: &'a [I],
        id: impl Fn(&I) -> TaskId,
        written: impl Fn(&T) -> W,
        write: impl Fn(&'a [I]) -> F,
    ) -> Done<'a, I, T>
    where
        F: Future<Output = Result<T, Error>>,
        W: IntoIterator<Item = TaskId>,
    {
        let mut tried = try_each(known, write).await;
        tried.answers.append(&mut done.answers);
        tried.refused.append(&mut done.refused);
        tried.left.append(&mut done.doubtful);
        let tried = self.judge(op, tried, id, written);
        let (moved, doubtful): (Vec<_>, Vec<_>) = tried.left.into_iter().partition(|(_, error)| error.is_moved());
        done.moved.extend(moved.into_iter().flat_map(|(part, _)| part));
        Done { answers: tried.answers, refused: tried.refused, doubtful, ..done }
    }

    /// Moves the rows of `tried` that are at fault from those that are left to those that are refused. `op`: the
    /// statement that was tried. `written`: the rows that an answer shows as written. A statement skips a row that
    /// another transaction holds, if only one that has just failed and is not rolled back yet. Such a row has neither
    /// passed nor failed. While a disk fails for all rows, those that cannot be read are no suspects.
    fn judge<'a, I, T, W: IntoIterator<Item = TaskId>>(
        &self,
        op: StoreOp,
        mut tried: Tried<'a, I, T>,
        id: impl Fn(&I) -> TaskId,
        written: impl Fn(&T) -> W,
    ) -> Tried<'a, I, T> {
        let others_pass = self.note_written(op, tried.answers.iter().flat_map(written));
        for (part, error) in std::mem::take(&mut tried.left) {
            let is_suspect = error.fault() == Fault::Bug || (others_pass && error.is_unreadable_file());
            match part {
                [item] if is_suspect && self.is_at_fault(op, id(item), others_pass) => {
                    tried.refused.push(Refused { item, error });
                }
                part => tried.left.push((part, error)),
            }
        }
        tried
    }

    /// Forgets the rows that are written. All other suspects have failed where others pass. Returns whether there are
    /// such rows.
    pub fn note_written(&self, op: StoreOp, written: impl Iterator<Item = TaskId>) -> bool {
        let (mut suspects, mut written) = (self.0.lock(), written.peekable());
        let others_pass = written.peek().is_some();
        if suspects.is_empty() || !others_pass {
            return others_pass;
        }
        for id in written {
            suspects.remove(&(op, id));
        }
        let now = clock::instant();
        for (_, suspect) in suspects.iter_mut().filter(|((of, _), _)| *of == op) {
            suspect.others_pass_since.get_or_insert(now);
        }
        true
    }

    /// Decides on a row that has just failed alone, as with a bug. `others_pass`: others have passed beside it.
    pub fn is_at_fault(&self, op: StoreOp, id: TaskId, others_pass: bool) -> bool {
        let (mut suspects, now) = (self.0.lock(), clock::instant());
        suspects.retain(|_, suspect| now.saturating_duration_since(suspect.failed_at) < FORGOTTEN_AFTER);
        if suspects.len() >= MOST && !suspects.contains_key(&(op, id)) {
            return false;
        }
        let new = Suspect { since: now, failed_at: now, others_pass_since: others_pass.then_some(now) };
        let suspect = suspects.entry((op, id)).or_insert(new);
        suspect.failed_at = now;
        if others_pass {
            suspect.others_pass_since.get_or_insert(now);
        }
        let (since, others_pass_since) = (suspect.since, suspect.others_pass_since);
        let is_at_fault = match others_pass_since {
            // Where the trouble of a server ends, others pass before this row does.
            Some(passed_since) => now.saturating_duration_since(passed_since) >= BESIDE_OTHERS,
            None => {
                let failing = suspects.keys().filter(|(of, _)| *of == op).count();
                now.saturating_duration_since(since) >= ALONE * u32::try_from(failing).unwrap_or(u32::MAX)
            }
        };
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
