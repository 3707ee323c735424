//! The schema of a database: whether a node of this version and configuration can use it.

use std::sync::Arc;

use common::{
    ids::{ClusterId, DatabaseId, DatabaseName, ShardId},
    shard::{MOST_SHARDS, ShardRange},
};
use sqlx::{PgExecutor, Row, migrate::MigrateError};

use super::{Database, StoreOp, connect, error::sqlstate, migrations::schema_version, unexpected};

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
        "database `{database}` was migrated for a cluster of {found} shards, but the cluster has {expected}; check its \
         URL, or make it anew, empty, and run `duetime migrate`"
    )]
    Shards { database: DatabaseName, found: u16, expected: u16 },
    #[error(
        "the table `duetime.identity` of database `{database}` has no row, so the database has no id by which it is told \
         from others; it was emptied by hand or by a restore of some tables. If nothing else is missing, run `INSERT \
         INTO duetime.identity (id) VALUES (gen_random_uuid())` there; otherwise restore the whole database"
    )]
    NoId { database: DatabaseName },
    #[error(
        "database `{database}` is empty, and the configuration asks for a new cluster of {asked} shards; the most is \
         {MOST_SHARDS}: set `cluster.shards`, or smaller ranges in `database.shards`"
    )]
    TooManyShards { database: DatabaseName, asked: u16 },
    #[error(
        "database `{database}` belongs to cluster {found}, but another database of the configuration belongs to cluster \
         {expected}; check their URLs: each cluster needs databases of its own"
    )]
    Cluster { database: DatabaseName, found: ClusterId, expected: ClusterId },
    #[error(
        "database `{database}` stands first and is empty, but `{member}` belongs to a cluster already: the first \
         database of that cluster stands first, and new ones below it. Check the order and the URLs"
    )]
    NewFirst { database: DatabaseName, member: DatabaseName },
    #[error(
        "database `{database}` has the encoding {found} and cannot keep every text; make it anew, empty: \
         `CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0`"
    )]
    Encoding { database: DatabaseName, found: String },
    #[error(
        "what earlier migrations made in database `{database}` belongs to the role `{owner}`, as which the login `{login}` \
         may not act; what this login added to it, applications and nodes could not use. Run `duetime migrate` with the \
         login of `{owner}`, or `GRANT` that role to `{login}` first"
    )]
    Owner { database: DatabaseName, owner: String, login: String },
    #[error(
        "`{database}` and `{other}` are the same database under two names; give each section of the configuration a \
         database of its own"
    )]
    Same { database: DatabaseName, other: DatabaseName },
    #[error(
        "database `{database}` is not the first one of this cluster: its queues are copies. The first `[[database]]` keeps \
         queues, schedules and tokens, and its place in the configuration never changes"
    )]
    NotFirst { database: DatabaseName },
    #[error(
        "database `{database}` offers no TLS, but its URL requires it or names another host; enable it in PostgreSQL \
         (`ssl = on`), or, on a network that others cannot read, add `sslmode=disable` to the URL"
    )]
    NoTls { database: DatabaseName },
    #[error("database `{database}` could not be read")]
    Unreachable {
        database: DatabaseName,
        #[source]
        source: Arc<sqlx::Error>,
    },
    #[error("database `{database}` could not be migrated")]
    Migration {
        database: DatabaseName,
        #[source]
        source: MigrateError,
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
    pub(super) fn unreachable(database: &DatabaseName, source: sqlx::Error) -> Self {
        let database = database.clone();
        if connect::offers_no_tls(&source) {
            return Self::NoTls { database };
        }
        Self::Unreachable { database, source: Arc::new(source) }
    }

    /// Whether trying again later may help, because the database was not reached or was busy.
    pub fn is_unreachable(&self) -> bool {
        use MigrateError::{Execute, ExecuteMigration};
        match self {
            Self::Unreachable { source, .. } => !is_refusal(source),
            Self::Migration { source: Execute(error) | ExecuteMigration(error, _), .. } => !is_refusal(error),
            _ => false,
        }
    }

    /// Whether no waiting helps, because this configuration and this database do not belong together.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Unreachable { .. }) && !self.awaits_migration()
    }

    /// Whether this database becomes usable once `duetime migrate` of this version has run.
    pub fn awaits_migration(&self) -> bool {
        match self {
            Self::Empty { .. } => true,
            Self::Version { found, needed, .. } => found < needed,
            _ => false,
        }
    }
}

/// SQLSTATE classes and codes after which the same statement may pass later: connection, rollback by a conflict,
/// resources, an operator's intervention, the system; a standby, an object in use, a lock that was not available.
const PASSING: [&str; 8] = ["08", "40", "53", "57", "58", "25006", "55006", "55P03"];

/// Whether the server answered with an error that stays. Examples are a wrong password and a database that does not
/// exist.
fn is_refusal(error: &sqlx::Error) -> bool {
    sqlstate(error).is_some_and(|code| !PASSING.iter().any(|class| code.starts_with(class)))
}

