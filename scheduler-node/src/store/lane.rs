//! Tasks that wait for room in their queue: counts them, and starts them lane by lane.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use common::{
    ids::{Epoch, QueueName, ShardId, TaskId},
    priority::{LEVELS, Levels},
    time::UnixMicros,
};
use sqlx::{Row, postgres::PgRow};

use super::{
    Database, Error, StoreOp,
    claim::{Claimed, LOOK_AGAIN_AFTER, interval, pairs},
    submit::Window,
};

/// The most steps from lane to lane of one pick, for each priority: some ten milliseconds. The next pick
/// continues with the lanes beyond.
const STEPS: i32 = 1_000;

/// How far ahead of its due time a task of a queue with a limit or a rate is started: the usual lead of a claim.
pub const STARTED_AHEAD: Duration = Duration::from_millis(100);

/// The same for queues without either, which nothing holds back: any time that a claim may be ahead.
pub const STARTED_FAR_AHEAD: Duration = Duration::from_secs(10);

/// The numbers of a queue's tasks in some shards that wait for room, or that take up room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    /// The tasks that wait for room, by priority, counted up to a bound.
    pub ready: Levels,
    /// The shards that have tasks waiting for room.
    pub shards: BTreeSet<ShardId>,
    /// The started tasks without an outcome that the queue's limit counts.
    pub out: usize,
}

/// The lane at which a walk from lane to lane ended. The next walk begins with the lanes after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneEnd {
    pub shard: ShardId,
    pub lane: String,
}

/// The ends of a queue's walks, one for each priority. `None`: that priority had no walk.
pub type LaneEnds = [Option<LaneEnd>; LEVELS];

/// The results of a pick's walks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walks {
    pub ends: LaneEnds,
    /// Whether each priority's walk used up its steps before it came round. The lanes beyond were not examined.
    pub cut: [bool; LEVELS],
    /// When the first of the tasks comes due that the walks found, and that are due too late to be started now.
    pub comes_due: Option<UnixMicros>,
    /// The tasks that a pick with an empty `only` would start.
    candidates: Vec<TaskId>,
}

/// The tasks that a pick may take.
#[derive(Clone, Debug)]
pub struct Pick<'a> {
    pub queue: &'a QueueName,
    pub fences: &'a BTreeMap<ShardId, Epoch>,
    pub wanted: Levels,
    pub after: &'a LaneEnds,
    /// Whether to start one task of a partition key at a time, in the order of their due times.
    pub ordered: bool,
    /// Whether the started tasks count towards the queue's limit.
    pub counted: bool,
    /// The revision of the queues from which the caller made this pick. Nothing is started if the
    /// queue's policy has changed since.
    pub known: i64,
    /// How far ahead of its due time a task may be started.
    pub ahead: Duration,
    /// Tasks that the database refuses to start.
    pub aside: &'a [TaskId],
    /// Restricts the pick to these of the tasks that it would start. Empty: it starts
    /// none and returns candidates only.
    pub only: Option<&'a [TaskId]>,
    /// Tasks that are due earlier are left out. `None`: none is.
    pub from: Option<UnixMicros>,
}

impl Database {
    /// Finds the due time of a queue's oldest ready task in any shard, among those that are due at `from` or later; or
    /// the database's time, if there is none.
    pub async fn ready_oldest(&self, queue: &QueueName, from: Option<UnixMicros>) -> Result<UnixMicros, Error> {
        let ahead = interval(STARTED_FAR_AHEAD);
        self.run(StoreOp::ReadyOldest, |pool| async move {
            let query = sqlx::query(include_str!("queries/ready_oldest.sql"));
            let query = query.bind(queue.as_str()).bind(from.map(UnixMicros::to_utc)).bind(ahead);
            let row = query.fetch_one(&pool).await?;
            super::moment(&row, "oldest")
        })
        .await
    }

    /// Counts at most `most` ready tasks of each priority, of those that are due at `from` or later. If `limit` is
    /// given, also counts started tasks, up to that limit.
    pub async fn lane_read(
        &self,
        queue: &QueueName,
        shards: &[ShardId],
        most: usize,
        limit: Option<i64>,
        from: Option<UnixMicros>,
    ) -> Result<LaneCounts, Error> {
        let shards = super::numbers(shards);
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.run(StoreOp::LaneRead, |pool| async move {
            let rows = sqlx::query(include_str!("queries/lane_read.sql"))
                .bind(queue.as_str())
                .bind(shards)
                .bind(most)
                .bind(limit.unwrap_or(0))
                .bind(from.map(UnixMicros::to_utc))
                .fetch_all(&pool)
                .await?;
            let mut counts = LaneCounts::default();
            for (row, ready) in rows.iter().zip(&mut counts.ready) {
                *ready = count(row, "ready")?;
                counts.out = count(row, "out")?;
                counts.shards.extend(super::shards(row, "shards")?);
            }
            Ok(counts)
        })
        .await
    }

