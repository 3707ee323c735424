//! Looks up the tasks with which new submissions with their keys are compared, many at a time.

use std::collections::BTreeMap;

use common::{
    ids::ShardId,
    task::{Content, TaskKey, TaskState},
    time::UnixMicros,
};
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
    types::Json,
};

use super::{Database, Error, StoreOp, by_place, sparse};

/// A key to look up, and the shard on which a new task with it would be.
pub type AskedKey<'a> = (TaskKey<'a>, ShardId);

/// What one database tells of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyLook {
    /// The shard of the key, or of the task that has it, is in another database.
    Elsewhere,
    /// No task has the key.
    Free,
    Taken(Rival),
}

/// The newest task with a key: a live one if there is any, else the newest that is still kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival {
    pub state: TaskState,
    pub version: i64,
    /// Those of its content, as [`Content::usage`] estimates them.
    pub bytes: i64,
    /// `None`: the task is a live one.
    pub finished_at: Option<UnixMicros>,
}

impl Database {
    /// Looks up each of these keys. Returns their answers, in their order.
    ///
    /// Looks for live tasks first, which is much cheaper. The second statement reads both tables at one moment, because
    /// a dead task may be revived between the two.
    pub async fn task_rivals(&self, keys: &[AskedKey<'_>]) -> Result<Vec<KeyLook>, Error> {
        let elsewhere = self.elsewhere();
        self.run(StoreOp::TaskFind, |pool| async move {
            let live = asked(include_str!("queries/task_rivals_live.sql"), keys, elsewhere.clone());
            let mut looks = in_order(keys.len(), &live.fetch_all(&pool).await?)?;
            let free: Vec<usize> = (0..looks.len()).filter(|at| looks[*at] == KeyLook::Free).collect();
            if free.is_empty() {
                return Ok(looks);
            }
            let keys: Vec<AskedKey<'_>> = free.iter().map(|at| keys[*at]).collect();
            let any = asked(include_str!("queries/task_rivals.sql"), &keys, elsewhere);
            let answers = in_order(keys.len(), &any.fetch_all(&pool).await?)?;
            for (at, look) in free.into_iter().zip(answers) {
                looks[at] = look;
            }
            Ok(looks)
        })
        .await
    }
}

fn asked<'a>(statement: &'static str, keys: &[AskedKey<'a>], elsewhere: Vec<i32>) -> Query<'a, Postgres, PgArguments> {
    let queues: Vec<&str> = keys.iter().map(|((queue, ..), _)| queue.as_str()).collect();
    let texts: Vec<&str> = keys.iter().map(|((.., key), _)| *key).collect();
    let shards: Vec<ShardId> = keys.iter().map(|(_, shard)| *shard).collect();
    sqlx::query(statement)
        .bind(queues)
        .bind(sparse(keys.iter().map(|((_, partition_key, _), _)| *partition_key)))
        .bind(texts)
        .bind(super::numbers(&shards))
        .bind(elsewhere)
}

/// The answers for so many keys.
fn in_order(count: usize, rows: &[PgRow]) -> Result<Vec<KeyLook>, sqlx::Error> {
    let looks = by_place(count, rows, KeyLook::read)?;
    Ok(looks.into_iter().map(|look| look.unwrap_or(KeyLook::Elsewhere)).collect())
}

impl KeyLook {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        if !row.try_get::<bool, _>("is_here")? {
            return Ok(Self::Elsewhere);
        }
        if row.try_get::<Option<&str>, _>("state")?.is_none() {
            return Ok(Self::Free);
        }
        let headers: Option<Json<BTreeMap<String, String>>> = row.try_get("headers")?;
        let headers = headers.map(|headers| headers.0).unwrap_or_default();
        let payload_bytes = usize::try_from(row.try_get::<i32, _>("payload_bytes")?).unwrap_or_default();
        Ok(Self::Taken(Rival {
            state: super::state(row, "state")?,
            version: row.try_get("version")?,
            bytes: Content::bytes_of(payload_bytes, &headers),
            finished_at: super::optional_moment(row, "finished_at")?,
        }))
    }
}
