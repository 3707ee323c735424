//! Migrating the schema, and a node's check of it.

use std::{sync::Arc, time::Duration};

use common::{
    ids::{ClusterId, DatabaseName, QueueName, ShardId, TaskId},
    queue::QueuePolicy,
    shard::{MOST_SHARDS, ShardRange},
};
use integration_tests::sandbox::shared;
use sha2::{Digest, Sha256};
use sqlx::{Connection, Executor, Postgres, migrate::Migrator, pool::PoolConnection};

use super::{fixture, until_none_waits, until_waiting};
use crate::store::{
    Effect, Fault, connect,
    inbox::CopyDeletion,
    migrate::{Membership, migrate, refuse_new_first},
    migrations::{FILES, migrations, schema_version},
    schema::Misfit,
};

pub(super) fn options(url: &str) -> connect::Options {
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

/// Databases have recorded what these files did, so a file that differs cannot be run on them.
#[test]
fn a_released_migration_is_never_edited() {
    for line in include_str!("../../../../migrations/released.sha256").lines() {
        let (released, name) = line.split_once("  ").expect("a line of sha256sum");
        let (_, sql) = FILES.iter().find(|(file, _)| *file == name).unwrap_or_else(|| panic!("{name} is gone"));
        let found: String = Sha256::digest(sql).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, released, "{name} was released; write a new migration instead");
    }
}

#[tokio::test]
async fn a_second_migration_changes_nothing() {
    let test = fixture::database().await;
    let again =
        migrate(&DatabaseName::new("main"), Some(fixture::all_shards()), 128, None, &options(&test.url)).await.unwrap();
    assert_eq!((again.from, again.to), (Some(schema_version()), schema_version()));
    test.database.schema_check().await.unwrap();
}