    /// Lists the tasks that `pick` would start, without starting them.
    pub async fn task_pick_candidates(&self, pick: &Pick<'_>) -> Result<Vec<TaskId>, Error> {
        let (_, walks) = self.task_pick(&Pick { only: Some(&[]), ..pick.clone() }).await?;
        Ok(walks.candidates)
    }

    /// Starts as many of the tasks that `pick` asks for as it can. Also returns the lane at
    /// which each priority's walk ended.
    pub async fn task_pick(&self, pick: &Pick<'_>) -> Result<(Claimed, Walks), Error> {
        self.task_pick_within(pick, Window::first(self)).await
    }

    /// Like `task_pick`. A pick that begins after its window starts nothing.
    pub(super) async fn task_pick_within(&self, pick: &Pick<'_>, window: Window) -> Result<(Claimed, Walks), Error> {
        let (shards, epochs) = pairs(pick.fences);
        let mut begin = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (level, wanted) in pick.wanted.into_iter().enumerate().filter(|(_, wanted)| *wanted > 0) {
            let (place, lane) = begin_of(pick.fences, pick.after[level].as_ref());
            begin.0.push(i16::try_from(level + 1).unwrap_or(i16::MAX));
            begin.1.push(i32::try_from(wanted).unwrap_or(i32::MAX));
            begin.2.push(place);
            begin.3.push(lane);
        }
        let query = sqlx::query(statement!("task_pick"))
            .bind(pick.queue.as_str())
            .bind(shards)
            .bind(epochs)
            .bind(interval(LOOK_AGAIN_AFTER))
            .bind(begin.0)
            .bind(begin.1)
            .bind(begin.2)
            .bind(begin.3)
            .bind(STEPS)
            .bind(pick.ordered)
            .bind(pick.counted)
            .bind(pick.known)
            .bind(super::uuids(pick.aside))
            .bind(pick.only.map(super::uuids))
            .bind(window.until.to_utc())
            .bind(interval(pick.ahead))
            .bind(pick.from.map(UnixMicros::to_utc));
        self.claimed_with(StoreOp::TaskPick, pick.fences, query, walks).await
    }
}

/// The place of a shard among those presented, counted from 1, and the lane after which the walk begins in it. A
/// shard that this node no longer owns gives way to the next one.
fn begin_of(fences: &BTreeMap<ShardId, Epoch>, after: Option<&LaneEnd>) -> (i32, String) {
    let Some(end) = after else { return (1, String::new()) };
    let place = fences.range(..end.shard).count();
    let lane = if fences.contains_key(&end.shard) { end.lane.clone() } else { String::new() };
    (i32::try_from(place % fences.len().max(1) + 1).unwrap_or(1), lane)
}

fn walks(row: &PgRow) -> Result<Walks, sqlx::Error> {
    let mut cut = [false; LEVELS];
    for priority in row.try_get::<Vec<i16>, _>("cut")? {
        let level = usize::try_from(priority - 1).ok().and_then(|level| cut.get_mut(level));
        *level.ok_or_else(|| super::unexpected("cut", &priority.to_string()))? = true;
    }
    let candidates: Option<Vec<uuid::Uuid>> = row.try_get("candidates")?;
    let candidates = candidates.unwrap_or_default().into_iter().map(TaskId::from_uuid).collect();
    Ok(Walks { ends: ends(row)?, cut, comes_due: super::optional_moment(row, "comes_due")?, candidates })
}

/// Reads the ends of walks. The statement writes them as "priority shard lane"; a lane may have spaces in it.
fn ends(row: &PgRow) -> Result<LaneEnds, sqlx::Error> {
    let texts: Vec<String> = row.try_get("ends")?;
    let mut ends = LaneEnds::default();
    for text in texts {
        let mut words = text.splitn(3, ' ');
        let priority = words.next().and_then(|word| word.parse::<usize>().ok());
        let shard = words.next().and_then(|word| word.parse().ok());
        match (priority, shard, words.next()) {
            (Some(priority @ 1..=LEVELS), Some(shard), Some(lane)) => {
                ends[priority - 1] = Some(LaneEnd { shard: ShardId::new(shard), lane: lane.to_owned() });
            }
            _ => return Err(super::unexpected("ends", &text)),
        }
    }
    Ok(ends)
}

fn count(row: &PgRow, column: &str) -> Result<usize, sqlx::Error> {
    let count: i64 = row.try_get(column)?;
    usize::try_from(count).map_err(|_| super::unexpected(column, &count.to_string()))
}
