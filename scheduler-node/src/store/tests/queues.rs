//! Queues, their changes and their task counts.

use common::{
    ids::QueueName,
    queue::{Queue, QueueBook, QueueChange, QueuePolicy, Settle},
    wire::queue::Counts,
};

use sqlx::{AssertSqlSafe, Executor};

use super::{claim, fixture, own, submitted, until_waiting};
use crate::{
    store::{
        PoolKind,
        queues::{QueueQuota, QueueRevisions},
        rows::Seen,
    },
    supervise::spawn_child,
};

fn name(text: &str) -> QueueName {
    QueueName::new(text)
}

#[tokio::test]
async fn every_change_of_a_queue_raises_the_revision_by_one() {
    let test = fixture::database().await;
    let database = &test.database;
    assert_eq!(database.queue_read().await.unwrap(), (0, Vec::new()));
    let policy = QueuePolicy { settle: Settle::Result, ..QueuePolicy::default() };
    let put = database.queue_put(&name("a"), &policy, None, 10).await.unwrap().expect("there is room");
    assert!(put.created && !put.record.queue.paused);
    assert_eq!(put.record.queue.policy, policy);
    let put =
        database.queue_put(&name("a"), &QueuePolicy::default(), Some(true), 10).await.unwrap().expect("there is room");
    assert!(!put.created && put.record.queue.paused);
    let put = database.queue_put(&name("a"), &policy, None, 10).await.unwrap().expect("there is room");
    assert!(put.record.queue.paused, "it stays paused unless the change resumes it");
    assert!(!database.queue_pause(&name("a"), false).await.unwrap().expect("it is there").0.queue.paused);
    database.queue_add(&[name("a"), name("b"), name("b")], &QueuePolicy::default(), None).await.unwrap();
    let (revision, queues) = database.queue_read().await.unwrap();
    assert_eq!(revision, 5);
    assert_eq!(
        queues.iter().map(|queue| (queue.name.as_str(), queue.policy.settle)).collect::<Vec<_>>(),
        [("a", Settle::Result), ("b", Settle::Reject)]
    );
    assert!(database.queue_delete(&name("a")).await.unwrap().is_some());
    assert_eq!(database.queue_read().await.unwrap().0, 6);
}