impl Database {
    /// Checks that this database can be used: it answers, and its schema serves this version.
    pub async fn schema_check(&self) -> Result<Fit, Misfit> {
        self.writer.find().await.map_err(|source| Misfit::unreachable(&self.name, source))?;
        let schema = self.run(StoreOp::SchemaRead, |pool| async move { read(&pool).await }).await.map_err(|error| {
            let source = error.source.unwrap_or_else(|| Arc::new(sqlx::Error::PoolTimedOut));
            let database = self.name.clone();
            if has_no_schema(&source) { Misfit::Empty { database } } else { Misfit::Unreachable { database, source } }
        })?;
        compare(&self.name, &schema)
    }
}

/// A database that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The version of its schema: this node's or a newer one.
    pub version: i64,
    pub id: DatabaseId,
    pub cluster: ClusterId,
    /// The number of shards of the cluster.
    pub shard_count: u16,
    /// The shards that the first migration gave this database.
    pub first_shards: Option<ShardRange>,
    has_copies: bool,
}

impl Fit {
    /// Refuses `database` as the first one of the configuration if it has been another one. Call it for the first one.
    pub fn require_first(&self, database: &DatabaseName) -> Result<(), Misfit> {
        if self.has_copies { Err(Misfit::NotFirst { database: database.clone() }) } else { Ok(()) }
    }
}

#[derive(Debug)]
pub(super) struct Schema {
    pub(super) version: Option<i64>,
    /// Whether a version before the first release made the schema.
    is_unreleased: bool,
    pub(super) meta: Option<Meta>,
}

/// The row of `duetime.meta`.
#[derive(Debug)]
pub(super) struct Meta {
    pub(super) shard_count: u16,
    first_shards: Option<ShardRange>,
    pub(super) cluster: ClusterId,
    /// `None`: the schema is older than the ids, or an operator has deleted this one.
    pub(super) id: Option<DatabaseId>,
    /// The oldest version whose nodes work with the schema.
    serves: i64,
    /// Whether its queues are copies of another database's.
    has_copies: bool,
}

/// `None`: the database has no schema yet.
pub(super) async fn read_if_any(pool: &sqlx::PgPool) -> Result<Option<Schema>, sqlx::Error> {
    match read(pool).await {
        Err(error) if has_no_schema(&error) => Ok(None),
        found => found.map(Some),
    }
}

/// Whether the schema or a table of it does not exist.
fn has_no_schema(error: &sqlx::Error) -> bool {
    matches!(sqlstate(error).as_deref(), Some("3F000" | "42P01"))
}

pub(super) async fn read<'p>(pool: impl PgExecutor<'p> + Copy) -> Result<Schema, sqlx::Error> {
    let row = sqlx::query(include_str!("queries/schema_read.sql")).fetch_one(pool).await?;
    let id: Option<uuid::Uuid> = if row.try_get("is_identified")? {
        sqlx::query_scalar(include_str!("queries/identity_read.sql")).fetch_optional(pool).await?
    } else {
        None
    };
    let number = |column: &str| -> Result<Option<u16>, sqlx::Error> {
        let number: Option<i32> = row.try_get(column)?;
        number.map(|number| u16::try_from(number).map_err(|_| unexpected(column, &number.to_string()))).transpose()
    };
    let range = |(first, last)| ShardRange::new(ShardId::new(first), ShardId::new(last));
    let meta = match number("shard_count")? {
        Some(shard_count) => Some(Meta {
            shard_count,
            first_shards: number("first_shard")?.zip(number("last_shard")?).and_then(range),
            cluster: ClusterId::new(row.try_get("cluster_id")?),
            id: id.map(DatabaseId::new),
            serves: row.try_get("serves")?,
            has_copies: row.try_get("has_copies")?,
        }),
        None => None,
    };
    Ok(Schema { version: row.try_get("version")?, is_unreleased: row.try_get("is_unreleased")?, meta })
}

/// Refuses to make a new cluster with more shards than it should have. `database` is the first one of the
/// configuration: only while it is empty is the cluster a new one.
pub fn refuse_too_many(database: &DatabaseName, asked: u16) -> Result<(), Misfit> {
    if asked <= MOST_SHARDS { Ok(()) } else { Err(Misfit::TooManyShards { database: database.clone(), asked }) }
}

/// Such a schema has migrations that this version does not know, and higher numbers than this version's own.
pub(super) fn refuse_unreleased(name: &DatabaseName, schema: &Schema) -> Result<(), Misfit> {
    if schema.is_unreleased { Err(Misfit::Unreleased { database: name.clone() }) } else { Ok(()) }
}

pub(super) fn compare(name: &DatabaseName, schema: &Schema) -> Result<Fit, Misfit> {
    refuse_unreleased(name, schema)?;
    let (Some(found), Some(meta)) = (schema.version, &schema.meta) else {
        return Err(Misfit::Empty { database: name.clone() });
    };
    let needed = schema_version();
    let Meta { shard_count, first_shards, cluster, id, serves, has_copies } = *meta;
    if found < needed || serves > needed {
        return Err(Misfit::Version { database: name.clone(), found, needed });
    }
    let id = id.ok_or_else(|| Misfit::NoId { database: name.clone() })?;
    Ok(Fit { version: found, id, cluster, shard_count, first_shards, has_copies })
}
