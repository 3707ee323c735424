//! Estimates what each shard of a database carries, at the same cost however many tasks there are.

use std::collections::BTreeMap;

use common::{ids::ShardId, shard::rebalance::Weight, wire::shard::LoadView};
use sqlx::Row;

use super::{Database, Error, StoreOp, shard};

/// Pages read of the tasks' table, and as many of the archive: together some 70 ms. With 40 rows on a page and 256
/// shards, a shard has about 150 rows in the sample, and the estimate is some 10 % off.
pub const WEIGHT_PAGES: f64 = 1_000.0;

/// The bytes of a task's row beside its payload, headers, history and result.
const ROW_BYTES: i64 = 200;

const DAY_S: f64 = 86_400.0;

/// An estimate of what a shard carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardWeight {
    pub tasks: i64,
    pub finished: i64,
    pub bytes: i64,
    /// Tasks that finished in the last day and are still kept.
    pub finished_lately: i64,
}

impl ShardWeight {
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            tasks: self.tasks.saturating_add(other.tasks),
            finished: self.finished.saturating_add(other.finished),
            bytes: self.bytes.saturating_add(other.bytes),
            finished_lately: self.finished_lately.saturating_add(other.finished_lately),
        }
    }

    /// The part that counts in a rebalance.
    pub fn weight(self) -> Weight {
        let count = |count: i64| u64::try_from(count).unwrap_or(0);
        Weight {
            rows: count(self.tasks.saturating_add(self.finished)),
            bytes: count(self.bytes),
            rate: count(self.finished_lately),
        }
    }

    pub fn view(self) -> LoadView {
        let finished_per_second = self.finished_lately as f64 / DAY_S;
        LoadView { tasks: self.tasks, finished: self.finished, bytes: self.bytes, finished_per_second }
    }
}

impl Database {
    /// Estimates what the shards carry in this database. Shards that carry nothing, or too little for the sample, are
    /// left out.
    pub async fn shard_weights(&self) -> Result<BTreeMap<ShardId, ShardWeight>, Error> {
        self.run(StoreOp::ShardWeights, |pool| async move {
            let query = sqlx::query(include_str!("queries/shard_weights.sql")).bind(WEIGHT_PAGES).bind(ROW_BYTES);
            let weight = |row: &sqlx::postgres::PgRow| {
                let weight = ShardWeight {
                    tasks: row.try_get("tasks")?,
                    finished: row.try_get("finished")?,
                    bytes: row.try_get("bytes")?,
                    finished_lately: row.try_get("finished_lately")?,
                };
                Ok((shard(row, "shard")?, weight))
            };
            query.fetch_all(&pool).await?.iter().map(weight).collect()
        })
        .await
    }
}
