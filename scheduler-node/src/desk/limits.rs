//! Refuses submissions beyond the limits of their queues and of the caller's token. Without limits it does nothing.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::QueueName,
    limit::{Excess, Limit, LimitDecision, Measure, PendingLimits, Usage},
    queue::QueueBook,
    task::{Content, OnDuplicate, TaskState, ValidTask},
    wire::Problem,
};
use futures::future::join_all;
use tokio::time::timeout;

use super::{
    Desk,
    meter::{Admission, Meter, MeteredSubject, Meters},
};

/// The longest wait of a submission for a count. After that the last count decides.
const COUNT_WITHIN: Duration = Duration::from_secs(2);

/// The refused tasks of one request whose keys are looked up, because another task may answer for them; and the
/// number looked up at a time.
const KEYS_LOOKED_UP: usize = 100;
const LOOKED_UP_AT_ONCE: usize = 4;

/// `Retry-After` in seconds: tasks have to finish, a second has to pass until the rate allows another task or the next
/// count begins, or an operator has to make room.
const PENDING_AGAIN_AFTER_S: u32 = 5;
const RATE_AGAIN_AFTER_S: u32 = 1;
const COUNT_AGAIN_AFTER_S: u32 = 1;
const MADE_AGAIN_AFTER_S: u32 = 60;

/// The limits that apply to a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AppliedLimits {
    No,
    /// Rates do not refuse an SQL submission: its transaction has committed, and the task can wait.
    Pending,
    All,
}

/// The holder of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitHolder {
    Queue,
    Token,
}

/// One limit that a task has to keep.
#[derive(Clone)]
struct LimitBound {
    whose: LimitHolder,
    meter: Arc<Meter>,
    most: PendingLimits,
}

enum LimitVerdict {
    Open,
    Admitted,
    /// `None`: whether the limit is reached is unknown.
    Refused(Option<Limit>, Problem),
}

/// A task with a limit.
struct LimitedTask {
    /// Its index in the request.
    place: usize,
    size: Usage,
    bounds: Vec<LimitBound>,
    verdict: LimitVerdict,
}

impl Desk {
    pub(super) fn meters(&self) -> &Meters {
        &self.inner.meters
    }

    /// Refuses those of `tasks` for which there is no room. The caller keeps the [`Admission`], which holds the
    /// room of the others, until they are answered.
    pub(super) async fn within_limits(
        &self,
        mut tasks: Vec<Result<ValidTask, Problem>>,
        limited: AppliedLimits,
    ) -> (Vec<Result<ValidTask, Problem>>, Admission) {
        let mut admission = Admission::default();
        let book = self.parts().books.load_full();
        if limited == AppliedLimits::No || (book.limited().is_empty() && self.limits.pending().is_none()) {
            return (tasks, admission);
        }
        let mut cases = self.cases(&tasks, &book, limited);
        let to_count = self.rule(&mut cases, &mut admission, false);
        if !to_count.is_empty() {
            self.counted(to_count).await;
            self.rule(&mut cases, &mut admission, true);
        }
        self.let_answered_pass(&tasks, &mut cases, &mut admission).await;
        for LimitedTask { place, verdict, .. } in cases {
            if let LimitVerdict::Refused(limit, problem) = verdict {
                if let Some(limit) = limit {
                    self.parts().metrics.limited(limit).inc();
                }
                tasks[place] = Err(problem);
            }
        }
        (tasks, admission)
    }

