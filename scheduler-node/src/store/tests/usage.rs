//! Counting tasks and bytes towards a limit, slice by slice. The count of tasks reads an index alone.

use std::time::Duration;

use common::{ids::QueueName, limit::Usage, task::Content, time::UnixMicros};
use sqlx::{AssertSqlSafe, Executor, Row};

use super::{
    changed,
    explain::{pages, plan},
    fixture, new_task,
};
use crate::store::{Database, submit::Sending, usage::UsageWalk};

fn queues<const N: usize>(names: [&str; N]) -> Vec<QueueName> {
    names.map(QueueName::new).into()
}

/// Walks in slices of this many `rows`. Returns the usage and the number of slices.
async fn walked(database: &Database, queues: &[QueueName], rows: i64) -> (Usage, usize) {
    let (mut walk, mut slices) = (UsageWalk::new(queues, true), 0);
    while !walk.is_over() {
        database.queue_usage_slice(&mut walk, rows).await.unwrap();
        slices += 1;
    }
    (walk.usage, slices)
}

#[tokio::test]
async fn a_walk_counts_each_task_of_its_queues_once_however_it_is_sliced() {
    let test = fixture::database().await;
    // The tasks have three due times, so that slices end between tasks of one due time.
    let fill = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
                SELECT gen_random_uuid(), 0, 'q' || g % 3, 'scheduled', now(), now() + g % 3 * interval '1 s', 'abcd', 'text/plain'
                  FROM generate_series(1, 300) AS g";
    test.pool.execute(fill).await.unwrap();
    for rows in [1, 7, 50, 100, 1_000] {
        let (usage, slices) = walked(&test.database, &queues(["q0", "none", "q2"]), rows).await;
        assert_eq!(usage, Usage { tasks: 200, bytes: 800 }, "{rows}");
        assert!(slices <= 1 + 200 / usize::try_from(rows).unwrap(), "{slices} of {rows}");
    }
    let many: Vec<QueueName> = (0..2_500).map(|n| QueueName::new(format!("n{n}"))).chain(queues(["q1"])).collect();
    assert_eq!(walked(&test.database, &many, 1_000).await, (Usage { tasks: 100, bytes: 400 }, 3));
    let (names, mut tasks) = (queues(["q0", "q1"]), 0);
    let mut walk = UsageWalk::new(&names, false);
    while !walk.is_over() {
        test.database.queue_usage_slice(&mut walk, 30).await.unwrap();
        assert!(walk.usage.tasks - tasks <= 30);
        tasks = walk.usage.tasks;
    }
    assert_eq!(walk.usage, Usage { tasks: 200, bytes: 0 });
}

#[tokio::test]
async fn a_task_is_as_large_in_the_database_as_a_node_expects() {
    let test = fixture::database().await;
    for headers in [vec![], vec![("tenant", "blue")], vec![("a", "b"), ("c", "d e"), ("longer", "")]] {
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let content = Content { payload: vec![b'x'; 1_000], content_type: "text/plain".into(), headers };
        let queue = QueueName::new(format!("q{}", content.headers.len()));
        let expected = content.usage();
        let task = changed(new_task(fixture::fresh_id()), |task| (task.queue, task.content) = (queue.clone(), content));
        test.database.task_submit(&[task], Sending::First).await.unwrap();
        assert_eq!(walked(&test.database, &[queue], 10).await.0, expected);
    }
    let changed = "UPDATE duetime.task SET payload = 'abc', headers = NULL WHERE queue = 'q1'";
    test.pool.execute(changed).await.unwrap();
    assert_eq!(walked(&test.database, &queues(["q1"]), 10).await.0, Usage { tasks: 1, bytes: 3 });
}

const TYPES: &str = "text[], timestamptz, uuid, bigint, int[], timestamptz";

/// Vacuums the tasks until the index alone answers for each page. While autovacuum analyses the database, its snapshot
/// keeps pages from that.
async fn until_all_visible(test: &fixture::TestDatabase) {
    let is_visible = "SELECT relallvisible >= relpages FROM pg_class WHERE oid = 'duetime.task'::regclass";
    let vacuum = async {
        loop {
            test.pool.execute("VACUUM ANALYZE duetime.task").await.unwrap();
            if sqlx::query_scalar(is_visible).fetch_one(&test.pool).await.unwrap() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), vacuum).await.expect("all pages become visible");
}

