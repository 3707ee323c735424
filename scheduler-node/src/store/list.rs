//! Lists tasks, a page at a time, in the order of (due_at, id).
//!
//! No page costs more than looking at a bounded number of rows, whatever the filter and however many tasks there are: a
//! page may hold fewer tasks than asked for, even none, and still have a next one.

use std::collections::HashSet;

use common::{
    ids::TaskId,
    task::TaskState,
    time::UnixMicros,
    wire::{Cursor, ListFilter},
};
use sqlx::{PgPool, Row, postgres::PgRow};

use super::{Database, Error, StoreOp, rows::TaskRecord};

/// Rows looked at for one page of one table: some 20 ms.
const LOOK: i64 = 20_000;

/// Part of a list, complete from its beginning to `next`.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub tasks: Vec<TaskRecord>,
    /// There may be more after this. `None`: this is all.
    pub next: Option<Cursor>,
}

impl Page {
    /// One page from several that began at the same place: what all of them have seen, at most `limit` tasks.
    pub fn merge(pages: impl IntoIterator<Item = Self>, limit: usize) -> Self {
        let pages: Vec<Self> = pages.into_iter().collect();
        let mut next = pages.iter().filter_map(|page| page.next).min_by_key(place);
        let mut seen = HashSet::new();
        // A task that was archived between two looks is in both: the later look counts.
        let mut tasks: Vec<TaskRecord> =
            pages.into_iter().rev().flat_map(|page| page.tasks).filter(|task| seen.insert(task.id)).collect();
        if let Some(end) = &next {
            tasks.retain(|task| place(&cursor_of(task)) <= place(end));
        }
        tasks.sort_by_key(|task| (task.due_at, task.id));
        if tasks.len() > limit {
            tasks.truncate(limit);
            next = tasks.last().map(cursor_of);
        }
        Self { tasks, next }
    }
}

impl Database {
    /// One page of what this database has of the list that `filter` asks for. The live tasks are read before the finished
    /// ones, so that one that finishes meanwhile is not missed.
    pub async fn task_list(&self, filter: &ListFilter) -> Result<Page, Error> {
        self.run(StoreOp::TaskList, |pool| async move {
            let mut pages = Vec::with_capacity(2);
            for statement in statements(filter.state) {
                pages.push(part(&pool, statement, filter).await?);
            }
            Ok(Page::merge(pages, limit_of(filter)))
        })
        .await
    }
}

/// The tables that tasks in `state` are in.
fn statements(state: Option<TaskState>) -> Vec<&'static str> {
    let live = include_str!("queries/task_list.sql");
    let finished = include_str!("queries/task_list_finished.sql");
    match state {
        None => vec![live, finished],
        Some(TaskState::Succeeded) => vec![finished],
        Some(state) if state.is_final() => vec![include_str!("queries/task_list_failed.sql")],
        Some(_) => vec![live],
    }
}

async fn part(pool: &PgPool, statement: &'static str, filter: &ListFilter) -> Result<Page, sqlx::Error> {
    let limit = limit_of(filter);
    let after = start_of(filter);
    let rows = sqlx::query(statement)
        .bind(filter.queue.as_ref().map(|queue| queue.as_str()))
        .bind(filter.state.map(TaskState::text))
        .bind(filter.partition_key.as_deref())
        .bind(after.due_at.to_utc())
        .bind(after.id.uuid())
        .bind(filter.due_before.unwrap_or(UnixMicros::LAST).to_utc())
        .bind(LOOK)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1))
        .bind(filter.key.as_deref())
        .bind(filter.error.as_deref())
        .fetch_all(pool)
        .await?;
    page_of(&rows, limit)
}

/// Takes rows up to the one at which the looking ended, or up to the limit.
fn page_of(rows: &[PgRow], limit: usize) -> Result<Page, sqlx::Error> {
    let mut page = Page::default();
    for row in rows {
        let task = TaskRecord::read(row)?;
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

/// The place after which the page begins: the later one of where the page before ended and `due_after`.
fn start_of(filter: &ListFilter) -> Cursor {
    let nobody = TaskId::from_uuid(uuid::Uuid::nil());
    let from = filter.due_after.unwrap_or(UnixMicros::new(BEFORE_ALL));
    let edge = Cursor { due_at: from, id: nobody };
    match filter.cursor {
        Some(cursor) if place(&cursor) > place(&edge) => cursor,
        _ => edge,
    }
}

/// Year 0: before any task.
const BEFORE_ALL: i64 = -62_167_219_200_000_000;

fn limit_of(filter: &ListFilter) -> usize {
    usize::try_from(filter.limit()).unwrap_or(usize::MAX)
}

fn cursor_of(task: &TaskRecord) -> Cursor {
    Cursor { due_at: task.due_at, id: task.id }
}

fn place(cursor: &Cursor) -> (UnixMicros, TaskId) {
    (cursor.due_at, cursor.id)
}
