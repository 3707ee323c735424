//! `duetime migrate`: brings a database to the schema of this version.

use std::time::Duration;

use common::{
    ids::{ClusterId, DatabaseId, DatabaseName},
    shard::range::ShardRange,
};
use sqlx::migrate::MigrateError;

use super::{
    connect,
    error::sqlstate,
    indexes::{self, Effort, Indexes, Progress},
    migrations::{migrations, schema_version},
    partition,
    patience::patiently,
    schema::{Fit, Misfit, compare, read, read_if_any, refuse_too_many, refuse_unreleased},
    writer::Writer,
};

/// The interval between two looks at the progress of a build.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The changes that `duetime migrate` made to one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    pub database: DatabaseName,
    pub id: DatabaseId,
    pub from: Option<i64>,
    pub to: i64,
    /// The shards that its first migration gave it.
    pub shards: Option<ShardRange>,
    pub cluster: ClusterId,
    /// The number of shards of the cluster.
    pub shard_count: u16,
    /// Whether the role `duetime_producer` exists and may submit.
    pub producer: bool,
    /// Whether the indexes of the table of tasks are there. `None`: the schema is a newer version's.
    pub indexes: Option<Indexes>,
}

/// The cluster that a database joins: what the databases before it have told.
#[derive(Clone, Debug)]
pub struct Membership {
    pub cluster: ClusterId,
    pub shard_count: u16,
    /// The shards that those databases had at first.
    pub given: Vec<ShardRange>,
    /// Those databases.
    pub members: Vec<(DatabaseId, DatabaseName)>,
}

impl Membership {
    /// The shards that a new database may have at first: those that the configuration gives it, unless another
    /// database of the cluster has had them.
    fn first_shards(&self, wanted: Option<ShardRange>) -> Option<ShardRange> {
        let is_given = |wanted: ShardRange, given: &ShardRange| wanted.iter().any(|shard| given.contains(shard));
        wanted.filter(|wanted| {
            wanted.last().number() < self.shard_count && !self.given.iter().any(|given| is_given(*wanted, given))
        })
    }

    /// Refuses a database of another cluster, and one of the members under another name.
    fn refuse_other(
        &self,
        name: &DatabaseName,
        cluster: ClusterId,
        shard_count: u16,
        id: Option<DatabaseId>,
    ) -> Result<(), Misfit> {
        let database = name.clone();
        if self.cluster != cluster {
            Err(Misfit::Cluster { database, found: cluster, expected: self.cluster })
        } else if self.shard_count != shard_count {
            Err(Misfit::Shards { database, found: shard_count, expected: self.shard_count })
        } else if let Some((_, other)) = self.members.iter().find(|(member, _)| Some(*member) == id) {
            Err(Misfit::Same { database, other: other.clone() })
        } else {
            Ok(())
        }
    }
}

