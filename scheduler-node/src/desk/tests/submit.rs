//! Tasks submitted over HTTP.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    access::{Caller, Role, Scope},
    ids::QueueName,
    queue::{Placement, Queue, QueueBook},
    shard::route::bound_to,
    task::{TaskState, report::ResultBody},
    time::UnixMicros,
    wire::Problem,
};
use serde_json::json;

use super::{
    PLAIN, Setup, claim, counter, fresh, hide_queues, reading::forget_tries, request, upper_half, with_two_databases,
};
use crate::{store::tests::fixture, working_set::failures::tests::Log};

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn the_answer_to_a_submission_is_what_a_look_up_shows() {
    let (counter, _test) = fresh().await;
    let body = r#"{"queue":"mail","payload":{"to" : "b"},"delay_ms":60000,"priority":1,"partition_key":"p",
                   "headers":{"tenant":"blue"},"max_attempts":3,"expires_after_ms":120000}"#;
    let submitted = counter.desk.submit(request(body)).await.expect("accepted");
    assert!(!submitted.duplicate);
    let shown = counter.desk.get(submitted.id).await.expect("it is there");
    let (mut answer, mut read) = (json!(submitted), json!(shown));
    // The answer was made before the row could be read, so it has the time of the insert and not the row's own.
    assert!(answer["created_at"].take().is_string() && read["created_at"].take().is_string());
    assert_eq!(answer, read);
    assert_eq!(shown.payload.expect("JSON").get(), r#"{"to" : "b"}"#, "byte for byte");
    assert_eq!(shown.max_attempts, 3);
}

#[tokio::test]
async fn a_task_that_is_stored_is_answered_although_it_cannot_be_read_back() {
    let (counter, test) = fresh().await;
    // Only reads of a task use this function.
    sqlx::query("ALTER FUNCTION duetime.shard_in RENAME TO shard_out").execute(&test.pool).await.unwrap();
    let body = json!({"queue": "mail", "key": "b", "partition_key": "p", "delay_ms": 60_000, "depends_on": ["a"]});
    let made = counter.desk.submit(request(&body.to_string())).await.expect("it is stored");
    assert_eq!((made.state, made.duplicate), (TaskState::Waiting, false));
    assert_eq!(json!(made.depends_on), json!([{"queue": "mail", "key": "a"}]));
    let mut body = json!({"queue": "mail", "key": "b", "partition_key": "p", "delay_ms": 60_000, "payload": 2});
    body["on_duplicate"] = "replace".into();
    let replaced = counter.desk.submit(request(&body.to_string())).await.expect("it is stored");
    assert_eq!((replaced.id, replaced.state, replaced.duplicate), (made.id, TaskState::Scheduled, true));
    assert_eq!(replaced.payload.expect("JSON").get(), "2");
    body["on_duplicate"] = "keep".into();
    counter.desk.submit(request(&body.to_string())).await.expect_err("nothing was written, and the task is not known");
    assert_eq!(test.live().await, 1);
}

