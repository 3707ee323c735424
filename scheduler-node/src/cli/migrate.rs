//! `duetime migrate`: brings every configured database to this version's schema.

use serde_json::json;

use super::{
    config_file::ConfigArgs,
    error::Error,
    output::{Form, go_on_without_reader, say},
};
use crate::{
    settings,
    store::{
        self,
        migrate::{Membership, Migrated},
    },
};

/// The warning when the role for submitting in SQL could not be created.
const NO_PRODUCER: &str =
    "; for submitting in SQL run `CREATE ROLE duetime_producer NOLOGIN` as an administrator, then migrate again";

/// Migrates one database after the other and prints a line for each. Stops at the first failure.
pub async fn migrate(args: &ConfigArgs) -> Result<(), Error> {
    // A line is printed between two databases.
    go_on_without_reader();
    let config = args.file.load()?;
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
        match args.output.output {
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
            })),
        }
    }
    Ok(())
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
