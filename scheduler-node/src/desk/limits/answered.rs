//! Tasks for which another task with their key answers: a stored one, or one of the same request. They need only the
//! room by which they make it larger.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use common::{
    ids::QueueName,
    limit::{Limit, Usage},
    task::{OnDuplicate, TaskKey, TaskState, ValidTask},
};

use super::{
    LimitHolder, LimitVerdict, LimitedTask,
    look_up::{LookedUp, Rivals},
};
use crate::desk::{Desk, meter::Admission};

/// The room that the tasks of each key of a request share. A key has none before its first task is admitted, unless a
/// stored task was found.
#[derive(Default)]
pub(super) struct KeyRooms<'a> {
    rooms: BTreeMap<TaskKey<'a>, KeyRoom>,
    /// Keys of which it is not known whether a stored task has them.
    unread: BTreeSet<TaskKey<'a>>,
}

enum KeyRoom {
    /// The room of a new task. `takers`: the indices of the admitted cases; `bytes`: those of the largest.
    New { takers: BTreeSet<usize>, bytes: i64 },
    /// The room of a stored task, and the bytes by which admitted ones make it larger.
    Stored { rivals: Rivals, more: i64 },
}

impl<'a> KeyRooms<'a> {
    /// The room that the case at index `at` needs beyond the room of its key.
    pub(super) fn needed(&self, at: usize, case: &LimitedTask<'a>) -> Usage {
        let growth = match case.task.full_key().and_then(|key| self.rooms.get(&key)) {
            // It is written before the one that has the room, whatever its own rule for a duplicate.
            Some(KeyRoom::New { takers, bytes }) if takers.first().is_some_and(|first| at < *first) => {
                Some(case.size.bytes - bytes)
            }
            Some(KeyRoom::New { bytes, .. }) => Some(growth_beyond(*bytes, case.task)),
            Some(KeyRoom::Stored { rivals, more }) => growth(rivals, case.task).map(|growth| growth - more),
            None => None,
        };
        growth.map_or(case.size, |growth| Usage { tasks: 0, bytes: growth.max(0) })
    }

    /// Notes that the case at index `at` has taken the room that it needed.
    pub(super) fn took(&mut self, at: usize, case: &LimitedTask<'a>, taken: Usage) {
        let Some(key) = case.task.full_key() else { return };
        match self.rooms.get_mut(&key) {
            Some(KeyRoom::New { takers, bytes }) => {
                takers.insert(at);
                *bytes += taken.bytes;
            }
            Some(KeyRoom::Stored { more, .. }) if taken.tasks == 0 => *more += taken.bytes,
            _ => {
                self.rooms.insert(key, KeyRoom::New { takers: BTreeSet::from([at]), bytes: taken.bytes });
            }
        }
    }

    /// Whether it is unknown if a stored task has this one's key.
    pub(super) fn is_unread(&self, task: &'a ValidTask) -> bool {
        task.full_key().is_some_and(|key| self.unread.contains(&key))
    }
}

impl Desk {
    /// Looks up keys where a limit leaves no room, each once. Gives back what admitted tasks have taken and do not need
    /// beside a stored one. Returns whether to rule on the refused cases again: they are open.
    pub(super) async fn look_up_keys<'a>(
        &self,
        cases: &mut [LimitedTask<'a>],
        rooms: &mut KeyRooms<'a>,
        admission: &mut Admission,
    ) -> bool {
        let keys = keys_to_look_up(cases);
        if keys.is_empty() {
            return false;
        }
        let LookedUp { found, unread } = self.look_up(&keys).await;
        rooms.unread.extend(unread);
        let grown = growth_by_admitted(cases, &found);
        for (key, rivals) in found {
            let more = match (rooms.rooms.get(&key), grown.get(&key).copied().flatten()) {
                (Some(KeyRoom::New { takers, bytes }), Some(grown)) => {
                    let spare = Usage { tasks: 1, bytes: bytes - grown };
                    let places: Vec<usize> = takers.iter().map(|at| cases[*at].place).collect();
                    // All tasks of a key have the same limits.
                    for bound in takers.first().into_iter().flat_map(|at| &cases[*at].bounds) {
                        admission.give_back(&places, &bound.meter, spare);
                    }
                    grown
                }
                // An admitted task is a new one beside the stored one.
                (Some(KeyRoom::New { .. }), None) => continue,
                _ => 0,
            };
            rooms.rooms.insert(key, KeyRoom::Stored { rivals, more });
        }
        for case in cases.iter_mut().filter(|case| is_beyond(case)) {
            case.verdict = LimitVerdict::Open;
        }
        true
    }
}

