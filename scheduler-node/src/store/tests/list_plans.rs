//! The cost of a list's page on large tables, with the custom and the generic plan. It is bounded by the
//! page, never by the number of tasks.

use serde_json::Value;
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use super::fixture;

/// 100,000 live and 100,000 finished tasks, most of them of one queue. One in a hundred
/// of the finished tasks is dead.
pub(super) const FILL: &str = "
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
SELECT gen_random_uuid(), g % 128, CASE WHEN g % 10 < 7 THEN 'big' ELSE 'q' || g % 30 END, 'scheduled', due, due, '{}', 'application/json'
  FROM generate_series(1, 100000) AS g, LATERAL (SELECT now() + random() * g * interval '1 s' AS due) AS moment;
INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, finished_at, drop_on)
SELECT gen_random_uuid(), g % 128, CASE WHEN g % 10 < 7 THEN 'big' ELSE 'q' || g % 30 END,
       (CASE WHEN g % 100 = 0 THEN 'dead' ELSE 'succeeded' END)::duetime.task_state, due, due, '{}', 'application/json', due,
       ((now() AT TIME ZONE 'UTC')::date + 1 + g % 30)
  FROM generate_series(1, 100000) AS g, LATERAL (SELECT now() - random() * g * interval '1 s' AS due) AS moment;
ANALYZE duetime.task;
ANALYZE duetime.archive;
";

/// A plan that was run, as EXPLAIN (ANALYZE, FORMAT JSON) reports it.
#[derive(Debug)]
pub(super) struct Plan(Value);

impl Plan {
    pub(super) async fn of(connection: &mut PgConnection, mode: &str, sql: &str, types: &str, values: &str) -> Self {
        connection.execute(AssertSqlSafe(format!("SET plan_cache_mode = {mode}"))).await.unwrap();
        connection.execute(AssertSqlSafe(format!("PREPARE listed ({types}) AS {sql}"))).await.unwrap();
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE listed ({values})");
        let row = connection.fetch_one(AssertSqlSafe(explain)).await.unwrap();
        connection.execute("DEALLOCATE listed").await.unwrap();
        let plan: Value = row.get(0);
        Self(plan[0]["Plan"].clone())
    }

    /// The number of task rows that the plan examined, kept or not.
    pub(super) fn rows_touched(&self) -> u64 {
        nodes(&self.0)
            .into_iter()
            .filter(|node| {
                node["Relation Name"]
                    .as_str()
                    .is_some_and(|name| name.starts_with("task") || name.starts_with("archive"))
            })
            .map(|node| {
                (number(node, "Actual Rows") + number(node, "Rows Removed by Filter")) * number(node, "Actual Loops")
            })
            .sum()
    }

    pub(super) fn buffers(&self) -> u64 {
        number(&self.0, "Shared Hit Blocks") + number(&self.0, "Shared Read Blocks")
    }
}

fn nodes(plan: &Value) -> Vec<&Value> {
    let children = plan["Plans"].as_array().map(Vec::as_slice).unwrap_or_default();
    std::iter::once(plan).chain(children.iter().flat_map(nodes)).collect()
}

fn number(node: &Value, field: &str) -> u64 {
    node[field].as_f64().unwrap_or(0.0) as u64
}

const TYPES: &str = "text, text, text, timestamptz, uuid, timestamptz, bigint, bigint, text, text, text[], int, int[]";

fn values(queue: Option<&str>, state: Option<&str>, look: u32, rows: u32) -> String {
    let text = |text: Option<&str>| text.map_or_else(|| "NULL".to_owned(), |text| format!("'{text}'"));
    let nobody = uuid::Uuid::nil();
    format!(
        "{}, {}, NULL, '1970-01-01', '{nobody}', '9999-01-01', {look}, {rows}, NULL, NULL, NULL, 2000, '{{}}'",
        text(queue),
        text(state)
    )
}

const STATEMENTS: [&str; 3] = [
    include_str!("../queries/task_list.sql"),
    include_str!("../queries/task_list_finished.sql"),
    include_str!("../queries/task_list_failed.sql"),
];

