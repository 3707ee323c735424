//! What the looks at tasks that wait for room cost: few rows, however many wait, and few entries of tasks that were
//! started while an old transaction keeps them.

use common::ids::QueueName;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use super::{explain, fixture, own};

/// 200,000 tasks of one partition key and ten of each of twenty others, on one shard. In one of those lanes, 20,000
/// earlier tasks wait for others. Another 100,000 tasks belong to other queues.
const BACKLOG: &str = "
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, priority, payload, content_type, partition_key)
SELECT gen_random_uuid(), 0, 'orders', 'ready', due, due, 3, '{}', 'application/json', CASE WHEN g > 200 THEN 'big' ELSE 'small-' || g % 20 END
  FROM generate_series(1, 200200) AS g, LATERAL (SELECT now() - g * interval '1 ms' AS due) AS moment;
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, partition_key)
SELECT gen_random_uuid(), 0, 'orders', 'waiting', due, due, '{}', 'application/json', 'small-1'
  FROM generate_series(1, 20000) AS g, LATERAL (SELECT now() - interval '1 hour' - g * interval '1 ms' AS due) AS moment;
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, partition_key)
SELECT gen_random_uuid(), g % 128, 'q' || g % 50, 'scheduled', due, due, '{}', 'application/json', CASE WHEN g % 2 = 0 THEN 'k' || g % 1000 END
  FROM generate_series(1, 100000) AS g, LATERAL (SELECT now() + g * interval '10 ms' AS due) AS moment;
ANALYZE duetime.task;
";

/// The number of task rows that an executed plan examined, kept or not.
fn touched(plan: &Value) -> f64 {
    let number = |name: &str| plan[name].as_f64().unwrap_or(0.0);
    let own = if plan["Relation Name"].as_str() == Some("task") {
        (number("Actual Rows") + number("Rows Removed by Filter") + number("Rows Removed by Index Recheck"))
            * number("Actual Loops")
    } else {
        0.0
    };
    own + plan["Plans"].as_array().into_iter().flatten().map(touched).sum::<f64>()
}

const PICK: (&str, &str) = (
    include_str!("../queries/task_pick.sql"),
    "text, int[], bigint[], interval, smallint[], int[], int[], text[], int, boolean, boolean, bigint, uuid[], uuid[], timestamptz, interval, timestamptz",
);
const COUNTING: (&str, &str) = (include_str!("../queries/lane_read.sql"), "text, int[], bigint, bigint, timestamptz");
const OLDEST: (&str, &str) = (include_str!("../queries/ready_oldest.sql"), "text, timestamptz, interval");

#[tokio::test]
async fn a_pick_touches_as_few_rows_as_it_takes_however_many_wait() {
    let test = fixture::database().await;
    own(&test, "a").await;
    test.pool.execute(BACKLOG).await.unwrap();
    let mut connection = fixture::planned(&test.pool).await;
    for (name, (statement, types)) in [("pick", PICK), ("counting", COUNTING)] {
        connection.execute(AssertSqlSafe(format!("PREPARE {name} ({types}) AS {statement}"))).await.unwrap();
    }
    for (call, most) in [
        ("counting ('orders', '{0}', 500, 100, NULL)", 600.0),
        ("counting ('orders', '{0,1,2,3,4,5,6,7,8,9}', 500, 100, NULL)", 620.0),
        (
            "pick ('orders', '{0}', '{1}', '45 s', '{3}', '{10}', '{1}', '{}', 1000, false, true, 0, '{}', NULL, 'infinity', '100 ms', NULL)",
            200.0,
        ),
        (
            "pick ('orders', '{0}', '{1}', '45 s', '{3}', '{500}', '{1}', '{}', 1000, false, true, 0, '{}', NULL, 'infinity', '100 ms', NULL)",
            3_000.0,
        ),
        (
            "pick ('orders', '{0}', '{1}', '45 s', '{3}', '{500}', '{1}', '{}', 1000, true, true, 0, '{}', NULL, 'infinity', '100 ms', NULL)",
            3_000.0,
        ),
    ] {
        let call = call.replace("'{}', 1000", "ARRAY[''], 1000");
        let explain = format!("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE {call}");
        let plan: Value = connection.fetch_one(AssertSqlSafe(explain)).await.unwrap().get(0);
        let touched = touched(&plan[0]["Plan"]);
        assert!(touched <= most, "{touched} rows for {call}: {plan:#}");
    }
    let taken: Vec<(String, i64)> = sqlx::query_as(
        "SELECT CASE WHEN partition_key = 'big' THEN 'big' ELSE 'small' END AS who, count(*) FROM duetime.task WHERE attempt > 0 GROUP BY 1 ORDER BY 1",
    )
    .fetch_all(&test.pool)
    .await
    .unwrap();
    assert!(taken.iter().any(|(who, tasks)| who == "small" && *tasks >= 200), "{taken:?}");
}

