//! Requests about schedules, and the firer that makes their tasks, on real databases.

use std::{sync::Arc, time::Duration};

use common::{
    ids::{QueueName, ScheduleName, TaskId, Term},
    queue::QueuePolicy,
    time::UnixMicros,
    wire::{NamePage, NextQuery, QueueRequest, ScheduleRequest},
};
use prometheus::Registry;
use tokio::sync::watch;

use super::{Counter, claim, fresh};
use crate::{
    loops::{cluster::elector::Mastership, submit::firer::Firer, upkeep::prober::NodeFitness},
    metrics::Metrics,
    store::{
        PoolKind,
        settle::{Finish, Report},
        tests::fixture::{self, TestDatabase},
    },
    supervise::spawn_child,
    working_set::failures::tests::Log,
};

pub(super) fn name(text: &str) -> ScheduleName {
    ScheduleName::new(text)
}

fn schedule(json: &str) -> ScheduleRequest {
    ScheduleRequest::parse(json).expect("a schedule")
}

pub(super) fn hourly(more: &str) -> ScheduleRequest {
    schedule(&format!(r#"{{"queue":"mails","every_ms":3600000,"catch_up_ms":86400000{more}}}"#))
}

/// A firer of its own beside the desk, on the master or on another node, and its metrics.
pub(super) fn firer(counter: &Counter, master: bool) -> (Firer, Arc<Metrics>) {
    firer_among(counter, master, NodeFitness::default())
}

/// The same on a node that reaches these databases.
pub(super) fn firer_among(counter: &Counter, master: bool, fitness: NodeFitness) -> (Firer, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::register(&Registry::new()).expect("a fresh registry takes them"));
    let term = master.then(|| Term::from_revision(1));
    let firer = Firer::new(
        counter.store.clone(),
        counter.desk.parts().submitter.clone(),
        Arc::clone(&counter.books),
        watch::channel(Mastership { term }).1,
        watch::channel(fitness).1,
        Arc::clone(&metrics),
        crate::working_set::set_aside::SetAside::default(),
    );
    (firer, metrics)
}

pub(super) fn made(metrics: &Metrics) -> u64 {
    metrics.schedule_fires.with_label_values(&["made"]).get()
}

async fn look(firer: &Firer) {
    firer.look().await.expect("the database answers");
    drop(firer.keep_from_making().await);
}

/// Sets the schedule back: its last `hours` fire times have passed and no firer has looked.
pub(super) async fn set_back(test: &TestDatabase, hours: i32) {
    sqlx::query(
        "UPDATE duetime.schedule
            SET next_at = date_trunc('hour', clock_timestamp()) - ($1 - 1) * interval '1 hour',
                since = date_trunc('hour', clock_timestamp()) - $1 * interval '1 hour', wake_at = clock_timestamp() - interval '1 hour'",
    )
    .bind(hours)
    .execute(&test.pool)
    .await
    .unwrap();
}

/// The keys of all tasks, finished or not.
async fn keys(test: &TestDatabase) -> Vec<String> {
    sqlx::query_scalar("SELECT key FROM duetime.task UNION ALL SELECT key FROM duetime.archive ORDER BY 1")
        .fetch_all(&test.pool)
        .await
        .unwrap()
}

async fn assert_each_once(test: &TestDatabase, count: usize) {
    let keys = keys(test).await;
    let mut distinct = keys.clone();
    distinct.dedup();
    assert_eq!((keys.len(), distinct.len()), (count, count), "{keys:?}");
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.fire").fetch_one(&test.pool).await.unwrap();
    assert_eq!(left, 0, "everything decided is made");
}

/// Holds the rows of all schedules until the connection commits. Firers can read them; every decision and change waits.
const SCHEDULES: &str = "SELECT FROM duetime.schedule FOR SHARE";

/// Holds the fire times: every decision waits, and no change does.
const FIRE_TIMES: &str = "LOCK TABLE duetime.fire IN SHARE MODE";

async fn hold(test: &TestDatabase, what: &'static str) -> sqlx::pool::PoolConnection<sqlx::Postgres> {
    let mut connection = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *connection).await.unwrap();
    sqlx::query(what).execute(&mut *connection).await.unwrap();
    connection
}

async fn let_go(mut held: sqlx::pool::PoolConnection<sqlx::Postgres>) {
    sqlx::query("COMMIT").execute(&mut *held).await.unwrap();
}

