//! Claims, rescues and takeovers: the gate to the broker.

use std::{collections::BTreeSet, time::Duration};

use common::{
    ids::{Attempt, QueueName, ShardId},
    task::{Delivery, TaskState},
    time::UnixMicros,
};

use super::{changed, claim, fixture, new_task, own, pick, state_of, submitted};
use crate::store::{lane::Pick, submit::Sending};

#[tokio::test]
async fn a_claimed_task_is_dispatching_counts_an_attempt_and_is_claimed_once() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 2).await;
    let first = claim(&test, &ids, &fences).await;
    assert_eq!(first.deliveries.len(), 2);
    assert!(first.deliveries.iter().all(|delivery| delivery.attempt == Attempt::new(1) && !delivery.redelivered));
    assert_eq!(state_of(&test.pool, ids[0]).await.as_deref(), Some("dispatching"));
    assert!(claim(&test, &ids, &fences).await.deliveries.is_empty());
}

#[tokio::test]
async fn each_claimed_task_has_its_own_queue_and_those_of_one_queue_share_its_name() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let of_queue = |queue| changed(new_task(fixture::fresh_id_of(ShardId::new(0))), |task| task.queue = queue);
    let tasks = ["a", "a", "b", "a"].map(|name| of_queue(QueueName::new(name)));
    test.database.task_submit(&tasks, Sending::First).await.unwrap();
    let claimed = claim(&test, &tasks.each_ref().map(|task| task.id), &fences).await.deliveries;
    assert_eq!(claimed.len(), tasks.len());
    for task in &tasks {
        let delivery = claimed.iter().find(|delivery| delivery.id == task.id).unwrap();
        assert_eq!(delivery.queue, task.task.queue);
    }
    let is_shared = |pair: &[Delivery]| std::ptr::eq(pair[0].queue.as_str(), pair[1].queue.as_str());
    assert!(claimed.windows(2).all(|pair| is_shared(pair) == (pair[0].queue == pair[1].queue)));
}

#[tokio::test]
async fn a_claim_takes_what_is_due_within_its_lead_and_nothing_later() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let now = fixture::now(&test.pool).await;
    let mut soon = new_task(fixture::fresh_id_of(ShardId::new(0)));
    (soon.due_now, soon.due_at) = (false, now.plus(Duration::from_secs(60)));
    let mut later = new_task(fixture::fresh_id_of(ShardId::new(0)));
    (later.due_now, later.due_at) = (false, now.plus(Duration::from_secs(600)));
    test.database.task_submit(&[soon.clone(), later.clone()], Sending::First).await.unwrap();
    let claimed = test
        .database
        .task_claim(&[soon.id, later.id], &fences, Duration::from_secs(120), &BTreeSet::new(), i64::MAX)
        .await
        .unwrap();
    assert_eq!(claimed.deliveries.len(), 1);
    assert_eq!((claimed.deliveries[0].id, claimed.deliveries[0].due_at), (soon.id, soon.due_at));
}

#[tokio::test]
async fn what_has_expired_is_not_claimed() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let mut task = new_task(fixture::fresh_id_of(ShardId::new(0)));
    task.expires_at = Some(fixture::now(&test.pool).await.minus(Duration::from_secs(1)));
    test.database.task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    assert!(claim(&test, &[task.id], &fences).await.deliveries.is_empty());
    let expired = test
        .database
        .task_expire(
            &[ShardId::new(0)],
            None,
            10,
            &crate::store::change::Keep { default_ms: 0, others: std::sync::Arc::default() },
            &[],
        )
        .await
        .unwrap();
    assert_eq!((expired[0].id, expired[0].queue.as_str(), expired.len()), (task.id, "orders", 1));
    assert_eq!(state_of(&test.pool, task.id).await.as_deref(), Some("expired"));
}