/// The bytes by which the stored task grows when `later` takes its place; 0: it answers for `later` as it is. `None`:
/// `later` becomes a task beside it.
fn growth(stored: &Rivals, later: &ValidTask) -> Option<i64> {
    let keyed = later.keyed.as_ref()?;
    let by_version = gives_version(later);
    let rival = if by_version { stored.versioned } else { stored.plain }?;
    let (state, bytes) = (rival.state, later.content.usage().bytes);
    let is_new = by_version
        && match keyed.version.cmp(&rival.version) {
            Ordering::Less => false,
            Ordering::Equal => state.is_final() && state != TaskState::Succeeded,
            Ordering::Greater => !state.may_be_changed(),
        };
    if is_new {
        return rival.unclaimed_bytes.map(|superseded| bytes - superseded);
    }
    let takes_its_place = match keyed.on_duplicate {
        OnDuplicate::Keep | OnDuplicate::Reject => false,
        OnDuplicate::Replace => state.may_be_changed(),
        OnDuplicate::Version => state.may_be_changed() && keyed.version >= rival.version,
    };
    Some(if takes_its_place { bytes - rival.bytes } else { 0 })
}

fn gives_version(task: &ValidTask) -> bool {
    task.keyed.as_ref().is_some_and(|keyed| keyed.on_duplicate == OnDuplicate::Version)
}

/// Whether the case is refused because a limit of unfinished tasks is reached, or may be.
fn is_beyond(case: &LimitedTask<'_>) -> bool {
    matches!(case.verdict, LimitVerdict::Refused(limit, _) if limit != Some(Limit::QueueSubmits))
}

/// The keys of refused tasks, in their order; then those of admitted ones that share a limit with these. They may have
/// taken room that they do not need. With each key, whether its task gives a version: a key may come with both.
fn keys_to_look_up<'a>(cases: &[LimitedTask<'a>]) -> Vec<(TaskKey<'a>, bool)> {
    let refused = || cases.iter().filter(|case| is_beyond(case));
    let full: BTreeSet<&QueueName> = refused().map(|case| &case.task.queue).collect();
    let shares_a_limit = |case: &LimitedTask<'a>| {
        let of_token = case.bounds.iter().any(|bound| bound.whose == LimitHolder::Token);
        full.contains(&case.task.queue) || (of_token && !full.is_empty())
    };
    let admitted = cases.iter().filter(|case| matches!(case.verdict, LimitVerdict::Admitted) && shares_a_limit(case));
    let mut seen = BTreeSet::new();
    let asked = |case: &LimitedTask<'a>| Some((case.task.full_key()?, gives_version(case.task)));
    refused().chain(admitted).filter_map(asked).filter(|asked| seen.insert(*asked)).collect()
}

/// By key, the bytes by which admitted tasks make the stored one larger. `None`: one of them is a task beside it.
fn growth_by_admitted<'a>(
    cases: &[LimitedTask<'a>],
    found: &BTreeMap<TaskKey<'a>, Rivals>,
) -> BTreeMap<TaskKey<'a>, Option<i64>> {
    let mut grown: BTreeMap<TaskKey<'a>, Option<i64>> = BTreeMap::new();
    for case in cases.iter().filter(|case| matches!(case.verdict, LimitVerdict::Admitted)) {
        let Some(key) = case.task.full_key() else { continue };
        let Some(stored) = found.get(&key) else { continue };
        let most = grown.entry(key).or_insert(Some(0));
        *most = most.zip(growth(stored, case.task)).map(|(most, growth)| most.max(growth));
    }
    grown
}

/// The bytes by which `room` grows when a later task with its key may take the place of the one that has it.
fn growth_beyond(room: i64, later: &ValidTask) -> i64 {
    match later.keyed.as_ref().map(|keyed| keyed.on_duplicate) {
        Some(OnDuplicate::Replace | OnDuplicate::Version) => later.content.usage().bytes - room,
        Some(OnDuplicate::Keep | OnDuplicate::Reject) | None => 0,
    }
}