pub(super) async fn task_of_last(test: &TestDatabase) -> TaskId {
    let id = sqlx::query_scalar("SELECT last_task FROM duetime.schedule").fetch_one(&test.pool).await.unwrap();
    TaskId::from_uuid(id)
}

async fn finish(counter: &Counter, id: TaskId) {
    let attempt = claim(counter, id).await;
    let finish = Finish {
        id,
        attempt,
        final_state: common::task::TaskState::Succeeded,
        was: &[common::task::TaskState::Dispatching],
        keep_ms: 86_400_000,
        report: Report::default(),
        entry: None,
        at_deadline: false,
    };
    let database = counter.store.of(id.shard()).expect("shards exist");
    assert_eq!(database.task_finish(&[finish]).await.unwrap().ids, [id]);
}

#[tokio::test]
async fn a_schedule_is_put_shown_paused_run_and_deleted() {
    let (counter, test) = fresh().await;
    let desk = &counter.desk;
    let put = desk
        .schedule_put(
            name("s"),
            schedule(r#"{"queue":"mails","cron":"30 2 * * *","time_zone":"Europe/Berlin","payload":{"a":1}}"#),
        )
        .await
        .expect("put");
    assert!(put.created && !put.view.paused && put.view.next_fire_times.len() == 5);
    let again = desk.schedule_put(name("s"), hourly(r#","payload":[1]"#)).await.expect("put");
    assert!(!again.created);
    let seven = desk.schedule_get(name("s"), NextQuery { next: Some(7) }.count().unwrap()).await.expect("there");
    assert_eq!((seven.next_fire_times.len(), seven.payload.expect("shown").get()), (7, "[1]"));

    assert!(desk.schedule_pause(name("s"), true).await.expect("paused").paused);
    let put = desk.schedule_put(name("s"), hourly("")).await.expect("put");
    assert!(put.view.paused && put.view.next_fire_times.is_empty(), "it stays paused unless the request resumes it");
    assert!(!desk.schedule_put(name("s"), hourly(r#","paused":false"#)).await.expect("put").view.paused);

    let task = desk.schedule_run(name("s")).await.expect("made");
    assert_eq!((task.queue.as_str(), task.key), ("mails", None));
    assert_eq!(test.live().await, 1);

    desk.schedule_put(name("t"), hourly("")).await.expect("put");
    let page = NamePage { limit: Some(1), cursor: None };
    let list = desk.schedule_list(page).await.expect("a page");
    assert_eq!((list.schedules[0].name.as_str(), list.next_cursor.as_deref()), ("s", Some("s")));
    desk.schedule_delete(name("s")).await.expect("deleted");
    for status in [
        desk.schedule_get(name("s"), 1).await.expect_err("gone").status,
        desk.schedule_delete(name("s")).await.expect_err("gone").status,
        desk.schedule_pause(name("s"), true).await.expect_err("gone").status,
        desk.schedule_run(name("s")).await.expect_err("gone").status,
    ] {
        assert_eq!(status, 404);
    }
    let never = desk.schedule_put(name("s"), schedule(r#"{"queue":"mails","cron":"0 0 30 2 *"}"#)).await;
    assert_eq!(never.expect_err("no such day").field.as_deref(), Some("cron"));
}

#[tokio::test]
async fn the_next_fire_times_that_are_shown_are_those_that_come() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    // A fire time is decided ahead.
    let decide = "UPDATE duetime.schedule SET since = clock_timestamp() + interval '30.5 s', last_fire_at = $1";
    for last_fire_at in [None, Some(fixture::now(&test.pool).await.shifted(29_500))] {
        sqlx::query(decide).bind(last_fire_at.map(UnixMicros::to_utc)).execute(&test.pool).await.unwrap();
        let put = schedule(r#"{"queue":"mails","every_ms":1000}"#);
        let shown = counter.desk.schedule_put(name("s"), put).await.expect("put").view.next_fire_times;
        let next_at = counter.store.home().schedule_read(&name("s")).await.unwrap().expect("there").standing.next_at;
        let expected: Vec<UnixMicros> = last_fire_at.into_iter().chain(next_at).collect();
        assert_eq!(shown[..expected.len()], expected);
    }
}

#[tokio::test]
async fn two_firers_at_the_same_moment_make_one_task_for_each_fire_time() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly(r#","overlap":"allow""#)).await.expect("put");
    set_back(&test, 5).await;
    test.be_patient(PoolKind::Fire).await;
    let held = hold(&test, SCHEDULES).await;
    let firers = [firer(&counter, true), firer(&counter, true)];
    let looks = firers.clone().map(|(firer, _)| spawn_child(async move { look(&firer).await }));
    // Both firers have read the same state.
    test.until_waiting(2).await;
    let_go(held).await;
    for done in futures::future::join_all(looks).await {
        done.expect("no panic");
    }
    assert_each_once(&test, 5).await;
    assert_eq!(firers.iter().map(|(_, metrics)| made(metrics)).sum::<u64>(), 5, "and decided once");
}

#[tokio::test]
async fn what_a_firer_decided_before_it_died_is_made_once_by_another() {
    let (counter, test) = fresh().await;
    counter
        .desk
        .queue_put(QueueName::new("mails"), QueueRequest::parse(r#"{"dedup_window_ms":0}"#).unwrap())
        .await
        .unwrap();
    assert_ne!(QueuePolicy::default().dedup_window_ms, 0);
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    set_back(&test, 1).await;
    let (first, _) = firer(&counter, true);
    // The firer dies after the task is written and before it knows. Its decision is still there, and overdue.
    sqlx::raw_sql(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER keep BEFORE DELETE ON duetime.fire FOR EACH ROW EXECUTE FUNCTION keep()",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    look(&first).await;
    let id = task_of_last(&test).await;
    finish(&counter, id).await;
    assert_eq!(test.live().await, 0);
    sqlx::raw_sql("DROP TRIGGER keep ON duetime.fire; UPDATE duetime.fire SET wake_at = now()")
        .execute(&test.pool)
        .await
        .unwrap();

    let (second, metrics) = firer(&counter, false);
    look(&second).await;
    assert_each_once(&test, 1).await;
    assert_eq!(
        (test.live().await, made(&metrics)),
        (0, 0),
        "it has finished, and its key is free: only its id says so"
    );
}

#[tokio::test]
async fn what_was_decided_and_never_written_is_made_by_another() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    set_back(&test, 1).await;
    // Simulates a death between the two statements: the rows are held, and only the dead node would have
    // written them.
    let (dead, _) = firer(&counter, true);
    let held = dead.keep_from_making().await;
    dead.look().await.expect("decided");
    assert_eq!(keys(&test).await, Vec::<String>::new());
    sqlx::query("UPDATE duetime.fire SET wake_at = now()").execute(&test.pool).await.unwrap();
    let (other, _) = firer(&counter, false);
    look(&other).await;
    assert_each_once(&test, 1).await;
    drop(held);
}

#[tokio::test]
async fn a_change_at_the_moment_of_a_fire_time_neither_loses_nor_doubles_it() {
    for change_first in [false, true] {
        let (counter, test) = fresh().await;
        counter.desk.schedule_put(name("s"), hourly(r#","overlap":"allow""#)).await.expect("put");
        set_back(&test, 1).await;
        test.be_patient(PoolKind::Fire).await;
        test.be_patient(PoolKind::Write).await;
        let held = hold(&test, if change_first { FIRE_TIMES } else { SCHEDULES }).await;
        let (firer, _) = firer(&counter, true);
        let (looking, desk) = (firer.clone(), counter.desk.clone());
        let fired = spawn_child(async move { look(&looking).await });
        test.until_waiting(1).await;
        let changing = spawn_child(async move {
            let request =
                schedule(r#"{"queue":"others","every_ms":86400000,"overlap":"allow","catch_up_ms":86400000}"#);
            desk.schedule_put(name("s"), request).await.map(|put| put.created)
        });
        // The first to be written is in force; the other finds the schedule changed.
        let changed = if change_first {
            let changed = changing.await;
            let_go(held).await;
            changed
        } else {
            test.until_waiting(2).await;
            let_go(held).await;
            changing.await
        };
        fired.await.expect("no panic");
        assert_eq!(changed.expect("no panic"), Ok(false));
        look(&firer).await;
        assert_each_once(&test, 1).await;
        let queue: String = sqlx::query_scalar("SELECT queue FROM duetime.task").fetch_one(&test.pool).await.unwrap();
        assert_eq!(queue, if change_first { "others" } else { "mails" });
    }
}

#[tokio::test]
async fn a_pause_at_the_moment_of_a_fire_time_neither_loses_it_nor_lets_more_pass() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly(r#","overlap":"allow""#)).await.expect("put");
    set_back(&test, 1).await;
    counter.desk.schedule_pause(name("s"), true).await.expect("paused");
    let (firer, _) = firer(&counter, true);
    look(&firer).await;
    assert_each_once(&test, 1).await;
    // Fire times within two hours of pause are not made up.
    sqlx::query(
        "UPDATE duetime.schedule SET paused_at = paused_at - interval '2 hours', since = since - interval '2 hours'",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    assert!(!counter.desk.schedule_pause(name("s"), false).await.expect("resumed").paused);
    look(&firer).await;
    assert_each_once(&test, 1).await;
}

#[tokio::test]
async fn skip_waits_for_the_end_of_the_last_task_and_for_a_report_only_where_there_is_one() {
    for (settle, again) in [("result", 1), ("reject", 2)] {
        let (counter, test) = fresh().await;
        let policy = QueueRequest::parse(&format!(r#"{{"settle":"{settle}"}}"#)).unwrap();
        counter.desk.queue_put(QueueName::new("mails"), policy).await.expect("set");
        counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
        let (firer, metrics) = firer(&counter, true);
        set_back(&test, 1).await;
        look(&firer).await;
        assert_each_once(&test, 1).await;
        // One hour earlier is another fire time of the same schedule.
        let id = task_of_last(&test).await;
        claim(&counter, id).await;
        sqlx::query("UPDATE duetime.task SET state = 'delivered', due_at = due_at - interval '9 hours', key = 'first'")
            .execute(&test.pool)
            .await
            .unwrap();
        set_back(&test, 1).await;
        look(&firer).await;
        assert_eq!(test.live().await, again, "{settle}");
        assert_eq!(metrics.schedule_fires.with_label_values(&["skipped"]).get(), u64::from(again == 1), "{settle}");
    }
}

#[tokio::test]
async fn one_waits_for_the_last_task_and_is_made_when_it_is_finished() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly(r#","overlap":"buffer_one""#)).await.expect("put");
    let (firer, _) = firer(&counter, true);
    set_back(&test, 3).await;
    look(&firer).await;
    assert_each_once(&test, 1).await;
    assert!(counter.desk.schedule_get(name("s"), 1).await.expect("there").buffered_at.is_some());
    finish(&counter, task_of_last(&test).await).await;
    let wake = "UPDATE duetime.schedule SET wake_at = clock_timestamp()";
    sqlx::query(wake).execute(&test.pool).await.unwrap();
    look(&firer).await;
    assert_each_once(&test, 2).await;
    assert!(counter.desk.schedule_get(name("s"), 1).await.expect("there").buffered_at.is_none());
}

#[tokio::test]
async fn others_than_the_master_act_only_on_what_it_leaves() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    set_back(&test, 1).await;
    sqlx::query("UPDATE duetime.schedule SET wake_at = clock_timestamp() + interval '600 s'")
        .execute(&test.pool)
        .await
        .unwrap();
    let (other, metrics) = firer(&counter, false);
    look(&other).await;
    assert_eq!(made(&metrics), 0);
    let pause = other.look().await.expect("it answers");
    assert!(pause > Duration::ZERO && pause <= Duration::from_millis(500), "{pause:?}");
    sqlx::query("UPDATE duetime.schedule SET wake_at = clock_timestamp() - interval '2 s'")
        .execute(&test.pool)
        .await
        .unwrap();
    look(&other).await;
    assert_each_once(&test, 1).await;
}

/// Beside an old transaction, looks begin a minute ago.
#[tokio::test]
async fn a_change_of_a_schedule_that_was_postponed_has_it_looked_at_like_one_of_now() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    set_back(&test, 3).await;
    let postpone = "UPDATE duetime.schedule SET wake_at = clock_timestamp() + interval '10 min'";
    let is_seen = async || {
        let is_seen =
            "SELECT wake_at BETWEEN clock_timestamp() - interval '1 min' AND clock_timestamp() FROM duetime.schedule";
        sqlx::query_scalar::<_, bool>(is_seen).fetch_one(&test.pool).await.unwrap()
    };
    sqlx::query(postpone).execute(&test.pool).await.unwrap();
    counter.desk.schedule_put(name("s"), hourly(r#","payload":[1]"#)).await.expect("put");
    assert!(is_seen().await, "after a put");
    sqlx::query(postpone).execute(&test.pool).await.unwrap();
    counter.desk.schedule_pause(name("s"), true).await.expect("paused");
    assert!(is_seen().await, "after a pause");
}

#[tokio::test]
async fn more_than_one_look_can_read_are_decided_by_looks_without_a_pause() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    sqlx::query(
        "INSERT INTO duetime.schedule (name, rules, payload, since)
         SELECT name || g, rules, payload, since FROM duetime.schedule, generate_series(1, 120) AS g",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    set_back(&test, 1).await;
    let (firer, _) = firer(&counter, true);
    assert_eq!(firer.look().await.expect("it answers"), Duration::ZERO);
    look(&firer).await;
    let made: i64 =
        sqlx::query_scalar("SELECT count(DISTINCT key) FROM duetime.task").fetch_one(&test.pool).await.unwrap();
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.fire").fetch_one(&test.pool).await.unwrap();
    assert_eq!(made + left, 121, "{made} made, {left} left for the next node");
}

#[tokio::test]
async fn a_schedule_or_a_task_that_the_database_refuses_holds_up_no_other_schedule() {
    let (counter, test) = fresh().await;
    for (schedule_name, queue) in [("a", "mails"), ("poison", "mails"), ("b", "poison"), ("c", "mails")] {
        let hourly = format!(r#"{{"queue":"{queue}","every_ms":3600000,"catch_up_ms":86400000}}"#);
        counter.desk.schedule_put(name(schedule_name), schedule(&hourly)).await.expect("put");
    }
    set_back(&test, 1).await;
    test.refuse("INSERT", "fire", "schedule", "poison").await;
    test.refuse("INSERT", "task", "queue", "poison").await;
    let (firer, _) = firer(&counter, true);
    look(&firer).await;
    assert_each_once(&test, 2).await;
    let kept: Vec<String> = test.quarantine().await.into_iter().map(|(source, _)| source).collect();
    assert_eq!(kept.iter().filter(|source| *source == "schedule").count(), 1, "{kept:?}");
    assert_eq!(kept.iter().filter(|source| *source == "fire").count(), 1, "{kept:?}");
    look(&firer).await;
    assert_eq!(test.quarantine().await.len(), 2, "it is checked again after a while");
}

#[tokio::test]
async fn a_schedule_that_can_be_neither_decided_nor_postponed_is_left_alone_until_it_changes() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("poison"), hourly("")).await.expect("put");
    set_back(&test, 1).await;
    test.refuse("UPDATE", "schedule", "name", "poison").await;
    let (firer, metrics) = firer(&counter, true);
    for _ in 0..3 {
        look(&firer).await;
        assert_eq!(test.quarantine().await.len(), 1);
    }
    sqlx::query("DROP FUNCTION public.refuse() CASCADE").execute(&test.pool).await.unwrap();
    look(&firer).await;
    assert_eq!(made(&metrics), 0, "it is left alone");
    counter.desk.schedule_put(name("poison"), hourly(r#","priority":1"#)).await.expect("put");
    set_back(&test, 1).await;
    look(&firer).await;
    assert_eq!(made(&metrics), 1);
}

#[tokio::test]
async fn decisions_that_cannot_be_written_have_one_line_in_the_log() {
    let log = Log::keep();
    let (counter, test) = fresh().await;
    for schedule in ["a", "b"] {
        counter.desk.schedule_put(name(schedule), hourly("")).await.expect("put");
    }
    set_back(&test, 1).await;
    test.fill_disk("INSERT", "fire").await;
    let (firer, metrics) = firer(&counter, true);
    // A change ends the back-off of a schedule whose decision failed.
    let change = async || {
        let change = "UPDATE duetime.schedule SET revision = nextval('duetime.schedule_revision')";
        sqlx::query(change).execute(&test.pool).await.unwrap();
    };
    for _ in 0..3 {
        change().await;
        look(&firer).await;
    }
    assert_eq!(log.count("outcome of a schedule decision unknown"), 1);
    sqlx::query("DROP FUNCTION public.fill_disk() CASCADE").execute(&test.pool).await.unwrap();
    change().await;
    look(&firer).await;
    assert_eq!(made(&metrics), 2);
}
