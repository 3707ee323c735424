//! Schedules and their decided fire times, kept in the first database only.

mod turns;

use std::time::{Duration, Instant};

use common::{
    ids::{QueueName, ScheduleName, ShardId, TaskId},
    schedule::{Fire, FireDecision, Rules, ScheduleState},
    time::UnixMicros,
};
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
    types::Json,
};

pub use self::turns::{ScheduleTurn, TurnOutcome};
use super::{Database, Error, StoreOp, claim::interval, uuids};

/// The longest time for which a change goes on waiting for a schedule that others hold by turns. It is longer than the
/// wait for one of them may be (`lock_timeout`). With one more such wait, it is within the deadline for an answer.
const HELD_WITHIN: Duration = Duration::from_secs(3);

/// Identifies one write of a schedule. Every write sets a new revision and compares the one that its caller read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(i64);

#[cfg(test)]
impl Revision {
    pub const fn of(number: i64) -> Self {
        Self(number)
    }
}

/// A schedule as stored.
#[derive(Clone, Debug)]
pub struct ScheduleRecord {
    pub name: ScheduleName,
    pub revision: Revision,
    pub rules: Rules,
    pub payload: Vec<u8>,
    pub standing: ScheduleState,
    pub last_fire_at: Option<UnixMicros>,
    pub last_task: Option<TaskId>,
    pub created_at: UnixMicros,
    pub updated_at: UnixMicros,
}

/// The new contents of a schedule.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleContents<'a> {
    pub rules: &'a Rules,
    pub payload: &'a [u8],
    pub standing: ScheduleState,
    pub wake_at: Option<UnixMicros>,
}

/// The caller's limit on the number of schedules. That of a queue is in its policy. `None`: no limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScheduleQuota<'a> {
    /// The most schedules of all the caller's queues.
    pub of_caller: Option<i64>,
    /// The caller's queues: names, or the beginnings of names followed by `*`. `None`: all queues.
    pub queues: Option<&'a [String]>,
}

/// The outcome of writing a schedule.
#[derive(Debug)]
pub enum ScheduleWrite {
    Done(Box<ScheduleRecord>),
    /// The schedule has changed since the caller read it, or one exists that the caller did not know.
    Overtaken,
    /// Other transactions held the schedule for longer than a change waits.
    Held,
    /// The queue has so many schedules, and may have no more than `most`.
    QueueFull {
        used: i64,
        most: i64,
    },
    /// The caller's queues have this many schedules, and may have no more.
    CallerFull(i64),
}

/// A decided fire time whose task is not written yet.
#[derive(Clone, Debug)]
pub struct FireRecord {
    /// The id of the task.
    pub id: TaskId,
    pub schedule: ScheduleName,
    pub fire: Fire,
    pub rules: Rules,
    pub payload: Vec<u8>,
}

/// A schedule that is due for a decision.
#[derive(Debug)]
pub struct DueSchedule {
    pub record: ScheduleRecord,
    /// Whether the last task is decided but not known to be written.
    pub pending: bool,
}

/// A schedule that this version cannot read. It does not keep the others from being read.
#[derive(Debug)]
pub struct Unreadable {
    pub name: ScheduleName,
    pub revision: Revision,
    pub why: sqlx::Error,
}

/// The number of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleCount {
    pub schedules: i64,
    /// Those whose `since` lies far ahead of the clock: it was set back.
    pub ahead: i64,
    /// Schedules and decided fire times that a clock which was ahead has put off.
    pub put_off: i64,
}

/// The longest times for which a schedule and a decided fire time wait for their next look, unless the schedule's next
/// fire time is later.
#[derive(Clone, Copy, Debug)]
pub struct LookedAtWithin {
    pub schedule: Duration,
    pub fire: Duration,
}

