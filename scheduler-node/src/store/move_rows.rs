//! The rows of a shard that moves: the pages of the copy, the changes, and what a move leaves behind.

use std::time::Instant;

use chrono::{DateTime, NaiveDate, Utc};
use common::{
    ids::{Epoch, ShardId},
    time::UnixMicros,
};
use serde::{Deserialize, Serialize};
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use uuid::Uuid;

use super::{
    Database, Error, StoreOp,
    moves::MoveFence,
    pace::{Pace, PacedLook},
};

/// The most rows of a page: some 10 ms of work in each database.
const PAGE_ROWS: u16 = 500;

/// The bytes beyond which neither a page nor a round takes a further row, by the estimate of `duetime.row_bytes`. On
/// the way a byte takes two to four.
const PAGE_BYTES: i64 = 2_000_000;

/// The most ids of one wake time that a page reads ahead. PostgreSQL keeps as many in the 4 MB of a sort (`work_mem`)
/// while it passes all others of that time; with 30,000 it writes all of them to its disk.
const AHEAD_IDS: i64 = 20_000;

/// The ids of the archive that a page walks over, of all shards: some 10 ms.
const PAGE_WALK: i64 = 20_000;

/// The most changes of a round.
const ROUND_CHANGES: i64 = 2_000;

/// The most changes that are deleted at once without their rows: tens of milliseconds of one connection. A shard cannot
/// change as fast, so a pass over its changes ends.
const FORGOTTEN_CHANGES: i64 = 10_000;

/// The place after which the copy goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum PageCursor {
    /// `ahead`: the next ids at this wake time, if there are many. They are not stored: another node reads them again.
    Tasks {
        wake_at: UnixMicros,
        id: Uuid,
        #[serde(skip)]
        ahead: Vec<Uuid>,
    },
    Ready {
        queue: String,
        priority: i32,
        lane: String,
        due_at: UnixMicros,
        id: Uuid,
    },
    Archive {
        drop_on: NaiveDate,
        id: Uuid,
    },
    Received {
        id: Uuid,
    },
    Done,
}

impl PageCursor {
    pub const FIRST: Self = Self::Tasks { wake_at: UnixMicros::FIRST, id: Uuid::nil(), ahead: Vec::new() };

    const READY: Self = Self::Ready {
        queue: String::new(),
        priority: 0,
        lane: String::new(),
        due_at: UnixMicros::FIRST,
        id: Uuid::nil(),
    };

    fn day_after(day: Option<NaiveDate>, days: &[NaiveDate]) -> Self {
        match days.iter().find(|next| day.is_none_or(|day| **next > day)) {
            Some(next) => Self::Archive { drop_on: *next, id: Uuid::nil() },
            None => Self::Received { id: Uuid::nil() },
        }
    }
}

/// Rows of the three tables, as text that a database of the same schema reads.
#[derive(Clone, Debug, Default)]
pub struct MoveRows {
    pub task_ids: Vec<Uuid>,
    pub tasks: Option<String>,
    pub days: Vec<NaiveDate>,
    pub archive_ids: Vec<Uuid>,
    pub archived: Option<String>,
    pub received_ids: Vec<Uuid>,
    pub received: Option<String>,
}

