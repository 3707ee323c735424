//! Writing new tasks.

use common::ids::{Attempt, ShardId};

use super::{claim, fixture, new_task, own, state_of};
use crate::store::{
    settle::{Finish, Report},
    submit::Sending,
};

#[tokio::test]
async fn a_batch_sent_again_is_stored_once() {
    let test = fixture::database().await;
    let tasks: Vec<_> = (0..10).map(|_| new_task(fixture::fresh_id())).collect();
    test.database.task_submit(&tasks, Sending::First).await.unwrap();
    test.database.task_submit(&tasks, Sending::Again).await.unwrap();
    let stored: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.task").fetch_one(&test.pool).await.unwrap();
    assert_eq!(stored, 10);
}

#[tokio::test]
async fn a_task_that_finished_before_its_batch_was_sent_again_does_not_run_twice() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let task = new_task(fixture::fresh_id_of(ShardId::new(0)));
    test.database.task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    claim(&test, &[task.id], &fences).await;
    let finished = Finish {
        id: task.id,
        attempt: Attempt::new(1),
        final_state: common::task::TaskState::Succeeded,
        was: &[common::task::TaskState::Dispatching],
        keep_ms: 1_000,
        report: Report::default(),
        entry: None,
        at_deadline: false,
    };
    test.database.task_finish(&[finished]).await.unwrap();
    test.database.task_submit(std::slice::from_ref(&task), Sending::Again).await.unwrap();
    assert_eq!(state_of(&test.pool, task.id).await.as_deref(), Some("succeeded"));
    assert!(claim(&test, &[task.id], &fences).await.deliveries.is_empty());
}

#[tokio::test]
async fn what_is_stored_comes_back_byte_for_byte() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let mut task = new_task(fixture::fresh_id_of(ShardId::new(0)));
    task.content.payload = vec![0, 255, b'\n', b'"', 0];
    task.content.content_type = "application/octet-stream".into();
    task.content.headers = [("trace".to_owned(), "a \"b\" ä".to_owned())].into();
    task.partition_key = Some("customer 7".into());
    task.max_attempts = Some(2);
    task.timeout_ms = Some(1_234);
    test.database.task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    let claimed = claim(&test, &[task.id], &fences).await;
    let delivery = &claimed.deliveries[0];
    assert_eq!(delivery.content, task.content);
    assert_eq!(delivery.partition_key, task.partition_key);
    assert_eq!((delivery.max_attempts, delivery.timeout_ms), (Some(2), Some(1_234)));
}
