//! Keeps rows with one key in the order of their submissions where a batch is written in parts, because the database
//! refuses a row of it.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use common::{
    ids::TaskId,
    task::{NewTask, TaskKey},
};
use parking_lot::Mutex;

use crate::store::{inbox::Collected, put::PutOutcome};

/// The order of the rows of one batch. The rows of one statement keep it by themselves.
#[derive(Debug)]
pub(super) struct KeyOrder {
    /// The row just before each row with the same key; the first row of a key has none.
    before: BTreeMap<TaskId, TaskId>,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// The rows that a part has answered for good.
    done: BTreeSet<TaskId>,
    /// The rows that no part has taken so far, because an earlier one with their key was not done.
    left_out: BTreeSet<TaskId>,
}

impl KeyOrder {
    pub(super) fn of(tasks: &[NewTask]) -> Self {
        let mut of_key: BTreeMap<TaskKey<'_>, Vec<TaskId>> = BTreeMap::new();
        for task in tasks {
            if let Some(key) = task.full_key() {
                of_key.entry(key).or_default().push(task.id);
            }
        }
        let mut before = BTreeMap::new();
        for ids in of_key.values_mut() {
            ids.sort_unstable();
            before.extend(ids.windows(2).map(|pair| (pair[1], pair[0])));
        }
        Self { before, progress: Mutex::default() }
    }

    /// Returns the rows of `part` whose turn it is: each earlier row with their key is done, or among them.
    pub(super) fn in_turn<'a>(&self, part: &'a [NewTask]) -> Cow<'a, [NewTask]> {
        if self.before.is_empty() {
            return Cow::Borrowed(part);
        }
        let (mut progress, mut in_turn) = (self.progress.lock(), BTreeSet::new());
        let ids: BTreeSet<TaskId> = part.iter().map(|task| task.id).collect();
        for id in ids {
            let earlier = self.before.get(&id);
            if earlier.is_none_or(|earlier| in_turn.contains(earlier) || progress.done.contains(earlier)) {
                progress.left_out.remove(&id);
                in_turn.insert(id);
            } else {
                progress.left_out.insert(id);
            }
        }
        match in_turn.len() == part.len() {
            true => Cow::Borrowed(part),
            false => Cow::Owned(part.iter().filter(|task| in_turn.contains(&task.id)).cloned().collect()),
        }
    }

    /// Notes the answers of a part. Behind a row that is answered `busy`, later ones with its key wait.
    pub(super) fn note(&self, collected: &[Collected]) {
        let done = collected.iter().filter(|one| one.put.outcome != PutOutcome::Busy);
        self.progress.lock().done.extend(done.map(|one| one.id));
    }

    /// The rows that no part has taken.
    pub(super) fn left_out(&self) -> BTreeSet<TaskId> {
        self.progress.lock().left_out.clone()
    }
}
