//! Walks over the tasks that a filter finds, queue by queue, and applies one action to many of them.
//!
//! Each step examines a bounded number of rows, or writes a bounded batch, in a statement of its own. A write
//! passes over rows that another transaction holds, so it never waits while it holds others. The caller then
//! changes those rows one by one, with the statements of [`super::change`].

use std::{collections::BTreeSet, sync::LazyLock};

use chrono::NaiveDate;
use common::{
    ids::{Attempt, QueueName, TaskId},
    task::{
        TaskState,
        bulk::{BulkAction, BulkCandidate, Target},
    },
    time::UnixMicros,
    wire::{
        TaskFilter,
        bulk::{Edge, Place},
    },
};
use sqlx::{Row, postgres::PgRow};

use super::{
    Database, Error, StoreOp,
    change::{Cancelled, Keep, bind_keep},
    conflict::{EARLIER_END, new_first, without},
    lender::Lender,
};
use crate::history::Step;

/// The statement for tasks that have not ended before. See [`super::conflict`].
pub(super) static CANCEL_NEW: LazyLock<&'static str> =
    LazyLock::new(|| without(EARLIER_END, statement!("bulk_cancel")));

/// The most rows examined in one step: some 20 ms where no history is read.
const LOOK: i64 = 20_000;

/// The tasks of a walk, and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// The unfinished tasks, by due time, without those that the action has moved already.
    Live {
        moved: Option<Moved>,
    },
    /// The unfinished tasks, by due time from the last to the first.
    LiveBack,
    /// The finished tasks that did not succeed; with a moment, only those that finished before it.
    Failed {
        before: Option<UnixMicros>,
    },
    Finished,
}

/// The tasks that an action has moved ahead of its walk: those with the new due time, or those that are due if that
/// is later. Where it moves them to the present, those claimed since the walk began too: they may have failed and be
/// due again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    pub to: UnixMicros,
    pub since: UnixMicros,
}

/// A task that a walk found.
#[derive(Clone, Copy, Debug)]
pub struct FoundTask {
    pub seen: BulkCandidate,
    /// The archive partition of a finished task.
    pub drop_on: Option<NaiveDate>,
    /// The approximate size of the task when it is read. 0 where no reader of whole tasks walks ([`Walk::LiveBack`]).
    pub bytes: u64,
}

/// One step of a walk.
#[derive(Clone, Debug, Default)]
pub struct WalkStep {
    /// The one queue of the tasks found.
    pub queue: Option<QueueName>,
    pub found: Vec<FoundTask>,
    /// The place at which the walk goes on. `None`: it is complete.
    pub next: Option<Place>,
}

/// A task to which the action was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkChange {
    Cancelled {
        id: TaskId,
        queue: QueueName,
        attempt: Attempt,
    },
    /// The task now wakes at `wake_at`.
    Woken {
        id: TaskId,
        wake_at: UnixMicros,
    },
}

impl BulkChange {
    pub const fn id(&self) -> TaskId {
        match self {
            Self::Cancelled { id, .. } | Self::Woken { id, .. } => *id,
        }
    }
}

impl Walk {
    /// The walk that meets each task once, even if `act` changes the due times that order it, and if tasks fail again
    /// meanwhile. `began_at`: when its first step began.
    pub const fn of(act: BulkAction, began_at: UnixMicros) -> Self {
        /// A task that is due counts as moved already.
        const NOW: UnixMicros = UnixMicros::FIRST;
        match act {
            BulkAction::Cancel => Self::Live { moved: None },
            BulkAction::Run => Self::Live { moved: Some(Moved { to: NOW, since: began_at }) },
            BulkAction::Move(Target::At(moment)) => Self::Live { moved: Some(Moved { to: moment, since: began_at }) },
            BulkAction::Move(Target::By { shift_ms }) if shift_ms > 0 => Self::LiveBack,
            BulkAction::Move(Target::By { .. }) => Self::Live { moved: Some(Moved { to: NOW, since: began_at }) },
            BulkAction::Retry => Self::Failed { before: Some(began_at) },
        }
    }

    const fn statement(self) -> &'static str {
        match self {
            Self::Live { .. } => include_str!("queries/bulk_look.sql"),
            Self::LiveBack => include_str!("queries/bulk_look_back.sql"),
            Self::Failed { .. } => include_str!("queries/bulk_look_failed.sql"),
            Self::Finished => include_str!("queries/bulk_look_finished.sql"),
        }
    }

    const fn queues(self) -> &'static str {
        match self {
            Self::Live { .. } | Self::LiveBack => include_str!("queries/bulk_queue.sql"),
            Self::Failed { .. } => include_str!("queries/bulk_queue_failed.sql"),
            Self::Finished => include_str!("queries/bulk_queue_finished.sql"),
        }
    }

    /// The edge at which a queue's tasks begin, and the due time at which they end.
    fn span(self, filter: &TaskFilter) -> (Edge, UnixMicros) {
        let nobody = TaskId::from_uuid(uuid::Uuid::nil());
        let first = filter.due_after.unwrap_or(UnixMicros::FIRST);
        // The end is exclusive, so it is one microsecond later: the last moment is a due time too.
        let last = filter.due_before.unwrap_or(UnixMicros::new(UnixMicros::LAST.micros() + 1));
        let (from, to) = if self == Self::LiveBack { (last, first) } else { (first, last) };
        (Edge { due_at: from, id: nobody }, to)
    }
}

