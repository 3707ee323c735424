//! The moves that were asked for, and the standings of databases. The first database keeps both.

use std::time::Duration;

use common::{
    ids::{DatabaseName, NodeId, NodeName, ShardId},
    shard::{ShardSet, Standing, move_progress::MovePhase},
    time::UnixMicros,
    wire::shard::{EndedMoveView, MoveOutcome},
};
use sqlx::{Row, postgres::PgRow};

use super::{Database, Error, StoreOp, moment, move_rows::PageCursor, numbers, optional_moment, shard, unexpected};

/// The most ended moves that a list shows. No person reads more of them.
pub const ENDED_SHOWN: i64 = 100;

/// The ended moves that are kept for display.
const ENDED_KEPT: i64 = 10_000;

/// A shard that is asked to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedMove {
    pub shard: ShardId,
    pub source: DatabaseName,
    pub target: DatabaseName,
}

/// The outcome of a request for moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MovesAdded {
    All,
    /// Another request moves one of the shards. Nothing was added.
    UnderWay,
    /// These targets receive no shards. Nothing was added.
    Closed(Vec<String>),
}

/// A move that has not ended, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveRow {
    pub shard: ShardId,
    pub source: DatabaseName,
    pub target: DatabaseName,
    pub step: MovePhase,
    pub called_off_at: Option<UnixMicros>,
    pub requested_by: String,
    pub requested_at: UnixMicros,
    pub started_at: Option<UnixMicros>,
    /// How long claims stopped at the cut. `None`: it has not ended, or this is not known.
    pub cut: Option<Duration>,
    /// Whether the cut has ended.
    pub has_cut: bool,
    /// The page at which the copy goes on; `None`: from the beginning.
    pub page: Option<PageCursor>,
    pub rows_total: Option<i64>,
    pub rows_copied: i64,
    pub bytes_copied: i64,
    pub node: Option<NodeName>,
    pub problem: Option<String>,
    pub updated_at: UnixMicros,
}

/// How far a move is: for display, and for the next owner, who goes on with the page.
#[derive(Clone, Debug, Default)]
pub struct MoveNote<'a> {
    pub step: MovePhase,
    pub page: Option<&'a PageCursor>,
    pub rows_total: Option<i64>,
    pub rows_copied: i64,
    pub bytes_copied: i64,
    pub problem: Option<&'a str>,
    pub cut_ms: Option<i64>,
}

/// A standing, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingRow {
    pub name: DatabaseName,
    pub standing: Standing,
    pub since: UnixMicros,
}

impl Database {
    /// Adds moves, all of them or none.
    pub async fn move_add(&self, moves: &[AskedMove], by: &str) -> Result<MovesAdded, Error> {
        let shards: Vec<ShardId> = moves.iter().map(|asked| asked.shard).collect();
        let sources: Vec<&str> = moves.iter().map(|asked| asked.source.as_str()).collect();
        let targets: Vec<&str> = moves.iter().map(|asked| asked.target.as_str()).collect();
        let added = self
            .run(StoreOp::MoveAdd, |pool| async move {
                let row = sqlx::query(include_str!("queries/move_add.sql"))
                    .bind(numbers(&shards))
                    .bind(sources)
                    .bind(targets)
                    .bind(by)
                    .fetch_one(&pool)
                    .await?;
                row.try_get::<Option<Vec<String>>, _>("closed")
            })
            .await;
        match added {
            Ok(None) => Ok(MovesAdded::All),
            Ok(Some(closed)) => Ok(MovesAdded::Closed(closed)),
            Err(error) if error.sqlstate().as_deref() == Some("23505") => Ok(MovesAdded::UnderWay),
            Err(error) => Err(error),
        }
    }

