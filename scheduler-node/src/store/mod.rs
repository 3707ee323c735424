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
pub mod glance;
pub mod inbox;
pub mod indexes;
pub mod lane;
pub mod list;
pub mod migrate;
pub mod move_requests;
pub mod move_rows;
pub mod moves;
pub mod op;
pub mod outlook;
pub mod partition;
pub mod pools;
pub mod preload;
pub mod presence;
pub mod put;
pub mod quarantine;
pub mod queues;
pub mod read;
pub mod realm;
pub mod receipts;
pub mod rivals;
pub mod rows;
pub mod schedules;
pub mod schema;
pub mod server_settings;
pub mod settle;
pub mod statements;
pub mod submit;
pub mod tokens;
pub mod usage;
pub mod warm;
pub mod watch;
pub mod weights;

mod clock;
mod conflict;
mod entrance;
mod failover;
mod history;
mod lender;
mod migrations;
mod pace;
mod patience;
mod places;
mod position;
mod replication;
mod shared_change;
mod shared_read;
mod shared_write;
mod steps;
#[cfg(test)]
pub(crate) mod tests;
mod trust;
mod writer;

use std::{collections::BTreeSet, fmt, future::Future, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use common::{
    ids::{DatabaseName, QueueName, ShardId, TaskId},
    task::TaskState,
    time::UnixMicros,
};
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use crate::{by_database::ByDatabase, history::History};

use self::{
    change::Cancelled,
    lender::Lender,
    pace::Paces,
    pools::Pools,
    replication::Unreplicated,
    rows::TaskRecord,
    shared_change::{CancelJob, DueTimeJob},
    shared_write::SharedWrite,
    writer::Writer,
};

#[cfg(test)]
pub use clock::Asked;
pub use clock::DatabaseClock;
pub use error::{Effect, Error, Fault};
pub use op::{StoreFamilies, StoreMetrics, StoreOp};
pub use places::{Patience, Places};
pub use pools::{Connections, PoolKind};
pub use statements::Statements;

/// The longest wait for an answer. It is longer than the server's own statement timeout (5 s), so only a server
/// that no longer answers at all exceeds it.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// Every database of the cluster, found by the shards that it holds.
#[derive(Clone, Debug)]
pub struct Store {
    databases: ByDatabase<Arc<Database>>,
    places: Places,
}

impl Store {
    /// Takes `databases` in the order of the configuration. The first one also keeps the queues and the schedules.
    pub fn new(databases: Vec<Arc<Database>>) -> Self {
        assert!(!databases.is_empty(), "a store has at least one database");
        let databases: ByDatabase<Arc<Database>> = databases.into_iter().collect();
        let places = Places::new(databases.clone());
        Self { databases, places }
    }

    /// Adds a database that begins without shards. From here on a shard's place may be this one.
    pub fn add(&self, database: Arc<Database>) {
        self.databases.push(database);
        self.places.want();
    }

    /// More may join at any time. Take the map of the shards first: each index in it is then one of these.
    pub fn databases(&self) -> &ByDatabase<Arc<Database>> {
        &self.databases
    }

    /// The database that keeps all data without a shard: the queues and the schedules.
    pub fn home(&self) -> &Arc<Database> {
        &self.databases[0]
    }

    pub fn of(&self, shard: ShardId) -> Option<&Arc<Database>> {
        self.databases.get(self.places.of(shard)?.database)
    }

    /// Where the shards are.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// The map of the shards as a number; see [`ShardMap::fingerprint`].
    pub fn map_fingerprint(&self) -> u32 {
        let map = self.places.load();
        let names: Vec<DatabaseName> = self.databases.iter().map(|database| database.name().clone()).collect();
        map.fingerprint(&names)
    }
}

/// One database. It lives on one PostgreSQL server, or on a primary and its standbys.
pub struct Database {
    name: DatabaseName,
    /// The pools are replaced together when the server has stopped answering. Connections to a silent peer would
    /// otherwise keep their places in the old pools for ever.
    pools: ArcSwap<Pools>,
    /// Shards of which this database has rows although their place is another one, by number.
    elsewhere: ArcSwap<Vec<i32>>,
    /// Shards of this database that go through the last part of a move away from it.
    closed: ArcSwap<Vec<i32>>,
    writer: Writer,
    clock: DatabaseClock,
    metrics: Arc<StoreMetrics>,
    /// Whether statements may rely on the schema, and the database serves this node's realm.
    schema_fits: tokio::sync::watch::Sender<bool>,
    /// Wakes the loop that marks positions: a commit was acknowledged.
    wrote: tokio::sync::Notify,
    /// Whether this node knows what the others have seen of the server.
    has_learned: tokio::sync::watch::Sender<bool>,
    requires_standby: bool,
    unreplicated: Unreplicated,
    /// Records the steps of tasks that statements take.
    history: History,
    /// Cancels and changes of due times that wait for a statement.
    cancels: SharedWrite<CancelJob, (TaskId, Cancelled)>,
    due_times: SharedWrite<DueTimeJob, TaskRecord>,
    /// The last glance.
    glances: tokio::sync::watch::Sender<Option<glance::Glance>>,
    heads: parking_lot::Mutex<glance::Heads>,
    /// How many rows lists, walks and groups of dead tasks examine at a time.
    paces: Paces,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Database {
    /// Connects lazily: a database that is away does not keep the node from starting.
    pub fn new(name: DatabaseName, options: connect::Options, metrics: Arc<StoreMetrics>) -> Self {
        let writer = Writer::new(options);
        let pools = ArcSwap::from_pointee(Pools::new(&writer, 0));
        let schema_fits = tokio::sync::watch::Sender::new(true);
        let clock = DatabaseClock::default();
        let (elsewhere, closed) = Default::default();
        Self {
            name,
            pools,
            elsewhere,
            closed,
            writer,
            clock,
            metrics,
            schema_fits,
            wrote: tokio::sync::Notify::new(),
            has_learned: tokio::sync::watch::Sender::new(false),
            requires_standby: false,
            unreplicated: Unreplicated::default(),
            history: History::default(),
            cancels: SharedWrite::default(),
            due_times: SharedWrite::default(),
            glances: tokio::sync::watch::Sender::default(),
            heads: parking_lot::Mutex::default(),
            paces: Paces::default(),
        }
    }

    /// Counts the database as away until [`Self::let_through`]. So no statement meets a schema that it was not written
    /// for, or the tasks of another cluster, and every loop treats the wait as the outage that it knows.
    pub fn await_schema(self) -> Self {
        self.schema_fits.send_replace(false);
        self
    }

    /// Records the steps of tasks from here on.
    pub fn with_history(self, history: History) -> Self {
        Self { history, ..self }
    }

    pub fn name(&self) -> &DatabaseName {
        &self.name
    }

    /// The servers and the name of the database, without user and password.
    pub fn place(&self) -> String {
        self.writer.place()
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
    async fn run<T, F>(&self, op: StoreOp, statement: impl FnOnce(Lender) -> F + Send) -> Result<T, Error>
    where
        F: Future<Output = Result<T, sqlx::Error>> + Send,
    {
        let timer = self.metrics.start(op);
        let doubt = steps::Doubt::of(&self.history, op);
        let error = |effect, source: Option<sqlx::Error>| Error {
            database: self.name.clone(),
            op,
            effect,
            source: source.map(Arc::new),
        };
        let error = match self.pools_for(op).await {
            Err(source) => error(Effect::None, Some(source)),
            Ok(pools) => {
                let statement = statement(pools.of(op.pool()).clone());
                match self.answer(&pools, statement).await {
                    Some(Ok(answer)) => {
                        timer.done();
                        doubt.end();
                        if op.is_relied_on() {
                            self.wrote.notify_one();
                        }
                        return Ok(answer);
                    }
                    Some(Err(source)) => error(Effect::of(&source), Some(source)),
                    None => error(Effect::Unknown, None),
                }
            }
        };
        timer.failed(error.effect);
        if error.effect == Effect::None {
            doubt.end();
        }
        Err(error)
    }

    /// Runs a statement that returns ids, or nothing.
    async fn returned_ids(&self, op: StoreOp, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<TaskId>, Error> {
        self.run(op, |pool| async move {
            let rows = query.fetch_all(&pool).await?;
            rows.iter().map(|row| task_id(row, "id")).collect()
        })
        .await
    }

    /// The pools for a statement, once it may be sent.
    async fn pools_for(&self, op: StoreOp) -> Result<Arc<Pools>, sqlx::Error> {
        self.schema_fitting(op).await?;
        self.may_run(op)?;
        self.trusted_pools().await
    }

    /// Waits until statements may rely on the schema, as long as for a free connection.
    async fn schema_fitting(&self, op: StoreOp) -> Result<(), sqlx::Error> {
        if *self.schema_fits.borrow() || op.needs_no_schema() {
            return Ok(());
        }
        let mut fits = self.schema_fits.subscribe();
        let has_come = tokio::time::timeout(connect::ACQUIRE_DEADLINE, fits.wait_for(|fits| *fits)).await.is_ok();
        if has_come { Ok(()) } else { Err(sqlx::Error::Configuration(SchemaUnproven.into())) }
    }

    /// Waits for the answer to a statement. `None`: the server is silent, or is not the writer any more.
    async fn answer<T>(
        &self,
        pools: &Arc<Pools>,
        statement: impl Future<Output = Result<T, sqlx::Error>> + Send,
    ) -> Option<Result<T, sqlx::Error>> {
        tokio::select! {
            biased;
            answered = tokio::time::timeout(ANSWER_DEADLINE, statement) => match answered {
                Ok(answer) => Some(answer.inspect_err(|error| self.notice(pools, error))),
                Err(_) => {
                    // Boxed: it is rare, and would make each statement's future larger.
                    Box::pin(self.leave_if_silent(pools)).await;
                    None
                }
            },
            () = pools.ended().cancelled() => None,
        }
    }
}

/// The node has not found the schema to fit yet. No statement was sent.
#[derive(Debug, thiserror::Error)]
#[error("the schema has not been found to fit this node yet")]
struct SchemaUnproven;

impl Database {
    /// The error for a statement that was executed for others too, and whose end is not known.
    fn in_doubt(&self, op: StoreOp) -> Error {
        Error { database: self.name.clone(), op, effect: Effect::Unknown, source: None }
    }

    /// The error for an answer that does not match the statement's contract. The statement has run all the same.
    fn unreadable(&self, op: StoreOp, source: sqlx::Error) -> Error {
        drop(steps::Doubt::of(&self.history, op));
        Error { database: self.name.clone(), op, effect: Effect::Unknown, source: Some(Arc::new(source)) }
    }
}

fn uuids(ids: &[TaskId]) -> Vec<uuid::Uuid> {
    ids.iter().map(|id| id.uuid()).collect()
}

/// A column of a batch that is read with `unnest` beside a full one. It is empty if no row has a value: `unnest` fills
/// it up with NULL, and nothing is sent and unpacked for each row.
fn sparse<T>(column: impl Iterator<Item = Option<T>>) -> Vec<Option<T>> {
    let column: Vec<Option<T>> = column.collect();
    if column.iter().all(Option::is_none) { Vec::new() } else { column }
}

/// The answer to each of so many requests, from rows that name the places of theirs.
fn by_place<T>(
    count: usize,
    rows: &[PgRow],
    read: impl Fn(&PgRow) -> Result<T, sqlx::Error>,
) -> Result<Vec<Option<T>>, sqlx::Error> {
    let mut answers: Vec<Option<T>> = std::iter::repeat_with(|| None).take(count).collect();
    for row in rows {
        let place: i64 = row.try_get("place")?;
        let answer = usize::try_from(place - 1).ok().and_then(|place| answers.get_mut(place));
        *answer.ok_or_else(|| unexpected("place", &place.to_string()))? = Some(read(row)?);
    }
    Ok(answers)
}

/// A column of a batch without NULL, for a statement that takes the first value for each row beyond the column's end.
/// If all rows have the same value, it is sent and unpacked once.
fn uniform<T: PartialEq>(mut column: Vec<T>) -> Vec<T> {
    if column.windows(2).all(|pair| pair[0] == pair[1]) {
        column.truncate(1);
    }
    column
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
    shard_of(column, row.try_get(column)?)
}

/// Reads a column of shard numbers. NULL: there are none.
fn shards(row: &PgRow, column: &str) -> Result<BTreeSet<ShardId>, sqlx::Error> {
    let numbers: Option<Vec<i32>> = row.try_get(column)?;
    numbers.into_iter().flatten().map(|number| shard_of(column, number)).collect()
}

fn shard_of(column: &str, number: i32) -> Result<ShardId, sqlx::Error> {
    u16::try_from(number).map(ShardId::new).map_err(|_| unexpected(column, &number.to_string()))
}

fn state(row: &PgRow, column: &str) -> Result<TaskState, sqlx::Error> {
    let text: &str = row.try_get(column)?;
    TaskState::parse(text).ok_or_else(|| unexpected(column, text))
}

/// The error for a value that this version does not know: the schema is newer than the code.
fn unexpected(column: &str, value: &str) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.to_owned(), source: format!("unexpected value `{value}`").into() }
}
