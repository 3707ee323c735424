//! Which task with a key counts for the tasks that wait for it, and how many rows a look at it reads.

use common::task::{OnDuplicate, TaskState};
use sqlx::{Executor, PgConnection, Postgres, Row, pool::PoolConnection};

use super::{
    changed, claim,
    depend::{DAY_MS, end, finish, look, put, task, tasks_read, written},
    fixture::{TestDatabase, database, planned},
    own, state_of,
};
use crate::store::{
    depend::DEPENDENTS_AT_ONCE,
    put::{PutOutcome, Retention},
};

/// A version 5 ends in `first`. Later a task without a version takes the same key and ends in `last`. Returns whether a
/// task that waits for the key may start.
async fn starts_after(first: TaskState, last: TaskState) -> bool {
    let test = database().await;
    let versioned = changed(task("a", &[]), |task| task.keyed.as_mut().unwrap().version = 5);
    assert_eq!(put(&test, &versioned).await, PutOutcome::Created);
    end(&test, versioned.id, first).await;
    let plain = changed(task("a", &[]), |task| task.keyed.as_mut().unwrap().on_duplicate = OnDuplicate::Keep);
    let no_window = Retention { window_ms: 0, keep_ms: DAY_MS };
    let outcome = test.database.task_put(std::slice::from_ref(&plain), &[no_window]).await.unwrap().remove(0).outcome;
    assert_eq!(outcome, PutOutcome::Created);
    end(&test, plain.id, last).await;
    let waiting = written(&test, "-", &["a"]).await;
    look(&test, waiting).await
}

#[tokio::test]
async fn a_task_without_a_version_that_succeeds_after_a_version_that_failed_lets_its_dependents_go() {
    assert!(starts_after(TaskState::Dead, TaskState::Succeeded).await);
}

#[tokio::test]
async fn a_task_without_a_version_that_fails_after_a_version_that_succeeded_keeps_its_dependents() {
    assert!(!starts_after(TaskState::Succeeded, TaskState::Dead).await);
}

#[tokio::test]
async fn a_task_that_succeeds_after_a_retry_lets_its_dependents_go_beside_a_younger_one_that_failed() {
    let test = database().await;
    let [retried, younger] =
        [(); 2].map(|()| changed(task("a", &[]), |task| task.keyed.as_mut().unwrap().on_duplicate = OnDuplicate::Keep));
    let no_window = Retention { window_ms: 0, keep_ms: DAY_MS };
    for task in [&retried, &younger] {
        test.database.task_put(std::slice::from_ref(task), &[no_window]).await.unwrap();
        end(&test, task.id, TaskState::Dead).await;
    }
    test.database.task_revive(retried.id).await.unwrap();
    end(&test, retried.id, TaskState::Succeeded).await;
    let waiting = written(&test, "-", &["a"]).await;
    assert!(look(&test, waiting).await);
}

/// An attempt in flight goes on beside a newer version.
#[tokio::test]
async fn a_newer_version_that_succeeded_counts_although_an_older_one_failed_after_a_retry() {
    let test = database().await;
    let [older, newer] =
        [1, 2].map(|version| changed(task("a", &[]), |task| task.keyed.as_mut().unwrap().version = version));
    put(&test, &older).await;
    end(&test, older.id, TaskState::Dead).await;
    test.database.task_revive(older.id).await.unwrap();
    let fences = own(&test, "a").await;
    assert_eq!(claim(&test, &[older.id], &fences).await.deliveries.len(), 1);
    put(&test, &newer).await;
    end(&test, newer.id, TaskState::Succeeded).await;
    let rescued = "UPDATE duetime.task SET claimed_at = clock_timestamp() WHERE attempt > 0";
    test.pool.execute(rescued).await.unwrap();
    let attempt = test.database.task_read(older.id).await.unwrap().unwrap().attempt;
    finish(&test, older.id, attempt, TaskState::Dead).await;
    let waiting = written(&test, "-", &["a"]).await;
    assert!(look(&test, waiting).await);
}

