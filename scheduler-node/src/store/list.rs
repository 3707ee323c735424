//! Lists tasks, a page at a time, in the order of (due_at, id).
//!
//! Each page examines a bounded number of rows, whatever the filter and however many tasks there are. So a page may
//! hold fewer tasks than the limit, even none, and still have a next one.

use std::collections::HashSet;

use common::{
    ids::{QueueName, TaskId},
    task::TaskState,
    time::UnixMicros,
    wire::{Cursor, ListFilter},
};
use sqlx::{Row, postgres::PgRow};

use super::{Database, Error, StoreOp, lender::Lender, rows::TaskRecord};

/// The most rows examined for one page of one table: some 10 ms in memory. This stays well within the statement
/// timeout even if each row is a page read from a slow disk; long histories take longer. A list that finds too little
/// goes on for a second.
const LOOK: i64 = 5_000;

/// A part of a list, complete from its beginning to `next`.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub tasks: Vec<TaskRecord>,
    /// The place after which there may be more. `None`: the list is complete.
    pub next: Option<Cursor>,
}

impl Page {
    /// Merges several pages that began at the same place into one page of at most `limit` tasks. It goes no
    /// further than the earliest of their ends.
    pub fn merge(pages: impl IntoIterator<Item = Self>, limit: usize) -> Self {
        let pages: Vec<Self> = pages.into_iter().collect();
        let mut next = pages.iter().filter_map(|page| page.next.clone()).min_by_key(place);
        let mut seen = HashSet::new();
        // A task that was archived between two reads is in both pages. The later read counts.
        let mut tasks: Vec<TaskRecord> =
            pages.into_iter().rev().flat_map(|page| page.tasks).filter(|task| seen.insert(task.id)).collect();
        if let Some(end) = &next {
            tasks.retain(|task| place_of(task) <= place(end));
        }
        tasks.sort_by_key(place_of);
        if tasks.len() > limit {
            tasks.truncate(limit);
            next = tasks.last().map(cursor_of);
        }
        Self { tasks, next }
    }
}

/// The queues that a list without a queue covers.
#[derive(Clone, Debug)]
pub struct Among<'a> {
    /// The names of queues, at most some thousand.
    pub names: &'a [QueueName],
    /// Whether the list also covers queues that are not in `names`: deleted, or unknown to the caller.
    pub others: bool,
}

/// The most queue names that a statement finds for itself when it lists tasks of all queues. Each
/// costs a probe of every partition.
const HOPS: i32 = 2_000;

impl Database {
    /// Reads one page of this database's part of the list that `filter` describes. It reads the live tasks before
    /// the finished ones, so that a task that finishes in between is not missed.
    pub async fn task_list(&self, filter: &ListFilter, among: &Among<'_>) -> Result<Page, Error> {
        let elsewhere = self.elsewhere();
        let mut pages = Vec::with_capacity(2);
        for table in tables(filter.state) {
            let by_key = match filter.key {
                Some(_) => self.list_by_key(*table, filter, among, &elsewhere).await?,
                None => None,
            };
            pages.push(match by_key {
                Some(page) => page,
                None => self.list_in_time(*table, filter, among, &elsewhere).await?,
            });
        }
        Ok(Page::merge(pages, limit_of(filter)))
    }

    /// Reads a page by the tasks that have the key. `None`: some queue has too many of them, so the list has to walk.
    /// Beside an old transaction, the hop from queue to queue passes very many tasks that have ended. If it takes too
    /// long, the statement comes again for the named queues alone.
    async fn list_by_key(
        &self,
        table: Table,
        filter: &ListFilter,
        among: &Among<'_>,
        elsewhere: &[i32],
    ) -> Result<Option<Page>, Error> {
        // Only a filter by `error` reads histories, which may be slow. Fewer rows would make no other look quicker.
        let reads_histories = filter.error.is_some();
        let paces = &self.paces.lists[usize::from(reads_histories)];
        let mut pace = paces.begin();
        let mut hops = if among.others && filter.queue.is_none() { HOPS } else { 0 };
        loop {
            let look = if reads_histories { LOOK / i64::from(pace.divisor()) } else { LOOK };
            let bounds = Bounds { look, hops, elsewhere };
            let looked = self
                .run(StoreOp::TaskList, |pool| async move { by_key(&pool, table, filter, among, bounds).await })
                .await;
            let is_late = looked.as_ref().is_err_and(Error::is_out_of_time);
            if is_late && std::mem::take(&mut hops) > 0 {
                // It may be the hop that took so long, which says nothing of the histories.
                pace = paces.begin();
            } else if !(reads_histories && pace.comes_again(&looked)) {
                return looked;
            }
        }
    }

