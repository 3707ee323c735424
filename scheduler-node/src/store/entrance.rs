//! Looks at each server to which a pool connects, before a statement uses the connection.

use std::{io, sync::Arc};

use common::cluster::seen::{Lineage, Lsn};
use sqlx::{PgConnection, Row, postgres::PgPoolOptions};
use tokio_util::sync::CancellationToken;

use super::history::{KnownHistory, Refusal, ServerState};

/// The check of every new connection of a pool.
#[derive(Clone, Debug)]
pub(super) struct Entrance {
    pub known: Arc<KnownHistory>,
    /// Whether the database has several servers, so that another one may take writes.
    pub several: bool,
    /// Ends the pools whose server is not the writer any more.
    pub ended: CancellationToken,
}

impl Entrance {
    /// Adds the check to a pool.
    pub(super) fn guard(&self, pool: PgPoolOptions) -> PgPoolOptions {
        let entrance = self.clone();
        pool.after_connect(move |connection, _| {
            let entrance = entrance.clone();
            Box::pin(async move { entrance.check(connection).await })
        })
    }

    async fn check(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let state = read_state(connection).await?;
        match self.known.admit(&state, self.several) {
            Ok(false) => Ok(()),
            Ok(true) => {
                // The older connections of the pools may lead to the server that was replaced.
                self.ended.cancel();
                Err(sqlx::Error::Io(io::Error::other("a standby was promoted; connecting anew")))
            }
            Err(refusal) => {
                // With one server, the name in the URL may lead to another one soon. The pool tries until its deadline.
                if self.several {
                    self.ended.cancel();
                } else if let Some(lineage) = state.lineage.as_ref().filter(|_| refusal.is_loss(false)) {
                    self.known.refuse(refusal, lineage);
                }
                Err(refused(refusal))
            }
        }
    }
}

/// The error for a server that must not be used. To the callers, that server is away.
pub(super) fn refused(refusal: Refusal) -> sqlx::Error {
    sqlx::Error::Io(io::Error::other(refusal))
}

pub(super) async fn read_state(connection: &mut PgConnection) -> Result<ServerState, sqlx::Error> {
    let row = sqlx::raw_sql(include_str!("queries/server_state.sql")).fetch_one(&mut *connection).await?;
    let is_standby = row.try_get("is_standby")?;
    let lineage = if is_standby { None } else { read_lineage(connection).await? };
    let (is_read_only, keeps_settings) = (row.try_get("is_read_only")?, row.try_get("keeps_settings")?);
    Ok(ServerState { is_standby, is_read_only, keeps_settings, lineage })
}

async fn read_lineage(connection: &mut PgConnection) -> Result<Option<Lineage>, sqlx::Error> {
    let row = match sqlx::raw_sql(include_str!("queries/server_history.sql")).fetch_one(&mut *connection).await {
        Ok(row) => row,
        // Some managed servers refuse these functions. Such a server is used without the fence.
        Err(sqlx::Error::Database(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let timeline = row.try_get("timeline")?;
    let left = if timeline == 1 {
        Some(Vec::new())
    } else if row.try_get("may_read_files")? {
        read_timelines(connection, timeline).await?
    } else {
        None
    };
    let flushed = Lsn::new(row.try_get("flushed")?);
    Ok(Some(Lineage { system: row.try_get("system_identifier")?, timeline, flushed, left }))
}

async fn read_timelines(connection: &mut PgConnection, timeline: i64) -> Result<Option<Vec<(i64, Lsn)>>, sqlx::Error> {
    let query = sqlx::query_scalar::<_, String>(include_str!("queries/server_timelines.sql")).bind(timeline);
    match query.persistent(false).fetch_one(connection).await {
        Ok(lines) => Ok(Some(timelines(&lines))),
        // The file is not there, or the server does not let the role read it after all.
        Err(sqlx::Error::Database(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a timeline history file.
fn timelines(lines: &str) -> Vec<(i64, Lsn)> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse().ok()?, Lsn::parse(words.next()?)?))
    };
    lines.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_history_file_is_read() {
        let lines = "1\t0/3000148\tno recovery target specified\n\n# a comment\n2\t16/B374D848\tbefore 2026-11-22\n";
        let expected = [("0/3000148", 1), ("16/B374D848", 2)].map(|(at, of)| (of, Lsn::parse(at).unwrap()));
        assert_eq!(timelines(lines), expected);
    }
}