#[tokio::test]
async fn tasks_of_a_closed_lane_become_ready_and_come_back_when_it_opens() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 3).await;
    let held = test
        .database
        .task_claim(&ids, &fences, Duration::ZERO, &BTreeSet::from([QueueName::new("orders")]), i64::MAX)
        .await
        .unwrap();
    assert!(held.deliveries.is_empty());
    assert_eq!(held.held_back.len(), 3);
    assert_eq!(state_of(&test.pool, ids[0]).await.as_deref(), Some("ready"));
    let orders = QueueName::new("orders");
    assert_eq!(test.database.ready_queues().await.unwrap(), std::slice::from_ref(&orders));
    let taken = pick(&test.database, &orders, &fences, 2).await;
    assert_eq!(taken.deliveries.len(), 2);
    assert!(
        taken.deliveries.iter().all(|delivery| delivery.attempt == Attempt::new(1)),
        "waiting for room is no attempt"
    );
    assert_eq!(pick(&test.database, &orders, &fences, 2).await.deliveries.len(), 1);
    assert!(test.database.ready_queues().await.unwrap().is_empty());
}

/// Otherwise tasks of a limited queue leave together at their due time, whatever its limit and its rate.
#[tokio::test]
async fn what_became_ready_long_before_its_due_time_is_started_about_then() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let (orders, soon) = (QueueName::new("orders"), fixture::now(&test.pool).await.plus(Duration::from_secs(3_600)));
    let mut coming = new_task(fixture::fresh_id_of(ShardId::new(0)));
    (coming.due_now, coming.due_at, coming.partition_key) = (false, soon, Some("later".to_owned()));
    let mut due = new_task(fixture::fresh_id_of(ShardId::new(0)));
    due.partition_key = Some("now".to_owned());
    test.database.task_submit(&[coming.clone(), due.clone()], Sending::First).await.unwrap();
    let (ids, closed) = ([coming.id, due.id], BTreeSet::from([orders.clone()]));
    let held = test.database.task_claim(&ids, &fences, Duration::from_secs(7_200), &closed, i64::MAX).await.unwrap();
    assert_eq!(held.held_back.len(), 2);
    for ordered in [false, true] {
        sqlx::raw_sql("UPDATE duetime.task SET state = 'ready', in_order = NULL").execute(&test.pool).await.unwrap();
        let pick = Pick { ordered, ..Pick::of(&orders, &fences, [0, 0, 5, 0, 0]) };
        let (claimed, walks) = test.database.task_pick_open(&pick).await.unwrap();
        assert_eq!(claimed.deliveries.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [due.id]);
        assert_eq!(walks.comes_due, Some(soon), "the time of the next pick");
        let comes_due = "UPDATE duetime.task SET due_at = now() + interval '50 ms' WHERE state = 'ready'";
        sqlx::raw_sql(comes_due).execute(&test.pool).await.unwrap();
        let (claimed, walks) = test.database.task_pick_open(&pick).await.unwrap();
        assert_eq!(claimed.deliveries.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [coming.id]);
        assert_eq!(walks.comes_due, None);
        let again = sqlx::query("UPDATE duetime.task SET due_at = $2 WHERE id = $1").bind(coming.id.uuid());
        again.bind(soon.to_utc()).execute(&test.pool).await.unwrap();
    }
}

#[tokio::test]
async fn what_waited_for_room_is_taken_by_priority_first() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let mut tasks: Vec<_> = (0..3).map(|_| new_task(fixture::fresh_id_of(ShardId::new(0)))).collect();
    (tasks[0].priority, tasks[1].priority, tasks[2].priority) = (5, 1, 3);
    test.database.task_submit(&tasks, Sending::First).await.unwrap();
    let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
    test.database
        .task_claim(&ids, &fences, Duration::ZERO, &BTreeSet::from([QueueName::new("orders")]), i64::MAX)
        .await
        .unwrap();
    let taken = pick(&test.database, &QueueName::new("orders"), &fences, 1).await;
    assert_eq!(taken.deliveries[0].priority, 1);
}

