//! `duetime migrate`: brings every configured database to this version's schema.

use std::io;

use serde_json::json;
use tracing_subscriber::EnvFilter;

use super::{
    config_file::ConfigArgs,
    error::Error,
    output::{Form, complain, go_on_without_reader, say, warn},
};
use crate::{
    config::Config,
    settings,
    store::{
        self,
        indexes::{Indexes, Progress},
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
    show_warnings();
    let (config, form) = (args.config.file.load()?, args.config.output.output);
    if args.indexes {
        return build_indexes(&config, form).await;
    }
    let named =
        config.databases.iter().map(|database| (database.name.clone(), settings::database(database, "migrate")));
    store::migrate::refuse_new_first(&named.collect::<Vec<_>>()).await.map_err(Error::Migrate)?;
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
        let tell = |progress| complain(format_args!("database {}: {}", database.name, shown(&progress)));
        store::migrate::build_indexes(&database.name, &options, tell).await.map_err(Error::Migrate)?;
        match form {
            Form::Text => say(format!("database {}: all indexes of the table of tasks are there", database.name)),
            Form::Json | Form::Jsonl => say(json!({ "database": database.name.as_str(), "indexes": true })),
        }
    }
    Ok(())
}

/// Prints the warnings of this program: a migration may wait for a lock or for another build.
fn show_warnings() {
    let lines = tracing_subscriber::fmt().with_writer(io::stderr).without_time().with_target(false).with_ansi(false);
    // Only a test that runs in this process has a log already.
    let _ = lines.with_env_filter(EnvFilter::new("off,scheduler_node=warn")).try_init();
}

fn shown(progress: &Progress) -> String {
    let Progress { index, phase, done_percent, waits_for } = progress;
    let done = done_percent.map(|percent| format!(", {percent} %")).unwrap_or_default();
    let waits = waits_for.map(|process| format!(", waits for the transaction of process {process}"));
    format!("{index}: {phase}{done}{}", waits.unwrap_or_default())
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
