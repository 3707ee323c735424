//! The plans of the hot statements, on large tables, with small and large batches. The tests use the generic plan,
//! which a prepared statement ends up with: the plan of the claim decides everything.

use common::ids::ShardId;
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use super::{fixture, list_plans::Plan};
use crate::store::{
    bulk::CANCEL_NEW as BULK_CANCEL_NEW, change::CANCEL_NEW, move_rows, settle::FINISH_NEW,
    shared_change::CANCEL_NEW as SHARED_CANCEL_NEW, submit::SUBMIT_NEW,
};

const ROWS: i64 = 200_000;

async fn filled() -> fixture::TestDatabase {
    let test = fixture::database().await;
    let fill = format!(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, attempt, claim_epoch)
         SELECT gen_random_uuid(), g % 128, 'q' || g % 50,
                (CASE WHEN g % 10 = 0 THEN 'ready' WHEN g % 10 = 1 THEN 'dispatching' ELSE 'scheduled' END)::duetime.task_state,
                now() + g * interval '10 ms', now() + g * interval '10 ms', '{{}}', 'application/json', 1, 1
           FROM generate_series(1, {ROWS}) AS g"
    );
    test.pool.execute(AssertSqlSafe(fill)).await.unwrap();
    test.pool.execute("ANALYZE duetime.task, duetime.shard").await.unwrap();
    test
}

/// Returns the generic plan of a statement file with these parameter types and values.
pub(super) async fn plan(connection: &mut PgConnection, sql: &str, types: &str, values: &str) -> String {
    connection.execute("SET plan_cache_mode = force_generic_plan").await.unwrap();
    connection.execute(AssertSqlSafe(format!("PREPARE hot ({types}) AS {sql}"))).await.unwrap();
    let rows = connection.fetch_all(AssertSqlSafe(format!("EXPLAIN EXECUTE hot ({values})"))).await.unwrap();
    connection.execute("DEALLOCATE hot").await.unwrap();
    rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n")
}

/// Returns how many pages a statement file reads with a node's settings, and these parameter types and values.
pub(super) async fn pages(connection: &mut PgConnection, sql: &str, types: &str, values: &str) -> u64 {
    fixture::plan_as_a_node(connection).await;
    Plan::of(connection, "force_generic_plan", sql, types, values).await.buffers()
}

fn assert_no_scan_of_all_tasks(plan: &str) {
    assert!(!plan.contains("Seq Scan on task"), "{plan}");
}

async fn ids(connection: &mut PgConnection, n: i64) -> String {
    let ids: Vec<uuid::Uuid> =
        sqlx::query_scalar("SELECT id FROM duetime.task LIMIT $1").bind(n).fetch_all(connection).await.unwrap();
    let list = ids.iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(",");
    format!("ARRAY[{list}]::uuid[]")
}

/// A third of the shards, the share of one of three nodes.
pub(super) fn shards() -> String {
    let list = (0..43).map(|shard| shard.to_string()).collect::<Vec<_>>().join(",");
    format!("ARRAY[{list}]")
}

fn fences() -> String {
    format!("{}, array_fill(1::bigint, ARRAY[43])", shards())
}

