//! Requests about queues.

use common::{
    access::Scope,
    ids::{QueueName, ScheduleName, ShardId, TaskId},
    queue::QueuePolicy,
    wire::{NamePage, QueueRequest, ScheduleRequest, queue::Counts},
};
use sqlx::AssertSqlSafe;

use super::{fresh, request, with_one_of_two_gone, with_two_databases};
use crate::{
    store::{
        PoolKind,
        submit::Sending,
        tests::{fixture, new_task},
    },
    supervise::spawn_child,
};

fn queue(json: &str) -> QueueRequest {
    QueueRequest::parse(json).expect("a queue")
}

fn name(text: &str) -> QueueName {
    QueueName::new(text)
}

#[tokio::test]
async fn a_queue_is_in_force_on_this_node_when_the_answer_comes() {
    let (counter, _test) = fresh().await;
    let put = counter.desk.queue_put(name("a"), queue(r#"{"max_attempts":3,"paused":true}"#)).await.expect("set");
    assert_eq!((put.policy.max_attempts, put.paused, put.created_at.is_some()), (3, true, true));
    let book = counter.books.load();
    let kept = book.find(&name("a")).expect("it is in the book");
    assert_eq!((kept.policy.max_attempts, kept.paused), (3, true));
    assert!(!counter.desk.queue_pause(name("a"), false).await.expect("resumed").paused);
    assert!(!counter.books.load().get(&name("a")).paused);
    let put = counter.desk.queue_put(name("a"), queue("{}")).await.expect("set");
    assert_eq!(put.policy.max_attempts, 25, "an absent field takes its default");
    assert_eq!(counter.desk.queue_get(name("a")).await.expect("it is there"), put);
}

#[tokio::test]
async fn what_is_no_queue_is_not_found_and_what_is_no_policy_is_refused() {
    let (counter, _test) = fresh().await;
    assert_eq!(counter.desk.queue_get(name("a")).await.expect_err("unknown").status, 404);
    assert_eq!(counter.desk.queue_pause(name("a"), true).await.expect_err("unknown").status, 404);
    assert_eq!(counter.desk.queue_delete(name("a")).await.expect_err("unknown").status, 404);
    let refused = counter.desk.queue_put(name("a"), queue(r#"{"max_running":3}"#)).await.expect_err("it is spread");
    assert_eq!((refused.status, refused.field.as_deref()), (422, Some("max_running")));
    assert!(counter.desk.queue_list(&NamePage::default()).await.expect("none").queues.is_empty());
}

/// Clients drop such a name from the path that would show or delete its queue or schedule.
#[tokio::test]
async fn no_new_queue_or_schedule_is_named_by_dots_alone_and_those_that_are_there_go_on() {
    let (counter, test) = fresh().await;
    let desk = &counter.desk;
    let hourly = |queue: &str| ScheduleRequest::parse(&format!(r#"{{"queue":"{queue}","cron":"@hourly"}}"#)).unwrap();
    for dots in [".", ".."] {
        let task = || request(&format!(r#"{{"queue":"{dots}"}}"#));
        let batch = desk.submit_batch(vec![Ok(task()), Ok(request(r#"{"queue":"mail"}"#))]).await;
        assert!(batch[1].is_ok(), "{batch:?}");
        for refused in [
            desk.queue_put(name(dots), queue("{}")).await.map(drop),
            desk.submit(task()).await.map(drop),
            batch.into_iter().next().expect("two answers").map(drop),
            desk.schedule_put(ScheduleName::new("s"), hourly(dots)).await.map(drop),
        ] {
            let refused = refused.expect_err("no client could delete it");
            assert_eq!((refused.status, refused.field.as_deref()), (422, Some("queue")), "{dots}");
        }
        let refused = desk.schedule_put(ScheduleName::new(dots), hourly("mail")).await.expect_err("nor this");
        assert_eq!((refused.status, refused.field.as_deref()), (422, Some("name")), "{dots}");

        test.database.queue_put(&name(dots), &QueuePolicy::default(), None, 10).await.unwrap();
        desk.submit(task()).await.expect("its queue is there");
        desk.queue_put(name(dots), queue(r#"{"max_attempts":3}"#)).await.expect("it is changed");
        desk.schedule_put(ScheduleName::new("s"), hourly(dots)).await.expect("its queue is there");
    }
}

#[tokio::test]
async fn a_queue_with_tasks_left_in_any_database_is_not_deleted() {
    let (counter, _tests) = with_two_databases().await;
    counter.desk.queue_put(name("orders"), queue("{}")).await.expect("set");
    let task = new_task(fixture::fresh_id_of(ShardId::new(100)));
    counter.store.databases()[1].task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    let refused = counter.desk.queue_delete(name("orders")).await.expect_err("one is left");
    assert_eq!(refused.status, 409);
    assert!(refused.detail.contains('1'), "{refused}");
    counter.desk.cancel(task.id).await.expect("cancelled");
    counter.desk.queue_delete(name("orders")).await.expect("none is left");
    assert!(counter.books.load().find(&name("orders")).is_none());
    assert_eq!(counter.desk.queue_get(name("orders")).await.expect_err("gone").status, 404);
}

/// Shard 100 is in the other database, so its rows are what a move has left.
#[tokio::test]
async fn a_deletion_counts_few_of_many_tasks_and_none_that_a_move_has_left() {
    let (counter, tests) = with_two_databases().await;
    counter.desk.queue_put(name("orders"), queue("{}")).await.expect("set");
    let fill = async |shard: u16, tasks: u16| {
        let insert = format!(
            "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
             SELECT overlay(gen_random_uuid()::text PLACING '{shard:04x}' FROM 33)::uuid, {shard}, 'orders', 'scheduled',
                    now(), now(), '', 'x'
               FROM generate_series(1, {tasks})"
        );
        sqlx::raw_sql(AssertSqlSafe(insert)).execute(&tests[0].pool).await.unwrap();
    };
    let refusal = async || counter.desk.queue_delete(name("orders")).await.expect_err("some are left").detail;
    let left = "INSERT INTO duetime.shard (id, epoch, status) VALUES (100, 1, 'gone')";
    sqlx::raw_sql(left).execute(&tests[0].pool).await.unwrap();
    counter.store.places().refresh().await.expect("both answer");
    fill(100, 1_000).await;
    fill(7, 2).await;
    assert!(refusal().await.contains("has 2 unfinished"), "{}", refusal().await);
    fill(7, 500).await;
    sqlx::raw_sql("DELETE FROM duetime.task WHERE shard = 100").execute(&tests[0].pool).await.unwrap();
    assert!(refusal().await.contains("has 300 or more unfinished"), "{}", refusal().await);
}

#[tokio::test]
async fn a_queue_is_not_deleted_under_a_task_that_comes_in_while_the_deletion_waits() {
    let (counter, test) = fresh().await;
    sqlx::raw_sql("ALTER FUNCTION duetime.await_claims() SET lock_timeout = '1min'").execute(&test.pool).await.unwrap();
    test.be_patient(PoolKind::Write).await;
    counter.desk.queue_put(name("orders"), queue("{}")).await.expect("set");
    // As an insert does that was admitted by the queue's policy and has not committed yet.
    let mut inserting = test.pool.acquire().await.unwrap();
    let insert = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
                  VALUES (gen_random_uuid(), 0, 'orders', 'scheduled', now(), now(), '', 'x')";
    for statement in ["BEGIN", "SELECT FROM duetime.shard WHERE id = 0 FOR SHARE", insert] {
        sqlx::query(statement).execute(&mut *inserting).await.unwrap();
    }
    let desk = counter.desk.clone();
    let deleting = spawn_child(async move { desk.queue_delete(name("orders")).await });
    test.until_waiting(1).await;
    sqlx::query("COMMIT").execute(&mut *inserting).await.unwrap();
    let refused = deleting.await.unwrap().expect_err("its task is there");
    assert_eq!((refused.status, refused.detail.contains("1 unfinished")), (409, true), "{refused}");
    assert!(
        counter.desk.queue_get(name("orders")).await.is_ok() && counter.books.load().find(&name("orders")).is_some()
    );
}

/// Otherwise all claims would wait for the look.
#[tokio::test]
async fn a_queue_whose_tasks_are_looked_for_slowly_is_not_deleted() {
    let (counter, test) = fresh().await;
    counter.desk.queue_put(name("orders"), queue("{}")).await.expect("set");
    let slow = "CREATE OR REPLACE FUNCTION duetime.queue_has_tasks(p_queue text) RETURNS boolean LANGUAGE plpgsql AS
                $$BEGIN PERFORM pg_sleep(0.3); RETURN false; END$$";
    sqlx::raw_sql(slow).execute(&test.pool).await.unwrap();
    let refused = counter.desk.queue_delete(name("orders")).await.expect_err("claims would wait");
    assert_eq!((refused.status, refused.detail.contains("old transaction")), (503, true), "{refused}");
    counter.desk.queue_get(name("orders")).await.expect("it is there");
}

#[tokio::test]
async fn a_queue_is_not_deleted_under_its_schedules() {
    let (counter, _test) = fresh().await;
    let put = async |schedule: &str, queue: &str| {
        let request =
            ScheduleRequest::parse(&format!(r#"{{"queue":"{queue}","every_ms":3600000}}"#)).expect("a schedule");
        counter.desk.schedule_put(ScheduleName::new(schedule), request).await.expect("set");
    };
    for schedule in ["d", "b", "c", "a"] {
        put(schedule, "orders").await;
    }
    put("other", "mails").await;
    let refused = counter.desk.queue_delete(name("orders")).await.expect_err("they would go on");
    assert_eq!(refused.status, 409);
    assert!(refused.detail.contains("schedules (`") && refused.detail.contains(", ...)"), "{refused}");
    for schedule in ["a", "b", "c"] {
        counter.desk.schedule_delete(ScheduleName::new(schedule)).await.expect("deleted");
    }
    let refused = counter.desk.queue_delete(name("orders")).await.expect_err("one is left");
    assert!(refused.detail.contains("schedules (`d`)"), "{refused}");
    put("d", "mails").await;
    counter.desk.queue_delete(name("orders")).await.expect("none is left");
}

#[tokio::test]
async fn a_queue_is_not_deleted_under_a_submission_in_sql_that_is_about_to_be_a_task() {
    let (counter, tests) = with_two_databases().await;
    counter.desk.queue_put(name("orders"), queue("{}")).await.expect("set");
    let submit = "SELECT duetime.submit('orders', '1')";
    sqlx::query(submit).execute(&tests[1].pool).await.unwrap();
    let refused = counter.desk.queue_delete(name("orders")).await.expect_err("no node has collected it yet");
    assert_eq!((refused.status, refused.detail.contains("in SQL")), (409, true), "{refused}");
    let refuse = "UPDATE duetime.inbox SET error = 'no task', refused_at = now()";
    sqlx::query(refuse).execute(&tests[1].pool).await.unwrap();
    counter.desk.queue_delete(name("orders")).await.expect("it will never be a task");
}

#[tokio::test]
async fn a_queue_with_tasks_left_is_not_placed_anew() {
    let (counter, _tests) = with_two_databases().await;
    counter.desk.queue_put(name("orders"), queue("{}")).await.expect("set");
    let task = new_task(fixture::fresh_id_of(ShardId::new(100)));
    counter.store.databases()[1].task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    let single = || queue(r#"{"placement":"single","settle":"result","max_running":3}"#);
    let refused = counter.desk.queue_put(name("orders"), single()).await.expect_err("one is left elsewhere");
    assert_eq!(refused.status, 409);
    assert!(refused.detail.contains("`placement` is `spread`"), "{refused}");
    counter.desk.queue_put(name("orders"), queue(r#"{"max_attempts":7}"#)).await.expect("everything else may change");
    counter.desk.cancel(task.id).await.expect("cancelled");
    let put = counter.desk.queue_put(name("orders"), single()).await.expect("none is left");
    assert_eq!(put.policy.max_running, Some(3));
}

#[tokio::test]
async fn a_queue_is_not_placed_anew_under_a_submission_in_sql_that_is_about_to_be_a_task() {
    let (counter, tests) = with_two_databases().await;
    counter.desk.queue_put(name("orders"), queue("{}")).await.expect("set");
    let submit = "SELECT duetime.submit('orders', '1', key => 'k')";
    sqlx::query(submit).execute(&tests[1].pool).await.unwrap();
    let single = || queue(r#"{"placement":"single"}"#);
    let refused = counter.desk.queue_put(name("orders"), single()).await.expect_err("no node has collected it yet");
    assert_eq!((refused.status, refused.detail.contains("then change `placement`")), (409, true), "{refused}");
    counter.desk.queue_put(name("orders"), queue(r#"{"max_attempts":7}"#)).await.expect("everything else may change");
    let refuse = "UPDATE duetime.inbox SET error = 'no task', refused_at = now()";
    sqlx::query(refuse).execute(&tests[1].pool).await.unwrap();
    counter.desk.queue_put(name("orders"), single()).await.expect("it will never be a task");
}

#[tokio::test]
async fn tasks_of_a_queue_that_does_not_exist_keep_the_default_placement() {
    let (counter, _test) = fresh().await;
    let task = new_task(fixture::fresh_id_of(ShardId::new(100)));
    counter.store.home().task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    let single = || queue(r#"{"placement":"single"}"#);
    let refused = counter.desk.queue_put(name("orders"), single()).await.expect_err("its task is not on that shard");
    assert_eq!(refused.status, 409, "{refused}");
    counter.desk.cancel(task.id).await.expect("cancelled");
    counter.desk.queue_put(name("orders"), single()).await.expect("none is left");
}

#[tokio::test]
async fn a_queue_has_the_tasks_of_all_databases() {
    let (counter, _tests) = with_two_databases().await;
    for _ in 0..20 {
        counter.desk.submit(request(r#"{"queue":"a","delay_ms":60000}"#)).await.expect("accepted");
    }
    let list = counter.desk.queue_list(&NamePage::default()).await.expect("two databases");
    assert_eq!((list.queues.len(), list.next_cursor), (1, None));
    assert_eq!(counter.desk.census().await.expect("counted").counts, list.queues[0].counts);
    assert_eq!(list.queues[0].counts, Counts { scheduled: 20, ..Counts::default() });
}

#[tokio::test]
async fn counts_without_a_database_are_at_least_so_many_and_a_delete_waits_for_it() {
    let (counter, _test) = with_one_of_two_gone().await;
    let unreached = counter.desk.queue_put(name("a"), queue("{}")).await.expect_err("one database cannot be reached");
    assert_eq!(unreached.status, 503);
    assert!(unreached.detail.contains("`east`") && unreached.detail.contains("nothing was changed"), "{unreached}");
    assert_eq!(counter.desk.queue_get(name("a")).await.expect_err("nothing was changed").status, 404);
    counter
        .desk
        .parts()
        .store
        .home()
        .queue_add(&[name("a")], &QueuePolicy::default(), None)
        .await
        .expect("made by its first use");
    let shown = counter.desk.queue_get(name("a")).await.expect("the first database keeps the queues");
    assert_eq!(shown.counts, Counts { at_least: true, ..Counts::default() });
    let unsure = counter.desk.queue_pause(name("a"), true).await.expect_err("one database cannot be reached");
    assert!(unsure.detail.contains("is stored") && unsure.detail.contains("`east`"), "{unsure}");
    assert!(counter.desk.queue_get(name("a")).await.expect("it is there").paused, "the other databases pause");
    let refused = counter.desk.queue_delete(name("a")).await.expect_err("the tasks left there are unknown");
    assert_eq!(refused.status, 503);
    assert!(refused.detail.contains("`east`"), "{refused}");
}

#[tokio::test]
async fn who_has_some_queues_only_cannot_lead_their_tasks_elsewhere() {
    let (counter, _test) = fresh().await;
    let scope = Scope::of(Some(vec!["shop.*".to_owned()])).expect("a scope");
    let shop = counter.desk.within(scope);
    for (field, policy) in [
        ("exchange", r#"{"exchange":"bank"}"#),
        ("routing_key", r#"{"routing_key":"bank"}"#),
        ("use_existing", r#"{"use_existing":true}"#),
    ] {
        let refused = shop.queue_put(name("shop.a"), queue(policy)).await.expect_err("it leads elsewhere");
        assert_eq!((refused.status, refused.field.as_deref()), (403, Some(field)));
    }
    shop.queue_put(name("shop.a"), queue(r#"{"max_attempts":3}"#)).await.expect("set");

    // A policy set by an operator of all queues stays, and the shop's token cannot take it away.
    let led = r#"{"exchange":"shop","routing_key":"a","unroutable":"set_aside"}"#;
    counter.desk.queue_put(name("shop.a"), queue(led)).await.expect("set");
    let kept = r#"{"exchange":"shop","routing_key":"a","max_attempts":4}"#;
    shop.queue_put(name("shop.a"), queue(kept)).await.expect("the fields name no new target");
    assert_eq!(shop.queue_put(name("shop.a"), queue("{}")).await.expect_err("taken away").status, 403);
}

#[tokio::test]
async fn a_key_leads_to_its_finished_task_after_the_placement_of_the_queue_has_changed() {
    let (counter, _tests) = with_two_databases().await;
    let mut ids = Vec::new();
    // Some of the keys are in the database that has the queue's own shard, and some in the other one.
    for n in 0..8 {
        let json = format!(r#"{{"queue":"orders","key":"k{n}","delay_ms":60000}}"#);
        ids.push(counter.desk.submit(request(&json)).await.expect("accepted").id);
    }
    let of = |id: &TaskId| counter.store.of(id.shard()).expect("a database").name().clone();
    assert!(ids.iter().any(|id| of(id) != of(&ids[0])));
    for id in &ids {
        counter.desk.cancel(*id).await.expect("not claimed");
    }
    let single = serde_json::from_str(r#"{"placement":"single"}"#).unwrap();
    counter.desk.queue_put(QueueName::new("orders"), single).await.expect("no task of it is left");
    for (n, id) in ids.iter().enumerate() {
        let key = format!("k{n}");
        assert_eq!(counter.desk.find("orders", None, &key).await.expect("it is kept"), *id);
        assert_eq!(counter.desk.cancel_by_key("orders", None, &key).await.expect("it was cancelled").id, *id);
    }
    assert_eq!(counter.desk.find("orders", None, "k9").await.expect_err("there is none").status, 404);
}