    /// Collects the tasks with a limit, and refuses those beyond a rate at once. Messages on their way to
    /// another exchange have no limit.
    fn cases(
        &self,
        tasks: &[Result<ValidTask, Problem>],
        book: &QueueBook,
        limited: AppliedLimits,
    ) -> Vec<LimitedTask> {
        let now = Instant::now();
        let of_token = self.token_bound(now);
        let mut queues: BTreeMap<&QueueName, Option<(LimitBound, Option<u32>)>> = BTreeMap::new();
        let mut cases = Vec::new();
        for (place, task) in tasks.iter().enumerate() {
            let Some(task) = task.as_ref().ok().filter(|task| task.envelope.is_none()) else { continue };
            let of_queue = queues.entry(&task.queue).or_insert_with(|| self.queue_bound(&task.queue, book, now));
            let rate = of_queue
                .as_ref()
                .filter(|_| limited == AppliedLimits::All)
                .and_then(|(bound, rate)| Some((bound, (*rate)?)));
            let verdict = match rate {
                Some((bound, most)) if !bound.meter.may_submit(most, now) => {
                    LimitVerdict::Refused(Some(Limit::QueueSubmits), too_fast(&task.queue, most))
                }
                _ => LimitVerdict::Open,
            };
            let of_queue = of_queue.as_ref().map(|(bound, _)| bound).filter(|bound| !bound.most.is_none());
            let bounds: Vec<LimitBound> = of_queue.into_iter().chain(&of_token).cloned().collect();
            if !bounds.is_empty() || matches!(verdict, LimitVerdict::Refused(..)) {
                cases.push(LimitedTask { place, size: task.content.usage(), bounds, verdict });
            }
        }
        cases
    }

    fn token_bound(&self, now: Instant) -> Option<LimitBound> {
        let most = self.limits.pending();
        let meter = || self.meters().of(MeteredSubject::Scope(self.scope.clone()), now);
        (!most.is_none()).then(|| LimitBound { whose: LimitHolder::Token, meter: meter(), most })
    }

    fn queue_bound(&self, name: &QueueName, book: &QueueBook, now: Instant) -> Option<(LimitBound, Option<u32>)> {
        let policy = &book.limited().get(name).and_then(|name| book.find(name))?.policy;
        let meter = self.meters().of(MeteredSubject::Queue(name.clone()), now);
        Some((LimitBound { whose: LimitHolder::Queue, meter, most: policy.pending() }, policy.max_submits_per_second))
    }

    /// Rules on the open cases. Returns the limits that need a count before the other cases can be ruled on.
    fn rule(&self, cases: &mut [LimitedTask], admission: &mut Admission, last: bool) -> Vec<LimitBound> {
        let now = Instant::now();
        let (mut first, mut meanwhile): (Vec<LimitBound>, Vec<LimitBound>) = (Vec::new(), Vec::new());
        for case in cases.iter_mut().filter(|case| matches!(case.verdict, LimitVerdict::Open)) {
            let mut taken = Vec::with_capacity(case.bounds.len());
            for bound in &case.bounds {
                match bound.meter.admit(bound.most, case.size, now, last) {
                    LimitDecision::Fits => taken.push(bound),
                    LimitDecision::FitsButCount => {
                        taken.push(bound);
                        note(&mut meanwhile, bound);
                    }
                    LimitDecision::CountFirst => {
                        note(&mut first, bound);
                        break;
                    }
                    LimitDecision::Exceeds(excess) => {
                        let limit = limit_of(bound.whose, excess.by);
                        case.verdict = LimitVerdict::Refused(Some(limit), self.full(limit, excess, case.size));
                        break;
                    }
                    LimitDecision::Unknown => {
                        case.verdict = LimitVerdict::Refused(None, uncounted(bound.whose));
                        break;
                    }
                }
            }
            if taken.len() == case.bounds.len() {
                taken.into_iter().for_each(|bound| admission.add(&bound.meter, case.size));
                case.verdict = LimitVerdict::Admitted;
            } else {
                taken.into_iter().for_each(|bound| bound.meter.withdraw(case.size));
            }
        }
        for bound in meanwhile {
            drop(bound.meter.count(self, bound.most));
        }
        first
    }

    async fn counted(&self, bounds: Vec<LimitBound>) {
        let mut counts: Vec<_> = bounds.into_iter().map(|bound| bound.meter.count(self, bound.most)).collect();
        let all = join_all(counts.iter_mut().map(|count| count.changed()));
        let _ = timeout(COUNT_WITHIN, all).await;
    }