#[tokio::test]
async fn claims_rescues_and_settlements_find_their_rows_by_primary_key() {
    let test = filled().await;
    let mut connection = test.pool.acquire().await.unwrap();
    for n in [3, 500] {
        let ids = ids(&mut connection, n).await;
        let attempts = format!("array_fill(1, ARRAY[{n}])");
        let texts = format!("array_fill('x'::text, ARRAY[{n}])");
        let owned = format!("array_fill(7, ARRAY[{n}]), array_fill(1::bigint, ARRAY[{n}])");
        let longs = format!("array_fill(1::bigint, ARRAY[{n}])");
        let cases = [
            (
                include_str!("../queries/task_claim.sql"),
                "uuid[], int[], bigint[], interval, interval, text[], bigint",
                format!("{ids}, {owned}, '15 ms', '45 s', '{{}}', 0"),
            ),
            (
                include_str!("../queries/task_rescue.sql"),
                "uuid[], int[], bigint[], interval",
                format!("{ids}, {owned}, '45 s'"),
            ),
            (
                include_str!("../queries/task_deliver.sql"),
                "uuid[], int[], bigint[], bigint[]",
                format!("{ids}, {attempts}, {longs}, {longs}"),
            ),
            (
                include_str!("../queries/task_finish.sql"),
                "uuid[], int[], text[], text[], bigint[], text[], text[], bigint[], text[], boolean[], smallint[], text[]",
                format!(
                    "{ids}, {attempts}, {texts}, {texts}, {longs}, {texts}, {texts}, {longs}, {texts}, array_fill(false, ARRAY[{n}]), array_fill(9::smallint, ARRAY[{n}]), {texts}"
                ),
            ),
            (
                *FINISH_NEW,
                "uuid[], int[], text[], text[], bigint[], text[], text[], bigint[], text[], boolean[], smallint[], text[]",
                format!(
                    "{ids}, {attempts}, {texts}, {texts}, {longs}, '{{}}', '{{}}', '{{}}', '{{}}', array_fill(false, ARRAY[{n}]), '{{}}', '{{}}'"
                ),
            ),
            (
                include_str!("../queries/task_extend.sql"),
                "uuid[], int[], bigint[], smallint[], text[]",
                format!("{ids}, {attempts}, {longs}, '{{}}', '{{}}'"),
            ),
            (include_str!("../queries/task_prolong.sql"), "uuid[], int[], bigint", format!("{ids}, {attempts}, 60000")),
            (include_str!("../queries/task_standing.sql"), "uuid[]", ids.clone()),
            (include_str!("../queries/task_held.sql"), "uuid[]", ids.clone()),
            (
                include_str!("../queries/bulk_cancel.sql"),
                "uuid[], bigint, text[], bigint[]",
                format!("{ids}, 1, '{{}}', '{{}}'"),
            ),
            (*BULK_CANCEL_NEW, "uuid[], bigint, text[], bigint[]", format!("{ids}, 1, '{{}}', '{{}}'")),
            (CANCEL_SHARED, CANCEL_SHARED_TYPES, format!("{ids}, '{{}}', '{{}}', '{{}}', '{{}}', 1, '{{}}', '{{}}'")),
            (
                CHANGE_SHARED,
                CHANGE_SHARED_TYPES,
                format!("{ids}, '{{}}', '{{}}', '{{}}', '{{}}', array_fill(now(), ARRAY[{n}])"),
            ),
            (include_str!("../queries/bulk_run.sql"), "uuid[]", ids.clone()),
            (include_str!("../queries/bulk_move.sql"), "uuid[], timestamptz, interval", format!("{ids}, NULL, '1 h'")),
            (include_str!("../queries/export_read.sql"), "uuid[]", ids.clone()),
            (
                include_str!("../queries/task_retry.sql"),
                "uuid[], int[], timestamptz[], text[], boolean[], boolean[]",
                format!(
                    "{ids}, {attempts}, array_fill(now(), ARRAY[{n}]), {texts}, array_fill(false, ARRAY[{n}]), array_fill(true, ARRAY[{n}])"
                ),
            ),
        ];
        for (sql, types, values) in cases {
            let plan = plan(&mut connection, sql, types, &values).await;
            assert_no_scan_of_all_tasks(&plan);
            assert!(plan.contains("task_pkey"), "{plan}");
            assert!(!plan.contains("task_wake"), "driven by shard, not by id: {plan}");
        }
    }
}

const CANCEL_SHARED: &str = include_str!("../queries/task_cancel_shared.sql");
const CANCEL_SHARED_TYPES: &str = "uuid[], text[], text[], text[], int[], bigint, text[], bigint[]";
const CHANGE_SHARED: &str = include_str!("../queries/task_change_shared.sql");
const CHANGE_SHARED_TYPES: &str = "uuid[], text[], text[], text[], int[], timestamptz[]";

