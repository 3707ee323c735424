//! Changes of single tasks, and the other statements that come before them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use common::{
    ids::{Attempt, QueueName, TaskId},
    queue::{Queue, QueueBook, QueuePolicy},
    task::{
        TaskState,
        bulk::BulkAction,
        state::{CancelOutcome, cancel_outcome},
    },
    wire::{TaskFilter, ValidChange},
};

use super::{claim, fixture, fixture::TestDatabase, lapse, new_task, own, pick, state_of, submitted, until_waiting};
use crate::{
    store::{
        PoolKind,
        bulk::Walk,
        change::{Cancelled, Guarded, Keep},
        settle::{Finish, Report, Retry},
        submit::Sending,
    },
    supervise::spawn_child,
};

const DAY_MS: i64 = 86_400_000;

pub(super) fn keep() -> Keep {
    Keep { default_ms: DAY_MS, others: std::sync::Arc::default() }
}

async fn cancel(test: &TestDatabase, id: TaskId) -> Guarded<Cancelled> {
    test.database.task_cancel(id, &keep()).await.unwrap()
}

/// Returns the answer of a compare-and-set as one word.
pub(super) fn word<T>(answer: &Guarded<T>) -> &'static str {
    match answer {
        Guarded::Done(_) => "done",
        Guarded::Refused(task) => task.state.text(),
        Guarded::Missing => "missing",
    }
}

pub(super) async fn later(test: &TestDatabase, by_s: u64) -> common::time::UnixMicros {
    fixture::now(&test.pool).await.plus(Duration::from_secs(by_s))
}

async fn retry_later(test: &TestDatabase, id: TaskId) {
    let entry = r#"{"attempt":1,"reason":"failed"}"#.to_owned();
    let retry = Retry {
        id,
        attempt: Attempt::new(1),
        retry_at: later(test, 60).await,
        entry,
        at_deadline: false,
        lower: false,
    };
    assert_eq!(test.database.task_retry(&[retry]).await.unwrap(), [id]);
}

async fn bury(test: &TestDatabase, id: TaskId, attempt: i32) {
    let finish = Finish {
        id,
        attempt: Attempt::new(attempt),
        final_state: TaskState::Dead,
        was: &[TaskState::Dispatching],
        keep_ms: DAY_MS,
        report: Report::default(),
        entry: Some(r#"{"attempt":1,"reason":"failed"}"#.to_owned()),
        at_deadline: false,
    };
    assert_eq!(test.database.task_finish(&[finish]).await.unwrap().ids, [id]);
}

#[tokio::test]
async fn a_task_never_claimed_is_cancelled_for_good() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    let Guarded::Done(cancelled) = cancel(&test, ids[0]).await else { panic!("it was scheduled") };
    assert_eq!(cancelled, Cancelled { queue: QueueName::new("orders"), attempt: Attempt::NONE });
    assert_eq!(state_of(&test.pool, ids[0]).await.as_deref(), Some("cancelled"));
    assert!(claim(&test, &ids, &fences).await.deliveries.is_empty(), "nothing is delivered afterwards");
    assert_eq!(word(&cancel(&test, ids[0]).await), "cancelled", "a repeated request returns the task's state");
    assert_eq!(word(&cancel(&test, fixture::fresh_id()).await), "missing");
}

/// Guarantee G3. The guard on the state in task_cancel.sql keeps it; the next test removes that guard.
#[tokio::test]
async fn once_claimed_a_task_can_never_again_be_cancelled_as_undelivered() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    claim(&test, &ids, &fences).await;
    assert_eq!(word(&cancel(&test, ids[0]).await), "dispatching");
    // A new owner publishes the task again in place. It still cannot be cancelled as undelivered.
    let fences = own(&test, "b").await;
    test.database.task_rescue(&ids, &fences).await.unwrap();
    assert_eq!(word(&cancel(&test, ids[0]).await), "dispatching");
    test.database.task_deliver(&[super::deliver(ids[0], Attempt::new(1), 1_000)]).await.unwrap();
    assert_eq!(word(&cancel(&test, ids[0]).await), "delivered");
    // Between two attempts the task can be cancelled, but no longer as undelivered.
    retry_later(&test, ids[0]).await;
    let Guarded::Done(cancelled) = cancel(&test, ids[0]).await else { panic!("it was scheduled") };
    assert_eq!(cancel_outcome(TaskState::Cancelled, cancelled.attempt), Ok(CancelOutcome::NoFurtherAttempts));
}

