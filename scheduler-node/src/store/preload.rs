//! Reads the keys of tasks that come due next.

use common::{
    ids::{Epoch, ShardId, TaskId},
    task::TaskState,
    time::UnixMicros,
};
use futures::TryStreamExt;
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{Database, Error, StoreOp};

/// A key, with the data that the shard's owner needs to decide how to wake the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub id: TaskId,
    pub wake_at: UnixMicros,
    pub state: TaskState,
    pub claim_epoch: Option<Epoch>,
}

impl Key {
    pub(super) fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: super::task_id(row, "id")?,
            wake_at: super::moment(row, "wake_at")?,
            state: super::state(row, "state")?,
            claim_epoch: row.try_get::<Option<i64>, _>("claim_epoch")?.map(Epoch::from_store),
        })
    }
}

impl Database {
    /// Reads the keys in `shards` that wake from `from` until `until`, at most `most_per_shard` of
    /// each shard, the earliest first.
    pub async fn task_preload(
        &self,
        shards: &[ShardId],
        from: UnixMicros,
        until: UnixMicros,
        most_per_shard: i64,
    ) -> Result<Vec<Key>, Error> {
        let query = preload_query(shards, from, until, most_per_shard);
        self.run(StoreOp::TaskPreload, |pool| async move {
            let mut connection = pool.acquire().await?;
            let mut rows = query.fetch(&mut *connection);
            // Row by row: a read of a full heap has tens of thousands, and a row takes several times as much as a key.
            let mut keys = Vec::new();
            while let Some(row) = rows.try_next().await? {
                keys.push(Key::read(&row)?);
            }
            drop(rows);
            connection.give_back();
            Ok(keys)
        })
        .await
    }
}

pub(super) fn preload_query(
    shards: &[ShardId],
    from: UnixMicros,
    until: UnixMicros,
    most_per_shard: i64,
) -> Query<'static, Postgres, PgArguments> {
    sqlx::query(include_str!("queries/task_preload.sql"))
        .bind(super::numbers(shards))
        .bind(from.to_utc())
        .bind(until.to_utc())
        .bind(most_per_shard)
}
