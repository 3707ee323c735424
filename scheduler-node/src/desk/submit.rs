//! Accepts tasks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use common::{
    field::FieldError,
    ids::QueueName,
    queue::{Queue, QueuePolicy},
    task::{Dependency, NewTask, TaskState, ValidTask, dependency::check_colocated},
    time::Present,
    wire::{DependencyView, Limits, Problem, TaskReceipt, TaskRequest, TaskView, format},
};

use super::{Desk, limits::AppliedLimits, meter::Admission, refusal};
use crate::{
    clock,
    loops::submit::submitter::{Accepted, Stored, SubmitError},
    store::put::{Put, PutOutcome},
    traces::{Hop, Way},
};

/// The label of this source in the metrics.
const SOURCE: &str = "http";

/// The most attempts with a task whose queue gets another policy meanwhile; see also [`MEETINGS`]. Each knows a newer
/// policy than the one before, and as a rule all that were answered before it began. So a task is refused only if they
/// change again and again.
const TRIES: u32 = 3;

/// How often a task comes again that was handed back although its queue has no newer policy: it shared its statement
/// with tasks that were admitted by an older one. With the pauses, that is longer than most admissions take, so few of
/// those are still on their way.
const MEETINGS: u32 = 20;
const MEETING_PAUSE: Duration = Duration::from_millis(25);

/// The longest time since it was first handed back after which such a task comes again. Its client waits, and where
/// statements are slow, so many would take minutes.
const MEETINGS_WITHIN: Duration = Duration::from_secs(2);

/// Queues that are not in this node's book and that the first database does not show. Each may exist, with any policy.
pub(super) type Unread = BTreeSet<QueueName>;

/// The submitter's answer for a task, and the task's queue.
pub(super) type Answered = (QueueName, Result<Accepted, SubmitError>);

/// The submitter's answer for a task, or the reason why the task was not admitted.
pub(super) type Outcome = Result<Result<Accepted, SubmitError>, Problem>;

impl Desk {
    /// Answers once the task is durable. The answer comes from the values that were written, as far as they say all.
    pub(crate) async fn submit(&self, request: TaskRequest) -> Result<TaskView, Problem> {
        let task = request.validate(self.present(), &self.limits())?;
        self.require_queues_of(&task)?;
        self.store_one(task, AppliedLimits::All).await
    }

    pub(super) async fn store_one(&self, task: ValidTask, limited: AppliedLimits) -> Result<TaskView, Problem> {
        let revision = self.parts().books.load().revision();
        let (mut admitted, room) = self.admit_all(vec![Ok(task)], limited).await;
        let mut task = admitted.pop().expect("one task, one answer")?;
        let hop = self.parts().traces.submitting(&mut task);
        let shown = task.clone();
        let outcomes = self.send_admitted(vec![Ok(task)], room, SOURCE, revision, limited).await;
        let outcome = outcomes.into_iter().next().expect("one task, one answer");
        self.trace(hop, &shown.queue, Way::Http, &outcome);
        let put = match outcome?? {
            Accepted::Stored(stored) => return Ok(self.new_view(&stored, shown)),
            Accepted::Keyed(put) => refusal::put(put)?,
        };
        let stored = Stored { id: put.id, created_at: put.created_at, due_at: put.due_at };
        if put.outcome == PutOutcome::Created && put.state != TaskState::Waiting {
            return Ok(self.new_view(&stored, shown));
        }
        // The task existed already, or its view has to list the tasks for which it waits.
        match self.current_view(&put).await {
            // The submission is stored, so its sender must not send it again.
            Err(_) if put.is_written() => {
                let others = shown.depends_on.iter().filter(|_| put.state == TaskState::Waiting).cloned();
                let depends_on = others.map(|Dependency { queue, key }| DependencyView { queue, key, state: None });
                let (depends_on, duplicate) = (depends_on.collect(), put.outcome != PutOutcome::Created);
                Ok(TaskView { state: put.state, depends_on, duplicate, ..self.new_view(&stored, shown) })
            }
            read => read,
        }
    }

    /// The view of a new task, from the values that were written.
    fn new_view(&self, stored: &Stored, task: ValidTask) -> TaskView {
        let max_attempts =
            task.max_attempts.unwrap_or_else(|| self.parts().books.load().get(&task.queue).policy.max_attempts);
        let new = NewTask { id: stored.id, task: ValidTask { due_at: stored.due_at, ..task } };
        TaskView::of_new(&new, stored.created_at, max_attempts)
    }