#[tokio::test]
async fn a_page_costs_about_its_own_size_with_a_queue_and_a_few_rows_a_queue_without() {
    let test = fixture::database().await;
    test.pool.execute(FILL).await.unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    for statement in STATEMENTS {
        for mode in ["force_generic_plan", "force_custom_plan"] {
            let one = Plan::of(&mut connection, mode, statement, TYPES, &values(Some("big"), None, 20_000, 101)).await;
            // The plan touches each task once for the key and once for the row, and fetches
            // one row ahead in each partition.
            assert!(one.rows_touched() < 350, "{mode}: {} rows\n{statement}", one.rows_touched());
            let all = Plan::of(&mut connection, mode, statement, TYPES, &values(None, None, 20_000, 101)).await;
            // There are 10 queues. The hop from name to name touches one row of each partition.
            assert!(all.rows_touched() < 10 * 250 + 11 * 41, "{mode}: {} rows\n{statement}", all.rows_touched());
        }
    }
}

#[tokio::test]
async fn a_filter_that_nothing_passes_ends_the_looking_at_its_bound() {
    let test = fixture::database().await;
    test.pool.execute(FILL).await.unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    for statement in STATEMENTS {
        for mode in ["force_generic_plan", "force_custom_plan"] {
            for queue in [Some("big"), None] {
                let plan =
                    Plan::of(&mut connection, mode, statement, TYPES, &values(queue, Some("waiting"), 5_000, 101))
                        .await;
                assert!(plan.rows_touched() < 5_000 + 11 * 82, "{mode}: {} rows\n{statement}", plan.rows_touched());
            }
        }
    }
}

const LOOKS: [(&str, bool); 4] = [
    (include_str!("../queries/bulk_look.sql"), false),
    (include_str!("../queries/bulk_look_back.sql"), true),
    (include_str!("../queries/bulk_look_failed.sql"), false),
    (include_str!("../queries/bulk_look_finished.sql"), false),
];

#[tokio::test]
async fn a_step_of_a_walk_costs_what_it_finds_and_never_more_than_it_may_look_at() {
    let test = fixture::database().await;
    test.pool.execute(FILL).await.unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    fixture::plan_as_a_node(&mut connection).await;
    for (statement, back) in LOOKS {
        let (from, to) = if back { ("9999-01-01", "1970-01-01") } else { ("1970-01-01", "9999-01-01") };
        let further = ["$12::", "$13::"].into_iter().filter(|value| statement.contains(value)).count();
        let more = (", timestamptz".repeat(further), ", NULL".repeat(further));
        let types =
            format!("text, timestamptz, uuid, timestamptz, text, text, text, text, bigint, bigint, int[]{}", more.0);
        let nobody = uuid::Uuid::nil();
        // First all tasks pass the filter, then none does. The plan fetches one row ahead in each partition.
        for (state, look, most) in [("NULL", 20_000, 100), ("'waiting'", 2_000, 2_000)] {
            let values = format!(
                "'big', '{from}', '{nobody}', '{to}', {state}, NULL, NULL, NULL, {look}, 100, '{{}}'{}",
                more.1
            );
            let plan = Plan::of(&mut connection, GENERIC, statement, &types, &values).await;
            assert!(plan.rows_touched() < most + 300, "{} rows\n{statement}", plan.rows_touched());
        }
    }
}

#[tokio::test]
async fn finished_tasks_are_read_and_revived_by_their_primary_key() {
    let test = fixture::database().await;
    test.pool.execute(FILL).await.unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    let some = "SELECT string_agg(format('%L', drop_on), ','), string_agg(format('%L', id), ',')
                  FROM (SELECT drop_on, id FROM duetime.archive WHERE state = 'dead' LIMIT 50) AS picked";
    let row = connection.fetch_one(some).await.unwrap();
    let values = format!("ARRAY[{}]::date[], ARRAY[{}]::uuid[]", row.get::<String, _>(0), row.get::<String, _>(1));
    fixture::plan_as_a_node(&mut connection).await;
    let statements = [include_str!("../queries/export_read_finished.sql"), include_str!("../queries/bulk_revive.sql")];
    for statement in statements {
        let plan = Plan::of(&mut connection, GENERIC, statement, "date[], uuid[]", &values).await;
        assert!(plan.rows_touched() < 50 * 5, "{} rows\n{statement}", plan.rows_touched());
    }
}