#[tokio::test]
async fn a_slice_reads_no_more_than_its_rows_and_sorts_nothing() {
    let test = fixture::database().await;
    let fill = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
                SELECT gen_random_uuid(), 0, 'q' || g % 4, 'scheduled', now(), now() + g * interval '1 ms', '{}', 'x'
                  FROM generate_series(1, 100000) AS g";
    test.pool.execute(fill).await.unwrap();
    until_all_visible(&test).await;
    let mut connection = fixture::planned(&test.pool).await;
    let values =
        "ARRAY['q0', 'q1', 'q2'], '-infinity', '00000000-0000-0000-0000-000000000000', 20000, '{}', '-infinity'";
    for (sql, scan, most) in [
        (include_str!("../queries/queue_usage.sql"), "Index Only Scan using task_queue_due", 600),
        (include_str!("../queries/queue_usage_bytes.sql"), "Index Scan using task_queue_due", 25_000),
    ] {
        let text = plan(&mut connection, sql, TYPES, values).await;
        assert!(text.contains(scan), "{text}");
        assert!(!text.contains("Sort") && !text.contains("Seq Scan"), "{text}");

        // However many tasks there are, a slice examines no more than its rows.
        connection.execute(AssertSqlSafe(format!("PREPARE slice ({TYPES}) AS {sql}"))).await.unwrap();
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE slice ({values})");
        let row = connection.fetch_one(AssertSqlSafe(explain)).await.unwrap();
        connection.execute("DEALLOCATE slice").await.unwrap();
        let plan: serde_json::Value = row.get(0);
        let blocks = |kind: &str| plan[0]["Plan"][kind].as_u64().unwrap_or(0);
        let read = blocks("Shared Hit Blocks") + blocks("Shared Read Blocks");
        assert!(read < most, "{read} blocks for 20,000 rows: {plan}");
    }
}

/// The entries of tasks that have ended stay in the index, and no vacuum removes them.
#[tokio::test]
async fn a_walk_that_begins_at_the_oldest_task_passes_none_that_have_ended_while_an_old_transaction_is_open() {
    let test = fixture::database().await;
    let mut old = test.pool.acquire().await.unwrap();
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM duetime.meta").await.unwrap();
    for sql in [
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
         SELECT gen_random_uuid(), 0, 'q' || g % 2, 'scheduled', due, due, '', 'x'
           FROM generate_series(1, 100000) AS g, LATERAL (SELECT date_trunc('day', now()) - (100000 - g) * interval '1 s' AS due) AS moment",
        "DELETE FROM duetime.task WHERE due_at < date_trunc('day', now()) - interval '1 s'",
    ] {
        test.pool.execute(sql).await.unwrap();
    }
    let names = queues(["q0", "q1"]);
    let mut whole = UsageWalk::new(&names, false);
    while !whole.is_over() {
        test.database.queue_usage(&mut whole).await.unwrap();
    }
    let oldest = whole.oldest.expect("two are left");
    let mut later = UsageWalk::begin_at(oldest, &names, false);
    test.database.queue_usage(&mut later).await.unwrap();
    assert_eq!((later.usage, later.oldest, later.is_over()), (whole.usage, Some(oldest), true));
    assert_eq!(later.usage.tasks, 2);

    let mut connection = test.pool.acquire().await.unwrap();
    for sql in [include_str!("../queries/queue_usage.sql"), include_str!("../queries/queue_usage_bytes.sql")] {
        let mut read = Vec::new();
        for from in [UnixMicros::new(0), oldest] {
            let nobody = uuid::Uuid::nil();
            let values = format!("ARRAY['q0', 'q1'], '{from}', '{nobody}', 4000, '{{}}', '{from}'");
            read.push(pages(&mut connection, sql, TYPES, &values).await);
        }
        assert!(read[0] > 1_000 && read[1] < 50, "{read:?} pages");
    }
    old.execute("COMMIT").await.unwrap();
}
