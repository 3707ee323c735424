//! The schema: `duetime migrate` brings it to this version, and every node compares it before it takes part.

use common::{ids::DatabaseName, shard::range::ShardRange};
use sqlx::{
    Row, SqlStr,
    migrate::{Migration, MigrationType, Migrator},
};

use super::{Database, StoreOp, connect};

macro_rules! files {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_str!(concat!("../../../migrations/", $file)))),*]
    };
}

/// The files of `migrations/` with their names. sqlx's macro would embed them too, but then a first build compiles
/// sqlx, its TLS and its runtime a second time, for the compiler.
pub(super) const FILES: &[(&str, &str)] = files![
    "0001_create_tasks.sql",
    "0002_create_queues.sql",
    "0003_create_schedules.sql",
    "0004_create_intake.sql",
    "0005_create_access.sql",
    "0006_create_guards.sql",
    "0007_create_lookups.sql",
    "0008_create_keyed_writes.sql",
    "0009_create_submit.sql",
    "0010_create_cancel.sql",
];

/// A line at the top of a migration that has to run outside of a transaction.
const NO_TRANSACTION: &str = "-- no-transaction";

/// The longest time that rows are kept unless a queue sets more: the default of `keep_dead_ms`.
pub const DEFAULT_KEEP_DAYS: u64 = 14;

/// The reason why a database cannot be used with this configuration and version.
#[derive(Debug, thiserror::Error)]
pub enum Misfit {
    #[error("database `{database}` has no Duetime schema; run `duetime migrate`")]
    Empty { database: DatabaseName },
    #[error("database `{database}` has schema version {found}, but this node needs version {needed}; {}", advice(*found, *needed))]
    Version { database: DatabaseName, found: i64, needed: i64 },
    #[error(
        "database `{database}` was made by a version before the first release, and no migration leads from its schema \
         to this one; make it anew: export the tasks that you need with that version, drop the schema `duetime`, and \
         run `duetime migrate`"
    )]
    Unreleased { database: DatabaseName },
    #[error(
        "database `{database}` holds shards {found} of {found_count}, but the configuration gives it {configured} of \
         {configured_count}; the number of shards and their databases are fixed at the first migration: set \
         `database.shards` back"
    )]
    Shards { database: DatabaseName, found: String, found_count: i32, configured: ShardRange, configured_count: i32 },
    #[error(
        "database `{database}` offers no TLS, but its URL requires it or names another host; enable it in PostgreSQL \
         (`ssl = on`), or, on a network that others cannot read, add `sslmode=disable` to the URL"
    )]
    NoTls { database: DatabaseName },
    #[error("database `{database}` could not be read")]
    Unreachable {
        database: DatabaseName,
        #[source]
        source: sqlx::Error,
    },
    #[error("database `{database}` could not be migrated")]
    Migration {
        database: DatabaseName,
        #[source]
        source: sqlx::migrate::MigrateError,
    },
}

fn advice(found: i64, needed: i64) -> &'static str {
    if found < needed {
        "run `duetime migrate` first"
    } else {
        "the database was migrated by a newer version: update this node"
    }
}

impl Misfit {
    fn unreachable(database: &DatabaseName, source: sqlx::Error) -> Self {
        let database = database.clone();
        if connect::offers_no_tls(&source) { Self::NoTls { database } } else { Self::Unreachable { database, source } }
    }

    /// Whether trying again later may help, because the database was not reached.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => !is_refusal(source),
            Self::Migration { source: sqlx::migrate::MigrateError::Execute(error), .. } => !is_refusal(error),
            _ => false,
        }
    }

    /// Whether no waiting helps, because this configuration and this database do not belong together.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Unreachable { .. })
    }
}

/// Whether the server answered with an error other than that it is starting, stopping or full. Examples are a wrong
/// password and a database that does not exist.
fn is_refusal(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|answer| answer.code());
    code.is_some_and(|code| !["57P", "53", "08"].iter().any(|class| code.starts_with(class)))
}

/// The changes that `duetime migrate` made to one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    pub database: DatabaseName,
    pub from: Option<i64>,
    pub to: i64,
    pub shards: ShardRange,
    /// Whether the role `duetime_producer` exists and may submit.
    pub producer: bool,
}

/// The migrations with a bookkeeping table of their own, apart from any that the
/// application keeps in the same database.
pub fn migrations() -> Migrator {
    let mut migrations = Migrator::with_migrations(FILES.iter().map(|(name, sql)| migration(name, sql)).collect());
    migrations.create_schema("duetime");
    migrations.dangerous_set_table_name("duetime.migration");
    migrations
}

/// The migration in a file `<version>_<words>.sql`.
fn migration(name: &'static str, sql: &'static str) -> Migration {
    let (_, words) = name.trim_end_matches(".sql").split_once('_').expect("the name has words");
    let no_tx = sql.starts_with(NO_TRANSACTION);
    Migration::new(
        version(name),
        words.replace('_', " ").into(),
        MigrationType::Simple,
        SqlStr::from_static(sql),
        no_tx,
    )
}