    /// The current view of the task that was written or that answers for the submission. Callers see the data
    /// of a task that they submitted themselves.
    async fn current_view(&self, put: &Put) -> Result<TaskView, Problem> {
        let duplicate = put.outcome != PutOutcome::Created;
        let shows_data = self.shows_data || !duplicate;
        let view = Self { shows_data, ..self.clone() }.get(put.id).await?;
        Ok(TaskView { duplicate, ..view })
    }

    /// Returns one answer for each task, in their order. An invalid task does not affect the others.
    pub(crate) async fn submit_batch(
        &self,
        requests: Vec<Result<TaskRequest, Problem>>,
    ) -> Vec<Result<TaskReceipt, Problem>> {
        let (now, limits) = (self.present(), self.limits());
        let checked: Vec<_> = requests.into_iter().map(|request| self.checked(request?, now, &limits)).collect();
        let answers = self.store(checked, Way::Batch, SOURCE).await;
        let receipt = |answered: Result<Answered, Problem>| {
            let (queue, answer) = answered?;
            receipt(queue, answer?)
        };
        answers.into_iter().map(receipt).collect()
    }

    /// Stores those of `tasks` that their queues and limits admit. Returns one answer for each, in their order.
    pub(super) async fn store(
        &self,
        tasks: Vec<Result<ValidTask, Problem>>,
        way: Way,
        source: &'static str,
    ) -> Vec<Result<Answered, Problem>> {
        let revision = self.parts().books.load().revision();
        let (mut tasks, room) = self.admit_all(tasks, AppliedLimits::All).await;
        let mut sent: Vec<Option<(Option<Hop>, QueueName)>> = Vec::with_capacity(tasks.len());
        for task in &mut tasks {
            let task = task.as_mut().ok();
            sent.push(task.map(|task| (self.parts().traces.submitting(task), task.queue.clone())));
        }
        let outcomes = self.send_admitted(tasks, room, source, revision, AppliedLimits::All).await;
        let answered = |(sent, outcome): (Option<(Option<Hop>, QueueName)>, Outcome)| {
            let Some((hop, queue)) = sent else {
                return Err(outcome.expect_err("a task that was not admitted has its problem"));
            };
            self.trace(hop, &queue, way, &outcome);
            Ok((queue, outcome?))
        };
        sent.into_iter().zip(outcomes).map(answered).collect()
    }

    /// Sends the tasks that were admitted by the queues as of `revision`, or by newer ones, to the submitter. A task
    /// whose queue has other rules by now is handed back. It gives back what it has taken of the limits and comes in
    /// once more, as if it were new: by the queues as this node reads them then, and by their limits. So a queue that
    /// was deleted meanwhile is created again. Returns one answer for each task, in their order.
    async fn send_admitted(
        &self,
        tasks: Vec<Result<ValidTask, Problem>>,
        mut room: Admission,
        source: &'static str,
        mut revision: i64,
        limited: AppliedLimits,
    ) -> Vec<Outcome> {
        let mut known = self.queues_as_known(&tasks);
        let mut outcomes = self.send(tasks, source, revision).await;
        let (mut tries_left, mut meetings_left, mut first_at) = (TRIES - 1, MEETINGS, None);
        loop {
            let (places, tasks) = handed_back(&outcomes);
            room.give_up(&places);
            // The others have their answers. A count from now on finds the stored ones, in place of what they took.
            drop(room);
            let since = *first_at.get_or_insert_with(clock::instant);
            if places.is_empty() || !self.read_as_of(revision + 1).await {
                break;
            }
            // Each new queue raises the revision of the queues, so that does not tell.
            if self.has_newer_policy(&known, &tasks) {
                if tries_left == 0 {
                    break;
                }
                tries_left -= 1;
            } else {
                if meetings_left == 0 || clock::instant() > since + MEETINGS_WITHIN {
                    break;
                }
                meetings_left -= 1;
                tokio::time::sleep(MEETING_PAUSE).await;
            }
            revision = self.parts().books.load().revision();
            let (tasks, again) = self.admit_all(tasks.into_iter().map(Ok).collect(), limited).await;
            room = again.at(&places);
            known = self.queues_as_known(&tasks);
            for (place, outcome) in places.into_iter().zip(self.send(tasks, source, revision).await) {
                outcomes[place] = outcome;
            }
        }
        outcomes
    }