impl Database {
    /// Finds the next tasks of a walk from `place` on, or from its start. It returns at most `most` tasks, and may
    /// return none although there are more.
    pub async fn bulk_look(
        &self,
        walk: Walk,
        filter: &TaskFilter,
        place: Option<&Place>,
        most: usize,
    ) -> Result<WalkStep, Error> {
        let place = match (place, &filter.queue) {
            (Some(place), _) => place.clone(),
            (None, Some(queue)) => Place { queue: queue.clone(), after: None },
            (None, None) => match self.next_queue(walk, "").await? {
                Some(queue) => Place { queue, after: None },
                None => return Ok(WalkStep::default()),
            },
        };
        let (found, end) = self.look_in_time(walk, filter, &place, most).await?;
        let next = match end {
            Some(end) => Some(Place { queue: place.queue.clone(), after: Some(end) }),
            None if filter.queue.is_some() => None,
            None => self.next_queue(walk, place.queue.as_str()).await?.map(|queue| Place { queue, after: None }),
        };
        Ok(WalkStep { queue: Some(place.queue), found, next })
    }

    /// Looks at a smaller part where a look runs out of its time.
    async fn look_in_time(&self, walk: Walk, filter: &TaskFilter, place: &Place, most: usize) -> Result<Look, Error> {
        let elsewhere = self.elsewhere();
        let mut pace = self.paces.walks[usize::from(filter.error.is_some())].begin();
        loop {
            let (rows, most) = (LOOK / i64::from(pace.divisor()), most.div_ceil(usize::from(pace.divisor())));
            let bounds = Bounds { rows, most, elsewhere: &elsewhere };
            let look = async |pool| look(&pool, walk, filter, place, bounds).await;
            let looked = self.run(StoreOp::BulkLook, look).await;
            if !pace.comes_again(&looked) {
                return looked;
            }
        }
    }

    async fn next_queue(&self, walk: Walk, after: &str) -> Result<Option<QueueName>, Error> {
        self.run(StoreOp::BulkQueue, |pool| async move {
            let row = sqlx::query(walk.queues()).bind(after).fetch_optional(&pool).await?;
            row.as_ref().map(|row| super::queue(row, "queue")).transpose()
        })
        .await
    }

    /// Applies the action to those of `tasks` that still fit it and that no other transaction holds. Returns those.
    pub async fn bulk_act(&self, act: BulkAction, tasks: &[FoundTask], keep: &Keep) -> Result<Vec<BulkChange>, Error> {
        let ids: Vec<TaskId> = tasks.iter().map(|found| found.seen.id).collect();
        let changes = match act {
            BulkAction::Cancel => self.bulk_cancel(&ids, keep).await,
            BulkAction::Run => self.bulk_run(&ids).await,
            BulkAction::Move(target) => self.bulk_move(&ids, target).await,
            BulkAction::Retry => self.bulk_revive(tasks).await,
        }?;
        self.history.record_all(changes.iter().filter_map(|change| match change {
            BulkChange::Cancelled { id, attempt, .. } => Some(Step::Cancelled { task: *id, attempt: *attempt }),
            BulkChange::Woken { id, .. } => (act == BulkAction::Retry).then_some(Step::Revived { task: *id }),
        }));
        Ok(changes)
    }

    pub(super) async fn bulk_cancel(&self, ids: &[TaskId], keep: &Keep) -> Result<Vec<BulkChange>, Error> {
        let query = |text: &'static str| bind_keep(sqlx::query(text).bind(super::uuids(ids)), keep);
        self.run(StoreOp::BulkCancel, |pool| async move {
            let rows = new_first(*CANCEL_NEW, statement!("bulk_cancel"), |text| query(text).fetch_all(&pool)).await?;
            rows.iter().map(cancelled).collect()
        })
        .await
    }

    async fn bulk_run(&self, ids: &[TaskId]) -> Result<Vec<BulkChange>, Error> {
        self.run(StoreOp::BulkRun, |pool| async move {
            let run = sqlx::query(include_str!("queries/bulk_run.sql")).bind(super::uuids(ids));
            run.fetch_all(&pool).await?.iter().map(woken).collect()
        })
        .await
    }

    async fn bulk_move(&self, ids: &[TaskId], target: Target) -> Result<Vec<BulkChange>, Error> {
        let (at, by_ms) = match target {
            Target::At(moment) => (Some(moment.to_utc()), 0),
            Target::By { shift_ms } => (None, shift_ms),
        };
        let by = sqlx::postgres::types::PgInterval { months: 0, days: 0, microseconds: by_ms.saturating_mul(1_000) };
        self.run(StoreOp::BulkMove, |pool| async move {
            let moving = sqlx::query(include_str!("queries/bulk_move.sql")).bind(super::uuids(ids)).bind(at).bind(by);
            moving.fetch_all(&pool).await?.iter().map(woken).collect()
        })
        .await
    }

