//! Migrating the schema, and a node's check of it.

use common::{
    ids::{DatabaseName, ShardId},
    shard::range::ShardRange,
};
use integration_tests::sandbox::shared;

use super::fixture;
use crate::store::{
    connect,
    migrate::{FILES, Misfit, migrate, migrations, schema_version},
};

fn options(url: &str) -> connect::Options {
    connect::Options { url: url.to_owned().into(), max_connections: 4, application_name: "duetime test".into() }
}

#[test]
fn every_file_of_a_migration_is_listed_in_order() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
    let names = std::fs::read_dir(folder).expect("the migrations").map(|entry| entry.expect("a file").file_name());
    let names = names.map(|name| name.into_string().expect("UTF-8")).filter(|name| name.ends_with(".sql"));
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert_eq!(FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
}

#[tokio::test]
async fn a_second_migration_changes_nothing() {
    let test = fixture::database().await;
    let again = migrate(&DatabaseName::new("main"), fixture::all_shards(), 128, &options(&test.url)).await.unwrap();
    assert_eq!((again.from, again.to), (Some(schema_version()), schema_version()));
    test.database.schema_check(128).await.unwrap();
}

#[tokio::test]
async fn a_node_refuses_a_schema_it_does_not_know_naming_both_versions() {
    let test = fixture::database().await;
    sqlx::query(
        "UPDATE duetime.migration SET version = 9999 WHERE version = (SELECT max(version) FROM duetime.migration)",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    let misfit = test.database.schema_check(128).await.unwrap_err();
    assert!(matches!(misfit, Misfit::Version { .. }));
    let text = misfit.to_string();
    assert!(text.contains("9999") && text.contains(&schema_version().to_string()), "{text}");
}

#[tokio::test]
async fn a_database_of_a_version_before_the_first_release_is_to_be_made_anew() {
    let test = fixture::database().await;
    // The first and the last of the migrations that such a version recorded.
    sqlx::raw_sql(
        "DELETE FROM duetime.migration;
         INSERT INTO duetime.migration (version, description, success, checksum, execution_time)
         VALUES (1, 'create schema', true, '\\x01', 1), (23, 'bound key lookups and placements', true, '\\x23', 1)",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    let main = DatabaseName::new("main");
    let migrated = migrate(&main, fixture::all_shards(), 128, &options(&test.url)).await.unwrap_err();
    let checked = test.database.schema_check(128).await.unwrap_err();
    for misfit in [migrated, checked] {
        assert!(matches!(misfit, Misfit::Unreleased { .. }), "{misfit:?}");
        assert!(misfit.is_final() && !misfit.is_unreachable(), "{misfit:?}");
        let text = misfit.to_string();
        assert!(text.contains("before the first release") && text.contains("anew"), "{text}");
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.migration").fetch_one(&test.pool).await.unwrap();
    assert_eq!(rows, 2, "a refused migration records nothing");
}

#[test]
fn no_migration_has_the_name_by_which_an_unreleased_schema_is_known() {
    assert!(migrations().iter().all(|migration| migration.description != "create schema"));
}

#[tokio::test]
async fn a_database_without_a_schema_is_told_to_be_migrated() {
    let test = fixture::database().await;
    sqlx::raw_sql("DROP SCHEMA duetime CASCADE").execute(&test.pool).await.unwrap();
    let text = test.database.schema_check(128).await.unwrap_err().to_string();
    assert!(text.contains("duetime migrate"), "{text}");
}

#[tokio::test]
async fn the_shards_of_a_database_are_fixed_at_its_first_migration() {
    let test = fixture::database().await;
    let half = ShardRange::new(ShardId::new(0), ShardId::new(63)).unwrap();
    let misfit = migrate(&DatabaseName::new("main"), half, 64, &options(&test.url)).await.unwrap_err();
    let text = misfit.to_string();
    assert!(text.contains("0-127") && text.contains("0-63"), "{text}");
}

/// This test needs a server on which no other test has created the role.
#[tokio::test]
async fn who_may_not_make_the_producers_role_is_told_and_grants_it_once_somebody_has() {
    let server = shared::second_postgres().await.unwrap();
    server.execute("CREATE ROLE plain LOGIN PASSWORD 'plain'").await.unwrap();
    server.execute("CREATE DATABASE plain OWNER plain").await.unwrap();
    let url = format!("postgres://plain:plain@127.0.0.1:{}/plain", server.port());
    let migrated =
        async || migrate(&DatabaseName::new("main"), fixture::all_shards(), 128, &options(&url)).await.unwrap();
    assert!(!migrated().await.producer);
    server.execute("CREATE ROLE duetime_producer NOLOGIN").await.unwrap();
    assert!(migrated().await.producer);
    let pool = sqlx::PgPool::connect(&server.url("plain")).await.unwrap();
    let granted: bool = sqlx::query_scalar(
        "SELECT bool_and(has_function_privilege('duetime_producer', p.oid, 'EXECUTE'))
           FROM pg_proc AS p WHERE p.pronamespace = 'duetime'::regnamespace AND p.proname IN ('submit', 'cancel')",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    assert!(granted);
}

#[tokio::test]
async fn a_database_that_is_away_is_no_misfit() {
    let database = fixture::unreachable_database("main", fixture::all_shards());
    assert!(database.schema_check(128).await.unwrap_err().is_unreachable());
}
