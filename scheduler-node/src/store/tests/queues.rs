//! Queues and their counts.

use common::{
    ids::{QueueName, ShardId},
    queue::{QueuePolicy, Settle},
    wire::queue::Counts,
};

use super::{claim, fixture, own, submitted};
use crate::store::queues::QueueQuota;

fn name(text: &str) -> QueueName {
    QueueName::new(text)
}

#[tokio::test]
async fn every_change_of_a_queue_raises_the_revision_by_one() {
    let test = fixture::database().await;
    let database = &test.database;
    assert_eq!(database.queue_revision().await.unwrap(), 0);
    assert_eq!(database.queue_read().await.unwrap(), (0, Vec::new()));
    let policy = QueuePolicy { settle: Settle::Result, ..QueuePolicy::default() };
    let put = database.queue_put(&name("a"), &policy, None, 10).await.unwrap().expect("there is room");
    assert!(put.created && !put.record.queue.paused);
    assert_eq!(put.record.queue.policy, policy);
    let put =
        database.queue_put(&name("a"), &QueuePolicy::default(), Some(true), 10).await.unwrap().expect("there is room");
    assert!(!put.created && put.record.queue.paused);
    let put = database.queue_put(&name("a"), &policy, None, 10).await.unwrap().expect("there is room");
    assert!(put.record.queue.paused, "it stays paused unless told otherwise");
    assert!(!database.queue_pause(&name("a"), false).await.unwrap().expect("it is there").0.queue.paused);
    database.queue_add(&[name("a"), name("b"), name("b")], &QueuePolicy::default(), None).await.unwrap();
    let (revision, queues) = database.queue_read().await.unwrap();
    assert_eq!(revision, 5);
    assert_eq!(
        queues.iter().map(|queue| (queue.name.as_str(), queue.policy.settle)).collect::<Vec<_>>(),
        [("a", Settle::Result), ("b", Settle::Reject)]
    );
    assert!(database.queue_delete(&name("a")).await.unwrap().is_some());
    assert_eq!(database.queue_revision().await.unwrap(), 6);
}

#[tokio::test]
async fn what_changes_nothing_leaves_the_revision() {
    let test = fixture::database().await;
    let database = &test.database;
    database.queue_add(&[name("a")], &QueuePolicy::default(), None).await.unwrap();
    database.queue_add(&[name("a")], &QueuePolicy::default(), None).await.unwrap();
    assert!(database.queue_delete(&name("b")).await.unwrap().is_none());
    assert!(database.queue_pause(&name("b"), true).await.unwrap().is_none());
    assert_eq!(database.queue_revision().await.unwrap(), 1);
}

#[tokio::test]
async fn first_uses_of_the_same_queues_at_the_same_time_make_each_once() {
    let test = fixture::database().await;
    let names: Vec<QueueName> = (0..20).map(|n| name(&format!("q{n}"))).collect();
    let reversed: Vec<QueueName> = names.iter().rev().cloned().collect();
    let policy = QueuePolicy::default();
    let calls = (0..8).map(|n| test.database.queue_add(if n % 2 == 0 { &names } else { &reversed }, &policy, None));
    for done in futures::future::join_all(calls).await {
        done.expect("no deadlock");
    }
    let (revision, queues) = test.database.queue_read().await.unwrap();
    assert_eq!((revision, queues.len()), (1, 20));
}

#[tokio::test]
async fn there_are_no_more_queues_than_the_quota_allows() {
    let test = fixture::database().await;
    let database = &test.database;
    let names = |names: &[&str]| names.iter().map(|text| name(text)).collect::<Vec<_>>();
    let quota = |caller| Some(QueueQuota { caller, all: 4, per_caller: 2 });
    let kept = async || {
        let (_, queues) = database.queue_read().await.unwrap();
        queues.iter().map(|queue| queue.name.to_string()).collect::<Vec<_>>().join(" ")
    };
    let policy = QueuePolicy::default();
    database.queue_add(&names(&["c", "b", "a"]), &policy, quota("shop")).await.unwrap();
    assert_eq!(kept().await, "a b", "a caller has two");
    database.queue_add(&names(&["a", "b", "c"]), &policy, quota("shop")).await.unwrap();
    assert_eq!(kept().await, "a b", "those that are there take no room");
    database.queue_add(&names(&["d"]), &policy, quota("mail")).await.unwrap();
    database.queue_add(&names(&["a", "e", "f"]), &policy, quota("bank")).await.unwrap();
    assert_eq!(kept().await, "a b d e", "the cluster has four");
    assert!(database.queue_put(&name("z"), &policy, None, 4).await.unwrap().is_none(), "there is no room");
    assert!(!database.queue_put(&name("a"), &policy, None, 4).await.unwrap().expect("it is there").created);
    database.queue_add(&names(&["g"]), &policy, None).await.unwrap();
    assert_eq!(kept().await, "a b d e g", "the configuration's own queues are always made");
}

#[tokio::test]
async fn one_queue_is_read_alone_with_its_times() {
    let test = fixture::database().await;
    test.database.queue_add(&[name("a"), name("b")], &QueuePolicy::default(), None).await.unwrap();
    let (_, records) = test.database.queue_records(Some(&name("b"))).await.unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].queue.name.as_str(), records[0].created_at <= records[0].updated_at), ("b", true));
    assert!(test.database.queue_records(Some(&name("c"))).await.unwrap().1.is_empty());
}

#[tokio::test]
async fn tasks_are_counted_by_state_and_finished_ones_are_not() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 5).await;
    claim(&test, &ids[..2], &fences).await;
    let keep = crate::store::change::Keep { default_ms: 1_000, others: Vec::new() };
    test.database.task_cancel(ids[4], &keep).await.unwrap();
    let counts = test.database.queue_counts(&[name("orders"), name("nobody's")]).await.unwrap();
    assert_eq!(counts[&name("orders")], Counts { scheduled: 2, dispatching: 2, ..Counts::default() });
    assert_eq!(counts[&name("nobody's")], Counts::default());
    assert!(test.database.shards().contains(ShardId::new(0)));
}

#[tokio::test]
async fn counting_stops_at_its_bound_and_says_so() {
    let test = fixture::database().await;
    sqlx::query(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
         SELECT gen_random_uuid(), 0, 'long', 'scheduled', now(), now(), '', 'text/plain' FROM generate_series(1, 101000)",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    let counts = test.database.queue_counts(&[name("long")]).await.unwrap();
    assert_eq!(counts[&name("long")], Counts { scheduled: 100_000, at_least: true, ..Counts::default() });
}
