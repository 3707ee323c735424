//! Requests while shards move from one database to another, with a map that is up to date and with an old one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use common::{
    ids::{Attempt, DatabaseIndex, DatabaseName, QueueName, ShardId, TaskId},
    task::{
        BusinessKey, NewTask, OnDuplicate, TaskState,
        report::ResultBody,
        state::CancelOutcome,
        verdict::{AfterConfirm, CONFIRMED_FROM},
    },
    wire::{BulkRequest, ListFilter, Problem, TaskFilter, shard::MoveRequest},
};
use futures::TryStreamExt;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Counter, claim, request, with_two_databases, with_two_of_three_databases};
use crate::{
    clock,
    coordination::tests::soon,
    loops::{
        outcome::{
            releaser::Releaser,
            settler::{Confirmed, Settlements, Settler},
        },
        submit::{
            keyed_submitter::{KeyedSubmitter, PutJob},
            submitter::Accepted,
        },
    },
    store::{
        depend::Succeeded,
        put::{PutOutcome, Retention},
        settle::{Finish, Report},
        submit::Sending,
        tests::{changed, fixture::TestDatabase, new_task},
    },
};

/// Refuses writes to shards that are not here, as the gate of a move does.
const GATE: &str = "
    CREATE FUNCTION public.gate() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('test.moves', true) IS DISTINCT FROM 'on'
           AND EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = NEW.shard AND s.status IN ('gone', 'arriving')) THEN
            RAISE EXCEPTION 'shard % has moved', NEW.shard USING ERRCODE = 'DT001';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER gate BEFORE INSERT OR UPDATE ON duetime.task FOR EACH ROW EXECUTE FUNCTION public.gate();
    CREATE TRIGGER gate BEFORE INSERT OR UPDATE ON duetime.archive FOR EACH ROW EXECUTE FUNCTION public.gate();";

async fn run(test: &TestDatabase, sql: &'static str) {
    sqlx::raw_sql(sql).execute(&test.pool).await.expect("the statement runs");
}

/// All shards of the first database begin to move to the second.
async fn begin([from, to]: &[TestDatabase; 2]) {
    run(from, GATE).await;
    run(to, GATE).await;
    let read = sqlx::query_scalar("SELECT id::integer FROM duetime.shard");
    let shards: Vec<i32> = read.fetch_all(&from.pool).await.unwrap();
    let arrive = sqlx::query("INSERT INTO duetime.shard (id, status) SELECT unnest($1::integer[]), 'arriving'");
    arrive.bind(shards).execute(&to.pool).await.unwrap();
    run(from, "UPDATE duetime.shard SET status = 'leaving'").await;
}

async fn copy([from, to]: &[TestDatabase; 2]) {
    for table in ["task", "archive", "received"] {
        let read = format!("SELECT coalesce(array_agg(t)::text, '{{}}') FROM duetime.{table} AS t");
        let rows: String = sqlx::query_scalar(sqlx::AssertSqlSafe(read)).fetch_one(&from.pool).await.unwrap();
        let write = format!("INSERT INTO duetime.{table} SELECT * FROM unnest($1::text::duetime.{table}[])");
        let mut writing = to.pool.acquire().await.unwrap();
        sqlx::raw_sql("SET test.moves = 'on'").execute(&mut *writing).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(write)).bind(rows).execute(&mut *writing).await.unwrap();
        sqlx::raw_sql("RESET test.moves").execute(&mut *writing).await.unwrap();
    }
}

async fn close([from, _]: &[TestDatabase; 2]) {
    run(from, "UPDATE duetime.shard SET status = 'gone', epoch = epoch + 1 WHERE status = 'leaving'").await;
}

async fn open([_, to]: &[TestDatabase; 2]) {
    run(to, "UPDATE duetime.shard SET status = 'here', epoch = 50 WHERE status = 'arriving'").await;
}

async fn moved(tests: &[TestDatabase; 2]) {
    begin(tests).await;
    copy(tests).await;
    close(tests).await;
    open(tests).await;
}

