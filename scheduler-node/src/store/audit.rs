//! The audit log of actions by people and programs, kept in the first database only.

use std::{sync::LazyLock, time::Duration};

use common::{
    time::UnixMicros,
    wire::audit::{AuditCursor, AuditEventView, AuditFilter, AuditList},
};
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{
    Database, Error, StoreOp,
    claim::interval,
    conflict::{new_first, without},
    unexpected,
};
use crate::audit::AuditRecord;

const ADD: &str = include_str!("queries/audit_add.sql");

/// The statement for notes that are sent for the first time. See [`super::conflict`].
pub(super) static ADD_NEW: LazyLock<&'static str> = LazyLock::new(|| without("ON CONFLICT (id) DO NOTHING", ADD));

/// The most entries examined for one page: some 30 ms.
const LOOK: i64 = 20_000;

impl Database {
    /// Stores actions that were done on `node`. An entry that is stored already is not stored again.
    pub async fn audit_add(&self, notes: &[AuditRecord], node: &str) -> Result<(), Error> {
        self.run(StoreOp::AuditAdd, |pool| async move {
            new_first(*ADD_NEW, ADD, |text| add_query(text, notes, node).execute(&pool)).await.map(drop)
        })
        .await
    }

    /// Reads one page, newest first. A page can be short, even empty, and still have a next one.
    pub async fn audit_list(&self, filter: &AuditFilter) -> Result<AuditList, Error> {
        let (limit, edge) = (i64::from(filter.limit()), filter.edge());
        self.run(StoreOp::AuditList, |pool| async move {
            let rows = sqlx::query(include_str!("queries/audit_list.sql"))
                .bind(filter.who.as_deref())
                .bind(filter.what.as_deref())
                .bind(filter.target.as_deref())
                .bind(filter.after.unwrap_or(UnixMicros::FIRST).to_utc())
                .bind(edge.at.to_utc())
                .bind(edge.id)
                .bind(limit)
                .bind(LOOK)
                .fetch_all(&pool)
                .await?;
            let full = i64::try_from(rows.len()).is_ok_and(|count| count >= limit);
            let (mut deeds, mut goes_on) = (Vec::with_capacity(rows.len()), full);
            for row in &rows {
                if row.try_get("hit")? {
                    deeds.push(deed(row)?);
                }
                goes_on |= row.try_get::<bool, _>("looked_up_to")?;
            }
            let next_cursor = rows.last().filter(|_| goes_on).map(cursor).transpose()?;
            Ok(AuditList { deeds, next_cursor })
        })
        .await
    }

    /// Deletes at most `most` entries that are older than `keep`.
    pub async fn audit_forget(&self, keep: Duration, most: i64) -> Result<i64, Error> {
        self.run(StoreOp::AuditForget, |pool| async move {
            let query = sqlx::query(include_str!("queries/audit_forget.sql")).bind(interval(keep)).bind(most);
            query.fetch_one(&pool).await?.try_get("deeds")
        })
        .await
    }
}

/// Make it as late as possible: the database counts each age from the arrival of the statement.
fn add_query(text: &'static str, notes: &[AuditRecord], node: &str) -> Query<'static, Postgres, PgArguments> {
    let each = |text: fn(&AuditRecord) -> &str| notes.iter().map(text).collect::<Vec<&str>>();
    let some = |text: fn(&AuditRecord) -> Option<&str>| notes.iter().map(text).collect::<Vec<Option<&str>>>();
    let ids: Vec<uuid::Uuid> = notes.iter().map(|note| note.id).collect();
    let ago_ms: Vec<i64> =
        notes.iter().map(|note| i64::try_from(note.at.elapsed().as_millis()).unwrap_or(i64::MAX)).collect();
    let addresses: Vec<Option<String>> =
        notes.iter().map(|note| note.event.address.map(|address| address.to_string())).collect();
    let statuses: Vec<i32> = notes.iter().map(|note| note.event.status.into()).collect();
    let who_ids: Vec<Option<i64>> = notes.iter().map(|note| note.event.caller_id).collect();
    sqlx::query(text)
        .bind(ids)
        .bind(ago_ms)
        .bind(each(|note| &note.event.caller))
        .bind(each(|note| note.event.action.text()))
        .bind(each(|note| &note.event.target))
        .bind(addresses)
        .bind(statuses)
        .bind(some(|note| note.event.detail.as_deref()))
        .bind(some(|note| note.event.request_id.as_deref()))
        .bind(node)
        .bind(who_ids)
}

fn cursor(row: &PgRow) -> Result<AuditCursor, sqlx::Error> {
    Ok(AuditCursor { at: super::moment(row, "at")?, id: row.try_get("id")? })
}

fn deed(row: &PgRow) -> Result<AuditEventView, sqlx::Error> {
    let status: i32 = row.try_get("status")?;
    Ok(AuditEventView {
        at: super::moment(row, "at")?,
        who: row.try_get("who")?,
        who_id: row.try_get("who_id")?,
        what: row.try_get("what")?,
        target: row.try_get("target")?,
        address: row.try_get("address")?,
        status: u16::try_from(status).map_err(|_| unexpected("status", &status.to_string()))?,
        detail: row.try_get("detail")?,
        request_id: row.try_get("request_id")?,
        node: row.try_get("node")?,
    })
}
