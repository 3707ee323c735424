//! Submitting and cancelling in SQL: the rows that a transaction leaves in the inbox, the errors
//! for mistakes, and permissions.

use std::{collections::BTreeMap, time::Instant};

use common::{
    ids::{QueueName, ShardId, TaskId},
    queue::Placement,
    retry::RetryPolicy,
    shard::route::bound_to,
    task::{NewTask, OnDuplicate, ValidTask},
    time::{Present, UnixMicros},
    wire::{Limits, TaskRequest},
};
use sqlx::{AssertSqlSafe, PgConnection, PgPool};

use super::{claim, fixture, fixture::TestDatabase, own, state_of};
use crate::{
    coordination::tests::soon,
    store::{
        inbox::{InboxRow, InboxScope},
        put::{PutOutcome, Retention},
        watch::{Notification, Nudge},
    },
};

const HOLD: Retention = Retention { window_ms: 86_400_000, keep_ms: 86_400_000 };

async fn submit_with(connection: &mut PgConnection, arguments: &str) -> Result<TaskId, sqlx::Error> {
    let sql = format!("SELECT duetime.submit({arguments})");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await.map(TaskId::from_uuid)
}

pub(super) async fn submit(test: &TestDatabase, arguments: &str) -> TaskId {
    submit_with(&mut test.pool.acquire().await.unwrap(), arguments).await.unwrap()
}

pub(super) async fn read(test: &TestDatabase) -> Vec<InboxRow> {
    let shards: Vec<ShardId> = fixture::all_shards().iter().collect();
    let others_after = Default::default();
    let wanted = InboxScope { owned: &shards, reachable: &shards, others_after, most: 100, aside: &[], known: 0 };
    test.database.inbox_read(wanted).await.unwrap()
}

fn valid(row: &InboxRow) -> ValidTask {
    TaskRequest::parse(row.request.as_ref().unwrap())
        .unwrap()
        .validate(Present::exactly(row.submitted_at), &Limits::default())
        .unwrap()
}

fn task_of(row: &InboxRow) -> NewTask {
    NewTask { id: row.id, task: ValidTask { due_now: false, ..valid(row) } }
}

/// The tasks that wait in the inbox, as a node would read them.
pub(super) async fn waiting(test: &TestDatabase) -> Vec<NewTask> {
    read(test).await.iter().map(task_of).collect()
}

async fn cancel(pool: &PgPool, id: TaskId) -> Result<String, sqlx::Error> {
    sqlx::query_scalar("SELECT duetime.cancel($1)").bind(id.uuid()).fetch_one(pool).await
}

fn code(error: &sqlx::Error) -> String {
    error.as_database_error().unwrap().code().unwrap().to_string()
}

#[tokio::test]
async fn what_is_rolled_back_was_never_submitted() {
    let test = fixture::database().await;
    let mut connection = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *connection).await.unwrap();
    submit_with(&mut connection, "'mail', '{}'").await.unwrap();
    assert_eq!(read(&test).await, [], "not committed");
    sqlx::query("ROLLBACK").execute(&mut *connection).await.unwrap();
    assert_eq!(read(&test).await, []);
    sqlx::query("BEGIN").execute(&mut *connection).await.unwrap();
    let id = submit_with(&mut connection, "'mail', '{}'").await.unwrap();
    sqlx::query("COMMIT").execute(&mut *connection).await.unwrap();
    let rows = read(&test).await;
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [id]);
}