/// The only kind of plan that a node allows.
const GENERIC: &str = "force_generic_plan";

#[tokio::test]
async fn a_key_costs_its_own_tasks_however_many_others_there_are() {
    let test = fixture::database().await;
    test.pool.execute(FILL).await.unwrap();
    let keys = "UPDATE duetime.task SET key = 'k' || (get_byte(uuid_send(id), 3) * 256 + get_byte(uuid_send(id), 2))::text || id;
                UPDATE duetime.archive SET key = 'often' WHERE queue = 'big'; ANALYZE duetime.task; ANALYZE duetime.archive;";
    test.pool.execute(keys).await.unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    fixture::plan_as_a_node(&mut connection).await;
    let nobody = uuid::Uuid::nil();
    let names = "ARRAY['big', 'q1', 'q2', 'q3']";
    let list = |key: &str, hops: i32| {
        format!(
            "NULL, NULL, NULL, '1970-01-01', '{nobody}', '9999-01-01', 2000, 101, '{key}', NULL, {names}, {hops}, '{{}}'"
        )
    };
    // Each queue probes each partition. For a key that is used often, the plan reads as many
    // rows as it may examine in a queue.
    let live = (include_str!("../queries/task_list_key.sql"), TYPES, list("absent", 0), 10);
    // Each hop touches one row, of ten queues.
    let live_hopped = (include_str!("../queries/task_list_key.sql"), TYPES, list("absent", 2_000), 10 + 11 * 2);
    let absent = (include_str!("../queries/task_list_key_finished.sql"), TYPES, list("absent", 0), 10);
    let often = (include_str!("../queries/task_list_key_finished.sql"), TYPES, list("often", 0), 1_500);
    // There are 10 queues. The hop from name to name touches one row of each partition.
    let hopped = (include_str!("../queries/task_list_key_finished.sql"), TYPES, list("absent", 2_000), 10 + 11 * 41);
    let find = (
        include_str!("../queries/task_find.sql"),
        "text, text, text, int[]",
        "'big', NULL, 'often', '{}'".to_owned(),
        100,
    );
    let key: String =
        connection.fetch_one("SELECT key FROM duetime.task WHERE queue = 'big' LIMIT 1").await.unwrap().get(0);
    let read = (include_str!("../queries/task_read_key.sql"), find.1, format!("'big', NULL, '{key}', '{{}}'"), 4);
    // The walk reads some rows ahead, and probes each partition for a newer version of each dead task.
    let look = (
        include_str!("../queries/bulk_look_failed.sql"),
        "text, timestamptz, uuid, timestamptz, text, text, text, text, bigint, bigint, int[], timestamptz",
        format!("'big', '1970-01-01', '{nobody}', '9999-01-01', NULL, NULL, NULL, NULL, 20000, 100, '{{}}', NULL"),
        400,
    );
    for (statement, types, values, most) in [live, live_hopped, absent, often, hopped, find, read, look] {
        let plan = Plan::of(&mut connection, GENERIC, statement, types, &values).await;
        assert!(plan.rows_touched() <= most, "{} rows\n{statement}\n{plan:?}", plan.rows_touched());
    }
}

