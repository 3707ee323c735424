//! Limits of queues and tokens.

use std::{sync::Arc, time::Instant};

use common::{
    access::{Caller, Role, Scope},
    ids::QueueName,
    limit::{Limit, PendingLimits, TokenLimits},
    queue::Placement,
    shard::route::bound_to,
    task::{
        envelope::{Field, Properties},
        report::ResultBody,
    },
    wire::{Message, Problem, QueueRequest, ScheduleRequest, TaskReceipt},
};
use serde_json::{Value, json};

use super::{Counter, PLAIN, Setup, claim, counter, fresh, request, with_two_databases};
use crate::{
    coordination::tests::soon,
    desk::{Desk, ReceiveOutcome, meter::MeteredSubject},
    store::{inbox::InboxRow, tests::fixture},
    supervise::spawn_child,
};

pub(super) async fn put_queue(counter: &Counter, name: &str, policy: Value) {
    let request = QueueRequest::parse(&policy.to_string()).expect("a queue");
    counter.desk.queue_put(QueueName::new(name), request).await.expect("set");
}

/// The desk for a token of these queues.
pub(super) fn tenant(counter: &Counter, queues: &[&str], limits: TokenLimits) -> Desk {
    let queues = Scope::of(Some(queues.iter().map(ToString::to_string).collect())).expect("a scope");
    counter.desk.of(&Caller { id: None, name: "tenant".into(), role: Role::Operator, queues, limits })
}

pub(super) fn task(queue: &str) -> Value {
    json!({ "queue": queue, "delay_ms": 60_000, "payload": "12345678" })
}

pub(super) async fn batch(desk: &Desk, tasks: impl IntoIterator<Item = Value>) -> Vec<Result<TaskReceipt, Problem>> {
    desk.submit_batch(tasks.into_iter().map(|task| Ok(request(&task.to_string()))).collect()).await
}

pub(super) fn statuses(answers: &[Result<TaskReceipt, Problem>]) -> Vec<u16> {
    answers.iter().map(|answer| answer.as_ref().map_or_else(|problem| problem.status, |_| 200)).collect()
}

/// Counts the tasks of the queue `mail`, however slow the machine is. A submission waits two seconds for the first
/// count, and is accepted without one.
pub(super) async fn count_mail(counter: &Counter, most: i64) {
    let meter = counter.desk.meters().of(MeteredSubject::Queue(QueueName::new("mail")), Instant::now());
    let mut counted = meter.count(&counter.desk, PendingLimits { tasks: Some(most), bytes: None });
    counted.changed().await.expect("a count of no task");
}

/// A submission in SQL.
fn row(counter: &Counter, task: &Value) -> InboxRow {
    InboxRow {
        id: fixture::fresh_id(),
        request: Some(task.to_string()),
        submitted_at: counter.desk.now(),
        leaving: false,
        is_last: false,
        rules_changed: Default::default(),
    }
}

fn refused(counter: &Counter, limit: Limit) -> u64 {
    counter.desk.limited(limit).get()
}