fn version(name: &str) -> i64 {
    let number = name.split('_').next().and_then(|number| number.parse().ok());
    number.expect("the name begins with a number")
}

/// The schema version that this node knows.
pub fn schema_version() -> i64 {
    FILES.iter().map(|(name, _)| version(name)).max().unwrap_or(0)
}

/// Brings one database to this version. The first run also fixes which shards the database holds. It is
/// safe to run again at any time.
pub async fn migrate(
    name: &DatabaseName,
    shards: ShardRange,
    shard_count: u16,
    options: &connect::Options,
) -> Result<Migrated, Misfit> {
    let unreachable = |source| Misfit::unreachable(name, source);
    options.reach().await.map_err(unreachable)?;
    let pool = options.migration_pool();
    let found = read(&pool).await.ok();
    if let Some(schema) = &found {
        refuse_unreleased(name, schema)?;
    }
    let from = found.and_then(|schema| schema.version);
    migrations().run(&pool).await.map_err(|source| Misfit::Migration { database: name.clone(), source })?;
    sqlx::query(
        "INSERT INTO duetime.meta (shard_count, first_shard, last_shard) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
    )
    .bind(i32::from(shard_count))
    .bind(i32::from(shards.first().number()))
    .bind(i32::from(shards.last().number()))
    .execute(&pool)
    .await
    .map_err(unreachable)?;
    compare(name, shards, shard_count, &read(&pool).await.map_err(unreachable)?)?;
    sqlx::query("INSERT INTO duetime.shard (id) SELECT generate_series($1::int, $2::int) ON CONFLICT DO NOTHING")
        .bind(i32::from(shards.first().number()))
        .bind(i32::from(shards.last().number()))
        .execute(&pool)
        .await
        .map_err(unreachable)?;
    let producer = grant(&pool).await.map_err(unreachable)?;
    Ok(Migrated { database: name.clone(), from, to: schema_version(), shards, producer })
}

/// Lets the role `duetime_producer` submit in SQL. `false`: the role does not exist,
/// and this user may not create it.
async fn grant(pool: &sqlx::PgPool) -> Result<bool, sqlx::Error> {
    sqlx::raw_sql(include_str!("queries/producer_grant.sql")).execute(pool).await?;
    sqlx::query_scalar("SELECT to_regrole('duetime_producer') IS NOT NULL").fetch_one(pool).await
}

impl Database {
    /// Checks that this database can be used: it answers, its schema is the one that this node knows, and its
    /// shards are those of the configuration.
    pub async fn schema_check(&self, shard_count: u16) -> Result<(), Misfit> {
        self.options.reach().await.map_err(|source| Misfit::unreachable(&self.name, source))?;
        let schema = self.run(StoreOp::SchemaRead, |pool| async move { read(&pool).await }).await.map_err(|error| {
            let source = error.source.unwrap_or(sqlx::Error::PoolTimedOut);
            match source.as_database_error().and_then(|answer| answer.code()).as_deref() {
                // The schema or the table does not exist.
                Some("3F000" | "42P01") => Misfit::Empty { database: self.name.clone() },
                _ => Misfit::Unreachable { database: self.name.clone(), source },
            }
        })?;
        compare(&self.name, self.shards, shard_count, &schema)
    }
}

#[derive(Debug)]
struct Schema {
    version: Option<i64>,
    /// Whether a version before the first release made the schema.
    is_unreleased: bool,
    meta: Option<(i32, i32, i32)>,
}

async fn read(pool: &sqlx::PgPool) -> Result<Schema, sqlx::Error> {
    let row = sqlx::query(include_str!("queries/schema_read.sql")).fetch_one(pool).await?;
    let count: Option<i32> = row.try_get("shard_count")?;
    let meta = match count {
        Some(count) => Some((count, row.try_get("first_shard")?, row.try_get("last_shard")?)),
        None => None,
    };
    Ok(Schema { version: row.try_get("version")?, is_unreleased: row.try_get("is_unreleased")?, meta })
}

/// Such a schema has migrations that this version does not know, and higher numbers than this version's own.
fn refuse_unreleased(name: &DatabaseName, schema: &Schema) -> Result<(), Misfit> {
    if schema.is_unreleased { Err(Misfit::Unreleased { database: name.clone() }) } else { Ok(()) }
}

fn compare(name: &DatabaseName, shards: ShardRange, shard_count: u16, schema: &Schema) -> Result<(), Misfit> {
    refuse_unreleased(name, schema)?;
    let (Some(found), Some((count, first, last))) = (schema.version, schema.meta) else {
        return Err(Misfit::Empty { database: name.clone() });
    };
    let needed = schema_version();
    if found != needed {
        return Err(Misfit::Version { database: name.clone(), found, needed });
    }
    let configured = (i32::from(shard_count), i32::from(shards.first().number()), i32::from(shards.last().number()));
    if configured != (count, first, last) {
        return Err(Misfit::Shards {
            database: name.clone(),
            found: format!("{first}-{last}"),
            found_count: count,
            configured: shards,
            configured_count: configured.0,
        });
    }
    Ok(())
}
