//! `duetime migrate`: brings every configured database to this version's schema.

use serde_json::json;

use super::{
    config_file::ConfigArgs,
    error::Error,
    output::{Form, go_on_without_reader, say, warn},
};
use crate::{
    config::Config,
    settings,
    store::{
        self,
        indexes::Indexes,
        migrate::{Membership, Migrated},
    },
};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Build only the missing indexes of the table of tasks, however large it is. Run it when all nodes have this
    /// version.
    #[arg(long)]
    pub indexes: bool,
}

/// The warning when the role for submitting in SQL could not be created.
const NO_PRODUCER: &str =
    "; for submitting in SQL run `CREATE ROLE duetime_producer NOLOGIN` as an administrator, then migrate again";

/// Migrates one database after the other and prints a line for each. Stops at the first failure.
pub async fn migrate(args: &Args) -> Result<(), Error> {
    // A line is printed between two databases.
    go_on_without_reader();
    let (config, form) = (args.config.file.load()?, args.config.output.output);
    if args.indexes {
        return build_indexes(&config, form).await;
    }
    let (asked, stated) = (config.first_shard_count(), config.stated_shard_count());
    let mut membership: Option<Membership> = None;
    for database in &config.databases {
        let options = settings::database(database, "migrate");
        let migrated = store::migrate::migrate(&database.name, database.shards, asked, membership.as_ref(), &options)
            .await
            .map_err(Error::Migrate)?;
        let Migrated { cluster, shard_count, shards, .. } = migrated;
        let is_first = membership.is_none();
        let known =
            membership.get_or_insert(Membership { cluster, shard_count, given: Vec::new(), members: Vec::new() });
        known.given.extend(shards);
        known.members.push((migrated.id, migrated.database.clone()));
        match form {
            Form::Text => {
                say(line(&migrated));
                if let Some(stated) = stated.filter(|stated| is_first && *stated != shard_count) {
                    say(format!(
                        "the cluster has {shard_count} shards and keeps them; the configuration states {stated}"
                    ));
                }
            }
            Form::Json | Form::Jsonl => say(json!({
                "database": migrated.database.as_str(),
                "from": migrated.from,
                "to": migrated.to,
                "shards": migrated.shards.map(|shards| shards.to_string()),
                "shard_count": migrated.shard_count,
                "cluster": migrated.cluster,
                "producer": migrated.producer,
                "indexes": migrated.indexes.map(|indexes| indexes == Indexes::Complete),
            })),
        }
        if let Some(why) = migrated.indexes.and_then(without_indexes) {
            warn(format!(
                "database {}: {why}. Without them, lanes and dependencies with thousands of waiting tasks are slow. \
                 When all nodes run this version, run `duetime migrate --indexes`",
                migrated.database
            ));
        }
    }
    Ok(())
}

async fn build_indexes(config: &Config, form: Form) -> Result<(), Error> {
    for database in &config.databases {
        let options = settings::database(database, "migrate");
        store::migrate::build_indexes(&database.name, &options).await.map_err(Error::Migrate)?;
        match form {
            Form::Text => say(format!("database {}: all indexes of the table of tasks are there", database.name)),
            Form::Json | Form::Jsonl => say(json!({ "database": database.name.as_str(), "indexes": true })),
        }
    }
    Ok(())
}

/// The reason why a migration left indexes to another command.
fn without_indexes(indexes: Indexes) -> Option<&'static str> {
    match indexes {
        Indexes::Complete => None,
        Indexes::Large => Some("the table of tasks is large, so some of its indexes are not built"),
        Indexes::InTheWay => Some(
            "another transaction or `duetime migrate` is in the way, so indexes of the table of tasks may be missing",
        ),
    }
}

fn line(migrated: &Migrated) -> String {
    let Migrated { database, from, to, shards, producer, .. } = migrated;
    let shards = shards.map_or_else(|| "none".to_owned(), |shards| shards.to_string());
    let hint = if *producer { "" } else { NO_PRODUCER };
    match from {
        Some(from) if from == to => {
            format!("database {database}: schema version {to} already, shards at first {shards}{hint}")
        }
        Some(from) => format!("database {database}: schema version {from} -> {to}, shards at first {shards}{hint}"),
        None => format!("database {database}: schema version {to} created, shards at first {shards}{hint}"),
    }
}
