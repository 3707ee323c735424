//! Marks rows that cannot be tasks as refused, with the reason. They stay in the inbox. Leaves rows alone that may be
//! at fault, or that are held.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use common::{
    ids::{QueueName, ShardId, TaskId},
    task::NewTask,
    wire::Problem,
};
use serde::Deserialize;

use super::{
    HELD_AGAIN, PassState, Route, SqlIntake,
    turns::{ASIDE_MOST, Aside, OwnedKey},
};
use crate::{
    desk::ROWS_WAIT,
    store::{Error, StoreOp, inbox::InboxRow},
    working_set::{
        database::{DatabaseIndex, LEFT_ALONE},
        retry::Refused,
        set_aside::{Kept, Kind, for_log, why},
    },
};

/// The most rows that are left alone because their queues cannot be read. The others stay at the head of the inbox.
const UNKNOWN_MOST: usize = ASIDE_MOST / 2;

/// The pause before a row is tried again that may be at fault, so that the rows behind it have their turn.
const SUSPECT_AGAIN: Duration = Duration::from_secs(2);

impl PassState {
    /// Leaves rows alone for a while.
    pub(super) fn leave_alone(&mut self, ids: impl IntoIterator<Item = TaskId>, pause: Duration) {
        self.put_aside(ids.into_iter().map(|id| (id, None)), Instant::now() + pause);
    }

    /// Leaves rows alone for a while that cannot be judged before their queues are read. Later rows with their keys
    /// wait behind them. Where there is no room for a row, it stays at the head of the inbox, and `parts`, the tasks of
    /// this pass, lose those behind it: the next pass reads them again.
    pub(super) fn leave_unknown(&mut self, rows: Vec<&InboxRow>, parts: &mut BTreeMap<Route, Vec<NewTask>>) {
        #[derive(Deserialize)]
        struct Named {
            queue: QueueName,
            partition_key: Option<String>,
            key: Option<String>,
        }
        let named = |row: &InboxRow| serde_json::from_str::<Named>(row.request.as_deref()?).ok();
        let key = |row: &InboxRow| named(row).and_then(|of| Some((of.queue, of.partition_key, of.key?)));
        let room = UNKNOWN_MOST.saturating_sub(self.aside.len());
        let mut left_alone: Vec<_> = rows.into_iter().map(|row| (row.id, key(row))).collect();
        let mut at_head: BTreeMap<OwnedKey, TaskId> = BTreeMap::new();
        for (id, key) in left_alone.drain(room.min(left_alone.len())..) {
            if let Some(key) = key {
                let first = at_head.entry(key).or_insert(id);
                *first = id.min(*first);
            }
        }
        self.put_aside(left_alone, Instant::now() + ROWS_WAIT);
        let is_behind =
            |task: &NewTask| key_of(task).is_some_and(|key| at_head.get(&key).is_some_and(|id| *id < task.id));
        if !at_head.is_empty() {
            parts.values_mut().for_each(|tasks| tasks.retain(|task| !is_behind(task)));
        }
    }

    /// Leaves those of `tasks` alone for a moment that are not done: another transaction locks the row, or the task
    /// that has its key.
    pub(super) fn leave_held(&mut self, tasks: &[NewTask], is_done: impl Fn(&TaskId) -> bool) {
        let is_held = |task: &&NewTask| !is_done(&task.id) && !self.aside.contains_key(&task.id);
        let held: Vec<_> = tasks.iter().filter(is_held).map(|task| (task.id, key_of(task))).collect();
        self.put_aside(held, Instant::now() + HELD_AGAIN);
    }

