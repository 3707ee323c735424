//! Looks up the tasks with which new submissions with their keys are compared, many at a time.

use std::collections::BTreeMap;

use common::{
    ids::ShardId,
    task::{Content, TaskKey, TaskState},
};
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
    types::Json,
};

use super::{Database, Error, StoreOp, by_place, sparse};

/// A key to look up.
#[derive(Clone, Copy, Debug)]
pub struct AskedKey<'a> {
    pub key: TaskKey<'a>,
    /// The shard on which a new task with it would be.
    pub shard: ShardId,
    /// How long a finished task answers for others with its key.
    pub window_ms: i64,
    /// Whether it is for a submission that gives a version. A finished task may have a higher one than the live task,
    /// and one without a success answers, too.
    pub by_version: bool,
}

/// What one database tells of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyLook {
    /// The shard of the key, or of the task that has it, is in another database.
    Elsewhere,
    /// No task answers for the key.
    Free,
    Taken(Rival),
}

/// The task with which a new one with its key is compared: of the live tasks and of the finished ones that answer for
/// others, the one of the highest version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival {
    pub state: TaskState,
    pub version: i64,
    /// Those of its content, as [`Content::usage`] estimates them. Not read of a finished task, which takes no room.
    pub bytes: i64,
    /// The bytes of an unclaimed task of a lower version, where this one has finished. The next version supersedes it.
    pub unclaimed_bytes: Option<i64>,
}

impl Database {
    /// Looks up each of these keys. Returns their answers, in their order.
    ///
    /// Looks for live tasks first, which is much cheaper, and most often enough where no version is asked for. The
    /// second statement reads both tables at one moment, because a dead task may be revived between the two.
    pub async fn task_rivals(&self, keys: &[AskedKey<'_>]) -> Result<Vec<KeyLook>, Error> {
        let elsewhere = self.elsewhere();
        self.run(StoreOp::TaskFind, |pool| async move {
            let live = asked(include_str!("queries/task_rivals_live.sql"), keys, elsewhere.clone());
            let mut looks = in_order(keys.len(), &live.fetch_all(&pool).await?)?;
            let is_open = |at: &usize| match looks[*at] {
                KeyLook::Elsewhere => false,
                KeyLook::Free => true,
                KeyLook::Taken(_) => keys[*at].by_version,
            };
            let open: Vec<usize> = (0..looks.len()).filter(is_open).collect();
            if open.is_empty() {
                return Ok(looks);
            }
            let keys: Vec<AskedKey<'_>> = open.iter().map(|at| keys[*at]).collect();
            let any = asked(include_str!("queries/task_rivals.sql"), &keys, elsewhere)
                .bind(keys.iter().map(|asked| asked.window_ms).collect::<Vec<i64>>())
                .bind(keys.iter().map(|asked| asked.by_version).collect::<Vec<bool>>());
            let answers = in_order(keys.len(), &any.fetch_all(&pool).await?)?;
            for (at, look) in open.into_iter().zip(answers) {
                looks[at] = look.beside_live(looks[at]);
            }
            Ok(looks)
        })
        .await
    }
}

fn asked<'a>(statement: &'static str, keys: &[AskedKey<'a>], elsewhere: Vec<i32>) -> Query<'a, Postgres, PgArguments> {
    let parts = || keys.iter().map(|asked| asked.key);
    let queues: Vec<&str> = parts().map(|(queue, ..)| queue.as_str()).collect();
    let texts: Vec<&str> = parts().map(|(.., key)| key).collect();
    let shards: Vec<ShardId> = keys.iter().map(|asked| asked.shard).collect();
    sqlx::query(statement)
        .bind(queues)
        .bind(sparse(parts().map(|(_, partition_key, _)| partition_key)))
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
    /// Adds the live task that a look-up by version has found a moment before.
    fn beside_live(self, live: Self) -> Self {
        match (self, live) {
            (Self::Taken(newest), Self::Taken(live))
                if newest.state.is_final() && live.state.may_be_changed() && live.version < newest.version =>
            {
                Self::Taken(Rival { unclaimed_bytes: Some(live.bytes), ..newest })
            }
            (newest, _) => newest,
        }
    }

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
            unclaimed_bytes: None,
        }))
    }
}
