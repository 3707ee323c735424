//! Limits of a queue that another node has changed.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{QueueName, ScheduleName, ShardId},
    limit::{PendingLimits, TokenLimits},
    task::envelope::{Field, Properties},
    wire::{Message, Problem, ScheduleRequest},
};
use futures::poll;
use serde_json::{Value, json};

use super::{
    Counter, PLAIN, counter, fresh, hide_queues,
    limits::{batch, count_mail, put_queue, statuses, task, tenant},
    reading::{ended_now, failed_before, failed_just_now, forget_tries, note_read},
    request,
};
use crate::{
    coordination::tests::soon,
    desk::{ROWS_WAIT, ReceiveOutcome, meter::MeteredSubject},
    store::{
        inbox::{InboxRow, InboxScope},
        tests::fixture::{self, TestDatabase},
    },
    supervise::spawn_child,
};

/// Two nodes with one database. The first one changes the queue `mail`; the second one has not read the change.
async fn two_nodes() -> (Counter, Counter, TestDatabase) {
    let (changing, test) = fresh().await;
    let behind = counter(vec![Arc::clone(&test.database)], PLAIN);
    (changing, behind, test)
}

/// Sets the policy of `mail` twice. The node that is behind knows the first one only.
async fn change(changing: &Counter, behind: &Counter, before: Value, after: Value) {
    put_queue(changing, "mail", before).await;
    behind.desk.catch_up().await.expect("the queues can be read");
    let known = behind.books.load().revision();
    put_queue(changing, "mail", after).await;
    assert_eq!(behind.books.load().revision(), known, "it has not read the change yet");
}

fn keyed(key: &str, on_duplicate: &str) -> Value {
    let mut task = task("mail");
    task["key"] = json!(key);
    task["on_duplicate"] = json!(on_duplicate);
    task
}

async fn submit(behind: &Counter) -> Result<(), Problem> {
    behind.desk.submit(request(&task("mail").to_string())).await.map(drop)
}

#[track_caller]
fn assert_refused(answer: Result<(), Problem>, limit: &str) {
    let problem = answer.expect_err("there is no room");
    assert_eq!(problem.status, 429, "{problem}");
    assert_eq!(problem.limit.expect("it names the limit").name, limit);
}

#[tokio::test]
async fn a_node_that_does_not_know_of_a_new_limit_refuses_by_it_all_the_same() {
    let (changing, behind, test) = two_nodes().await;
    for (policy, limit) in [
        (json!({ "max_pending": 0 }), "queue.max_pending"),
        (json!({ "max_pending_bytes": 0 }), "queue.max_pending_bytes"),
    ] {
        let limit_again = async || {
            change(&changing, &behind, json!({}), policy.clone()).await;
            count_mail(&behind, 0).await;
        };
        limit_again().await;
        assert_refused(submit(&behind).await, limit);
        limit_again().await;
        for answer in batch(&behind.desk, [keyed("a", "keep"), task("mail"), keyed("b", "replace")]).await {
            assert_refused(answer.map(drop), limit);
        }
        limit_again().await;
        let headers = vec![("duetime-queue".into(), Field::Text("mail".into()))];
        let properties = Properties { headers: Some(headers), ..Properties::default() };
        let message = Message { properties, body: b"12345678".to_vec(), ..Message::default() };
        let mut taken = behind.desk.receive(&[(None, &message)]).await;
        let Some(ReceiveOutcome::Refused(problem)) = taken.pop() else { panic!("{limit}: it is not set aside") };
        assert_refused(Err(problem), limit);
    }
    assert_eq!(test.live().await, 0);
}

#[tokio::test]
async fn a_node_that_does_not_know_of_a_new_rate_takes_no_more_than_it_allows() {
    let (changing, behind, test) = two_nodes().await;
    change(&changing, &behind, json!({}), json!({ "max_submits_per_second": 3 })).await;
    let answers = batch(&behind.desk, (0..200).map(|_| task("mail"))).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 3);
    let refused = answers.into_iter().find(Result::is_err).expect("some are refused");
    assert_refused(refused.map(drop), "queue.max_submits_per_second");
    assert_eq!(test.live().await, 3);
}