#[tokio::test]
async fn a_rescue_is_the_same_attempt_marked_as_a_possible_copy() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    claim(&test, &ids, &fences).await;
    let rescued = test.database.task_rescue(&ids, &fences).await.unwrap();
    assert_eq!(rescued.deliveries[0].attempt, Attempt::new(1));
    assert!(rescued.deliveries[0].redelivered);
}

#[tokio::test]
async fn a_rescue_leaves_what_was_confirmed_meanwhile_alone() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    claim(&test, &ids, &fences).await;
    test.database.task_deliver(&[super::deliver(ids[0], Attempt::new(1), 1_000)]).await.unwrap();
    assert!(test.database.task_rescue(&ids, &fences).await.unwrap().deliveries.is_empty());
}

#[tokio::test]
async fn a_takeover_finds_what_older_epochs_left_and_nothing_else() {
    let test = fixture::database().await;
    let old = own(&test, "old").await;
    let ids = submitted(&test, 3).await;
    claim(&test, &ids[..2], &old).await;
    let new = own(&test, "new").await;
    claim(&test, &ids[2..], &new).await;
    let mut left = test.database.task_takeover(&new, 100).await.unwrap();
    left.sort();
    let mut expected = ids[..2].to_vec();
    expected.sort();
    assert_eq!(left, expected);
}

#[tokio::test]
async fn a_row_that_another_transaction_holds_is_passed_over_and_its_neighbours_are_claimed() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 3).await;
    let mut application = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *application).await.unwrap();
    sqlx::query("SELECT duetime.cancel($1)").bind(ids[1].uuid()).execute(&mut *application).await.unwrap();
    let claimed = claim(&test, &ids, &fences).await;
    assert_eq!(claimed.deliveries.len(), 2);
    let passed: Vec<_> = claimed.passed.iter().map(|key| (key.id, key.state)).collect();
    assert_eq!(passed, [(ids[1], TaskState::Scheduled)], "the claim is to be repeated");
    assert!(!claimed.refused && !claimed.turned);
    sqlx::query("ROLLBACK").execute(&mut *application).await.unwrap();
    let claimed = claim(&test, &ids[1..2], &fences).await;
    assert_eq!((claimed.deliveries.len(), claimed.passed.len()), (1, 0));
}

#[tokio::test]
async fn what_a_claim_or_a_rescue_asks_for_in_vain_says_when_it_wakes() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 3).await;
    let moved = "UPDATE duetime.task SET wake_at = '2100-01-01', due_at = '2100-01-01' WHERE id = $1";
    sqlx::query(moved).bind(ids[0].uuid()).execute(&test.pool).await.unwrap();
    claim(&test, &ids[1..2], &fences).await;
    test.database.task_deliver(&[super::deliver(ids[1], Attempt::new(1), 60_000)]).await.unwrap();
    let gone = "DELETE FROM duetime.task WHERE id = $1";
    sqlx::query(gone).bind(ids[2].uuid()).execute(&test.pool).await.unwrap();
    for claimed in [claim(&test, &ids, &fences).await, test.database.task_rescue(&ids, &fences).await.unwrap()] {
        let mut passed: Vec<_> = claimed.passed.iter().map(|key| (key.id, key.state)).collect();
        passed.sort();
        let mut expected = vec![(ids[0], TaskState::Scheduled), (ids[1], TaskState::Delivered)];
        expected.sort();
        assert_eq!(passed, expected);
        let later = claimed.passed.iter().find(|key| key.id == ids[0]).expect("it is there");
        assert_eq!(later.wake_at, UnixMicros::new(4_102_444_800_000_000));
    }
}

#[tokio::test]
async fn a_rescue_passes_over_a_row_that_another_transaction_holds() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 2).await;
    claim(&test, &ids, &fences).await;
    let lock = test.lock_row(ids[0]).await;
    let rescued = test.database.task_rescue(&ids, &fences).await.unwrap();
    assert_eq!(rescued.deliveries.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), ids[1..]);
    assert_eq!(
        rescued.passed.iter().map(|key| (key.id, key.state)).collect::<Vec<_>>(),
        [(ids[0], TaskState::Dispatching)]
    );
    lock.release().await;
}