    /// Leaves those of `tasks` alone that were submitted after a held row with their key, until that one is tried
    /// again: the last submission has to be the last one applied. They hold the key too: passes let in a batch at a
    /// time, so the held row may be a task before the last of them is tried. A row that could not be read may have any
    /// key of its shard, and so may those that this pass has crowded out. Returns the others.
    pub(super) fn leave_later(&mut self, mut tasks: Vec<NewTask>) -> Vec<NewTask> {
        tasks.retain(|task| task.keyed.is_none() || !self.turns.crowded_now.contains(&task.id.shard()));
        let mut first_held: BTreeMap<&OwnedKey, (TaskId, Instant)> = BTreeMap::new();
        let mut first_unread: BTreeMap<ShardId, (TaskId, Instant)> = BTreeMap::new();
        for (id, aside) in &self.aside {
            if let Some(key) = &aside.key {
                first_held.entry(key).or_insert((*id, aside.until));
            }
        }
        for (id, unread) in &self.unread {
            first_unread.entry(id.shard()).or_insert((*id, unread.until));
        }
        let (mut others, mut later) = (Vec::with_capacity(tasks.len()), Vec::new());
        for task in tasks {
            let key = key_of(&task);
            let before = key.as_ref().and_then(|key| {
                let before = [first_held.get(key), first_unread.get(&task.id.shard())];
                before.into_iter().flatten().find(|(id, _)| *id < task.id).copied()
            });
            match before {
                Some((_, until)) => later.push((task.id, Aside { until, key })),
                None => others.push(task),
            }
        }
        self.put_each_aside(later);
        others
    }

    /// Leaves rows alone for a moment whose write puts them in doubt, and returns them. Later rows with their keys wait
    /// behind them. Any other failure is to end the pass, and so is this one unless `others_pass`: the server may be at
    /// fault. Rows whose former tasks the archive has no partition for yet are left alone too, and end no pass: the
    /// archiver makes it in a second or two.
    pub(super) fn leave<I>(
        &mut self,
        left: Vec<(&[I], Error)>,
        others_pass: bool,
        row: impl Fn(&I) -> (TaskId, Option<OwnedKey>),
    ) -> (Vec<TaskId>, Option<Error>) {
        let (mut suspects, mut failed) = (Vec::new(), None);
        for (part, error) in left {
            let may_be_rows = error.may_concern_some_rows();
            if may_be_rows {
                suspects.extend(part.iter().map(&row));
            }
            if !(may_be_rows && (others_pass || error.lacks_partition())) {
                failed = Some(error);
            }
        }
        let ids = suspects.iter().map(|(id, _)| *id).collect();
        self.put_aside(suspects, Instant::now() + SUSPECT_AGAIN);
        (ids, failed)
    }
}

pub(super) fn keyed(task: &NewTask) -> (TaskId, Option<OwnedKey>) {
    (task.id, key_of(task))
}

fn key_of(task: &NewTask) -> Option<OwnedKey> {
    let (queue, partition_key, key) = task.full_key()?;
    Some((queue.clone(), partition_key.map(str::to_owned), key.to_owned()))
}

impl SqlIntake {
    /// Notes a row that the database refuses to make a task of.
    pub(super) fn refused(&self, Refused { item, error }: &Refused<'_, NewTask>) -> (TaskId, Problem) {
        let reason = why(error);
        let database = &self.databases[self.index];
        database.set_aside.note_task(Kind::Inbox, database.sql.name(), item.id, &reason);
        (item.id, Problem::unprocessable(format!("the database refuses the task: {reason}")))
    }

    /// Refuses rows that the desk judged not to be tasks. A row that an earlier judgement sent to another database
    /// may already be a task there; then the task counts. If that database does not tell, its rows wait, and the pass
    /// goes on with the others.
    pub(super) async fn refuse_judged(
        &self,
        refused: Vec<(&InboxRow, Problem)>,
        state: &mut PassState,
    ) -> Result<(), Error> {
        let (leaving, here): (Vec<_>, Vec<_>) = refused.into_iter().partition(|(row, _)| row.leaving);
        self.refuse(here.into_iter().map(|(row, problem)| (row.id, problem)).collect(), false, state).await?;
        let mut parts: BTreeMap<DatabaseIndex, Vec<(TaskId, Problem)>> = BTreeMap::new();
        for (row, problem) in leaving {
            if let Some((index, _)) = self.databases.of(row.id.shard()) {
                parts.entry(index).or_default().push((row.id, problem));
            }
        }
        for (index, part) in parts {
            let ids: Vec<TaskId> = part.iter().map(|(id, _)| *id).collect();
            let database = &self.databases[index].sql;
            let not_there = match database.received_refuse(&ids, self.source().name()).await {
                // The next pass asks the new place.
                Err(error) if error.is_moved() => {
                    self.databases.places().want();
                    state.skips_own |= index == self.index && state.has_more;
                    continue;
                }
                Err(error) if index != self.index => {
                    self.logged(Err::<(), _>(error));
                    state.avoided.insert(index, Instant::now());
                    continue;
                }
                answer => answer?,
            };
            let arrived: Vec<TaskId> = ids.into_iter().filter(|id| !not_there.contains(id)).collect();
            self.source().inbox_delete(&arrived).await?;
            let refused = part.into_iter().filter(|(id, _)| not_there.contains(id)).collect();
            self.refuse(refused, true, state).await?;
        }
        Ok(())
    }