#[tokio::test]
async fn a_task_that_comes_in_again_takes_its_room_and_its_part_of_the_rate_once() {
    let (changing, behind, test) = two_nodes().await;
    let limits = json!({ "max_pending": 2, "max_submits_per_second": 2 });
    let more = json!({ "max_pending": 2, "max_submits_per_second": 2, "max_pending_bytes": 1_000 });
    change(&changing, &behind, limits, more).await;
    count_mail(&behind, 2).await;
    assert_eq!(statuses(&batch(&behind.desk, ["mail", "mail"].map(task)).await), [200, 200]);
    assert_eq!(submit(&behind).await.expect_err("there is no room").status, 429);
    assert_eq!(test.live().await, 2);
}

#[tokio::test]
async fn a_task_that_comes_in_again_needs_no_room_where_another_one_answers_for_it() {
    let (changing, behind, test) = two_nodes().await;
    assert_eq!(statuses(&batch(&changing.desk, [keyed("a", "keep")]).await), [200]);
    change(&changing, &behind, json!({}), json!({ "max_pending": 1 })).await;
    count_mail(&behind, 1).await;
    let tasks = [keyed("a", "keep"), keyed("b", "keep"), keyed("a", "replace")];
    assert_eq!(statuses(&batch(&behind.desk, tasks).await), [200, 429, 200]);
    assert_eq!(test.live().await, 1);
}

#[tokio::test]
async fn a_node_that_does_not_know_of_a_new_limit_of_schedules_refuses_by_it_all_the_same() {
    let (changing, behind, _test) = two_nodes().await;
    change(&changing, &behind, json!({}), json!({ "max_schedules": 1 })).await;
    let put = async |name: &str| {
        let schedule = json!({ "queue": "mail", "every_ms": 3_600_000 }).to_string();
        let schedule = ScheduleRequest::parse(&schedule).expect("a schedule");
        behind.desk.schedule_put(ScheduleName::new(name), schedule).await.map(drop)
    };
    put("one").await.expect("there is room");
    assert_refused(put("two").await, "queue.max_schedules");
    put("one").await.expect("it is there");
}

#[tokio::test]
async fn a_task_that_no_limit_refuses_is_not_refused_when_it_comes_in_again() {
    let (changing, behind, test) = two_nodes().await;
    let schedule = json!({ "queue": "mail", "every_ms": 3_600_000 }).to_string();
    let schedule = ScheduleRequest::parse(&schedule).expect("a schedule");
    changing.desk.schedule_put(ScheduleName::new("hourly"), schedule).await.expect("made");
    change(&changing, &behind, json!({}), json!({ "max_pending": 0 })).await;
    count_mail(&behind, 0).await;
    behind.desk.schedule_run(ScheduleName::new("hourly")).await.expect("tasks of a schedule are not limited");
    assert_eq!(test.live().await, 1);
}

#[tokio::test]
async fn a_limit_is_in_force_for_a_queue_that_its_first_task_made_and_for_one_that_was_deleted_meanwhile() {
    let (changing, behind, test) = two_nodes().await;
    let first = behind.desk.submit(request(&task("mail").to_string())).await.expect("accepted");
    put_queue(&changing, "mail", json!({ "max_pending": 1 })).await;
    count_mail(&behind, 1).await;
    assert_refused(submit(&behind).await, "queue.max_pending");
    behind.desk.cancel(first.id).await.expect("cancelled");
    put_queue(&changing, "mail", json!({})).await;
    behind.desk.catch_up().await.expect("the queues can be read");
    changing.desk.queue_delete(QueueName::new("mail")).await.expect("no task of it is left");
    put_queue(&changing, "mail", json!({ "max_pending": 0 })).await;
    assert_refused(submit(&behind).await, "queue.max_pending");
    assert_eq!(test.live().await, 0);
}

