//! The statements that write: which rows each takes, and what it makes of them. Each says what its file under
//! `store/queries/` says, and `against_postgres` compares the two.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use common::{
    ids::{Epoch, QueueName, ShardId, TaskId},
    task::TaskState,
    time::UnixMicros,
};

use super::{
    row::Row,
    table::{Locks, Rows, Table},
};
use crate::{
    clock,
    store::{
        claim::{Claimed, HeldBack, LOOK_AGAIN_AFTER},
        settle::{Deliver, Extend, Finish, Finished, Retry},
    },
};

/// Chooses rows among those of the statement's snapshot. The second argument: the fences that the statement holds.
type Choose = Box<dyn FnOnce(&Rows, &BTreeMap<ShardId, Epoch>, UnixMicros) -> Vec<TaskId> + Send>;

/// Checks a row again once it is locked, as READ COMMITTED does with the newest version of a row.
type Recheck = Box<dyn Fn(&Row, UnixMicros) -> bool + Send>;

/// Writes the locked rows at the commit, with the snapshot at hand.
type Write<T> = Box<dyn FnOnce(&mut Table, &Rows, &Locks, UnixMicros) -> T + Send>;

/// A statement that locks rows and writes them.
pub struct Statement<T> {
    pub fences: BTreeMap<ShardId, Epoch>,
    pub choose: Choose,
    pub recheck: Recheck,
    /// Whether it passes over rows that another statement has locked, instead of waiting for them.
    pub skips_locked: bool,
    pub write: Write<T>,
}

impl<T> Statement<T> {
    /// Runs alone: nothing happens between its snapshot and its commit.
    pub fn alone(self, table: &mut Table, now: UnixMicros) -> T {
        let snapshot = table.rows.clone();
        let fences = table.share(&self.fences, false);
        let chosen = (self.choose)(&snapshot, &fences, now);
        let is_fit = |id: &TaskId| table.rows.get(id).is_some_and(|row| (self.recheck)(row, now));
        let locks = Locks { rows: chosen.into_iter().filter(is_fit).collect(), fences };
        (self.write)(table, &snapshot, &locks, now)
    }
}

/// The ids of `asked` whose fences are held.
fn held(asked: &[TaskId], fences: &BTreeMap<ShardId, Epoch>) -> Vec<TaskId> {
    asked.iter().copied().filter(|id| fences.contains_key(&id.shard())).collect()
}

/// The rows of the snapshot that satisfy `fits`, in the order of their ids.
fn among(snapshot: &Rows, ids: impl IntoIterator<Item = TaskId>, fits: impl Fn(&Row) -> bool) -> Vec<TaskId> {
    ids.into_iter().filter(|id| snapshot.get(id).is_some_and(&fits)).collect()
}

/// `task_claim.sql`.
pub fn claim(
    ids: &[TaskId],
    presented: &BTreeMap<ShardId, Epoch>,
    ahead: Duration,
    closed: &BTreeSet<QueueName>,
) -> Statement<Claimed> {
    let fits = move |row: &Row, now: UnixMicros| {
        row.state == TaskState::Scheduled && row.wake_at <= now.plus(ahead) && !row.has_expired(now)
    };
    let (asked, fences, closed) = (ids.to_vec(), presented.clone(), closed.clone());
    let asking = asked.clone();
    let presented = presented.len();
    Statement {
        fences,
        choose: Box::new(move |rows, fences, now| among(rows, held(&asking, fences), |row| fits(row, now))),
        recheck: Box::new(fits),
        skips_locked: true,
        write: Box::new(move |table, snapshot, locks, now| {
            let mut claimed = none(locks.fences.len() < presented, now);
            for id in &locks.rows {
                let Some(row) = table.rows.get_mut(id) else { continue };
                if closed.contains(&row.queue) {
                    row.state = TaskState::Ready;
                    claimed.held_back.push(HeldBack { id: *id, queue: row.queue.clone(), due_at: row.due_at });
                } else {
                    take(row, locks.fences[&id.shard()], now);
                    row.attempt += 1;
                    claimed.deliveries.push(row.delivery());
                }
            }
            claimed.passed = passed(snapshot, &asked, locks, now);
            claimed
        }),
    }
}

