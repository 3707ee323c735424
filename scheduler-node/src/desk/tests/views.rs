//! Views over all databases.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use common::{
    access::Scope,
    ids::{Incarnation, NodeId, NodeName, QueueName, ShardId},
    task::TaskState,
    wire::{ListFilter, QueueRequest},
};

use super::{PLAIN, counter, drain::among, fresh, request, with_one_of_two_gone, with_two_databases};
use crate::store::{
    PoolKind,
    tests::{fixture, outlook::finished},
};

#[tokio::test]
async fn one_list_goes_through_all_databases_in_the_order_of_due_times() {
    let (counter, tests) = with_two_databases().await;
    let mut submitted = Vec::new();
    for nth in 0..40 {
        let body = format!(r#"{{"queue":"q{}","delay_ms":{}}}"#, nth % 3, 60_000 + 1_000 * ((nth * 7) % 40));
        submitted.push(counter.desk.submit(request(&body)).await.expect("accepted"));
    }
    for task in submitted.iter().step_by(4) {
        counter.desk.cancel(task.id).await.expect("cancelled");
    }
    assert!(tests[0].live().await > 0 && tests[1].live().await > 0, "some in each");
    submitted.sort_by_key(|task| (task.due_at, task.id));
    let mut filter = ListFilter { limit: Some(7), ..ListFilter::default() };
    let mut listed = Vec::new();
    loop {
        let page = counter.desk.list(filter.clone()).await.expect("two databases");
        listed.extend(page.tasks.into_iter().map(|task| task.id));
        match page.next_cursor {
            Some(next) => filter.cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(listed, submitted.iter().map(|task| task.id).collect::<Vec<_>>());
    let cancelled = ListFilter { state: Some(TaskState::Cancelled), ..ListFilter::default() };
    assert_eq!(counter.desk.list(cancelled).await.expect("two databases").tasks.len(), 10);
}

/// Each of 201 queues has a share of 24 tasks in a page, and a page ends where the first has used up its own.
#[tokio::test]
async fn a_list_of_many_queues_goes_on_where_one_of_them_has_most_of_the_tasks() {
    let (counter, test) = fresh().await;
    sqlx::raw_sql(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
         SELECT gen_random_uuid(), g % 128, CASE WHEN g <= 1000 THEN 'big' ELSE 'q' || g END, 'scheduled', due, due, '', 'text/plain'
           FROM generate_series(1, 1200) AS g, LATERAL (SELECT now() + g * interval '1 min' AS due) AS moment",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    let mut filter = ListFilter { limit: Some(100), ..ListFilter::default() };
    let (mut listed, mut answers) = (Vec::new(), 0);
    while answers == 0 || filter.cursor.is_some() {
        answers += 1;
        let next = counter.desk.list(filter.clone()).await.expect("one database");
        assert!(next.tasks.len() <= 100);
        listed.extend(next.tasks.iter().map(|task| (task.due_at, task.id)));
        filter.cursor = next.next_cursor;
    }
    assert!(listed.len() == 1_200 && listed.is_sorted(), "{} tasks", listed.len());
    assert!(answers < 1_200 / 24, "{answers} answers: a page has 24 tasks");
}

#[tokio::test]
async fn a_list_that_lacks_a_database_is_none_and_says_which() {
    let (counter, _test) = with_one_of_two_gone().await;
    let refused = counter.desk.list(ListFilter::default()).await.expect_err("half a list would mislead");
    assert_eq!((refused.status, refused.retry_after_s.is_some()), (503, true));
    assert!(refused.detail.contains("`east`"), "{refused}");
}

#[tokio::test]
async fn figures_that_lack_a_database_are_lower_bounds() {
    let (counter, test) = with_one_of_two_gone().await;
    finished(&test, "a", "dead", "-1 h", 2, 1).await;
    let dead = counter.desk.dead_groups().await.expect("of the other database");
    assert_eq!((dead.groups[0].tasks, dead.at_least, dead.cut), (2, true, false));
    let outlook = counter.desk.outlook(Duration::from_secs(60), 2).await.expect("of the other database");
    assert!(outlook.len() == 2 && outlook.iter().all(|bucket| bucket.at_least), "{outlook:?}");
}

#[tokio::test]
async fn a_list_nobody_can_answer_is_refused_by_its_field() {
    let (counter, _test) = fresh().await;
    let too_many = ListFilter { limit: Some(1_001), ..ListFilter::default() };
    assert_eq!(counter.desk.list(too_many).await.expect_err("too many").field.as_deref(), Some("limit"));
}

#[tokio::test]
async fn owners_are_told_by_the_fences_and_not_known_where_a_database_is_away() {
    let (counter, test) = with_one_of_two_gone().await;
    let node = NodeId { name: NodeName::new("b"), incarnation: Incarnation::new(uuid::Uuid::new_v4()) };
    let acquired = test.database.shard_acquire(&[ShardId::new(3)], &node).await.unwrap();
    let report = counter.desk.cluster().await.expect("a report even so");
    assert_eq!(report.shards.len(), 128);
    assert_eq!(report.shards[3].owner.as_ref().map(NodeName::as_str), Some("b"));
    assert_eq!(report.shards[3].epoch, Some(acquired[0].1));
    assert!(report.shards[0].owner.is_none());
    let away: BTreeSet<_> = report.shards[64..].iter().map(|shard| (shard.owner.clone(), shard.epoch)).collect();
    assert_eq!(away, BTreeSet::from([(None, None)]));
    assert!(report.notes.len() == 1 && report.notes[0].contains("`east`"), "{:?}", report.notes);
    assert_eq!(report.shards_orphaned, 1, "without etcd no owner is a member");
}

#[tokio::test]
async fn a_report_counts_the_shards_whose_last_owner_is_no_member() {
    let (counter, _coordination, nodes, test) = among(&["a", "b"]).await;
    let ended = NodeId { incarnation: Incarnation::new(uuid::Uuid::new_v4()), ..nodes[1].clone() };
    for (owner, shards, counted) in [(&nodes[0], 0..5, 0), (&ended, 5..7, 2)] {
        let shards: Vec<ShardId> = shards.map(ShardId::new).collect();
        test.database.shard_acquire(&shards, owner).await.unwrap();
        let report = counter.desk.cluster().await.expect("a cluster");
        assert_eq!(report.shards_orphaned, counted);
        assert!(report.notes.is_empty(), "{:?}", report.notes);
        assert_eq!(report.nodes.iter().map(|node| node.shards_owned).collect::<Vec<_>>(), [5, 0]);
    }
}

/// A database that is reached and does not answer: a lock stands in for a server that hangs.
#[tokio::test]
async fn a_database_that_does_not_answer_delays_the_report_of_the_cluster_by_a_second_only() {
    let (here, mut silent) = (fixture::database().await, fixture::database().await);
    silent.database = fixture::named("east", &silent.url);
    silent.be_patient(PoolKind::Read).await;
    let counter = counter(vec![Arc::clone(&here.database), Arc::clone(&silent.database)], PLAIN);
    let mut hanging = silent.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *hanging).await.unwrap();
    sqlx::query("LOCK TABLE duetime.shard").execute(&mut *hanging).await.unwrap();
    // Without a bound of its own the report waits for ten seconds, as any statement does. A machine may stand still for
    // half of them.
    let report = tokio::time::timeout(Duration::from_secs(9), counter.desk.cluster()).await;
    let report = report.expect("it does not wait for the lock").expect("a report even so");
    assert!(report.notes.len() == 1 && report.notes[0].contains("`east`"), "{:?}", report.notes);
}

#[tokio::test]
async fn the_dead_of_a_caller_are_not_hidden_by_those_of_other_queues() {
    let (counter, test) = fresh().await;
    finished(&test, "a", "dead", "-1 h", 400, 200).await;
    finished(&test, "b", "dead", "-1 h", 1, 1).await;
    counter.desk.queue_put(QueueName::new("b"), QueueRequest::default()).await.expect("put");
    for pattern in ["b", "b*"] {
        let scope = Scope::of(Some(vec![pattern.to_owned()])).expect("a scope");
        let dead = counter.desk.within(scope).dead_groups().await.expect("one database");
        let groups: Vec<_> = dead.groups.iter().map(|group| (group.queue.as_str(), group.tasks)).collect();
        assert_eq!((groups, dead.at_least, dead.cut), (vec![("b", 1)], false, false), "{pattern}");
    }
    assert!(counter.desk.dead_groups().await.expect("one database").cut);
}