/// The same statement without its guard takes a task that is in flight. With the guard removed from
/// task_cancel.sql, the previous test and the races below fail.
#[tokio::test]
async fn without_its_guard_a_cancel_would_take_what_may_have_been_published() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let id = submitted(&test, 1).await[0];
    claim(&test, &[id], &fences).await;
    let guarded = include_str!("../queries/task_cancel.sql");
    let unguarded = guarded.replace("AND t.state IN ('waiting', 'scheduled', 'ready')", "");
    for (statement, taken) in [(guarded, 0), (unguarded.as_str(), 1)] {
        let cancel = sqlx::query(sqlx::AssertSqlSafe(statement.to_owned()))
            .bind(id.uuid())
            .bind(DAY_MS)
            .bind(Vec::<String>::new())
            .bind(Vec::<i64>::new());
        assert_eq!(cancel.fetch_all(&test.pool).await.unwrap().len(), taken);
    }
}

#[tokio::test]
async fn a_task_that_waits_for_room_can_be_cancelled_changed_and_run() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 3).await;
    let held = test
        .database
        .task_claim(&ids, &fences, Duration::ZERO, &BTreeSet::from([QueueName::new("orders")]), i64::MAX)
        .await
        .unwrap();
    assert_eq!(held.held_back.len(), 3);
    let Guarded::Done(cancelled) = cancel(&test, ids[0]).await else { panic!("it was ready") };
    assert_eq!(cancelled.attempt, Attempt::NONE, "waiting for room is no attempt");
    let priority = ValidChange { priority: Some(1), ..ValidChange::default() };
    let Guarded::Done(changed) = test.database.task_change(ids[1], &priority).await.unwrap() else {
        panic!("it was ready")
    };
    assert_eq!(
        (changed.state, changed.priority),
        (TaskState::Ready, 1),
        "it keeps its place unless its due time changes"
    );
    let due_at = later(&test, 600).await;
    let moved = ValidChange { due_at: Some(due_at), ..ValidChange::default() };
    let Guarded::Done(changed) = test.database.task_change(ids[1], &moved).await.unwrap() else {
        panic!("it was ready")
    };
    assert_eq!((changed.state, changed.due_at, changed.wake_at), (TaskState::Scheduled, due_at, due_at));
    let Guarded::Done(run) = test.database.task_run(ids[2]).await.unwrap() else { panic!("it was ready") };
    assert_eq!(run.state, TaskState::Scheduled);
    assert_eq!(
        claim(&test, &ids, &fences).await.deliveries.len(),
        1,
        "the one that was run, not the one that was moved"
    );
}

/// Otherwise a person who wants it to go first sends it to the end of its lane.
#[tokio::test]
async fn a_task_that_waits_for_room_keeps_its_place_when_it_is_run() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let (orders, all) = (QueueName::new("orders"), TaskFilter::default());
    let closed = BTreeSet::from([orders.clone()]);
    let mut ids = submitted(&test, 3).await;
    let hold = async || test.database.task_claim(&ids, &fences, Duration::ZERO, &closed, i64::MAX).await.unwrap();
    assert_eq!(hold().await.held_back.len(), 3);
    let Guarded::Done(run) = test.database.task_run(ids[0]).await.unwrap() else { panic!("it was ready") };
    assert!(run.due_at < run.wake_at, "it is due as long as before, and wakes now");
    assert_eq!(hold().await.held_back.len(), 1);
    let found = test.database.bulk_look(Walk::Live { moved: None }, &all, None, 10).await.unwrap().found;
    let first: Vec<_> = found.into_iter().filter(|task| task.seen.id == ids[0]).collect();
    assert_eq!(test.database.bulk_act(BulkAction::Run, &first, &keep()).await.unwrap().len(), 1);
    assert_eq!(hold().await.held_back.len(), 1);
    let mut started = Vec::new();
    while let Some(delivery) = pick(&test.database, &orders, &fences, 1).await.deliveries.pop() {
        started.push(delivery.id);
    }
    ids.sort();
    assert_eq!(started, ids);
}