#[tokio::test]
async fn a_newer_version_that_succeeded_counts_while_an_older_one_is_still_in_flight() {
    let test = database().await;
    let [older, newer] =
        [1, 2].map(|version| changed(task("a", &[]), |task| task.keyed.as_mut().unwrap().version = version));
    put(&test, &older).await;
    let waiting = written(&test, "-", &["a"]).await;
    let fences = own(&test, "a").await;
    assert_eq!(claim(&test, &[older.id], &fences).await.deliveries.len(), 1);
    assert_eq!(put(&test, &newer).await, PutOutcome::Created);
    assert!(!look(&test, waiting).await, "the newest version has not succeeded yet");
    let succeeded = end(&test, newer.id, TaskState::Succeeded).await.succeeded;
    let released = test.database.task_release(&[], &succeeded).await.unwrap().released;
    assert_eq!(released.iter().map(|task| task.id).collect::<Vec<_>>(), [waiting]);
    assert_eq!(state_of(&test.pool, older.id).await.as_deref(), Some("dispatching"));
}

/// Tasks of this key that have succeeded, one in each of so many partitions and `ended` times in `p`.
async fn succeeded_in_partitions(test: &TestDatabase, key: &str, partitions: i32, ended: i32) {
    let insert = sqlx::query(
        "INSERT INTO duetime.archive
             (id, shard, queue, state, wake_at, due_at, payload, content_type, key, partition_key, created_at, finished_at, drop_on)
         SELECT gen_random_uuid(), 0, 'orders', 'succeeded', now(), now(), '', 'x', $1, CASE WHEN g > $2 THEN 'p' ELSE 'p' || g END,
                now() - g * interval '1 s', now() - g * interval '1 s', current_date + 1
           FROM generate_series(1, $2 + $3) AS g",
    );
    insert.bind(key).bind(partitions).bind(ended).execute(&test.pool).await.unwrap();
    test.pool.execute("ANALYZE duetime.archive").await.unwrap();
}

/// The rows of finished tasks that this connection has read in its transaction.
async fn finished_read(connection: &mut PgConnection) -> i64 {
    let read = "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint
                  FROM pg_stat_xact_user_tables WHERE relname LIKE 'archive%'";
    sqlx::query_scalar(read).fetch_one(connection).await.unwrap()
}

/// A connection in a transaction, with the settings of a node.
async fn as_of_a_node(test: &TestDatabase) -> PoolConnection<Postgres> {
    let mut connection = planned(&test.pool).await;
    connection.execute("BEGIN").await.unwrap();
    connection
}

#[tokio::test]
async fn a_look_at_a_key_reads_no_finished_task_of_another_partition_and_some_of_a_key_that_is_used_often() {
    let test = database().await;
    succeeded_in_partitions(&test, "a", 3_000, 1).await;
    succeeded_in_partitions(&test, "often", 0, 3_000).await;
    let mut connection = as_of_a_node(&test).await;
    let mut before = finished_read(&mut connection).await;
    for (key, most) in [("a", 10), ("often", 150)] {
        let look = sqlx::query_scalar("SELECT duetime.standing_of('orders ' || $1, 'p')::text");
        let state: Option<String> = look.bind(key).fetch_one(&mut *connection).await.unwrap();
        assert_eq!(state.as_deref(), Some("succeeded"), "{key}");
        let after = finished_read(&mut connection).await;
        assert!((1..=most).contains(&(after - before)), "{} rows for {key}", after - before);
        before = after;
    }
}

#[tokio::test]
async fn a_retry_reads_no_finished_task_of_another_partition() {
    let test = database().await;
    succeeded_in_partitions(&test, "a", 3_000, 0).await;
    test.pool.execute("UPDATE duetime.archive SET version = 7").await.unwrap();
    let dead = written(&test, "a", &[]).await;
    end(&test, dead, TaskState::Dead).await;
    let mut connection = as_of_a_node(&test).await;
    let before = finished_read(&mut connection).await;
    let revive =
        "SELECT count(*) FROM duetime.task_revive((SELECT drop_on FROM duetime.archive WHERE id = $1), $1, true)";
    let revived: i64 = sqlx::query_scalar(revive).bind(dead.uuid()).fetch_one(&mut *connection).await.unwrap();
    assert_eq!(revived, 1);
    let read = finished_read(&mut connection).await - before;
    assert!(read < 50, "{read} rows");
}

