//! One action on all tasks that match a filter, over all databases.
//!
//! No work goes on behind a request. Each request works batch by batch up to a bound, and answers with the
//! cursor at which the next request continues. A client that hangs up stops the work after the current batch.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{QueueName, TaskId},
    task::{
        TaskState,
        bulk::{BulkAction, SkipReason, Target},
        state::CancelOutcome,
    },
    time::UnixMicros,
    wire::{
        BulkAnswer, BulkCursor, BulkRequest, ChangeRequest, Problem, ValidBulk,
        bulk::{Action, Place, Position, STEP},
    },
};

use super::{Desk, run_to_end};
use crate::store::{
    Database,
    bulk::{BulkChange, FoundTask, Walk},
    change::Keep,
};

/// The longest time until an answer, give or take a batch. Clients wait for 30 s.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What one batch has done, the position of the next, and the problem that ended it early.
type Step = (BatchCounts, Option<Position>, Option<Problem>);

/// The outcome of one batch.
#[derive(Debug, Default)]
struct BatchCounts {
    matched: u64,
    done: u64,
    no_further_attempts: u64,
    refused: BTreeMap<SkipReason, u64>,
}

impl BatchCounts {
    fn refuse(&mut self, why: SkipReason) {
        *self.refused.entry(why).or_default() += 1;
    }

    fn add(&mut self, other: Self) {
        self.matched += other.matched;
        self.done += other.done;
        self.no_further_attempts += other.no_further_attempts;
        for (why, count) in other.refused {
            *self.refused.entry(why).or_default() += count;
        }
    }
}

impl Desk {
    /// Applies the action to as many tasks as one request may, from its cursor on.
    pub(crate) async fn bulk(&self, request: BulkRequest) -> Result<BulkAnswer, Problem> {
        let bulk = request.validate(self.now())?;
        self.require_queue_or_all(bulk.filter.queue.as_ref())?;
        self.require_error_texts(bulk.filter.error.as_ref())?;
        let started = Instant::now();
        let (mut counts, mut interrupted) = (BatchCounts::default(), None);
        let mut position = match &bulk.cursor {
            Some(cursor) => Some(cursor.0.clone()),
            None => Some(self.first(bulk.action, bulk.began_at)),
        };
        while let Some(at) = &position {
            let room = bulk.limit.saturating_sub(usize::try_from(counts.matched).unwrap_or(usize::MAX));
            if room == 0 || started.elapsed() > ANSWER_WITHIN {
                break;
            }
            match self.step(&bulk, at, room.min(STEP)).await {
                Ok((batch, next, problem)) => {
                    counts.add(batch);
                    position = next;
                    match problem {
                        Some(problem) if counts.matched == 0 => return Err(problem),
                        Some(_) => {
                            interrupted = problem;
                            break;
                        }
                        None => {}
                    }
                }
                // The answer reports the work done so far together with the problem.
                Err(problem) if counts.matched > 0 => {
                    interrupted = Some(problem);
                    break;
                }
                Err(problem) => return Err(problem),
            }
        }
        let BatchCounts { matched, done, no_further_attempts, refused } = counts;
        // After a conflict no cursor continues: the map of the shards will not be that of the request's begin again.
        let is_over = interrupted.as_ref().is_some_and(Problem::is_conflict);
        tracing::info!(action = %bulk.action, dry_run = bulk.dry_run, matched, done, ended = position.is_none(), "bulk request");
        Ok(BulkAnswer {
            action: bulk.action,
            dry_run: bulk.dry_run,
            matched,
            done,
            no_further_attempts,
            refused,
            next_cursor: position.filter(|_| !is_over).map(BulkCursor),
            interrupted,
        })
    }