/// Brings one database to this version, unless a newer version has been there. The first run also makes it part of the
/// cluster of `joining`, or of a new one with `shard_count` shards, and gives it the shards that it has at first. It
/// is safe to run again at any time.
pub async fn migrate(
    name: &DatabaseName,
    shards: Option<ShardRange>,
    shard_count: u16,
    joining: Option<&Membership>,
    options: &connect::Options,
) -> Result<Migrated, Misfit> {
    let unreachable = |source| Misfit::unreachable(name, source);
    let writer = Writer::new(options.clone());
    let server = writer.find().await.map_err(unreachable)?.server;
    let (pool, beside) = (owners_pool(name, &writer, server).await?, writer.migration_pool(server, None));
    let refused = |source| Misfit::Migration { database: name.clone(), source };
    let found = patiently(&beside, async || Ok(read_if_any(&pool).await?)).await.map_err(refused)?;
    if let Some(schema) = &found {
        refuse_unreleased(name, schema)?;
        if let (Some(of), Some(meta)) = (joining, &schema.meta) {
            of.refuse_other(name, meta.cluster, meta.shard_count, meta.id)?;
        }
    }
    if joining.is_none() && found.as_ref().is_none_or(|schema| schema.meta.is_none()) {
        refuse_too_many(name, shard_count)?;
    }
    let from = found.and_then(|schema| schema.version);
    if from.is_none() {
        refuse_encoding(name, &pool).await?;
    }
    let mut indexes = None;
    if from.is_none_or(|from| from <= schema_version()) {
        patiently(&beside, async || migrations().run(&pool).await).await.map_err(refused)?;
        make_partitions(name, &pool).await;
        let built = indexes::build(&pool, Effort::UpTo(indexes::SMALL_BYTES)).await;
        indexes = Some(built.map_err(|error| refused(MigrateError::Execute(error)))?);
    }
    match joining {
        Some(of) => write_meta(&pool, of.first_shards(shards), of.shard_count, of.cluster).await,
        None => write_meta(&pool, shards, shard_count, ClusterId::new(uuid::Uuid::new_v4())).await,
    }
    .map_err(unreachable)?;
    let schema = read(&pool).await.map_err(unreachable)?;
    let Fit { version, id, cluster, shard_count, first_shards, .. } = compare(name, &schema)?;
    if let Some(of) = joining {
        of.refuse_other(name, cluster, shard_count, Some(id))?;
    }
    let producer = grant(&pool, &beside).await.map_err(|error| refused(MigrateError::Execute(error)))?;
    let (database, to, shards) = (name.clone(), version, first_shards);
    Ok(Migrated { database, id, from, to, shards, cluster, shard_count, producer, indexes })
}

/// The connection of a migration. It acts as the role that owns what earlier ones have made, so that this role owns
/// what it adds, too. The functions that applications call run with the rights of that role, and could not use a table
/// or a sequence of another login.
async fn owners_pool(name: &DatabaseName, writer: &Writer, server: usize) -> Result<sqlx::PgPool, Misfit> {
    let unreachable = |source| Misfit::unreachable(name, source);
    let pool = writer.migration_pool(server, None);
    let other = sqlx::query_as::<_, (String, String)>(include_str!("queries/migration_owner.sql"));
    let Some((owner, login)) = other.fetch_optional(&pool).await.map_err(unreachable)? else { return Ok(pool) };
    // The setting ends with its statement. What allows it depends on PostgreSQL's version, so it is tried.
    let tried = sqlx::query("SELECT set_config('role', $1, true)").bind(&owner).execute(&pool).await;
    match tried {
        Ok(_) => Ok(writer.migration_pool(server, Some(owner))),
        Err(error) if sqlstate(&error).as_deref() == Some("42501") => {
            Err(Misfit::Owner { database: name.clone(), owner, login })
        }
        Err(error) => Err(unreachable(error)),
    }
}

/// Makes the archive's partitions of the next days where they are missing. Without them the first tasks of a new
/// cluster could not end before a node had made them. This is no part of a migration, which runs once: a later
/// `duetime migrate` looks again. It does not fail either, because the nodes make what it leaves.
async fn make_partitions(name: &DatabaseName, pool: &sqlx::PgPool) {
    if let Err(error) = partition::make_first(pool).await {
        tracing::warn!(database = %name, error = &error as &dyn std::error::Error, "could not make the archive's partitions of the next days; the nodes make them");
    }
}

/// Refuses to begin in a database that would refuse texts later. One that was begun by an earlier version goes on.
async fn refuse_encoding(name: &DatabaseName, pool: &sqlx::PgPool) -> Result<(), Misfit> {
    let read = sqlx::query_scalar::<_, String>("SELECT current_setting('server_encoding')");
    let found = read.fetch_one(pool).await.map_err(|source| Misfit::unreachable(name, source))?;
    if found == "UTF8" { Ok(()) } else { Err(Misfit::Encoding { database: name.clone(), found }) }
}

