//! A claimed task that is asked to stop, and its failure at the same moment.

use common::ids::{Attempt, TaskId};

use super::{
    claim,
    fixture::{self, TestDatabase},
    own, state_of, submitted, until_waiting,
};
use crate::{
    store::{change::Guarded, settle::Retry},
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

/// The retry waits for a stop that is not committed yet. The guard on `stopping` makes
/// the retry check the row again.
#[tokio::test]
async fn a_failure_at_the_moment_of_the_stop_finds_it() {
    let test = fixture::database().await;
    let id = claimed(&test).await;
    let mut stopping = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *stopping).await.unwrap();
    sqlx::query(include_str!("../queries/task_stop.sql")).bind(id.uuid()).execute(&mut *stopping).await.unwrap();
    let (database, retry) = (test.database.clone(), retry(&test, id).await);
    let failing = spawn_child(async move { database.task_retry(&[retry]).await.unwrap() });
    until_waiting(&test.pool, 1).await;
    sqlx::query("COMMIT").execute(&mut *stopping).await.unwrap();
    assert!(failing.await.unwrap().is_empty());
    assert_eq!(state_of(&test.pool, id).await.as_deref(), Some("dispatching"));
}
