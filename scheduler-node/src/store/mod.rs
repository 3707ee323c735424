//! Speaks to PostgreSQL: all SQL of the node, one statement a file under `queries/` with its contract on top.
//!
//! Every statement is a single autocommit statement and enters through [`Database::run`]. So none escapes the
//! measurements, the deadline and the split of errors into "not done" and "in doubt". Transactions are absent on
//! purpose: a cancelled `begin()` would hand a connection with an open transaction to the next caller.

pub mod audit;
pub mod bulk;
pub mod change;
pub mod claim;
pub mod connect;
pub mod depend;
pub mod error;
pub mod export;
pub mod fence;
pub mod inbox;
pub mod lane;
pub mod list;
pub mod migrate;
pub mod op;
pub mod outlook;
pub mod partition;
pub mod pools;
pub mod preload;
pub mod put;
pub mod quarantine;
pub mod queues;
pub mod read;
pub mod receipts;
pub mod rows;
pub mod schedules;
pub mod settle;
pub mod submit;
pub mod tokens;
pub mod usage;
pub mod watch;

mod clock;
#[cfg(test)]
pub(crate) mod tests;

use std::{collections::BTreeSet, fmt, future::Future, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use common::{
    ids::{DatabaseName, QueueName, ShardId, TaskId},
    shard::range::ShardRange,
    task::TaskState,
    time::UnixMicros,
};
use sqlx::{PgPool, Row, postgres::PgRow};

use self::pools::Pools;

pub use clock::DatabaseClock;
pub use error::{Effect, Error, Fault};
pub use op::{StoreMetrics, StoreOp};
pub use pools::{Connections, PoolKind};

/// The longest wait for an answer. It is longer than the server's own statement timeout (5 s), so only a server
/// that no longer answers at all exceeds it.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// Every database of the cluster, found by the shards that it holds.
#[derive(Clone, Debug)]
pub struct Store {
    databases: Arc<[Arc<Database>]>,
}

impl Store {
    /// Takes `databases` in the order of the configuration. The first one also keeps the queues and the schedules.
    pub fn new(databases: Vec<Arc<Database>>) -> Self {
        assert!(!databases.is_empty(), "a store has at least one database");
        Self { databases: databases.into() }
    }

    pub fn databases(&self) -> &[Arc<Database>] {
        &self.databases
    }

    /// The database that keeps all data without a shard: the queues and the schedules.
    pub fn home(&self) -> &Arc<Database> {
        &self.databases[0]
    }

    pub fn of(&self, shard: ShardId) -> Option<&Arc<Database>> {
        self.databases.iter().find(|database| database.shards.contains(shard))
    }

    pub fn shard_count(&self) -> u32 {
        self.databases.iter().map(|database| u32::try_from(database.shards.count()).unwrap_or(u32::MAX)).sum()
    }
}

/// One PostgreSQL and the range of shards it holds.
pub struct Database {
    name: DatabaseName,
    shards: ShardRange,
    /// The pools are replaced together when the server has stopped answering. Connections to a silent peer would
    /// otherwise keep their places in the old pools for ever.
    pools: ArcSwap<Pools>,
    options: connect::Options,
    clock: DatabaseClock,
    metrics: Arc<StoreMetrics>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("name", &self.name).field("shards", &self.shards).finish_non_exhaustive()
    }
}

impl Database {
    /// Connects lazily: a database that is away does not keep the node from starting.
    pub fn new(name: DatabaseName, shards: ShardRange, options: connect::Options, metrics: Arc<StoreMetrics>) -> Self {
        let pools = ArcSwap::from_pointee(Pools::new(&options));
        Self { name, shards, pools, options, clock: DatabaseClock::default(), metrics }
    }

    pub fn name(&self) -> &DatabaseName {
        &self.name
    }

    pub fn shards(&self) -> ShardRange {
        self.shards
    }

    pub fn clock(&self) -> &DatabaseClock {
        &self.clock
    }

    /// The usage of one of this database's pools.
    pub fn connections(&self, kind: PoolKind) -> Connections {
        self.pools.load().connections(kind)
    }