#[tokio::test]
async fn what_changes_nothing_leaves_the_revision() {
    let test = fixture::database().await;
    let database = &test.database;
    database.queue_add(&[name("a")], &QueuePolicy::default(), None).await.unwrap();
    database.queue_add(&[name("a")], &QueuePolicy::default(), None).await.unwrap();
    assert!(database.queue_delete(&name("b")).await.unwrap().is_none());
    assert!(database.queue_pause(&name("b"), true).await.unwrap().is_none());
    assert_eq!(database.queue_read().await.unwrap().0, 1);
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
        let mut names: Vec<String> = queues.iter().map(|queue| queue.name.to_string()).collect();
        names.sort();
        names.join(" ")
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
async fn a_change_by_a_caller_who_saw_another_state_does_nothing_also_when_the_other_change_is_under_way() {
    let test = fixture::database().await;
    test.pool.execute("ALTER FUNCTION duetime.await_claims() SET lock_timeout = '1min'").await.unwrap();
    test.be_patient(PoolKind::Write).await;
    let policy = QueuePolicy { max_attempts: 3, ..QueuePolicy::default() };
    let insert = "INSERT INTO duetime.queue (name, policy) VALUES ('a', '{}')";
    for (other, is_there) in [
        ("UPDATE duetime.queue SET updated_at = clock_timestamp() WHERE name = 'a'", true),
        ("DELETE FROM duetime.queue WHERE name = 'a'", true),
        (insert, false),
    ] {
        test.database.queue_delete(&name("a")).await.unwrap();
        let seen = if is_there {
            let put = test.database.queue_put(&name("a"), &QueuePolicy::default(), None, 10).await.unwrap();
            Seen::Changed(put.expect("there is room").record.updated_at)
        } else {
            Seen::Absent
        };
        let mut session = test.pool.acquire().await.unwrap();
        session.execute("BEGIN").await.unwrap();
        session.execute("SELECT duetime.await_claims()").await.unwrap();
        session.execute(other).await.unwrap();
        let (database, policy) = (test.database.clone(), policy.clone());
        let late = spawn_child(async move { database.queue_put_seen(&name("a"), &policy, None, 10, Some(seen)).await });
        until_waiting(&test.pool, 1).await;
        session.execute("COMMIT").await.unwrap();
        assert!(late.await.unwrap().unwrap().is_none(), "{other}");
        let kept = test.database.queue_find(&name("a")).await.unwrap();
        assert!(kept.is_none_or(|kept| kept.queue.policy.max_attempts != 3), "{other}");
    }
    let seen = test.database.queue_find(&name("a")).await.unwrap().map(|record| Seen::Changed(record.updated_at));
    let put = test.database.queue_put_seen(&name("a"), &policy, None, 10, seen).await.unwrap().expect("as it was seen");
    assert!(!put.created && put.record.queue.policy.max_attempts == 3);
    let put = test.database.queue_put_seen(&name("b"), &policy, None, 10, Some(Seen::Absent)).await.unwrap();
    assert!(put.expect("as it was seen").created);
}

#[tokio::test]
async fn one_queue_is_read_alone_with_its_times() {
    let test = fixture::database().await;
    test.database.queue_add(&[name("a"), name("b")], &QueuePolicy::default(), None).await.unwrap();
    let record = test.database.queue_find(&name("b")).await.unwrap().expect("it is there");
    assert_eq!((record.queue.name.as_str(), record.created_at <= record.updated_at), ("b", true));
    assert!(test.database.queue_find(&name("c")).await.unwrap().is_none());
}

#[tokio::test]
async fn tasks_are_counted_by_state_and_finished_ones_are_not() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 5).await;
    claim(&test, &ids[..2], &fences).await;
    let keep = crate::store::change::Keep { default_ms: 1_000, others: std::sync::Arc::default() };
    test.database.task_cancel(ids[4], &keep).await.unwrap();
    let counts = test.database.queue_counts(&[name("orders"), name("nobody's")]).await.unwrap();
    assert_eq!(counts[&name("orders")], Counts { scheduled: 2, dispatching: 2, ..Counts::default() });
    assert_eq!(counts[&name("nobody's")], Counts::default());
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

/// Makes each task that is counted take 20 ms, as on a slow disk.
const SLOW_TASKS: &str = "
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
SELECT gen_random_uuid(), 0, 'long', 'scheduled', now(), now(), '', 'text/plain' FROM generate_series(1, 1000);
ALTER TABLE duetime.task RENAME TO quick_task;
CREATE FUNCTION duetime.slowly(state duetime.task_state) RETURNS duetime.task_state LANGUAGE plpgsql STABLE AS
    $$BEGIN PERFORM pg_sleep(0.02); RETURN state; END$$;
CREATE VIEW duetime.task AS SELECT id, shard, queue, due_at, duetime.slowly(state) AS state FROM duetime.quick_task";

#[tokio::test]
async fn a_count_that_runs_out_of_time_counts_fewer() {
    let test = fixture::database().await;
    sqlx::raw_sql(SLOW_TASKS).execute(&test.pool).await.unwrap();
    // Of each of so many queues 300 tasks are counted.
    let names: Vec<QueueName> = (1..1_000).map(|n| name(&format!("q{n}"))).chain([name("long")]).collect();
    let counts = test.database.queue_counts(&names).await.unwrap();
    assert_eq!(counts[&name("long")], Counts { scheduled: 30, at_least: true, ..Counts::default() });
}

