//! Many tasks at once: bulk actions and exports.

use std::sync::Arc;

use common::{
    ids::{Epoch, QueueName, TaskId},
    task::{TaskState, bulk::SkipReason},
    wire::{BulkAnswer, BulkRequest, ExportEnd, ExportedTask, Problem, TaskFilter},
};
use futures::{StreamExt, TryStreamExt};
use serde_json::Value;

use super::{
    Counter, PLAIN, claim, counter, fresh, hide_queues, reading::forget_tries, request, with_one_of_two_gone,
    with_two_databases,
};
use crate::{
    coordination::tests::soon,
    store::{PoolKind, tests::fixture},
    supervise::spawn_child,
};

async fn bulk(counter: &Counter, json: &str) -> Result<BulkAnswer, Problem> {
    counter.desk.bulk(BulkRequest::parse(json).expect("a request")).await
}

async fn submitted(counter: &Counter, json: &str) -> TaskId {
    counter.desk.submit(request(json)).await.expect("accepted").id
}

async fn dead(counter: &Counter, json: &str) -> TaskId {
    let id = submitted(counter, json).await;
    let attempt = claim(counter, id).await;
    let discard = common::task::report::ResultBody::parse(r#"{"status":"discard"}"#).expect("a report");
    counter.desk.report(id, attempt, discard).await.expect("applied");
    id
}

async fn state(counter: &Counter, id: TaskId) -> TaskState {
    counter.desk.get(id).await.expect("it is there").state
}

async fn export(counter: &Counter, filter: TaskFilter) -> Result<Vec<Value>, Problem> {
    let chunks: Vec<Vec<u8>> = counter.desk.export(filter).await?.try_collect().await?;
    let text = String::from_utf8(chunks.concat()).expect("UTF-8");
    Ok(text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
}

#[tokio::test]
async fn a_dry_run_counts_what_is_done_then_to_the_last_task_in_every_database() {
    let (counter, tests) = with_two_databases().await;
    for nth in 0..40 {
        submitted(&counter, &format!(r#"{{"queue":"q{}","delay_ms":{}}}"#, nth % 3, 60_000 + nth * 1_000)).await;
    }
    let claimed = submitted(&counter, r#"{"queue":"q0"}"#).await;
    claim(&counter, claimed).await;
    let kept = submitted(&counter, r#"{"queue":"kept","delay_ms":60000}"#).await;
    assert!(tests[0].live().await > 0 && tests[1].live().await > 0, "some in each");
    let mut counted = (0, 0, 0);
    for dry_run in [true, false] {
        for queue in ["q0", "q1", "q2"] {
            let mut cursor = "null".to_owned();
            loop {
                let json = format!(
                    r#"{{"action":"cancel","filter":{{"queue":"{queue}"}},"limit":7,"dry_run":{dry_run},"cursor":{cursor}}}"#
                );
                let answer = bulk(&counter, &json).await.expect("two databases");
                assert!(answer.matched <= 7 && answer.dry_run == dry_run && answer.interrupted.is_none(), "{answer:?}");
                counted.0 += answer.matched;
                counted.1 += answer.done;
                counted.2 += answer.refused.get(&SkipReason::InFlight).copied().unwrap_or(0);
                match answer.next_cursor {
                    Some(next) => cursor = format!("\"{next}\""),
                    None => break,
                }
            }
        }
        assert_eq!(counted, (41, 40, 1), "dry run: {dry_run}");
        let live = tests[0].live().await + tests[1].live().await;
        assert_eq!(live, if dry_run { 42 } else { 2 });
        counted = (0, 0, 0);
    }
    assert_eq!(
        (state(&counter, claimed).await, state(&counter, kept).await),
        (TaskState::Dispatching, TaskState::Scheduled)
    );
    let rest = bulk(&counter, r#"{"action":"cancel","all":true}"#).await.expect("every task there is");
    assert_eq!((rest.matched, rest.done), (2, 1));
}

#[tokio::test]
async fn a_walk_goes_through_every_database_although_each_request_meets_them_in_another_order() {
    let (one, tests) = with_two_databases().await;
    let third = fixture::database().await;
    let others = [("main", &tests[0].url), ("west", &third.url), ("east", &tests[1].url)];
    let databases = others.map(|(name, url)| fixture::named(name, url));
    one.store.add(fixture::named("west", &third.url));
    for _ in 0..40 {
        submitted(&one, r#"{"queue":"q","delay_ms":60000}"#).await;
    }
    let other = super::counter(databases.to_vec(), super::PLAIN);
    for (test, shards) in [(&tests[0], ">= 64"), (&tests[1], "< 64"), (&third, ">= 0")] {
        let gone = format!("DELETE FROM duetime.shard WHERE id {shards}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(gone)).execute(&test.pool).await.unwrap();
    }
    for counter in [&one, &other] {
        counter.store.places().refresh().await.expect("read");
    }
    let (mut done, mut cursor) = (0, "null".to_owned());
    for counter in [&one, &other].into_iter().cycle().take(100) {
        let json = format!(r#"{{"action":"cancel","filter":{{"queue":"q"}},"limit":3,"cursor":{cursor}}}"#);
        let answer = bulk(counter, &json).await.expect("three databases");
        done += answer.done;
        match answer.next_cursor {
            Some(next) => cursor = format!("\"{next}\""),
            None => break,
        }
    }
    assert_eq!((done, tests[0].live().await + tests[1].live().await), (40, 0));
}

/// A claim that another node holds open: one statement, not yet committed.
const CLAIM: &str =
    "UPDATE duetime.task SET state = 'dispatching', attempt = attempt + 1, claim_epoch = 1, claimed_at = now()
                      WHERE id = $1 AND state = 'scheduled'";

#[tokio::test]
async fn a_task_that_is_claimed_meanwhile_is_refused_and_one_whose_claim_is_undone_is_not() {
    for (end, done, refused) in [("COMMIT", 2, Some(&1)), ("ROLLBACK", 3, None)] {
        let (counter, test) = fresh().await;
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(submitted(&counter, r#"{"queue":"a","delay_ms":60000}"#).await);
        }
        test.be_patient(PoolKind::Write).await;
        let mut claiming = test.pool.acquire().await.unwrap();
        sqlx::query("BEGIN").execute(&mut *claiming).await.unwrap();
        sqlx::query(CLAIM).bind(ids[1].uuid()).execute(&mut *claiming).await.unwrap();
        let desk = counter.desk.clone();
        let request = BulkRequest::parse(r#"{"action":"cancel","filter":{"queue":"a"}}"#).expect("a request");
        let asking = spawn_child(async move { desk.bulk(request).await });
        test.until_waiting(1).await;
        assert_eq!(test.live().await, 1, "tasks without a lock are cancelled before");
        sqlx::raw_sql(end).execute(&mut *claiming).await.unwrap();
        let answer = asking.await.unwrap().expect("answered");
        assert_eq!(
            (answer.matched, answer.done, answer.refused.get(&SkipReason::InFlight)),
            (3, done, refused),
            "{end}"
        );
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_stops_the_work_after_the_batch_at_hand() {
    let (counter, test) = fresh().await;
    sqlx::query(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
         SELECT (left(gen_random_uuid()::text, 32) || '0000')::uuid, 0, 'a', 'scheduled', due, due, '{}', 'application/json'
           FROM generate_series(1, 1200) AS g, LATERAL (SELECT now() + g * interval '1 min' AS due) AS moment",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    let first: uuid::Uuid =
        sqlx::query_scalar("SELECT id FROM duetime.task ORDER BY due_at LIMIT 1").fetch_one(&test.pool).await.unwrap();
    test.be_patient(PoolKind::Write).await;
    let lock = test.lock_row(TaskId::from_uuid(first)).await;
    let desk = counter.desk.clone();
    let request = BulkRequest::parse(r#"{"action":"cancel","all":true}"#).expect("a request");
    let asking = spawn_child(async move { desk.bulk(request).await });
    test.until_waiting(1).await;
    asking.abort();
    assert!(asking.await.expect_err("it has gone").is_cancelled());
    lock.release().await;
    // The node writes the batch to its end. Afterwards no statement waits for a lock.
    let written = async {
        while test.live().await > 1_200 - 500 {
            tokio::task::yield_now().await;
        }
    };
    soon("the batch is written", written).await;
    assert_eq!(bulk(&counter, r#"{"action":"cancel","all":true}"#).await.expect("the rest").matched, 700);
}

#[tokio::test]
async fn tasks_that_are_run_or_moved_near_are_put_before_their_owner() {
    let (counter, _test) = fresh().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(submitted(&counter, r#"{"queue":"a","delay_ms":600000,"expires_after_ms":900000}"#).await);
    }
    let held = &counter.databases.all()[0].owned_shards;
    held.adopt(&ids.iter().map(|id| (id.shard(), Epoch::from_store(1))).collect::<Vec<_>>());
    let refused = bulk(&counter, r#"{"action":"move","filter":{"queue":"a"},"shift_ms":400000}"#).await.expect("done");
    assert_eq!((refused.done, refused.refused.get(&SkipReason::WouldExpire)), (0, Some(&5)));
    assert_eq!(held.heap_len(), 0);
    let moved = bulk(&counter, r#"{"action":"move","filter":{"queue":"a"},"delay_ms":3000}"#).await.expect("done");
    assert_eq!((moved.matched, moved.done, held.heap_len()), (5, 5, 5));
    let run = bulk(&counter, r#"{"action":"run","filter":{"queue":"a"}}"#).await.expect("done");
    assert_eq!((run.matched, run.done), (5, 5));
    let again = bulk(&counter, r#"{"action":"run","filter":{"queue":"a"}}"#).await.expect("done");
    assert_eq!(again.matched, 0, "a due task already runs");
}

const SHIFT_MS: i64 = 7_200_000;

/// Three tasks of a queue, the second locked by a transaction that stays open.
async fn one_of_three_held(counter: &Counter, test: &fixture::TestDatabase) -> (Vec<TaskId>, fixture::RowLock) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(submitted(counter, r#"{"queue":"a","delay_ms":600000}"#).await);
    }
    let lock = test.lock_row(ids[1]).await;
    (ids, lock)
}

async fn due_at(counter: &Counter, ids: &[TaskId]) -> Vec<i64> {
    let mut due_at = Vec::new();
    for id in ids {
        due_at.push(counter.desk.get(*id).await.expect("it is there").due_at.micros());
    }
    due_at
}

fn shifted(before: &[i64], by: [i64; 3]) -> Vec<i64> {
    before.iter().zip(by).map(|(at, shifts)| at + shifts * SHIFT_MS * 1_000).collect()
}

#[tokio::test]
async fn a_task_that_an_open_transaction_locks_is_left_out_and_the_rest_is_shifted_once() {
    let (counter, test) = fresh().await;
    let (ids, lock) = one_of_three_held(&counter, &test).await;
    let before = due_at(&counter, &ids).await;
    let json = format!(r#"{{"action":"move","filter":{{"queue":"a"}},"shift_ms":{SHIFT_MS}}}"#);
    let answer = bulk(&counter, &json).await.expect("answered");
    assert_eq!((answer.matched, answer.done, answer.refused.get(&SkipReason::Held)), (3, 2, Some(&1)), "{answer:?}");
    assert!(answer.next_cursor.is_none() && answer.interrupted.is_none(), "{answer:?}");
    assert_eq!(due_at(&counter, &ids).await, shifted(&before, [1, 0, 1]));
    let cancelled = bulk(&counter, r#"{"action":"cancel","filter":{"queue":"a"}}"#).await.expect("answered");
    assert_eq!((cancelled.done, cancelled.refused.get(&SkipReason::Held)), (2, Some(&1)), "{cancelled:?}");
    lock.release().await;
    let cancelled = bulk(&counter, r#"{"action":"cancel","filter":{"queue":"a"}}"#).await.expect("answered");
    assert_eq!((cancelled.done, cancelled.refused.len()), (1, 0), "{cancelled:?}");
}

#[tokio::test]
async fn a_shift_that_an_outage_ends_early_goes_on_behind_what_it_has_shifted() {
    let (counter, test) = fresh().await;
    let (ids, lock) = one_of_three_held(&counter, &test).await;
    let before = due_at(&counter, &ids).await;
    test.be_patient(PoolKind::Write).await;
    // The disk is full when it is the turn of the task that was locked.
    test.fail_with("53100", "UPDATE", "task", "id", &ids[1].uuid().to_string()).await;
    let json = format!(r#"{{"action":"move","filter":{{"queue":"a"}},"shift_ms":{SHIFT_MS}}}"#);
    let desk = counter.desk.clone();
    let request = json.clone();
    let moving = spawn_child(async move { desk.bulk(BulkRequest::parse(&request).expect("a request")).await });
    test.until_waiting(1).await;
    lock.release().await;
    let answer = soon("an answer", moving).await.unwrap().expect("answered");
    assert_eq!((answer.matched, answer.done), (3, 2), "{answer:?}");
    assert_eq!(answer.refused.get(&SkipReason::Unavailable), Some(&1), "{answer:?}");
    assert!(answer.interrupted.is_some() && answer.next_cursor.is_none(), "{answer:?}");
    assert_eq!(due_at(&counter, &ids).await, shifted(&before, [1, 0, 1]));
}

#[tokio::test]
async fn a_dead_task_is_not_retried_beside_a_newer_one_with_its_key() {
    let (counter, _test) = fresh().await;
    let keyed = r#"{"queue":"a","key":"k","on_duplicate":"version"}"#;
    let id = dead(&counter, keyed).await;
    // A new task takes the key of a dead task of the same version.
    let newer = submitted(&counter, keyed).await;
    assert_ne!(newer, id);
    let refused = counter.desk.retry(id).await.expect_err("the key is taken");
    assert_eq!((refused.status, refused.slug(), refused.state), (409, "duplicate", Some(TaskState::Dead)));
    let json = r#"{"action":"retry","filter":{"queue":"a"}}"#;
    let answer = bulk(&counter, json).await.expect("answered");
    assert_eq!((answer.matched, answer.done, answer.refused.get(&SkipReason::KeyTaken)), (1, 0, Some(&1)));
    counter.desk.cancel(newer).await.expect("not claimed");
    assert_eq!(bulk(&counter, json).await.expect("answered").done, 1);
    assert_eq!(state(&counter, id).await, TaskState::Scheduled);
}

#[tokio::test]
async fn a_dead_task_of_a_queue_that_was_placed_anew_is_not_retried_on_its_old_shard() {
    let (counter, _test) = fresh().await;
    let place = async |placement: &str| {
        let policy = serde_json::from_str(&format!(r#"{{"placement":"{placement}"}}"#)).expect("a policy");
        counter.desk.queue_put(QueueName::new("a"), policy).await.expect("no task of it is left");
    };
    for (before, after) in [("spread", "single"), ("single", "spread")] {
        place(before).await;
        let id = dead(&counter, r#"{"queue":"a","key":"k","partition_key":"p"}"#).await;
        place(after).await;
        let refused = counter.desk.retry(id).await.expect_err("its key is ordered on another shard");
        assert_eq!((refused.status, refused.state), (409, Some(TaskState::Dead)), "{refused}");
        assert!(refused.detail.contains("`placement`"), "{refused}");
        let answer = bulk(&counter, r#"{"action":"retry","filter":{"queue":"a"}}"#).await.expect("answered");
        assert_eq!((answer.done, answer.refused.get(&SkipReason::PlacedAnew)), (0, Some(&1)), "{answer:?}");
        place(before).await;
        counter.desk.retry(id).await.expect("its shard is that of its key again");
        counter.desk.cancel(id).await.expect("not claimed");
    }
    place("spread").await;
    dead(&counter, r#"{"queue":"a"}"#).await;
    place("single").await;
    place("spread").await;
    let answer = bulk(&counter, r#"{"action":"retry","filter":{"queue":"a"}}"#).await.expect("answered");
    assert_eq!(answer.done, 1, "without a key it may be on any shard: {answer:?}");
}

#[tokio::test]
async fn a_dead_task_of_a_deleted_queue_stays_dead_until_its_queue_is_there_again() {
    let (counter, test) = fresh().await;
    let id = dead(&counter, r#"{"queue":"a"}"#).await;
    let forwarded = dead(&counter, r#"{"queue":"a"}"#).await;
    let envelope = "UPDATE duetime.archive SET envelope = '{}' WHERE id = $1";
    sqlx::query(envelope).bind(forwarded.uuid()).execute(&test.pool).await.unwrap();
    counter.desk.queue_delete(QueueName::new("a")).await.expect("no task of it is left");
    let refused = counter.desk.retry(id).await.expect_err("nobody reads its queue");
    assert_eq!((refused.status, refused.state), (409, Some(TaskState::Dead)), "{refused}");
    assert!(refused.detail.contains("was deleted"), "{refused}");
    // A message of a delay exchange needs no queue.
    for (found, done) in [(r#""filter":{"queue":"a"}"#, 1), (r#""all":true"#, 0)] {
        let answer = bulk(&counter, &format!(r#"{{"action":"retry",{found}}}"#)).await.expect("answered");
        assert_eq!((answer.done, answer.refused.get(&SkipReason::QueueDeleted)), (done, Some(&1)), "{answer:?}");
    }
    assert_eq!((state(&counter, id).await, state(&counter, forwarded).await), (TaskState::Dead, TaskState::Scheduled));
    counter.desk.queue_put(QueueName::new("a"), common::wire::QueueRequest::default()).await.expect("there is room");
    counter.desk.retry(id).await.expect("its queue is there again");
}

#[tokio::test]
async fn while_queues_cannot_be_read_a_retry_waits_unless_it_is_of_one_message_of_a_delay_exchange() {
    let (known, test) = fresh().await;
    let [id, forwarded] = [dead(&known, r#"{"queue":"a"}"#).await, dead(&known, r#"{"queue":"a"}"#).await];
    let envelope = "UPDATE duetime.archive SET envelope = '{}' WHERE id = $1";
    sqlx::query(envelope).bind(forwarded.uuid()).execute(&test.pool).await.unwrap();
    let started = counter(vec![Arc::clone(&test.database)], PLAIN);
    hide_queues(&test, true).await;
    let all = r#"{"action":"retry","filter":{"queue":"a"}}"#;
    assert_eq!(started.desk.retry(id).await.expect_err("its queue may be there").status, 503);
    assert_eq!(bulk(&started, all).await.expect_err("as may that of both").status, 503);
    started.desk.retry(forwarded).await.expect("it needs no queue");
    hide_queues(&test, false).await;
    forget_tries(&started);
    assert_eq!(bulk(&started, all).await.expect("the queue is there").done, 1);
}

#[tokio::test]
async fn what_was_done_before_a_database_was_missed_is_told_with_the_place_to_go_on() {
    let (counter, _test) = with_one_of_two_gone().await;
    let refused = bulk(&counter, r#"{"action":"cancel","all":true}"#).await.expect_err("the second is away");
    assert_eq!((refused.status, refused.detail.contains("`east`")), (503, true), "{refused}");
    let submitted = async {
        loop {
            let near = counter.desk.submit(request(r#"{"queue":"a","delay_ms":60000}"#)).await;
            if let Ok(near) = near {
                return near.id;
            }
        }
    };
    let id = soon("a task comes into the database that answers", submitted).await;
    let answer = bulk(&counter, r#"{"action":"cancel","all":true}"#).await.expect("some is done");
    assert_eq!((answer.matched, answer.done), (1, 1));
    assert_eq!(answer.interrupted.expect("told").status, 503);
    assert!(answer.next_cursor.is_some_and(|cursor| cursor.database == 1));
    assert_eq!(state(&counter, id).await, TaskState::Cancelled);
}

#[tokio::test]
async fn an_export_tells_each_task_with_every_field_and_ends_with_their_number() {
    let (counter, _tests) = with_two_databases().await;
    let full = concat!(
        r#"{"queue":"a","payload":{"n": 1.10},"due_at":"2040-01-01T00:00:00.000001Z","priority":2,"key":"k","version":3,"#,
        r#""partition_key":"p","max_attempts":4,"timeout_ms":5000,"retry":{"kind":"fixed","delay_ms":7},"#,
        r#""expires_at":"2040-01-02T00:00:00Z","headers":{"h":"v"}}"#,
    );
    let id = submitted(&counter, full).await;
    let bytes = submitted(&counter, r#"{"queue":"b","payload_base64":"AP8=","delay_ms":60000}"#).await;
    let mut cancelled = Vec::new();
    for _ in 0..20 {
        cancelled.push(submitted(&counter, r#"{"queue":"b","delay_ms":60000}"#).await);
        counter.desk.cancel(*cancelled.last().expect("pushed")).await.expect("cancelled");
    }
    let mut lines = export(&counter, TaskFilter::default()).await.expect("two databases");
    assert_eq!(lines.pop().expect("an end"), serde_json::json!({ "exported": 22 }));
    assert_eq!(lines.len(), 22);
    let line = |id: TaskId| lines.iter().find(|line| line["id"] == id.to_string()).expect("told").clone();
    let task: ExportedTask = serde_json::from_value(line(id)).expect("a task");
    let sent: Value = serde_json::from_str(full).expect("JSON");
    let mut again = serde_json::to_value(task.resubmission(false)).expect("JSON");
    again.as_object_mut().expect("an object").remove("content_type");
    again["expires_at"] = "2040-01-02T00:00:00Z".into();
    assert_eq!(again, sent);
    assert_eq!((&line(bytes)["payload_base64"], &line(bytes)["state"]), (&"AP8=".into(), &"scheduled".into()));
    let of_state = |state| TaskFilter { state: Some(state), ..TaskFilter::default() };
    for (filter, count) in
        [(of_state(TaskState::Cancelled), 20), (of_state(TaskState::Scheduled), 2), (of_state(TaskState::Succeeded), 0)]
    {
        assert_eq!(export(&counter, filter).await.expect("two databases").len(), count + 1);
    }
}

#[tokio::test]
async fn a_task_whose_payload_and_result_have_line_breaks_is_exported_in_one_line_and_no_byte_is_lost() {
    let (counter, _test) = fresh().await;
    let id = submitted(&counter, "{\"queue\":\"a\",\"payload\":{\n\"n\":\r\n1.10}}").await;
    let attempt = claim(&counter, id).await;
    let report = common::task::report::ResultBody::parse("{\"status\":\"discard\",\"result\":{\r\n\"a\":\n\"b\\n\"}}");
    counter.desk.report(id, attempt, report.expect("a report")).await.expect("applied");
    let lines = export(&counter, TaskFilter::default()).await.expect("for all queues");
    assert_eq!((lines.len(), &lines[1]), (2, &serde_json::json!({ "exported": 1 })));
    assert_eq!(lines[0]["result"], serde_json::json!({ "a": "b\n" }));
    let task: ExportedTask = serde_json::from_value(lines[0].clone()).expect("a task");
    let again = serde_json::to_string(&task.resubmission(false)).expect("JSON");
    let again = counter.desk.submit(request(&again)).await.expect("accepted").id;
    let payload = counter.desk.get(again).await.expect("it is there").payload.expect("JSON");
    assert_eq!(payload.get(), "{\n\"n\":\r\n1.10}");
}

#[tokio::test]
async fn large_tasks_are_told_a_few_at_a_time() {
    let (counter, test) = fresh().await;
    sqlx::query(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
         SELECT gen_random_uuid(), 0, 'big', 'scheduled', now(), now(), repeat('x', 1000000)::bytea, 'text/plain'
           FROM generate_series(1, 20)",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    let mut chunks = Box::pin(counter.desk.export(TaskFilter::default()).await.expect("for all queues"));
    let (mut largest, mut lines) = (0, 0);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.expect("read");
        largest = largest.max(chunk.len());
        lines += chunk.iter().filter(|byte| **byte == b'\n').count();
    }
    assert_eq!(lines, 21);
    assert!(largest < 8 << 20, "{largest} bytes at a time");
}

#[tokio::test]
async fn tasks_whose_dependencies_take_too_long_to_look_up_are_exported_a_few_at_a_time() {
    let (counter, test) = fresh().await;
    sqlx::raw_sql(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, partition_key, depends_on)
         SELECT gen_random_uuid(), 0, 'q', 'waiting', now(), now(), '', 'x', 'p', ARRAY['q k'] FROM generate_series(1, 10);
         CREATE OR REPLACE FUNCTION duetime.standing_of(p_name text, p_partition_key text) RETURNS duetime.task_state
         LANGUAGE plpgsql AS $$
         DECLARE v_asked integer := coalesce(nullif(current_setting('test.asked', true), ''), '0')::integer + 1;
         BEGIN
             PERFORM set_config('test.asked', v_asked::text, true);
             IF v_asked > 3 THEN
                 RAISE EXCEPTION 'more than three take too long' USING ERRCODE = 'query_canceled';
             END IF;
             RETURN NULL;
         END $$",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    assert_eq!(export(&counter, TaskFilter::default()).await.expect("to its end").len(), 11);
}

#[tokio::test]
async fn an_export_that_finds_nothing_for_long_shows_that_it_goes_on_and_each_line_is_json_all_the_same() {
    let (counter, test) = fresh().await;
    // Each of the two histories takes 600 ms to read.
    sqlx::raw_sql(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
         SELECT gen_random_uuid(), 0, 'slow', 'scheduled', now(), now(), '', 'text/plain' FROM generate_series(1, 2);
         ALTER TABLE duetime.task RENAME TO plain;
         ALTER TABLE duetime.plain RENAME COLUMN history TO quick_history;
         CREATE FUNCTION duetime.slowly(history jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS
             'BEGIN PERFORM pg_sleep(0.6); RETURN history; END';
         CREATE VIEW duetime.task AS SELECT *, duetime.slowly(quick_history) AS history FROM duetime.plain",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    let none = TaskFilter { state: Some(TaskState::Ready), ..TaskFilter::default() };
    let export = counter.desk.export(none).await.expect("for all queues");
    let chunks: Vec<Vec<u8>> = export.try_collect().await.expect("to its end");
    let (end, blanks) = chunks.split_last().expect("a last line");
    assert_eq!(end, b"{\"exported\":0}\n");
    assert!(!blanks.is_empty() && blanks.iter().all(|blank| blank == b" "), "{blanks:?}");
    let text = String::from_utf8(chunks.concat()).expect("UTF-8");
    assert!(text.lines().all(|line| serde_json::from_str::<ExportEnd>(line).is_ok_and(|end| end.exported == 0)));
}

#[tokio::test]
async fn an_export_that_lacks_a_database_breaks_off_without_its_last_line() {
    let (counter, _test) = with_one_of_two_gone().await;
    let refused = export(&counter, TaskFilter::default()).await.expect_err("half an export would mislead");
    assert_eq!(refused.status, 503);
}
