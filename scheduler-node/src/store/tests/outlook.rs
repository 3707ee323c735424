//! Upcoming and dead tasks: the counts are right, and bounded.

use std::time::Duration;

use common::time::UnixMicros;
use sqlx::{AssertSqlSafe, Executor};

use super::{
    fixture,
    list_plans::{FILL, Plan},
};
use crate::store::outlook::{DEAD_GROUPS, DEAD_LOOK, SPAN_LOOK, Span};

const HOUR: Duration = Duration::from_secs(3_600);

async fn scheduled(test: &fixture::TestDatabase, start: UnixMicros, after: &str, state: &str, rows: i64) {
    let attempt = i32::from(state == "delivered");
    let fill = format!(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, attempt, claim_epoch)
         SELECT gen_random_uuid(), g % 128, 'q', '{state}', due, due, '{{}}', 'application/json', {attempt}, 1
           FROM generate_series(1, {rows}) AS g, LATERAL (SELECT '{start}'::timestamptz + interval '{after}' AS due) AS moment"
    );
    test.pool.execute(AssertSqlSafe(fill)).await.unwrap();
}

#[tokio::test]
async fn spans_count_what_comes_due_in_them_and_nothing_else() {
    let test = fixture::database().await;
    let start = UnixMicros::new(1_900_000_000_000_000);
    for (after, state, rows) in [
        ("-1 s", "scheduled", 1),
        ("0 s", "scheduled", 2),
        ("3599.999999 s", "scheduled", 3),
        ("1 h", "scheduled", 4),
        ("1 h", "delivered", 5),
        ("2 h", "ready", 6),
        ("2 h 30 min", "scheduled", SPAN_LOOK + 50),
        ("3 h", "scheduled", 7),
    ] {
        scheduled(&test, start, after, state, rows).await;
    }
    let spans = test.database.task_outlook(start, HOUR, 3).await.unwrap();
    let exact = |tasks| Span { tasks, at_least: false };
    assert_eq!(spans, [exact(5), exact(4), Span { tasks: SPAN_LOOK, at_least: true }]);
}

#[tokio::test]
async fn looking_ahead_and_at_the_dead_costs_the_same_however_many_there_are() {
    let test = fixture::database().await;
    let start = UnixMicros::new(1_900_000_000_000_000);
    // 200,000 tasks in one day, most of them in its first hours.
    let fill = format!(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
         SELECT gen_random_uuid(), g % 128, 'q', 'scheduled', due, due, '{{}}', 'application/json'
           FROM generate_series(1, 200000) AS g, LATERAL (SELECT '{start}'::timestamptz + random() * random() * interval '1 day' AS due) AS moment"
    );
    test.pool.execute(AssertSqlSafe(fill)).await.unwrap();
    test.pool.execute(FILL).await.unwrap();
    test.pool.execute("UPDATE duetime.archive SET state = 'dead' WHERE state = 'succeeded'").await.unwrap();
    test.pool.execute("ANALYZE duetime.archive").await.unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    for mode in ["force_custom_plan", "force_generic_plan"] {
        let sql = include_str!("../queries/task_outlook.sql");
        let values = format!("'{start}', '1 h', 24, {SPAN_LOOK}, '{{}}'");
        let plan = Plan::of(&mut connection, mode, sql, "timestamptz, interval, int, bigint, int[]", &values).await;
        assert!(plan.rows_touched() <= 24 * u64::try_from(SPAN_LOOK).unwrap(), "{mode}: {plan:?}");
        let sql = include_str!("../queries/dead_groups.sql");
        for queues in ["NULL", "'{big,q1,q10}'", "'{q7}'"] {
            let values = format!("{DEAD_LOOK}, 201, 1000, '{{}}', {queues}");
            let plan = Plan::of(&mut connection, mode, sql, "bigint, bigint, int, int[], text[]", &values).await;
            // The hop from queue to queue touches a few rows of each queue as well.
            assert!(plan.rows_touched() <= u64::try_from(DEAD_LOOK).unwrap() + 1_000, "{mode} {queues}: {plan:?}");
        }
    }
}