#[tokio::test]
async fn requests_that_share_a_statement_find_their_tasks_by_id_and_by_key() {
    let test = filled().await;
    let keyed = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key, partition_key)
         SELECT gen_random_uuid(), g % 128, 'q' || g % 3, 'scheduled', now(), now(), '', 'x', 'k' || g, CASE WHEN g % 2 = 0 THEN 'p' || g % 50 END
           FROM generate_series(1, 50000) AS g";
    for fill in [keyed, "ANALYZE duetime.task"] {
        test.pool.execute(fill).await.unwrap();
    }
    let mut connection = fixture::planned(&test.pool).await;
    for n in [3, 64] {
        let by_id = format!("{}, '{{}}', '{{}}', '{{}}'", ids(&mut connection, n).await);
        let all = |name: &str| format!("array_fill('{name}'::text, ARRAY[{n}])");
        let by_key = format!("'{{}}', {}, {}, {}", all("q1"), all("p4"), all("k4"));
        for (sql, types, rest) in [
            (CANCEL_SHARED, CANCEL_SHARED_TYPES, "'{5,6}', 1, '{}', '{}'".to_owned()),
            (CHANGE_SHARED, CHANGE_SHARED_TYPES, format!("'{{5,6}}', array_fill(now(), ARRAY[{n}])")),
        ] {
            for named in [&by_id, &by_key] {
                let plan = plan(&mut connection, sql, types, &format!("{named}, {rest}")).await;
                assert_no_scan_of_all_tasks(&plan);
                assert!(plan.contains("task_pkey") && !plan.contains("task_wake"), "{plan}");
                let look_up = plan.lines().skip_while(|line| !line.contains("task_key_version")).nth(1).expect(&plan);
                for of_index in ["(queue = a.queue)", "(key = a.key)", "(COALESCE(partition_key"] {
                    assert!(look_up.contains("Index Cond") && look_up.contains(of_index), "{plan}");
                }
            }
        }
    }
}

/// Otherwise each row of a claim is compared with each of the names.
#[tokio::test]
async fn a_claim_looks_its_queues_up_in_a_hash_table_of_those_that_are_not_claimed() {
    let test = filled().await;
    let mut connection = fixture::planned(&test.pool).await;
    let types = "uuid[], int[], bigint[], interval, interval, text[], bigint";
    let claim = include_str!("../queries/task_claim.sql");
    connection.execute(AssertSqlSafe(format!("PREPARE claim ({types}) AS {claim}"))).await.unwrap();
    let ids = ids(&mut connection, 500).await;
    let names: Vec<String> = (0..5_000).map(|number| format!("'held-{number}'")).collect();
    let names = format!("ARRAY[{}]", names.join(","));
    let owned = "array_fill(7, ARRAY[500]), array_fill(1::bigint, ARRAY[500])";
    let explain = format!("EXPLAIN (VERBOSE) EXECUTE claim ({ids}, {owned}, '15 ms', '45 s', {names}, 0)");
    let rows = connection.fetch_all(AssertSqlSafe(explain)).await.unwrap();
    let plan = rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n");
    assert!(plan.contains("hashed SubPlan"), "{plan}");
    assert!(!plan.contains("queue = ANY"), "a linear search: {plan}");
}

/// Otherwise each row of a submission is compared with each of the shards, and its payload is copied.
#[tokio::test]
async fn a_submission_looks_its_fences_up_in_a_hash_table_and_reads_its_rows_once() {
    let test = fixture::database().await;
    let mut connection = fixture::planned(&test.pool).await;
    let types = "uuid[], int[], text[], timestamptz[], smallint[], bytea[], text[], text[], text[], int[], bigint[],
                 text[], timestamptz[], text[], bigint[], boolean[], boolean, bigint[], interval, text[], bigint,
                 timestamptz, timestamptz, bigint";
    let values = format!("{}, false, '{{}}', '45 s', '{{}}', 0, NULL, 'infinity', 0", ["'{}'"; 16].join(", "));
    for submit in [include_str!("../queries/task_submit.sql"), *SUBMIT_NEW] {
        connection.execute(AssertSqlSafe(format!("PREPARE submit ({types}) AS {submit}"))).await.unwrap();
        let explain = format!("EXPLAIN (VERBOSE) EXECUTE submit ({values})");
        let rows = connection.fetch_all(AssertSqlSafe(explain)).await.unwrap();
        connection.execute("DEALLOCATE submit").await.unwrap();
        let plan = rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n");
        assert!(plan.contains("hashed SubPlan") && !plan.contains("shard = ANY"), "a linear search: {plan}");
        assert!(!plan.contains("CTE fresh"), "{plan}");
        assert!(plan.contains("shard_pkey"), "{plan}");
    }
}

#[tokio::test]
async fn the_gate_is_driven_by_ids_even_while_the_statistics_say_that_the_table_is_empty() {
    let test = fixture::database().await;
    let mut connection = fixture::planned(&test.pool).await;
    let one = "ARRAY['00000000-0000-0000-0000-000000000000']::uuid[], ARRAY[7], ARRAY[1::bigint]";
    for (sql, types, values) in [
        (
            include_str!("../queries/task_claim.sql"),
            "uuid[], int[], bigint[], interval, interval, text[], bigint",
            format!("{one}, '15 ms', '45 s', '{{}}', 0"),
        ),
        (include_str!("../queries/task_rescue.sql"), "uuid[], int[], bigint[], interval", format!("{one}, '45 s'")),
        (
            include_str!("../queries/task_deliver.sql"),
            "uuid[], int[], bigint[], bigint[]",
            "ARRAY['00000000-0000-0000-0000-000000000000']::uuid[], ARRAY[1], ARRAY[1::bigint], ARRAY[1::bigint]"
                .to_owned(),
        ),
    ] {
        let plan = plan(&mut connection, sql, types, &values).await;
        assert_no_scan_of_all_tasks(&plan);
        assert!(plan.contains("task_pkey") && !plan.contains("task_wake"), "{plan}");
    }
}

