//! The fence: who owns a shard, in fact.

use std::collections::BTreeMap;

use common::{
    ids::{Epoch, NodeId, ShardId},
    time::UnixMicros,
};
use sqlx::{Row, postgres::PgRow};

use super::{Database, Error, StoreOp};

/// Shards that could not be taken one by one either, before the rest is not tried so any more: each costs a quarter of a second.
const CONTESTED_MOST: usize = 8;

fn acquired(row: &PgRow) -> Result<(ShardId, Epoch), sqlx::Error> {
    Ok((super::shard(row, "id")?, Epoch::from_store(row.try_get("epoch")?)))
}

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
    /// Takes the fences of `shards` for `node`. When this returns, no claim under an older epoch can commit any more. When claims are in
    /// the way of some, those are left out, and the others are taken; an error when there are no others.
    pub async fn shard_acquire(&self, shards: &[ShardId], node: &NodeId) -> Result<Vec<(ShardId, Epoch)>, Error> {
        let mut error = match self.acquire_together(shards, node).await {
            Err(error) if error.is_contention() => error,
            answer => return answer,
        };
        let mut taken = Vec::with_capacity(shards.len());
        let mut left = Vec::new();
        for shard in shards {
            if left.len() >= CONTESTED_MOST {
                left.push(*shard);
                continue;
            }
            match self.acquire_contested(&[*shard], node, false).await {
                Ok(one) => taken.extend(one),
                Err(_) => left.push(*shard),
            }
        }
        if !left.is_empty() {
            match self.acquire_contested(&left, node, true).await {
                Ok(rest) => taken.extend(rest),
                Err(again) => error = again,
            }
        }
        if taken.is_empty() { Err(error) } else { Ok(taken) }
    }

    /// `in_turn`: later claims of this database wait for this one.
    async fn acquire_contested(
        &self,
        shards: &[ShardId],
        node: &NodeId,
        in_turn: bool,
    ) -> Result<Vec<(ShardId, Epoch)>, Error> {
        let shards = super::numbers(shards);
        self.run(StoreOp::ShardAcquire, |pool| async move {
            let rows = sqlx::query(include_str!("queries/shard_acquire_contested.sql"))
                .bind(shards)
                .bind(node.name.as_str())
                .bind(node.incarnation.uuid())
                .bind(in_turn)
                .fetch_all(&pool)
                .await?;
            rows.iter().map(acquired).collect()
        })
        .await
    }

    async fn acquire_together(&self, shards: &[ShardId], node: &NodeId) -> Result<Vec<(ShardId, Epoch)>, Error> {
        let shards = super::numbers(shards);
        self.run(StoreOp::ShardAcquire, |pool| async move {
            let rows = sqlx::query(include_str!("queries/shard_acquire.sql"))
                .bind(shards)
                .bind(node.name.as_str())
                .bind(node.incarnation.uuid())
                .fetch_all(&pool)
                .await?;
            rows.iter().map(acquired).collect()
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