    /// Handles one batch.
    async fn step(&self, bulk: &ValidBulk, at: &Position, most: usize) -> Result<Step, Problem> {
        if at.map != self.map() && !bulk.dry_run && !may_repeat(bulk.act) {
            return Err(Problem::conflict(
                "a shard has moved to another database since this request began, so some tasks may be left or be \
                 shifted twice; check their due times",
            ));
        }
        let database = self.database_at(at)?;
        let step = database.bulk_look(Walk::of(bulk.act, at.began_at), &bulk.filter, at.place.as_ref(), most).await?;
        let mut counts = BatchCounts { matched: step.found.len() as u64, ..BatchCounts::default() };
        let queue = step.queue.as_ref();
        // The one shard on which a retry may bring back tasks of this queue. The statements check it too, and for tasks
        // with keys of other queues, but several times for each task that they leave.
        let only =
            queue.filter(|_| bulk.act == BulkAction::Retry).and_then(|queue| self.bound_shard(queue, None, None));
        let now = self.now();
        let mut fit = Vec::with_capacity(step.found.len());
        for found in step.found {
            match bulk.act.check(&found.seen, now) {
                Ok(()) if only.is_some_and(|only| only != found.seen.id.shard()) => {
                    counts.refuse(SkipReason::PlacedAnew);
                }
                Ok(()) => fit.push(found),
                Err(why) => counts.refuse(why),
            }
        }
        if bulk.dry_run {
            counts.done = fit.len() as u64;
        } else if !fit.is_empty() {
            let (desk, database, act, queue) = (self.clone(), Arc::clone(&database), bulk.act, queue.cloned());
            let (acted, problem) =
                run_to_end(async move { desk.act(&database, act, queue.as_ref(), fit).await }).await?;
            counts.add(acted);
            if problem.is_some() && may_repeat(act) {
                // The batch comes again. What is done matches no more, or is done again to no effect.
                counts = BatchCounts { matched: counts.done, refused: BTreeMap::new(), ..counts };
                return Ok((counts, Some(at.clone()), problem));
            }
            return Ok((counts, self.after(bulk, at, step.next), problem));
        }
        Ok((counts, self.after(bulk, at, step.next), None))
    }

    /// The position of the next batch. If the map of the shards has changed since the walk began, tasks may have gone
    /// from a database still to come into one before it. So the walk begins again; what is done matches no more.
    fn after(&self, bulk: &ValidBulk, at: &Position, place: Option<Place>) -> Option<Position> {
        if place.is_some() {
            return Some(Position { place, ..at.clone() });
        }
        let map = self.map();
        let mut walked = at.walked.clone();
        walked.push(at.name.clone());
        let names = self.parts().store.databases().iter().map(|database| database.name());
        if let Some((database, name)) = names.enumerate().find(|(_, name)| !walked.contains(name)) {
            return Some(Position { database, name: name.clone(), walked, place: None, ..at.clone() });
        }
        let begins_again = map != at.map && !bulk.dry_run;
        // With the map of the begin, the next step refuses to go on with what must not be repeated.
        let map = if may_repeat(bulk.act) { map } else { at.map };
        begins_again.then(|| Position { map, ..self.first(at.action, at.began_at) })
    }

    /// The start of a walk over all databases.
    fn first(&self, action: Action, began_at: UnixMicros) -> Position {
        let name = self.parts().store.home().name().clone();
        Position { action, began_at, database: 0, name, walked: Vec::new(), map: self.map(), place: None }
    }

    fn database_at(&self, Position { name, .. }: &Position) -> Result<Arc<Database>, Problem> {
        match self.parts().store.databases().iter().find(|database| database.name() == name) {
            Some(database) => Ok(Arc::clone(database)),
            None => Err(Problem::unavailable(format!("this node does not use database `{name}` yet; try again"))),
        }
    }

    fn map(&self) -> u32 {
        self.parts().store.map_fingerprint()
    }

    /// Applies the action to a batch: in one statement to the rows that no other transaction locks, one by one
    /// to the rest. The tasks are of `queue`, if that is given. Also returns the problem that ended it early.
    async fn act(
        &self,
        database: &Database,
        act: BulkAction,
        queue: Option<&QueueName>,
        mut batch: Vec<FoundTask>,
    ) -> Result<(BatchCounts, Option<Problem>), Problem> {
        let keep = Keep::of_queue(&self.parts().books.load(), queue);
        let all = batch.len();
        // While the queue cannot be read, the batch waits, messages of delay exchanges too: the walk goes on here.
        if let Some(queue) = queue.filter(|_| act == BulkAction::Retry)
            && self.is_queue_deleted(queue).await?
        {
            let forwarded = database.bulk_forwarded(&batch).await?;
            batch.retain(|found| forwarded.contains(&found.seen.id));
        }
        let done = match database.bulk_act(act, &batch, &keep).await {
            // Each task is changed on its own below, in the place of its shard.
            Err(error) if error.is_moved() => Vec::new(),
            done => done?,
        };
        let mut counts = self.count_done(&done);
        (batch.len()..all).for_each(|_| counts.refuse(SkipReason::QueueDeleted));
        let done: BTreeSet<TaskId> = done.iter().map(BulkChange::id).collect();
        let left: Vec<&FoundTask> = batch.iter().filter(|found| !done.contains(&found.seen.id)).collect();
        // Known once a task was waited for in vain.
        let mut held = BTreeSet::new();
        for (nth, found) in left.iter().enumerate() {
            if held.contains(&found.seen.id) {
                counts.refuse(SkipReason::Held);
                continue;
            }
            let alone = match act {
                // The walk has read the due time already.
                BulkAction::Move(target) => BulkAction::Move(Target::At(target.of(found.seen.due_at, self.now()))),
                act => act,
            };
            match self.act_on(alone, found.seen.id).await {
                Ok(cancelled) => {
                    counts.done += 1;
                    counts.no_further_attempts += u64::from(cancelled == Some(CancelOutcome::NoFurtherAttempts));
                }
                Err(problem) if problem.status < 500 => counts.refuse(reason_left(&problem)),
                Err(problem) => {
                    let ids: Vec<TaskId> = left[nth..].iter().map(|found| found.seen.id).collect();
                    held = held_of(&problem, database, &ids).await;
                    if held.contains(&found.seen.id) {
                        counts.refuse(SkipReason::Held);
                        continue;
                    }
                    if !may_repeat(act) {
                        left[nth..].iter().for_each(|_| counts.refuse(SkipReason::Unavailable));
                    }
                    return Ok((counts, Some(problem)));
                }
            }
        }
        Ok((counts, None))
    }