#[tokio::test]
async fn reading_ahead_walks_one_index_range_a_shard() {
    let test = filled().await;
    let mut connection = test.pool.acquire().await.unwrap();
    let (shards, fences) = (shards(), fences());
    let cases = [
        (
            include_str!("../queries/task_preload.sql"),
            "int[], timestamptz, timestamptz, bigint",
            format!("{shards}, now(), now() + interval '10 s', 2000"),
        ),
        (
            include_str!("../queries/task_takeover.sql"),
            "int[], bigint[], bigint, interval, interval",
            format!("{fences}, 2000, '45 s', '1 min'"),
        ),
    ];
    for (sql, types, values) in cases {
        let plan = plan(&mut connection, sql, types, &values).await;
        assert_no_scan_of_all_tasks(&plan);
        assert!(plan.contains("task_wake"), "{plan}");
        assert!(!plan.contains("Sort"), "the index is in the order asked for, if any: {plan}");
        // Otherwise the walk passes all that is overdue, or all that is pending.
        let range = plan.lines().find(|line| line.contains("Index Cond:")).expect("a range of the index");
        assert!(range.contains("wake_at >=") && range.contains("wake_at <="), "{plan}");
    }
}

#[tokio::test]
async fn the_queues_that_wait_for_room_are_found_by_hopping() {
    let test = filled().await;
    let mut connection = test.pool.acquire().await.unwrap();
    let plan_of_names = plan(&mut connection, include_str!("../queries/ready_queues.sql"), "int", "1").await;
    assert_no_scan_of_all_tasks(&plan_of_names);
    assert!(plan_of_names.contains("task_ready"), "{plan_of_names}");
}

#[tokio::test]
async fn what_expired_is_found_by_its_own_index() {
    let test = filled().await;
    let mut connection = test.pool.acquire().await.unwrap();
    let shards = shards();
    let plan = plan(
        &mut connection,
        include_str!("../queries/task_expire.sql"),
        EXPIRE_TYPES,
        &expire_values(&shards, "now() - interval '1 h'"),
    )
    .await;
    assert_no_scan_of_all_tasks(&plan);
    assert!(plan.contains("task_expiry"), "{plan}");
    // Otherwise a pass reads the tasks that expire later, too.
    let bound = "Index Cond: ((expires_at >= $8) AND (expires_at <= statement_timestamp()))";
    assert!(plan.contains(bound), "{plan}");
}

const EXPIRE_TYPES: &str = "int[], bigint, bigint, text[], bigint[], uuid[], uuid[], timestamptz";

fn expire_values(shards: &str, from: &str) -> String {
    format!("{shards}, 500, 1, '{{}}', '{{}}', '{{}}', NULL, {from}")
}

#[tokio::test]
async fn a_search_for_expired_tasks_passes_nothing_before_its_bound_however_much_an_open_snapshot_keeps() {
    let test = fixture::database().await;
    let mut old = test.pool.acquire().await.unwrap();
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM duetime.meta").await.unwrap();
    for ended in [
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, expires_at, payload, content_type)
         SELECT gen_random_uuid(), g % 128, 'q', 'scheduled', now(), now(), now() - interval '1 h' + g * interval '1 ms', '', 'x'
           FROM generate_series(1, 100000) AS g",
        "DELETE FROM duetime.task",
    ] {
        test.pool.execute(ended).await.unwrap();
    }
    let mut connection = test.pool.acquire().await.unwrap();
    let shards = shards();
    let cases = [
        (include_str!("../queries/task_expire.sql"), EXPIRE_TYPES, expire_values(&shards, "FROM")),
        (
            include_str!("../queries/task_expired.sql"),
            "int[], bigint, uuid[], timestamptz",
            format!("{shards}, 500, '{{}}', FROM"),
        ),
    ];
    for (sql, types, values) in cases {
        let head = pages(&mut connection, sql, types, &values.replace("FROM", "'-infinity'")).await;
        let later = pages(&mut connection, sql, types, &values.replace("FROM", "now() - interval '10 min'")).await;
        assert!(head > 1_000 && later < 50, "{head} and {later} pages");
    }
    old.execute("COMMIT").await.unwrap();
}

