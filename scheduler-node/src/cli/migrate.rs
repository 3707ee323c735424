//! `duetime migrate`: brings every configured database to this version's schema.

use serde_json::json;

use super::{
    config_file::ConfigArgs,
    error::Error,
    output::{Form, say},
};
use crate::{settings, store::migrate::Migrated};

/// The warning when the role for submitting in SQL could not be created.
const NO_PRODUCER: &str =
    "; for submitting in SQL run `CREATE ROLE duetime_producer NOLOGIN` as an administrator, then migrate again";

/// Migrates one database after the other and prints a line for each. Stops at the first failure.
pub async fn migrate(args: &ConfigArgs) -> Result<(), Error> {
    let config = args.file.load()?;
    for database in &config.databases {
        let options = settings::database(database, "migrate");
        let migrated = crate::store::migrate::migrate(&database.name, database.shards, config.shard_count(), &options)
            .await
            .map_err(Error::Migrate)?;
        match args.output.output {
            Form::Text => say(line(&migrated)),
            Form::Json | Form::Jsonl => say(json!({
                "database": migrated.database.as_str(),
                "from": migrated.from,
                "to": migrated.to,
                "shards": migrated.shards.to_string(),
                "producer": migrated.producer,
            })),
        }
    }
    Ok(())
}

fn line(migrated: &Migrated) -> String {
    let Migrated { database, from, to, shards, producer } = migrated;
    let hint = if *producer { "" } else { NO_PRODUCER };
    match from {
        Some(from) if from == to => format!("database {database}: schema version {to} already, shards {shards}{hint}"),
        Some(from) => format!("database {database}: schema version {from} -> {to}, shards {shards}{hint}"),
        None => format!("database {database}: schema version {to} created, shards {shards}{hint}"),
    }
}
