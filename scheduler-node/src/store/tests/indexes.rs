//! The indexes of the table of tasks that are built beside the writers.

use std::time::Duration;

use common::ids::DatabaseName;
use sqlx::{Connection, Executor, postgres::PgPoolOptions};

use super::{
    fixture::{self, options},
    migrate::last_release,
    until_waiting,
};
use crate::store::{
    indexes::{self, Effort, Indexes, Progress},
    migrate::{build_indexes, migrate},
};

/// The indexes of tasks by partition key, and whether each is complete.
async fn indexes_by_partition_key(connection: &mut sqlx::PgConnection) -> Vec<(String, bool)> {
    let indexes = "SELECT c.relname::text, i.indisvalid FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
                    WHERE i.indrelid = 'duetime.task'::regclass AND c.relname IN ('task_lane', 'task_partition', 'task_waiting')
                    ORDER BY 1";
    sqlx::query_as(indexes).fetch_all(connection).await.unwrap()
}

#[tokio::test]
async fn indexes_that_an_open_transaction_keeps_from_being_built_are_built_by_the_next_migration() {
    let url = last_release().await;
    let migrated =
        async || migrate(&DatabaseName::new("main"), Some(fixture::all_shards()), 128, None, &options(&url)).await;
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    connection.execute("BEGIN; LOCK TABLE duetime.task IN ROW EXCLUSIVE MODE").await.unwrap();
    let unfinished = migrated().await.expect("it does not wait for the end of the transaction");
    assert_eq!(unfinished.indexes, Some(Indexes::InTheWay));
    let unbuilt = [("task_partition".to_owned(), true), ("task_waiting".to_owned(), false)];
    assert_eq!(indexes_by_partition_key(&mut connection).await, unbuilt);
    connection.execute("COMMIT").await.unwrap();
    assert_eq!(migrated().await.unwrap().indexes, Some(Indexes::Complete));
    let built = ["task_lane", "task_waiting"].map(|index| (index.to_owned(), true));
    assert_eq!(indexes_by_partition_key(&mut connection).await, built);
}

/// A database without one of the indexes.
async fn without_an_index() -> fixture::TestDatabase {
    let test = fixture::database().await;
    sqlx::query("DROP INDEX duetime.task_lane").execute(&test.pool).await.unwrap();
    test
}

#[tokio::test]
async fn a_large_table_gets_its_indexes_by_the_command_for_them_only() {
    let test = without_an_index().await;
    // No table is that small.
    assert_eq!(indexes::build(&test.pool, Effort::UpTo(-1)).await.unwrap(), Indexes::Large);
    let missing = async || test.database.server_settings().await.unwrap().missing_indexes;
    assert_eq!(missing().await, ["task_lane"]);
    build_indexes(&DatabaseName::new("main"), &options(&test.url), drop).await.unwrap();
    assert!(missing().await.is_empty());
    assert_eq!(indexes::build(&test.pool, Effort::UpTo(-1)).await.unwrap(), Indexes::Complete);
}

#[tokio::test]
async fn the_command_for_indexes_waits_for_another_build() {
    let test = without_an_index().await;
    let mut other = sqlx::PgConnection::connect(&test.url).await.unwrap();
    other.execute("SELECT pg_advisory_lock(hashtextextended('duetime.task', 6))").await.unwrap();
    assert_eq!(indexes::build(&test.pool, Effort::UpTo(0)).await.unwrap(), Indexes::InTheWay);
    let until_tried = tokio::time::timeout(Duration::from_secs(60), async {
        let tried = "SELECT EXISTS (SELECT FROM pg_stat_activity
                      WHERE datname = current_database() AND application_name = 'duetime migrate'
                        AND state = 'idle' AND query LIKE '%pg_try_advisory_lock%')";
        while !sqlx::query_scalar::<_, bool>(tried).fetch_one(&test.pool).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        other.execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    });
    let (main, options) = (DatabaseName::new("main"), options(&test.url));
    let (built, tried) = tokio::join!(build_indexes(&main, &options, drop), until_tried);
    tried.expect("it tries");
    built.unwrap();
    assert!(test.database.server_settings().await.unwrap().missing_indexes.is_empty());
}

#[tokio::test]
async fn the_command_for_indexes_says_which_transaction_it_waits_for() {
    let test = without_an_index().await;
    says_which_transaction_it_waits_for(&test.url, &test.url).await;
}

/// Builds an index with the login of `url` while a transaction of the login of `writer` is in the way, until the
/// progress names it.
pub(super) async fn says_which_transaction_it_waits_for(url: &str, writer: &str) {
    let mut writer = sqlx::PgConnection::connect(writer).await.unwrap();
    writer.execute("BEGIN; LOCK TABLE duetime.task IN ROW EXCLUSIVE MODE").await.unwrap();
    let process: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut writer).await.unwrap();
    let (told, mut progress) = tokio::sync::watch::channel(None);
    let until_told = tokio::time::timeout(Duration::from_secs(60), async {
        let waits = |progress: &Progress| progress.waits_for == Some(process) && progress.index == "duetime.task_lane";
        progress.wait_for(|progress| progress.as_ref().is_some_and(waits)).await.unwrap();
        writer.execute("COMMIT").await.unwrap();
    });
    let (main, options) = (DatabaseName::new("main"), options(url));
    let tell = |progress| drop(told.send_replace(Some(progress)));
    let (built, is_told) = tokio::join!(build_indexes(&main, &options, tell), until_told);
    is_told.expect("it tells");
    built.unwrap();
}

/// An ANALYZE in a transaction waits for the build, which waits for the transaction.
#[tokio::test]
async fn the_command_for_indexes_begins_anew_after_an_analyze() {
    let test = without_an_index().await;
    let mut other = sqlx::PgConnection::connect(&test.url).await.unwrap();
    other.execute("SET deadlock_timeout = '1h'; BEGIN; LOCK TABLE duetime.task IN ROW EXCLUSIVE MODE").await.unwrap();
    let analyze = async {
        until_waiting(&test.pool, 1).await;
        other.execute("ANALYZE duetime.task").await.unwrap();
        other.execute("COMMIT").await.unwrap();
    };
    let (main, options) = (DatabaseName::new("main"), options(&test.url));
    let (built, ()) = tokio::join!(build_indexes(&main, &options, drop), analyze);
    built.unwrap();
    assert!(test.database.server_settings().await.unwrap().missing_indexes.is_empty());
}

/// A try of a migration that fails leaves its lock to its session.
#[tokio::test]
async fn another_migration_does_not_wait_for_the_lock_of_one_that_builds_indexes() {
    let test = without_an_index().await;
    let pool = PgPoolOptions::new().max_connections(1).connect(&test.url).await.unwrap();
    sqlx::query("SELECT pg_advisory_lock(7)").execute(&pool).await.unwrap();
    let mut writer = sqlx::PgConnection::connect(&test.url).await.unwrap();
    writer.execute("BEGIN; LOCK TABLE duetime.task IN ROW EXCLUSIVE MODE").await.unwrap();
    let is_free = async {
        until_waiting(&test.pool, 1).await;
        let lock = "SELECT pg_try_advisory_lock(7)";
        let is_free: bool = sqlx::query_scalar(lock).fetch_one(&test.pool).await.unwrap();
        writer.execute("COMMIT").await.unwrap();
        is_free
    };
    let (built, is_free) = tokio::join!(indexes::build(&pool, Effort::Any), is_free);
    assert_eq!((built.unwrap(), is_free), (Indexes::Complete, true));
}
