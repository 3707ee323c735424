//! Requests that name a task by its key, beside a change of the queue's placement.

use std::sync::Arc;

use common::{
    ids::QueueName,
    queue::Placement,
    shard::route::bound_to,
    task::state::CancelOutcome,
    wire::{ChangeRequest, QueueRequest},
};

use super::{PLAIN, counter, fresh, hide_queues, lower_half, request, with_one_of_two_gone, with_two_databases};
use crate::store::tests::fixture;

/// A finished task of each key is in the place that the node takes for the present one.
#[tokio::test]
async fn a_node_that_has_not_read_a_new_placement_finds_changes_and_cancels_the_unfinished_task_of_a_key() {
    let (changing, [main, _east]) = with_two_databases().await;
    let behind = counter(changing.store.databases().iter().cloned().collect(), PLAIN);
    let submit = async |n: usize| {
        let json = format!(r#"{{"queue":"orders","key":"k{n}","delay_ms":60000}}"#);
        changing.desk.submit(request(&json)).await.expect("accepted").id
    };
    for n in 0..8 {
        changing.desk.cancel(submit(n).await).await.expect("not claimed");
    }
    behind.desk.catch_up().await.expect("it knows the queue");
    let old = behind.books.load_full();
    let single = QueueRequest::parse(r#"{"placement":"single"}"#).expect("a queue");
    changing.desk.queue_put(QueueName::new("orders"), single).await.expect("no task of it is left");
    // Each request begins with the old book. The last keys are looked up where that cannot be read anew either.
    let forget = || behind.books.store(Arc::clone(&old));
    for n in 0..8 {
        let (id, key) = (submit(n).await, format!("k{n}"));
        if n >= 4 {
            hide_queues(&main, true).await;
        }
        forget();
        assert_eq!(behind.desk.find("orders", None, &key).await.expect("found"), id, "{key}");
        forget();
        let change = ChangeRequest { priority: Some(1), ..Default::default() };
        let changed = behind.desk.change_by_key("orders", None, &key, change).await.expect("changed");
        assert_eq!((changed.id, changed.priority), (id, 1), "{key}");
        forget();
        let cancelled = behind.desk.cancel_by_key("orders", None, &key).await.expect("cancelled");
        assert_eq!((cancelled.id, cancelled.outcome), (id, CancelOutcome::Cancelled), "{key}");
        if n >= 4 {
            hide_queues(&main, false).await;
        }
    }
}

#[tokio::test]
async fn a_key_that_may_be_in_a_database_that_is_away_is_unknown_only_where_the_placement_is_known() {
    let (counter, test) = with_one_of_two_gone().await;
    let is_here = |queue: &QueueName, placement, key: &str| {
        let shard = bound_to(queue, placement, None, Some(key), u32::from(fixture::SHARDS));
        lower_half().contains(shard.expect("a key is bound to a shard"))
    };
    let mut queues = (0..100).map(|n| QueueName::new(format!("q{n}")));
    let queue = queues.find(|queue| !is_here(queue, Placement::Single, "k")).expect("some are in the other");
    let mut keys = (0..100).map(|n| format!("k{n}"));
    let key = keys.find(|key| is_here(&queue, Placement::Spread, key)).expect("some are here");
    for (are_hidden, status) in [(false, 404), (true, 503)] {
        if are_hidden {
            hide_queues(&test, true).await;
        }
        let problem = counter.desk.find(queue.as_str(), None, &key).await.expect_err("it is nowhere");
        assert_eq!(problem.status, status, "{problem}");
    }
}

#[tokio::test]
async fn a_key_in_a_single_database_is_found_without_its_payload() {
    let (counter, test) = fresh().await;
    let json = r#"{"queue":"orders","key":"k","delay_ms":60000}"#;
    let id = counter.desk.submit(request(json)).await.expect("accepted").id;
    counter.desk.cancel(id).await.expect("not claimed");
    for table in ["task", "archive"] {
        let hide = format!("ALTER TABLE duetime.{table} RENAME COLUMN payload TO hidden");
        sqlx::query(sqlx::AssertSqlSafe(hide)).execute(&test.pool).await.expect("hidden");
    }
    assert_eq!(counter.desk.find("orders", None, "k").await.expect("found"), id);
}