    /// Those of these finished tasks that are messages of a delay exchange.
    pub async fn bulk_forwarded(&self, tasks: &[FoundTask]) -> Result<BTreeSet<TaskId>, Error> {
        let (days, ids) = archived(tasks);
        self.run(StoreOp::BulkLook, |pool| async move {
            let read = sqlx::query(include_str!("queries/bulk_forwarded.sql")).bind(days).bind(ids);
            read.fetch_all(&pool).await?.iter().map(|row| super::task_id(row, "id")).collect()
        })
        .await
    }

    async fn bulk_revive(&self, tasks: &[FoundTask]) -> Result<Vec<BulkChange>, Error> {
        let (days, ids) = archived(tasks);
        let revived = self
            .run(StoreOp::BulkRevive, |pool| async move {
                let revive = sqlx::query(include_str!("queries/bulk_revive.sql")).bind(days).bind(ids);
                revive.fetch_all(&pool).await?.iter().map(woken).collect()
            })
            .await;
        match revived {
            // A concurrent submission took one of the keys. The caller goes on one by one, so
            // that the others are not held up.
            Err(error) if error.is_key_taken() => Ok(Vec::new()),
            revived => revived,
        }
    }
}

/// The tasks found, and the edge at which the look ended. `None`: it reached the end of the queue.
type Look = (Vec<FoundTask>, Option<Edge>);

/// The limits of one look.
#[derive(Clone, Copy, Debug)]
struct Bounds<'a> {
    /// The most rows that it examines.
    rows: i64,
    /// The most tasks that it finds.
    most: usize,
    /// The shards whose tasks it does not find.
    elsewhere: &'a [i32],
}

async fn look(
    pool: &Lender,
    walk: Walk,
    filter: &TaskFilter,
    place: &Place,
    bounds: Bounds<'_>,
) -> Result<Look, sqlx::Error> {
    let (start, to) = walk.span(filter);
    let after = place.after.unwrap_or(start);
    let query = sqlx::query(walk.statement())
        .bind(place.queue.as_str())
        .bind(after.due_at.to_utc())
        .bind(after.id.uuid())
        .bind(to.to_utc())
        .bind(filter.state.map(TaskState::text))
        .bind(filter.partition_key.as_deref())
        .bind(filter.key.as_deref())
        .bind(filter.error.as_deref())
        .bind(bounds.rows)
        .bind(i64::try_from(bounds.most).unwrap_or(i64::MAX))
        .bind(bounds.elsewhere);
    let query = match walk {
        Walk::Live { moved } => {
            query.bind(moved.map(|moved| moved.to.to_utc())).bind(moved.map(|moved| moved.since.to_utc()))
        }
        Walk::Failed { before } => query.bind(before.map(UnixMicros::to_utc)),
        Walk::LiveBack | Walk::Finished => query,
    };
    let rows = query.fetch_all(pool).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        if row.try_get("hit")? {
            found.push(read(row)?);
        }
    }
    let Some(last) = rows.last() else { return Ok((found, None)) };
    let looked_up_to = last.try_get::<i64, _>("nth")? == bounds.rows;
    let end = Edge { due_at: super::moment(last, "due_at")?, id: super::task_id(last, "id")? };
    Ok((found, (rows.len() == bounds.most || looked_up_to).then_some(end)))
}

fn read(row: &PgRow) -> Result<FoundTask, sqlx::Error> {
    let seen = BulkCandidate {
        id: super::task_id(row, "id")?,
        state: super::state(row, "state")?,
        due_at: super::moment(row, "due_at")?,
        expires_at: super::optional_moment(row, "expires_at")?,
        key_taken: row.try_get("key_taken")?,
    };
    let bytes = u64::try_from(row.try_get::<i64, _>("bytes")?).unwrap_or(0);
    Ok(FoundTask { seen, drop_on: row.try_get("drop_on")?, bytes })
}

/// The places of finished tasks in the archive: their days and their ids, pairwise.
pub(super) fn archived(tasks: &[FoundTask]) -> (Vec<NaiveDate>, Vec<uuid::Uuid>) {
    tasks.iter().filter_map(|found| Some((found.drop_on?, found.seen.id.uuid()))).unzip()
}

fn cancelled(row: &PgRow) -> Result<BulkChange, sqlx::Error> {
    let Cancelled { queue, attempt } = Cancelled::read(row)?;
    Ok(BulkChange::Cancelled { id: super::task_id(row, "id")?, queue, attempt })
}

fn woken(row: &PgRow) -> Result<BulkChange, sqlx::Error> {
    Ok(BulkChange::Woken { id: super::task_id(row, "id")?, wake_at: super::moment(row, "wake_at")? })
}
