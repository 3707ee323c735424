//! Reading one task, live or archived.

use common::{
    ids::{Attempt, ShardId},
    retry::RetryPolicy,
    task::TaskState,
};
use sqlx::Executor;

use super::{claim, fixture, list_plans::Plan, new_task, own, submitted};
use crate::store::{
    settle::{Finish, Report, Retry},
    submit::Sending,
};

#[tokio::test]
async fn a_task_is_read_as_it_was_submitted() {
    let test = fixture::database().await;
    let mut task = new_task(fixture::fresh_id());
    task.content.payload = b"{ \"a\" :1}".to_vec();
    task.content.headers.insert("tenant".into(), "blue".into());
    task.partition_key = Some("customer 7".into());
    task.max_attempts = Some(4);
    task.retry = Some(RetryPolicy::Fixed { delay_ms: 5 });
    test.database.task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    let read = test.database.task_read(task.id).await.unwrap().expect("it was submitted");
    assert_eq!((read.id, read.state, read.attempt), (task.id, TaskState::Scheduled, Attempt::NONE));
    assert_eq!(read.payload.as_deref(), Some(task.content.payload.as_slice()), "byte for byte");
    assert_eq!(read.headers, task.content.headers);
    assert_eq!(read.partition_key, task.partition_key);
    assert_eq!(read.max_attempts, Some(4));
    assert_eq!(read.due_at, read.wake_at);
    assert!(read.finished_at.is_none() && read.result.is_none() && read.history.is_empty());
}

#[tokio::test]
async fn a_finished_task_is_read_with_its_attempts_and_its_result() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    claim(&test, &ids, &fences).await;
    let entry = r#"{"attempt":1,"claimed_at":"2030-01-01T00:00:00Z","ended_at":null,"reason":"failed","error":"no"}"#;
    let retry_at = fixture::now(&test.pool).await;
    let retry =
        Retry { id: ids[0], attempt: Attempt::new(1), retry_at, entry: entry.into(), at_deadline: false, lower: false };
    test.database.task_retry(&[retry]).await.unwrap();
    assert_eq!(claim(&test, &ids, &fences).await.deliveries.len(), 1);
    let finish = Finish {
        id: ids[0],
        attempt: Attempt::new(2),
        final_state: TaskState::Succeeded,
        was: &[TaskState::Dispatching],
        keep_ms: 86_400_000,
        report: Report {
            result: Some("{\"n\": 1e400}".into()),
            status_code: Some(200),
            status_msg: Some("done".into()),
            ..Report::default()
        },
        entry: None,
        at_deadline: false,
    };
    test.database.task_finish(&[finish]).await.unwrap();
    let read = test.database.task_read(ids[0]).await.unwrap().expect("it is kept for a day");
    assert_eq!((read.state, read.attempt), (TaskState::Succeeded, Attempt::new(2)));
    assert_eq!(read.result.as_deref(), Some("{\"n\": 1e400}"), "byte for byte");
    assert_eq!((read.status_code, read.status_msg.as_deref()), (Some(200), Some("done")));
    assert!(read.finished_at.is_some());
    let attempts: Vec<_> = read
        .history
        .iter()
        .map(|entry| (entry.attempt.number(), entry.reason.as_deref(), entry.error.as_deref()))
        .collect();
    assert_eq!(attempts, [(1, Some("failed"), Some("no"))]);
}

#[tokio::test]
async fn what_was_never_there_is_not_found() {
    let test = fixture::database().await;
    assert!(test.database.task_read(fixture::fresh_id_of(ShardId::new(3))).await.unwrap().is_none());
}

#[tokio::test]
async fn a_look_up_costs_one_probe_a_partition_however_much_is_archived() {
    let test = fixture::database().await;
    test.pool.execute(super::list_plans::FILL).await.unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    // The first call of a function in a session reads the catalogs.
    connection.execute("SELECT duetime.require_place('{0}')").await.unwrap();
    for table in ["task", "archive"] {
        let sql = format!("SELECT id FROM duetime.{table} WHERE duetime.shard_in(id) < 128 OFFSET 50 LIMIT 1");
        let id: uuid::Uuid = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&test.pool).await.unwrap();
        for mode in ["force_generic_plan", "force_custom_plan"] {
            let query = include_str!("../queries/task_read.sql");
            let plan = Plan::of(&mut connection, mode, query, "uuid", &format!("'{id}'")).await;
            // The task itself, and the answer that its shard is here, once for each table.
            assert!(plan.rows_touched() <= 4, "{mode}\n{plan:#?}");
            assert!(plan.buffers() < 400, "{} pages read, {mode}", plan.buffers());
        }
    }
}