#[tokio::test]
async fn what_changed_after_a_revision_is_read_and_nothing_else() {
    let test = fixture::database().await;
    let database = &test.database;
    let many: Vec<QueueName> = (0..1_000).map(|n| name(&format!("q{n}"))).collect();
    database.queue_add(&many, &QueuePolicy::default(), None).await.unwrap();
    let (start, queues) = database.queue_read().await.unwrap();
    let unchanged = database.queue_changes(start).await.unwrap();
    assert_eq!((unchanged.revision, unchanged.changes.map(|changes| changes.len())), (start, Some(0)));
    let before = QueueBook::new(start, queues);
    database.queue_add(&[name("new"), name("q1")], &QueuePolicy::default(), None).await.unwrap();
    database.queue_pause(&name("q2"), true).await.unwrap();
    database
        .queue_put(&name("q3"), &QueuePolicy { max_attempts: 3, ..QueuePolicy::default() }, None, 9_999)
        .await
        .unwrap();
    for gone in ["q4", "q5"] {
        assert!(database.queue_delete(&name(gone)).await.unwrap().is_some());
    }
    database.queue_add(&[name("q5")], &QueuePolicy::default(), None).await.unwrap();
    let read = database.queue_changes(start).await.unwrap();
    let changes = read.changes.expect("they are remembered");
    assert_eq!(changes.len(), 6, "new, q2, q3, q4 gone, q5 gone and made again: {changes:?}");
    let (revision, queues) = database.queue_read().await.unwrap();
    let (after, anew) = (before.with(read.revision, changes), QueueBook::new(revision, queues));
    assert_eq!(after.revision(), anew.revision());
    assert_eq!(after.iter().collect::<Vec<_>>(), anew.iter().collect::<Vec<_>>());
    // For a revision from the future (the database was set back) or from too long ago,
    // the node has to read all queues.
    assert_eq!(database.queue_changes(revision + 1).await.unwrap().changes, None);
    sqlx::query("UPDATE duetime.meta SET queue_revision = queue_revision + 20000").execute(&test.pool).await.unwrap();
    assert_eq!(database.queue_changes(start).await.unwrap().changes, None);
}

#[tokio::test]
async fn turns_of_queues_that_are_long_gone_are_forgotten_in_every_database() {
    let (home, other) = (fixture::database().await, fixture::database().await);
    for queue in ["gone", "kept", "last"] {
        home.database.queue_put(&name(queue), &QueuePolicy::default(), None, 10).await.unwrap().expect("there is room");
    }
    let turns = async |test: &fixture::TestDatabase| -> Vec<String> {
        let read = sqlx::query_scalar("SELECT queue FROM duetime.queue_turn ORDER BY queue");
        read.fetch_all(&test.pool).await.unwrap()
    };
    assert!(home.database.queue_delete(&name("gone")).await.unwrap().is_some());
    assert_eq!(turns(&home).await, ["gone", "kept", "last"], "nodes may not know of the deletion yet");
    sqlx::query("UPDATE duetime.meta SET queue_revision = queue_revision + 20000").execute(&home.pool).await.unwrap();
    assert!(home.database.queue_delete(&name("last")).await.unwrap().is_some());
    assert_eq!(turns(&home).await, ["kept", "last"]);

    other.database.queue_add(&[name("kept")], &QueuePolicy::default(), None).await.unwrap();
    for (queue, revision) in [("gone", 1), ("kept", 2), ("last", 20_000)] {
        let turn = QueueRevisions { revision, ..QueueRevisions::default() };
        other.database.queue_turn(&name(queue), turn).await.unwrap();
    }
    assert_eq!(turns(&other).await, ["kept", "last"]);
}