#[tokio::test]
async fn a_change_writes_what_it_names_and_leaves_the_rest() {
    let test = fixture::database().await;
    let mut task = new_task(fixture::fresh_id());
    (task.due_now, task.due_at) = (false, later(&test, 3_600).await);
    task.expires_at = Some(task.due_at.plus(Duration::from_secs(60)));
    task.content.headers = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
    test.database.task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    let change = ValidChange {
        payload: Some(b"new".to_vec()),
        content_type: Some("text/plain".into()),
        headers: Some(BTreeMap::new()),
        ..ValidChange::default()
    };
    let Guarded::Done(changed) = test.database.task_change(task.id, &change).await.unwrap() else {
        panic!("scheduled")
    };
    assert_eq!(changed.payload.as_deref(), Some(b"new".as_slice()));
    assert_eq!(changed.content_type, "text/plain");
    assert!(changed.headers.is_empty());
    assert_eq!((changed.due_at, changed.wake_at, changed.expires_at), (task.due_at, task.due_at, task.expires_at));
    assert_eq!(changed.priority, task.priority);
    let past = ValidChange { due_at: Some(common::time::UnixMicros::new(0)), ..ValidChange::default() };
    let Guarded::Done(changed) = test.database.task_change(task.id, &past).await.unwrap() else { panic!("scheduled") };
    assert!(changed.due_at > common::time::UnixMicros::new(0), "in the past means now");
    assert_eq!(changed.due_at, changed.wake_at);
}

/// The consumer of an earlier attempt may report on it after the task has another content.
#[tokio::test]
async fn a_success_with_the_content_that_was_changed_does_not_end_the_task() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let payload = ValidChange { payload: Some(b"new".to_vec()), ..ValidChange::default() };
    let headers = Some(BTreeMap::from([("kind".to_owned(), "new".to_owned())]));
    let headers = ValidChange { headers, ..ValidChange::default() };
    let same = ValidChange { payload: Some(b"{}".to_vec()), ..ValidChange::default() };
    let priority = ValidChange { priority: Some(1), ..ValidChange::default() };
    let changes = [(payload, 1, false), (headers, 1, false), (same, 0, true), (priority, 0, true)];
    for (change, attempts_base, is_ended) in changes {
        let ids = submitted(&test, 1).await;
        claim(&test, &ids, &fences).await;
        retry_later(&test, ids[0]).await;
        assert_eq!(word(&test.database.task_change(ids[0], &change).await.unwrap()), "done");
        let standing = test.database.task_standing(&ids).await.unwrap().remove(0);
        assert_eq!(standing.attempts_base, Attempt::new(attempts_base), "{change:?}");
        let (attempt, final_state, was) = (Attempt::new(1), TaskState::Succeeded, &[TaskState::Scheduled]);
        let report = Report::default();
        let late =
            Finish { id: ids[0], attempt, final_state, was, keep_ms: DAY_MS, report, entry: None, at_deadline: false };
        let ended = test.database.task_finish(&[late]).await.unwrap().ids;
        assert_eq!(ended == ids, is_ended, "{change:?}");
    }
}