/// Otherwise submissions to a full queue hold up those to all others.
#[tokio::test]
async fn the_keys_of_a_batch_cost_a_few_rows_each_however_many_tasks_there_are() {
    let test = fixture::database().await;
    test.pool.execute(FILL).await.unwrap();
    let keys = "UPDATE duetime.task SET key = 'k' || id;
                UPDATE duetime.archive SET key = 'often', state = CASE WHEN shard % 3 = 0 THEN 'cancelled' ELSE state END WHERE queue = 'big';
                ANALYZE duetime.task; ANALYZE duetime.archive;";
    test.pool.execute(keys).await.unwrap();
    let mut connection = fixture::planned(&test.pool).await;
    for count in [1_u64, 50, 500] {
        let some = format!(
            "SELECT array_agg(key)::text FROM (SELECT key FROM duetime.task WHERE queue = 'big' LIMIT {count}) AS t"
        );
        let live: String = connection.fetch_one(AssertSqlSafe(some)).await.unwrap().get(0);
        let values = |keys: &str| {
            format!("array_fill('big'::text, ARRAY[{count}]), '{{}}', {keys}, array_fill(7, ARRAY[{count}]), '{{}}'")
        };
        let [often, absent] = ["often", "absent"].map(|key| format!("array_fill('{key}'::text, ARRAY[{count}])"));
        let (types, more_types) = ("text[], text[], text[], int[], int[]", "bigint[], boolean[]");
        let any = |keys: &str, by_version: bool| {
            let (values, all) = (values(keys), format!("ARRAY[{count}]"));
            // The tasks ended within two days, and the window is ten days long.
            let statement = include_str!("../queries/task_rivals.sql");
            let more = format!("array_fill(864000000::bigint, {all}), array_fill({by_version}, {all})");
            (statement, format!("{types}, {more_types}"), format!("{values}, {more}"))
        };
        let live_only = |keys: &str| (include_str!("../queries/task_rivals_live.sql"), types.to_owned(), values(keys));
        // Of each kind, each of 40 partitions shows its newest task with the key, and those that ended last show ten in
        // all. A look-up without versions reads one kind.
        for ((statement, types, values), most_each) in [
            (live_only(&format!("'{live}'")), 2_u64),
            (live_only(&absent), 0),
            (any(&often, false), 55),
            (any(&often, true), 110),
            (any(&absent, true), 0),
        ] {
            let plan = Plan::of(&mut connection, GENERIC, statement, &types, &values).await;
            assert!(plan.rows_touched() <= most_each * count, "{count}: {} rows\n{plan:?}", plan.rows_touched());
        }
    }
}

#[tokio::test]
async fn a_dead_task_passes_no_cancelled_task_of_its_key_to_find_that_the_key_is_taken() {
    let test = fixture::database().await;
    // Both dead tasks are due first. The second was created after the cancelled ones.
    let fill = "INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, key, created_at, finished_at, drop_on)
                SELECT gen_random_uuid(), 0, 'big', (CASE WHEN g % 20001 = 0 THEN 'dead' ELSE 'cancelled' END)::duetime.task_state,
                       now(), now() + g % 20001 * interval '1 ms', '', 'x', 'k', made, made + interval '1 s',
                       (now() AT TIME ZONE 'UTC')::date + 1
                  FROM generate_series(0, 20001) AS g, LATERAL (SELECT now() + g * interval '1 ms' AS made) AS moment;
                ANALYZE duetime.archive";
    test.pool.execute(fill).await.unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    fixture::plan_as_a_node(&mut connection).await;
    let types = "text, timestamptz, uuid, timestamptz, text, text, text, text, bigint, bigint, int[], timestamptz";
    let nobody = uuid::Uuid::nil();
    let values = format!("'big', '1970-01-01', '{nobody}', '9999-01-01', NULL, NULL, NULL, NULL, 2, 100, '{{}}', NULL");
    let look = include_str!("../queries/bulk_look_failed.sql");
    let plan = Plan::of(&mut connection, GENERIC, look, types, &values).await;
    assert!(plan.rows_touched() < 1_000, "{} rows\n{plan:?}", plan.rows_touched());
}

#[tokio::test]
async fn tasks_are_counted_by_state_from_a_bounded_part_of_the_table() {
    let test = fixture::database().await;
    assert_eq!(test.database.task_census().await.unwrap(), crate::store::outlook::Census::default());
    test.pool.execute(FILL).await.unwrap();
    let exact = test.database.task_census().await.unwrap();
    let pages: i64 =
        sqlx::query_scalar("SELECT pg_relation_size('duetime.task') / 8192").fetch_one(&test.pool).await.unwrap();
    assert!(pages > 1_000, "the table is larger than what is read: {pages}");
    assert!(exact.estimated);
    assert!((60_000..160_000).contains(&exact.counts.scheduled), "about 100,000: {exact:?}");
    let mut connection = test.pool.acquire().await.unwrap();
    let plan =
        Plan::of(&mut connection, GENERIC, include_str!("../queries/task_census.sql"), "float8, int[]", "100, '{}'")
            .await;
    assert!(plan.buffers() < 400, "{} pages of {pages}", plan.buffers());
}