/// `task_rescue.sql`.
pub fn rescue(ids: &[TaskId], presented: &BTreeMap<ShardId, Epoch>) -> Statement<Claimed> {
    let fits = |row: &Row, _| row.state == TaskState::Dispatching;
    let (asked, fences, presented) = (ids.to_vec(), presented.clone(), presented.len());
    let asking = asked.clone();
    Statement {
        fences,
        choose: Box::new(move |rows, fences, now| among(rows, held(&asking, fences), |row| fits(row, now))),
        recheck: Box::new(fits),
        skips_locked: true,
        write: Box::new(move |table, snapshot, locks, now| {
            let mut claimed = take_all(table, locks, presented, now, |row| row.redeliveries += 1);
            claimed.passed = passed(snapshot, &asked, locks, now);
            claimed
        }),
    }
}

fn none(refused: bool, now: UnixMicros) -> Claimed {
    let (deliveries, held_back, passed) = (Vec::new(), Vec::new(), Vec::new());
    Claimed { sent_at: clock::instant(), now, deliveries, held_back, passed, refused, turned: false }
}

/// Takes all locked rows, and makes `change` to each. `presented`: the number of fences that the statement presents.
pub fn take_all(
    table: &mut Table,
    locks: &Locks,
    presented: usize,
    now: UnixMicros,
    change: impl Fn(&mut Row),
) -> Claimed {
    let mut claimed = none(locks.fences.len() < presented, now);
    for id in &locks.rows {
        let Some(row) = table.rows.get_mut(id) else { continue };
        take(row, locks.fences[&id.shard()], now);
        change(row);
        claimed.deliveries.push(row.delivery());
    }
    claimed
}

/// Writes what every claim writes.
fn take(row: &mut Row, epoch: Epoch, now: UnixMicros) {
    row.state = TaskState::Dispatching;
    row.claim_epoch = Some(epoch);
    row.claimed_at = Some(now);
    row.wake_at = now.plus(LOOK_AGAIN_AFTER);
}

/// The keys that a claim passed over, as its snapshot has them.
fn passed(snapshot: &Rows, asked: &[TaskId], locks: &Locks, now: UnixMicros) -> Vec<crate::store::preload::Key> {
    held(asked, &locks.fences)
        .into_iter()
        .filter(|id| !locks.rows.contains(id))
        .filter_map(|id| snapshot.get(&id))
        .filter(|row| row.state != TaskState::Ready && !(row.state == TaskState::Scheduled && row.has_expired(now)))
        .map(Row::key)
        .collect()
}

/// A statement that compares attempt and state of each row with what it carries.
fn compare_and_set<I, T>(
    items: Vec<I>,
    id: impl Fn(&I) -> TaskId + Clone + Send + 'static,
    fits: impl Fn(&I, &Row, UnixMicros) -> bool + Clone + Send + 'static,
    write: impl Fn(&mut Table, &I, UnixMicros) + Send + 'static,
    answer: impl FnOnce(Vec<TaskId>) -> T + Send + 'static,
) -> Statement<T>
where
    I: Clone + Send + 'static,
{
    let by_id: BTreeMap<TaskId, I> = items.into_iter().map(|item| (id(&item), item)).collect();
    let (chosen, rechecked) = (by_id.clone(), by_id.clone());
    let (first, second) = (fits.clone(), fits);
    Statement {
        fences: BTreeMap::new(),
        choose: Box::new(move |rows, _, now| {
            let is_fit = |row: &Row| first(&chosen[&row.id], row, now);
            among(rows, chosen.keys().copied(), is_fit)
        }),
        recheck: Box::new(move |row, now| second(&rechecked[&row.id], row, now)),
        skips_locked: false,
        write: Box::new(move |table, _, locks, now| {
            for id in &locks.rows {
                write(table, &by_id[id], now);
            }
            answer(locks.rows.clone())
        }),
    }
}

const HANDED_OVER: [TaskState; 3] = [TaskState::Dispatching, TaskState::Delivered, TaskState::Running];

fn after(now: UnixMicros, timeout_ms: i64) -> UnixMicros {
    now.shifted(timeout_ms)
}

/// `task_deliver.sql`.
pub fn deliver(tasks: &[Deliver]) -> Statement<()> {
    compare_and_set(
        tasks.to_vec(),
        |task| task.id,
        |task, row, _| row.attempt == task.attempt.number() && row.state == TaskState::Dispatching,
        |table, task, now| {
            if let Some(row) = table.rows.get_mut(&task.id) {
                row.state = TaskState::Delivered;
                row.wake_at = after(now, task.timeout_ms);
            }
        },
        |_| (),
    )
}