#[tokio::test]
async fn no_change_makes_a_task_expire_before_it_is_due() {
    let test = fixture::database().await;
    let mut task = new_task(fixture::fresh_id());
    (task.due_now, task.due_at) = (false, later(&test, 3_600).await);
    task.expires_at = Some(later(&test, 7_200).await);
    test.database.task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    let too_late = ValidChange { due_at: Some(later(&test, 9_000).await), ..ValidChange::default() };
    assert_eq!(word(&test.database.task_change(task.id, &too_late).await.unwrap()), "scheduled");
    let too_soon = ValidChange { expires_at: Some(Some(later(&test, 60).await)), ..ValidChange::default() };
    assert_eq!(word(&test.database.task_change(task.id, &too_soon).await.unwrap()), "scheduled");
    let never = ValidChange { expires_at: Some(None), ..too_late };
    let Guarded::Done(changed) = test.database.task_change(task.id, &never).await.unwrap() else { panic!("scheduled") };
    assert_eq!((Some(changed.due_at), changed.expires_at), (never.due_at, None));
}

/// The sweep of expired tasks may come later.
#[tokio::test]
async fn a_task_whose_expiry_has_passed_is_not_changed_and_not_run() {
    let test = fixture::database().await;
    let id = submitted(&test, 1).await[0];
    lapse(&test.pool, id).await;
    let changes = [
        ValidChange { priority: Some(1), ..ValidChange::default() },
        ValidChange { due_at: Some(common::time::UnixMicros::new(0)), ..ValidChange::default() },
        ValidChange { expires_at: Some(None), ..ValidChange::default() },
    ];
    for change in changes {
        assert_eq!(word(&test.database.task_change(id, &change).await.unwrap()), "expired", "{change:?}");
    }
    assert_eq!(word(&test.database.task_run(id).await.unwrap()), "expired");
    assert_eq!(state_of(&test.pool, id).await.as_deref(), Some("scheduled"), "nothing was written");
}

#[tokio::test]
async fn once_claimed_a_task_is_not_changed_and_not_run() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    claim(&test, &ids, &fences).await;
    let change = ValidChange { priority: Some(1), ..ValidChange::default() };
    assert_eq!(word(&test.database.task_change(ids[0], &change).await.unwrap()), "dispatching");
    assert_eq!(word(&test.database.task_run(ids[0]).await.unwrap()), "dispatching");
    assert_eq!(word(&test.database.task_revive(ids[0]).await.unwrap()), "dispatching");
    assert_eq!(word(&test.database.task_run(fixture::fresh_id()).await.unwrap()), "missing");
}

#[tokio::test]
async fn a_retry_that_is_run_is_due_at_once_and_stays_the_next_attempt() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    claim(&test, &ids, &fences).await;
    retry_later(&test, ids[0]).await;
    assert!(claim(&test, &ids, &fences).await.deliveries.is_empty());
    assert_eq!(word(&test.database.task_run(ids[0]).await.unwrap()), "done");
    assert_eq!(claim(&test, &ids, &fences).await.deliveries[0].attempt, Attempt::new(2));
}

#[tokio::test]
async fn a_dead_task_lives_again_with_a_new_budget_and_no_message_id_used_twice() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let mut task = new_task(fixture::fresh_id_of(common::ids::ShardId::new(0)));
    task.expires_at = Some(later(&test, 3_600).await);
    test.database.task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    claim(&test, &[task.id], &fences).await;
    bury(&test, task.id, 1).await;
    sqlx::query("UPDATE duetime.archive SET expires_at = now() - interval '1 s' WHERE id = $1")
        .bind(task.id.uuid())
        .execute(&test.pool)
        .await
        .unwrap();
    let Guarded::Done(revived) = test.database.task_revive(task.id).await.unwrap() else { panic!("it was dead") };
    assert_eq!((revived.state, revived.attempt), (TaskState::Scheduled, Attempt::new(1)));
    assert_eq!(revived.history.len(), 1, "earlier failures stay in the history");
    assert_eq!(revived.expires_at, None, "an expiry that has passed would end it at once");
    let delivery = claim(&test, &[task.id], &fences).await.deliveries.remove(0);
    assert_eq!((delivery.attempt, delivery.attempts_base), (Attempt::new(2), Attempt::new(1)));
    assert_eq!(word(&test.database.task_revive(task.id).await.unwrap()), "dispatching");
    assert_eq!(count(&test, task.id).await, 1, "in one table at a time");
}

