//! Recording the outcomes of claimed tasks.

use std::time::Duration;

use common::{
    ids::{Attempt, QueueName, ShardId, TaskId},
    task::{NewTask, TaskState, ValidTask},
};

use super::{claim, fixture, new_task, own, state_of, submitted};
use crate::store::{
    change::Keep,
    settle::{Extend, Finish, Report, Retry},
    submit::Sending,
};

pub(super) fn finish(id: TaskId, attempt: i32, final_state: TaskState) -> Finish {
    Finish {
        id,
        attempt: Attempt::new(attempt),
        final_state,
        was: &[TaskState::Dispatching, TaskState::Delivered, TaskState::Running],
        keep_ms: 86_400_000,
        report: Report {
            result: Some(r#"{"a": 1e400, "b":"\u0000"}"#.into()),
            status_code: Some(7),
            status_msg: Some("fine".into()),
            ..Report::default()
        },
        entry: None,
        at_deadline: false,
    }
}

#[tokio::test]
async fn a_finished_task_is_in_the_archive_and_nowhere_else() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    claim(&test, &ids, &fences).await;
    assert_eq!(test.database.task_finish(&[finish(ids[0], 1, TaskState::Succeeded)]).await.unwrap().ids, ids);
    let live: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.task").fetch_one(&test.pool).await.unwrap();
    let (result, code): (String, i64) =
        sqlx::query_as("SELECT result, status_code FROM duetime.archive").fetch_one(&test.pool).await.unwrap();
    assert_eq!((live, result.as_str(), code), (0, r#"{"a": 1e400, "b":"\u0000"}"#, 7));
    assert!(test.database.task_finish(&[finish(ids[0], 1, TaskState::Dead)]).await.unwrap().ids.is_empty());
}

/// A column that is equal in all ends of a batch is sent as one value.
#[tokio::test]
async fn a_batch_of_ends_stores_what_they_share_and_what_differs() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 5).await;
    claim(&test, &ids, &fences).await;
    let succeeded = |id| finish(id, 1, TaskState::Succeeded);
    let dead = Finish { keep_ms: 3 * 86_400_000, was: &[TaskState::Dispatching], ..finish(ids[4], 1, TaskState::Dead) };
    let other_attempt = Finish { attempt: Attempt::new(2), ..succeeded(ids[3]) };
    let equal = [succeeded(ids[0]), succeeded(ids[1])];
    assert_eq!(test.database.task_finish(&equal).await.unwrap().ids.len(), 2);
    let different = [succeeded(ids[2]), other_attempt, dead];
    assert_eq!(test.database.task_finish(&different).await.unwrap().ids.len(), 2);
    assert_eq!(state_of(&test.pool, ids[3]).await.as_deref(), Some("dispatching"), "it is in another attempt");
    let kept = "SELECT state::text, drop_on - (finished_at AT TIME ZONE 'UTC')::date, count(*) FROM duetime.archive
                 GROUP BY 1, 2 ORDER BY 1, 2";
    let kept: Vec<(String, i32, i64)> = sqlx::query_as(kept).fetch_all(&test.pool).await.unwrap();
    assert_eq!(kept, [("dead".to_owned(), 4, 1), ("succeeded".to_owned(), 2, 3)]);
}

#[tokio::test]
async fn an_end_keeps_the_progress_and_worker_of_its_report_or_else_those_of_the_last_one() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 4).await;
    claim(&test, &ids, &fences).await;
    let (attempt, timeout_ms) = (Attempt::new(1), 60_000);
    let worker = Some("first".to_owned());
    let running = |id| Extend { id, attempt, timeout_ms, progress: Some(40), worker: worker.clone() };
    assert_eq!(test.database.task_extend(&[ids[0], ids[1], ids[3]].map(running)).await.unwrap().len(), 3);
    let ended = |id, progress, worker: Option<&str>| {
        let report = Report { progress, worker: worker.map(str::to_owned), ..Report::default() };
        Finish { report, ..finish(id, 1, TaskState::Succeeded) }
    };
    let ends =
        [ended(ids[0], Some(100), Some("last")), ended(ids[1], None, Some("last")), ended(ids[2], Some(7), None)];
    assert_eq!(test.database.task_finish(&ends).await.unwrap().ids.len(), 3);
    assert_eq!(test.database.task_finish(&[ended(ids[3], None, None)]).await.unwrap().ids.len(), 1);
    for (id, progress, worker) in [
        (ids[0], Some(100), Some("last")),
        (ids[1], Some(40), Some("last")),
        (ids[2], Some(7), None),
        (ids[3], Some(40), Some("first")),
    ] {
        let read = test.database.task_read(id).await.unwrap().expect("it is kept for a day");
        assert_eq!((read.state, read.progress, read.worker.as_deref()), (TaskState::Succeeded, progress, worker));
    }
}

