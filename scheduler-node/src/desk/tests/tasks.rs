//! Requests about one task.

use std::time::Duration;

use common::{
    access::Scope,
    ids::{Attempt, QueueName, ShardId, TaskId},
    queue::{Format, QueuePolicy, Settle},
    task::{TaskState, report::ResultBody, state::CancelOutcome},
    wire::ChangeRequest,
};
use sqlx::Connection;

use super::{PLAIN, claim, counter, fresh, hide_queues, request, with_one_of_two_gone};
use crate::{
    coordination::tests::soon,
    store::{
        PoolKind,
        tests::{
            failover::{TASKS, migrated, pair},
            fixture,
        },
    },
    supervise::spawn_child,
};

fn change(json: &str) -> ChangeRequest {
    ChangeRequest::parse(json).expect("a change")
}

#[tokio::test]
async fn what_is_no_id_and_what_has_no_row_is_not_found() {
    let (counter, _test) = fresh().await;
    assert_eq!(counter.desk.id("17").expect_err("no id").status, 404);
    let unknown = fixture::fresh_id();
    assert_eq!(counter.desk.id(&unknown.to_string()).expect("an id"), unknown);
    let elsewhere = fixture::fresh_id_of(ShardId::new(9_999));
    for id in [unknown, elsewhere] {
        assert_eq!(counter.desk.get(id).await.expect_err("no row").status, 404);
        assert_eq!(counter.desk.cancel(id).await.expect_err("no row").status, 404);
        assert_eq!(counter.desk.run(id).await.expect_err("no row").status, 404);
        assert_eq!(counter.desk.retry(id).await.expect_err("no row").status, 404);
        assert_eq!(counter.desk.change(id, change(r#"{"priority":1}"#)).await.expect_err("no row").status, 404);
        let body = ResultBody::parse(r#"{"status":"succeeded"}"#).expect("a report");
        assert_eq!(counter.desk.report(id, Attempt::new(1), body).await.expect_err("no row").status, 404);
    }
}

#[tokio::test]
async fn a_cancel_says_what_it_promises_and_repeats_it() {
    let (counter, _test) = fresh().await;
    let id = counter.desk.submit(request(r#"{"queue":"a","delay_ms":60000}"#)).await.expect("accepted").id;
    for _ in 0..2 {
        assert_eq!(counter.desk.cancel(id).await.expect("cancelled").outcome, CancelOutcome::Cancelled);
    }
    let shown = counter.desk.get(id).await.expect("kept for a day");
    assert_eq!((shown.state, shown.finished_at.is_some()), (TaskState::Cancelled, true));
    let refused = counter.desk.change(id, change(r#"{"priority":1}"#)).await.expect_err("it is over");
    assert_eq!((refused.status, refused.state), (409, Some(TaskState::Cancelled)));

    let id = counter.desk.submit(request(r#"{"queue":"a"}"#)).await.expect("accepted").id;
    let attempt = claim(&counter, id).await;
    let refused = counter.desk.cancel(id).await.expect_err("in flight");
    assert_eq!((refused.status, refused.slug(), refused.state), (409, "in_flight", Some(TaskState::Dispatching)));
    let failed = ResultBody::parse(r#"{"status":"failed","retry_in_ms":60000}"#).expect("a report");
    assert_eq!(counter.desk.report(id, attempt, failed).await.expect("applied").state, TaskState::Scheduled);
    for _ in 0..2 {
        assert_eq!(counter.desk.cancel(id).await.expect("cancelled").outcome, CancelOutcome::NoFurtherAttempts);
    }
}

#[tokio::test]
async fn a_cancel_waits_for_the_partition_of_the_archive_that_is_being_made() {
    let (counter, test) = fresh().await;
    // Rows that are deleted count although their statements fail.
    let count_deleted = "CREATE SEQUENCE public.deleted;
        CREATE FUNCTION public.count_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
        BEGIN PERFORM nextval('public.deleted'); RETURN OLD; END $$;
        CREATE TRIGGER count_deleted BEFORE DELETE ON duetime.task
            FOR EACH ROW EXECUTE FUNCTION public.count_deleted()";
    sqlx::raw_sql(count_deleted).execute(&test.pool).await.unwrap();
    let policy = serde_json::from_str(r#"{"keep_succeeded_ms":5184000000}"#).expect("60 days");
    counter.desk.queue_put(QueueName::new("long"), policy).await.expect("there is room");
    let id = counter.desk.submit(request(r#"{"queue":"long","delay_ms":60000}"#)).await.expect("accepted").id;
    let today = crate::clock::now().to_utc().date_naive();
    let days: Vec<_> = (61..63).filter_map(|days| today.checked_add_days(chrono::Days::new(days))).collect();
    let make = async {
        // A cancel that is refused has deleted the row twice: beside others, and alone. The third time it comes again.
        let tries = "SELECT last_value FROM public.deleted";
        while sqlx::query_scalar::<_, i64>(tries).fetch_one(&test.pool).await.unwrap() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        test.database.partitions_make(&days).await
    };
    let (cancelled, made) = tokio::join!(counter.desk.cancel(id), soon("the cancel comes again", make));
    made.expect("the partitions are made");
    assert_eq!(cancelled.expect("it has waited").outcome, CancelOutcome::Cancelled);
}

#[tokio::test]
async fn a_cancel_for_which_the_archive_has_no_partition_yet_may_come_again_and_a_refused_one_may_not() {
    let (counter, test) = fresh().await;
    let policy = serde_json::from_str(r#"{"keep_succeeded_ms":31536000000}"#).expect("a policy");
    counter.desk.queue_put(QueueName::new("long"), policy).await.expect("there is room");
    // Neither of the two check violations names a constraint.
    test.fail_with("23514", "INSERT", "archive", "queue", "poison").await;
    for (queue, status, why) in
        [("long", 503, "has no place for finished tasks yet"), ("poison", 500, "refuses a value")]
    {
        let body = format!(r#"{{"queue":"{queue}","delay_ms":60000}}"#);
        let id = counter.desk.submit(request(&body)).await.expect("accepted").id;
        let problem = counter.desk.cancel(id).await.expect_err("it finds no place");
        assert_eq!(problem.status, status, "{problem}");
        assert!(problem.detail.contains(why), "{problem}");
        assert_eq!(counter.desk.get(id).await.expect("it is there").state, TaskState::Scheduled);
    }
}

#[tokio::test]
async fn a_new_payload_has_the_format_that_another_node_set_a_moment_ago() {
    let (counter, test) = fresh().await;
    let id = counter.desk.submit(request(r#"{"queue":"a","delay_ms":60000}"#)).await.expect("accepted").id;
    let policy = QueuePolicy { format: Format::Celery, ..QueuePolicy::default() };
    test.database.queue_put(&QueueName::new("a"), &policy, None, 10).await.unwrap().expect("there is room");
    let no_call = || change(r#"{"payload":[1]}"#);

    hide_queues(&test, true).await;
    let problem = counter.desk.change(id, no_call()).await.expect_err("the format is unknown");
    assert_eq!((problem.status, problem.retry_after_s), (503, Some(1)), "{problem}");
    counter.desk.change(id, change(r#"{"priority":1}"#)).await.expect("it has no part in the format");

    hide_queues(&test, false).await;
    let problem = counter.desk.change(id, no_call()).await.expect_err("no call of a Celery task");
    assert_eq!((problem.status, problem.field.as_deref()), (422, Some("payload")), "{problem}");

    hide_queues(&test, true).await;
    let call = change(r#"{"payload":{"task":"later.mail"}}"#);
    counter.desk.change(id, call).await.expect("the node has read the change, and reads nothing again");
}

#[tokio::test]
async fn a_stop_knows_a_policy_that_another_node_set_a_moment_ago() {
    let (counter, test) = fresh().await;
    let id = counter.desk.submit(request(r#"{"queue":"a"}"#)).await.expect("accepted").id;
    claim(&counter, id).await;
    let refused = counter.desk.stop(id).await.expect_err("no consumer of this queue reports");
    assert_eq!((refused.status, refused.slug()), (409, "in_flight"));
    let policy = QueuePolicy { settle: Settle::Result, ..QueuePolicy::default() };
    test.database.queue_put(&QueueName::new("a"), &policy, None, 10).await.unwrap().expect("there is room");
    assert_eq!(counter.desk.stop(id).await.expect("asked").outcome, CancelOutcome::Stopping);
}

#[tokio::test]
async fn a_change_that_brings_a_task_near_puts_it_before_its_owner() {
    let (counter, _test) = fresh().await;
    let id = counter.desk.submit(request(r#"{"queue":"a","delay_ms":600000}"#)).await.expect("accepted").id;
    let held = &counter.databases.all()[0].owned_shards;
    held.adopt(&[(id.shard(), common::ids::Epoch::from_store(1))]);
    assert_eq!(held.heap_len(), 0);
    let changed = counter.desk.change(id, change(r#"{"delay_ms":2000,"payload":{"new":1}}"#)).await.expect("changed");
    assert_eq!(changed.payload.expect("JSON").get(), r#"{"new":1}"#);
    assert_eq!(held.next_due(), Some(changed.due_at));
    let run = counter.desk.run(id).await.expect("not claimed yet");
    assert!(run.due_at < changed.due_at);
    assert_eq!(held.next_due(), Some(run.due_at));
}

#[tokio::test]
async fn a_change_that_cannot_be_is_told_by_its_field() {
    let (counter, _test) = fresh().await;
    let body = r#"{"queue":"a","delay_ms":60000,"expires_after_ms":120000}"#;
    let id = counter.desk.submit(request(body)).await.expect("accepted").id;
    for (json, field) in [
        (r#"{"delay_ms":180000}"#, "due_at"),
        (r#"{"expires_after_ms":30000}"#, "expires_at"),
        (r#"{"priority":0}"#, "priority"),
    ] {
        let refused = counter.desk.change(id, change(json)).await.expect_err(json);
        assert_eq!((refused.status, refused.field.as_deref()), (422, Some(field)), "{json}");
    }
    counter.desk.change(id, change(r#"{"delay_ms":180000,"expires_at":null}"#)).await.expect("it never expires now");
}

#[tokio::test]
async fn a_task_whose_expiry_has_passed_is_told_as_expired_when_it_is_to_run_or_to_change() {
    let (counter, test) = fresh().await;
    let body = r#"{"queue":"a","delay_ms":60000,"expires_after_ms":120000}"#;
    let id = counter.desk.submit(request(body)).await.expect("accepted").id;
    let lapse = "UPDATE duetime.task SET expires_at = clock_timestamp() - interval '1 s'";
    sqlx::raw_sql(lapse).execute(&test.pool).await.unwrap();
    for json in [r#"{"priority":1}"#, r#"{"delay_ms":1000}"#, r#"{"expires_at":null}"#] {
        let refused = counter.desk.change(id, change(json)).await.expect_err("it is over");
        assert_eq!((refused.status, refused.slug(), refused.state), (409, "in_flight", Some(TaskState::Expired)));
    }
    let refused = counter.desk.run(id).await.expect_err("it is over");
    assert_eq!((refused.status, refused.slug(), refused.state), (409, "in_flight", Some(TaskState::Expired)));
}

#[tokio::test]
async fn an_unclaimed_task_is_moved_and_cancelled_by_its_key_while_readers_take_every_connection() {
    let (counter, test) = fresh().await;
    let body = r#"{"queue":"a","key":"k","partition_key":"p","delay_ms":600000}"#;
    let id = counter.desk.submit(request(body)).await.expect("accepted").id;
    let held = &counter.databases.all()[0].owned_shards;
    held.adopt(&[(id.shard(), common::ids::Epoch::from_store(1))]);
    let _readers = test.occupy(PoolKind::Read).await;
    let to_soon = change(r#"{"delay_ms":2000}"#);
    let moved = counter.desk.change_by_key("a", Some("p"), "k", to_soon).await.expect("it needs no look-up");
    assert_eq!((moved.id, held.next_due()), (id, Some(moved.due_at)), "its owner knows it");
    let cancelled = counter.desk.cancel_by_key("a", Some("p"), "k").await.expect("it needs no look-up");
    assert_eq!((cancelled.id, cancelled.outcome), (id, CancelOutcome::Cancelled));
}

#[tokio::test]
async fn a_request_by_key_gets_the_answer_that_the_task_gets_by_id() {
    let (counter, _test) = fresh().await;
    let desk = &counter.desk;
    let cancel = async |key: &str| desk.cancel_by_key("a", None, key).await;
    let alter = async |key: &str, json: &str| desk.change_by_key("a", None, key, change(json)).await;
    let body = r#"{"queue":"a","key":"k","delay_ms":60000,"expires_after_ms":120000}"#;
    desk.submit(request(body)).await.expect("accepted");
    let altered = alter("k", r#"{"delay_ms":61000,"priority":1}"#).await.expect("not claimed");
    assert_eq!(altered.priority, 1);
    for (json, field) in [(r#"{"delay_ms":180000}"#, "due_at"), (r#"{"priority":0}"#, "priority")] {
        let refused = alter("k", json).await.expect_err(json);
        assert_eq!((refused.status, refused.field.as_deref()), (422, Some(field)), "{json}");
    }
    for _ in 0..2 {
        assert_eq!(cancel("k").await.expect("cancelled").outcome, CancelOutcome::Cancelled);
    }
    let refused = alter("k", r#"{"delay_ms":1000}"#).await.expect_err("it is over");
    assert_eq!((refused.status, refused.state), (409, Some(TaskState::Cancelled)));

    let id = desk.submit(request(r#"{"queue":"a","key":"c"}"#)).await.expect("accepted").id;
    claim(&counter, id).await;
    let both = [cancel("c").await.map(drop), alter("c", r#"{"delay_ms":1000}"#).await.map(drop)];
    for refused in both.map(|answer| answer.expect_err("in flight")) {
        assert_eq!((refused.status, refused.slug(), refused.state), (409, "in_flight", Some(TaskState::Dispatching)));
    }

    let missing = cancel("none").await.expect_err("no such key");
    assert!(missing.status == 404 && missing.detail.contains("`none`"), "{missing}");
    for json in [r#"{"delay_ms":1000}"#, r#"{"priority":1}"#, r#"{"priority":0}"#] {
        assert_eq!(alter("none", json).await.expect_err("no such key").status, 404, "{json}");
    }
}

#[tokio::test]
async fn a_request_by_key_about_a_queue_outside_the_scope_changes_nothing() {
    let (counter, _test) = fresh().await;
    let mut ids = Vec::new();
    for queue in ["theirs", "mine"] {
        let body = format!(r#"{{"queue":"{queue}","key":"k","delay_ms":60000}}"#);
        ids.push(counter.desk.submit(request(&body)).await.expect("accepted").id);
    }
    let mine = counter.desk.within(Scope::of(Some(vec!["mine".to_owned()])).expect("a scope"));
    let moved = change(r#"{"delay_ms":1000}"#);
    assert_eq!(mine.change_by_key("theirs", None, "k", moved).await.expect_err("not theirs").status, 403);
    assert_eq!(mine.cancel_by_key("theirs", None, "k").await.expect_err("not theirs").status, 403);
    assert_eq!(counter.desk.get(ids[0]).await.expect("it is there").state, TaskState::Scheduled);
    assert_eq!(mine.cancel_by_key("mine", None, "k").await.expect("cancelled").id, ids[1]);
}

#[tokio::test]
async fn only_a_dead_task_is_retried() {
    let (counter, _test) = fresh().await;
    let id = counter.desk.submit(request(r#"{"queue":"a"}"#)).await.expect("accepted").id;
    let refused = counter.desk.retry(id).await.expect_err("it is alive");
    assert_eq!((refused.status, refused.state), (409, Some(TaskState::Scheduled)));
    let attempt = claim(&counter, id).await;
    let discard = ResultBody::parse(r#"{"status":"discard","status_msg":"no such address"}"#).expect("a report");
    let dead = counter.desk.report(id, attempt, discard).await.expect("applied");
    assert_eq!((dead.state, dead.status_msg.as_deref()), (TaskState::Dead, Some("no such address")));
    let revived = counter.desk.retry(id).await.expect("it was dead");
    assert_eq!((revived.state, revived.attempt, revived.attempts.len()), (TaskState::Scheduled, attempt, 1));
    assert_eq!(claim(&counter, id).await, Attempt::new(2));
}

#[tokio::test]
async fn a_report_about_an_attempt_that_is_over_is_stale() {
    let (counter, _test) = fresh().await;
    let id = counter.desk.submit(request(r#"{"queue":"a"}"#)).await.expect("accepted").id;
    let attempt = claim(&counter, id).await;
    let succeeded = || ResultBody::parse(r#"{"status":"succeeded","result":{"n":1}}"#).expect("a report");
    let done = counter.desk.report(id, attempt, succeeded()).await.expect("applied");
    assert_eq!((done.state, done.result.expect("kept").get()), (TaskState::Succeeded, r#"{"n":1}"#));
    let refused = counter.desk.report(id, attempt, succeeded()).await.expect_err("it is over");
    assert_eq!((refused.status, refused.slug(), refused.state), (409, "stale_attempt", Some(TaskState::Succeeded)));
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_stop_what_it_asked_for() {
    let (counter, test) = fresh().await;
    let id = counter.desk.submit(request(r#"{"queue":"a","delay_ms":60000}"#)).await.expect("accepted").id;
    test.be_patient(PoolKind::Write).await;
    let lock = test.lock_row(id).await;
    let desk = counter.desk.clone();
    let asking = spawn_child(async move { desk.cancel(id).await });
    test.until_waiting(1).await;
    asking.abort();
    assert!(asking.await.expect_err("it has gone").is_cancelled());
    lock.release().await;
    until_cancelled(&counter.desk, id).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_stop_what_it_asked_for_by_key() {
    let (counter, test) = fresh().await;
    let body = r#"{"queue":"a","key":"k","delay_ms":60000}"#;
    let id = counter.desk.submit(request(body)).await.expect("accepted").id;
    test.be_patient(PoolKind::Write).await;
    let lock = test.lock_row(id).await;
    let desk = counter.desk.clone();
    let asking = spawn_child(async move { desk.cancel_by_key("a", None, "k").await });
    test.until_waiting(1).await;
    asking.abort();
    assert!(asking.await.expect_err("it has gone").is_cancelled());
    lock.release().await;
    until_cancelled(&counter.desk, id).await;
}

async fn until_cancelled(desk: &super::Desk, id: TaskId) {
    let cancelled = async {
        while desk.get(id).await.expect("it is there").state != TaskState::Cancelled {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the task is cancelled", cancelled).await;
}

#[tokio::test]
async fn a_database_that_is_away_takes_only_its_own_tasks_with_it() {
    let (counter, _test) = with_one_of_two_gone().await;
    let (here, away) = (fixture::fresh_id_of(ShardId::new(1)), fixture::fresh_id_of(ShardId::new(100)));
    assert_eq!(counter.desk.get(here).await.expect_err("no row").status, 404);
    let (get, cancel) = tokio::join!(counter.desk.get(away), counter.desk.cancel(away));
    for refused in [get.expect_err("away"), cancel.expect_err("away")] {
        assert_eq!((refused.status, refused.retry_after_s.is_some()), (503, true));
        assert!(refused.detail.contains("`east`"), "{refused}");
    }
}

#[tokio::test]
async fn a_report_on_an_attempt_that_began_on_a_new_primary_counts_on_a_node_that_still_reads_the_old_one() {
    let (primary, standby) = pair().await;
    let url = primary.url_with(&standby, TASKS);
    migrated(&url).await.unwrap();
    let counter = counter(vec![fixture::open(&url)], PLAIN);
    let id = counter.desk.submit(request(r#"{"queue":"mail"}"#)).await.expect("accepted").id;
    claim(&counter, id).await;

    standby.promote().await.unwrap();
    let mut new = sqlx::PgConnection::connect(&standby.url(TASKS)).await.unwrap();
    sqlx::query("UPDATE duetime.task SET attempt = 2").execute(&mut new).await.unwrap();
    let failed = ResultBody::parse(r#"{"status":"failed","retry_in_ms":60000}"#).expect("a report");
    let answer = counter.desk.report(id, Attempt::new(2), failed).await.expect("applied");
    assert_eq!((answer.state, answer.attempt), (TaskState::Scheduled, Attempt::new(2)));
}
