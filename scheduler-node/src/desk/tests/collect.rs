//! Tasks submitted in SQL, as the desk judges them.

use common::{
    ids::{ShardId, TaskId},
    queue::{Placement, QueuePolicy},
    shard::route::bound_to,
    time::UnixMicros,
};

use super::{PLAIN, Setup, counter, fresh, with_two_databases};
use crate::store::{inbox::InboxRow, tests::fixture};

const SUBMITTED_AT: UnixMicros = UnixMicros::new(1_700_000_000_000_000);

fn row(id: TaskId, request: &str) -> InboxRow {
    InboxRow {
        id,
        request: Some(request.to_owned()),
        submitted_at: SUBMITTED_AT,
        leaving: false,
        is_last: false,
        rules_changed: Default::default(),
    }
}

#[tokio::test]
async fn times_count_from_the_submission_and_each_row_has_its_own_answer() {
    let (counter, test) = fresh().await;
    let id = fixture::fresh_id();
    let rows = [
        row(id, r#"{"queue": "mail", "due_at": "2023-11-14T22:13:20.000000Z", "expires_after_ms": 5}"#),
        row(id, r#"{"queue": "mail", "priority": 9}"#),
        row(id, r#"{"queue": "mail", "payload": "x"}"#),
    ];
    let (judged, _) = counter.desk.judge(&rows).await;
    let task = judged[0].as_ref().unwrap();
    assert_eq!((task.id, task.due_at, task.due_now), (id, SUBMITTED_AT, false));
    assert_eq!(task.expires_at, Some(SUBMITTED_AT.plus(std::time::Duration::from_millis(5))));
    assert_eq!(judged[1].as_ref().unwrap_err().field.as_deref(), Some("priority"));
    assert!(judged[2].is_ok());
    let (_, queues) = test.database.queue_read().await.unwrap();
    assert_eq!(queues.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(), ["mail"], "made on first use");
}

#[tokio::test]
async fn where_queues_are_made_by_hand_an_unknown_one_is_refused() {
    let test = fixture::database().await;
    let counter = counter(vec![test.database.clone()], Setup { auto_create: false, ..PLAIN });
    let (judged, _) = counter.desk.judge(&[row(fixture::fresh_id(), r#"{"queue": "mail"}"#)]).await;
    assert_eq!(judged[0].as_ref().unwrap_err().field.as_deref(), Some("queue"));
}

#[tokio::test]
async fn a_task_that_is_not_on_the_shard_of_its_kin_is_refused() {
    let (counter, _tests) = with_two_databases().await;
    let policy = QueuePolicy { placement: Placement::Single, ..QueuePolicy::default() };
    let queue = common::ids::QueueName::new("mail");
    counter.store.home().queue_add(std::slice::from_ref(&queue), &policy, None).await.unwrap();
    let right = bound_to(&queue, Placement::Single, None, None, fixture::SHARDS.into()).unwrap();
    let wrong = ShardId::new((right.number() + 1) % fixture::SHARDS);
    let rows = [right, wrong].map(|shard| row(fixture::fresh_id_of(shard), r#"{"queue": "mail"}"#));
    let (judged, _) = counter.desk.judge(&rows).await;
    assert!(judged[0].is_ok());
    assert!(judged[1].as_ref().unwrap_err().detail.contains("submit the task again"));
}

#[tokio::test]
async fn an_id_that_is_still_in_an_inbox_is_told_apart_from_one_that_nobody_knows() {
    let (counter, [_, east]) = with_two_databases().await;
    let id: uuid::Uuid = sqlx::query_scalar("SELECT duetime.submit('mail', '{}')").fetch_one(&east.pool).await.unwrap();
    let id = TaskId::from_uuid(id);
    let problem_of = async || counter.desk.get(id).await.unwrap_err();
    assert!(problem_of().await.detail.contains("about to be a task"));
    counter.store.databases()[1].inbox_refuse(&[(id, "no room".to_owned())], false).await.unwrap();
    let problem = problem_of().await;
    assert!(problem.status == 404 && problem.detail.contains("no room"), "{problem}");
    assert!(counter.desk.get(fixture::fresh_id()).await.unwrap_err().detail.contains("there is no task"));
}
