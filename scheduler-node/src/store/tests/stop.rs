//! A claimed task that is asked to stop, and its failure at the same moment.

use common::{
    ids::{Attempt, TaskId},
    task::{TaskState, verdict::FAILED_FROM},
};

use super::{
    claim,
    fixture::{self, TestDatabase},
    own, state_of, submitted, until_waiting,
};
use crate::{
    store::{
        PoolKind,
        change::Guarded,
        settle::{Finish, Report, Retry},
    },
    supervise::spawn_child,
};

async fn claimed(test: &TestDatabase) -> TaskId {
    let id = submitted(test, 1).await[0];
    assert_eq!(claim(test, &[id], &own(test, "a").await).await.deliveries.len(), 1);
    id
}

async fn retry(test: &TestDatabase, id: TaskId) -> Retry {
    let entry = r#"{"attempt":1,"reason":"failed"}"#.to_owned();
    let retry_at = fixture::now(&test.pool).await;
    Retry { id, attempt: Attempt::new(1), retry_at, entry, at_deadline: false, lower: false }
}

async fn stops(test: &TestDatabase, id: TaskId) -> bool {
    matches!(test.database.task_stop(id).await.unwrap(), Guarded::Done(task) if task.stopping)
}

#[tokio::test]
async fn a_task_that_is_to_stop_is_not_retried_and_one_that_is_retried_is_not_stopped() {
    let test = fixture::database().await;
    let id = claimed(&test).await;
    assert!(stops(&test, id).await && stops(&test, id).await, "a repeated request gets the same answer");
    assert!(test.database.task_standing(&[id]).await.unwrap()[0].stopping);
    assert!(test.database.task_retry(&[retry(&test, id).await]).await.unwrap().is_empty());

    let other = claimed(&test).await;
    assert_eq!(test.database.task_retry(&[retry(&test, other).await]).await.unwrap(), [other]);
    assert!(!stops(&test, other).await);
    assert!(matches!(test.database.task_stop(fixture::fresh_id()).await.unwrap(), Guarded::Missing));
}

/// Runs `failing` while a stop of the task is not committed yet: it waits for the stop. The guard on `stopping` makes
/// it check the row again. Returns the tasks that it wrote.
async fn at_the_moment_of_the_stop(
    test: &TestDatabase,
    id: TaskId,
    failing: impl Future<Output = Vec<TaskId>> + Send + 'static,
) -> Vec<TaskId> {
    test.be_patient(PoolKind::Fire).await;
    let mut stopping = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *stopping).await.unwrap();
    sqlx::query(include_str!("../queries/task_stop.sql")).bind(id.uuid()).execute(&mut *stopping).await.unwrap();
    let failing = spawn_child(failing);
    until_waiting(&test.pool, 1).await;
    sqlx::query("COMMIT").execute(&mut *stopping).await.unwrap();
    failing.await.unwrap()
}

#[tokio::test]
async fn a_failure_at_the_moment_of_the_stop_finds_it() {
    let test = fixture::database().await;
    let id = claimed(&test).await;
    let (database, retry) = (test.database.clone(), retry(&test, id).await);
    let failing = async move { database.task_retry(&[retry]).await.unwrap() };
    assert!(at_the_moment_of_the_stop(&test, id, failing).await.is_empty());
    assert_eq!(state_of(&test.pool, id).await.as_deref(), Some("dispatching"));
}

#[tokio::test]
async fn a_last_failure_at_the_moment_of_the_stop_finds_it_and_the_task_ends_as_cancelled() {
    let test = fixture::database().await;
    let id = claimed(&test).await;
    let end = move |final_state| Finish {
        id,
        attempt: Attempt::new(1),
        final_state,
        was: FAILED_FROM,
        keep_ms: 86_400_000,
        report: Report::default(),
        at_deadline: false,
        entry: None,
    };
    let database = test.database.clone();
    let failing = async move { database.task_finish(&[end(TaskState::Dead)]).await.unwrap().ids };
    assert!(at_the_moment_of_the_stop(&test, id, failing).await.is_empty());
    assert_eq!(state_of(&test.pool, id).await.as_deref(), Some("dispatching"));
    assert_eq!(test.database.task_finish(&[end(TaskState::Cancelled)]).await.unwrap().ids, [id]);
}
