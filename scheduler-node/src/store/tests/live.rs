//! Statements about live tasks leave the archive alone. In each test a transaction locks it against all others.

use common::{
    ids::TaskId,
    task::{BusinessKey, Dependency, NewTask, OnDuplicate, TaskState},
};
use sqlx::{Postgres, pool::PoolConnection};

use super::{
    changed,
    fixture::{self, TestDatabase},
    new_task, until_waiting,
};
use crate::{
    store::{
        PoolKind,
        change::Keep,
        put::Retention,
        rivals::{AskedKey, KeyLook},
        submit::Sending,
    },
    supervise::spawn_child,
};

const DAY_MS: i64 = 86_400_000;

/// Submits a task with the key `k`.
async fn keyed(test: &TestDatabase) -> NewTask {
    let keyed = BusinessKey { key: "k".into(), version: 0, on_duplicate: OnDuplicate::Reject };
    let task = changed(new_task(fixture::fresh_id()), |task| task.keyed = Some(keyed));
    put(test, &task).await;
    task
}

/// Submits a task that waits for the success of `other`.
async fn waiting(test: &TestDatabase, other: &NewTask) -> NewTask {
    let dependency = Dependency { queue: other.queue.clone(), key: "k".into() };
    let task = changed(new_task(fixture::fresh_id()), |task| task.depends_on = vec![dependency]);
    put(test, &task).await;
    task
}

async fn put(test: &TestDatabase, task: &NewTask) {
    let hold = Retention { window_ms: DAY_MS, keep_ms: DAY_MS };
    test.database.task_put(std::slice::from_ref(task), &[hold]).await.unwrap();
}

/// A key of the task's queue and shard.
fn asked<'a>(task: &'a NewTask, key: &'a str) -> AskedKey<'a> {
    AskedKey { key: (&task.queue, None, key), shard: task.id.shard(), window_ms: DAY_MS, by_version: false }
}

async fn locked_archive(test: &TestDatabase) -> PoolConnection<Postgres> {
    let mut connection = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *connection).await.unwrap();
    sqlx::query("LOCK TABLE duetime.archive IN ACCESS EXCLUSIVE MODE").execute(&mut *connection).await.unwrap();
    connection
}

/// Makes a task of the archive live again, as a transaction that revives it does.
async fn revive(connection: &mut PoolConnection<Postgres>, id: TaskId) {
    let moved = sqlx::query(
        "WITH dead AS (DELETE FROM duetime.archive WHERE id = $1 RETURNING *)
         INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key)
         SELECT id, shard, queue, 'scheduled', wake_at, due_at, payload, content_type, key FROM dead",
    );
    assert_eq!(moved.bind(id.uuid()).execute(&mut **connection).await.unwrap().rows_affected(), 1);
}

#[tokio::test]
async fn first_sendings_and_look_ups_of_live_tasks_do_not_open_the_archive() {
    let test = fixture::database().await;
    let task = keyed(&test).await;
    let waiting = waiting(&test, &task).await;
    let _lock = locked_archive(&test).await;
    // A statement that opens the archive fails at its bound for locks.
    test.database.task_submit(&[new_task(fixture::fresh_id())], Sending::First).await.unwrap();
    assert_eq!(test.database.task_read(task.id).await.unwrap().map(|read| read.id), Some(task.id));
    assert_eq!(test.database.task_find(&task.queue, None, "k").await.unwrap(), Some(task.id));
    let read = test.database.task_read_key(&task.queue, None, "k").await.unwrap();
    assert_eq!(read.map(|read| read.id), Some(task.id));
    let looks = test.database.task_rivals(&[asked(&task, "k")]).await.unwrap();
    assert!(matches!(looks[..], [KeyLook::Taken(_)]), "{looks:?}");
    let dependencies = test.database.task_dependencies(waiting.id).await.unwrap();
    assert_eq!(dependencies[0].state, Some(TaskState::Scheduled));
}

/// A cancelled task with a key. Look-ups wait for its archive as long as it takes.
async fn cancelled() -> (TestDatabase, NewTask) {
    let test = fixture::database().await;
    let task = keyed(&test).await;
    let keep = Keep { default_ms: DAY_MS, others: std::sync::Arc::default() };
    test.database.task_cancel(task.id, &keep).await.unwrap();
    test.be_patient(PoolKind::Read).await;
    (test, task)
}

#[tokio::test]
async fn a_task_that_is_revived_during_a_look_up_is_found() {
    let (test, task) = cancelled().await;
    let mut lock = locked_archive(&test).await;
    let (reader, finder, queue) = (test.database.clone(), test.database.clone(), task.queue.clone());
    let read = spawn_child(async move { reader.task_read(task.id).await });
    let find = spawn_child(async move { finder.task_find(&queue, None, "k").await });
    let (key_reader, queue) = (test.database.clone(), task.queue.clone());
    let read_key = spawn_child(async move { key_reader.task_read_key(&queue, None, "k").await });
    // All have found no live task, and wait for the archive.
    until_waiting(&test.pool, 3).await;
    revive(&mut lock, task.id).await;
    sqlx::query("COMMIT").execute(&mut *lock).await.unwrap();
    assert_eq!(read.await.unwrap().unwrap().map(|read| read.state), Some(TaskState::Scheduled));
    assert_eq!(find.await.unwrap().unwrap(), Some(task.id));
    assert_eq!(read_key.await.unwrap().unwrap().map(|read| read.state), Some(TaskState::Scheduled));
}

#[tokio::test]
async fn a_task_that_is_revived_during_a_look_up_of_many_keys_is_found() {
    let (test, task) = cancelled().await;
    let id = task.id;
    let mut lock = locked_archive(&test).await;
    let reader = test.database.clone();
    let read = spawn_child(async move { reader.task_rivals(&[asked(&task, "k"), asked(&task, "absent")]).await });
    until_waiting(&test.pool, 1).await;
    revive(&mut lock, id).await;
    sqlx::query("COMMIT").execute(&mut *lock).await.unwrap();
    let looks = read.await.unwrap().unwrap();
    let [KeyLook::Taken(rival), KeyLook::Free] = looks[..] else { panic!("{looks:?}") };
    assert_eq!(rival.state, TaskState::Scheduled);
}