    /// Runs a statement; there is no other way to run one. The statement uses its own pool, is measured and has a
    /// deadline. An error says what the statement may have done.
    async fn run<T, F>(&self, op: StoreOp, statement: impl FnOnce(PgPool) -> F + Send) -> Result<T, Error>
    where
        F: Future<Output = Result<T, sqlx::Error>> + Send,
    {
        let pools = self.pools.load_full();
        let timer = self.metrics.start(op);
        let statement = statement(PgPool::clone(pools.of(op.pool())));
        let error = match tokio::time::timeout(ANSWER_DEADLINE, statement).await {
            Ok(Ok(answer)) => {
                timer.done();
                return Ok(answer);
            }
            Ok(Err(source)) => {
                Error { database: self.name.clone(), op, effect: Effect::of(&source), source: Some(source) }
            }
            Err(_) => {
                self.renew(&pools);
                Error { database: self.name.clone(), op, effect: Effect::Unknown, source: None }
            }
        };
        timer.failed(error.effect);
        Err(error)
    }

    /// Replaces all pools, and so leaves the connections of a silent server behind. Only the first
    /// caller to notice replaces them.
    fn renew(&self, silent: &Arc<Pools>) {
        let fresh = Arc::new(Pools::new(&self.options));
        let before = self.pools.compare_and_swap(silent, fresh);
        if Arc::ptr_eq(&before, silent) {
            tracing::warn!(database = %self.name, "the database has stopped answering; reconnecting");
        }
    }
}

/// An answer arrived that does not match the statement's contract. The statement has run all the same.
impl Database {
    fn unreadable(&self, op: StoreOp, source: sqlx::Error) -> Error {
        Error { database: self.name.clone(), op, effect: Effect::Unknown, source: Some(source) }
    }
}

fn uuids(ids: &[TaskId]) -> Vec<uuid::Uuid> {
    ids.iter().map(|id| id.uuid()).collect()
}

fn numbers(shards: &[ShardId]) -> Vec<i32> {
    shards.iter().map(|shard| shard.number().into()).collect()
}

fn moment(row: &PgRow, column: &str) -> Result<UnixMicros, sqlx::Error> {
    Ok(row.try_get::<chrono::DateTime<chrono::Utc>, _>(column)?.into())
}

fn optional_moment(row: &PgRow, column: &str) -> Result<Option<UnixMicros>, sqlx::Error> {
    Ok(row.try_get::<Option<chrono::DateTime<chrono::Utc>>, _>(column)?.map(UnixMicros::from))
}

fn task_id(row: &PgRow, column: &str) -> Result<TaskId, sqlx::Error> {
    Ok(TaskId::from_uuid(row.try_get(column)?))
}

fn queue(row: &PgRow, column: &str) -> Result<QueueName, sqlx::Error> {
    Ok(QueueName::new(row.try_get::<&str, _>(column)?))
}

fn shard(row: &PgRow, column: &str) -> Result<ShardId, sqlx::Error> {
    let number: i32 = row.try_get(column)?;
    u16::try_from(number).map(ShardId::new).map_err(|_| unexpected(column, &number.to_string()))
}

/// Reads a column of shard numbers. NULL: there are none.
fn shards(row: &PgRow, column: &str) -> Result<BTreeSet<ShardId>, sqlx::Error> {
    let numbers: Option<Vec<i32>> = row.try_get(column)?;
    numbers
        .into_iter()
        .flatten()
        .map(|number| u16::try_from(number).map(ShardId::new).map_err(|_| unexpected(column, &number.to_string())))
        .collect()
}

fn state(row: &PgRow, column: &str) -> Result<TaskState, sqlx::Error> {
    let text: &str = row.try_get(column)?;
    TaskState::parse(text).ok_or_else(|| unexpected(column, text))
}

/// The error for a value that this version does not know: the schema is newer than the code.
fn unexpected(column: &str, value: &str) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.to_owned(), source: format!("unexpected value `{value}`").into() }
}