/// Refuses a first database that would found a second cluster: it belongs to none yet, and another one does.
pub async fn refuse_new_first(databases: &[(DatabaseName, connect::Options)]) -> Result<(), Misfit> {
    let [(first, options), others @ ..] = databases else { return Ok(()) };
    if others.is_empty() || is_member(first, options).await? {
        return Ok(());
    }
    for (member, options) in others {
        if is_member(member, options).await? {
            return Err(Misfit::NewFirst { database: first.clone(), member: member.clone() });
        }
    }
    Ok(())
}

/// Whether the database belongs to a cluster.
async fn is_member(name: &DatabaseName, options: &connect::Options) -> Result<bool, Misfit> {
    let writer = Writer::new(options.clone());
    let server = writer.find().await.map_err(|source| Misfit::unreachable(name, source))?.server;
    let (pool, beside) = (owners_pool(name, &writer, server).await?, writer.migration_pool(server, None));
    let found = patiently(&beside, async || Ok(read_if_any(&pool).await?)).await;
    let found = found.map_err(|source| Misfit::Migration { database: name.clone(), source })?;
    Ok(found.is_some_and(|schema| schema.meta.is_some()))
}

/// Builds the indexes of the table of tasks that are missing, however large it is. Nodes of 0.2.0 dispatch
/// ordered and limited queues slowly meanwhile, so it is not a part of a migration. `tell` gets the progress every few
/// seconds.
pub async fn build_indexes(
    name: &DatabaseName,
    options: &connect::Options,
    tell: impl Fn(Progress),
) -> Result<(), Misfit> {
    let unreachable = |source| Misfit::unreachable(name, source);
    let writer = Writer::new(options.clone());
    let server = writer.find().await.map_err(unreachable)?.server;
    let (pool, beside) = (owners_pool(name, &writer, server).await?, writer.migration_pool(server, None));
    let schema = read_if_any(&pool).await.map_err(unreachable)?;
    let fit = compare(name, &schema.ok_or_else(|| Misfit::Empty { database: name.clone() })?)?;
    // A newer version has indexes of its own.
    if fit.version > schema_version() {
        return Err(Misfit::Version { database: name.clone(), found: fit.version, needed: schema_version() });
    }
    let refused = |source| Misfit::Migration { database: name.clone(), source: MigrateError::Execute(source) };
    // With the login itself: the owner of the schema is not shown what another login builds.
    let watch = async {
        let mut look = tokio::time::interval(PROGRESS_INTERVAL);
        loop {
            look.tick().await;
            if let Ok(Some(progress)) = indexes::progress(&beside).await {
                tell(progress);
            }
        }
    };
    tokio::select! {
        built = indexes::build(&pool, Effort::Any) => built.map(drop).map_err(refused),
        () = watch => unreachable!("it never ends"),
    }
}

async fn write_meta(
    pool: &sqlx::PgPool,
    shards: Option<ShardRange>,
    shard_count: u16,
    cluster: ClusterId,
) -> Result<(), sqlx::Error> {
    let statement = sqlx::query(include_str!("queries/meta_put.sql"))
        .bind(i32::from(shard_count))
        .bind(shards.map(|shards| i32::from(shards.first().number())))
        .bind(shards.map(|shards| i32::from(shards.last().number())))
        .bind(cluster.uuid());
    statement.execute(pool).await.map(drop)
}

/// Lets the role `duetime_producer` submit in SQL. The owner of the schema, as which `pool` acts, may lack the right to
/// make roles, and so may the login of `beside`; one of them is enough. `false`: the role does not exist, and neither
/// may create it.
async fn grant(pool: &sqlx::PgPool, beside: &sqlx::PgPool) -> Result<bool, sqlx::Error> {
    for maker in [beside, pool] {
        sqlx::raw_sql(include_str!("queries/producer_create.sql")).execute(maker).await?;
    }
    sqlx::raw_sql(include_str!("queries/producer_grant.sql")).execute(pool).await?;
    sqlx::query_scalar("SELECT to_regrole('duetime_producer') IS NOT NULL").fetch_one(pool).await
}