/// The submissions in SQL that wait, as the node that is behind reads them.
async fn waiting_rows(behind: &Counter, test: &TestDatabase) -> Vec<InboxRow> {
    let shards: Vec<ShardId> = fixture::all_shards().iter().collect();
    let (others_after, known) = (Default::default(), behind.books.load().revision());
    let wanted = InboxScope { owned: &shards, reachable: &shards, others_after, most: 100, aside: &[], known };
    test.database.inbox_read(wanted).await.expect("the inbox can be read")
}

#[tokio::test]
async fn a_submission_in_sql_is_judged_by_what_its_queue_was_when_it_was_committed_or_later() {
    let (changing, behind, test) = two_nodes().await;
    change(&changing, &behind, json!({}), json!({ "max_pending": 0 })).await;
    count_mail(&behind, 0).await;
    sqlx::query("SELECT duetime.submit('mail', '1')").execute(&test.pool).await.unwrap();
    let rows = waiting_rows(&behind, &test).await;
    hide_queues(&test, true).await;
    let (judged, _room) = behind.desk.judge(&rows).await;
    assert!(judged[0].as_ref().expect_err("its queue has changed").is_unavailable(), "the row waits: {judged:?}");
    hide_queues(&test, false).await;
    forget_tries(&behind);
    let (mut judged, _room) = behind.desk.judge(&rows).await;
    assert_refused(judged.remove(0).map(drop), "queue.max_pending");
}

#[tokio::test]
async fn while_the_queues_cannot_be_read_only_rows_wait_that_name_one_with_other_rules() {
    let (changing, behind, test) = two_nodes().await;
    for queue in ["paused", "other"] {
        put_queue(&changing, queue, json!({})).await;
    }
    change(&changing, &behind, json!({}), json!({ "max_pending": 5 })).await;
    changing.desk.queue_pause(QueueName::new("paused"), true).await.expect("paused");
    for queue in ["mail", "paused", "other"] {
        sqlx::query("SELECT duetime.submit($1, '1')").bind(queue).execute(&test.pool).await.unwrap();
    }
    let mut rows = waiting_rows(&behind, &test).await;
    let depends_on = json!([{ "queue": "mail", "key": "a" }]);
    let dependent = json!({ "queue": "other", "key": "b", "partition_key": "p", "depends_on": depends_on });
    rows[2].request = Some(dependent.to_string());
    hide_queues(&test, true).await;
    let (judged, _room) = behind.desk.judge(&rows).await;
    let waits: Vec<bool> =
        judged.iter().map(|one| one.as_ref().is_err_and(|problem| problem.is_unavailable())).collect();
    assert_eq!(waits, [true, false, true], "{judged:?}");
    assert!(judged[1].is_ok(), "a pause is no rule for submissions: {judged:?}");
}

/// Each pass over the inbox would wait for such a read while the first database is away.
#[tokio::test]
async fn the_queues_are_read_only_for_rows_that_name_one_with_other_rules_and_not_again_soon_after_a_failure() {
    let (changing, behind, test) = two_nodes().await;
    put_queue(&changing, "other", json!({})).await;
    change(&changing, &behind, json!({}), json!({ "dedup_window_ms": 0 })).await;
    for queue in ["other", "mail"] {
        sqlx::query("SELECT duetime.submit($1, '1')").bind(queue).execute(&test.pool).await.unwrap();
    }
    let (rows, known) = (waiting_rows(&behind, &test).await, behind.books.load().revision());
    let (judged, _room) = behind.desk.judge(&rows[..1]).await;
    assert!(judged[0].is_ok(), "{judged:?}");
    assert_eq!(behind.books.load().revision(), known, "its queue has not changed");

    // The intake leaves the second row alone for that long, so it comes back later than that.
    for failed in [failed_just_now(), failed_before(ROWS_WAIT + Duration::from_secs(1))] {
        note_read(&behind, failed);
        let (judged, _room) = behind.desk.judge(&rows).await;
        assert!(judged[0].is_ok() && judged[1].is_err(), "{judged:?}");
        assert_eq!(behind.books.load().revision(), known, "the failure answers");
    }

    forget_tries(&behind);
    let (judged, _room) = behind.desk.judge(&rows).await;
    assert!(judged[1].is_ok(), "{judged:?}");
    assert!(behind.books.load().revision() > known);
}