/// `task_finish.sql`.
pub fn finish(tasks: &[Finish]) -> Statement<Finished> {
    // The loops write deadlines apart from other events.
    let skips_locked = tasks.iter().all(|task| task.at_deadline);
    let statement = compare_and_set(
        tasks.to_vec(),
        |task| task.id,
        |task, row, now| {
            row.attempt == task.attempt.number()
                && task.was.contains(&row.state)
                && row.attempt > 0
                && (!task.at_deadline || row.wake_at <= now)
        },
        |table, task, _| table.archive(task.id, task.final_state),
        |ids| Finished { ids, succeeded: Vec::new() },
    );
    Statement { skips_locked, ..statement }
}

/// `task_retry.sql`.
pub fn retry(tasks: &[Retry]) -> Statement<Vec<TaskId>> {
    let skips_locked = tasks.iter().all(|task| task.at_deadline);
    let statement = compare_and_set(
        tasks.to_vec(),
        |task| task.id,
        |task, row, now| {
            row.attempt == task.attempt.number()
                && HANDED_OVER.contains(&row.state)
                && (!task.at_deadline || row.wake_at <= now)
        },
        |table, task, _| {
            if let Some(row) = table.rows.get_mut(&task.id) {
                row.state = TaskState::Scheduled;
                (row.wake_at, row.due_at, row.redeliveries) = (task.retry_at, task.retry_at, 0);
                row.priority = if task.lower { 5.min(row.priority + 1) } else { row.priority };
            }
        },
        |ids| ids,
    );
    Statement { skips_locked, ..statement }
}

/// `task_extend.sql`.
pub fn extend(tasks: &[Extend]) -> Statement<Vec<TaskId>> {
    compare_and_set(
        tasks.to_vec(),
        |task| task.id,
        |task, row, _| row.attempt == task.attempt.number() && HANDED_OVER.contains(&row.state),
        |table, task, now| {
            if let Some(row) = table.rows.get_mut(&task.id) {
                row.state = TaskState::Running;
                row.wake_at = after(now, task.timeout_ms);
            }
        },
        |ids| ids,
    )
}

const UNCLAIMED: [TaskState; 3] = [TaskState::Waiting, TaskState::Scheduled, TaskState::Ready];

/// `task_cancel.sql`. Returns the attempt; `None`: the task was claimed or has finished.
pub fn cancel(id: TaskId) -> Statement<Option<i32>> {
    Statement {
        fences: BTreeMap::new(),
        choose: Box::new(move |rows, _, _| among(rows, [id], |row| UNCLAIMED.contains(&row.state))),
        recheck: Box::new(|row, _| UNCLAIMED.contains(&row.state)),
        skips_locked: false,
        write: Box::new(|table, _, locks, _| {
            let id = locks.rows.first()?;
            let attempt = table.rows.get(id)?.attempt;
            table.archive(*id, TaskState::Cancelled);
            Some(attempt)
        }),
    }
}

/// `task_change.sql` with a new due time. Returns whether the task was changed.
pub fn change(id: TaskId, due_at: UnixMicros) -> Statement<bool> {
    let fits = move |row: &Row, now: UnixMicros| {
        UNCLAIMED.contains(&row.state) && row.expires_at.is_none_or(|expires| expires > due_at.max(now))
    };
    Statement {
        fences: BTreeMap::new(),
        choose: Box::new(move |rows, _, now| among(rows, [id], |row| fits(row, now))),
        recheck: Box::new(fits),
        skips_locked: false,
        write: Box::new(move |table, _, locks, now| {
            let Some(row) = locks.rows.first().and_then(|id| table.rows.get_mut(id)) else { return false };
            if row.state == TaskState::Ready {
                row.state = TaskState::Scheduled;
            }
            (row.due_at, row.wake_at) = (due_at.max(now), due_at.max(now));
            true
        }),
    }
}

/// `task_expire.sql`. Returns the expired tasks.
pub fn expire(shards: &[ShardId]) -> Statement<Vec<TaskId>> {
    let shards = shards.to_vec();
    let fits = |row: &Row, now: UnixMicros| UNCLAIMED.contains(&row.state) && row.has_expired(now);
    Statement {
        fences: BTreeMap::new(),
        choose: Box::new(move |rows, _, now| {
            let all: Vec<TaskId> = rows.keys().copied().filter(|id| shards.contains(&id.shard())).collect();
            among(rows, all, |row| fits(row, now))
        }),
        recheck: Box::new(fits),
        skips_locked: true,
        write: Box::new(|table, _, locks, _| {
            for id in &locks.rows {
                table.archive(*id, TaskState::Expired);
            }
            locks.rows.clone()
        }),
    }
}
