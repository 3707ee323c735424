//! A migration beside transactions that hold its locks.

use std::time::Duration;

use common::ids::DatabaseName;
use sqlx::{Postgres, pool::PoolConnection};

use super::fixture;
use crate::{
    failures::tests::Log,
    store::{migrate::migrate, migrations::schema_version},
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
