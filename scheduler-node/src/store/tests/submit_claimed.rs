//! Tasks claimed by their own insert. The tests run the insert and an acquire in both orders. For each order,
//! another run without the fence's lock shows that the lock is what protects the shard.

use common::{
    ids::{Attempt, Epoch, ShardId, TaskId},
    task::TaskState,
};

use super::{
    FENCE_LOCK, acquire_begun, commit_during,
    fixture::{self, TestDatabase, database},
    new_task, own, state_of, takeover_during, unlocked,
};
use crate::{
    store::submit::{KnownRevisions, SUBMIT_NEW, Window},
    supervise::spawn_child,
};

const SUBMIT: &str = include_str!("../queries/task_submit.sql");

/// Inserts `id`, due at once, with plain SQL that presents `epoch`.
async fn submit_with(sql: String, pool: sqlx::PgPool, id: TaskId, epoch: Epoch) {
    let second = sqlx::postgres::types::PgInterval { months: 0, days: 0, microseconds: 1_000_000 };
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(vec![id.uuid()])
        .bind(vec![i32::from(id.shard().number())])
        .bind(vec!["orders"])
        .bind(vec![fixture::now(&pool).await.to_utc()])
        .bind(vec![3_i16])
        .bind(vec![b"{}".as_slice()])
        .bind(vec!["application/json"])
        .bind(vec![None::<String>])
        .bind(vec![None::<String>])
        .bind(vec![None::<i32>])
        .bind(vec![None::<i64>])
        .bind(vec![None::<String>])
        .bind(vec![None::<chrono::DateTime<chrono::Utc>>])
        .bind(vec![None::<String>])
        .bind(vec![0_i64])
        .bind(vec![true])
        .bind(false)
        .bind(vec![Some(epoch.number())])
        .bind(second)
        .bind(vec![None::<String>])
        .bind(i64::MAX)
        .bind(None::<chrono::DateTime<chrono::Utc>>)
        .bind(common::time::UnixMicros::LAST.to_utc())
        .bind(i64::MAX)
        .execute(&pool)
        .await
        .unwrap();
}

async fn state(test: &TestDatabase, id: TaskId) -> String {
    state_of(&test.pool, id).await.expect("it was submitted")
}

/// Lets another node acquire the shard while an insert is in flight, held up by a session that writes the same id.
/// Returns how many tasks the new owner found to take over.
async fn acquire_during_submit(sql: String) -> usize {
    let test = database().await;
    let epoch = own(&test, "old").await[&ShardId::new(0)];
    let id = fixture::fresh_id_of(ShardId::new(0));
    let mut blocker = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *blocker).await.unwrap();
    sqlx::query("INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type) VALUES ($1, 0, 'q', 'scheduled', now(), now(), '', '')")
        .bind(id.uuid())
        .execute(&mut *blocker)
        .await
        .unwrap();
    let waits = sql.contains(FENCE_LOCK);
    let submitting = spawn_child(submit_with(sql, test.pool.clone(), id, epoch));
    let found = takeover_during(&test, blocker, waits).await;
    submitting.await.unwrap();
    assert_eq!(state(&test, id).await, "dispatching");
    found
}

#[tokio::test]
async fn an_acquire_waits_for_an_insert_that_claims_and_takes_over_what_it_wrote() {
    for sql in [SUBMIT, *SUBMIT_NEW] {
        assert_eq!(acquire_during_submit(sql.to_owned()).await, 1);
    }
}

#[tokio::test]
async fn without_the_lock_what_an_insert_claims_would_be_missed_by_the_new_owner() {
    for sql in [SUBMIT, *SUBMIT_NEW] {
        assert_eq!(acquire_during_submit(unlocked(sql)).await, 0);
    }
}

/// Lets the old owner insert a task while an acquire is in flight. Returns the state of that task.
async fn submit_during_acquire(sql: String) -> String {
    let test = database().await;
    let epoch = own(&test, "old").await[&ShardId::new(0)];
    let id = fixture::fresh_id_of(ShardId::new(0));
    let acquiring = acquire_begun(&test).await;
    let waits = sql.contains(FENCE_LOCK);
    let submitting = spawn_child(submit_with(sql, test.pool.clone(), id, epoch));
    commit_during(&test, acquiring, submitting, waits).await;
    state(&test, id).await
}

#[tokio::test]
async fn an_insert_waits_for_an_acquire_in_flight_and_claims_nothing() {
    for sql in [SUBMIT, *SUBMIT_NEW] {
        assert_eq!(submit_during_acquire(sql.to_owned()).await, "scheduled");
    }
}

#[tokio::test]
async fn without_the_lock_an_insert_would_claim_under_a_dead_epoch() {
    for sql in [SUBMIT, *SUBMIT_NEW] {
        assert_eq!(submit_during_acquire(unlocked(sql)).await, "dispatching");
    }
}

#[tokio::test]
async fn what_an_insert_claims_is_a_first_attempt_like_any_other() {
    let test = database().await;
    let epoch = own(&test, "a").await[&ShardId::new(0)];
    let tasks = [0, 0, 1].map(|shard| new_task(fixture::fresh_id_of(ShardId::new(shard))));
    let epochs = [Some(epoch), None, Some(epoch)];
    let written = test
        .database
        .task_submit_claimed(&tasks, &epochs, KnownRevisions { claims: i64::MAX, routes: i64::MAX }, Window::OPEN)
        .await
        .unwrap();
    assert_eq!(written.held, [ShardId::new(0)].into(), "shard 1 has no owner");
    for (task, expected) in tasks.iter().zip(["dispatching", "scheduled", "scheduled"]) {
        assert_eq!(state(&test, task.id).await, expected);
    }
    let read = test.database.task_read(tasks[0].id).await.unwrap().expect("it was submitted");
    assert_eq!((read.state, read.attempt, read.due_at), (TaskState::Dispatching, Attempt::new(1), written.asked_at));
    assert!(read.wake_at > read.due_at, "a later pass checks it again");
    let confirmed = super::deliver(tasks[0].id, Attempt::new(1), 1_000);
    test.database.task_deliver(&[confirmed]).await.unwrap();
    assert_eq!(state(&test, tasks[0].id).await, "delivered");
}