/// The full scans of the shards on this connection, and the rows of them that it has read. PostgreSQL counts them since
/// it last reported them, which it does not do within a transaction.
async fn reads_of_shards(connection: &mut PgConnection) -> (i64, i64) {
    let read = "SELECT coalesce(max(seq_scan), 0), coalesce(max(seq_tup_read + idx_tup_fetch), 0)
                  FROM pg_stat_xact_user_tables WHERE relid = 'duetime.shard'::regclass";
    sqlx::query_as(read).fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn a_submission_reads_one_row_of_the_shards_however_many_there_are() {
    let test = fixture::database().await;
    let mut connection = test.pool.acquire().await.unwrap();
    sqlx::raw_sql("ANALYZE duetime.shard; BEGIN").execute(&mut *connection).await.unwrap();
    let mut submit_many = async || {
        for _ in 0..20 {
            submit_with(&mut connection, "'mail', '{}'").await.unwrap();
        }
        reads_of_shards(&mut connection).await
    };
    // The first five calls of a session are planned one by one, and the others as any.
    let before = submit_many().await;
    let after = submit_many().await;
    assert_eq!(after.0, before.0, "no full scan");
    // The planner looks at one too whenever it plans the probe.
    assert!((20..=40).contains(&(after.1 - before.1)), "{before:?} before, {after:?} after");
}

/// Sets when a submission last notified the nodes, in ms from now.
async fn set_notified(test: &TestDatabase, ms: i64) {
    let set = "SELECT setval('duetime.inbox_notified_ms', (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $1)";
    sqlx::query(set).bind(ms).execute(&test.pool).await.unwrap();
}

#[tokio::test]
async fn submissions_close_after_one_another_share_a_notification() {
    let test = fixture::database().await;
    let mut nudges = test.database.nudges(None).await.unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    let began = Instant::now();
    for _ in 0..200 {
        submit_with(&mut connection, "'mail', '{}'").await.unwrap();
    }
    let windows = began.elapsed().as_millis() / 20;
    // The nudge is sent last, so it is heard last.
    test.database.tell(&Nudge { shards: [ShardId::new(0)].into(), ..Nudge::default() }).await.unwrap();
    let mut heard = 0;
    while soon("a notification", nudges.next()).await.unwrap() == Notification::Inbox {
        heard += 1;
    }
    assert!((1..=windows + 1).contains(&heard), "{heard} notifications in {windows} times 20 ms");
}

#[tokio::test]
async fn the_first_submission_of_a_database_notifies() {
    let test = fixture::database().await;
    let mut nudges = test.database.nudges(None).await.unwrap();
    submit(&test, "'mail', '{}'").await;
    assert_eq!(soon("a notification", nudges.next()).await.unwrap(), Notification::Inbox);
}

#[tokio::test]
async fn neither_an_open_transaction_nor_a_clock_that_was_set_back_silences_submissions() {
    let test = fixture::database().await;
    let mut nudges = test.database.nudges(None).await.unwrap();
    let mut open = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *open).await.unwrap();
    submit_with(&mut open, "'mail', '{}'").await.unwrap();
    for ms in [-1_000, 3_600_000] {
        set_notified(&test, ms).await;
        // Its notification goes out when it ends, so it leaves the moment to others.
        submit_with(&mut open, "'mail', '{}'").await.unwrap();
        submit(&test, "'mail', '{}'").await;
        assert_eq!(soon("a notification", nudges.next()).await.unwrap(), Notification::Inbox);
    }
    sqlx::query("ROLLBACK").execute(&mut *open).await.unwrap();
}

#[tokio::test]
async fn the_id_that_is_answered_is_the_tasks_and_tells_its_shard() {
    let test = fixture::database().await;
    for _ in 0..50 {
        let id = submit(&test, "'mail', '{\"a\": [1, null]}'").await;
        assert!(fixture::all_shards().contains(id.shard()));
        assert_eq!((id.uuid().get_version_num(), id.uuid().get_variant()), (7, uuid::Variant::RFC4122));
        let row = read(&test).await.remove(0);
        let minted_at = UnixMicros::from_millis(i64::from_be_bytes({
            let mut bytes = [0; 8];
            bytes[2..].copy_from_slice(&id.uuid().as_bytes()[..6]);
            bytes
        }));
        assert_eq!(minted_at.unwrap().millis(), row.submitted_at.millis());
        assert_eq!(test.database.task_collect(&[task_of(&row)], None).await.unwrap(), [id]);
        assert_eq!(state_of(&test.pool, id).await.as_deref(), Some("scheduled"));
    }
    assert_eq!((read(&test).await.len(), test.live().await), (0, 50));
}