/// Otherwise each task is compared with each queue that has a time of its own.
#[tokio::test]
async fn the_times_to_keep_are_one_map_for_all_tasks_of_a_batch() {
    let test = fixture::database().await;
    let mut connection = fixture::planned(&test.pool).await;
    for (sql, types, values) in [
        (include_str!("../queries/task_expire.sql"), EXPIRE_TYPES, "'{7}', 500, 1, '{a}', '{1}', '{}', NULL, now()"),
        (include_str!("../queries/bulk_cancel.sql"), "uuid[], bigint, text[], bigint[]", "'{}', 1, '{a}', '{1}'"),
        (
            include_str!("../queries/task_cancel.sql"),
            "uuid, bigint, text[], bigint[]",
            "gen_random_uuid(), 1, '{a}', '{1}'",
        ),
        (CANCEL_SHARED, CANCEL_SHARED_TYPES, "'{}', '{}', '{}', '{}', '{}', 1, '{a}', '{1}'"),
        (*SHARED_CANCEL_NEW, CANCEL_SHARED_TYPES, "'{}', '{}', '{}', '{}', '{}', 1, '{a}', '{1}'"),
        (*CANCEL_NEW, "uuid, bigint, text[], bigint[]", "gen_random_uuid(), 1, '{a}', '{1}'"),
    ] {
        let plan = plan(&mut connection, sql, types, values).await;
        assert!(plan.contains("InitPlan") && !plan.contains("SubPlan"), "{plan}");
    }
}

#[tokio::test]
async fn a_task_is_found_by_its_key_in_both_tables() {
    let test = filled().await;
    let mut connection = test.pool.acquire().await.unwrap();
    let plan = plan(
        &mut connection,
        include_str!("../queries/task_find.sql"),
        "text, text, text, int[]",
        "'q1', 'p', 'k', '{}'",
    )
    .await;
    assert_no_scan_of_all_tasks(&plan);
    assert!(plan.contains("task_key_version") && !plan.contains("Seq Scan"), "{plan}");
    // Each index returns the newest task first, so only those few rows are sorted.
    assert!(plan.contains("_queue_key_coalesce_version_created_at_idx"), "{plan}");
}

#[tokio::test]
async fn what_waits_for_a_success_is_found_by_its_partition_or_its_name() {
    let test = filled().await;
    let waiting = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, partition_key, depends_on)
         SELECT gen_random_uuid(), g % 128, 'q', 'waiting', now(), now(), '', 'x', 'p' || g % 50, ARRAY['q k' || g]
           FROM generate_series(1, 20000) AS g";
    test.pool.execute(waiting).await.unwrap();
    test.pool.execute("ANALYZE duetime.task").await.unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    for n in [0, 1, 500] {
        let values = format!(
            "{}, array_fill('q k5'::text, ARRAY[{n}]), array_fill('p5'::text, ARRAY[{n}]), '{{}}', '{}', 500, '{{5}}'",
            ids(&mut connection, n).await,
            uuid::Uuid::nil()
        );
        let plan = plan(
            &mut connection,
            include_str!("../queries/task_release.sql"),
            "uuid[], text[], text[], int[], uuid, bigint, int[]",
            &values,
        )
        .await;
        assert_no_scan_of_all_tasks(&plan);
        assert!(plan.contains("task_depends") && plan.contains("task_waiting"), "{plan}");
    }
}

