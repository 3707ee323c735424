//! Tasks beyond a limit for which another task with their key answers.

use std::{cmp::Ordering, collections::BTreeMap, time::Instant};

use common::{
    ids::QueueName,
    limit::{Limit, LimitDecision, PendingLimits, Usage},
    task::{Content, OnDuplicate, TaskState, ValidTask},
    wire::Problem,
};
use futures::future::join_all;

use super::{LimitBound, LimitVerdict, LimitedTask};
use crate::desk::{Desk, meter::Admission};

/// The refused tasks of one request whose keys are looked up, because another task may answer for them; and the
/// number looked up at a time.
const KEYS_LOOKED_UP: usize = 100;
const LOOKED_UP_AT_ONCE: usize = 4;

impl Desk {
    /// Lets a task pass whose key exists already, and the other task answers for it. One that takes the other's place
    /// adds the bytes by which it is larger, so it needs room for these. A bounded number of keys is looked up. Those
    /// of the request itself are known: an admitted task that comes before it is not written yet, and has its room.
    pub(super) async fn let_answered_pass(
        &self,
        tasks: &[Result<ValidTask, Problem>],
        cases: &mut [LimitedTask],
        admission: &mut Admission,
    ) {
        let (mut answered, unknown) = refused_with_key(tasks, cases);
        // An admitted task has its room already. Of a stored one, the first task that it answers for takes the room.
        let mut grown: BTreeMap<usize, i64> = answered.iter().map(|one| (one.room_of, 0)).collect();
        for some in unknown.chunks(LOOKED_UP_AT_ONCE) {
            let found = join_all(some.iter().map(|one| self.growth_of_another(one.task))).await;
            let found = some
                .iter()
                .zip(found)
                .filter_map(|(one, found)| Some(Answered { at: one.at, growth: found?, room_of: one.first }));
            answered.extend(found);
        }
        for Answered { at, growth, room_of } in answered {
            let case = &mut cases[at];
            let before = grown.get(&room_of).copied();
            let growth = growth - before.unwrap_or(0);
            if before.is_some() && growth <= 0 {
                case.verdict = LimitVerdict::Admitted;
                continue;
            }
            let taken = if growth > 0 { Usage { tasks: 0, bytes: growth } } else { case.size };
            if growth > 0 && !take_bytes(&case.bounds, taken) {
                continue;
            }
            for bound in &case.bounds {
                if growth <= 0 {
                    bound.meter.force(taken);
                }
                admission.add(&bound.meter, taken);
            }
            case.verdict = LimitVerdict::Admitted;
            grown.insert(room_of, before.unwrap_or(0) + growth.max(0));
        }
    }

    /// The bytes by which a stored task grows when `task` takes its place; 0: the other answers for it as it is.
    /// `None`: no other does, as far as that can be read.
    async fn growth_of_another(&self, task: &ValidTask) -> Option<i64> {
        let keyed = task.keyed.as_ref()?;
        let there = self.read_rival(&task.queue, task.partition_key.as_deref(), &keyed.key).await;
        let there = there.ok().flatten()?;
        let adds_one = match keyed.version.cmp(&there.version) {
            _ if keyed.on_duplicate != OnDuplicate::Version => false,
            Ordering::Less => false,
            Ordering::Equal => there.state == TaskState::Dead,
            Ordering::Greater => !there.state.may_be_changed(),
        };
        if adds_one {
            return None;
        }
        if let Some(finished_at) = there.finished_at {
            let window_ms = self.parts().books.load().get(&task.queue).policy.dedup_window_ms;
            let holds_its_key = matches!(there.state, TaskState::Succeeded | TaskState::Dead);
            return (holds_its_key && finished_at.shifted(window_ms) > self.now()).then_some(0);
        }
        let takes_its_place = match keyed.on_duplicate {
            OnDuplicate::Keep | OnDuplicate::Reject => false,
            OnDuplicate::Replace => there.state.may_be_changed(),
            OnDuplicate::Version => there.state.may_be_changed() && keyed.version >= there.version,
        };
        let (content_type, headers) = (there.content_type, there.headers);
        let before = Content { payload: there.payload.unwrap_or_default(), content_type, headers }.usage();
        Some(if takes_its_place { task.content.usage().bytes - before.bytes } else { 0 })
    }
}

/// A refused task for which another one with its key answers.
struct Answered {
    /// Its index in the cases.
    at: usize,
    /// The bytes by which the room of the other one grows, if this one may take its place.
    growth: i64,
    /// The index of the first case with this key. All later ones share its room.
    room_of: usize,
}

/// A refused task whose key is to be looked up.
struct LookedUp<'a> {
    /// Its index in the cases.
    at: usize,
    /// The index of the first case with this key that is looked up.
    first: usize,
    task: &'a ValidTask,
}

/// The refused tasks with a key: first those whose key an admitted task before them has; then others, to be looked up.
fn refused_with_key<'a>(
    tasks: &'a [Result<ValidTask, Problem>],
    cases: &[LimitedTask],
) -> (Vec<Answered>, Vec<LookedUp<'a>>) {
    // The first admitted task of each key, and the room of the largest.
    let mut admitted: BTreeMap<(&QueueName, Option<&str>, &str), (usize, i64)> = BTreeMap::new();
    let mut looked_up: BTreeMap<(&QueueName, Option<&str>, &str), usize> = BTreeMap::new();
    let (mut answered, mut unknown) = (Vec::new(), Vec::new());
    for (at, LimitedTask { place, verdict, .. }) in cases.iter().enumerate() {
        let Ok(task) = &tasks[*place] else { continue };
        let Some(keyed) = &task.keyed else { continue };
        let key = (&task.queue, task.partition_key.as_deref(), keyed.key.as_str());
        match verdict {
            LimitVerdict::Admitted => {
                let (_, bytes) = admitted.entry(key).or_insert((at, 0));
                *bytes = task.content.usage().bytes.max(*bytes);
            }
            LimitVerdict::Open | LimitVerdict::Refused(Some(Limit::QueueSubmits), _) => {}
            LimitVerdict::Refused(..) => match admitted.get(&key) {
                Some((of, bytes)) => {
                    answered.push(Answered { at, growth: growth_beyond(*bytes, task), room_of: *of });
                }
                None if unknown.len() < KEYS_LOOKED_UP => {
                    let first = *looked_up.entry(key).or_insert(at);
                    unknown.push(LookedUp { at, first, task });
                }
                None => {}
            },
        }
    }
    (answered, unknown)
}

/// The bytes by which `room` grows when a later task with its key may take the place of the one that has it.
fn growth_beyond(room: i64, later: &ValidTask) -> i64 {
    match later.keyed.as_ref().map(|keyed| keyed.on_duplicate) {
        Some(OnDuplicate::Replace | OnDuplicate::Version) => later.content.usage().bytes - room,
        Some(OnDuplicate::Keep | OnDuplicate::Reject) | None => 0,
    }
}

/// Takes room for the bytes of `more` within each bound, or none at all.
fn take_bytes(bounds: &[LimitBound], more: Usage) -> bool {
    let now = Instant::now();
    let fits = |bound: &LimitBound| {
        let most = PendingLimits { tasks: None, ..bound.most };
        matches!(bound.meter.admit(most, more, now, true), LimitDecision::Fits | LimitDecision::FitsButCount)
    };
    let taken = bounds.iter().take_while(|bound| fits(bound)).count();
    if taken < bounds.len() {
        bounds[..taken].iter().for_each(|bound| bound.meter.withdraw(more));
    }
    taken == bounds.len()
}