#[tokio::test]
async fn cancelled_tasks_are_kept_as_long_as_their_queue_keeps_successes() {
    let test = fixture::database().await;
    let mut tasks: Vec<_> = (0..2).map(|_| new_task(fixture::fresh_id())).collect();
    tasks[1].queue = QueueName::new("week");
    test.database.task_submit(&tasks, Sending::First).await.unwrap();
    let policy = QueuePolicy { keep_succeeded_ms: 7 * DAY_MS, ..QueuePolicy::default() };
    let queue = |name: &str, policy| Queue { policy, ..Queue::with_defaults(QueueName::new(name)) };
    let book = QueueBook::new(1, [queue("orders", QueuePolicy::default()), queue("week", policy)]);
    let keep = Keep::of(&book);
    assert!(
        std::sync::Arc::ptr_eq(&keep.others, book.retention_overrides()),
        "made with the book, not with each cancel"
    );
    assert_eq!(keep, Keep { default_ms: DAY_MS, others: [(QueueName::new("week"), 7 * DAY_MS)].into() });
    let others = |queue: Option<&str>| Keep::of_queue(&book, queue.map(QueueName::new).as_ref()).others.len();
    assert_eq!((others(Some("orders")), others(Some("week")), others(None)), (0, 1, 1));
    for (task, days) in tasks.iter().zip([1, 7]) {
        assert_eq!(word(&test.database.task_cancel(task.id, &keep).await.unwrap()), "done");
        let kept: i32 = sqlx::query_scalar(
            "SELECT drop_on - (finished_at AT TIME ZONE 'UTC')::date FROM duetime.archive WHERE id = $1",
        )
        .bind(task.id.uuid())
        .fetch_one(&test.pool)
        .await
        .unwrap();
        assert_eq!(kept, days + 1, "dropped on the day after the last one it must be there");
    }
}

async fn count(test: &TestDatabase, id: TaskId) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM (SELECT id FROM duetime.task UNION ALL SELECT id FROM duetime.archive) AS t WHERE id = $1")
        .bind(id.uuid())
        .fetch_one(&test.pool)
        .await
        .unwrap()
}

/// A claim that another node holds open: one statement that is not committed yet.
pub(super) const CLAIM: &str =
    "UPDATE duetime.task SET state = 'dispatching', attempt = attempt + 1, claim_epoch = 1, claimed_at = now()
                      WHERE id = $1 AND state = 'scheduled'";

#[tokio::test]
async fn a_cancel_or_change_that_waited_for_a_claim_finds_the_task_in_flight() {
    let test = fixture::database().await;
    let ids = submitted(&test, 3).await;
    test.be_patient(PoolKind::Write).await;
    let mut claiming = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *claiming).await.unwrap();
    for id in &ids {
        sqlx::query(CLAIM).bind(id.uuid()).execute(&mut *claiming).await.unwrap();
    }
    let database = test.database.clone();
    let (first, second, third) = (ids[0], ids[1], ids[2]);
    let cancelling = spawn_child(async move { database.task_cancel(first, &keep()).await.unwrap() });
    let database = test.database.clone();
    let moved = ValidChange { due_at: Some(later(&test, 600).await), ..ValidChange::default() };
    let changing = spawn_child(async move { database.task_change(second, &moved).await.unwrap() });
    let database = test.database.clone();
    let running = spawn_child(async move { database.task_run(third).await.unwrap() });
    until_waiting(&test.pool, 3).await;
    sqlx::query("COMMIT").execute(&mut *claiming).await.unwrap();
    assert_eq!(word(&cancelling.await.unwrap()), "dispatching");
    assert_eq!(word(&changing.await.unwrap()), "dispatching");
    assert_eq!(word(&running.await.unwrap()), "dispatching");
}

