//! Refuses submissions beyond the limits of their queues and of the caller's token. Without limits it does nothing.

mod answered;
mod look_up;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::QueueName,
    limit::{Excess, Limit, LimitDecision, Measure, PendingLimits, Usage},
    queue::QueueBook,
    task::ValidTask,
    wire::Problem,
};
use futures::future::join_all;
use tokio::time::timeout;

use self::answered::KeyRooms;
use super::{
    Desk,
    meter::{Admission, Meter, MeteredSubject, Meters},
};

/// The longest wait of a submission for a count. After that the last count decides.
const COUNT_WITHIN: Duration = Duration::from_secs(2);

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

impl LimitBound {
    /// The limits that `more` has to keep. One of tasks, though exceeded, keeps no bytes out of a task that is there.
    const fn most_for(&self, more: Usage) -> PendingLimits {
        if more.tasks == 0 { PendingLimits { tasks: None, ..self.most } } else { self.most }
    }
}

enum LimitVerdict {
    Open,
    Admitted,
    /// `None`: whether the limit is reached, or whether a stored task answers for this one, is unknown.
    Refused(Option<Limit>, Problem),
}

/// A task with a limit.
struct LimitedTask<'a> {
    /// Its index in the request.
    place: usize,
    task: &'a ValidTask,
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
        let verdicts = self.verdicts(&tasks, &book, limited, &mut admission).await;
        for (place, verdict) in verdicts {
            if let LimitVerdict::Refused(limit, problem) = verdict {
                if let Some(limit) = limit {
                    self.parts().metrics.limited(limit).inc();
                }
                tasks[place] = Err(problem);
            }
        }
        (tasks, admission)
    }

    /// Rules on each task that has a limit. Returns the verdicts with the indices of their tasks.
    async fn verdicts(
        &self,
        tasks: &[Result<ValidTask, Problem>],
        book: &QueueBook,
        limited: AppliedLimits,
        admission: &mut Admission,
    ) -> Vec<(usize, LimitVerdict)> {
        let (mut cases, mut rooms) = (self.cases(tasks, book, limited, admission), KeyRooms::default());
        let mut ruled_at = Instant::now();
        let to_count = self.rule(&mut cases, &mut rooms, admission, ruled_at, false);
        if !to_count.is_empty() {
            self.counted(to_count).await;
            ruled_at = Instant::now();
            self.rule(&mut cases, &mut rooms, admission, ruled_at, true);
        }
        if self.look_up_keys(&mut cases, &mut rooms, admission).await {
            // Slow look-ups make no count too old by which a case was ruled on before them.
            self.rule(&mut cases, &mut rooms, admission, ruled_at, true);
        }
        cases.into_iter().map(|case| (case.place, case.verdict)).collect()
    }

    /// Collects the tasks with a limit, and refuses those beyond a rate at once. Messages on their way to
    /// another exchange have no limit.
    fn cases<'a>(
        &self,
        tasks: &'a [Result<ValidTask, Problem>],
        book: &QueueBook,
        limited: AppliedLimits,
        admission: &mut Admission,
    ) -> Vec<LimitedTask<'a>> {
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
                Some((bound, _)) => {
                    admission.add_submit(place, &bound.meter);
                    LimitVerdict::Open
                }
                None => LimitVerdict::Open,
            };
            let of_queue = of_queue.as_ref().map(|(bound, _)| bound).filter(|bound| !bound.most.is_none());
            let bounds: Vec<LimitBound> = of_queue.into_iter().chain(&of_token).cloned().collect();
            if !bounds.is_empty() || matches!(verdict, LimitVerdict::Refused(..)) {
                cases.push(LimitedTask { place, task, size: task.content.usage(), bounds, verdict });
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

    /// Rules on the open cases by the counts as they stand, with their age at `now`. Returns the limits that need a
    /// count before the other cases can be ruled on.
    fn rule<'a>(
        &self,
        cases: &mut [LimitedTask<'a>],
        rooms: &mut KeyRooms<'a>,
        admission: &mut Admission,
        now: Instant,
        last: bool,
    ) -> Vec<LimitBound> {
        let (mut first, mut meanwhile): (Vec<LimitBound>, Vec<LimitBound>) = (Vec::new(), Vec::new());
        for (at, case) in cases.iter_mut().enumerate() {
            if !matches!(case.verdict, LimitVerdict::Open) {
                continue;
            }
            let more = rooms.needed(at, case);
            // A task that needs no room passes also where a limit is exceeded.
            let bounds: &[LimitBound] = if more == Usage::default() { &[] } else { &case.bounds };
            let mut taken = Vec::with_capacity(bounds.len());
            for bound in bounds {
                match bound.meter.admit(bound.most_for(more), more, now, last) {
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
                        case.verdict = if rooms.is_unread(case.task) {
                            LimitVerdict::Refused(None, unread(limit))
                        } else {
                            LimitVerdict::Refused(Some(limit), self.full(limit, excess, case.size))
                        };
                        break;
                    }
                    LimitDecision::Unknown => {
                        case.verdict = LimitVerdict::Refused(None, uncounted(bound.whose));
                        break;
                    }
                }
            }
            if taken.len() == bounds.len() {
                taken.into_iter().for_each(|bound| admission.add(case.place, &bound.meter, more));
                rooms.took(at, case, more);
                case.verdict = LimitVerdict::Admitted;
            } else {
                taken.into_iter().for_each(|bound| bound.meter.withdraw(more));
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

/// The problem of a task beyond a limit for which a stored one may answer. A message or a row in SQL waits.
fn unread(limit: Limit) -> Problem {
    let detail = format!(
        "there is no room for another task (`{}`), and whether one with this key is stored is not known yet; the task \
         was not accepted, send it again",
        limit.text()
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