    /// Those of `ids` whose rows another transaction holds, after `problem`.
    pub(crate) async fn held(&self, problem: &Problem, ids: &[TaskId]) -> BTreeSet<TaskId> {
        let mut held = BTreeSet::new();
        for database in self.parts().store.databases().iter() {
            let is_there = |id: &TaskId| self.parts().store.of(id.shard()).is_some_and(|of| Arc::ptr_eq(of, database));
            let ids: Vec<TaskId> = ids.iter().copied().filter(is_there).collect();
            if !ids.is_empty() {
                held.extend(held_of(problem, database, &ids).await);
            }
        }
        held
    }

    /// Counts the changes, and nudges the owners of the tasks that have a new moment to act on.
    fn count_done(&self, done: &[BulkChange]) -> BatchCounts {
        let mut counts = BatchCounts { done: done.len() as u64, ..BatchCounts::default() };
        let mut cancelled: BTreeMap<_, u64> = BTreeMap::new();
        for done in done {
            if let BulkChange::Cancelled { queue, attempt, .. } = done {
                *cancelled.entry(queue).or_default() += 1;
                counts.no_further_attempts += u64::from(attempt.number() > 0);
            }
        }
        for (queue, count) in cancelled {
            self.parts().metrics.finished(queue, TaskState::Cancelled.text(), count);
        }
        self.parts().nudger.written_all(done.iter().filter_map(|done| match done {
            BulkChange::Woken { id, wake_at } => Some((*id, *wake_at)),
            BulkChange::Cancelled { .. } => None,
        }));
        counts
    }

    /// Does what a request about this task alone would do.
    pub(crate) async fn act_on(&self, act: BulkAction, id: TaskId) -> Result<Option<CancelOutcome>, Problem> {
        match act {
            BulkAction::Cancel => return Ok(Some(self.cancel(id).await?.outcome)),
            BulkAction::Run => drop(self.run(id).await?),
            BulkAction::Retry => drop(self.retry(id).await?),
            BulkAction::Move(target) => {
                let due_at = match target {
                    Target::At(moment) => moment,
                    Target::By { shift_ms } => self.get(id).await?.due_at.shifted(shift_ms),
                };
                self.change(id, ChangeRequest { due_at: Some(due_at), ..ChangeRequest::default() }).await?;
            }
        }
        Ok(None)
    }
}

/// The tasks that another transaction locks. Empty if the database does not tell, and if `problem` is no contention:
/// then the write that has failed may hold its row until it is rolled back.
async fn held_of(problem: &Problem, database: &Database, ids: &[TaskId]) -> BTreeSet<TaskId> {
    if !problem.is_contention {
        return BTreeSet::new();
    }
    database.task_held(ids).await.unwrap_or_default().into_iter().collect()
}

/// Whether a second walk leaves alone what the first has done.
fn may_repeat(act: BulkAction) -> bool {
    !matches!(act, BulkAction::Move(Target::By { .. }))
}

/// The reason for which one task was refused.
pub(crate) fn reason_left(problem: &Problem) -> SkipReason {
    match (problem.status, problem.slug()) {
        (422, _) => SkipReason::WouldExpire,
        (_, "duplicate") => SkipReason::KeyTaken,
        // Of all actions only a retry meets a dead task in these two ways.
        (_, "conflict") if problem.state == Some(TaskState::Dead) && problem.field.as_deref() == Some("queue") => {
            SkipReason::QueueDeleted
        }
        (_, "conflict") if problem.state == Some(TaskState::Dead) => SkipReason::PlacedAnew,
        // The task has finished, or its row was even dropped, since the walk found it.
        _ => SkipReason::InFlight,
    }
}