#[tokio::test]
async fn a_claim_that_is_undone_leaves_the_task_to_the_cancel_that_waited_for_it() {
    let test = fixture::database().await;
    let id = submitted(&test, 1).await[0];
    test.be_patient(PoolKind::Write).await;
    let mut claiming = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *claiming).await.unwrap();
    sqlx::query(CLAIM).bind(id.uuid()).execute(&mut *claiming).await.unwrap();
    let database = test.database.clone();
    let cancelling = spawn_child(async move { database.task_cancel(id, &keep()).await.unwrap() });
    until_waiting(&test.pool, 1).await;
    sqlx::query("ROLLBACK").execute(&mut *claiming).await.unwrap();
    let Guarded::Done(cancelled) = cancelling.await.unwrap() else { panic!("it was never claimed") };
    assert_eq!(cancelled.attempt, Attempt::NONE);
}

#[tokio::test]
async fn a_claim_passes_over_what_a_cancel_a_change_or_a_run_holds_and_then_takes_what_is_left_of_them() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 3).await;
    let mut by_hand = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *by_hand).await.unwrap();
    sqlx::query(include_str!("../queries/task_cancel.sql"))
        .bind(ids[0].uuid())
        .bind(DAY_MS)
        .bind(Vec::<String>::new())
        .bind(Vec::<i64>::new())
        .execute(&mut *by_hand)
        .await
        .unwrap();
    sqlx::query(
        "UPDATE duetime.task SET due_at = now() + interval '1 h', wake_at = now() + interval '1 h' WHERE id = $1",
    )
    .bind(ids[1].uuid())
    .execute(&mut *by_hand)
    .await
    .unwrap();
    sqlx::query(include_str!("../queries/task_run.sql")).bind(ids[2].uuid()).execute(&mut *by_hand).await.unwrap();
    let held = claim(&test, &ids, &fences).await;
    assert_eq!((held.deliveries.len(), held.passed.len()), (0, 3));
    sqlx::query("COMMIT").execute(&mut *by_hand).await.unwrap();
    let claimed: Vec<_> =
        claim(&test, &ids, &fences).await.deliveries.into_iter().map(|delivery| delivery.id).collect();
    assert_eq!(claimed, [ids[2]], "the cancelled one is gone, the moved one is not due");
}

#[tokio::test]
async fn a_cancel_that_waited_for_the_end_of_a_task_says_how_it_ended() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let id = submitted(&test, 1).await[0];
    claim(&test, &[id], &fences).await;
    retry_later(&test, id).await;
    test.be_patient(PoolKind::Write).await;
    // The late success of the first attempt finishes the task while the second attempt waits for its time.
    let mut ending = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *ending).await.unwrap();
    sqlx::query(include_str!("../queries/task_finish.sql"))
        .bind(vec![id.uuid()])
        .bind(vec![1])
        .bind(vec!["succeeded"])
        .bind(vec!["scheduled"])
        .bind(vec![DAY_MS])
        .bind(vec![None::<String>])
        .bind(vec![None::<String>])
        .bind(vec![None::<i64>])
        .bind(vec![None::<String>])
        .bind(vec![false])
        .bind(vec![None::<i16>])
        .bind(vec![None::<String>])
        .execute(&mut *ending)
        .await
        .unwrap();
    let database = test.database.clone();
    let cancelling = spawn_child(async move { database.task_cancel(id, &keep()).await.unwrap() });
    until_waiting(&test.pool, 1).await;
    sqlx::query("COMMIT").execute(&mut *ending).await.unwrap();
    assert_eq!(word(&cancelling.await.unwrap()), "succeeded", "not missing, and not what it was before");
}

#[tokio::test]
async fn of_two_that_revive_a_task_at_once_one_does() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let id = submitted(&test, 1).await[0];
    claim(&test, &[id], &fences).await;
    bury(&test, id, 1).await;
    let (one, other) = tokio::join!(test.database.task_revive(id), test.database.task_revive(id));
    let mut words = [word(&one.unwrap()), word(&other.unwrap())];
    words.sort_unstable();
    assert_eq!(words, ["done", "scheduled"]);
    assert_eq!(count(&test, id).await, 1);
}