/// The schedules that are due for a decision.
#[derive(Debug)]
pub struct DueSchedules {
    pub schedules: Vec<Result<DueSchedule, Unreadable>>,
    /// The database's time. `arrived` is the instant at which it reached this node.
    pub now: UnixMicros,
    pub arrived: Instant,
    /// The time at which the next schedule is due.
    pub next_wake_at: Option<UnixMicros>,
    /// When the first of `schedules` came due.
    pub first_wake_at: Option<UnixMicros>,
}

impl ScheduleRecord {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            name: schedule_name(row, "name")?,
            revision: Revision(row.try_get("revision")?),
            rules: row.try_get::<Json<Rules>, _>("rules")?.0,
            payload: row.try_get("payload")?,
            standing: ScheduleState {
                next_at: super::optional_moment(row, "next_at")?,
                since: super::moment(row, "since")?,
                paused_at: super::optional_moment(row, "paused_at")?,
                buffered_at: super::optional_moment(row, "buffered_at")?,
            },
            last_fire_at: super::optional_moment(row, "last_fire_at")?,
            last_task: row.try_get::<Option<_>, _>("last_task")?.map(TaskId::from_uuid),
            created_at: super::moment(row, "created_at")?,
            updated_at: super::moment(row, "updated_at")?,
        })
    }
}

impl Database {
    /// Reads one schedule. `None`: there is no such schedule.
    pub async fn schedule_read(&self, name: &ScheduleName) -> Result<Option<ScheduleRecord>, Error> {
        Ok(self.schedule_rows(Some(name), None, 1, None, ScheduleRecord::read).await?.pop())
    }

    /// Lists at most `limit` schedules whose names come after `after`, by name, without their payloads. `queues`:
    /// names, or the beginnings of names followed by `*`; `None`: of all queues.
    pub async fn schedule_list(
        &self,
        after: Option<&str>,
        limit: i64,
        queues: Option<&[String]>,
    ) -> Result<Vec<ScheduleRecord>, Error> {
        self.schedule_rows(None, after, limit, queues, ScheduleRecord::read).await
    }

