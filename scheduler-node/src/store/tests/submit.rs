//! Writing new tasks.

use common::{
    ids::{Attempt, QueueName, ShardId},
    retry::RetryPolicy,
    task::{Envelope, NewTask},
    time::UnixMicros,
};

use super::{changed, claim, fixture, new_task, own, state_of};
use crate::store::{
    settle::{FINISH_NEW, Finish, Report},
    submit::{SUBMIT_NEW, Sending},
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
async fn a_first_sending_leaves_an_id_that_exists_alone_and_writes_its_neighbours() {
    assert!(!SUBMIT_NEW.contains("ON CONFLICT") && !FINISH_NEW.contains("ON CONFLICT"), "they fail at such a row");
    let test = fixture::database().await;
    let sent = new_task(fixture::fresh_id());
    test.database.task_submit(std::slice::from_ref(&sent), Sending::First).await.unwrap();
    let other = changed(sent.clone(), |task| task.content.payload = b"other".to_vec());
    let neighbour = new_task(fixture::fresh_id());
    let batch = [other, neighbour.clone(), neighbour.clone()];
    test.database.task_submit(&batch, Sending::First).await.unwrap();
    let rows: Vec<(uuid::Uuid, Vec<u8>)> =
        sqlx::query_as("SELECT id, payload FROM duetime.task ORDER BY id").fetch_all(&test.pool).await.unwrap();
    let mut expected = [sent, neighbour].map(|task| (task.id.uuid(), b"{}".to_vec()));
    expected.sort();
    assert_eq!(rows, expected);
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

const OPTIONAL: &str = "SELECT jsonb_build_array(headers, partition_key, max_attempts, timeout_ms, retry, expires_at,
    envelope) FROM duetime.task WHERE id = $1";

/// Submits the tasks in one batch, and returns the optional columns of each as they are stored.
async fn stored(test: &fixture::TestDatabase, tasks: &[NewTask]) -> Vec<serde_json::Value> {
    test.database.task_submit(tasks, Sending::First).await.unwrap();
    let mut stored = Vec::new();
    for task in tasks {
        let row = sqlx::query_scalar(OPTIONAL).bind(task.id.uuid());
        stored.push(row.fetch_one(&test.pool).await.unwrap());
    }
    stored
}

#[tokio::test]
async fn a_batch_stores_the_optional_fields_of_all_its_tasks_of_some_and_of_none() {
    let test = fixture::database().await;
    let plain = || new_task(fixture::fresh_id());
    let full = || {
        changed(plain(), |task| {
            task.content.headers = [("a".to_owned(), "b".to_owned())].into();
            task.partition_key = Some("customer 7".into());
            task.max_attempts = Some(2);
            task.timeout_ms = Some(1_234);
            task.retry = Some(RetryPolicy::Fixed { delay_ms: 5 });
            task.expires_at = Some(UnixMicros::LAST);
            task.envelope = Some(Box::new(Envelope { exchange: "orders".into(), ..Envelope::default() }));
        })
    };
    let whole = stored(&test, &[full()]).await.remove(0);
    let values = whole.as_array().expect("the columns");
    assert!(values.iter().all(|value| !value.is_null()), "{whole}");
    let nothing = serde_json::json!([null, null, null, null, null, null, null]);
    assert_eq!(stored(&test, &[plain(), plain()]).await, [nothing.clone(), nothing.clone()]);
    assert_eq!(stored(&test, &[plain(), full()]).await, [nothing.clone(), whole.clone()]);
    assert_eq!(stored(&test, &[full(), plain()]).await, [whole, nothing]);
}

/// A column that is equal in all tasks of a batch is sent as one value.
#[tokio::test]
async fn a_batch_stores_the_fields_that_all_its_tasks_share_and_those_that_differ() {
    let test = fixture::database().await;
    let at = |micros, queue: &str, priority, content_type: &str| {
        changed(new_task(fixture::fresh_id()), |task| {
            (task.due_now, task.due_at) = (false, UnixMicros::new(micros));
            (task.queue, task.priority) = (QueueName::new(queue), priority);
            task.content.content_type = content_type.into();
        })
    };
    let plain = || at(4_000_000_000_000_000, "orders", 3, "application/json");
    let other = || at(4_100_000_000_000_000, "mail", 5, "text/plain");
    let at_once = || changed(other(), |task| task.due_now = true);
    for batch in [
        vec![plain(), plain()],
        vec![plain(), plain(), other()],
        vec![other(), plain(), plain()],
        vec![at_once(), plain()],
        vec![at_once(), at_once()],
    ] {
        test.database.task_submit(&batch, Sending::First).await.unwrap();
        for task in &batch {
            let read = test.database.task_read(task.id).await.unwrap().expect("it was submitted");
            assert_eq!((&read.queue, read.priority), (&task.queue, task.priority));
            assert_eq!(read.content_type, task.content.content_type);
            assert_eq!(read.due_at == task.due_at, !task.due_now, "{:?}", read.due_at);
        }
    }
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