/// Without glances, each node looks for changes several times a second.
#[tokio::test]
async fn a_look_that_finds_no_change_reads_few_pages_however_many_queues_there_are() {
    let test = fixture::database().await;
    sqlx::raw_sql(
        "INSERT INTO duetime.queue (name, policy) SELECT 'q' || n, '{}' FROM generate_series(1, 10000) AS n;
         INSERT INTO duetime.queue_gone (name, revision) SELECT 'gone' || n, n FROM generate_series(1, 10000) AS n;
         UPDATE duetime.meta SET queue_revision = 10000",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    let look = include_str!("../queries/queue_changes.sql");
    let read = super::explain::pages(&mut connection, look, "bigint, bigint", "10000, 10000").await;
    assert!(read < 30, "{read} pages");
}

#[tokio::test]
async fn a_queue_whose_policy_cannot_be_read_counts_as_paused_and_hides_no_other() {
    let test = fixture::database().await;
    let database = &test.database;
    let policy = QueuePolicy { max_attempts: 3, max_running: Some(4), ..QueuePolicy::default() };
    for queue in ["a", "b"] {
        database.queue_put(&name(queue), &policy, None, 10).await.unwrap().expect("there is room");
    }
    let (start, _) = database.queue_read().await.unwrap();
    database.queue_pause(&name("b"), false).await.unwrap().expect("it is there");
    let write = async |policy: &str| {
        let write = "UPDATE duetime.queue SET policy = policy || $1::jsonb, revision = $2 WHERE name = 'a'";
        sqlx::query(write).bind(policy).bind(start + 1).execute(&test.pool).await.unwrap();
    };
    write(r#"{ "max_running": "ten" }"#).await;
    let salvaged = Queue {
        policy: QueuePolicy { max_running: None, ..policy.clone() },
        paused: true,
        unreadable: vec!["max_running".to_owned()],
        ..Queue::with_defaults(name("a"))
    };
    let readable = Queue { policy, ..Queue::with_defaults(name("b")) };
    let (_, mut queues) = database.queue_read().await.unwrap();
    queues.sort_by(|one, other| one.name.cmp(&other.name));
    assert_eq!(queues, [salvaged.clone(), readable.clone()]);
    let changes = database.queue_changes(start).await.unwrap().changes.expect("they are remembered");
    let stored = |queue: &Queue| QueueChange::Stored(queue.clone().into());
    assert!(changes.len() == 2 && changes.contains(&stored(&salvaged)) && changes.contains(&stored(&readable)));
    let shown = database.queue_find(&name("a")).await.unwrap().expect("it is there");
    assert_eq!(shown.queue, salvaged);
    // Tasks would go to shards where no look-up by key finds them.
    write(r#"{ "placement": "on_the_moon" }"#).await;
    assert!(database.queue_read().await.is_err());
}

/// A statement that pauses a queue as a node does. It also raises the revision, whose row lock makes writers wait
/// for one another. So a slow writer never ends up behind a revision that a node has already read.
fn pause(queue: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!(
        "WITH turned AS (UPDATE duetime.queue SET paused = true WHERE name = '{queue}' RETURNING name)
         UPDATE duetime.meta SET queue_revision = queue_revision + 1 WHERE EXISTS (SELECT FROM turned)"
    ))
}

#[tokio::test]
async fn a_change_that_commits_late_is_read_all_the_same() {
    let test = fixture::database().await;
    let database = &test.database;
    database.queue_add(&[name("a"), name("b")], &QueuePolicy::default(), None).await.unwrap();
    let mut slow = test.pool.acquire().await.unwrap();
    slow.execute("BEGIN").await.unwrap();
    slow.execute(pause("a")).await.unwrap();
    let mut late = test.pool.acquire().await.unwrap();
    let waiting = spawn_child(async move {
        late.execute("BEGIN").await.unwrap();
        late.execute(pause("b")).await.unwrap();
        late
    });
    test.until_waiting(1).await;
    let (before, _) = database.queue_read().await.unwrap();
    slow.execute("COMMIT").await.unwrap();
    let mut late = waiting.await.unwrap();
    // A node that reads now must not miss the change that is about to be committed.
    let (between, _) = database.queue_read().await.unwrap();
    late.execute("COMMIT").await.unwrap();
    for (known, changes) in [(before, 2), (between, 1)] {
        let read = database.queue_changes(known).await.unwrap();
        assert_eq!((read.revision, read.changes.expect("they are remembered").len()), (before + 2, changes));
    }
}

#[tokio::test]
async fn pages_of_queues_hold_each_once_in_the_order_of_their_bytes() {
    let test = fixture::database().await;
    let mut names: Vec<QueueName> =
        ["b", "B", "a.b", "a-b", "a_b", "ab", "A", "Z9", "z", "0"].into_iter().map(name).collect();
    test.database.queue_add(&names, &QueuePolicy::default(), None).await.unwrap();
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = test.database.queue_page(&after, 3, None).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.queue.name.to_string();
        seen.extend(page.into_iter().map(|record| record.queue.name));
    }
    names.sort();
    assert_eq!(seen, names);
    let some = ["a*".to_owned(), "Z9".to_owned(), "nowhere".to_owned()];
    let page = test.database.queue_page("Z", 4, Some(&some)).await.unwrap();
    let page: Vec<&str> = page.iter().map(|record| record.queue.name.as_str()).collect();
    assert_eq!(page, ["Z9", "a-b", "a.b", "a_b"]);
}