impl MoveRows {
    pub fn len(&self) -> usize {
        self.task_ids.len() + self.archive_ids.len() + self.received_ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A page of a shard.
#[derive(Clone, Debug)]
pub struct MovePage {
    pub rows: MoveRows,
    /// About the size of the rows.
    pub bytes: i64,
    pub next: PageCursor,
}

/// Turns of queues, in the order of their revisions.
#[derive(Clone, Debug, Default)]
pub struct MoveTurns {
    queues: Vec<String>,
    revisions: Vec<i64>,
    placed: Vec<i64>,
    reports_since: Vec<Option<DateTime<Utc>>>,
}

impl MoveTurns {
    /// The revision and the queue of the last one.
    pub fn last(&self) -> Option<(i64, String)> {
        Some((*self.revisions.last()?, self.queues.last()?.clone()))
    }
}

/// Changes of a leaving shard.
#[derive(Clone, Debug)]
pub struct MoveChanges {
    /// Ascending.
    pub numbers: Vec<i64>,
    pub rows: MoveRows,
    /// Whether there were no more when these were read.
    pub are_all: bool,
}

/// What a move has read and then writes, or deletes where it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveRead {
    Page,
    Round,
}

/// The paces of one move's writes, in whichever database they are: a read takes as few rows as its write needs. Each
/// move has its own. Another one from the same source may write quickly while a write of this one is late.
#[derive(Debug, Default)]
pub struct WritePaces {
    pages: Pace,
    rounds: Pace,
}

impl WritePaces {
    /// Takes note of the end of a write that began at `began`: after one that ran out of its time the next read takes
    /// a tenth, and after a quick one ten times as many.
    pub fn note<T>(&self, read: MoveRead, began: Instant, written: &Result<T, Error>) {
        let pace = match read {
            MoveRead::Page => &self.pages,
            MoveRead::Round => &self.rounds,
        };
        pace.begun(began).wrote(written);
    }
}

/// Changes of a shard without the rows that they are about.
#[derive(Clone, Debug)]
pub struct MoveNumbers {
    /// Ascending.
    pub numbers: Vec<i64>,
    /// Whether there were no more when these were read.
    pub are_all: bool,
}

impl Database {
    pub async fn move_estimate(&self, shard: ShardId) -> Result<i64, Error> {
        self.run(StoreOp::MoveEstimate, |pool| async move {
            let statement = sqlx::query(include_str!("queries/move_estimate.sql")).bind(i32::from(shard.number()));
            statement.fetch_one(&pool).await?.try_get("rows")
        })
        .await
    }

    /// Reads the page after `cursor`. `days`: the partitions to read; `with_rows`: not only the ids.
    pub async fn move_page(
        &self,
        shard: ShardId,
        cursor: &PageCursor,
        days: &[NaiveDate],
        with_rows: bool,
        writes: &WritePaces,
    ) -> Result<MovePage, Error> {
        let mut pace = self.paces.pages.begin();
        loop {
            let divisor = pace.divisor_before(&writes.pages);
            let Some(statement) = page_statement(shard, cursor, with_rows, divisor) else {
                return Ok(MovePage { rows: MoveRows::default(), bytes: 0, next: PageCursor::Done });
            };
            let read = self.run(StoreOp::MovePage, |pool| async move {
                let row = statement.fetch_one(&pool).await?;
                let next = next_page(&row, cursor, days)?;
                Ok(MovePage { rows: page_rows(&row, cursor)?, bytes: row.try_get("bytes")?, next })
            });
            let page = read.await;
            if !pace.comes_again(&page) {
                return page;
            }
        }
    }

    /// Reads the oldest changes of a leaving shard after the change of this number, and the rows that they are about.
    pub async fn move_changes(&self, shard: ShardId, after: i64, writes: &WritePaces) -> Result<MoveChanges, Error> {
        let mut pace = self.paces.rounds.begin();
        loop {
            let (changes, comes_again) = self.try_changes(shard, after, writes, &mut pace).await;
            if !comes_again {
                return changes;
            }
        }
    }

    /// Reads the oldest changes as [`Self::move_changes`] does, in one try: the shard is closed, and its tasks wait.
    /// After a try that ran out of its time, the next read takes a tenth.
    pub async fn move_last_changes(
        &self,
        shard: ShardId,
        after: i64,
        writes: &WritePaces,
    ) -> Result<MoveChanges, Error> {
        let (changes, _) = self.try_changes(shard, after, writes, &mut self.paces.rounds.begin()).await;
        changes
    }

    /// Tries to read changes once. Returns also whether another try would take fewer.
    async fn try_changes(
        &self,
        shard: ShardId,
        after: i64,
        writes: &WritePaces,
        pace: &mut PacedLook<'_>,
    ) -> (Result<MoveChanges, Error>, bool) {
        let most = ROUND_CHANGES / i64::from(pace.divisor_before(&writes.rounds));
        let changes = self.some_changes(shard, after, most).await;
        let comes_again = pace.comes_again(&changes);
        (changes, comes_again)
    }

    async fn some_changes(&self, shard: ShardId, after: i64, most: i64) -> Result<MoveChanges, Error> {
        self.run(StoreOp::MoveChanges, |pool| async move {
            let row = sqlx::query(include_str!("queries/move_changes.sql"))
                .bind(i32::from(shard.number()))
                .bind(most)
                .bind(PAGE_BYTES)
                .bind(after)
                .fetch_one(&pool)
                .await?;
            Ok(MoveChanges {
                numbers: row.try_get("numbers")?,
                rows: MoveRows {
                    task_ids: row.try_get("task_ids")?,
                    tasks: row.try_get("tasks")?,
                    days: row.try_get("days")?,
                    archive_ids: row.try_get("archive_ids")?,
                    archived: row.try_get("archived")?,
                    received_ids: row.try_get("received_ids")?,
                    received: row.try_get("received")?,
                },
                are_all: row.try_get("are_all")?,
            })
        })
        .await
    }