#[tokio::test]
async fn schedules_that_are_due_and_decided_fire_times_are_found_by_their_moment() {
    let test = fixture::database().await;
    for fill in [
        "INSERT INTO duetime.schedule (name, rules, payload, since, wake_at)
         SELECT 's' || g, '{}', '', now(), now() + g * interval '1 s' FROM generate_series(-100, 20000) AS g",
        "INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
         SELECT gen_random_uuid(), 's', now(), false, '{}', '', now() + g * interval '1 s' FROM generate_series(-100, 20000) AS g",
        "ANALYZE duetime.schedule, duetime.fire",
    ] {
        test.pool.execute(fill).await.unwrap();
    }
    let mut connection = test.pool.acquire().await.unwrap();
    let taken = format!("'2 s', 100, {}, now() - interval '1 h'", shards());
    let cases = [
        (
            include_str!("../queries/schedule_due.sql"),
            "interval, bigint, bigint[], timestamptz, int[]",
            "'1 s', 100, '{}', now() - interval '1 h', '{64,65}'",
            "schedule_wake",
            "schedule",
        ),
        (
            include_str!("../queries/schedule_overdue.sql"),
            "interval, bigint, bigint[], timestamptz, int[], interval, interval",
            "'1 s', 100, '{7}', now() - interval '1 h', '{64,65}', '1 s', '5 s'",
            "schedule_wake",
            "schedule",
        ),
        (include_str!("../queries/fire_take.sql"), "interval, bigint, int[], timestamptz", &taken, "fire_wake", "fire"),
    ];
    for (sql, types, values, index, table) in cases {
        let plan = plan(&mut connection, sql, types, values).await;
        assert!(plan.contains(index) && !plan.contains(&format!("Seq Scan on {table}")), "{plan}");
    }
}

/// Otherwise each page of a queue with millions of them would read all pages before it.
#[tokio::test]
async fn a_page_of_tasks_that_wait_for_room_begins_where_the_page_before_ended() {
    let test = filled().await;
    let mut connection = fixture::planned(&test.pool).await;
    let (types, values) = (
        "int, text, int, text, timestamptz, uuid, bigint, bigint, boolean",
        "7, 'q7', 3, '-', now(), gen_random_uuid(), 500, 1000000, true",
    );
    let plan = plan(&mut connection, include_str!("../queries/move_page_ready.sql"), types, values).await;
    assert_no_scan_of_all_tasks(&plan);
    assert!(plan.lines().any(|line| line.contains("Index Cond") && line.contains("ROW(")), "{plan}");
}

/// Otherwise each page reads all tasks of that moment again, and the move of a shard with millions of them never ends.
#[tokio::test]
async fn tasks_of_one_moment_are_read_a_few_times_by_all_pages_together() {
    let rows = 50_000;
    let test = fixture::database().await;
    let fill = format!(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
         SELECT gen_random_uuid(), 7, 'q', 'scheduled', '2030-01-01', '2030-01-01', '', '' FROM generate_series(1, {rows})"
    );
    test.pool.execute(AssertSqlSafe(fill)).await.unwrap();
    let (mut connection, writes) = (fixture::planned(&test.pool).await, move_rows::WritePaces::default());
    let (sql, types) = (
        include_str!("../queries/move_page_tasks.sql"),
        "int, timestamptz, uuid, bigint, bigint, uuid[], bigint, boolean",
    );
    let (mut cursor, mut found, mut touched) = (move_rows::PageCursor::FIRST, 0, 0);
    while let move_rows::PageCursor::Tasks { wake_at, id, ahead } = &cursor {
        let next = ahead.iter().take(500).map(ToString::to_string).collect::<Vec<_>>().join(",");
        let wake_at = format!("'epoch'::timestamptz + {} * interval '1 us'", wake_at.micros());
        let values = format!("7, {wake_at}, '{id}', 500, 2000000, '{{{next}}}', 20000, false");
        let plan = Plan::of(&mut connection, "force_generic_plan", sql, types, &values).await;
        touched += plan.rows_touched();
        let page = test.database.move_page(ShardId::new(7), &cursor, &[], false, &writes).await.unwrap();
        (cursor, found) = (page.next, found + page.rows.len());
    }
    assert_eq!(found, rows);
    assert!(touched < 6 * rows as u64, "{touched} rows");
}

/// Otherwise each page reads a page of each later queue.
#[tokio::test]
async fn a_page_of_tasks_that_wait_for_room_ends_at_the_queue_that_fills_it() {
    let test = fixture::database().await;
    let fill = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
                SELECT gen_random_uuid(), 7, 'q' || g % 300, 'ready', now(), now(), '', '' FROM generate_series(1, 90000) AS g";
    test.pool.execute(fill).await.unwrap();
    let mut connection = fixture::planned(&test.pool).await;
    let (types, values) = (
        "int, text, int, text, timestamptz, uuid, bigint, bigint, boolean",
        format!("7, '', 0, '', '1970-01-01', '{}', 500, 2000000, true", uuid::Uuid::nil()),
    );
    let sql = include_str!("../queries/move_page_ready.sql");
    let plan = Plan::of(&mut connection, "force_generic_plan", sql, types, &values).await;
    assert!((500..20_000).contains(&plan.rows_touched()), "{} rows", plan.rows_touched());
}