/// Makes the schema look like that of a version far ahead, which serves nodes from version `serves` on.
async fn upgrade(test: &fixture::TestDatabase, serves: i64) {
    sqlx::raw_sql(
        "UPDATE duetime.migration SET version = 9999 WHERE version = (SELECT max(version) FROM duetime.migration)",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    sqlx::query("UPDATE duetime.meta SET serves = $1").bind(serves).execute(&test.pool).await.unwrap();
}

#[tokio::test]
async fn a_node_works_with_a_newer_schema_that_serves_it_and_migrates_nothing() {
    let test = fixture::database().await;
    upgrade(&test, schema_version()).await;
    assert_eq!(test.database.schema_check().await.unwrap().version, 9999);
    let main = DatabaseName::new("main");
    let migrated = migrate(&main, Some(fixture::all_shards()), 128, None, &options(&test.url)).await.unwrap();
    assert_eq!((migrated.from, migrated.to), (Some(9999), 9999));
}

#[tokio::test]
async fn a_node_refuses_a_newer_schema_that_does_not_serve_it_and_names_both_versions() {
    let test = fixture::database().await;
    upgrade(&test, schema_version() + 1).await;
    let main = DatabaseName::new("main");
    let migrated = migrate(&main, Some(fixture::all_shards()), 128, None, &options(&test.url)).await.unwrap_err();
    for misfit in [migrated, test.database.schema_check().await.unwrap_err()] {
        assert!(matches!(misfit, Misfit::Version { .. }), "{misfit:?}");
        let text = misfit.to_string();
        assert!(text.contains("9999") && text.contains(&schema_version().to_string()), "{text}");
    }
}

/// A connection with an open transaction that keeps every migration waiting.
async fn migration_locked(test: &fixture::TestDatabase) -> PoolConnection<Postgres> {
    let mut holder = test.pool.acquire().await.unwrap();
    for step in ["BEGIN", "LOCK TABLE duetime.migration IN ACCESS EXCLUSIVE MODE"] {
        sqlx::query(step).execute(&mut *holder).await.unwrap();
    }
    holder
}

#[tokio::test]
async fn a_migration_waits_for_a_lock_in_short_tries_so_that_others_pass_in_between() {
    let test = fixture::database().await;
    let mut holder = migration_locked(&test).await;
    let options = options(&test.url);
    let main = DatabaseName::new("main");
    let twice_then_free = async {
        for _ in 0..2 {
            until_waiting(&test.pool, 1).await;
            // It gives up, so that the statements behind it get the lock, and comes again.
            until_none_waits(&test.pool).await;
        }
        sqlx::query("COMMIT").execute(&mut *holder).await.unwrap();
    };
    let migrating = migrate(&main, Some(fixture::all_shards()), 128, None, &options);
    let migrated = tokio::join!(migrating, twice_then_free).0.expect("the migration is done");
    assert_eq!(migrated.from, Some(schema_version()));
}

/// It gives up a lock soon, and nothing else waits for it.
#[tokio::test]
async fn a_migration_takes_as_long_as_it_needs_whatever_the_database_sets() {
    let server = shared::postgres().await.unwrap();
    let name = shared::unique("timed");
    let url = server.create_database(&name).await.unwrap();
    server.execute(&format!("ALTER DATABASE \"{name}\" SET statement_timeout = '1ms'")).await.unwrap();
    migrate(&DatabaseName::new("main"), Some(fixture::all_shards()), 128, None, &options(&url)).await.unwrap();
}

#[tokio::test]
async fn the_databases_of_a_cluster_have_its_id_and_no_other_cluster_takes_them() {
    let (first, second) = (fixture::database().await, fixture::database().await);
    let main = DatabaseName::new("main");
    let cluster = first.database.schema_check().await.unwrap().cluster;
    let mut joining = Membership { cluster, shard_count: 128, given: Vec::new(), members: Vec::new() };
    let again = migrate(&main, Some(fixture::all_shards()), 128, Some(&joining), &options(&first.url)).await.unwrap();
    assert_eq!(again.cluster, cluster);
    // The same database, under another name.
    joining.members.push((again.id, DatabaseName::new("before")));
    let misfit = migrate(&main, None, 128, Some(&joining), &options(&first.url)).await.unwrap_err();
    assert!(matches!(&misfit, Misfit::Same { other, .. } if other.as_str() == "before"), "{misfit:?}");
    // Both databases are copies of one template.
    let renew = "UPDATE duetime.meta SET cluster_id = gen_random_uuid()";
    sqlx::query(renew).execute(&second.pool).await.unwrap();
    let misfit =
        migrate(&main, Some(fixture::all_shards()), 128, Some(&joining), &options(&second.url)).await.unwrap_err();
    assert!(matches!(misfit, Misfit::Cluster { expected, .. } if expected == cluster), "{misfit:?}");
}

/// The version of the schema. `None`: there is none.
pub(super) async fn version_of(url: &str) -> Option<i64> {
    let pool = sqlx::PgPool::connect(url).await.unwrap();
    let exists = "SELECT to_regclass('duetime.migration') IS NOT NULL";
    let exists: bool = sqlx::query_scalar(exists).fetch_one(&pool).await.unwrap();
    if !exists {
        return None;
    }
    Some(sqlx::query_scalar("SELECT max(version) FROM duetime.migration").fetch_one(&pool).await.unwrap())
}

#[tokio::test]
async fn a_database_of_another_cluster_is_refused_before_anything_in_it_changes() {
    let url = last_release().await;
    let before = version_of(&url).await;
    let cluster = ClusterId::new(uuid::Uuid::new_v4());
    let joining = Membership { cluster, shard_count: 128, given: Vec::new(), members: Vec::new() };
    let misfit = migrate(&DatabaseName::new("east"), None, 128, Some(&joining), &options(&url)).await.unwrap_err();
    assert!(matches!(misfit, Misfit::Cluster { expected, .. } if expected == cluster), "{misfit:?}");
    assert!(before.is_some_and(|before| before < schema_version()));
    assert_eq!(version_of(&url).await, before);
}

#[tokio::test]
async fn a_database_that_cannot_keep_every_text_is_refused_while_it_is_empty() {
    let server = shared::postgres().await.unwrap();
    let name = shared::unique("latin");
    server.execute(&format!("CREATE DATABASE \"{name}\" ENCODING 'LATIN1' TEMPLATE template0")).await.unwrap();
    let url = server.url(&name);
    let main = DatabaseName::new("main");
    let misfit =
        migrate(&main, Some(fixture::all_shards()), 128, None, &options(&url)).await.expect_err("no place for a €");
    assert!(matches!(&misfit, Misfit::Encoding { found, .. } if found == "LATIN1"), "{misfit:?}");
    assert!(misfit.is_final());
    assert_eq!(version_of(&url).await, None);
}

#[tokio::test]
async fn an_empty_database_that_stands_before_one_of_a_cluster_is_refused() {
    let server = shared::postgres().await.unwrap();
    let new = server.create_database(&shared::unique("new")).await.unwrap();
    let old = fixture::database().await;
    let named = |name: &str, url: &str| (DatabaseName::new(name), options(url));
    let misfit = refuse_new_first(&[named("new", &new), named("old", &old.url)]).await.unwrap_err();
    assert!(matches!(&misfit, Misfit::NewFirst { member, .. } if member.as_str() == "old"), "{misfit:?}");
    assert!(misfit.is_final());
    assert_eq!(version_of(&new).await, None);
    refuse_new_first(&[named("old", &old.url), named("new", &new)]).await.unwrap();
    refuse_new_first(&[named("new", &new)]).await.unwrap();
}

#[tokio::test]
async fn a_database_with_copies_of_queues_is_not_the_first_one() {
    let (first, other) = (fixture::database().await, fixture::database().await);
    let queue = QueueName::new("a");
    let is_first = async |test: &fixture::TestDatabase| {
        test.database.schema_check().await.unwrap().require_first(&DatabaseName::new("main")).is_ok()
    };
    assert!(is_first(&first).await, "a new one may become the first");
    first.database.queue_put(&queue, &QueuePolicy::default(), None, 10).await.unwrap();
    let put = first.database.queue_find(&queue).await.unwrap().expect("it was put");
    other.database.queue_copy(&[Arc::new(put.queue)], CopyDeletion::These(&[]), 1).await.unwrap();
    // An operator's hand changes nothing.
    let by_hand = "UPDATE duetime.queue SET paused = true";
    for (test, expected) in [(&first, true), (&other, false)] {
        sqlx::query(by_hand).execute(&test.pool).await.unwrap();
        assert_eq!(is_first(test).await, expected);
    }
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
    let migrated = migrate(&main, Some(fixture::all_shards()), 128, None, &options(&test.url)).await.unwrap_err();
    let checked = test.database.schema_check().await.unwrap_err();
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
async fn a_schema_that_a_migration_makes_fit_is_awaited() {
    let test = fixture::database().await;
    let awaited = async |change: &'static str| {
        sqlx::raw_sql(change).execute(&test.pool).await.unwrap();
        let misfit = test.database.schema_check().await.unwrap_err();
        let text = misfit.to_string();
        assert!(misfit.awaits_migration() && !misfit.is_final(), "{change}: {misfit:?}");
        assert!(text.contains("duetime migrate"), "{change}: {text}");
    };
    awaited("DELETE FROM duetime.migration WHERE version = (SELECT max(version) FROM duetime.migration)").await;
    awaited("DELETE FROM duetime.meta").await;
    awaited("DROP SCHEMA duetime CASCADE").await;
}

/// It was once told as a schema of a newer version.
#[tokio::test]
async fn a_database_whose_id_was_deleted_says_so_and_how_to_give_it_another() {
    let test = fixture::database().await;
    sqlx::query("DELETE FROM duetime.identity").execute(&test.pool).await.unwrap();
    let main = DatabaseName::new("main");
    let migrated = migrate(&main, Some(fixture::all_shards()), 128, None, &options(&test.url)).await.unwrap_err();
    for misfit in [migrated, test.database.schema_check().await.unwrap_err()] {
        assert!(matches!(misfit, Misfit::NoId { .. }) && misfit.is_final(), "{misfit:?}");
        assert!(misfit.to_string().contains("INSERT INTO duetime.identity"), "{misfit}");
    }
    let as_told = "INSERT INTO duetime.identity (id) VALUES (gen_random_uuid())";
    sqlx::query(as_told).execute(&test.pool).await.unwrap();
    test.database.schema_check().await.unwrap();
}

/// Without the wait, the first statement would meet the empty database and fail as a bug of this version.
#[tokio::test]
async fn a_database_that_awaits_its_schema_is_away_until_the_schema_fits() {
    let test = fixture::database().await;
    let awaiting = || fixture::awaiting_schema("main", &test.url);
    let database = awaiting();
    let error = database.queue_read().await.unwrap_err();
    assert_eq!((error.fault(), error.effect), (Fault::Outage, Effect::None), "{error:?}");
    database.ping().await.unwrap();
    database.schema_check().await.unwrap();
    let (read, ()) = tokio::join!(database.queue_read(), async { database.let_through(true) });
    read.expect("a statement that waits goes on once the schema fits");
    database.let_through(false);
    let error = database.queue_read().await.unwrap_err();
    assert_eq!((error.fault(), error.effect), (Fault::Outage, Effect::None), "{error:?}");

    let database = awaiting();
    sqlx::raw_sql("DROP SCHEMA duetime CASCADE").execute(&test.pool).await.unwrap();
    database.schema_check().await.unwrap_err();
    let error = database.queue_read().await.unwrap_err();
    assert_eq!((error.fault(), error.effect), (Fault::Outage, Effect::None), "{error:?}");
}

/// The range and the fences come in one statement, so a node that looks in between finds both or neither.
#[tokio::test]
async fn a_first_migration_that_ends_after_its_range_leaves_no_shard_without_a_fence() {
    let test = fixture::database().await;
    sqlx::raw_sql(
        "DELETE FROM duetime.shard; DELETE FROM duetime.meta;
         CREATE FUNCTION duetime.end_here() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'the second statement' USING ERRCODE = '57P01'; END $$;
         CREATE TRIGGER end_here BEFORE INSERT ON duetime.shard FOR EACH STATEMENT EXECUTE FUNCTION duetime.end_here()",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    let main = DatabaseName::new("main");
    let misfit = migrate(&main, Some(fixture::all_shards()), 128, None, &options(&test.url)).await.unwrap_err();
    assert!(misfit.is_unreachable(), "{misfit:?}");
    assert!(test.database.schema_check().await.unwrap_err().awaits_migration(), "the range has no fences");
}

/// A migration that an operator, a restart or a lock ended may pass the next time.
#[tokio::test]
async fn a_migration_that_was_cut_off_is_worth_another_try() {
    let test = fixture::database().await;
    let _holder = migration_locked(&test).await;
    let (main, options) = (DatabaseName::new("main"), options(&test.url));
    let cut = async {
        loop {
            sqlx::query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                  WHERE datname = current_database() AND application_name = 'duetime migrate'
                    AND wait_event_type = 'Lock'",
            )
            .execute(&test.pool)
            .await
            .unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let misfit = tokio::select! {
        migrated = migrate(&main, Some(fixture::all_shards()), 128, None, &options) => migrated.unwrap_err(),
        () = cut => unreachable!("it never ends"),
    };
    assert!(misfit.is_unreachable(), "{misfit:?}");
}

/// The schema of the last release, with shards.
pub(super) async fn last_release() -> String {
    let server = shared::postgres().await.unwrap();
    let url = server.create_database(&shared::unique("released")).await.unwrap();
    release(&url).await;
    url
}

/// Makes that schema, with the login of the URL.
pub(super) async fn release(url: &str) {
    let pool = sqlx::PgPool::connect(url).await.unwrap();
    let last = include_str!("../../../../migrations/released.sha256").lines().count();
    let released = migrations().iter().take(last).cloned().collect();
    let mut released = Migrator::with_migrations(released);
    released.create_schema("duetime");
    released.dangerous_set_table_name("duetime.migration");
    released.run(&pool).await.unwrap();
    let meta = sqlx::query(include_str!("../queries/meta_put.sql")).bind(128).bind(0).bind(127);
    meta.bind(uuid::Uuid::new_v4()).execute(&pool).await.unwrap();
}

/// It holds locks until it ends, and a table that is written anew looks empty to a transaction whose snapshot is older.
#[tokio::test]
async fn a_transaction_that_was_open_during_an_upgrade_submits_all_the_same() {
    let url = last_release().await;
    let mut producer = sqlx::PgConnection::connect(&url).await.unwrap();
    producer.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT duetime.submit('q', '0')").await.unwrap();
    migrate(&DatabaseName::new("main"), Some(fixture::all_shards()), 128, None, &options(&url)).await.unwrap();
    producer.execute("SELECT duetime.submit('q', '1')").await.unwrap();
    producer.execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn an_upgrade_passes_a_table_that_a_vacuum_holds() {
    let url = last_release().await;
    let mut vacuum = sqlx::PgConnection::connect(&url).await.unwrap();
    vacuum.execute("BEGIN; LOCK TABLE duetime.task IN SHARE UPDATE EXCLUSIVE MODE").await.unwrap();
    migrate(&DatabaseName::new("main"), Some(fixture::all_shards()), 128, None, &options(&url)).await.unwrap();
}

#[tokio::test]
async fn a_later_migration_keeps_the_number_of_shards_and_moves_none() {
    let test = fixture::database().await;
    for (wanted, count) in [(ShardRange::new(ShardId::new(0), ShardId::new(63)), 64), (None, 256), (None, u16::MAX)] {
        let migrated = migrate(&DatabaseName::new("main"), wanted, count, None, &options(&test.url)).await.unwrap();
        assert_eq!((migrated.shard_count, migrated.shards), (128, Some(fixture::all_shards())));
        assert_eq!(fences(&test.pool).await, 128);
    }
}

async fn fences(pool: &sqlx::PgPool) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM duetime.shard").fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn a_new_cluster_has_a_bounded_number_of_shards() {
    let server = shared::postgres().await.unwrap();
    let url = server.create_database(&shared::unique("many")).await.unwrap();
    let main = DatabaseName::new("main");
    let made =
        async |count: u16| migrate(&main, Some(ShardRange::all(count.into())), count, None, &options(&url)).await;
    let refused = made(MOST_SHARDS + 1).await.unwrap_err();
    assert!(matches!(refused, Misfit::TooManyShards { .. }) && refused.to_string().contains("4096"), "{refused}");
    assert!(refused.is_final() && !refused.awaits_migration());
    assert_eq!(made(MOST_SHARDS).await.unwrap().shard_count, MOST_SHARDS);
    // A cluster of an earlier version may have more.
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    sqlx::raw_sql("UPDATE duetime.meta SET shard_count = 10000, last_shard = 9999").execute(&pool).await.unwrap();
    assert_eq!(made(10_000).await.unwrap().shard_count, 10_000);
}

#[tokio::test]
async fn an_added_database_takes_over_the_number_of_shards_and_none_that_another_has_had() {
    let server = shared::postgres().await.unwrap();
    let range = |text: &str| text.parse::<ShardRange>().unwrap();
    let joining = Membership {
        cluster: ClusterId::new(uuid::Uuid::new_v4()),
        shard_count: 128,
        given: vec![range("0-31"), range("32-63")],
        members: Vec::new(),
    };
    for (wanted, given) in
        [("64-127", true), ("63-127", false), ("0-127", false), ("64-128", false), ("128-255", false)]
    {
        let url = server.create_database(&shared::unique("added")).await.unwrap();
        let added =
            migrate(&DatabaseName::new("added"), Some(range(wanted)), 256, Some(&joining), &options(&url)).await;
        let added = added.unwrap();
        assert_eq!((added.shard_count, added.shards), (128, given.then(|| range(wanted))), "{wanted}");
        let pool = sqlx::PgPool::connect(&url).await.unwrap();
        assert_eq!(fences(&pool).await, if given { 64 } else { 0 }, "{wanted}");
    }
    let other = Membership { shard_count: 256, ..joining.clone() };
    let url = server.create_database(&shared::unique("added")).await.unwrap();
    migrate(&DatabaseName::new("added"), None, 128, Some(&joining), &options(&url)).await.unwrap();
    let misfit = migrate(&DatabaseName::new("added"), None, 128, Some(&other), &options(&url)).await.unwrap_err();
    assert!(misfit.to_string().contains("128 shards, but the cluster has 256"), "{misfit}");
}

#[tokio::test]
async fn an_added_database_begins_without_shards_and_belongs_to_the_cluster() {
    let server = shared::postgres().await.unwrap();
    let url = server.create_database(&shared::unique("added")).await.unwrap();
    let cluster = ClusterId::new(uuid::Uuid::new_v4());
    let joining = Membership { cluster, shard_count: 128, given: Vec::new(), members: Vec::new() };
    let added = migrate(&DatabaseName::new("added"), None, 256, Some(&joining), &options(&url)).await.unwrap();
    assert_eq!((added.cluster, added.shards), (cluster, None));
    let database = fixture::open(&url);
    assert_eq!(database.schema_check().await.unwrap().cluster, cluster);
    assert_eq!(database.shard_map_read(None).await.unwrap().1, []);
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    // What is submitted there may go to any shard of the cluster.
    let id: uuid::Uuid = sqlx::query_scalar("SELECT duetime.submit('q', '1')").fetch_one(&pool).await.unwrap();
    assert!(TaskId::from_uuid(id).shard().number() < 128);
}

/// This test needs a server on which no other test has created the role.
#[tokio::test]
async fn who_may_not_make_the_producers_role_is_told_and_grants_it_once_somebody_has() {
    let server = shared::numbered_postgres(1).await.unwrap();
    server.execute("CREATE ROLE plain LOGIN PASSWORD 'plain'").await.unwrap();
    server.execute("CREATE DATABASE plain OWNER plain").await.unwrap();
    let migrated = async |login: &str| {
        let url = format!("postgres://{login}:plain@127.0.0.1:{}/plain", server.port());
        migrate(&DatabaseName::new("main"), Some(fixture::all_shards()), 128, None, &options(&url)).await.unwrap()
    };
    assert!(!migrated("plain").await.producer);
    let pool = sqlx::PgPool::connect(&server.url("plain")).await.unwrap();
    let is_granted = async || {
        let granted = "SELECT bool_and(has_function_privilege('duetime_producer', p.oid, 'EXECUTE'))
                         FROM pg_proc AS p
                        WHERE p.pronamespace = 'duetime'::regnamespace AND p.proname IN ('submit', 'cancel')";
        sqlx::query_scalar::<_, bool>(granted).fetch_one(&pool).await.unwrap()
    };
    server.execute("CREATE ROLE duetime_producer NOLOGIN").await.unwrap();
    assert!(migrated("plain").await.producer && is_granted().await);

    // A login that may make roles, and acts as an owner who may not.
    let change = "DROP OWNED BY duetime_producer; DROP ROLE duetime_producer;
                  CREATE ROLE maker LOGIN PASSWORD 'plain' CREATEROLE IN ROLE plain";
    sqlx::raw_sql(change).execute(&pool).await.unwrap();
    assert!(migrated("maker").await.producer && is_granted().await);
}

#[tokio::test]
async fn a_database_that_is_away_is_no_misfit() {
    let database = fixture::unreachable_database("main");
    assert!(database.schema_check().await.unwrap_err().is_unreachable());
}
