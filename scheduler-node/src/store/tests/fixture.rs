//! Gives each test a database of its own: fresh, migrated, with its shards and the archive's partitions.

use std::{
    sync::{Arc, atomic::AtomicU16},
    time::{Duration, Instant},
};

use common::{
    ids::{DatabaseName, ShardId, TaskId},
    shard::range::ShardRange,
    time::UnixMicros,
};
use futures::future::join_all;
use integration_tests::sandbox::shared;
use prometheus::Registry;
use sqlx::{
    AssertSqlSafe, Connection, Executor, PgConnection, PgPool, Postgres, pool::PoolConnection, postgres::PgPoolOptions,
};
use tokio::sync::OnceCell;

use crate::store::{
    Database, PoolKind, Store, StoreMetrics, connect,
    lender::{Borrowed, Lender},
    migrate,
};

pub(crate) const SHARDS: u16 = 128;

/// The days for which partitions exist: more than any queue keeps its tasks by default.
const PARTITION_DAYS: u64 = 40;

/// The URL of the template, which is migrated once in each process. Every test's database is a copy of it.
static TEMPLATE: OnceCell<String> = OnceCell::const_new();

/// The variable that lends another process's template to this one, by its URL. This one then starts no server.
pub(crate) const LENT_TEMPLATE: &str = "DUETIME_TEST_TEMPLATE";

/// A database as a node sees it, with connections that go around the node.
pub(crate) struct TestDatabase {
    pub database: Arc<Database>,
    /// The test's own connections, without the node's limits.
    pub pool: PgPool,
    pub url: String,
}

impl TestDatabase {
    /// Takes all other shards away.
    pub(crate) async fn keep_shards(&self, shards: ShardRange) {
        let (first, last) = (i32::from(shards.first().number()), i32::from(shards.last().number()));
        let others = sqlx::query("DELETE FROM duetime.shard WHERE id NOT BETWEEN $1 AND $2");
        others.bind(first).bind(last).execute(&self.pool).await.unwrap();
    }

    /// Counts the unfinished tasks.
    pub(crate) async fn live(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM duetime.task").fetch_one(&self.pool).await.unwrap()
    }

    /// Locks the row against every other writer, as a claim that is not committed yet would.
    pub(crate) async fn lock_row(&self, id: TaskId) -> RowLock {
        let mut connection = self.pool.acquire().await.unwrap();
        sqlx::query("BEGIN").execute(&mut *connection).await.unwrap();
        let lock = sqlx::query("SELECT FROM duetime.task WHERE id = $1 FOR UPDATE").bind(id.uuid());
        assert_eq!(lock.fetch_all(&mut *connection).await.unwrap().len(), 1, "the row is there");
        RowLock { connection }
    }

    /// Lets the node's statements of a pool wait for locks as long as the test decides, up to the ten seconds in which
    /// a node wants an answer. A test needs this where the holder of a lock commits and the statement that waited has
    /// to see what was committed. A function that sets a `lock_timeout` of its own keeps it.
    pub(crate) async fn be_patient(&self, kind: PoolKind) {
        // With all connections open, no statement opens another one, which would begin with the node's limits.
        for connection in &mut self.all_of(kind).await {
            connection.execute("SET lock_timeout = 0; SET statement_timeout = 0").await.unwrap();
        }
    }

    /// Leaves the node's statements no connection of a pool until the return value is dropped.
    pub(crate) async fn occupy(&self, kind: PoolKind) -> impl Sized {
        self.all_of(kind).await
    }

    /// All of the node's connections of a pool.
    async fn all_of(&self, kind: PoolKind) -> Vec<Borrowed> {
        let pools = self.database.pools.load_full();
        let pool = pools.of(kind);
        let mut all = Vec::new();
        for _ in 0..pool.most() {
            all.push(acquired(pool).await);
        }
        all
    }

    /// Makes the database refuse `event` (such as `INSERT OR UPDATE`) on rows of `table` whose `column` is `value`.
    pub(crate) async fn refuse(&self, event: &str, table: &str, column: &str, value: &str) {
        self.fail_with("22023", event, table, column, value).await;
    }