    /// The queues of these tasks that this node knows.
    fn queues_as_known(&self, tasks: &[Result<ValidTask, Problem>]) -> BTreeMap<QueueName, Arc<Queue>> {
        let book = self.parts().books.load();
        let queues: BTreeSet<&QueueName> = tasks.iter().flatten().map(|task| &task.queue).collect();
        queues
            .into_iter()
            .filter_map(|queue| book.find(queue))
            .map(|queue| (queue.name.clone(), Arc::clone(queue)))
            .collect()
    }

    /// Whether this node knows another policy by now for a queue of these tasks, or that it exists or was deleted.
    fn has_newer_policy(&self, known: &BTreeMap<QueueName, Arc<Queue>>, tasks: &[ValidTask]) -> bool {
        let book = self.parts().books.load();
        tasks.iter().any(|task| policy_of(known.get(&task.queue)) != policy_of(book.find(&task.queue)))
    }

    /// Sends the tasks that were admitted to the submitter. Returns one answer for each task, in their order.
    async fn send(&self, tasks: Vec<Result<ValidTask, Problem>>, source: &'static str, revision: i64) -> Vec<Outcome> {
        let mut admitted = Vec::with_capacity(tasks.len());
        let sent: Vec<Result<(), Problem>> =
            tasks.into_iter().map(|task| task.map(|task| admitted.push(task))).collect();
        let mut answers = self.parts().submitter.submit(admitted, source, revision).await.into_iter();
        sent.into_iter().map(|sent| sent.map(|()| answers.next().expect("every task has its answer"))).collect()
    }

    fn checked(&self, request: TaskRequest, now: Present, limits: &Limits) -> Result<ValidTask, Problem> {
        let task = request.validate(now, limits)?;
        self.require_queues_of(&task).map(|()| task)
    }

    /// Refuses a task that names a queue outside the caller's scope.
    fn require_queues_of(&self, task: &ValidTask) -> Result<(), Problem> {
        queues_of(task).try_for_each(|queue| self.require_queue(queue))
    }

    /// Returns the tasks that may be stored. Creates, on their first use, the queues of these tasks only:
    /// neither the queue of a refused task nor one that a task merely depends on. Keep the [`Admission`] until
    /// the tasks are answered.
    pub(super) async fn admit_all(
        &self,
        tasks: Vec<Result<ValidTask, Problem>>,
        limited: AppliedLimits,
    ) -> (Vec<Result<ValidTask, Problem>>, Admission) {
        // A message on its way to another exchange needs no queue of its own.
        let needs_queue = |task: &&ValidTask| task.envelope.is_none();
        let queues: BTreeSet<&QueueName> = tasks.iter().flatten().filter(needs_queue).flat_map(queues_of).collect();
        let unread = self.read_unknown(queues).await;
        let admit = |task: ValidTask| match task.envelope {
            None => self.admit(&task, &unread).map(|()| task),
            Some(_) => Ok(task),
        };
        let tasks: Vec<_> = tasks.into_iter().map(|task| task.and_then(admit)).collect();
        let (mut tasks, admission) = self.within_limits(tasks, limited).await;
        let queues: BTreeSet<&QueueName> = tasks.iter().flatten().filter(needs_queue).map(|task| &task.queue).collect();
        // Where the database cannot say, tasks are accepted all the same: their queues have the default policy, and a
        // later submission creates them.
        let refused = self.create_unknown(queues, &unread).await.unwrap_or_default();
        if !refused.is_empty() {
            for task in &mut tasks {
                if let Ok(valid) = task
                    && valid.envelope.is_none()
                    && refused.contains(&valid.queue)
                {
                    *task = Err(self.no_queue_more(&valid.queue));
                }
            }
        }
        (tasks, admission)
    }