#[tokio::test]
async fn requests_that_wait_for_a_read_of_changed_queues_share_it_also_where_it_fails() {
    let (changing, behind, test) = two_nodes().await;
    change(&changing, &behind, json!({}), json!({ "max_pending": 5 })).await;
    let newer = behind.books.load().revision() + 1;
    let reading = behind.desk.inner.reading.turn.lock().await;
    let mut asking = pin!(behind.desk.read_as_of(newer));
    assert!(poll!(asking.as_mut()).is_pending());
    behind.desk.catch_up().await.expect("the queues can be read");
    hide_queues(&test, true).await;
    drop(reading);
    assert!(asking.await, "the book is new enough by now");
    hide_queues(&test, false).await;

    for is_read in [true, false] {
        let reading = behind.desk.inner.reading.turn.lock().await;
        let mut asking = pin!(behind.desk.read_as_of(newer + 1));
        assert!(poll!(asking.as_mut()).is_pending());
        note_read(&behind, ended_now(is_read));
        drop(reading);
        hide_queues(&test, is_read).await;
        assert_eq!(asking.await, is_read, "a read began while it waited");
    }
    assert!(behind.desk.read_as_of(newer + 1).await, "a later request makes one of its own");
}

/// A count that finds those would otherwise leave the others no room.
#[tokio::test]
async fn tasks_that_are_stored_count_once_while_others_of_their_request_come_in_again() {
    let (changing, behind, test) = two_nodes().await;
    put_queue(&changing, "other", json!({})).await;
    change(&changing, &behind, json!({}), json!({ "max_pending": 5 })).await;
    let tenant = tenant(&behind, &["mail", "other"], TokenLimits { pending: Some(2), ..TokenLimits::NONE });
    let meter = tenant.meters().of(MeteredSubject::Scope(tenant.scope.clone()), Instant::now());
    let reading = behind.desk.inner.reading.turn.lock().await;
    let desk = tenant.clone();
    let sending = spawn_child(async move { batch(&desk, ["other", "mail"].map(task)).await });
    // An admission holds its meters.
    let is_answered = async {
        while test.live().await == 0 || Arc::strong_count(&meter) > 2 {
            tokio::task::yield_now().await;
        }
    };
    soon("one task is stored, and the other one waits for the new rules", is_answered).await;
    meter.count(&tenant, PendingLimits { tasks: Some(2), bytes: None }).changed().await.expect("a count");
    drop(reading);
    assert_eq!(statuses(&sending.await.unwrap()), [200, 200]);
    assert_eq!(statuses(&batch(&tenant, [task("other")]).await), [429]);
    assert_eq!(test.live().await, 2);
}

#[tokio::test]
async fn a_task_that_is_handed_back_for_the_last_time_gives_back_its_part_of_the_rate() {
    let (node, test) = fresh().await;
    put_queue(&node, "mail", json!({ "max_submits_per_second": 1 })).await;
    let turn = async |revision: i64| {
        let sql = "UPDATE duetime.queue_turn SET revision = $1, placed = $1";
        sqlx::query(sql).bind(revision).execute(&test.pool).await.unwrap();
    };
    // The queues have no such revision, so no attempt knows the rules.
    turn(1_000_000).await;
    assert_eq!(submit(&node).await.expect_err("its rules change each time").status, 503);
    turn(0).await;
    submit(&node).await.expect("no other task of this second was stored");
}