#[tokio::test]
async fn a_database_and_a_node_agree_on_the_shard_of_every_key() {
    let test = fixture::database().await;
    let texts = ["", "a", "orders", "Größe", "鍵", "o-1\u{1}", "customer-17", &"x".repeat(256)].map(str::to_owned);
    let keys = texts.into_iter().chain((0..200).map(|number| format!("key {number}")));
    for (number, key) in keys.enumerate() {
        let queue = QueueName::new(format!("queue-{}", number % 7));
        let count = [1, 2, 128, 1_000, 65_535][number % 5];
        for (placement, partition_key, of_key) in [
            (Placement::Single, Some("p"), Some("k")),
            (Placement::Spread, Some(key.as_str()), Some("k")),
            (Placement::Spread, None, Some(key.as_str())),
            (Placement::Spread, None, None),
        ] {
            let told: Option<i32> = sqlx::query_scalar("SELECT duetime.shard_of($1, $2, $3, $4, $5)")
                .bind(queue.as_str())
                .bind(placement == Placement::Single)
                .bind(partition_key)
                .bind(of_key)
                .bind(i32::try_from(count).unwrap())
                .fetch_one(&test.pool)
                .await
                .unwrap();
            let decided = bound_to(&queue, placement, partition_key, of_key, count);
            assert_eq!(told, decided.map(|shard| shard.number().into()), "{queue} {key:?} of {count}");
        }
    }
}

#[tokio::test]
async fn an_application_whose_strings_have_escapes_submits_with_a_key() {
    let test = fixture::database().await;
    let mut connection = test.pool.acquire().await.unwrap();
    sqlx::query("SET standard_conforming_strings = off").execute(&mut *connection).await.unwrap();
    let id = submit_with(&mut connection, "'mail', '{}', key => 'k'").await.unwrap();
    let decided = bound_to(&QueueName::new("mail"), Placement::Spread, None, Some("k"), fixture::SHARDS.into());
    assert_eq!(Some(id.shard()), decided);
}

#[tokio::test]
async fn every_field_of_a_submission_arrives() {
    let test = fixture::database().await;
    submit(
        &test,
        r#"'mail', '{"b": 1, "a": null}', due_at => '2031-02-03 04:05:06.000007+05:30', key => 'k', options => '{
            "partition_key": "p", "priority": 2, "version": 7, "on_duplicate": "version", "headers": {"tenant": "blue"},
            "max_attempts": 9, "timeout_ms": 1500, "retry": {"kind": "fixed", "delay_ms": 5}, "expires_at": "2031-02-04T00:00:00Z"}'"#,
    )
    .await;
    let task = waiting(&test).await.remove(0);
    assert_eq!(task.due_at.to_string(), "2031-02-02T22:35:06.000007Z");
    assert_eq!((task.queue.as_str(), task.partition_key.as_deref(), task.priority), ("mail", Some("p"), 2));
    let keyed = task.keyed.as_ref().unwrap();
    assert_eq!((keyed.key.as_str(), keyed.version, keyed.on_duplicate), ("k", 7, OnDuplicate::Version));
    assert_eq!((task.max_attempts, task.timeout_ms), (Some(9), Some(1_500)));
    assert_eq!(task.retry, Some(RetryPolicy::Fixed { delay_ms: 5 }));
    assert_eq!(task.expires_at.unwrap().to_string(), "2031-02-04T00:00:00.000000Z");
    assert_eq!(task.content.headers, BTreeMap::from([("tenant".to_owned(), "blue".to_owned())]));
    let payload: serde_json::Value = serde_json::from_slice(&task.content.payload).unwrap();
    assert_eq!(payload, serde_json::json!({ "a": null, "b": 1 }));
    let put = test.database.task_collect_keyed(std::slice::from_ref(&task), &[HOLD], None).await.unwrap().remove(0);
    assert_eq!((put.id, put.first, put.put.outcome, put.put.id), (task.id, true, PutOutcome::Created, task.id));
    assert_eq!(read(&test).await, []);
    let stored = test.database.task_read(task.id).await.unwrap().unwrap();
    assert_eq!((stored.due_at, stored.key.as_deref(), stored.version), (task.due_at, Some("k"), 7));

    let bytes = r#"'mail', NULL, options => '{"payload_base64": "AP8=", "content_type": "image/png", "expires_after_ms": 1000, "priority": null}'"#;
    submit(&test, bytes).await;
    let row = read(&test).await.remove(0);
    let task = valid(&row);
    assert_eq!((task.content.payload, task.content.content_type.as_str()), (vec![0, 255], "image/png"));
    assert_eq!(
        (task.due_at, task.expires_at.unwrap()),
        (row.submitted_at, row.submitted_at.plus(std::time::Duration::from_secs(1)))
    );
}