#[tokio::test]
async fn a_late_confirm_of_an_older_attempt_changes_nothing() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    claim(&test, &ids, &fences).await;
    let now = fixture::now(&test.pool).await;
    let failed = Retry {
        id: ids[0],
        attempt: Attempt::new(1),
        retry_at: now,
        entry: r#"{"attempt":1}"#.into(),
        at_deadline: false,
        lower: false,
    };
    assert_eq!(test.database.task_retry(&[failed]).await.unwrap(), ids);
    claim(&test, &ids, &fences).await;
    test.database.task_deliver(&[super::deliver(ids[0], Attempt::new(1), 1_000)]).await.unwrap();
    assert!(test.database.task_finish(&[finish(ids[0], 1, TaskState::Succeeded)]).await.unwrap().ids.is_empty());
    assert_eq!(state_of(&test.pool, ids[0]).await.as_deref(), Some("dispatching"), "attempt 2 is still out");
}

#[tokio::test]
async fn a_retried_task_keeps_what_failed_and_is_not_marked_as_a_copy() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    claim(&test, &ids, &fences).await;
    test.database.task_rescue(&ids, &fences).await.unwrap();
    let now = fixture::now(&test.pool).await;
    for attempt in 1..=2 {
        let failed = Retry {
            id: ids[0],
            attempt: Attempt::new(attempt),
            retry_at: now,
            entry: format!(r#"{{"attempt":{attempt}}}"#),
            at_deadline: false,
            lower: false,
        };
        test.database.task_retry(&[failed]).await.unwrap();
        let claimed = claim(&test, &ids, &fences).await;
        assert_eq!(claimed.deliveries[0].attempt, Attempt::new(attempt + 1));
        assert!(!claimed.deliveries[0].redelivered, "a new attempt has a new message id");
    }
    let history: serde_json::Value =
        sqlx::query_scalar("SELECT history FROM duetime.task").fetch_one(&test.pool).await.unwrap();
    assert_eq!(history, serde_json::json!([{"attempt": 1}, {"attempt": 2}]));
}

