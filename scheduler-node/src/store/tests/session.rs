//! A node's sessions have the settings on which its statements rely, whatever is set for the database.

use common::{
    ids::{DatabaseName, ShardId},
    task::{BusinessKey, NewTask, OnDuplicate},
};
use sqlx::AssertSqlSafe;

use super::{
    changed,
    fixture::{self, TestDatabase},
    new_task, until_waiting,
};
use crate::{
    store::{
        PoolKind, StoreOp,
        migrate::build_indexes,
        put::{PutOutcome, Retention},
    },
    supervise::spawn_child,
};

const HOLD: Retention = Retention { window_ms: 86_400_000, keep_ms: 86_400_000 };

/// A task with the key `k`, which an older version does not replace.
fn keyed(version: i64) -> NewTask {
    let keyed = BusinessKey { key: "k".to_owned(), version, on_duplicate: OnDuplicate::Version };
    changed(new_task(fixture::fresh_id_of(ShardId::new(0))), |task| task.keyed = Some(keyed))
}

/// A database that gives each new session this setting, with a node that opens its connections from now on.
async fn database_with(setting: &str) -> TestDatabase {
    let test = fixture::database().await;
    let name: String = sqlx::query_scalar("SELECT current_database()").fetch_one(&test.pool).await.unwrap();
    let alter = format!("ALTER DATABASE \"{name}\" SET {setting}");
    sqlx::query(AssertSqlSafe(alter)).execute(&test.pool).await.unwrap();
    TestDatabase { database: fixture::open(&test.url), ..test }
}

#[tokio::test]
async fn a_key_is_decided_by_what_is_committed_meanwhile_whatever_isolation_the_database_sets() {
    let test = database_with("default_transaction_isolation = 'repeatable read'").await;
    test.be_patient(PoolKind::Write).await;
    let (older, newer) = (keyed(1), keyed(2));
    let mut holder = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *holder).await.unwrap();
    sqlx::query("SELECT duetime.task_put($1, 0, 'orders', now(), true, 3::smallint, '', 'x', NULL, NULL, NULL, NULL, NULL, NULL, 'k', 2, 'version', '1 day', 1, NULL)")
        .bind(newer.id.uuid())
        .execute(&mut *holder)
        .await
        .unwrap();
    let database = test.database.clone();
    let waiting = spawn_child(async move { database.task_put(&[older], &[HOLD]).await });
    until_waiting(&test.pool, 1).await;
    sqlx::query("COMMIT").execute(&mut *holder).await.unwrap();
    let answer = waiting.await.unwrap().unwrap().remove(0);
    assert_eq!((answer.outcome, answer.id), (PutOutcome::Stale, newer.id));
}

/// An idle node keeps its connections, so that the next submission does not wait for one.
#[tokio::test]
async fn an_idle_connection_of_a_node_is_kept_whatever_the_database_sets() {
    let test = database_with("idle_session_timeout = '1h'").await;
    for op in [StoreOp::TaskClaim, StoreOp::TaskSubmit, StoreOp::TaskList] {
        let read = "SELECT current_setting('idle_session_timeout')";
        let found = test
            .database
            .run(op, |pool| async move { sqlx::query_scalar::<_, String>(read).fetch_one(&pool).await })
            .await
            .unwrap();
        assert_eq!(found, "0", "{op}");
    }
}

/// `task_put` and builds of indexes call `hashtextextended` with an integer, which PostgreSQL's own takes as a bigint.
#[tokio::test]
async fn no_function_of_another_schema_stands_in_for_one_of_postgresql() {
    let test = fixture::database().await;
    let closer = "CREATE FUNCTION public.hashtextextended(text, integer) RETURNS bigint LANGUAGE plpgsql AS
                  $$ BEGIN RAISE EXCEPTION 'called with the rights of a node'; END $$;
                  DROP INDEX duetime.task_lane";
    sqlx::raw_sql(closer).execute(&test.pool).await.unwrap();
    test.database.task_put(&[keyed(1)], &[HOLD]).await.unwrap();
    build_indexes(&DatabaseName::new("main"), &fixture::options(&test.url), drop).await.unwrap();
}