    /// The moves that have not ended, in the order of their shards.
    pub async fn move_list(&self) -> Result<Vec<MoveRow>, Error> {
        self.run(StoreOp::MoveList, |pool| async move {
            let rows = sqlx::query(include_str!("queries/move_list.sql")).fetch_all(&pool).await?;
            rows.iter().map(MoveRow::read).collect()
        })
        .await
    }

    /// Notes how far the move of this request is. `false`: it is called off, or has ended, and its cut must not begin.
    pub async fn move_note(
        &self,
        shard: ShardId,
        requested_at: UnixMicros,
        node: &NodeId,
        note: &MoveNote<'_>,
    ) -> Result<bool, Error> {
        let page = note.page.map(|page| serde_json::to_string(page).unwrap_or_default());
        self.run(StoreOp::MoveNote, |pool| async move {
            let statement = sqlx::query(include_str!("queries/move_note.sql")).bind(i32::from(shard.number()));
            let statement = statement.bind(note.step.text()).bind(page).bind(note.rows_total);
            let statement = statement.bind(note.rows_copied).bind(note.bytes_copied).bind(node.name.as_str());
            let statement = statement.bind(note.problem).bind(note.cut_ms).bind(requested_at.to_utc());
            let done = statement.execute(&pool).await?;
            Ok(done.rows_affected() > 0)
        })
        .await
    }

    /// Ends the move of this request.
    pub async fn move_end(&self, shard: ShardId, requested_at: UnixMicros, outcome: MoveOutcome) -> Result<(), Error> {
        self.run(StoreOp::MoveEnd, |pool| async move {
            let statement = sqlx::query(include_str!("queries/move_end.sql")).bind(i32::from(shard.number()));
            let statement = statement.bind(outcome.text()).bind(ENDED_KEPT).bind(requested_at.to_utc());
            statement.execute(&pool).await.map(drop)
        })
        .await
    }

    /// The newest of the moves that have ended.
    pub async fn move_ended_list(&self) -> Result<Vec<EndedMoveView>, Error> {
        self.run(StoreOp::MoveEndedList, |pool| async move {
            let query = sqlx::query(include_str!("queries/move_ended_list.sql")).bind(ENDED_SHOWN);
            query.fetch_all(&pool).await?.iter().map(ended).collect()
        })
        .await
    }

    /// Calls off the moves of `shards` that are before their cut. Returns the shards of these moves, and those whose
    /// moves are past it.
    pub async fn move_call_off(&self, shards: &ShardSet) -> Result<(ShardSet, ShardSet), Error> {
        let shards: Vec<ShardId> = shards.iter().collect();
        self.run(StoreOp::MoveCallOff, |pool| async move {
            let query = sqlx::query(include_str!("queries/move_call_off.sql")).bind(numbers(&shards));
            let (mut done, mut too_late) = (Vec::new(), Vec::new());
            for row in &query.fetch_all(&pool).await? {
                let list = if row.try_get("done")? { &mut done } else { &mut too_late };
                list.push(shard(row, "shard")?);
            }
            Ok((done.into_iter().collect(), too_late.into_iter().collect()))
        })
        .await
    }

    /// The standings that are written. A database without one serves.
    pub async fn database_standings(&self) -> Result<Vec<StandingRow>, Error> {
        self.run(StoreOp::DatabaseStandingList, |pool| async move {
            let rows = sqlx::query(include_str!("queries/database_standing_list.sql")).fetch_all(&pool).await?;
            rows.iter().map(StandingRow::read).collect()
        })
        .await
    }

    /// Gives a database a standing.
    pub async fn database_standing_put(&self, name: &DatabaseName, standing: Standing) -> Result<StandingRow, Error> {
        self.run(StoreOp::DatabaseStandingPut, |pool| async move {
            let query = sqlx::query(include_str!("queries/database_standing_put.sql"));
            StandingRow::read(&query.bind(name.as_str()).bind(standing.text()).fetch_one(&pool).await?)
        })
        .await
    }