/// A request with a key that exists is answered with the other task, unless it makes a new one.
#[tokio::test]
async fn a_newer_version_of_a_finished_task_needs_room() {
    let (counter, _test) = fresh().await;
    put_queue(&counter, "mail", json!({ "max_pending": 2 })).await;
    let versioned = |key: &str, version: i64| json!({ "queue": "mail", "key": key, "version": version, "on_duplicate": "version", "delay_ms": 60_000 });
    let answers = batch(&counter.desk, [versioned("done", 1), versioned("waiting", 1)]).await;
    assert_eq!(statuses(&answers), [200, 200]);
    let done = answers[0].as_ref().expect("accepted").id;
    counter.desk.run(done).await.expect("it may run");
    let attempt = claim(&counter, done).await;
    let succeeded = ResultBody::parse(r#"{"status":"succeeded"}"#).expect("a report");
    counter.desk.report(done, attempt, succeeded).await.expect("applied");
    // A refusal may rely on a count that is up to 0.1 s old.
    let accepted = async {
        while counter.desk.submit(request(&task("mail").to_string())).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    soon("there is room for one again", accepted).await;
    let answers = batch(
        &counter.desk,
        [versioned("done", 1), versioned("done", 2), versioned("waiting", 2), versioned("new", 1)],
    )
    .await;
    assert_eq!(statuses(&answers), [200, 429, 200, 429], "a newer version of a waiting task takes its place");
}

#[tokio::test]
async fn a_queue_takes_tasks_up_to_its_limit_and_again_when_some_are_gone() {
    let (counter, _tests) = with_two_databases().await;
    put_queue(&counter, "mail", json!({ "max_pending": 5 })).await;
    let answers = batch(&counter.desk, (0..8).map(|_| task("mail"))).await;
    assert_eq!(statuses(&answers), [200, 200, 200, 200, 200, 429, 429, 429]);
    let problem = answers[7].as_ref().expect_err("refused");
    let limit = problem.limit.clone().expect("it names the limit");
    assert_eq!((limit.name.as_ref(), limit.most, limit.used), ("queue.max_pending", 5, Some(5)));
    assert_eq!((problem.slug(), problem.retry_after_s), ("limit", Some(5)));
    assert_eq!(refused(&counter, Limit::QueuePending), 3);

    let first = answers[0].as_ref().expect("accepted").id;
    counter.desk.cancel(first).await.expect("cancelled");
    let submit = || counter.desk.submit(request(&task("mail").to_string()));
    // A refusal may rely on a count that is up to 0.1 s old.
    let accepted = async {
        while submit().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    soon("there is room for one again", accepted).await;
    assert_eq!(submit().await.expect_err("full again").status, 429);
    counter.desk.submit(request(&task("other").to_string())).await.expect("another queue is not limited");
}

#[tokio::test]
async fn what_was_there_before_the_limit_counts() {
    let (counter, _test) = fresh().await;
    let answers = batch(&counter.desk, (0..20).map(|_| task("mail"))).await;
    assert!(answers.iter().all(Result::is_ok));
    put_queue(&counter, "mail", json!({ "max_pending": 10 })).await;
    let over = counter.desk.submit(request(&task("mail").to_string())).await.expect_err("there are 20");
    assert!(over.limit.expect("it names the limit").used.expect("a figure") > 10);
    put_queue(&counter, "mail", json!({ "max_pending": 21 })).await;
    assert_eq!(statuses(&batch(&counter.desk, [task("mail"), task("mail")]).await), [200, 429], "counted to the end");
}

#[tokio::test]
async fn many_at_one_moment_do_not_pass_together() {
    let (counter, test) = fresh().await;
    put_queue(&counter, "mail", json!({ "max_pending": 7 })).await;
    count_mail(&counter, 7).await;
    let submit = || async { counter.desk.submit(request(&task("mail").to_string())).await.is_ok() };
    let accepted = futures::future::join_all((0..50).map(|_| submit())).await;
    assert_eq!(accepted.into_iter().filter(|accepted| *accepted).count(), 7);
    assert_eq!(test.live().await, 7);
}

#[tokio::test]
async fn a_count_does_not_forget_what_is_on_its_way_into_the_database() {
    let (counter, test) = fresh().await;
    put_queue(&counter, "mail", json!({ "max_pending": 2 })).await;
    let mut blocker = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *blocker).await.unwrap();
    sqlx::query("LOCK TABLE duetime.task IN SHARE MODE").execute(&mut *blocker).await.unwrap();
    let desk = counter.desk.clone();
    let submitting = spawn_child(async move { batch(&desk, ["mail", "mail"].map(task)).await });
    test.until_waiting(1).await;
    count_mail(&counter, 2).await;
    let third = counter.desk.submit(request(&task("mail").to_string())).await.expect_err("two are on their way");
    assert_eq!(third.status, 429, "{third}");
    sqlx::query("ROLLBACK").execute(&mut *blocker).await.unwrap();
    assert_eq!(statuses(&submitting.await.expect("it ends")), [200, 200]);
}

#[tokio::test]
async fn while_tasks_cannot_be_counted_a_limit_refuses_none_for_good() {
    let (counter, test) = fresh().await;
    put_queue(&counter, "mail", json!({ "max_pending": 1 })).await;
    assert_eq!(statuses(&batch(&counter.desk, [task("mail")]).await), [200]);
    let mut blocker = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *blocker).await.unwrap();
    sqlx::query("LOCK TABLE duetime.task IN ACCESS EXCLUSIVE MODE").execute(&mut *blocker).await.unwrap();
    // A refusal may rely on a count that is up to 1 s old.
    let problem = soon("the count is too old to refuse by", async {
        loop {
            let problem = counter.desk.submit(request(&task("mail").to_string())).await.expect_err("no room is known");
            if problem.status != 429 {
                break problem;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(problem.is_unavailable() && problem.detail.contains("cannot be counted"), "{problem}");
    assert!(problem.retry_after_s.is_some() && problem.limit.is_none(), "{problem:?}");
    let (judged, _room) = counter.desk.judge(&[row(&counter, &task("mail"))]).await;
    assert!(judged[0].as_ref().expect_err("no room is known").is_unavailable(), "the row waits: {judged:?}");
    let headers = vec![("duetime-queue".into(), Field::Text("mail".into()))];
    let message =
        Message { properties: Properties { headers: Some(headers), ..Properties::default() }, ..Message::default() };
    let taken = counter.desk.receive(&[(None, &message)]).await;
    assert!(matches!(taken.as_slice(), [ReceiveOutcome::Again(_)]), "{taken:?}");
    sqlx::query("DELETE FROM duetime.task").execute(&mut *blocker).await.unwrap();
    sqlx::query("COMMIT").execute(&mut *blocker).await.unwrap();
    let accepted = async {
        while counter.desk.submit(request(&task("mail").to_string())).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    soon("the tasks are counted again", accepted).await;
}

#[tokio::test]
async fn bytes_are_limited_as_they_are_stored() {
    let (counter, _test) = fresh().await;
    // Each payload has 10 bytes with its quotes.
    put_queue(&counter, "mail", json!({ "max_pending_bytes": 35 })).await;
    let answers = batch(&counter.desk, (0..4).map(|_| task("mail"))).await;
    assert_eq!(statuses(&answers), [200, 200, 200, 429]);
    let limit = answers[3].as_ref().expect_err("refused").limit.clone().expect("it names the limit");
    assert_eq!((limit.name.as_ref(), limit.most, limit.used), ("queue.max_pending_bytes", 35, Some(30)));
    let small = json!({ "queue": "mail", "delay_ms": 60_000, "payload": "123" });
    assert_eq!(statuses(&batch(&counter.desk, [small]).await), [200], "a smaller one has room");
}

#[tokio::test]
async fn a_task_that_takes_anothers_place_needs_room_for_the_bytes_that_it_adds() {
    let (counter, _test) = fresh().await;
    put_queue(&counter, "mail", json!({ "max_pending_bytes": 1_000 })).await;
    let sized = |bytes: usize, key: &str, more: Value| {
        // Two of the bytes are quotes.
        let mut task = json!({ "queue": "mail", "delay_ms": 60_000, "payload": "x".repeat(bytes - 2), "key": key });
        task.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        task
    };
    let version = |version: i64| json!({ "on_duplicate": "version", "version": version });
    let replace = || json!({ "on_duplicate": "replace" });
    let full = [sized(10, "a", json!({})), sized(10, "b", version(1)), sized(980, "c", json!({}))];
    assert_eq!(statuses(&batch(&counter.desk, full).await), [200, 200, 200]);
    for (task, status) in [
        (sized(900, "a", replace()), 429),
        (sized(900, "b", version(2)), 429),
        (sized(900, "a", json!({})), 200),
        (sized(10, "a", replace()), 200),
    ] {
        assert_eq!(statuses(&batch(&counter.desk, [task.clone()]).await), [status], "{task}");
    }
    assert_eq!(statuses(&batch(&counter.desk, [sized(100, "c", replace())]).await), [200], "it makes room");
    let accepted = async {
        while counter.desk.submit(request(&sized(800, "a", replace()).to_string())).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    soon("there is room for the larger one", accepted).await;
}

#[tokio::test]
async fn a_token_is_limited_over_all_its_queues_and_no_other_is() {
    let (counter, _tests) = with_two_databases().await;
    let limits = TokenLimits { pending: Some(3), ..TokenLimits::NONE };
    let shop = tenant(&counter, &["shop.*"], limits);
    counter.desk.submit(request(&task("shop.a").to_string())).await.expect("tasks of other callers count too");
    let answers = batch(&shop, ["shop.a", "shop.b", "shop.c", "shop.a"].map(task)).await;
    assert_eq!(statuses(&answers), [200, 200, 429, 429]);
    let problem = answers[3].as_ref().expect_err("refused");
    assert_eq!(problem.limit.as_ref().expect("it names the limit").name, "token.pending");
    assert!(problem.detail.contains("shop.*"), "{problem}");
    assert!(counter.books.load().find(&QueueName::new("shop.c")).is_none(), "a refused task makes no queue");
    counter.desk.submit(request(&task("shop.a").to_string())).await.expect("the limit is the token's");
    tenant(&counter, &["mail"], limits).submit(request(&task("mail").to_string())).await.expect("another tenant");
}

#[tokio::test]
async fn a_task_that_is_there_already_is_answered_though_there_is_no_room() {
    let (counter, _test) = fresh().await;
    put_queue(&counter, "mail", json!({ "max_pending": 2 })).await;
    let keyed = |key: &str| {
        let mut task = task("mail");
        task["key"] = json!(key);
        task
    };
    assert_eq!(statuses(&batch(&counter.desk, ["a", "b", "c"].map(keyed)).await), [200, 200, 429]);
    let answers = batch(&counter.desk, ["c", "a"].map(keyed)).await;
    assert_eq!(statuses(&answers), [429, 200]);
    assert!(answers[1].as_ref().expect("answered").duplicate);
}

#[tokio::test]
async fn a_task_whose_key_an_accepted_one_of_its_batch_has_needs_no_room_of_its_own() {
    let (counter, test) = fresh().await;
    put_queue(&counter, "mail", json!({ "max_pending": 1, "max_pending_bytes": 100 })).await;
    let keyed = |key: &str, payload: &str| json!({ "queue": "mail", "key": key, "on_duplicate": "replace", "delay_ms": 60_000, "payload": payload });
    let large = "x".repeat(200);
    let tasks = [keyed("a", "1"), keyed("b", "1"), keyed("a", &large), keyed("a", "2"), keyed("b", "2")];
    let answers = batch(&counter.desk, tasks).await;
    assert_eq!(statuses(&answers), [200, 429, 429, 200, 429], "the large one adds too many bytes");
    let [first, last] = [&answers[0], &answers[3]].map(|answer| answer.as_ref().expect("accepted").id);
    assert_eq!((first, test.live().await), (last, 1));
}

#[tokio::test]
async fn tasks_of_one_key_in_one_batch_share_the_room_of_the_largest() {
    let task = |bytes: usize| {
        // The quotes of a payload count too.
        let payload = "x".repeat(bytes - 2);
        json!({ "queue": "mail", "key": "a", "on_duplicate": "replace", "delay_ms": 60_000, "payload": payload })
    };
    for (stored, sizes) in [(None, [50, 80, 80]), (None, [60, 60, 61]), (None, [90, 3, 90]), (Some(50), [80, 90, 95])] {
        let (counter, test) = fresh().await;
        put_queue(&counter, "mail", json!({ "max_pending_bytes": 100 })).await;
        let answers = batch(&counter.desk, stored.map(task)).await;
        assert!(answers.iter().all(Result::is_ok));
        let answers = batch(&counter.desk, sizes.map(task)).await;
        assert_eq!(statuses(&answers), [200; 3], "{stored:?} {sizes:?}");
        assert_eq!(test.live().await, 1);
    }
}

#[tokio::test]
async fn a_task_takes_no_room_that_it_does_not_need_from_others() {
    let keyed = |key: &str, rule: &str, bytes: usize| {
        // The quotes of a payload count too.
        let payload = "x".repeat(bytes - 2);
        json!({ "queue": "mail", "key": key, "on_duplicate": rule, "delay_ms": 60_000, "payload": payload })
    };
    let replace = |key: &str, bytes| keyed(key, "replace", bytes);
    let (two, bytes) = (json!({ "max_pending": 2 }), json!({ "max_pending_bytes": 1_000 }));
    let stored = || vec![replace("a", 400), replace("b", 500)];
    for (policy, stored, tasks, live) in [
        (&two, vec![], vec![replace("k", 10), replace("k", 10), task("mail")], 2),
        (&two, vec![replace("k", 10)], vec![keyed("k", "keep", 10), task("mail")], 2),
        (&bytes, stored(), vec![replace("b", 500), replace("a", 450)], 2),
        (&bytes, stored(), vec![replace("a", 450), replace("b", 500)], 2),
    ] {
        let (counter, test) = fresh().await;
        put_queue(&counter, "mail", policy.clone()).await;
        let answers = batch(&counter.desk, stored.clone()).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let answers = batch(&counter.desk, tasks.clone()).await;
        assert!(answers.iter().all(Result::is_ok), "{stored:?} {tasks:?}: {answers:?}");
        assert_eq!(test.live().await, live, "{stored:?} {tasks:?}");
    }
}

#[tokio::test]
async fn a_key_is_looked_up_once_for_all_its_tasks_and_they_wait_while_that_fails() {
    let (counter, test) = fresh().await;
    put_queue(&counter, "mail", json!({ "max_pending": 1 })).await;
    let mut task = task("mail");
    task["key"] = json!("k");
    task["on_duplicate"] = json!("replace");
    assert_eq!(statuses(&batch(&counter.desk, [task.clone()]).await), [200]);
    count_mail(&counter, 1).await;
    let shard = bound_to(&QueueName::new("mail"), Placement::Spread, None, Some("k"), fixture::SHARDS.into());
    let id = || fixture::fresh_id_of(shard.expect("a key is bound to a shard"));
    let rows: Vec<InboxRow> = (0..150).map(|_| InboxRow { id: id(), ..row(&counter, &task) }).collect();
    let (judged, _room) = counter.desk.judge(&rows).await;
    assert!(judged.iter().all(Result::is_ok), "one task stays one: {judged:?}");
    // A count reads an index alone.
    sqlx::raw_sql("ALTER TABLE duetime.task RENAME COLUMN version TO hidden").execute(&test.pool).await.unwrap();
    let (judged, _room) = counter.desk.judge(&rows).await;
    assert!(judged.iter().all(|judged| judged.as_ref().is_err_and(Problem::is_unavailable)), "{judged:?}");
    assert_eq!(statuses(&batch(&counter.desk, [task]).await), [503]);
}

#[tokio::test]
async fn a_queue_takes_so_many_submissions_a_second() {
    let (counter, _test) = fresh().await;
    put_queue(&counter, "mail", json!({ "max_submits_per_second": 3 })).await;
    let answers = batch(&counter.desk, (0..200).map(|_| task("mail"))).await;
    let accepted = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!((3..200).contains(&accepted), "{accepted}");
    let problem = answers.into_iter().find_map(Result::err).expect("some are refused");
    assert_eq!(problem.limit.as_ref().expect("it names the limit").name, "queue.max_submits_per_second");
    assert_eq!(problem.retry_after_s, Some(1));
}

#[tokio::test]
async fn a_submission_in_sql_keeps_the_limits_of_its_queue_but_for_the_rate() {
    let (counter, _test) = fresh().await;
    put_queue(&counter, "mail", json!({ "max_pending": 4, "max_submits_per_second": 1 })).await;
    let rows: Vec<InboxRow> = (0..6).map(|_| row(&counter, &task("mail"))).collect();
    let (judged, _room) = counter.desk.judge(&rows).await;
    let slugs: Vec<_> =
        judged.iter().map(|judged| judged.as_ref().map(|_| ()).map_err(|p| p.slug().to_owned())).collect();
    assert_eq!(slugs, [Ok(()), Ok(()), Ok(()), Ok(()), Err("limit".to_owned()), Err("limit".to_owned())]);
}

#[tokio::test]
async fn the_limit_of_a_tokens_queues_counts_instead_of_the_configured_one() {
    let test = fixture::database().await;
    let few = Setup { queues_max_per_caller: 1, ..PLAIN };
    let counter = counter(vec![Arc::clone(&test.database)], few);
    let shop = tenant(&counter, &["shop.*"], TokenLimits { queues: Some(2), ..TokenLimits::NONE });
    let answers = batch(&shop, ["shop.a", "shop.b", "shop.c"].map(task)).await;
    assert_eq!(statuses(&answers), [200, 200, 429]);
    let limit = answers[2].as_ref().expect_err("refused").limit.clone().expect("it names the limit");
    assert_eq!((limit.name.as_ref(), limit.most, limit.used), ("token.queues", 2, Some(2)));
    let put = shop.queue_put(QueueName::new("shop.d"), QueueRequest::default()).await.expect_err("nor by hand");
    assert_eq!((put.status, put.slug()), (429, "limit"));
    shop.queue_put(QueueName::new("shop.a"), QueueRequest::default()).await.expect("it is there");
    counter.desk.queue_put(QueueName::new("shop.d"), QueueRequest::default()).await.expect("the limit is the token's");
}

#[tokio::test]
async fn schedules_are_limited_by_queue_and_by_token_and_what_they_make_is_not() {
    let (counter, _test) = fresh().await;
    put_queue(&counter, "shop.a", json!({ "max_schedules": 1, "max_pending": 0 })).await;
    let schedule = |queue: &str| {
        ScheduleRequest::parse(&json!({ "queue": queue, "every_ms": 3_600_000 }).to_string()).expect("a schedule")
    };
    let name = |name: &str| common::ids::ScheduleName::new(name);
    counter.desk.schedule_put(name("one"), schedule("shop.a")).await.expect("made");
    let full = counter.desk.schedule_put(name("two"), schedule("shop.a")).await.expect_err("refused");
    assert_eq!(full.limit.expect("it names the limit").name, "queue.max_schedules");
    counter.desk.schedule_put(name("one"), schedule("shop.a")).await.expect("it is there");
    let shop = tenant(&counter, &["shop.*"], TokenLimits { schedules: Some(1), pending: Some(0), ..TokenLimits::NONE });
    let full = shop.schedule_put(name("two"), schedule("shop.b")).await.expect_err("refused");
    assert_eq!(full.limit.expect("it names the limit").name, "token.schedules");
    assert_eq!((refused(&counter, Limit::QueueSchedules), refused(&counter, Limit::TokenSchedules)), (1, 1));
    shop.schedule_run(name("one")).await.expect("tasks of a schedule are not limited");
}
