//! Troubles of a whole server that have the SQLSTATE of a refused value, or of a bug.

use std::sync::Arc;

use common::ids::DatabaseName;
use integration_tests::sandbox::{Postgres, Tether, fresh, shared};
use sqlx::{Connection, PgConnection};

use super::fixture;
use crate::store::{Database, Effect, Error, Fault, StoreOp, migrate, quarantine::Quarantined};

/// The columns of `pg_class` and `pg_database` that tell how old the oldest rows are, and the next id.
type Age = (&'static str, &'static str, &'static str);

const TRANSACTIONS: Age = ("relfrozenxid", "datfrozenxid", "pg_current_xact_id()::text::bigint");
const MULTIXACTS: Age = ("relminmxid", "datminmxid", "1");

/// Makes the rows of a table so old that the server assigns no new ids. The returned session keeps any vacuum away.
async fn age(url: &str, (of_table, of_database, next): Age) -> PgConnection {
    let mut holder = PgConnection::connect(url).await.unwrap();
    // The server stops 3,000,000 ids before the rows would be in the future. A vacuum computes the limit when it finds
    // the database younger than before.
    let sql = format!(
        "CREATE TABLE public.old (id int);
         UPDATE pg_class
            SET {of_table} = (({next} + (1::bigint << 31) + 1000000) % (1::bigint << 32))::text::xid
          WHERE relname = 'old';
         UPDATE pg_database
            SET {of_database} = ((SELECT {of_table} FROM pg_class WHERE relname = 'old')::text::bigint - 1000)::text::xid
          WHERE datname = current_database()"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut holder).await.unwrap();
    let hold = "BEGIN; LOCK TABLE public.old IN SHARE UPDATE EXCLUSIVE MODE";
    sqlx::raw_sql(hold).execute(&mut holder).await.unwrap();
    let mut vacuum = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql("VACUUM duetime.meta").execute(&mut vacuum).await.unwrap();
    holder
}

fn error_of(database: &Database, source: sqlx::Error) -> Error {
    let name = DatabaseName::new(database.name().as_str());
    Error { database: name, op: StoreOp::Ping, effect: Effect::None, source: Some(Arc::new(source)) }
}

/// A server of its own, because no other test could use it afterwards.
async fn own_server() -> (Postgres, String, Arc<Database>) {
    let server = Postgres::start(&fresh("postgres"), Tether::Tethered).await.unwrap();
    let url = server.create_database("main").await.unwrap();
    let name = DatabaseName::new("main");
    migrate::migrate(&name, Some(fixture::all_shards()), fixture::SHARDS, None, &fixture::options(&url)).await.unwrap();
    let database = fixture::open(&url);
    (server, url, database)
}

#[tokio::test]
async fn a_server_without_transaction_ids_is_away_and_refuses_no_value() {
    let (_server, url, database) = own_server().await;
    let _holder = age(&url, TRANSACTIONS).await;
    let kept = Quarantined::new("results", "a reason", None, serde_json::json!({}), Vec::new());
    let error = database.quarantine_add(&[kept]).await.expect_err("it needs a transaction id");
    assert_eq!(error.sqlstate().as_deref(), Some("54000"), "{error:?}");
    assert_eq!((error.fault(), error.effect), (Fault::Outage, Effect::None), "{error:?}");
    assert!(error.reason().contains("wraparound"), "{error:?}");
}

#[tokio::test]
async fn a_server_without_multixact_ids_is_away_and_refuses_no_value() {
    let (_server, url, database) = own_server().await;
    let _holder = age(&url, MULTIXACTS).await;
    let share = "BEGIN; SELECT FROM duetime.meta FOR SHARE";
    let mut first = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(share).execute(&mut first).await.unwrap();
    let mut second = PgConnection::connect(&url).await.unwrap();
    let refusal = sqlx::raw_sql(share).execute(&mut second).await.expect_err("two sessions need a multixact");
    let error = error_of(&database, refusal);
    assert_eq!(error.sqlstate().as_deref(), Some("54000"), "{error:?}");
    assert_eq!(error.fault(), Fault::Outage, "{error:?}");
}

#[tokio::test]
async fn a_row_that_is_too_large_for_an_index_is_a_refused_value() {
    let test = fixture::database().await;
    let large = "CREATE TABLE public.large (text text COLLATE \"C\" PRIMARY KEY);
                 INSERT INTO public.large
                 SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1000) n";
    let refusal = sqlx::raw_sql(large).execute(&test.pool).await.expect_err("too large");
    let error = error_of(&test.database, refusal);
    assert_eq!((error.sqlstate().as_deref(), error.fault()), (Some("54000"), Fault::Data), "{error:?}");
}

#[tokio::test]
async fn a_database_that_denies_a_privilege_or_a_connection_is_away() {
    let test = fixture::database().await;
    let (role, database) = (shared::unique("role"), test.url.rsplit('/').next().unwrap().to_owned());
    let sql = format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'secret';
         GRANT USAGE ON SCHEMA duetime TO {role}"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&test.pool).await.unwrap();
    let (_, place) = test.url.rsplit_once('@').unwrap();
    let denied = fixture::open(&format!("postgres://{role}:secret@{place}"));
    let id = fixture::fresh_id();
    let error = denied.task_standing(&[id]).await.expect_err("no privilege");
    assert_eq!((error.sqlstate().as_deref(), error.fault()), (Some("42501"), Fault::Outage), "{error:?}");

    let server = shared::postgres().await.unwrap();
    server.execute(&format!("ALTER DATABASE \"{database}\" ALLOW_CONNECTIONS false")).await.unwrap();
    let error = fixture::open(&test.url).task_standing(&[id]).await.expect_err("no connection");
    assert_eq!((error.sqlstate().as_deref(), error.fault()), (Some("55000"), Fault::Outage), "{error:?}");
}