    /// Removes a database that drains since exactly `since`. `None`: its standing is another by now.
    pub async fn database_standing_remove(
        &self,
        name: &DatabaseName,
        since: UnixMicros,
    ) -> Result<Option<StandingRow>, Error> {
        self.run(StoreOp::DatabaseStandingRemove, |pool| async move {
            let query = sqlx::query(include_str!("queries/database_standing_remove.sql"));
            let row = query.bind(name.as_str()).bind(since.to_utc()).fetch_optional(&pool).await?;
            row.as_ref().map(StandingRow::read).transpose()
        })
        .await
    }

    /// Lets applications submit in SQL here (again).
    pub async fn producer_return(&self) -> Result<(), Error> {
        self.run(StoreOp::ProducerReturn, |pool| async move {
            sqlx::raw_sql(include_str!("queries/producer_return.sql")).execute(&pool).await.map(drop)
        })
        .await
    }

    /// Has submissions in SQL end with an error here, as far as this user may.
    pub async fn producer_revoke(&self) -> Result<(), Error> {
        self.run(StoreOp::ProducerRevoke, |pool| async move {
            sqlx::raw_sql(include_str!("queries/producer_revoke.sql")).execute(&pool).await.map(drop)
        })
        .await
    }
}

impl MoveRow {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let step: &str = row.try_get("step")?;
        let page: Option<&str> = row.try_get("page")?;
        let cut_ended_at = optional_moment(row, "cut_ended_at")?;
        let cut = optional_moment(row, "cut_began_at")?.zip(cut_ended_at).map(|(began_at, ended_at)| {
            let us = ended_at.micros().saturating_sub(began_at.micros());
            Duration::from_micros(u64::try_from(us).unwrap_or(0))
        });
        Ok(Self {
            shard: shard(row, "shard")?,
            source: name(row, "source")?,
            target: name(row, "target")?,
            step: MovePhase::parse(step).ok_or_else(|| unexpected("step", step))?,
            called_off_at: optional_moment(row, "called_off_at")?,
            requested_by: row.try_get("requested_by")?,
            requested_at: moment(row, "requested_at")?,
            started_at: optional_moment(row, "started_at")?,
            cut,
            has_cut: cut_ended_at.is_some(),
            // A page that this version cannot read: the copy begins anew, which only costs time.
            page: page.and_then(|page| serde_json::from_str(page).ok()),
            rows_total: row.try_get("rows_total")?,
            rows_copied: row.try_get("rows_copied")?,
            bytes_copied: row.try_get("bytes_copied")?,
            node: row.try_get::<Option<&str>, _>("node")?.map(NodeName::new),
            problem: row.try_get("problem")?,
            updated_at: moment(row, "updated_at")?,
        })
    }
}

impl StandingRow {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let text: &str = row.try_get("standing")?;
        let standing = Standing::parse(text).ok_or_else(|| unexpected("standing", text))?;
        Ok(Self { name: name(row, "name")?, standing, since: moment(row, "since")? })
    }
}

fn ended(row: &PgRow) -> Result<EndedMoveView, sqlx::Error> {
    let outcome: &str = row.try_get("outcome")?;
    Ok(EndedMoveView {
        shard: shard(row, "shard")?,
        from: name(row, "source")?,
        to: name(row, "target")?,
        outcome: MoveOutcome::parse(outcome).ok_or_else(|| unexpected("outcome", outcome))?,
        requested_by: row.try_get("requested_by")?,
        requested_at: moment(row, "requested_at")?,
        started_at: optional_moment(row, "started_at")?,
        cut_ms: row.try_get("cut_ms")?,
        rows_copied: row.try_get("rows_copied")?,
        bytes_copied: row.try_get("bytes_copied")?,
        ended_at: moment(row, "ended_at")?,
    })
}

fn name(row: &PgRow, column: &str) -> Result<DatabaseName, sqlx::Error> {
    Ok(DatabaseName::new(row.try_get::<&str, _>(column)?))
}