    /// Reads the numbers of the oldest changes of a shard after the change of this number. `None`: the fence is not
    /// `fence` any more.
    pub async fn move_numbers(
        &self,
        shard: ShardId,
        fence: &MoveFence,
        after: i64,
    ) -> Result<Option<MoveNumbers>, Error> {
        self.run(StoreOp::MoveNumbers, |pool| async move {
            let row = sqlx::query(include_str!("queries/move_numbers.sql"))
                .bind(i32::from(shard.number()))
                .bind(after)
                .bind(FORGOTTEN_CHANGES)
                .bind(fence.epoch.number())
                .bind(fence.status.text())
                .fetch_one(&pool)
                .await?;
            if !row.try_get::<bool, _>("has_fence")? {
                return Ok(None);
            }
            Ok(Some(MoveNumbers { numbers: row.try_get("numbers")?, are_all: row.try_get("are_all")? }))
        })
        .await
    }

    /// Deletes exactly these changes.
    pub async fn move_forget(&self, shard: ShardId, numbers: &[i64]) -> Result<(), Error> {
        self.run(StoreOp::MoveForget, |pool| async move {
            let statement = sqlx::query(include_str!("queries/move_forget.sql")).bind(i32::from(shard.number()));
            statement.bind(numbers).execute(&pool).await.map(drop)
        })
        .await
    }

    /// Reads the turns of queues after a revision and a queue.
    pub async fn move_turns(&self, (revision, queue): &(i64, String)) -> Result<MoveTurns, Error> {
        self.run(StoreOp::MoveTurns, |pool| async move {
            let statement = sqlx::query(include_str!("queries/move_turns.sql"));
            let rows = statement.bind(revision).bind(queue).bind(ROUND_CHANGES).fetch_all(&pool).await?;
            let mut turns = MoveTurns::default();
            for row in rows {
                turns.queues.push(row.try_get("queue")?);
                turns.revisions.push(row.try_get("revision")?);
                turns.placed.push(row.try_get("placed")?);
                turns.reports_since.push(row.try_get("reports_since")?);
            }
            Ok(turns)
        })
        .await
    }

    /// Notes turns of queues that this database may not know.
    pub async fn move_turns_write(&self, turns: &MoveTurns) -> Result<(), Error> {
        self.run(StoreOp::MoveTurnsWrite, |pool| async move {
            let statement = sqlx::query(include_str!("queries/move_turns_write.sql"));
            let statement = statement.bind(&turns.queues).bind(&turns.revisions).bind(&turns.placed);
            let statement = statement.bind(&turns.reports_since);
            statement.execute(&pool).await.map(drop)
        })
        .await
    }

    /// Writes rows into an arriving shard. `write` is the number of this node's write, over all moves; it ascends.
    /// `false`: a newer owner of the source fills the shard, or this write came late.
    pub async fn move_write(&self, shard: ShardId, epoch: Epoch, write: i64, rows: &MoveRows) -> Result<bool, Error> {
        self.run(StoreOp::MoveWrite, |pool| async move {
            let row = sqlx::query(include_str!("queries/move_write.sql"))
                .bind(i32::from(shard.number()))
                .bind(epoch.number())
                .bind(write)
                .bind(&rows.task_ids)
                .bind(&rows.tasks)
                .bind(&rows.days)
                .bind(&rows.archive_ids)
                .bind(&rows.archived)
                .bind(&rows.received_ids)
                .bind(&rows.received)
                .fetch_one(&pool)
                .await?;
            row.try_get("done")
        })
        .await
    }