/// 100,000 tasks of one queue that are about to be started, half of them without a key, and one behind each half. As
/// many are due in a day.
const STARTED: &str = "
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, priority, payload, content_type, partition_key)
SELECT gen_random_uuid(), 0, 'orders', 'ready', due, due, 3, '{}', 'application/json', CASE WHEN g % 2 = 0 THEN 'k' || g % 100 END
  FROM generate_series(1, 100002) AS g, LATERAL (SELECT now() - interval '1 h' + g * interval '1 ms' AS due) AS moment;
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
SELECT gen_random_uuid(), 0, 'orders', 'scheduled', due, due, '{}', 'application/json'
  FROM generate_series(1, 100000) AS g, LATERAL (SELECT now() + interval '1 d' + g * interval '1 ms' AS due) AS moment;
ANALYZE duetime.task;
";

/// An old transaction keeps the entries of tasks that were started since, and no vacuum removes them.
#[tokio::test]
async fn a_look_with_a_floor_passes_no_tasks_that_were_started_while_an_old_transaction_is_open() {
    let test = fixture::database().await;
    own(&test, "a").await;
    test.pool.execute(STARTED).await.unwrap();
    let mut old = test.pool.acquire().await.unwrap();
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM duetime.task LIMIT 1").await.unwrap();
    let started = "DELETE FROM duetime.task WHERE due_at < (SELECT max(due_at) - interval '1500 us' FROM duetime.task WHERE state = 'ready')";
    test.pool.execute(started).await.unwrap();
    let floor = test.database.ready_oldest(&QueueName::new("orders"), None).await.unwrap();

    let mut connection = test.pool.acquire().await.unwrap();
    for (from, bound) in [(None, u64::MAX), (Some(floor), 2_000)] {
        let from = from.map_or_else(|| "NULL".to_owned(), |floor| format!("'{floor}'"));
        let counting = format!("'orders', '{{0,1,2,3}}', 500, 100, {from}");
        let pick = format!(
            "'orders', '{{0}}', '{{1}}', '45 s', '{{3}}', '{{10}}', '{{1}}', ARRAY[''], 1000, false, true, 0, '{{}}', NULL, 'infinity', '100 ms', {from}"
        );
        let oldest = format!("'orders', {from}, '10 s'");
        let counted = pages(&mut connection, COUNTING, &counting).await;
        assert!(from != "NULL" || counted > 50_000, "without a floor each entry costs a page: {counted}");
        assert!(counted <= bound, "{counted} pages for the counts");
        for (look, values) in [(PICK, pick), (OLDEST, oldest)] {
            let read = pages(&mut connection, look, &values).await;
            assert!(read <= bound, "{read} pages for {values}");
        }
        let undo =
            "UPDATE duetime.task SET state = 'ready', in_order = NULL WHERE queue = 'orders' AND state <> 'scheduled'";
        connection.execute(undo).await.unwrap();
    }
    test.pool.execute("DELETE FROM duetime.task WHERE state = 'ready'").await.unwrap();
    // Entries of what was started may be passed, but not the 2,700 pages of the tasks of the next days.
    let read = pages(&mut connection, OLDEST, &format!("'orders', '{floor}', '10 s'")).await;
    assert!(read < 2_000, "it reads no task of the next days: {read} pages");
    old.execute("COMMIT").await.unwrap();
}

async fn pages(connection: &mut PgConnection, (statement, types): (&str, &str), values: &str) -> u64 {
    explain::pages(connection, statement, types, values).await
}