#[tokio::test]
async fn of_many_failures_a_task_keeps_the_newest_hundred() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    claim(&test, &ids, &fences).await;
    let kept = async |table: &str| -> (i32, String, String) {
        let kept = format!("SELECT jsonb_array_length(history), history ->> 0, history ->> -1 FROM duetime.{table}");
        sqlx::query_as(sqlx::AssertSqlSafe(kept)).fetch_one(&test.pool).await.unwrap()
    };
    let many = "UPDATE duetime.task SET history = (SELECT jsonb_agg(n ORDER BY n) FROM generate_series(1, 150) AS n)";
    sqlx::query(many).execute(&test.pool).await.unwrap();
    let (id, attempt, retry_at) = (ids[0], Attempt::new(1), fixture::now(&test.pool).await);
    let failed = Retry { id, attempt, retry_at, entry: r#"{"n":151}"#.into(), at_deadline: false, lower: false };
    assert_eq!(test.database.task_retry(&[failed]).await.unwrap(), ids);
    assert_eq!(kept("task").await, (100, "52".to_owned(), r#"{"n": 151}"#.to_owned()));
    claim(&test, &ids, &fences).await;
    let died = Finish { entry: Some(r#"{"n":152}"#.into()), ..finish(id, 2, TaskState::Dead) };
    assert_eq!(test.database.task_finish(&[died]).await.unwrap().ids, ids);
    assert_eq!(kept("archive").await, (100, "53".to_owned(), r#"{"n": 152}"#.to_owned()));
}

#[tokio::test]
async fn a_heartbeat_moves_the_deadline_and_overtakes_the_confirm() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    claim(&test, &ids, &fences).await;
    let alive = |progress| Extend {
        id: ids[0],
        attempt: Attempt::new(1),
        timeout_ms: 60_000,
        progress,
        worker: Some("w1".into()),
    };
    test.database.task_extend(&[alive(Some(10))]).await.unwrap();
    assert_eq!(state_of(&test.pool, ids[0]).await.as_deref(), Some("running"));
    test.database.task_deliver(&[super::deliver(ids[0], Attempt::new(1), 1)]).await.unwrap();
    assert_eq!(state_of(&test.pool, ids[0]).await.as_deref(), Some("running"), "the confirm came second");
    test.database.task_extend(&[alive(None)]).await.unwrap();
    let row = &test.database.task_standing(&ids).await.unwrap()[0];
    assert!(row.wake_at > row.now.plus(Duration::from_secs(50)));
    let progress: i16 = sqlx::query_scalar("SELECT progress FROM duetime.task").fetch_one(&test.pool).await.unwrap();
    assert_eq!(progress, 10, "fields that a heartbeat omits stay");
}

/// The node that ends an attempt at its deadline has read the row before the consumer's sign of life was written.
#[tokio::test]
async fn a_deadline_ends_no_attempt_that_has_shown_a_sign_of_life_meanwhile() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    claim(&test, &ids, &fences).await;
    let attempt = Attempt::new(1);
    test.database.task_deliver(&[super::deliver(ids[0], attempt, 0)]).await.unwrap();
    let alive = Extend { id: ids[0], attempt, timeout_ms: 60_000, progress: None, worker: None };
    test.database.task_extend(&[alive]).await.unwrap();
    let retry_at = fixture::now(&test.pool).await;
    let entry = r#"{"attempt":1}"#.to_owned();
    let silent = Retry { id: ids[0], attempt, retry_at, entry, at_deadline: true, lower: false };
    assert!(test.database.task_retry(&[silent]).await.unwrap().is_empty(), "the attempt is alive");
    let dead = Finish { at_deadline: true, ..finish(ids[0], 1, TaskState::Dead) };
    assert!(test.database.task_finish(&[dead]).await.unwrap().ids.is_empty(), "the attempt is alive");
    assert_eq!(state_of(&test.pool, ids[0]).await.as_deref(), Some("running"));
}

/// A report on the attempt waits to be written. Silence until now is no longer one.
#[tokio::test]
async fn a_deadline_of_this_attempt_that_passes_soon_is_prolonged_and_ends_nothing() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 4).await;
    claim(&test, &ids, &fences).await;
    let (first, second) = (Attempt::new(1), Attempt::new(2));
    let timeouts_ms = [(ids[0], 0), (ids[1], 600_000), (ids[2], 0)];
    let delivered = timeouts_ms.map(|(id, timeout_ms)| super::deliver(id, first, timeout_ms));
    test.database.task_deliver(&delivered).await.unwrap();
    let attempts = [(ids[0], first), (ids[1], first), (ids[2], second), (ids[3], first)];
    assert_eq!(test.database.task_prolong(&attempts, 600_000).await.unwrap(), [ids[0]], "the others need nothing");
    assert_eq!(test.database.task_prolong(&attempts, 600_000).await.unwrap(), [], "it has more than half left");
    let succeeded = [ids[0], ids[2]].map(|id| Finish { at_deadline: true, ..finish(id, 1, TaskState::Succeeded) });
    assert_eq!(test.database.task_finish(&succeeded).await.unwrap().ids, [ids[2]]);
    assert_eq!(state_of(&test.pool, ids[0]).await.as_deref(), Some("delivered"));
}

#[tokio::test]
async fn only_the_rows_that_another_transaction_holds_are_listed_as_held() {
    let test = fixture::database().await;
    let ids = submitted(&test, 3).await;
    let gone = fixture::fresh_id();
    let asked = [ids[0], ids[1], ids[2], gone];
    let lock = test.lock_row(ids[1]).await;
    assert_eq!(test.database.task_held(&asked).await.unwrap(), [ids[1]]);
    lock.release().await;
    assert_eq!(test.database.task_held(&asked).await.unwrap(), []);
}

#[tokio::test]
async fn an_unfinished_task_cannot_be_settled_before_it_was_claimed() {
    let test = fixture::database().await;
    let ids = submitted(&test, 1).await;
    assert!(test.database.task_finish(&[finish(ids[0], 0, TaskState::Succeeded)]).await.unwrap().ids.is_empty());
    test.database.task_deliver(&[super::deliver(ids[0], Attempt::NONE, 1)]).await.unwrap();
    assert_eq!(state_of(&test.pool, ids[0]).await.as_deref(), Some("scheduled"));
}

#[tokio::test]
async fn among_very_many_times_to_keep_a_batch_finds_those_of_its_queues() {
    const DAY_MS: i64 = 86_400_000;
    let test = fixture::database().await;
    let others = (0..50_000).map(|queue| (QueueName::new(format!("q{queue}")), 7 * DAY_MS)).collect();
    let keep = Keep { default_ms: DAY_MS, others };
    let past = fixture::now(&test.pool).await.minus(Duration::from_secs(1));
    let tasks = |names: std::ops::Range<usize>| -> Vec<NewTask> {
        let ids = names.map(|name| (QueueName::new(format!("q{name}")), fixture::fresh_id_of(ShardId::new(0))));
        ids.map(|(queue, id)| NewTask { task: ValidTask { queue, ..new_task(id).task }, id }).collect()
    };
    // The last task of each is in a queue that keeps it for the default time.
    let (mut expiring, cancelled) = (tasks(49_501..50_001), tasks(49_501..50_001));
    expiring.iter_mut().for_each(|task| task.expires_at = Some(past));
    test.database.task_submit(&expiring, Sending::First).await.unwrap();
    test.database.task_submit(&cancelled, Sending::First).await.unwrap();
    let expired = test.database.task_expire(&[ShardId::new(0)], None, 500, &keep, &[]).await.unwrap();
    assert_eq!(expired.len(), 500);
    let ids: Vec<TaskId> = cancelled.iter().map(|task| task.id).collect();
    assert_eq!(test.database.bulk_cancel(&ids, &keep).await.unwrap().len(), 500);
    let kept: Vec<(String, i32, i64)> = sqlx::query_as(
        "SELECT state::text, drop_on - (finished_at AT TIME ZONE 'UTC')::date, count(*) FROM duetime.archive GROUP BY 1, 2 ORDER BY 1, 2",
    )
    .fetch_all(&test.pool)
    .await
    .unwrap();
    let kept: Vec<_> = kept.iter().map(|(state, days, count)| (state.as_str(), *days, *count)).collect();
    assert_eq!(kept, [("cancelled", 2, 1), ("cancelled", 8, 499), ("expired", 2, 1), ("expired", 8, 499)]);
}
