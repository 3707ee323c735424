//! A migration beside transactions that hold its locks.

use std::time::Duration;

use common::ids::DatabaseName;
use integration_tests::sandbox::shared;
use sqlx::{PgPool, Postgres, pool::PoolConnection};
use tokio::time::Instant;

use super::fixture;
use crate::{
    failures::tests::Log,
    store::{migrate::migrate, migrations::schema_version, patience::Blockers},
};

/// A generous limit: the machine may be busy.
const SOON: Duration = Duration::from_secs(120);

#[tokio::test]
async fn a_migration_names_the_process_that_is_in_its_way_and_goes_on_when_that_ends() {
    let (log, test) = (Log::keep(), fixture::database().await);
    let mut holder: PoolConnection<Postgres> = test.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE duetime.migration IN ACCESS EXCLUSIVE MODE").execute(&mut *holder).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *holder).await.unwrap();
    let named = format!("pid {pid} (");
    let until_named = async {
        while log.count(&named) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        sqlx::query("COMMIT").execute(&mut *holder).await.unwrap();
    };
    let (main, options) = (DatabaseName::new("main"), fixture::options(&test.url));
    let migrating = migrate(&main, Some(fixture::all_shards()), 128, None, &options);
    let both = tokio::time::timeout(SOON, async { tokio::join!(migrating, until_named) });
    let (migrated, ()) = both.await.expect("the migration names the process");
    assert_eq!(migrated.expect("the migration is done").from, Some(schema_version()));
}

#[tokio::test]
async fn a_transaction_of_another_role_counts_as_long_some_seconds_after_it_was_seen() {
    let test = fixture::database().await;
    let role = shared::unique("role");
    let sql = format!("CREATE ROLE {role} LOGIN PASSWORD 'secret'; CREATE TABLE public.backed_up ()");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&test.pool).await.unwrap();
    let grant = format!("GRANT SELECT ON public.backed_up TO {role}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(grant)).execute(&test.pool).await.unwrap();
    let (_, place) = test.url.rsplit_once('@').unwrap();
    let plain = PgPool::connect(&format!("postgres://{role}:secret@{place}?application_name=plain")).await.unwrap();
    let mut holder: PoolConnection<Postgres> = test.pool.acquire().await.unwrap();
    let lock = "BEGIN; LOCK TABLE public.backed_up IN ACCESS EXCLUSIVE MODE";
    sqlx::raw_sql(lock).execute(&mut *holder).await.unwrap();
    let waits = async { sqlx::raw_sql("SELECT FROM public.backed_up").execute(&plain).await.map(drop) };
    let looks = async {
        let blockers = loop {
            if let Some(blockers) = Blockers::read(&plain).await.unwrap() {
                break blockers;
            }
        };
        let text = blockers.to_string();
        assert!(text.starts_with("pid ") && !text.contains("began"), "its age is hidden: {text}");
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(6));
        assert_eq!((blockers.stay(&plain, now).await, blockers.stay(&plain, later).await), (false, true));
        sqlx::query("COMMIT").execute(&mut *holder).await.unwrap();
        assert!(!blockers.stay(&plain, later).await, "it has ended");
    };
    let both = tokio::time::timeout(SOON, async { tokio::join!(waits, looks) });
    let (waited, ()) = both.await.expect("the transaction is found");
    waited.expect("the lock is free again");
}
