//! The files of `migrations/`, embedded.

use sqlx::{
    SqlStr,
    migrate::{Migration, MigrationType, Migrator},
};

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
    "0011_move_shards.sql",
    "0012_gate_shards.sql",
    "0013_guard_realm.sql",
    "0014_place_submits.sql",
    "0015_identify_database.sql",
    "0016_number_move_writes.sql",
    "0017_quicken_submit.sql",
    "0018_spare_archive.sql",
    "0019_spare_analyze.sql",
    "0020_renew_replaced.sql",
    "0021_check_submits.sql",
    "0022_quicken_revive.sql",
    "0023_note_reports.sql",
];

/// A line at the top of a migration that has to run outside of a transaction.
const NO_TRANSACTION: &str = "-- no-transaction";

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
