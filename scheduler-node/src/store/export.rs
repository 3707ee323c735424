//! Reads tasks whole, with every field that a submission can set.

use common::{
    retry::RetryPolicy,
    task::{Dependency, Envelope},
};
use sqlx::{Row, postgres::PgRow, types::Json};

use super::{
    Database, Error, StoreOp,
    bulk::{FoundTask, Walk, archived},
    rows::TaskRecord,
};

/// A task, with the fields that only its submission sets.
#[derive(Clone, Debug)]
pub struct WholeTask {
    pub record: TaskRecord,
    pub timeout_ms: Option<i64>,
    pub retry: Option<RetryPolicy>,
    pub envelope: Option<Box<Envelope>>,
    /// The dependencies for which the task still waits.
    pub depends_on: Vec<Dependency>,
}

impl Database {
    /// Reads those of `tasks` that are still where `walk` found them, in the order of the walk.
    pub async fn export_read(&self, walk: Walk, tasks: &[FoundTask]) -> Result<Vec<WholeTask>, Error> {
        self.run(StoreOp::ExportRead, |pool| async move {
            let rows = match walk {
                Walk::Live { .. } | Walk::LiveBack => {
                    let ids: Vec<uuid::Uuid> = tasks.iter().map(|found| found.seen.id.uuid()).collect();
                    sqlx::query(include_str!("queries/export_read.sql")).bind(ids).fetch_all(&pool).await?
                }
                Walk::Failed { .. } | Walk::Finished => {
                    let (days, ids) = archived(tasks);
                    let read = sqlx::query(include_str!("queries/export_read_finished.sql")).bind(days).bind(ids);
                    read.fetch_all(&pool).await?
                }
            };
            rows.iter().map(whole).collect()
        })
        .await
    }
}

fn whole(row: &PgRow) -> Result<WholeTask, sqlx::Error> {
    let retry: Option<Json<RetryPolicy>> = row.try_get("retry")?;
    let envelope: Option<Json<Box<Envelope>>> = row.try_get("envelope")?;
    let names: Option<Vec<String>> = row.try_get("depends_on")?;
    Ok(WholeTask {
        record: TaskRecord::read(row)?,
        timeout_ms: row.try_get("timeout_ms")?,
        retry: retry.map(|retry| retry.0),
        envelope: envelope.map(|envelope| envelope.0),
        depends_on: names.iter().flatten().filter_map(|name| Dependency::of_name(name)).collect(),
    })
}