    /// Lists schedules of all queues like [`Self::schedule_list`]. One that cannot be read keeps its place.
    pub async fn schedule_page(
        &self,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<Result<ScheduleRecord, Unreadable>>, Error> {
        self.schedule_rows(None, after, limit, None, readable).await
    }

    async fn schedule_rows<T>(
        &self,
        name: Option<&ScheduleName>,
        after: Option<&str>,
        limit: i64,
        queues: Option<&[String]>,
        read: fn(&PgRow) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, Error> {
        self.run(StoreOp::ScheduleRead, |pool| async move {
            let query = sqlx::query(include_str!("queries/schedule_read.sql"));
            let query = query.bind(name.map(ScheduleName::as_str)).bind(after).bind(limit).bind(queues);
            query.fetch_all(&pool).await?.iter().map(read).collect()
        })
        .await
    }

    pub async fn schedule_add(
        &self,
        name: &ScheduleName,
        wish: ScheduleContents<'_>,
        quota: ScheduleQuota<'_>,
    ) -> Result<ScheduleWrite, Error> {
        self.run(StoreOp::ScheduleAdd, |pool| async move {
            let query = wish.bound_to(include_str!("queries/schedule_add.sql"), name);
            let query = query.bind(quota.of_caller).bind(quota.queues);
            written(&query.fetch_one(&pool).await?)
        })
        .await
    }

    /// Changes a schedule. A buffered fire time stays buffered. Only a schedule that comes
    /// from another queue needs room. Waits for transactions that hold the schedule.
    pub async fn schedule_change(
        &self,
        name: &ScheduleName,
        read: Revision,
        wish: ScheduleContents<'_>,
    ) -> Result<ScheduleWrite, Error> {
        self.run(StoreOp::ScheduleChange, |pool| async move {
            let mut held_since = None;
            loop {
                let query = wish.bound_to(include_str!("queries/schedule_change.sql"), name).bind(read.0);
                let row = query.fetch_one(&pool).await?;
                if !row.try_get::<bool, _>("held")? {
                    return written(&row);
                }
                if held_since.get_or_insert_with(Instant::now).elapsed() > HELD_WITHIN {
                    return Ok(ScheduleWrite::Held);
                }
                let held = sqlx::query(include_str!("queries/schedule_await.sql")).bind(name.as_str());
                held.execute(&pool).await?;
            }
        })
        .await
    }

    /// Stores a schedule's new state and the fire times that owe a task. `ids` are the ids of these tasks. The
    /// caller writes them within `hold`; after that any node may. `None`: the schedule has changed since the caller
    /// read it, and nothing was stored.
    pub async fn schedule_turn(
        &self,
        name: &ScheduleName,
        read: Revision,
        turn: &FireDecision,
        ids: &[TaskId],
        hold: Duration,
    ) -> Result<Option<ScheduleRecord>, Error> {
        let standing = turn.state;
        let times: Vec<_> = turn.fires.iter().map(|fire| fire.at.to_utc()).collect();
        let buffered: Vec<bool> = turn.fires.iter().map(|fire| fire.buffered).collect();
        self.run(StoreOp::ScheduleTurn, |pool| async move {
            let row = sqlx::query(statement!("schedule_turn"))
                .bind(name.as_str())
                .bind(read.0)
                .bind(standing.next_at.map(UnixMicros::to_utc))
                .bind(standing.since.to_utc())
                .bind(standing.paused_at.map(UnixMicros::to_utc))
                .bind(standing.buffered_at.map(UnixMicros::to_utc))
                .bind(turn.wake_at.map(UnixMicros::to_utc))
                .bind(uuids(ids))
                .bind(times)
                .bind(buffered)
                .bind(interval(hold))
                .fetch_optional(&pool)
                .await?;
            row.as_ref().map(ScheduleRecord::read).transpose()
        })
        .await
    }

    /// Postpones the next decision on schedules by `later`, except on those that were written since the caller read
    /// them. Returns those that other transactions hold.
    pub async fn schedule_postpone(
        &self,
        read: &[(&ScheduleName, Revision)],
        later: Duration,
    ) -> Result<Vec<Revision>, Error> {
        let (names, revisions): (Vec<&str>, Vec<i64>) =
            read.iter().map(|(name, revision)| (name.as_str(), revision.0)).unzip();
        self.run(StoreOp::SchedulePostpone, |pool| async move {
            let query = sqlx::query(include_str!("queries/schedule_postpone.sql"));
            let rows = query.bind(names).bind(revisions).bind(interval(later)).fetch_all(&pool).await?;
            rows.iter().map(|row| row.try_get("revision").map(Revision)).collect()
        })
        .await
    }

    /// Reads at most `most` schedules that have been due for a decision for longer than `lag`. It passes over those in
    /// `left_alone`, and those whose decision depends on a last task of the shards in `unknown`. `from`: the `wake_at`
    /// from which it looks; `None`: from the first that there may be.
    pub async fn schedule_due(
        &self,
        lag: Duration,
        most: i64,
        left_alone: &[Revision],
        unknown: &[ShardId],
        from: Option<UnixMicros>,
    ) -> Result<DueSchedules, Error> {
        let left_alone: Vec<i64> = left_alone.iter().map(|revision| revision.0).collect();
        let unknown = super::numbers(unknown);
        let mark = self.schedules_from(Instant::now());
        let from = from.map_or(mark, |from| from.max(mark));
        self.run(StoreOp::ScheduleDue, |pool| async move {
            let query =
                sqlx::query(include_str!("queries/schedule_due.sql")).bind(interval(lag)).bind(most).bind(left_alone);
            let rows = query.bind(from.to_utc()).bind(unknown).fetch_all(&pool).await?;
            let arrived = Instant::now();
            let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
            let (now, next_wake_at) = (super::moment(first, "now")?, super::optional_moment(first, "next_wake_at")?);
            let (mut first_wake_at, mut schedules) = (None, Vec::with_capacity(rows.len()));
            for row in &rows {
                // One that was postponed before this read locked it comes with its new moment.
                let wake_at = super::optional_moment(row, "wake_at")?;
                first_wake_at = first_wake_at.into_iter().chain(wake_at).min();
                if row.try_get::<Option<&str>, _>("name")?.is_some() {
                    schedules.push(due(row)?);
                }
            }
            Ok(DueSchedules { schedules, now, arrived, next_wake_at, first_wake_at })
        })
        .await
    }

    /// Postpones, on all nodes, at most `most` schedules that have been due for longer than `during`. They are among
    /// those in `undecided` and those whose decision depends on a last task of the shards in `unknown`. It passes over
    /// those that other transactions hold. `many_later`: by how much where there are `most`; otherwise by `later`.
    pub async fn schedule_overdue(
        &self,
        during: Duration,
        most: i64,
        undecided: &[Revision],
        unknown: &[ShardId],
        [later, many_later]: [Duration; 2],
    ) -> Result<(), Error> {
        let undecided: Vec<i64> = undecided.iter().map(|revision| revision.0).collect();
        let unknown = super::numbers(unknown);
        let from = self.schedules_from(Instant::now());
        self.run(StoreOp::ScheduleOverdue, |pool| async move {
            let query = sqlx::query(include_str!("queries/schedule_overdue.sql"));
            let query = query.bind(interval(during)).bind(most).bind(undecided).bind(from.to_utc()).bind(unknown);
            query.bind(interval(later)).bind(interval(many_later)).execute(&pool).await?;
            Ok(())
        })
        .await
    }

    /// Deletes a schedule. With `read`, deletes it only if it is still at that revision.
    /// Returns whether it was deleted.
    pub async fn schedule_delete(&self, name: &ScheduleName, read: Option<Revision>) -> Result<bool, Error> {
        self.run(StoreOp::ScheduleDelete, |pool| async move {
            let query = sqlx::query(include_str!("queries/schedule_delete.sql"));
            let query = query.bind(name.as_str()).bind(read.map(|read| read.0));
            Ok(query.fetch_optional(&pool).await?.is_some())
        })
        .await
    }

    /// Counts the schedules, those whose `since` is more than `ahead` ahead of the clock, and what is not looked at
    /// `within` these times.
    pub async fn schedule_count(&self, ahead: Duration, within: LookedAtWithin) -> Result<ScheduleCount, Error> {
        self.run(StoreOp::ScheduleCount, |pool| async move {
            let query = sqlx::query(include_str!("queries/schedule_count.sql")).bind(interval(ahead));
            let query = query.bind(interval(within.schedule)).bind(interval(within.fire));
            let row = query.fetch_one(&pool).await?;
            Ok(ScheduleCount {
                schedules: row.try_get("schedules")?,
                ahead: row.try_get("ahead")?,
                put_off: row.try_get("put_off")?,
            })
        })
        .await
    }

    /// Has schedules and decided fire times looked at now that are not looked at `within` these times, at most `most`
    /// of each. Returns their number.
    pub async fn schedule_wake(&self, within: LookedAtWithin, most: i64) -> Result<i64, Error> {
        self.run(StoreOp::ScheduleWake, |pool| async move {
            let query = sqlx::query(include_str!("queries/schedule_wake.sql"));
            let query = query.bind(interval(within.schedule)).bind(interval(within.fire)).bind(most);
            query.fetch_one(&pool).await?.try_get("woken")
        })
        .await
    }

    /// Names at most `most` schedules that make tasks of the queue, in the order of their names.
    pub async fn schedule_names(&self, queue: &QueueName, most: i64) -> Result<Vec<String>, Error> {
        self.run(StoreOp::ScheduleNames, |pool| async move {
            let query = sqlx::query(include_str!("queries/schedule_names.sql")).bind(queue.as_str()).bind(most);
            query.fetch_all(&pool).await?.iter().map(|row| row.try_get("name")).collect()
        })
        .await
    }

    /// Takes over, for `hold`, at most `most` decided fire times whose node has not written their tasks in time, and
    /// whose tasks belong to these shards.
    pub async fn fire_take(
        &self,
        hold: Duration,
        most: i64,
        shards: &[ShardId],
    ) -> Result<Vec<Result<FireRecord, sqlx::Error>>, Error> {
        let shards = super::numbers(shards);
        let from = self.fires_from(Instant::now());
        self.run(StoreOp::FireTake, |pool| async move {
            let query = sqlx::query(include_str!("queries/fire_take.sql"));
            let query = query.bind(interval(hold)).bind(most).bind(shards).bind(from.to_utc());
            Ok(query.fetch_all(&pool).await?.iter().map(fire).collect())
        })
        .await
    }

    /// Forgets these fire times, whose tasks are written.
    pub async fn fire_done(&self, ids: &[TaskId]) -> Result<(), Error> {
        self.run(StoreOp::FireDone, |pool| async move {
            sqlx::query(include_str!("queries/fire_done.sql")).bind(uuids(ids)).execute(&pool).await?;
            Ok(())
        })
        .await
    }

    /// Forgets the fire time of the task `decided`, whose key the task `there` has. If `decided` is the schedule's last
    /// task, `there` takes its place.
    pub async fn fire_found(&self, decided: TaskId, schedule: &ScheduleName, there: TaskId) -> Result<(), Error> {
        self.run(StoreOp::FireFound, |pool| async move {
            let query = sqlx::query(include_str!("queries/fire_found.sql"));
            query.bind(decided.uuid()).bind(schedule.as_str()).bind(there.uuid()).execute(&pool).await?;
            Ok(())
        })
        .await
    }
}

impl<'a> ScheduleContents<'a> {
    fn bound_to(self, statement: &'static str, name: &'a ScheduleName) -> Query<'a, Postgres, PgArguments> {
        sqlx::query(statement)
            .bind(name.as_str())
            .bind(Json(self.rules))
            .bind(self.payload)
            .bind(self.standing.next_at.map(UnixMicros::to_utc))
            .bind(self.standing.since.to_utc())
            .bind(self.standing.paused_at.map(UnixMicros::to_utc))
            .bind(self.wake_at.map(UnixMicros::to_utc))
    }
}

fn written(row: &PgRow) -> Result<ScheduleWrite, sqlx::Error> {
    if row.try_get("queue_full")? {
        return Ok(ScheduleWrite::QueueFull { used: row.try_get("of_queue")?, most: row.try_get("most_of_queue")? });
    }
    if row.try_get("caller_full")? {
        return Ok(ScheduleWrite::CallerFull(row.try_get("of_caller")?));
    }
    match row.try_get::<Option<&str>, _>("name")? {
        Some(_) => Ok(ScheduleWrite::Done(Box::new(ScheduleRecord::read(row)?))),
        None => Ok(ScheduleWrite::Overtaken),
    }
}

fn due(row: &PgRow) -> Result<Result<DueSchedule, Unreadable>, sqlx::Error> {
    let pending = row.try_get("pending")?;
    Ok(readable(row)?.map(|record| DueSchedule { record, pending }))
}

fn readable(row: &PgRow) -> Result<Result<ScheduleRecord, Unreadable>, sqlx::Error> {
    let (name, revision) = (schedule_name(row, "name")?, Revision(row.try_get("revision")?));
    Ok(ScheduleRecord::read(row).map_err(|why| Unreadable { name, revision, why }))
}

fn fire(row: &PgRow) -> Result<FireRecord, sqlx::Error> {
    Ok(FireRecord {
        id: super::task_id(row, "id")?,
        schedule: schedule_name(row, "schedule")?,
        fire: Fire { at: super::moment(row, "fire_at")?, buffered: row.try_get("buffered")? },
        rules: row.try_get::<Json<Rules>, _>("rules")?.0,
        payload: row.try_get("payload")?,
    })
}

fn schedule_name(row: &PgRow, column: &str) -> Result<ScheduleName, sqlx::Error> {
    Ok(ScheduleName::new(row.try_get::<&str, _>(column)?))
}