#[tokio::test]
async fn a_due_time_holds_on_a_node_that_knows_the_clock_only_roughly() {
    let (counter, test) = fresh().await;
    let now = fixture::now(&test.pool).await;
    let (clock, answered) = (test.database.clock(), Instant::now());
    clock.forget();
    // The first answer of a node that has just started: it took so long that the clock may show an hour more.
    clock.observe(now, clock.ask(answered - HOUR), answered);
    let due_at = now.plus(HOUR / 2);
    let body = format!(r#"{{"queue":"mail","due_at":{}}}"#, due_at.millis());
    let task = counter.desk.submit(request(&body)).await.expect("accepted");
    assert_eq!(task.due_at.millis(), due_at.millis(), "the task would be early");
}

#[tokio::test]
async fn a_queue_is_made_by_its_first_task_and_in_force_at_once() {
    let (counter, test) = fresh().await;
    let view = counter.desk.submit(request(r#"{"queue":"new"}"#)).await.expect("accepted");
    assert_eq!(view.max_attempts, 25);
    assert!(counter.books.load().find(&view.queue).is_some());
    let (revision, queues) = test.database.queue_read().await.unwrap();
    assert_eq!((revision, queues.len()), (1, 1));
    counter.desk.submit(request(r#"{"queue":"new"}"#)).await.expect("accepted");
    assert_eq!(test.database.queue_read().await.unwrap().0, 1, "only the first time");
}

#[tokio::test]
async fn where_queues_are_made_by_hand_a_task_of_an_unknown_one_is_refused() {
    let (plain, test) = fresh().await;
    let strict = counter(vec![Arc::clone(&test.database)], Setup { auto_create: false, ..PLAIN });
    let refused = strict.desk.submit(request(r#"{"queue":"new"}"#)).await.expect_err("unknown");
    assert_eq!((refused.status, refused.field.as_deref()), (422, Some("queue")));
    let name = QueueName::new("new");
    plain.desk.queue_put(name, common::wire::QueueRequest::default()).await.expect("made on another node");
    strict.desk.submit(request(r#"{"queue":"new"}"#)).await.expect("known without waiting for the next reading");
}

#[tokio::test]
async fn a_task_of_a_queue_that_cannot_be_read_is_not_accepted_now_and_is_once_it_can() {
    let (plain, test) = fresh().await;
    let queues = [("new", "{}"), ("one", r#"{"placement":"single"}"#)];
    for (name, policy) in queues {
        let policy = serde_json::from_str(policy).unwrap();
        plain.desk.queue_put(QueueName::new(name), policy).await.expect("made on another node");
    }
    let of_queue = r#"{"queue":"new"}"#;
    let of_dependency = r#"{"queue":"new","key":"b","partition_key":"p","depends_on":[{"queue":"one","key":"a"}]}"#;
    let of_single = r#"{"queue":"one","key":"b","depends_on":["a"]}"#;
    for (auto_create, body, status) in [(false, of_queue, 200), (true, of_dependency, 422), (true, of_single, 200)] {
        let started = counter(vec![Arc::clone(&test.database)], Setup { auto_create, ..PLAIN });
        hide_queues(&test, true).await;
        let problem = started.desk.submit(request(body)).await.expect_err("the node does not know the queue");
        assert_eq!((problem.status, problem.retry_after_s), (503, Some(1)), "{body}: {problem}");
        hide_queues(&test, false).await;
        forget_tries(&started);
        let answer = started.desk.submit(request(body)).await;
        assert_eq!(answer.map_or_else(|problem| problem.status, |_| 200), status, "{body}");
    }
}

#[tokio::test]
async fn neither_a_refused_task_nor_a_dependency_creates_a_queue() {
    let (counter, test) = fresh().await;
    let tasks = vec![
        Ok(request(r#"{"queue":"a","key":"1","depends_on":[{"queue":"never","key":"1"}]}"#)),
        Ok(request(r#"{"queue":"b","payload":"x","priority":9}"#)),
        Ok(request(r#"{"queue":"c","key":"1","partition_key":"p","depends_on":[{"queue":"later","key":"1"}]}"#)),
    ];
    let answers = counter.desk.submit_batch(tasks).await;
    let statuses: Vec<_> = answers.iter().map(|answer| answer.as_ref().map_or_else(|p| p.status, |_| 200)).collect();
    assert_eq!(statuses, [422, 422, 200], "{answers:?}");
    let refused =
        counter.desk.submit(request(r#"{"queue":"d","key":"1","depends_on":[{"queue":"e","key":"1"}]}"#)).await;
    assert_eq!(refused.expect_err("it has no partition").status, 422);
    let (_, queues) = test.database.queue_read().await.unwrap();
    assert_eq!(queues.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(), ["c"]);
}

#[tokio::test]
async fn a_caller_creates_only_so_many_queues_and_uses_those_that_are_there() {
    let test = fixture::database().await;
    let few = Setup { queues_max: 3, queues_max_per_caller: 2, ..PLAIN };
    let counter = counter(vec![Arc::clone(&test.database)], few);
    let shop = counter.desk.of(&caller("shop"));
    let batch = ["a", "b", "c", "a"].map(|queue| Ok(request(&format!(r#"{{"queue":"{queue}"}}"#))));
    let answers = shop.submit_batch(batch.into()).await;
    let statuses: Vec<_> = answers.iter().map(|answer| answer.as_ref().map_or_else(|p| p.status, |_| 200)).collect();
    assert_eq!(statuses, [200, 200, 429, 200], "{answers:?}");
    assert!(answers[2].as_ref().expect_err("refused").retry_after_s.is_some());
    let mail = counter.desk.of(&caller("mail"));
    mail.submit(request(r#"{"queue":"c"}"#)).await.expect("another caller has room");
    assert_eq!(mail.submit(request(r#"{"queue":"d"}"#)).await.expect_err("the cluster has none").status, 429);
    shop.submit(request(r#"{"queue":"c"}"#)).await.expect("it is there");
    let name = QueueName::new("e");
    let refused = counter.desk.queue_put(name, common::wire::QueueRequest::default()).await.expect_err("no room");
    assert_eq!(refused.status, 429);
    assert_eq!(test.live().await, 5);
}

fn caller(name: &str) -> Caller {
    Caller { id: None, name: name.into(), role: Role::Producer, queues: Scope::ALL, limits: Default::default() }
}

#[tokio::test]
async fn one_bad_task_of_a_batch_does_not_touch_the_others() {
    let (counter, test) = fresh().await;
    let tasks = vec![
        Ok(request(r#"{"queue":"a"}"#)),
        Err(Problem::malformed("not a task")),
        Ok(request(r#"{"queue":"a","priority":9}"#)),
        Ok(request(r#"{"queue":"b","delay_ms":60000}"#)),
    ];
    let answers = counter.desk.submit_batch(tasks).await;
    let words: Vec<_> =
        answers.iter().map(|answer| answer.as_ref().map(|task| task.queue.as_str()).map_err(|p| p.status)).collect();
    assert_eq!(words, [Ok("a"), Err(400), Err(422), Ok("b")]);
    assert_eq!(test.live().await, 2);
    for receipt in answers.into_iter().flatten() {
        let shown = counter.desk.get(receipt.id).await.expect("it is there");
        assert_eq!((shown.queue, shown.due_at, receipt.state), (receipt.queue, shown.due_at, TaskState::Scheduled));
    }
    assert!(counter.desk.submit_batch(Vec::new()).await.is_empty());
}

#[tokio::test]
async fn the_last_task_of_a_batch_with_a_key_gives_it_its_content_however_large_the_batch() {
    // The tasks before them fill the first statement but for one; or they have more than one of their own.
    for (others, with_key) in [(255, 2), (10, 600)] {
        let (counter, test) = fresh().await;
        for round in 0..20 {
            let other = (1..=others).map(|n| json!({ "queue": "mail", "key": format!("a{n:03}"), "delay_ms": 60_000 }));
            let of_key = (0..with_key).map(|n| json!({ "queue": "mail", "key": "k", "on_duplicate": "replace", "delay_ms": 60_000, "payload": format!("{round} {n}") }));
            let last = of_key.clone().next_back().expect("there are some")["payload"].clone();
            let batch: Vec<_> = other.chain(of_key).map(|task| Ok(request(&task.to_string()))).collect();
            let answers = counter.desk.submit_batch(batch).await;
            let ids: Vec<_> = answers.iter().map(|answer| answer.as_ref().expect("accepted").id).collect();
            assert!(ids[others..].iter().all(|id| *id == ids[others]), "one task has the key");
            let shown = counter.desk.get(ids[others]).await.expect("it is there");
            assert_eq!(serde_json::to_value(&shown).unwrap()["payload"], last);
        }
        assert_eq!(test.live().await, i64::try_from(others).unwrap() + 1);
    }
}

/// The statement of the first two fails with the refused one, so that of the last two could be done before that of `b`.
#[tokio::test]
async fn the_last_task_of_a_batch_with_a_key_gives_it_its_content_beside_one_that_the_database_refuses() {
    let (counter, test) = fresh().await;
    test.refuse("INSERT", "task", "key", "a").await;
    let task = |key: &str, n: u32| json!({ "queue": "mail", "key": key, "on_duplicate": "replace", "delay_ms": 60_000, "payload": n });
    let batch = [("a", 0), ("b", 1), ("b", 2), ("c", 3)].map(|(key, n)| Ok(request(&task(key, n).to_string())));
    let answers = counter.desk.submit_batch(batch.into()).await;
    let ids: Vec<_> = answers.iter().map(|answer| answer.as_ref().ok().map(|task| task.id)).collect();
    assert!(ids[0].is_none() && ids[1].is_some() && ids[1] == ids[2] && ids[3].is_some(), "{answers:?}");
    let shown = counter.desk.get(ids[1].expect("it is stored")).await.expect("it is there");
    assert_eq!(shown.payload.expect("JSON").get(), "2");
    assert_eq!(test.live().await, 2);
}

#[tokio::test]
async fn what_is_too_long_is_refused_before_anything_is_written() {
    let (counter, test) = fresh().await;
    let payload = "x".repeat(1_000);
    let refused = counter
        .desk
        .submit(request(&format!(r#"{{"queue":"a","payload":"{payload}"}}"#)))
        .await
        .expect_err("1002 bytes");
    assert_eq!(refused.status, 413);
    assert_eq!(test.live().await, 0);
}

#[tokio::test]
async fn a_task_that_could_not_be_made_durable_is_not_accepted() {
    let gone = fixture::unreachable_database("main");
    let counter = counter(vec![gone], PLAIN);
    let refused = counter.desk.submit(request(r#"{"queue":"a"}"#)).await.expect_err("nowhere to write it");
    assert_eq!((refused.status, refused.retry_after_s.is_some()), (503, true));
}

/// Submits tasks for `mail`, `poison` and `mail`, without keys and with keys. Returns the status of each, and the
/// problem of the first one for `poison`.
async fn submit_around_poison(counter: &super::Counter) -> (Vec<u16>, String) {
    let plain = ["mail", "poison", "mail"].map(|queue| json!({ "queue": queue, "delay_ms": 60_000 }));
    let keyed = ["mail", "poison", "mail"].iter().enumerate();
    let keyed = keyed.map(|(n, queue)| json!({ "queue": queue, "delay_ms": 60_000, "key": n.to_string() }));
    let requests = plain.into_iter().chain(keyed).map(|task| Ok(request(&task.to_string()))).collect();
    let answers = counter.desk.submit_batch(requests).await;
    let statuses: Vec<u16> =
        answers.iter().map(|answer| answer.as_ref().map_or_else(|problem| problem.status, |_| 200)).collect();
    (statuses, answers[1].as_ref().map_or_else(|problem| problem.detail.to_string(), |_| String::new()))
}

#[tokio::test]
async fn what_the_database_refuses_is_told_from_its_neighbours_and_is_no_outage() {
    // The second is a check violation that names no constraint, as a trigger of an operator may raise it.
    for sqlstate in ["22023", "23514"] {
        let (counter, test) = fresh().await;
        test.fail_with(sqlstate, "INSERT", "task", "queue", "poison").await;
        let (statuses, detail) = submit_around_poison(&counter).await;
        assert_eq!(statuses, [200, 422, 200, 200, 422, 200], "{sqlstate}");
        assert!(detail.contains("a test refuses this row"), "{sqlstate}: {detail}");
        assert_eq!(test.live().await, 4);
    }
}

#[tokio::test]
async fn neighbours_of_a_submission_that_fails_as_with_a_bug_are_stored_and_its_sender_may_send_it_again() {
    let (counter, test) = fresh().await;
    test.fail_with("XX001", "INSERT", "task", "queue", "poison").await;
    let (statuses, _) = submit_around_poison(&counter).await;
    assert_eq!(statuses, [200, 503, 200, 200, 503, 200]);
    assert_eq!(test.live().await, 4);
}

#[tokio::test]
async fn a_node_that_does_not_know_of_a_queues_new_placement_places_its_tasks_by_it_all_the_same() {
    let (changing, tests) = with_two_databases().await;
    let databases = changing.store.databases().iter().cloned().collect();
    let behind = counter(databases, PLAIN);
    let queue = QueueName::new("orders");
    behind.desk.queue_put(queue.clone(), common::wire::QueueRequest::default()).await.expect("it knows the queue");
    for placement in [Placement::Single, Placement::Spread] {
        let policy = format!(r#"{{"placement":"{placement}"}}"#);
        let policy = serde_json::from_str(&policy).unwrap();
        changing.desk.queue_put(queue.clone(), policy).await.expect("no task of it is left");
        assert_ne!(behind.books.load().get(&queue).policy.placement, placement, "it has not read the change yet");
        let bodies: Vec<String> = (0..20)
            .map(|n| match n % 2 {
                0 => format!(r#"{{"queue":"orders","key":"k{n}","delay_ms":60000}}"#),
                _ => format!(r#"{{"queue":"orders","partition_key":"p{n}"}}"#),
            })
            .collect();
        let batch = bodies.iter().map(|body| Ok(request(body))).collect();
        for (n, receipt) in behind.desk.submit_batch(batch).await.into_iter().enumerate() {
            let id = receipt.expect("accepted").id;
            let (key, partition_key) = (format!("k{n}"), format!("p{n}"));
            let (key, partition_key) = if n % 2 == 0 { (Some(&*key), None) } else { (None, Some(&*partition_key)) };
            let shard = bound_to(&queue, placement, partition_key, key, u32::from(fixture::SHARDS)).unwrap();
            assert_eq!(id.shard(), shard, "task {n} of a queue that is {placement}");
        }
        for test in &tests {
            sqlx::raw_sql("DELETE FROM duetime.task").execute(&test.pool).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_node_that_does_not_know_of_a_queues_new_rules_judges_its_tasks_by_them_all_the_same() {
    let (changing, test) = fresh().await;
    let behind = counter(vec![Arc::clone(&test.database)], Setup { auto_create: false, ..PLAIN });
    let queue = QueueName::new("orders");
    let default = common::wire::QueueRequest::default;
    let change = async |policy: &str| {
        let known = behind.books.load().revision();
        changing.desk.queue_put(queue.clone(), serde_json::from_str(policy).unwrap()).await.expect("changed");
        assert_eq!(behind.books.load().revision(), known, "it has not read the change yet");
    };
    behind.desk.queue_put(queue.clone(), default()).await.expect("it knows the queue");
    let keyed = r#"{"queue":"orders","key":"k"}"#;
    let first = behind.desk.submit(request(keyed)).await.expect("accepted").id;
    let attempt = claim(&behind, first).await;
    let succeeded = ResultBody::parse(r#"{"status":"succeeded"}"#).expect("a report");
    behind.desk.report(first, attempt, succeeded).await.expect("applied");
    assert!(behind.desk.submit(request(keyed)).await.expect("answered").duplicate, "the first one holds its key");
    change(r#"{"dedup_window_ms":0}"#).await;
    let second = behind.desk.submit(request(keyed)).await.expect("accepted");
    assert!(!second.duplicate, "a finished task does not hold its key any more");

    behind.desk.cancel(second.id).await.expect("cancelled");
    changing.desk.queue_delete(queue.clone()).await.expect("no task of it is left");
    let refused = behind.desk.submit(request(r#"{"queue":"orders"}"#)).await.expect_err("the queue is gone");
    assert_eq!((refused.status, refused.field.as_deref()), (422, Some("queue")), "{refused}");

    behind.desk.queue_put(queue.clone(), default()).await.expect("it is there again");
    change(r#"{"format":"celery"}"#).await;
    let no_call = [r#"{"queue":"orders","payload":"x"}"#, r#"{"queue":"orders","payload":"x","key":"c"}"#];
    let answers = behind.desk.submit_batch(no_call.iter().map(|body| Ok(request(body))).collect()).await;
    let statuses: Vec<_> = answers.iter().map(|answer| answer.as_ref().map_or_else(|p| p.status, |_| 200)).collect();
    assert_eq!((statuses, test.live().await), (vec![422, 422], 0), "{answers:?}");
}

#[tokio::test]
async fn a_queue_that_is_deleted_while_its_task_comes_in_is_created_again_or_the_task_is_refused() {
    let test = fixture::database().await;
    let [changing, behind] =
        [(); 2].map(|()| counter(vec![Arc::clone(&test.database)], Setup { queues_max: 2, ..PLAIN }));
    let queue = common::ids::QueueName::new("orders");
    let default = common::wire::QueueRequest::default;
    let delete = async || {
        behind.desk.queue_put(queue.clone(), default()).await.expect("it knows the queue");
        changing.desk.queue_delete(queue.clone()).await.expect("no task of it is left");
        assert!(behind.books.load().find(&queue).is_some(), "it has not read the deletion yet");
    };
    for body in [r#"{"queue":"orders","delay_ms":60000}"#, r#"{"queue":"orders","delay_ms":60000,"key":"k"}"#] {
        delete().await;
        let id = behind.desk.submit(request(body)).await.expect("accepted").id;
        changing.desk.queue_get(queue.clone()).await.expect("its queue is there again");
        behind.desk.cancel(id).await.expect("not claimed");
    }
    delete().await;
    for other in ["a", "b"] {
        changing.desk.queue_put(common::ids::QueueName::new(other), default()).await.expect("there is room");
    }
    let bodies = [r#"{"queue":"orders"}"#, r#"{"queue":"orders","key":"l"}"#];
    let answers = behind.desk.submit_batch(bodies.iter().map(|body| Ok(request(body))).collect()).await;
    let statuses: Vec<_> = answers.iter().map(|answer| answer.as_ref().map_or_else(|p| p.status, |_| 200)).collect();
    assert_eq!((statuses, test.live().await), (vec![429, 429], 0), "{answers:?}");
}

#[tokio::test]
async fn until_the_first_database_has_told_the_time_a_delay_counts_by_the_clock_of_another() {
    let east = fixture::database().await;
    east.keep_shards(upper_half()).await;
    let databases = vec![fixture::unreachable_database("main"), fixture::named("east", &east.url)];
    let counter = counter(databases, PLAIN);
    counter.books.store(Arc::new(QueueBook::new(1, [Queue::with_defaults(QueueName::new("mail"))])));
    // Its clock is a day ahead of this node's.
    let ahead = fixture::now(&east.pool).await.shifted(86_400_000);
    let (clock, now) = (counter.store.databases()[1].clock(), Instant::now());
    clock.observe(ahead, clock.ask(now), now);
    // Enough that some are for the database that answers.
    let delayed = (0..20).map(|_| Ok(request(r#"{"queue":"mail","delay_ms":60000}"#))).collect();
    counter.desk.submit_batch(delayed).await;
    let first: chrono::DateTime<chrono::Utc> =
        sqlx::query_scalar("SELECT min(due_at) FROM duetime.task").fetch_one(&east.pool).await.unwrap();
    assert!(UnixMicros::from(first) >= ahead.shifted(60_000), "{first}");
}

#[tokio::test]
async fn tasks_that_a_database_cannot_store_have_one_line_in_the_log() {
    let log = Log::keep();
    let (counter, test) = fresh().await;
    test.fill_disk("INSERT", "task").await;
    for body in [r#"{"queue":"mail"}"#, r#"{"queue":"mail","key":"k"}"#, r#"{"queue":"mail"}"#] {
        assert_eq!(counter.desk.submit(request(body)).await.expect_err("the disk is full").status, 503);
    }
    assert_eq!(log.count("could not store submitted tasks"), 1);
}

#[tokio::test]
async fn a_database_that_answers_and_takes_no_task_is_noted() {
    let (counter, test) = fresh().await;
    test.fill_disk("INSERT", "task").await;
    assert!(!counter.databases.home().leaves_messages());
    assert_eq!(counter.desk.submit(request(r#"{"queue":"mail"}"#)).await.expect_err("the disk is full").status, 503);
    assert!(counter.databases.home().leaves_messages(), "so the node makes room for messages to other databases");
}

/// The database calls the rules of the queue `mail` newer than any that a node can read, until it was asked as often as
/// the sequence says. So it answers where tasks share each of their statements with some that older rules admitted.
const OTHER_RULES: &str = "
CREATE SEQUENCE public.asked;
CREATE FUNCTION public.ask() RETURNS bigint LANGUAGE sql AS 'SELECT nextval(''public.asked'')';
ALTER TABLE duetime.queue_turn RENAME TO former_queue_turn;
CREATE VIEW duetime.queue_turn AS
SELECT 'mail'::text AS queue, CASE WHEN public.ask() <= 8 THEN 1000000 ELSE 0 END::bigint AS revision,
       1000000::bigint AS placed, NULL::timestamptz AS reports_since
OFFSET 0";

/// Other queues change all the while.
const OTHER_QUEUES: &str = "
CREATE OR REPLACE FUNCTION public.ask() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    UPDATE duetime.meta SET queue_revision = queue_revision + 1;
    RETURN nextval('public.asked');
END
$$";

#[tokio::test]
async fn a_task_of_the_newest_rules_outlasts_those_of_older_ones_in_its_statements_for_a_bounded_time() {
    let (counter, test) = fresh().await;
    counter.desk.submit(request(r#"{"queue":"mail"}"#)).await.expect("accepted");
    for rules in [OTHER_RULES, OTHER_QUEUES] {
        sqlx::raw_sql(rules).execute(&test.pool).await.unwrap();
        for body in [r#"{"queue":"mail"}"#, r#"{"queue":"mail","key":"k"}"#] {
            let anew = "ALTER SEQUENCE public.asked MINVALUE 1 RESTART";
            sqlx::raw_sql(anew).execute(&test.pool).await.unwrap();
            counter.desk.submit(request(body)).await.expect("accepted in the end");
            let last = "SELECT last_value FROM public.asked";
            let asked: i64 = sqlx::query_scalar(last).fetch_one(&test.pool).await.unwrap();
            assert!(asked > 8, "{body}: the database has handed it back");
        }
        let for_ever = "ALTER SEQUENCE public.asked MINVALUE -1000000 RESTART -1000000";
        sqlx::raw_sql(for_ever).execute(&test.pool).await.unwrap();
        assert_eq!(counter.desk.submit(request(r#"{"queue":"mail"}"#)).await.expect_err("handed back").status, 503);
    }
    assert_eq!(test.live().await, 4);
}