    /// Lets a task pass whose key exists already, and the other task answers for it. One that takes the other's place
    /// adds the bytes by which it is larger, so it needs room for these. A bounded number of keys is looked up. Those
    /// of the request itself are known: an admitted task that comes before it is not written yet, and has its room.
    async fn let_answered_pass(
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

    fn full(&self, limit: Limit, Excess { by, most, used }: Excess, size: Usage) -> Problem {
        let whose = match limit {
            Limit::TokenPending | Limit::TokenPendingBytes => format!("the queues of this token ({}) have", self.scope),
            _ => "the queue has".to_owned(),
        };
        let name = limit.text();
        let detail = match by {
            Measure::Tasks => format!(
                "{whose} {used} unfinished tasks, and the limit is {most} (`{name}`); send the task again when some \
                 are finished"
            ),
            Measure::Bytes => format!(
                "{whose} {used} bytes in unfinished tasks, and the limit is {most} (`{name}`); this task has {}: send \
                 it again when some are finished",
                size.bytes
            ),
        };
        Problem::limited(detail).of_limit(limit, most, Some(used)).retry_after(PENDING_AGAIN_AFTER_S)
    }

    /// The problem for one queue or schedule too many.
    pub(super) fn too_many_made(&self, limit: Limit, most: i64, used: i64) -> Problem {
        self.parts().metrics.limited(limit).inc();
        let (whose, what) = match limit {
            Limit::QueueSchedules => ("the queue has".to_owned(), "schedules"),
            Limit::TokenSchedules => (format!("the queues of this token ({}) have", self.scope), "schedules"),
            _ => (format!("for this token ({}) there are", self.scope), "queues"),
        };
        let detail = format!("{whose} {used} {what}, and the limit is {most} (`{}`); delete some first", limit.text());
        Problem::limited(detail).of_limit(limit, most, Some(used)).retry_after(MADE_AGAIN_AFTER_S)
    }

    /// The token's number of queues and its limit, where it has one.
    pub(super) fn queues_of_token(&self) -> Option<(i64, i64)> {
        let most = self.limits.queues?;
        let book = self.parts().books.load_full();
        let used = book.iter().filter(|queue| self.scope.has(&queue.name)).count();
        Some((i64::try_from(used).unwrap_or(i64::MAX), most))
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

fn note(bounds: &mut Vec<LimitBound>, bound: &LimitBound) {
    if bounds.iter().all(|noted| !Arc::ptr_eq(&noted.meter, &bound.meter)) {
        bounds.push(bound.clone());
    }
}

const fn limit_of(whose: LimitHolder, by: Measure) -> Limit {
    match (whose, by) {
        (LimitHolder::Queue, Measure::Tasks) => Limit::QueuePending,
        (LimitHolder::Queue, Measure::Bytes) => Limit::QueuePendingBytes,
        (LimitHolder::Token, Measure::Tasks) => Limit::TokenPending,
        (LimitHolder::Token, Measure::Bytes) => Limit::TokenPendingBytes,
    }
}

/// The problem of the moment that a limit may be reached. A message or a row in SQL waits.
fn uncounted(whose: LimitHolder) -> Problem {
    let of = match whose {
        LimitHolder::Queue => "of the queue",
        LimitHolder::Token => "in the queues of this token",
    };
    let detail = format!(
        "the unfinished tasks {of} cannot be counted yet, and by the last count they may reach the limit; the task was \
         not accepted, send it again"
    );
    Problem::unavailable(detail).retry_after(COUNT_AGAIN_AFTER_S)
}

fn too_fast(queue: &QueueName, most: u32) -> Problem {
    let limit = Limit::QueueSubmits;
    let detail = format!(
        "queue `{queue}` accepts {most} submissions a second on each node (`{}`); send the task again later",
        limit.text()
    );
    Problem::limited(detail).of_limit(limit, most.into(), None).retry_after(RATE_AGAIN_AFTER_S)
}