#[tokio::test]
async fn the_dead_are_grouped_by_queue_and_error() {
    let test = fixture::database().await;
    let fill = "INSERT INTO duetime.archive
                       (id, shard, queue, state, wake_at, due_at, payload, content_type, finished_at, status_msg, history, drop_on)
                SELECT gen_random_uuid(), 1, queue, state::duetime.task_state, now(), now(), '{}', 'application/json', now(), message,
                       history::jsonb, (now() AT TIME ZONE 'UTC')::date + 1
                  FROM (VALUES ('a', 'dead', 'x', NULL), ('a', 'dead', NULL, '[{\"error\":\"w\"},{\"error\":\"x\"}]'),
                               ('a', 'dead', repeat('y', 300), NULL), ('b', 'dead', NULL, NULL), ('b', 'cancelled', 'x', NULL),
                               ('c', 'succeeded', 'x', NULL)) AS row (queue, state, message, history)";
    test.pool.execute(fill).await.unwrap();
    let dead = test.database.dead_groups(None).await.unwrap();
    assert!(!dead.at_least && !dead.cut);
    let mut groups: Vec<_> =
        dead.groups.iter().map(|group| (group.queue.as_str(), group.error.as_str(), group.tasks)).collect();
    assert_eq!(groups[0], ("a", "x", 2), "the largest first");
    groups.sort_unstable();
    assert_eq!(groups, [("a", "x", 2), ("a", &"y".repeat(200), 1), ("b", "", 1)]);
}

/// Adds `rows` finished tasks of one queue, with `errors` different error texts.
pub(crate) async fn finished(
    test: &fixture::TestDatabase,
    queue: &str,
    state: &str,
    due: &str,
    rows: i64,
    errors: usize,
) {
    let fill = format!(
        "INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, finished_at, status_msg, drop_on)
         SELECT gen_random_uuid(), g % 128, '{queue}', '{state}', due, due, '', 'x', now(), 'error ' || g % {errors},
                (now() AT TIME ZONE 'UTC')::date + 1
           FROM generate_series(1, {rows}) AS g, LATERAL (SELECT now() + interval '{due}' AS due) AS moment"
    );
    test.pool.execute(AssertSqlSafe(fill)).await.unwrap();
}

#[tokio::test]
async fn the_dead_of_some_queues_are_found_behind_those_of_many_others() {
    let test = fixture::database().await;
    finished(&test, "a", "dead", "-1 h", 400, DEAD_GROUPS).await;
    finished(&test, "b.c", "dead", "-1 h", 2, 1).await;
    // A queue without dead tasks takes no share of the look.
    let queues: Vec<String> = (0..DEAD_LOOK).map(|nth| format!("none{nth}")).chain(["b.c".to_owned()]).collect();
    for queues in [&queues, &queues[queues.len() - 1..]] {
        let dead = test.database.dead_groups(Some(queues)).await.unwrap();
        let groups: Vec<_> = dead.groups.iter().map(|group| (group.queue.as_str(), group.tasks)).collect();
        assert_eq!((groups, dead.at_least, dead.cut), (vec![("b.c", 2)], false, false));
    }
    let none = test.database.dead_groups(Some(&["b".to_owned()])).await.unwrap();
    assert!(none.groups.is_empty() && !none.at_least, "{none:?}");
    let all = test.database.dead_groups(None).await.unwrap();
    assert_eq!((all.groups.len(), all.at_least, all.cut), (DEAD_GROUPS, false, true));
}

#[tokio::test]
async fn dead_tasks_behind_too_many_cancelled_ones_are_not_denied() {
    let test = fixture::database().await;
    finished(&test, "a", "dead", "-1 day", 1, 1).await;
    let dead = test.database.dead_groups(None).await.unwrap();
    assert_eq!((dead.groups.len(), dead.at_least), (1, false));
    finished(&test, "a", "cancelled", "1 day", DEAD_LOOK + 1, 1).await;
    let dead = test.database.dead_groups(None).await.unwrap();
    assert_eq!((dead.groups.len(), dead.at_least), (0, true));
}

#[tokio::test]
async fn dead_tasks_whose_histories_are_slow_to_read_are_counted_as_far_as_the_time_allows() {
    let test = fixture::database().await;
    sqlx::raw_sql(super::list::LONG_AND_BARE).execute(&test.pool).await.unwrap();
    sqlx::raw_sql(super::bulk::SLOW_HISTORIES).execute(&test.pool).await.unwrap();
    let dead = test.database.dead_groups(None).await.unwrap();
    assert!(dead.at_least && (50..DEAD_LOOK).contains(&dead.groups[0].tasks), "{dead:?}");
}