    /// The same, with an SQLSTATE such as `XX001`, which looks like a bug.
    pub(crate) async fn fail_with(&self, sqlstate: &str, event: &str, table: &str, column: &str, value: &str) {
        let name = shared::unique("refuse");
        let sql = format!(
            "CREATE SEQUENCE IF NOT EXISTS public.refusals;
             CREATE OR REPLACE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
             BEGIN
                 IF to_jsonb(CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END) ->> TG_ARGV[0] = TG_ARGV[1] THEN
                     PERFORM nextval('public.refusals');
                     RAISE EXCEPTION 'a test refuses this row' USING ERRCODE = TG_ARGV[2];
                 END IF;
                 RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
             END $$;
             CREATE TRIGGER \"{name}\" BEFORE {event} ON duetime.{table}
                FOR EACH ROW EXECUTE FUNCTION public.refuse('{column}', '{value}', '{sqlstate}')"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&self.pool).await.unwrap();
    }

    /// How often the database has refused a row since the first [`Self::fail_with`].
    pub(crate) async fn refusals(&self) -> i64 {
        let read = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM public.refusals";
        sqlx::query_scalar(read).fetch_one(&self.pool).await.unwrap()
    }

    /// Makes the database answer `event` (such as `INSERT`) on `table` as a server with a full disk does.
    pub(crate) async fn fill_disk(&self, event: &str, table: &str) {
        let sql = format!(
            "CREATE FUNCTION public.fill_disk() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 RAISE EXCEPTION 'a test has filled the disk' USING ERRCODE = '53100';
             END $$;
             CREATE TRIGGER fill_disk BEFORE {event} ON duetime.{table}
                FOR EACH STATEMENT EXECUTE FUNCTION public.fill_disk()"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&self.pool).await.unwrap();
    }

    /// Leaves the archive without any partition, as it is after a long stop of the cluster.
    pub(crate) async fn drop_partitions(&self) {
        let drop_all = "DO $$ BEGIN
            EXECUTE (SELECT 'DROP TABLE ' || string_agg(inhrelid::regclass::text, ', ')
                       FROM pg_inherits WHERE inhparent = 'duetime.archive'::regclass);
        END $$";
        sqlx::raw_sql(drop_all).execute(&self.pool).await.unwrap();
    }

    /// Lets a minute pass for the note of the realm that uses the database.
    pub(crate) async fn silence_realm(&self) {
        let silent = "UPDATE duetime.realm SET seen_at = seen_at - interval '1 min'";
        sqlx::query(silent).execute(&self.pool).await.unwrap();
    }

    /// The messages in the quarantine: their sources and names, oldest first.
    pub(crate) async fn quarantine(&self) -> Vec<(String, Option<String>)> {
        let rows = sqlx::query_as("SELECT source, message_id FROM duetime.quarantine ORDER BY id");
        rows.fetch_all(&self.pool).await.unwrap()
    }

    pub(crate) async fn state_of(&self, id: TaskId) -> Option<String> {
        super::state_of(&self.pool, id).await
    }

    pub(crate) async fn until_waiting(&self, sessions: i64) {
        super::until_waiting(&self.pool, sessions).await;
    }
}

pub(crate) struct RowLock {
    connection: sqlx::pool::PoolConnection<sqlx::Postgres>,
}

impl RowLock {
    pub(crate) async fn release(mut self) {
        sqlx::query("COMMIT").execute(&mut *self.connection).await.unwrap();
    }
}

/// An empty database with shards 0 to 127 and the archive's partitions for the next weeks. Each pool of the node has a
/// connection.
pub(crate) async fn database() -> TestDatabase {
    let (server, template) = template_url().await.rsplit_once('/').expect("a URL of a database");
    let name = format!("{}_{}", shared::unique("store"), std::process::id());
    let copy = format!("CREATE DATABASE \"{name}\" TEMPLATE \"{template}\"");
    let mut connection = PgConnection::connect(&format!("{server}/postgres")).await.expect("the server answers");
    sqlx::raw_sql(sqlx::AssertSqlSafe(copy)).execute(&mut connection).await.expect("the template can be copied");
    connection.close().await.expect("the connection closes");
    let url = format!("{server}/{name}");
    let pool = PgPoolOptions::new().max_connections(8).connect(&url).await.expect("the copy can be opened");
    let renew = "UPDATE duetime.identity SET id = gen_random_uuid()";
    sqlx::query(renew).execute(&pool).await.expect("the copy becomes a database of its own");
    let database = open(&url);
    let pools = database.pools.load_full();
    join_all(PoolKind::ALL.map(|kind| open_one(pools.of(kind)))).await;
    TestDatabase { database, pool, url }
}

/// Opens the first connection of a node's pool, however slow the machine is. A statement that found no connection
/// would open one itself, and fail if that took longer than two seconds.
async fn open_one(pool: &Lender) {
    acquired(pool).await.give_back();
}

/// A connection of a node's pool, for which the pool itself would wait two seconds only.
async fn acquired(pool: &Lender) -> Borrowed {
    let acquired = async {
        loop {
            if let Ok(connection) = pool.acquire().await {
                return connection;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(super::LONG, acquired).await.expect("the server takes a connection of a node")
}

/// Makes partitions as the archiver does: a pass that a lock or a slow server has cut short comes again.
pub(crate) async fn make_partitions(database: &Database, days: u64) {
    let until_made = async {
        loop {
            match database.partitions_turn(&[days].into(), crate::clock::now()).await.map(|turned| turned.failed) {
                Ok(None) => return,
                Ok(Some((_, error))) if !error.is_contention() => panic!("{error:?}"),
                // A lock, or a database that is away.
                Ok(Some(_)) | Err(_) => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), until_made).await.expect("the partitions can be made");
}

/// The URL of the template. Its server runs when this returns, also after a test that has stopped it.
pub(crate) async fn template_url() -> &'static str {
    let lent = std::env::var(LENT_TEMPLATE).ok();
    if lent.is_none() {
        shared::postgres().await.expect("a private PostgreSQL starts");
    }
    TEMPLATE
        .get_or_init(|| async {
            match lent {
                Some(url) => url,
                None => template().await,
            }
        })
        .await
}

/// A database that never answers: nothing listens at its address.
pub(crate) fn unreachable_database(name: &str) -> Arc<Database> {
    let port = integration_tests::sandbox::free_port();
    named(name, &format!("postgres://nobody:nothing@127.0.0.1:{port}/none"))
}

pub(crate) fn open(url: &str) -> Arc<Database> {
    named("main", url)
}

pub(crate) fn named(name: &str, url: &str) -> Arc<Database> {
    Arc::new(unshared(name, url))
}

/// A store that knows its shards: they are divided evenly among the databases, in their order.
pub(crate) fn store(databases: Vec<Arc<Database>>) -> Store {
    let share = SHARDS / u16::try_from(databases.len()).expect("a few databases");
    let part = |first| ShardRange::new(ShardId::new(first), ShardId::new(first + share - 1)).expect("in order");
    let parts: Vec<ShardRange> = (0..SHARDS).step_by(share.into()).map(part).collect();
    let store = Store::new(databases);
    store.places().presume(&parts, SHARDS);
    store
}

/// A database as a node opens it: no statement passes before the schema has been checked.
pub(crate) fn awaiting_schema(name: &str, url: &str) -> Database {
    unshared(name, url).await_schema()
}

fn unshared(name: &str, url: &str) -> Database {
    let families = StoreMetrics::families(&Registry::new()).expect("a fresh registry takes them");
    let metrics = Arc::new(StoreMetrics::new(families, name));
    Database::new(DatabaseName::new(name), options(url), metrics)
}

/// Has looks begin at marks a minute ago, for hours: one from the heads has run out of time.
pub(crate) fn run_out_of_time(database: &Database) {
    let (now, took) = (crate::clock::now(), Duration::from_secs(3_600));
    database.heads.lock().iter_mut().for_each(|head| head.ran_out_of_time(now, took, Instant::now()));
}

/// Records a glance from the heads that has just ended, as if it had taken so long and found nothing.
pub(crate) fn looked_from_head(database: &Database, took: Duration) {
    let now = crate::clock::now();
    database.heads.lock().iter_mut().for_each(|head| head.note(None, now, took, Instant::now()));
}

pub(crate) fn all_shards() -> ShardRange {
    ShardRange::all(SHARDS.into())
}

/// An unused id, of some shard.
pub(crate) fn fresh_id() -> TaskId {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    fresh_id_of(ShardId::new(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % SHARDS))
}

pub(crate) fn fresh_id_of(shard: ShardId) -> TaskId {
    TaskId::mint(uuid::Uuid::now_v7(), shard)
}

/// The current time of the database.
/// A connection whose statements are planned as those of a node.
pub(crate) async fn planned(pool: &PgPool) -> PoolConnection<Postgres> {
    let mut connection = pool.acquire().await.unwrap();
    plan_as_a_node(&mut connection).await;
    connection
}

/// Gives a connection the settings of a node that decide about plans.
pub(crate) async fn plan_as_a_node(connection: &mut PgConnection) {
    for (setting, value) in connect::PLANS {
        connection.execute(AssertSqlSafe(format!("SET {setting} = {value}"))).await.unwrap();
    }
}

pub(crate) async fn now(pool: &PgPool) -> UnixMicros {
    let now: chrono::DateTime<chrono::Utc> =
        sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(pool).await.unwrap();
    now.into()
}

pub(crate) fn options(url: &str) -> connect::Options {
    connect::Options { url: url.to_owned().into(), max_connections: 12, application_name: "duetime test".into() }
}

async fn template() -> String {
    let server = shared::postgres().await.expect("a private PostgreSQL starts");
    let name = shared::unique("template");
    let url = server.create_database(&name).await.expect("a database can be made");
    migrate::migrate(&DatabaseName::new("main"), Some(all_shards()), SHARDS, None, &options(&url))
        .await
        .expect("the migrations run");
    let database = open(&url);
    make_partitions(&database, PARTITION_DAYS).await;
    // PostgreSQL does not copy a template that has open connections.
    database.pools.load_full().close().await;
    url
}