    /// Looks at fewer rows where a look runs out of its time.
    async fn list_in_time(
        &self,
        table: Table,
        filter: &ListFilter,
        among: &Among<'_>,
        elsewhere: &[i32],
    ) -> Result<Page, Error> {
        let mut pace = self.paces.lists[usize::from(filter.error.is_some())].begin();
        loop {
            let bounds = Bounds { look: LOOK / i64::from(pace.divisor()), hops: HOPS, elsewhere };
            let looked = self
                .run(StoreOp::TaskList, |pool| async move { walk(&pool, table, filter, among, bounds).await })
                .await;
            if !pace.comes_again(&looked) {
                return looked;
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Table {
    Live,
    Finished,
    /// The finished tasks that did not succeed.
    Failed,
}

impl Table {
    const fn walk(self) -> &'static str {
        match self {
            Self::Live => include_str!("queries/task_list.sql"),
            Self::Finished => include_str!("queries/task_list_finished.sql"),
            Self::Failed => include_str!("queries/task_list_failed.sql"),
        }
    }

    const fn by_key(self) -> &'static str {
        match self {
            Self::Live => include_str!("queries/task_list_key.sql"),
            Self::Finished | Self::Failed => include_str!("queries/task_list_key_finished.sql"),
        }
    }
}

/// The tables that hold tasks in `state`.
const fn tables(state: Option<TaskState>) -> &'static [Table] {
    match state {
        None => &[Table::Live, Table::Finished],
        Some(TaskState::Succeeded) => &[Table::Finished],
        Some(state) if state.is_final() => &[Table::Failed],
        Some(_) => &[Table::Live],
    }
}

/// The limits of a part.
#[derive(Clone, Copy, Debug)]
struct Bounds<'a> {
    /// The most rows that it examines.
    look: i64,
    /// The most queue names that it finds for itself.
    hops: i32,
    /// The shards whose tasks it leaves out.
    elsewhere: &'a [i32],
}

async fn by_key(
    pool: &Lender,
    table: Table,
    filter: &ListFilter,
    among: &Among<'_>,
    bounds: Bounds<'_>,
) -> Result<Option<Page>, sqlx::Error> {
    let names: Vec<&str> = among.names.iter().map(QueueName::as_str).collect();
    let rows = rows(pool, table.by_key(), filter, Some(&names), bounds).await?;
    for row in &rows {
        if row.try_get("too_many")? {
            return Ok(None);
        }
    }
    page_of(&rows, limit_of(filter)).map(Some)
}

async fn walk(
    pool: &Lender,
    table: Table,
    filter: &ListFilter,
    among: &Among<'_>,
    bounds: Bounds<'_>,
) -> Result<Page, sqlx::Error> {
    let names: Vec<&str> = among.names.iter().map(QueueName::as_str).collect();
    let rows = rows(pool, table.walk(), filter, (!among.others).then_some(&names), bounds).await?;
    page_of(&rows, limit_of(filter))
}

async fn rows(
    pool: &Lender,
    statement: &'static str,
    filter: &ListFilter,
    names: Option<&Vec<&str>>,
    bounds: Bounds<'_>,
) -> Result<Vec<PgRow>, sqlx::Error> {
    let (due_at, id) = start_of(filter);
    sqlx::query(statement)
        .bind(filter.queue.as_ref().map(QueueName::as_str))
        .bind(filter.state.map(TaskState::text))
        .bind(filter.partition_key.as_deref())
        .bind(due_at.to_utc())
        .bind(id.uuid())
        // The end is exclusive, and the last moment is a due time too.
        .bind(filter.due_before.unwrap_or(UnixMicros::new(UnixMicros::LAST.micros() + 1)).to_utc())
        .bind(bounds.look)
        .bind(i64::from(filter.limit()).saturating_add(1))
        .bind(filter.key.as_deref())
        .bind(filter.error.as_deref())
        .bind(names)
        .bind(bounds.hops)
        .bind(bounds.elsewhere)
        .fetch_all(pool)
        .await
}

/// Reads rows up to the one at which the statement stopped looking, or up to the limit.
fn page_of(rows: &[PgRow], limit: usize) -> Result<Page, sqlx::Error> {
    let mut page = Page::default();
    for row in rows {
        let mut task = TaskRecord::read(row)?;
        task.left_out = row.try_get("left_out")?;
        let place = cursor_of(&task);
        if row.try_get("hit")? {
            if page.tasks.len() == limit {
                page.next = page.tasks.last().map(cursor_of);
                return Ok(page);
            }
            page.tasks.push(task);
        }
        if row.try_get("looked_up_to")? {
            page.next = Some(place);
            return Ok(page);
        }
    }
    Ok(page)
}

/// The place after which the page begins: the later of the previous page's end and `due_after`.
fn start_of(filter: &ListFilter) -> (UnixMicros, TaskId) {
    let first = TaskId::from_uuid(uuid::Uuid::nil());
    let edge = (filter.due_after.unwrap_or(UnixMicros::new(BEFORE_ALL)), first);
    filter.cursor.as_ref().map_or(edge, |cursor| place(cursor).max(edge))
}

/// The year 0, which is before any task.
const BEFORE_ALL: i64 = -62_167_219_200_000_000;

fn limit_of(filter: &ListFilter) -> usize {
    usize::try_from(filter.limit()).unwrap_or(usize::MAX)
}

fn cursor_of(task: &TaskRecord) -> Cursor {
    Cursor { due_at: task.due_at, id: task.id, block: None }
}

fn place_of(task: &TaskRecord) -> (UnixMicros, TaskId) {
    (task.due_at, task.id)
}

fn place(cursor: &Cursor) -> (UnixMicros, TaskId) {
    (cursor.due_at, cursor.id)
}