#[tokio::test]
async fn what_is_past_is_due_at_the_moment_of_the_submission() {
    let test = fixture::database().await;
    for due_at in ["'-infinity'", "'0044-03-15 BC'", "now()", "clock_timestamp() - interval '1 h'"] {
        submit(&test, &format!("'mail', '{{}}', {due_at}")).await;
    }
    for row in read(&test).await {
        assert_eq!(valid(&row).due_at, row.submitted_at);
    }
}

#[tokio::test]
async fn what_cannot_be_right_raises_an_exception_that_names_the_field() {
    let test = fixture::database().await;
    let mut connection = test.pool.acquire().await.unwrap();
    let long = "x".repeat(257);
    let option = |options: &str| format!("'mail', '{{}}', options => '{options}'");
    for (arguments, field) in [
        ("NULL, '{}'".to_owned(), "queue"),
        ("'a b', '{}'".to_owned(), "queue"),
        ("'mail', '{}', NULL".to_owned(), "due_at"),
        ("'mail', '{}', 'infinity'".to_owned(), "due_at"),
        ("'mail', to_jsonb(repeat('x', 1048576))".to_owned(), "payload"),
        ("'mail', '{}', key => ''".to_owned(), "key"),
        (format!("'mail', '{{}}', key => '{long}'"), "key"),
        ("'mail', '{}', options => NULL".to_owned(), "options"),
        (option("[]"), "options"),
        (option(r#"{"colour": 1}"#), "colour"),
        (option(r#"{"delay_ms": 1}"#), "delay_ms"),
        (option(r#"{"depends_on": "a"}"#), "depends_on"),
        (option(r#"{"due_at": 1}"#), "due_at"),
        (option(r#"{"priority": "high"}"#), "priority"),
        (option(r#"{"priority": 6}"#), "priority"),
        (option(r#"{"priority": 1.5}"#), "priority"),
        (option(r#"{"version": "1"}"#), "version"),
        (option(r#"{"max_attempts": true}"#), "max_attempts"),
        (option(r#"{"timeout_ms": []}"#), "timeout_ms"),
        (option(r#"{"expires_after_ms": "1"}"#), "expires_after_ms"),
        (option(r#"{"expires_at": {}}"#), "expires_at"),
        (option(r#"{"headers": "a"}"#), "headers"),
        (option(r#"{"retry": 5}"#), "retry"),
        (option(r#"{"partition_key": 5}"#), "partition_key"),
        (option(r#"{"partition_key": ""}"#), "partition_key"),
        (option(r#"{"on_duplicate": "never"}"#), "on_duplicate"),
    ] {
        let error = submit_with(&mut connection, &arguments).await.expect_err(&arguments);
        let told = error.as_database_error().unwrap();
        assert_eq!(code(&error), "22023", "{arguments}: {error}");
        assert!(told.message().contains(&format!("`{field}` must be")), "{arguments}: {error}");
    }
    assert_eq!(read(&test).await, []);
}

#[tokio::test]
async fn a_producer_submits_and_cancels_and_can_do_nothing_else() {
    let test = fixture::database().await;
    let mut producer = test.pool.acquire().await.unwrap();
    sqlx::query("SET ROLE duetime_producer").execute(&mut *producer).await.unwrap();
    let id = submit_with(&mut producer, "'mail', '{}'").await.unwrap();
    let outcome: String =
        sqlx::query_scalar("SELECT duetime.cancel($1)").bind(id.uuid()).fetch_one(&mut *producer).await.unwrap();
    assert_eq!(outcome, "cancelled");
    for statement in [
        "SELECT FROM duetime.inbox",
        "INSERT INTO duetime.inbox (id) VALUES (gen_random_uuid())",
        "SELECT FROM duetime.task",
        "SELECT FROM duetime.queue",
        "DELETE FROM duetime.task",
        "SELECT duetime.receive_begin(gen_random_uuid(), 'main')",
        "CREATE TABLE duetime.mine (id int)",
        "CREATE FUNCTION duetime.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ] {
        let error = sqlx::query(statement).execute(&mut *producer).await.expect_err(statement);
        assert_eq!(code(&error), "42501", "{statement}: {error}");
    }
    let tables: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_class AS c
          WHERE c.relnamespace = 'duetime'::regnamespace AND c.relkind IN ('r', 'p')
            AND has_table_privilege('duetime_producer', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')",
    )
    .fetch_one(&test.pool)
    .await
    .unwrap();
    assert_eq!(tables, 0);
    sqlx::query("RESET ROLE").execute(&mut *producer).await.unwrap();
}

#[tokio::test]
async fn a_stranger_may_not_submit() {
    let test = fixture::database().await;
    let stranger: bool = sqlx::query_scalar(
        "SELECT bool_or(has_function_privilege('pg_monitor', p.oid, 'EXECUTE'))
           FROM pg_proc AS p WHERE p.pronamespace = 'duetime'::regnamespace AND p.proname IN ('submit', 'cancel')",
    )
    .fetch_one(&test.pool)
    .await
    .unwrap();
    assert!(!stranger);
}

#[tokio::test]
async fn a_cancel_in_sql_says_what_it_promises_or_raises_why_it_cannot() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = super::submitted(&test, 3).await;
    assert_eq!(cancel(&test.pool, ids[0]).await.unwrap(), "cancelled");
    assert_eq!(cancel(&test.pool, ids[0]).await.unwrap(), "cancelled", "a repeated request gets the same answer");
    assert_eq!(state_of(&test.pool, ids[0]).await.as_deref(), Some("cancelled"));
    claim(&test, &ids[1..], &fences).await;
    let error = cancel(&test.pool, ids[1]).await.unwrap_err();
    assert_eq!(code(&error), "55006", "{error}");
    sqlx::query("UPDATE duetime.task SET state = 'scheduled' WHERE id = $1")
        .bind(ids[2].uuid())
        .execute(&test.pool)
        .await
        .unwrap();
    assert_eq!(cancel(&test.pool, ids[2]).await.unwrap(), "no_further_attempts");
    assert_eq!(code(&cancel(&test.pool, fixture::fresh_id()).await.unwrap_err()), "P0002");
    let of_no_shard = fixture::fresh_id_of(ShardId::new(fixture::SHARDS));
    assert_eq!(code(&cancel(&test.pool, of_no_shard).await.unwrap_err()), "P0002");
    let of_no_id = sqlx::query("SELECT duetime.cancel(NULL)").execute(&test.pool).await.unwrap_err();
    assert_eq!(code(&of_no_id), "P0002");
    sqlx::query("UPDATE duetime.shard SET status = 'gone' WHERE id = 127").execute(&test.pool).await.unwrap();
    let elsewhere = fixture::fresh_id_of(ShardId::new(127));
    assert_eq!(code(&cancel(&test.pool, elsewhere).await.unwrap_err()), "0A000");
    let leaving = submit(&test, "'mail', '{}'").await;
    test.database.inbox_leave(&[leaving]).await.unwrap();
    assert_eq!(
        code(&cancel(&test.pool, leaving).await.unwrap_err()),
        "55006",
        "it may be in the other database already"
    );
}

#[tokio::test]
async fn a_cancel_in_sql_archives_the_row_as_it_was_for_as_long_as_its_queue_says() {
    let test = fixture::database().await;
    sqlx::query("INSERT INTO duetime.queue (name, policy) VALUES ('orders', '{\"keep_succeeded_ms\": 864000000}')")
        .execute(&test.pool)
        .await
        .unwrap();
    let id = super::submitted(&test, 1).await[0];
    let row = async |table: &str| -> serde_json::Value {
        // Columns that describe live tasks only are not archived.
        let live = "ARRAY['state', 'in_order', 'counted', 'depends_on', 'depends_met', 'stopping']";
        let sql = format!("SELECT to_jsonb(t) - {live} FROM duetime.{table} AS t WHERE id = $1");
        sqlx::query_scalar(AssertSqlSafe(sql)).bind(id.uuid()).fetch_one(&test.pool).await.unwrap()
    };
    let before = row("task").await;
    assert_eq!(cancel(&test.pool, id).await.unwrap(), "cancelled");
    let mut after = row("archive").await;
    let fields = after.as_object_mut().unwrap();
    fields.retain(|name, _| before.get(name).is_some());
    assert_eq!(after, before);
    let kept: i32 = sqlx::query_scalar(
        "SELECT drop_on - (finished_at AT TIME ZONE 'UTC')::date FROM duetime.archive WHERE id = $1",
    )
    .bind(id.uuid())
    .fetch_one(&test.pool)
    .await
    .unwrap();
    assert_eq!(kept, 11);
}

#[tokio::test]
async fn what_is_too_large_is_refused_in_the_transaction_of_the_application() {
    let test = fixture::database().await;
    let mut connection = test.pool.acquire().await.unwrap();
    for options in [
        "jsonb_build_object('headers', jsonb_build_object('a', repeat('x', 40000000)))",
        "jsonb_build_object('headers', jsonb_build_object('a', repeat('x', 9000)))",
        "jsonb_build_object('headers', (SELECT jsonb_object_agg('h' || g, 'x') FROM generate_series(1, 65) AS g))",
        "'{\"headers\": {\"a\": {\"b\": 1}}}'",
        "jsonb_build_object('depends_on', (SELECT jsonb_agg('k' || g) FROM generate_series(1, 101) AS g))",
        "jsonb_build_object('retry', jsonb_build_object('kind', repeat('x', 2000)))",
        "jsonb_build_object('payload_base64', repeat('x', 1500000))",
        "jsonb_build_object('content_type', repeat('x', 300))",
    ] {
        let error = submit_with(&mut connection, &format!("'mail', '{{}}', options => {options}")).await.unwrap_err();
        assert_eq!(code(&error), "22023", "{options}");
    }
    let largest = "'mail', to_jsonb(repeat('x', 1000000)), options => jsonb_build_object('headers', jsonb_build_object('a', repeat('x', 8000)))";
    submit_with(&mut connection, largest).await.unwrap();
}

#[tokio::test]
async fn what_is_cancelled_before_it_is_a_task_leaves_a_cancelled_one() {
    let test = fixture::database().await;
    let plain = submit(
        &test,
        "'mail', '{\"a\": 1}', now() + interval '1 h', options => '{\"priority\": 2, \"headers\": {\"x\": \"y\"}}'",
    )
    .await;
    let bytes = submit(&test, "'mail', NULL, key => 'k', options => '{\"payload_base64\": \"AP8=\"}'").await;
    // Before 0021_check_submits.sql, `duetime.submit` took it.
    let impossible = fixture::fresh_id();
    let request = r#"{"queue": "mail", "payload_base64": "?", "due_at": "2031-01-01T00:00:00Z"}"#;
    sqlx::query("INSERT INTO duetime.inbox (id, shard, request, submitted_at) VALUES ($1, $2, $3::jsonb, now())")
        .bind(impossible.uuid())
        .bind(i32::from(impossible.shard().number()))
        .bind(request)
        .execute(&test.pool)
        .await
        .unwrap();
    for id in [plain, bytes, impossible] {
        assert_eq!(cancel(&test.pool, id).await.unwrap(), "cancelled");
    }
    let read = test.database.task_read(plain).await.unwrap().expect("it is kept");
    assert_eq!((read.state.text(), read.priority, read.attempt.number()), ("cancelled", 2, 0));
    assert_eq!(read.payload.as_deref(), Some(br#"{"a": 1}"#.as_slice()));
    assert_eq!(read.headers.get("x").map(String::as_str), Some("y"));
    let read = test.database.task_read(bytes).await.unwrap().expect("it is kept");
    assert_eq!((read.state.text(), read.key.as_deref(), read.payload), ("cancelled", Some("k"), Some(vec![0, 255])));
    assert!(test.database.task_read(impossible).await.unwrap().is_none(), "it could not have been a task");
    assert_eq!(cancel(&test.pool, plain).await.unwrap(), "cancelled", "repeated");
    assert_eq!((read_count(&test).await, test.live().await), (0, 0));
}

async fn read_count(test: &TestDatabase) -> usize {
    read(test).await.len()
}

/// As text, a number may be ten thousand times as long as in the table.
#[tokio::test]
async fn a_read_takes_no_more_into_memory_than_its_bound_whatever_the_requests_unpack_to() {
    let test = fixture::database().await;
    let large = ["1e131000"; 7].join(",");
    for _ in 0..40 {
        submit(&test, &format!("'mail', '[{large}]'")).await;
    }
    let bytes: usize = read(&test).await.iter().map(|row| row.request.as_ref().unwrap().len()).sum();
    assert!((16 << 20..18 << 20).contains(&bytes), "{bytes} bytes");
    assert_eq!(sqlx::query_scalar::<_, i64>("SELECT 1::bigint").fetch_one(&test.pool).await.unwrap(), 1);
}