    /// Deletes rows that a shard left behind. `closed`: the epoch of the closed shard. `false`: the shard has come
    /// back.
    pub async fn move_sweep(&self, shard: ShardId, closed: Epoch, rows: &MoveRows) -> Result<bool, Error> {
        self.run(StoreOp::MoveSweep, |pool| async move {
            let row = sqlx::query(include_str!("queries/move_sweep.sql"))
                .bind(i32::from(shard.number()))
                .bind(closed.number())
                .bind(&rows.task_ids)
                .bind(&rows.days)
                .bind(&rows.archive_ids)
                .bind(&rows.received_ids)
                .fetch_one(&pool)
                .await?;
            row.try_get("done")
        })
        .await
    }
}

/// The statement that reads the page after `cursor`, of a `divisor`-th of the rows. `None`: there are no more.
fn page_statement(
    shard: ShardId,
    cursor: &PageCursor,
    with_rows: bool,
    divisor: u16,
) -> Option<Query<'_, Postgres, PgArguments>> {
    let most = PAGE_ROWS / divisor;
    let (number, rows, walk) = (i32::from(shard.number()), i64::from(most), PAGE_WALK / i64::from(divisor));
    let statement = match cursor {
        PageCursor::Tasks { wake_at, id, ahead } => {
            let statement = sqlx::query(include_str!("queries/move_page_tasks.sql")).bind(number);
            let statement = statement.bind(wake_at.to_utc()).bind(id).bind(rows).bind(PAGE_BYTES);
            let next = ahead.chunks(usize::from(most)).next().unwrap_or_default();
            statement.bind(next).bind(AHEAD_IDS)
        }
        PageCursor::Ready { queue, priority, lane, due_at, id } => {
            let statement = sqlx::query(include_str!("queries/move_page_ready.sql")).bind(number);
            let statement = statement.bind(queue).bind(priority).bind(lane).bind(due_at.to_utc()).bind(id);
            statement.bind(rows).bind(PAGE_BYTES)
        }
        PageCursor::Archive { drop_on, id } => sqlx::query(include_str!("queries/move_page_archive.sql"))
            .bind(number)
            .bind(drop_on)
            .bind(id)
            .bind(walk)
            .bind(rows)
            .bind(PAGE_BYTES),
        PageCursor::Received { id } => {
            sqlx::query(include_str!("queries/move_page_received.sql")).bind(number).bind(id).bind(walk)
        }
        PageCursor::Done => return None,
    };
    Some(statement.bind(with_rows))
}

/// The place after the page in `row`: the rest of its part, or the next part.
fn next_page(row: &PgRow, cursor: &PageCursor, days: &[NaiveDate]) -> Result<PageCursor, sqlx::Error> {
    let moment = |column| Ok::<_, sqlx::Error>(UnixMicros::from(row.try_get::<DateTime<Utc>, _>(column)?));
    let last: Option<Uuid> = row.try_get("id")?;
    Ok(match (cursor, last) {
        (PageCursor::Tasks { ahead, .. }, Some(id)) => {
            let ahead: Vec<Uuid> = match ahead.iter().position(|next| *next == id) {
                Some(place) => ahead.iter().skip(place + 1).copied().collect(),
                None => row.try_get::<Option<Vec<Uuid>>, _>("ahead")?.unwrap_or_default(),
            };
            PageCursor::Tasks { wake_at: moment("wake_at")?, id, ahead }
        }
        (PageCursor::Tasks { .. }, None) => PageCursor::READY,
        (PageCursor::Ready { .. }, Some(id)) => PageCursor::Ready {
            queue: row.try_get("queue")?,
            priority: row.try_get("priority")?,
            lane: row.try_get("lane")?,
            due_at: moment("due_at")?,
            id,
        },
        (PageCursor::Ready { .. }, None) => PageCursor::day_after(None, days),
        (PageCursor::Archive { drop_on, .. }, Some(id)) => PageCursor::Archive { drop_on: *drop_on, id },
        (PageCursor::Archive { drop_on, .. }, None) => PageCursor::day_after(Some(*drop_on), days),
        (PageCursor::Received { .. }, Some(id)) => PageCursor::Received { id },
        (PageCursor::Received { .. } | PageCursor::Done, _) => PageCursor::Done,
    })
}

fn page_rows(row: &PgRow, cursor: &PageCursor) -> Result<MoveRows, sqlx::Error> {
    let (ids, text): (Vec<Uuid>, Option<String>) = (row.try_get("ids")?, row.try_get("rows")?);
    Ok(match cursor {
        PageCursor::Archive { drop_on, .. } => {
            let days = vec![*drop_on; ids.len()];
            MoveRows { days, archive_ids: ids, archived: text, ..MoveRows::default() }
        }
        PageCursor::Received { .. } => MoveRows { received_ids: ids, received: text, ..MoveRows::default() },
        _ => MoveRows { task_ids: ids, tasks: text, ..MoveRows::default() },
    })
}