    /// Takes out of `arrived` the rows that were refused on their way into the database at `index`, and refuses them
    /// here: by another node, which counts each limit by itself, or in a pass that broke off. `known`: those of which
    /// this pass knows the outcome.
    pub(super) async fn refuse_withheld(
        &self,
        index: DatabaseIndex,
        arrived: &mut Vec<TaskId>,
        known: &BTreeSet<TaskId>,
        state: &mut PassState,
    ) -> Result<(), Error> {
        let noted: Vec<TaskId> = arrived.iter().filter(|id| !known.contains(id)).copied().collect();
        if noted.is_empty() {
            return Ok(());
        }
        let withheld = self.databases[index].sql.received_refuse(&noted, self.source().name()).await?;
        arrived.retain(|id| !withheld.contains(id));
        let reason = "a node refused the submission when it was on its way into its database; submit it again";
        let refused = withheld.into_iter().map(|id| (id, Problem::unprocessable(reason))).collect();
        self.refuse(refused, true, state).await
    }

    /// Marks rows as refused. `there`: none of them is a task in another database, which has been checked. A row
    /// that cannot even be marked, or that another transaction locks, is left alone for a while.
    pub(super) async fn refuse(
        &self,
        refused: Vec<(TaskId, Problem)>,
        there: bool,
        state: &mut PassState,
    ) -> Result<(), Error> {
        let source = self.source();
        let mut reasons: Vec<(TaskId, String)> =
            refused.iter().map(|(id, problem)| (*id, problem.to_string().replace('\0', "\u{fffd}"))).collect();
        let database = &self.databases[self.index];
        let (suspects, refuse_part) = (&database.suspects, |part| source.inbox_refuse(part, there));
        let (_, tried) =
            suspects.try_each(StoreOp::InboxRefuse, &mut reasons, |(id, _)| *id, refuse_part, Clone::clone).await;
        let others_pass = !tried.answers.is_empty();
        let marked: BTreeSet<TaskId> = tried.answers.into_iter().flatten().collect();
        let just_now: Vec<&(TaskId, Problem)> = refused.iter().filter(|(id, _)| marked.contains(id)).collect();
        for (id, problem) in &just_now {
            tracing::debug!(task = %id, database = %source.name(), %problem, "a submission in SQL cannot be a task");
            self.metrics.inbox_refused(problem.slug());
        }
        if let Some((task, problem)) = just_now.first() {
            let (rows, database, problem) = (just_now.len(), source.name(), problem.to_string());
            let problem = for_log(&problem);
            tracing::warn!(rows, %task, %database, problem, "submissions in SQL cannot be tasks; they stay in the inbox, and the first one has this problem");
        }
        for Refused { item: (id, _), error } in tried.refused {
            database.set_aside.keep(&database.sql, Kind::Inbox, Kept::task(*id), &why(&error)).await;
            state.leave_alone([*id], LEFT_ALONE);
        }
        let (_, failed) = state.leave(tried.left, others_pass, |(id, _)| (*id, None));
        if let Some(error) = failed {
            return Err(error);
        }
        // Another transaction locks the others.
        let is_held = |id: &TaskId| !marked.contains(id) && !state.aside.contains_key(id);
        let held: Vec<TaskId> = refused.iter().map(|(id, _)| *id).filter(is_held).collect();
        state.leave_alone(held, HELD_AGAIN);
        Ok(())
    }
}