    /// Creates the queues that do not exist, where submissions may create queues, except those that could not be read
    /// a moment ago. Returns the queues for which there is no room. `None`: the database cannot say.
    pub(super) async fn create_unknown(
        &self,
        queues: impl IntoIterator<Item = &QueueName>,
        unread: &Unread,
    ) -> Option<BTreeSet<QueueName>> {
        let book = self.parts().books.load_full();
        let is_missing = |queue: &&QueueName| book.find(queue).is_none() && !unread.contains(*queue);
        let missing: Vec<QueueName> = queues.into_iter().filter(is_missing).cloned().collect();
        if missing.is_empty() || !self.parts().auto_create {
            return Some(BTreeSet::new());
        }
        if !self.create_missing(missing.clone()).await {
            return None;
        }
        let book = self.parts().books.load_full();
        Some(missing.into_iter().filter(|queue| book.find(queue).is_none()).collect())
    }

    /// Refuses a task that its queue cannot take, and one that depends on tasks whose end it cannot learn.
    fn admit(&self, task: &ValidTask, unread: &Unread) -> Result<(), Problem> {
        let book = self.parts().books.load();
        let placement = |queue: &QueueName| book.get(queue).policy.placement;
        let colocated = check_colocated(&task.depends_on, &task.queue, task.partition_key.as_deref(), placement);
        // The database checks the placement of the task's own queue again when it stores the task, and no other.
        let others = task.depends_on.iter().map(|other| &other.queue).filter(|other| **other != task.queue);
        let mut in_doubt = others.chain(colocated.is_err().then_some(&task.queue));
        if let Some(queue) = in_doubt.find(|queue| unread.contains(*queue)) {
            return Err(refusal::unread(queue));
        }
        colocated?;
        self.admit_payload(&task.queue, &task.content.payload, unread)
    }

    /// Refuses a queue that does not exist where only requests create queues or where no new one may have its name,
    /// and a payload that cannot have its queue's format.
    pub(super) fn admit_payload(&self, queue: &QueueName, payload: &[u8], unread: &Unread) -> Result<(), Problem> {
        let book = self.parts().books.load();
        if let Some(queue) = book.find(queue) {
            return Ok(format::check(queue.policy.format, payload)?);
        }
        let named = FieldError::path_part("queue", queue.as_str());
        if self.parts().auto_create && named.is_ok() {
            return Ok(());
        }
        if unread.contains(queue) {
            return Err(refusal::unread(queue));
        }
        named?;
        let detail = format!("there is no queue `{queue}`, and this cluster does not create queues on submission");
        Err(Problem::invalid_field("queue", detail))
    }

    /// Reads those of `queues` that are not in this node's book, if they exist. Returns them if they cannot be read.
    pub(super) async fn read_unknown(&self, queues: impl IntoIterator<Item = &QueueName>) -> Unread {
        let book = self.parts().books.load_full();
        let missing: Vec<QueueName> = queues.into_iter().filter(|queue| book.find(queue).is_none()).cloned().collect();
        if missing.is_empty() {
            return Unread::new();
        }
        if self.read_missing(&missing).await { Unread::new() } else { missing.into_iter().collect() }
    }
}

/// The tasks that were handed back because their queues have other rules by now, with their positions.
fn handed_back(outcomes: &[Outcome]) -> (Vec<usize>, Vec<ValidTask>) {
    let handed_back = |(place, outcome): (usize, &Outcome)| match outcome {
        Ok(Err(SubmitError::RulesChanged(task))) => Some((place, task.task.clone())),
        _ => None,
    };
    outcomes.iter().enumerate().filter_map(handed_back).unzip()
}

fn policy_of(queue: Option<&Arc<Queue>>) -> Option<&QueuePolicy> {
    queue.map(|queue| &queue.policy)
}

/// The queues that a task names: its own and those of its dependencies.
pub(super) fn queues_of(task: &ValidTask) -> impl Iterator<Item = &QueueName> {
    std::iter::once(&task.queue).chain(task.depends_on.iter().map(|other| &other.queue))
}

fn receipt(queue: QueueName, answer: Accepted) -> Result<TaskReceipt, Problem> {
    let (id, state, due_at, duplicate) = match answer {
        Accepted::Stored(stored) => (stored.id, TaskState::Scheduled, stored.due_at, false),
        Accepted::Keyed(put) => {
            let put = refusal::put(put)?;
            (put.id, put.state, put.due_at, put.outcome != PutOutcome::Created)
        }
    };
    Ok(TaskReceipt { id, queue, state, due_at, shard: id.shard(), duplicate })
}
