//! The fence: who owns a shard, in fact.

use std::collections::BTreeMap;

use common::{
    ids::{Epoch, NodeId, ShardId},
    time::UnixMicros,
};
use sqlx::Row;

use super::{Database, Error, StoreOp};

/// A fence row as people are shown it.
#[derive(Clone, Debug)]
pub struct ShardRow {
    pub id: ShardId,
    pub epoch: Epoch,
    pub owner: Option<String>,
    pub incarnation: Option<uuid::Uuid>,
    pub acquired_at: Option<UnixMicros>,
}

impl Database {
    /// Takes the fence of `shards` for `node`. When this returns, no claim under an older epoch can commit any more.
    pub async fn shard_acquire(&self, shards: &[ShardId], node: &NodeId) -> Result<Vec<(ShardId, Epoch)>, Error> {
        let shards = super::numbers(shards);
        self.run(StoreOp::ShardAcquire, |pool| async move {
            let rows = sqlx::query(include_str!("queries/shard_acquire.sql"))
                .bind(shards)
                .bind(node.name.as_str())
                .bind(node.incarnation.uuid())
                .fetch_all(&pool)
                .await?;
            rows.iter().map(|row| Ok((super::shard(row, "id")?, Epoch::from_store(row.try_get("epoch")?)))).collect()
        })
        .await
    }

    /// Which of the presented epochs are still in force.
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
                        acquired_at: super::optional_moment(row, "acquired_at")?,
                    })
                })
                .collect()
        })
        .await
    }
}
