//! The fence: a row for each shard that decides which node owns it.

use std::{collections::BTreeMap, sync::Arc};

use common::{
    ids::{DatabaseIndex, Epoch, NodeId, ShardId},
    shard::{FenceRow, ShardMap, ShardStatus},
};
use sqlx::{Row, postgres::PgRow};

use super::{Database, Effect, Error, StoreOp};

/// The statements that wait for fences, in the order in which they are tried.
const IN_TURN: &str = include_str!("queries/shard_acquire_in_turn.sql");
const WAITING: &str = include_str!("queries/shard_acquire.sql");

/// A fence row, for display.
#[derive(Clone, Debug)]
pub struct ShardRow {
    pub id: ShardId,
    pub epoch: Epoch,
    pub owner: Option<String>,
    pub incarnation: Option<uuid::Uuid>,
}

impl Database {
    /// Takes the fences of those of `shards` that no claim holds, for `node`, and leaves the others out. Once this
    /// returns, no claim under an older epoch of a taken shard can commit any more.
    pub async fn shard_acquire_free(&self, shards: &[ShardId], node: &NodeId) -> Result<Vec<(ShardId, Epoch)>, Error> {
        self.acquire(statement!("shard_acquire_free"), shards, node).await
    }

    /// Takes the fences of `shards` that this database has, all or none, as [`Self::shard_acquire_free`] does. It waits
    /// in turn with the claims, and when a claim hangs, for the claims that hold these fences.
    pub async fn shard_acquire(&self, shards: &[ShardId], node: &NodeId) -> Result<Vec<(ShardId, Epoch)>, Error> {
        match self.acquire(IN_TURN, shards, node).await {
            Err(error) if error.is_contention() => self.acquire(WAITING, shards, node).await,
            result => result,
        }
    }

    async fn acquire(
        &self,
        statement: &'static str,
        shards: &[ShardId],
        node: &NodeId,
    ) -> Result<Vec<(ShardId, Epoch)>, Error> {
        let (shards, closed) = (super::numbers(shards), self.closed.load_full());
        self.run(StoreOp::ShardAcquire, |pool| async move {
            let rows = sqlx::query(statement)
                .bind(shards)
                .bind(node.name.as_str())
                .bind(node.incarnation.uuid())
                .bind(closed.as_slice())
                .fetch_all(&pool)
                .await?;
            let acquired = |row: &PgRow| Ok((super::shard(row, "id")?, Epoch::from_store(row.try_get("epoch")?)));
            rows.iter().map(acquired).collect()
        })
        .await
    }

    /// Lists the shards whose presented epochs are still in force.
    pub async fn shard_held(&self, fences: &BTreeMap<ShardId, Epoch>) -> Result<Vec<ShardId>, Error> {
        let (shards, epochs): (Vec<i32>, Vec<i64>) =
            fences.iter().map(|(shard, epoch)| (i32::from(shard.number()), epoch.number())).unzip();
        self.run(StoreOp::ShardHeld, |pool| async move {
            let rows =
                sqlx::query(include_str!("queries/shard_held.sql")).bind(shards).bind(epochs).fetch_all(&pool).await?;
            rows.iter().map(|row| super::shard(row, "id")).collect()
        })
        .await
    }

    /// Reads the fence rows as far as they tell places, with their revision. No rows: the revision is still `known`, or
    /// this database has no shards.
    pub async fn shard_map_read(&self, known: Option<i64>) -> Result<(i64, Vec<FenceRow>), Error> {
        self.run(StoreOp::ShardMapRead, |pool| async move {
            let rows = sqlx::query(include_str!("queries/shard_map_read.sql")).bind(known).fetch_all(&pool).await?;
            let revision = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("revision")?;
            Ok((revision, rows.iter().filter_map(|row| fence_row(row).transpose()).collect::<Result<_, _>>()?))
        })
        .await
    }

    /// The error for a read of the places that takes too long.
    pub(super) fn silent_map(&self) -> Error {
        Error { database: self.name.clone(), op: StoreOp::ShardMapRead, effect: Effect::None, source: None }
    }

    /// Takes note of the shards that statements have to leave out, and of those that are closed.
    pub(super) fn note_places(&self, map: &ShardMap, me: DatabaseIndex) {
        let numbers = |shards: &mut dyn Iterator<Item = ShardId>| {
            Arc::new(shards.map(|shard| shard.number().into()).collect::<Vec<i32>>())
        };
        self.elsewhere.store(numbers(&mut map.elsewhere(me)));
        self.closed.store(numbers(&mut map.closed(me)));
    }

    /// The shards of which this database has rows although their place is another one. A statement that ranges over
    /// shards leaves them out.
    pub(super) fn elsewhere(&self) -> Vec<i32> {
        self.elsewhere.load().to_vec()
    }

    pub async fn shards_read(&self) -> Result<Vec<ShardRow>, Error> {
        self.run(StoreOp::ShardRead, |pool| async move {
            let rows = sqlx::query(include_str!("queries/shard_read.sql")).fetch_all(&pool).await?;
            rows.iter()
                .map(|row| {
                    Ok(ShardRow {
                        id: super::shard(row, "id")?,
                        epoch: Epoch::from_store(row.try_get("epoch")?),
                        owner: row.try_get("owner")?,
                        incarnation: row.try_get("incarnation")?,
                    })
                })
                .collect()
        })
        .await
    }
}

/// `None`: the row tells the revision only.
fn fence_row(row: &PgRow) -> Result<Option<FenceRow>, sqlx::Error> {
    let Some(status) = row.try_get::<Option<&str>, _>("status")? else { return Ok(None) };
    let status = ShardStatus::parse(status).ok_or_else(|| super::unexpected("status", status))?;
    Ok(Some(FenceRow { shard: super::shard(row, "id")?, status, epoch: Epoch::from_store(row.try_get("epoch")?) }))
}