async fn submitted(counter: &Counter, json: &str) -> TaskId {
    counter.desk.submit(request(json)).await.expect("accepted").id
}

/// A task with a key on one of the shards 0 to 63.
async fn keyed_in_main(counter: &Counter, name: &str, more: &str) -> (String, TaskId) {
    for nth in 0..100 {
        let key = format!("{name}{nth}");
        let id = submitted(counter, &format!(r#"{{"queue":"q","key":"{key}"{more}}}"#)).await;
        if id.shard().number() < 64 {
            return (key, id);
        }
    }
    panic!("no key of a hundred leads to the first database");
}

/// How many tasks each way of looking at all of them sees: the list, the counts of the queue and of all queues, what a
/// bulk action would change, and the export.
async fn seen(counter: &Counter) -> [i64; 5] {
    let list = counter.desk.list(ListFilter { limit: Some(500), ..ListFilter::default() }).await.expect("listed");
    let queue = counter.desk.queue_get(QueueName::new("q")).await.expect("there").counts.scheduled;
    let all = counter.desk.census().await.expect("counted").counts.scheduled;
    let bulk = r#"{"action":"run","filter":{"queue":"q"},"dry_run":true,"limit":500}"#;
    let matched = counter.desk.bulk(BulkRequest::parse(bulk).expect("a request")).await.expect("counted").matched;
    let export = counter.desk.export(TaskFilter::default()).await.expect("exported");
    let text: Vec<u8> = export.try_collect::<Vec<Vec<u8>>>().await.expect("to its end").concat();
    let lines = text.iter().filter(|byte| **byte == b'\n').count() - 1;
    [list.tasks.len() as i64, queue, all, matched as i64, lines as i64]
}

#[tokio::test]
async fn each_task_is_seen_once_at_every_moment_of_a_move() {
    let (counter, tests) = with_two_databases().await;
    for _ in 0..60 {
        submitted(&counter, r#"{"queue":"q","delay_ms":60000}"#).await;
    }
    let (key, id) = keyed_in_main(&counter, "k", r#","delay_ms":60000"#).await;
    let all = seen(&counter).await;
    assert!(all[0] > 60 && all.iter().all(|seen| *seen == all[0]), "{all:?}");
    begin(&tests).await;
    copy(&tests).await;
    for step in ["copied", "closed", "open"] {
        match step {
            "closed" => close(&tests).await,
            "open" => open(&tests).await,
            _ => {}
        }
        counter.store.places().refresh().await.expect("both answer");
        assert_eq!(seen(&counter).await, all, "{step}");
    }
    assert!(tests[0].live().await > 0 && tests[1].live().await == all[0], "the rows left over are still there");
    // A task that is changed in its new place is found there by its key, not as it was left behind.
    counter.desk.cancel(id).await.expect("cancelled");
    let found = counter.desk.find("q", None, &key).await.expect("found");
    assert_eq!(counter.desk.get(found).await.expect("read").state, TaskState::Cancelled);
    assert_eq!(counter.desk.get_by_key("q", None, &key).await.expect("read").state, TaskState::Cancelled);
    let again = submitted(&counter, &format!(r#"{{"queue":"q","key":"{key}","delay_ms":60000}}"#)).await;
    assert_ne!(again, id, "the key is free again");
}

#[tokio::test]
async fn an_old_map_leads_every_request_to_the_new_place() {
    let (counter, tests) = with_two_databases().await;
    let (changed_key, changed) = keyed_in_main(&counter, "a", r#","delay_ms":60000"#).await;
    let [cancelled, run_now, reported] = [
        keyed_in_main(&counter, "k", r#","delay_ms":60000"#).await.1,
        keyed_in_main(&counter, "b", r#","delay_ms":60000"#).await.1,
        keyed_in_main(&counter, "c", "").await.1,
    ];
    let attempt: Attempt = claim(&counter, reported).await;
    let before = counter.store.places().load();
    moved(&tests).await;
    // Each request begins with the old map.
    let forget = async || {
        let places = counter.store.places();
        for (shard, place) in before.iter() {
            places.moved(shard, place.database, place.epoch);
        }
    };
    counter.desk.cancel(cancelled).await.expect("cancelled");
    forget().await;
    let change = common::wire::ChangeRequest { priority: Some(1), ..Default::default() };
    counter.desk.change(changed, change).await.expect("changed");
    forget().await;
    let read = counter.desk.get_by_key("q", None, &changed_key).await.expect("it is in the new place");
    assert_eq!((read.id, read.priority), (changed, 1), "not as it was left behind");
    forget().await;
    counter.desk.run(run_now).await.expect("due now");
    forget().await;
    let done = ResultBody::parse(r#"{"status":"succeeded"}"#).expect("a report");
    counter.desk.report(reported, attempt, done).await.expect("applied");
    forget().await;
    let fresh = new_task(TaskId::mint(uuid::Uuid::now_v7(), cancelled.shard()));
    let written = counter.desk.parts().submitter.write(vec![NewTask::clone(&fresh)], "test").await;
    assert!(matches!(written[..], [Ok(Accepted::Stored(_))]), "{written:?}");
    forget().await;
    assert_eq!(counter.desk.get(fresh.id).await.expect("it is in the new place").id, fresh.id);
    forget().await;
    let key = keyed_in_main(&counter, "d", "").await.1;
    forget().await;
    assert_eq!(counter.desk.get(key).await.expect("it is in the new place").id, key);
    for (id, state) in
        [(cancelled, "cancelled"), (changed, "scheduled"), (reported, "succeeded"), (fresh.id, "scheduled")]
    {
        assert_eq!(tests[1].state_of(id).await.as_deref(), Some(state), "{id}");
    }
    assert_eq!(tests[0].state_of(fresh.id).await, None);
    assert_eq!(tests[0].state_of(changed).await.as_deref(), Some("scheduled"), "it is left over there");
}

#[tokio::test]
async fn an_old_map_leads_a_move_and_a_cancel_by_key_to_the_new_place() {
    let (counter, tests) = with_two_databases().await;
    let (changed_key, changed) = keyed_in_main(&counter, "a", r#","delay_ms":60000"#).await;
    let (cancelled_key, cancelled) = keyed_in_main(&counter, "k", r#","delay_ms":60000"#).await;
    let before = counter.store.places().load();
    moved(&tests).await;
    let later = common::wire::ChangeRequest { delay_ms: Some(600_000), ..Default::default() };
    let answer = counter.desk.change_by_key("q", None, &changed_key, later).await.expect("changed");
    assert_eq!(answer.id, changed);
    assert_eq!(counter.desk.get(changed).await.expect("it is in the new place").due_at, answer.due_at);
    let places = counter.store.places();
    for (shard, place) in before.iter() {
        places.moved(shard, place.database, place.epoch);
    }
    // The second request begins with the new map, and meets the row that is left over no more.
    for _ in 0..2 {
        let answer = counter.desk.cancel_by_key("q", None, &cancelled_key).await.expect("cancelled");
        assert_eq!((answer.id, answer.outcome), (cancelled, CancelOutcome::Cancelled));
    }
    assert_eq!(tests[1].state_of(cancelled).await.as_deref(), Some("cancelled"));
    assert_eq!(tests[0].state_of(cancelled).await.as_deref(), Some("scheduled"), "it is left over there");
}

/// The end of its first sending was unknown when its shard moved.
#[tokio::test]
async fn a_replacement_that_is_sent_again_to_the_new_place_of_its_shard_writes_nothing() {
    let (counter, tests) = with_two_databases().await;
    let (key, id) = keyed_in_main(&counter, "k", r#","delay_ms":60000"#).await;
    let [sent, newer] = ["2", "3"].map(|payload| {
        changed(new_task(TaskId::mint(uuid::Uuid::now_v7(), id.shard())), |task| {
            task.queue = QueueName::new("q");
            task.content.payload = payload.as_bytes().to_vec();
            task.keyed = Some(BusinessKey { key: key.clone(), version: 0, on_duplicate: OnDuplicate::Replace });
        })
    });
    let hold = Retention { window_ms: 1, keep_ms: 1 };
    for task in [&sent, &newer] {
        let put = tests[0].database.task_put(std::slice::from_ref(task), &[hold]).await.expect("stored").remove(0);
        assert_eq!((put.outcome, put.id), (PutOutcome::Replaced, id));
    }
    moved(&tests).await;
    let (parts, (_, east)) = (counter.desk.parts(), counter.databases.indexed().nth(1).expect("there are two"));
    let keyed_submitter = KeyedSubmitter {
        database: east.clone(),
        books: Arc::clone(&counter.books),
        releaser: Releaser::new(parts.nudger.clone()),
        metrics: Arc::clone(&parts.metrics),
    };
    let ((jobs, puts), (answer, answered)) = (mpsc::channel(1), oneshot::channel());
    let again = PutJob { tasks: vec![sent], source: "test", routed: i64::MAX, sending: Sending::Again, answer };
    jobs.send(again).await.expect("there is room");
    drop(jobs);
    keyed_submitter.run(puts, CancellationToken::new()).await;
    let put = answered.await.expect("answered").remove(0).expect("stored");
    assert_eq!((put.outcome, put.id), (PutOutcome::Replaced, id));
    let there = tests[1].database.task_read(id).await.expect("read").expect("it came over");
    assert_eq!(there.payload.as_deref(), Some(&b"3"[..]));
}

/// What a move left over of a former task with the key, live or finished, would answer for it.
#[tokio::test]
async fn an_old_map_leads_a_change_and_a_cancel_by_key_to_the_task_that_has_the_key_by_now() {
    let (counter, tests) = with_two_databases().await;
    let mut keys = Vec::new();
    for name in ["live", "finished"] {
        let (key, former) = keyed_in_main(&counter, name, r#","delay_ms":60000"#).await;
        if name == "finished" {
            counter.desk.cancel(former).await.expect("cancelled");
        }
        keys.push((key, former));
    }
    let before = counter.store.places().load();
    moved(&tests).await;
    counter.store.places().refresh().await.expect("both answer");
    for (key, former) in keys {
        counter.desk.cancel(former).await.expect("cancelled, perhaps again");
        let newer = submitted(&counter, &format!(r#"{{"queue":"q","key":"{key}","delay_ms":60000}}"#)).await;
        assert_ne!(newer, former, "the key was free");
        // Each request begins with the old map.
        let forget = || {
            let places = counter.store.places();
            for (shard, place) in before.iter() {
                places.moved(shard, place.database, place.epoch);
            }
        };
        forget();
        assert_eq!(counter.desk.find("q", None, &key).await.expect("found"), newer, "{key}");
        forget();
        let change = common::wire::ChangeRequest { priority: Some(1), ..Default::default() };
        let answer = counter.desk.change_by_key("q", None, &key, change).await.expect("changed");
        assert_eq!((answer.id, answer.priority), (newer, 1), "{key}");
        forget();
        let answer = counter.desk.cancel_by_key("q", None, &key).await.expect("cancelled");
        assert_eq!((answer.id, answer.outcome), (newer, CancelOutcome::Cancelled), "{key}");
        assert_eq!(tests[1].state_of(newer).await.as_deref(), Some("cancelled"));
    }
}

#[tokio::test]
async fn a_bulk_shift_that_meets_a_move_in_its_last_database_shifts_no_task_twice() {
    let (counter, [main, east]) = with_two_databases().await;
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(submitted(&counter, r#"{"queue":"q","delay_ms":600000}"#).await);
    }
    let due = async || {
        let mut due = Vec::new();
        for id in &ids {
            due.push(counter.desk.get(*id).await.expect("read").due_at);
        }
        due
    };
    let bulk = async |more: &str| {
        let json = format!(r#"{{"action":"move","filter":{{"queue":"q"}},"shift_ms":60000{more}}}"#);
        counter.desk.bulk(BulkRequest::parse(&json).expect("a request")).await
    };
    let before = due().await;
    let counted = bulk(r#","dry_run":true,"limit":1"#).await.expect("counted").next_cursor.expect("there are more");
    // The walk comes to the second database last. Meanwhile its shards have gone to the first.
    let tests = [east, main];
    begin(&tests).await;
    copy(&tests).await;
    counter.store.places().refresh().await.expect("both answer");
    close(&tests).await;
    open(&tests).await;
    let answer = bulk("").await.expect("answered");
    assert_eq!((answer.matched, answer.done), (40, 40), "{answer:?}");
    assert!(answer.interrupted.as_ref().is_some_and(Problem::is_conflict), "{answer:?}");
    assert!(answer.next_cursor.is_none(), "{answer:?}");
    assert_eq!(due().await, before.iter().map(|at| at.shifted(60_000)).collect::<Vec<_>>());
    bulk(&format!(r#","dry_run":true,"cursor":"{counted}""#)).await.expect("a count may go on");
}

#[tokio::test]
async fn while_no_database_takes_a_shard_a_request_ends_after_a_bounded_time() {
    let (counter, tests) = with_two_databases().await;
    let (_, id) = keyed_in_main(&counter, "k", r#","delay_ms":60000"#).await;
    begin(&tests).await;
    copy(&tests).await;
    close(&tests).await;
    let refused = counter.desk.cancel(id).await.expect_err("no place is open");
    assert_eq!(refused.status, 503, "{refused}");
    let task = new_task(TaskId::mint(uuid::Uuid::now_v7(), id.shard()));
    let written = counter.desk.parts().submitter.write(vec![task], "test").await;
    assert!(written[0].is_err(), "{written:?}");
    open(&tests).await;
    counter.desk.cancel(id).await.expect("its new place is open");
}

#[tokio::test]
async fn a_confirm_is_written_where_its_shard_is_by_then() {
    let (counter, tests) = with_two_databases().await;
    let (_, id) = keyed_in_main(&counter, "k", "").await;
    let attempt = claim(&counter, id).await;
    moved(&tests).await;
    let parts = counter.desk.parts();
    let settler = Settler {
        databases: counter.databases.clone(),
        index: DatabaseIndex::HOME,
        releaser: Releaser::new(parts.nudger.clone()),
        window: 100,
        lanes: Arc::default(),
        metrics: Arc::clone(&parts.metrics),
    };
    let (settlements, confirms) = Settlements::channel(100);
    let (queue, verdict) = (QueueName::new("q"), AfterConfirm::Succeed { keep_ms: 60_000 });
    let at = clock::instant();
    settlements.confirmed(vec![Confirmed { id, attempt, queue, verdict, at, gives_way: false }]).await;
    drop(settlements);
    settler.run(confirms, CancellationToken::new()).await;
    assert_eq!(tests[1].state_of(id).await.as_deref(), Some("succeeded"));
    assert_eq!(tests[0].state_of(id).await.as_deref(), Some("dispatching"), "it is left over there");
}

/// Two tasks of one of the shards 0 to 63 other than `other`: the first has a key, and the second waits for it.
async fn dependency(counter: &Counter, name: &str, other: Option<ShardId>) -> [TaskId; 2] {
    for nth in 0..100 {
        let more = format!(r#""queue":"q","partition_key":"{name}{nth}""#);
        let first = submitted(counter, &format!(r#"{{{more},"key":"first"}}"#)).await;
        if first.shard().number() < 64 && Some(first.shard()) != other {
            return [first, submitted(counter, &format!(r#"{{{more},"depends_on":["first"]}}"#)).await];
        }
    }
    panic!("no partition of a hundred is in the first database");
}

/// Ends a task with a success.
async fn succeed(counter: &Counter, id: TaskId) -> Vec<Succeeded> {
    let finish = Finish {
        id,
        attempt: claim(counter, id).await,
        final_state: TaskState::Succeeded,
        was: CONFIRMED_FROM,
        keep_ms: 60_000,
        report: Report::default(),
        at_deadline: false,
        entry: None,
    };
    let database = counter.store.of(id.shard()).expect("shards exist");
    database.task_finish(&[finish]).await.expect("written").succeeded
}

#[tokio::test]
async fn what_waits_for_a_success_is_released_where_its_shard_is_by_then_and_so_is_what_stays() {
    let (counter, tests) = with_two_databases().await;
    let moving = dependency(&counter, "a", None).await;
    let staying = dependency(&counter, "b", Some(moving[0].shard())).await;
    let mut succeeded = succeed(&counter, moving[0]).await;
    succeeded.extend(succeed(&counter, staying[0]).await);
    begin(&tests).await;
    copy(&tests).await;
    for (test, cut) in [
        (&tests[0], "UPDATE duetime.shard SET status = 'gone', epoch = epoch + 1 WHERE id = $1"),
        (&tests[1], "UPDATE duetime.shard SET status = 'here', epoch = 50 WHERE id = $1"),
    ] {
        let cut = sqlx::query(cut).bind(i32::from(moving[0].shard().number()));
        cut.execute(&test.pool).await.expect("the statement runs");
    }
    let releaser = Releaser::new(counter.desk.parts().nudger.clone());
    releaser.succeeded(counter.databases.home(), &succeeded).await;
    let released = async {
        for (test, id) in [(&tests[1], moving[1]), (&tests[0], staying[1])] {
            while test.state_of(id).await.as_deref() != Some("scheduled") {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    soon("both are released", released).await;
    assert_eq!(tests[0].state_of(moving[1]).await.as_deref(), Some("waiting"), "it is left over there");
}

/// Has the lower half of the shards leave the first of three databases for the third, which cannot be read. Returns the
/// key of a task of one of them, and its shard.
async fn left(counter: &Counter, [main, _]: &[TestDatabase; 2]) -> (String, ShardId) {
    counter.store.places().refresh().await.expect_err("the third does not answer");
    let (key, id) = keyed_in_main(counter, "k", r#","delay_ms":60000"#).await;
    run(main, "UPDATE duetime.shard SET status = 'gone', epoch = epoch + 1; DELETE FROM duetime.task").await;
    (key, id.shard())
}

/// The answers to a look for a key of the shard, and to a request to move the shard to the second database.
async fn refusals(counter: &Counter, key: &str, shard: ShardId) -> [Problem; 2] {
    counter.store.places().refresh().await.expect_err("the third does not answer");
    let look = counter.desk.find("q", None, key).await.expect_err("it is not where it was");
    let request = MoveRequest { shards: [shard].into_iter().collect(), to: DatabaseName::new("east") };
    let move_there = counter.desk.shards_move(request, "ann").await.expect_err("it is not where it was");
    assert_eq!(counter.desk.move_list().await.expect("read").moves.len(), 0);
    [look, move_there]
}

#[tokio::test]
async fn a_shard_that_may_be_in_a_database_that_was_never_read_counts_as_in_none() {
    let (counter, tests) = with_two_of_three_databases().await;
    let (key, shard) = left(&counter, &tests).await;
    // As after a start of the node.
    counter.store.places().forget();
    let [look, move_there] = refusals(&counter, &key, shard).await;
    assert_eq!((look.status, move_there.status), (503, 503), "{look} {move_there}");
    assert_eq!(counter.store.places().of(shard), None);
}

#[tokio::test]
async fn a_task_that_is_missing_in_the_closed_place_of_its_shard_may_be_in_another_one() {
    let (counter, tests) = with_two_of_three_databases().await;
    let (key, shard) = left(&counter, &tests).await;
    let [look, move_there] = refusals(&counter, &key, shard).await;
    assert_eq!((look.status, move_there.status), (503, 503), "{look} {move_there}");
    let placement = counter.desk.placement().await.expect("the first answers");
    let load = placement.loads(&BTreeMap::new()).into_iter().find(|load| load.shard == shard).expect("in its source");
    assert!(load.is_fixed, "no rebalance and no drain moves it");
    // When it is open again, what is missing does not exist.
    run(&tests[0], "UPDATE duetime.shard SET status = 'here'").await;
    assert_eq!(counter.desk.find("q", None, &key).await.expect_err("no row").status, 404);
}
