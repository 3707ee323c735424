//! Chains of tasks that wait for one another: circles at their ends, and how far they are looked through.

use common::ids::ShardId;
use sqlx::Executor;

use super::{
    changed,
    depend::{put, task, tasks_read, written},
    fixture::{TestDatabase, database, fresh_id_of},
};
use crate::store::put::PutOutcome;

/// Tasks `k1`, `k2` and so on, so many: each waits for the next, and the last for one that is not there.
async fn chained(test: &TestDatabase, count: i32) {
    let insert = sqlx::query(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key, partition_key, depends_on)
         SELECT gen_random_uuid(), 0, 'orders', 'waiting', now(), now(), '', 'x', 'k' || g, 'p', ARRAY['orders k' || g + 1]
           FROM generate_series(1, $1) AS g",
    );
    insert.bind(count).execute(&test.pool).await.unwrap();
    test.pool.execute("ANALYZE duetime.task").await.unwrap();
}

#[tokio::test]
async fn a_circle_is_found_at_the_end_of_a_long_chain() {
    let test = database().await;
    chained(&test, 3_000).await;
    assert_eq!(put(&test, &task("k3001", &["k1"])).await, PutOutcome::Cycle);
    assert_eq!(put(&test, &task("k3001", &["x"])).await, PutOutcome::Created);
}

#[tokio::test]
async fn a_chain_too_long_to_look_through_is_refused_where_it_could_be_a_circle() {
    let test = database().await;
    chained(&test, 10_001).await;
    assert_eq!(put(&test, &task("free", &["k1"])).await, PutOutcome::Created, "no task waits for it");
    for key in ["far", "near"] {
        written(&test, "-", &[key]).await;
    }
    assert_eq!(put(&test, &task("far", &["k1"])).await, PutOutcome::Deep);
    assert_eq!(put(&test, &task("near", &["k5000"])).await, PutOutcome::Created);
}

#[tokio::test]
async fn a_long_chain_is_looked_through_only_for_a_task_that_another_one_waits_for() {
    let test = database().await;
    chained(&test, 3_000).await;
    let other_partition = changed(task("-", &["free"]), |task| task.partition_key = Some("q".into()));
    assert_eq!(put(&test, &other_partition).await, PutOutcome::Created);
    let mut connection = test.pool.acquire().await.unwrap();
    connection.execute("BEGIN").await.unwrap();
    let mut before = tasks_read(&mut connection).await;
    for (key, circle, rows) in [
        (Some("free"), None, 100..=200),
        (None, None, 100..=200),
        (Some("k50"), Some("cycle"), 40..=200),
        (Some("k3001"), Some("cycle"), 3_000..=4_000),
    ] {
        let look = sqlx::query_scalar("SELECT duetime.depends_on_itself('orders', 'p', $1, ARRAY['orders k1'])");
        let found: Option<String> = look.bind(key).fetch_one(&mut *connection).await.unwrap();
        let after = tasks_read(&mut connection).await;
        assert_eq!(found.as_deref(), circle, "{key:?}");
        assert!(rows.contains(&(after - before)), "{} rows for {key:?}", after - before);
        before = after;
    }
}

#[tokio::test]
async fn a_chain_is_looked_through_only_for_a_task_that_is_written_and_waits_for_more_than_before() {
    let test = database().await;
    chained(&test, 3_000).await;
    let mut connection = test.pool.acquire().await.unwrap();
    connection.execute("BEGIN").await.unwrap();
    let mut before = tasks_read(&mut connection).await;
    for (key, mode, others, outcome, rows) in [
        ("k10", "keep", vec!["orders k11"], "existing", 0..=50),
        ("k10", "replace", vec!["orders k11"], "replaced", 0..=50),
        ("k10", "replace", vec!["orders k11", "orders new"], "replaced", 0..=50),
        ("k10", "replace", vec!["orders k11", "orders k10"], "cycle", 0..=200),
        ("k10", "replace", vec!["orders k11", "orders k9"], "cycle", 2..=200),
        ("k3001", "replace", vec!["orders k1"], "cycle", 3_000..=4_000),
    ] {
        let put = sqlx::query_scalar::<_, String>(
            "SELECT outcome FROM duetime.task_put($1, 0, 'orders', now(), true, 3::smallint, '', 'x', NULL, 'p', NULL, NULL,
                                                  NULL, NULL, $2, 0, $3, '1 day', 1, $4)",
        );
        let put = put.bind(fresh_id_of(ShardId::new(0)).uuid()).bind(key).bind(mode).bind(&others);
        assert_eq!(put.fetch_one(&mut *connection).await.unwrap(), outcome, "{key} {mode} {others:?}");
        let after = tasks_read(&mut connection).await;
        assert!(rows.contains(&(after - before)), "{} rows for {key} {mode} {others:?}", after - before);
        before = after;
    }
}