/// Tasks of partition `p`, or of a partition each, that wait for this key of `orders`.
async fn waiting_for(test: &TestDatabase, key: &str, count: i32, is_of_p: bool) {
    let insert = sqlx::query(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, partition_key, depends_on)
         SELECT gen_random_uuid(), 0, 'orders', 'waiting', now(), now(), '', 'x', CASE WHEN $3 THEN 'p' ELSE 'p' || g END,
                ARRAY['orders ' || $1]
           FROM generate_series(1, $2) AS g",
    );
    insert.bind(key).bind(count).bind(is_of_p).execute(&test.pool).await.unwrap();
    test.pool.execute("ANALYZE duetime.task").await.unwrap();
}

#[tokio::test]
async fn a_success_reads_no_task_that_waits_for_its_key_in_another_partition() {
    let test = database().await;
    let first = written(&test, "a", &[]).await;
    let waiting = written(&test, "-", &["a"]).await;
    waiting_for(&test, "a", 3_000, false).await;
    end(&test, first, TaskState::Succeeded).await;
    let mut connection = as_of_a_node(&test).await;
    let before = tasks_read(&mut connection).await;
    let release = sqlx::query(include_str!("../queries/task_release.sql")).bind(Vec::<uuid::Uuid>::new());
    // A batch of such successes, each in a partition of its own.
    let partitions: Vec<String> = (0..100).map(|g| if g == 0 { "p".to_owned() } else { format!("p{g}") }).collect();
    let release = release.bind(vec!["orders a"; 100]).bind(partitions).bind(Vec::<i32>::new()).bind(uuid::Uuid::nil());
    let release = release.bind(i64::from(DEPENDENTS_AT_ONCE)).bind(vec![0_i32]);
    let rows = release.fetch_all(&mut *connection).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get("id")).collect::<Vec<uuid::Uuid>>(), [waiting.uuid()]);
    let read = tasks_read(&mut connection).await - before;
    assert!(read < 6_000, "{read} rows: 3,000 show once that the name is common");
}

/// A look-up probes each partition of the archive.
#[tokio::test]
async fn a_success_is_looked_up_once_however_many_tasks_wait_for_it() {
    let test = database().await;
    succeeded_in_partitions(&test, "a", 0, 1).await;
    waiting_for(&test, "a", 500, true).await;
    let mut connection = as_of_a_node(&test).await;
    let before = finished_read(&mut connection).await;
    let release = sqlx::query(include_str!("../queries/task_release.sql")).bind(Vec::<uuid::Uuid>::new());
    let release = release.bind(vec!["orders a"]).bind(vec!["p"]).bind(Vec::<i32>::new()).bind(uuid::Uuid::nil());
    let release = release.bind(i64::from(DEPENDENTS_AT_ONCE)).bind(vec![0_i32]);
    let rows = release.fetch_all(&mut *connection).await.unwrap();
    assert_eq!(rows.iter().filter(|row| !row.get::<bool, _>("is_page_end")).count(), 500);
    let read = finished_read(&mut connection).await - before;
    assert!((1..10).contains(&read), "{read} rows");
}

#[tokio::test]
async fn a_success_finds_its_dependents_among_many_that_wait_in_its_partition() {
    let test = database().await;
    let first = written(&test, "a", &[]).await;
    waiting_for(&test, "other", 300, true).await;
    let waiting = written(&test, "-", &["a"]).await;
    let succeeded = end(&test, first, TaskState::Succeeded).await.succeeded;
    let released = test.database.task_release(&[], &succeeded).await.unwrap().released;
    assert_eq!(released.iter().map(|task| task.id).collect::<Vec<_>>(), [waiting]);
}

/// A look is for a task that no success has found, so it must not stop at the first name.
#[tokio::test]
async fn a_look_notes_every_success_and_a_success_notes_its_own() {
    let test = database().await;
    let waiting = written(&test, "-", &["missing", "a", "b"]).await;
    let [first, second] = [written(&test, "a", &[]).await, written(&test, "b", &[]).await];
    let met = async || -> Vec<String> {
        let met = "SELECT coalesce(depends_met, '{}') FROM duetime.task WHERE id = $1";
        sqlx::query_scalar(met).bind(waiting.uuid()).fetch_one(&test.pool).await.unwrap()
    };
    end(&test, first, TaskState::Succeeded).await;
    let succeeded = end(&test, second, TaskState::Succeeded).await.succeeded;
    assert!(test.database.task_release(&[], &succeeded).await.unwrap().released.is_empty());
    assert_eq!(met().await, ["orders b"]);
    assert!(!look(&test, waiting).await);
    assert_eq!(met().await, ["orders b", "orders a"]);
}
