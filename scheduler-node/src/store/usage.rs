//! Measures how much of their limits queues use: their unfinished tasks and the bytes of these.

use common::{
    ids::{QueueName, TaskId},
    limit::Usage,
    time::UnixMicros,
};
use sqlx::Row;

use super::{Database, Error, StoreOp};

/// The most rows of one slice that are counted in the index: some 10 ms. No statement of a walk takes
/// longer, however many tasks there are.
const SLICE_ROWS: i64 = 20_000;

/// The most rows of one slice whose bytes are read from the table, where each row may lie on a page of its own.
const SLICE_ROWS_WITH_BYTES: i64 = 4_000;

/// The first rows that are counted where it matters whether a queue has a task at all. Even a slow disk reads this many
/// pages within a statement's time.
const FEW_ROWS: i64 = 300;

/// The most queues of one slice: some 10 ms if all of them are empty.
const SLICE_QUEUES: usize = 1_000;

/// A walk over the tasks of some queues.
#[derive(Debug)]
pub struct UsageWalk<'a> {
    queues: &'a [QueueName],
    /// The due time at which the walk begins in each queue.
    from: UnixMicros,
    /// The place that the walk has reached in the first of `queues`.
    after: (UnixMicros, TaskId),
    /// Whether the walk counts bytes too, which costs more.
    bytes: bool,
    /// The usage counted so far.
    pub usage: Usage,
    /// The earliest due time so far. `None`: the walk has found no task.
    pub oldest: Option<UnixMicros>,
}

/// The place before every task that is due at this moment or later.
const fn before(due_at: UnixMicros) -> (UnixMicros, TaskId) {
    (due_at, TaskId::from_uuid(uuid::Uuid::nil()))
}

impl<'a> UsageWalk<'a> {
    /// A walk over all tasks.
    pub fn new(queues: &'a [QueueName], bytes: bool) -> Self {
        Self::begin_at(UnixMicros::FIRST, queues, bytes)
    }

    /// A walk over the tasks that are due from then on.
    pub fn begin_at(from: UnixMicros, queues: &'a [QueueName], bytes: bool) -> Self {
        Self { queues, from, after: before(from), bytes, usage: Usage::default(), oldest: None }
    }

    pub const fn is_over(&self) -> bool {
        self.queues.is_empty()
    }
}

impl Database {
    /// Counts the first tasks of a queue in this database. Returns their number, which is 0 only if there are none, and
    /// whether there may be more.
    pub async fn queue_first(&self, queue: &QueueName) -> Result<(i64, bool), Error> {
        let mut walk = UsageWalk::new(std::slice::from_ref(queue), false);
        self.queue_usage_slice(&mut walk, FEW_ROWS).await?;
        // What a move of a shard has left here is passed.
        while walk.usage.tasks == 0 && !walk.is_over() {
            self.queue_usage(&mut walk).await?;
        }
        Ok((walk.usage.tasks, !walk.is_over()))
    }

    /// Counts one more slice of a walk.
    pub async fn queue_usage(&self, walk: &mut UsageWalk<'_>) -> Result<(), Error> {
        let rows = if walk.bytes { SLICE_ROWS_WITH_BYTES } else { SLICE_ROWS };
        self.queue_usage_slice(walk, rows).await
    }

    pub(super) async fn queue_usage_slice(&self, walk: &mut UsageWalk<'_>, rows: i64) -> Result<(), Error> {
        let some = &walk.queues[..walk.queues.len().min(SLICE_QUEUES)];
        let names: Vec<&str> = some.iter().map(QueueName::as_str).collect();
        let (due_at, id) = walk.after;
        let statement = if walk.bytes {
            include_str!("queries/queue_usage_bytes.sql")
        } else {
            include_str!("queries/queue_usage.sql")
        };
        let (elsewhere, from) = (self.elsewhere(), walk.from);
        let (usage, stopped, oldest) = self
            .run(StoreOp::QueueUsage, |pool| async move {
                let row = sqlx::query(statement)
                    .bind(names)
                    .bind(due_at.to_utc())
                    .bind(id.uuid())
                    .bind(rows)
                    .bind(elsewhere)
                    .bind(from.to_utc())
                    .fetch_one(&pool)
                    .await?;
                let usage = Usage { tasks: row.try_get("tasks")?, bytes: row.try_get("bytes")? };
                let stopped = match row.try_get::<Option<i64>, _>("nth")? {
                    Some(nth) => Some((nth, super::moment(&row, "due_at")?, super::task_id(&row, "id")?)),
                    None => None,
                };
                Ok((usage, stopped, super::optional_moment(&row, "oldest")?))
            })
            .await?;
        walk.usage = walk.usage.plus(usage);
        walk.oldest = walk.oldest.into_iter().chain(oldest).min();
        match stopped {
            Some((nth, due_at, id)) => {
                let passed = usize::try_from(nth - 1).unwrap_or(0).min(some.len());
                walk.queues = &walk.queues[passed..];
                walk.after = (due_at, id);
            }
            None => {
                walk.queues = &walk.queues[some.len()..];
                walk.after = before(walk.from);
            }
        }
        Ok(())
    }
}
