//! The firer beside a clock that was set back, other rules of a time zone, and a database that is slow or away.

use std::{collections::BTreeMap, time::Duration};

use common::{
    ids::{DatabaseName, ShardId},
    schedule::ScheduleState,
    time::UnixMicros,
    wire::ScheduleRequest,
};
use sqlx::AssertSqlSafe;
use tokio_util::sync::CancellationToken;

use super::{
    Counter, fresh,
    schedules::{firer, firer_among, hourly, made, name, set_back, task_of_last},
    with_two_databases,
};
use crate::{
    loops::upkeep::{
        prober::{NodeFitness, Unfit},
        queue_reader::catch_up,
    },
    store::{
        PoolKind,
        submit::Sending,
        tests::{
            fixture::{self, TestDatabase},
            new_task,
        },
    },
    supervise::{at_work, spawn_child},
    working_set::failures::tests::Log,
};

const HOUR_MS: i64 = 3_600_000;

/// Moves the schedules a day ahead, as a clock that is a day ahead for a moment leaves them.
async fn set_ahead(test: &TestDatabase) {
    sqlx::query(
        "UPDATE duetime.schedule
            SET next_at = next_at + interval '1 day', since = since + interval '1 day', wake_at = wake_at + interval '1 day'",
    )
    .execute(&test.pool)
    .await
    .unwrap();
}

async fn standing(counter: &Counter) -> ScheduleState {
    counter.store.home().schedule_read(&name("s")).await.unwrap().expect("there").standing
}

/// The schedule fires at its next hour, and a node looks at it then.
async fn assert_on_time(counter: &Counter, test: &TestDatabase) {
    let (standing, now) = (standing(counter).await, fixture::now(&test.pool).await);
    let next_at = standing.next_at.expect("it goes on");
    assert!(next_at <= now.shifted(HOUR_MS) && standing.since <= now, "{standing:?} at {now}");
    let wake_at: chrono::DateTime<chrono::Utc> =
        sqlx::query_scalar("SELECT wake_at FROM duetime.schedule").fetch_one(&test.pool).await.unwrap();
    assert!(UnixMicros::from(wake_at) <= next_at, "{wake_at}");
}

#[tokio::test]
async fn a_put_or_a_resume_has_a_schedule_go_on_after_the_clock_was_set_back() {
    let (counter, test) = fresh().await;
    let put = async |request: ScheduleRequest| counter.desk.schedule_put(name("s"), request).await.expect("put");
    put(hourly("")).await;
    set_ahead(&test).await;
    put(hourly("")).await;
    assert_on_time(&counter, &test).await;

    set_ahead(&test).await;
    put(ScheduleRequest::parse(r#"{"queue":"mails","every_ms":1800000}"#).expect("a schedule")).await;
    assert_on_time(&counter, &test).await;

    set_ahead(&test).await;
    counter.desk.schedule_pause(name("s"), true).await.expect("paused");
    counter.desk.schedule_pause(name("s"), false).await.expect("resumed");
    assert_on_time(&counter, &test).await;
}

#[tokio::test]
async fn the_master_corrects_schedules_whose_clock_was_set_back() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    let (master, _) = firer(&counter, true);
    counter.store.home().look().await.expect("it answers");
    let before = standing(&counter).await;
    master.correct_all(at_work()).await.expect("it answers");
    assert_eq!(standing(&counter).await, before, "there is nothing to correct");
    set_ahead(&test).await;
    // This version cannot read it, and goes on with the others.
    let unreadable = "INSERT INTO duetime.schedule (name, rules, payload, since) VALUES ('a', '{}', '', now())";
    sqlx::query(unreadable).execute(&test.pool).await.unwrap();
    master.correct_all(at_work()).await.expect("it answers");
    sqlx::query("DELETE FROM duetime.schedule WHERE name = 'a'").execute(&test.pool).await.unwrap();
    assert_on_time(&counter, &test).await;
}

#[tokio::test]
async fn a_buffered_fire_time_and_a_decided_one_that_a_clock_ahead_has_put_off_are_made() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly(r#","overlap":"buffer_one""#)).await.expect("put");
    // The next fire time is later still.
    let buffered = "UPDATE duetime.schedule SET next_at = next_at + interval '2 days',
                        buffered_at = now() - interval '1 hour', wake_at = now() + interval '1 day'";
    sqlx::query(buffered).execute(&test.pool).await.unwrap();
    let decided = "INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
                   SELECT $1, name, now() - interval '2 hours', false, rules, payload, wake_at FROM duetime.schedule";
    let id = fixture::fresh_id_of(ShardId::new(0)).uuid();
    sqlx::query(decided).bind(id).execute(&test.pool).await.unwrap();
    let (master, _) = firer(&counter, true);
    let look = async || {
        master.look().await.expect("it answers");
        drop(master.keep_from_making().await);
        test.live().await
    };
    assert_eq!(look().await, 0);
    master.wake_put_off().await;
    assert_eq!(look().await, 2);
}

#[tokio::test]
async fn a_schedule_that_cannot_be_corrected_at_the_moment_keeps_no_other_waiting_and_is_corrected_later() {
    let (counter, test) = fresh().await;
    for schedule in ["s", "z"] {
        counter.desk.schedule_put(name(schedule), hourly("")).await.expect("put");
    }
    set_ahead(&test).await;
    // The master reads a hundred schedules at once, by their names.
    let between = "INSERT INTO duetime.schedule (name, rules, payload, since)
                   SELECT name || g, rules, payload, now()
                     FROM duetime.schedule, generate_series(1, 120) AS g WHERE name = 's'";
    sqlx::query(between).execute(&test.pool).await.unwrap();
    let ahead = async || {
        let ahead = "SELECT name FROM duetime.schedule WHERE since > now() + interval '1 hour' ORDER BY name";
        sqlx::query_scalar::<_, String>(ahead).fetch_all(&test.pool).await.unwrap()
    };
    assert_eq!(ahead().await, ["s", "z"]);
    let mut holder = test.pool.acquire().await.unwrap();
    let hold = "BEGIN; SELECT FROM duetime.schedule WHERE name = 's' FOR UPDATE";
    sqlx::raw_sql(hold).execute(&mut *holder).await.unwrap();
    let (master, _) = firer(&counter, true);
    counter.store.home().look().await.expect("it answers");
    // The pass counts as failed, so that it is repeated.
    master.correct_all(at_work()).await.expect_err("a transaction holds the first one");
    assert_eq!(ahead().await, ["s"]);
    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
    master.correct_all(at_work()).await.expect("it answers");
    assert_eq!(ahead().await, Vec::<String>::new());
}

#[tokio::test]
async fn the_master_corrects_a_fire_time_that_the_calendar_does_not_have_any_more() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    let before = standing(&counter).await;
    let later =
        "UPDATE duetime.schedule SET next_at = next_at + interval '59 min', wake_at = wake_at + interval '59 min'";
    sqlx::query(later).execute(&test.pool).await.unwrap();
    counter.store.home().look().await.expect("it answers");
    firer(&counter, true).0.correct_all(at_work()).await.expect("it answers");
    assert_eq!(standing(&counter).await, before);
    assert_on_time(&counter, &test).await;
}

#[tokio::test]
async fn a_schedule_that_was_put_anew_waits_for_the_task_that_its_fire_time_had_before() {
    let (counter, test) = fresh().await;
    let (master, metrics) = firer(&counter, true);
    let look = async || {
        master.look().await.expect("it answers");
        drop(master.keep_from_making().await);
        task_of_last(&test).await
    };
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    set_back(&test, 1).await;
    let first = look().await;
    counter.desk.schedule_delete(name("s")).await.expect("deleted");
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put anew");
    let same = "UPDATE duetime.schedule SET next_at = t.due_at, since = t.due_at - interval '1 hour',
                    wake_at = clock_timestamp() - interval '1 hour' FROM duetime.task AS t";
    for _ in 0..2 {
        sqlx::query(same).execute(&test.pool).await.unwrap();
        assert_eq!(look().await, first);
    }
    assert_eq!((made(&metrics), test.live().await), (2, 1), "the third look skips a fire time");
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.fire").fetch_one(&test.pool).await.unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_database_that_is_silent_delays_no_schedule_whose_last_task_is_in_another() {
    let (counter, tests) = with_two_databases().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    let add = "INSERT INTO duetime.schedule (name, rules, payload, since, last_task)
               SELECT $1::text || g, rules, payload, since, $3::uuid
                 FROM duetime.schedule, generate_series(1, $2::int) AS g WHERE name = 's'";
    for (kind, count, shard) in [("slow", 99, 64), ("quick", 1, 0)] {
        let last = fixture::fresh_id_of(ShardId::new(shard)).uuid();
        sqlx::query(add).bind(kind).bind(count).bind(last).execute(&tests[0].pool).await.unwrap();
    }
    sqlx::query("DELETE FROM duetime.schedule WHERE name = 's'").execute(&tests[0].pool).await.unwrap();
    set_back(&tests[0], 1).await;
    let mut holder = tests[1].pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE duetime.task").execute(&mut *holder).await.unwrap();
    let (master, metrics) = firer(&counter, true);
    // A look reads a hundred schedules. A question about each of them, four at a time, would take 25 s.
    let look = tokio::time::timeout(Duration::from_secs(20), master.look()).await;
    look.expect("it asks once").expect("the first database answers");
    assert_eq!(made(&metrics), 1);
    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
    // It may be silent for the master only.
    let (other, metrics) = firer(&counter, false);
    other.look().await.expect("it answers");
    assert_eq!(made(&metrics), 99);
}

#[tokio::test]
async fn schedules_whose_last_tasks_a_node_cannot_ask_for_take_no_place_in_its_looks_and_other_nodes_decide_them() {
    let (counter, tests) = with_two_databases().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    counter.desk.schedule_put(name("t"), hourly(r#","overlap":"allow""#)).await.expect("put");
    // A look reads a hundred schedules.
    let last = fixture::fresh_id_of(ShardId::new(64)).uuid();
    let more = "INSERT INTO duetime.schedule (name, rules, payload, since, last_task)
                SELECT name || g, rules, payload, since, $1::uuid
                  FROM duetime.schedule, generate_series(1, 150) AS g WHERE name = 's'";
    for add in ["UPDATE duetime.schedule SET last_task = $1::uuid", more] {
        sqlx::query(add).bind(last).execute(&tests[0].pool).await.unwrap();
    }
    set_back(&tests[0], 1).await;
    // What has been due for 5 s, no node has decided.
    let lately = "UPDATE duetime.schedule
                     SET wake_at = clock_timestamp() - CASE WHEN name IN ('s1', 't') THEN 0.5 ELSE 1 END * interval '1 s'";
    sqlx::query(lately).execute(&tests[0].pool).await.unwrap();
    // The last task of `s1` is decided and not made, so it need not be asked for.
    let id = fixture::fresh_id_of(ShardId::new(64)).uuid();
    let pending = "WITH s AS (UPDATE duetime.schedule SET last_task = $1 WHERE name = 's1' RETURNING *)
                   INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
                   SELECT $1, name, now(), false, rules, payload, now() + interval '1 hour' FROM s";
    sqlx::query(pending).bind(id).execute(&tests[0].pool).await.unwrap();
    let away = (DatabaseName::new("east"), Unfit::away("cut off".to_owned()));
    let fitness = NodeFitness { unfit: [away].into(), ..NodeFitness::default() };
    let (master, metrics) = firer_among(&counter, true, fitness);
    master.look().await.expect("it answers");
    let skipped = || metrics.schedule_fires.with_label_values(&["skipped"]).get();
    assert_eq!((made(&metrics), skipped()), (1, 1), "`t` and `s1`");
    let (other, metrics) = firer(&counter, false);
    for _ in 0..2 {
        other.look().await.expect("it answers");
    }
    assert_eq!(made(&metrics), 150, "`s` and the others");
}

#[tokio::test]
async fn a_last_task_that_cannot_be_read_holds_up_no_other_schedule_and_is_in_the_log() {
    let (log, (counter, test)) = (Log::keep(), fresh().await);
    let [unreadable, finished] = [(); 2].map(|()| fixture::fresh_id_of(ShardId::new(0)));
    test.database.task_submit(&[new_task(unreadable)], Sending::First).await.unwrap();
    sqlx::query(r#"UPDATE duetime.task SET retry = '"unreadable"'"#).execute(&test.pool).await.unwrap();
    for (schedule, last) in [("bad", unreadable), ("good", finished)] {
        counter.desk.schedule_put(name(schedule), hourly("")).await.expect("put");
        let set = "UPDATE duetime.schedule SET last_task = $1 WHERE name = $2";
        sqlx::query(set).bind(last.uuid()).bind(schedule).execute(&test.pool).await.unwrap();
    }
    set_back(&test, 1).await;
    let (master, metrics) = firer(&counter, true);
    master.look().await.expect("it answers");
    assert_eq!(made(&metrics), 1);
    assert_eq!(log.count("the last tasks of schedules cannot be read"), 1);
}

#[tokio::test]
async fn decided_fire_times_whose_database_is_away_are_left_alone_and_the_others_are_made() {
    let (counter, tests) = with_two_databases().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    let decide = "INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
                  SELECT id, name, now(), false, rules, payload, now() - $2 * interval '1 s'
                    FROM duetime.schedule, unnest($1::uuid[]) AS id";
    for (count, shard, overdue_s) in [(1_000, 64, 60), (1, 0, 30)] {
        let ids: Vec<_> = (0..count).map(|_| fixture::fresh_id_of(ShardId::new(shard)).uuid()).collect();
        sqlx::query(decide).bind(ids).bind(overdue_s).execute(&tests[0].pool).await.unwrap();
    }
    let away = (DatabaseName::new("east"), Unfit::away("cut off".to_owned()));
    let fitness = NodeFitness { unfit: [away].into(), ..NodeFitness::default() };
    let (master, _) = firer_among(&counter, true, fitness);
    assert!(master.look().await.expect("it answers") > Duration::ZERO);
    let overdue = "SELECT count(*) FROM duetime.fire WHERE wake_at <= now()";
    let overdue: i64 = sqlx::query_scalar(overdue).fetch_one(&tests[0].pool).await.unwrap();
    assert_eq!(overdue, 1_000);
}

#[tokio::test]
async fn decided_fire_times_are_taken_on_between_rests_only_while_a_database_is_away() {
    let (counter, tests) = with_two_databases().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    let decide = "INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
                  SELECT $1, name, now(), false, rules, payload, now() FROM duetime.schedule";
    let id = fixture::fresh_id_of(ShardId::new(0)).uuid();
    sqlx::query(decide).bind(id).execute(&tests[0].pool).await.unwrap();
    let away = (DatabaseName::new("east"), Unfit::away("cut off".to_owned()));
    for (unfit, live) in [(BTreeMap::from([away]), 0), (BTreeMap::new(), 1)] {
        let (master, _) = firer_among(&counter, true, NodeFitness { unfit, ..NodeFitness::default() });
        master.rest_from_takes();
        master.look().await.expect("it answers");
        drop(master.keep_from_making().await);
        assert_eq!(tests[0].live().await, live);
    }
}

/// Their payloads may be large.
#[tokio::test]
async fn a_node_makes_no_more_than_four_hundred_tasks_at_once_and_leaves_the_others() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    let decide = "INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
                  SELECT id, name, now(), false, rules, payload, now() FROM duetime.schedule, unnest($1::uuid[]) AS id";
    let ids: Vec<_> = (0..600).map(|_| fixture::fresh_id_of(ShardId::new(0)).uuid()).collect();
    sqlx::query(decide).bind(ids).execute(&test.pool).await.unwrap();
    test.be_patient(PoolKind::Write).await;
    let mut holder = test.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE duetime.task").execute(&mut *holder).await.unwrap();
    let (master, _) = firer(&counter, true);
    for _ in 0..4 {
        assert_eq!(master.look().await.expect("it answers"), Duration::ZERO, "there are more");
    }
    assert!(master.look().await.expect("it answers") > Duration::ZERO, "there is no room for more");
    // The longest waiting are taken first. A node with room finds the others at once.
    let left = "SELECT count(*) FROM duetime.fire WHERE wake_at = fire_at";
    assert_eq!(sqlx::query_scalar::<_, i64>(left).fetch_one(&test.pool).await.unwrap(), 200);
    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
}

#[tokio::test]
async fn a_fire_time_whose_task_fails_as_with_a_bug_beside_others_is_set_aside_and_its_schedule_goes_on() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("good"), hourly("")).await.expect("put");
    let bad = r#"{"queue":"poison","every_ms":3600000,"catch_up_ms":86400000}"#;
    counter.desk.schedule_put(name("bad"), ScheduleRequest::parse(bad).expect("a schedule")).await.expect("put");
    set_back(&test, 1).await;
    test.fail_with("XX001", "INSERT", "task", "queue", "poison").await;
    let (master, metrics) = firer(&counter, true);
    let looking = async {
        while test.quarantine().await.is_empty() {
            master.look().await.expect("it answers");
            drop(master.keep_from_making().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
            // The hold of the last look is over.
            sqlx::query("UPDATE duetime.fire SET wake_at = now()").execute(&test.pool).await.unwrap();
        }
    };
    // A row that fails without others that pass would take two minutes.
    let found = tokio::time::timeout(Duration::from_secs(100), Box::pin(looking)).await;
    found.expect("others pass, so it is at fault after a while");
    let kept: Vec<String> = test.quarantine().await.into_iter().map(|(source, _)| source).collect();
    assert_eq!((kept, made(&metrics), test.live().await), (vec!["fire".to_owned()], 2, 1));
    assert!(test.refusals().await > 1, "the server may be at fault for a while");
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.fire").fetch_one(&test.pool).await.unwrap();
    assert_eq!(left, 0);
    set_back(&test, 1).await;
    master.look().await.expect("it answers");
    assert_eq!(made(&metrics), 3, "`good` has an unfinished task");
}

/// The sweep of expired tasks may come after the fire time.
#[tokio::test]
async fn a_last_task_whose_expiry_has_passed_has_no_fire_time_skipped() {
    for (expires, live) in [("clock_timestamp() - interval '1 s'", 2), ("clock_timestamp() + interval '1 h'", 1)] {
        let (counter, test) = fresh().await;
        counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
        let (master, _) = firer(&counter, true);
        let look = async || {
            set_back(&test, 1).await;
            master.look().await.expect("it answers");
            drop(master.keep_from_making().await);
            test.live().await
        };
        assert_eq!(look().await, 1);
        // With another key it is the task of another fire time.
        let lapse = format!(
            "UPDATE duetime.task
                SET state = 'ready', due_at = due_at - interval '9 hours', key = 'first', expires_at = {expires}"
        );
        sqlx::query(AssertSqlSafe(lapse)).execute(&test.pool).await.unwrap();
        assert_eq!(look().await, live, "{expires}");
    }
}

/// A hundred due schedules whose decisions fail, and one behind them, `s`, that can be decided.
async fn with_failing_decisions() -> (Counter, TestDatabase) {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    // A look reads a hundred schedules, those that have been due for the longest time first.
    let others = r"INSERT INTO duetime.schedule (name, rules, payload, since)
                   SELECT 'full' || g, rules, '\xff'::bytea, since FROM duetime.schedule, generate_series(1, 100) AS g";
    sqlx::query(others).execute(&test.pool).await.unwrap();
    set_back(&test, 1).await;
    let last = "UPDATE duetime.schedule SET wake_at = clock_timestamp() - interval '1 min' WHERE name = 's'";
    sqlx::query(last).execute(&test.pool).await.unwrap();
    // As on a full disk.
    test.fail_with("53100", "UPDATE", "schedule", "payload", r"\xff").await;
    (counter, test)
}

#[tokio::test]
async fn schedules_whose_decisions_fail_keep_none_behind_them_waiting() {
    let (counter, _test) = with_failing_decisions().await;
    let (master, metrics) = firer(&counter, true);
    assert_eq!(master.look().await.expect("it answers"), Duration::ZERO, "there are more");
    assert_eq!(made(&metrics), 0);
    // On a slow machine the back-off may end before the second look.
    for _ in 0..5 {
        master.look().await.expect("it answers");
    }
    assert_eq!(made(&metrics), 1);
}

#[tokio::test]
async fn a_node_pauses_between_looks_while_more_decisions_fail_than_it_leaves_alone() {
    let (counter, _test) = with_failing_decisions().await;
    let (master, _) = firer(&counter, true);
    let one = counter.store.home().schedule_read(&name("s")).await.unwrap().expect("there");
    for _ in 0..1_000 {
        master.leave_alone(one.revision, Duration::from_secs(600));
    }
    assert!(master.look().await.expect("it answers") > Duration::ZERO);
}

#[tokio::test]
async fn a_decided_fire_time_that_cannot_be_read_has_one_line_in_the_log() {
    let log = Log::keep();
    let (counter, test) = fresh().await;
    let (master, _) = firer(&counter, true);
    let unreadable = "INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
                      VALUES ($1, 's', now(), false, '{}', '', now())";
    let id = fixture::fresh_id_of(ShardId::new(0)).uuid();
    sqlx::query(unreadable).bind(id).execute(&test.pool).await.unwrap();
    for _ in 0..10 {
        // The hold of the last look is over.
        sqlx::query("UPDATE duetime.fire SET wake_at = now()").execute(&test.pool).await.unwrap();
        master.look().await.expect("it answers");
    }
    assert_eq!(log.count("cannot read a decided fire time"), 9, "each look finds it");
    assert_eq!(log.count("cannot read decided fire times"), 1);
}

#[tokio::test]
async fn schedules_that_missed_fire_times_and_those_that_cannot_be_read_have_one_line_in_the_log() {
    let log = Log::keep();
    let (counter, test) = fresh().await;
    for schedule in ["s", "t", "u"] {
        counter.desk.schedule_put(name(schedule), hourly("")).await.expect("put");
    }
    let unreadable = "INSERT INTO duetime.schedule (name, rules, payload, since)
                      SELECT 'a' || g, '{}'::jsonb, ''::bytea, now() FROM generate_series(1, 2) AS g";
    sqlx::query(unreadable).execute(&test.pool).await.unwrap();
    let (master, _) = firer(&counter, true);
    // They make up those of a day.
    for hours in [48, 1] {
        // A change ends the back-off.
        let change = "UPDATE duetime.schedule SET revision = nextval('duetime.schedule_revision')";
        sqlx::query(change).execute(&test.pool).await.unwrap();
        set_back(&test, hours).await;
        master.look().await.expect("it answers");
    }
    assert_eq!(log.count("a schedule has missed fire times"), 3);
    assert_eq!(log.count("fire times were missed and are not made up"), 1);
    assert_eq!(log.count("this version cannot read a schedule"), 3, "each look finds both");
    assert_eq!(log.count("this version cannot read schedules"), 1);
}

#[tokio::test]
async fn a_look_that_waits_for_the_database_is_cut_off_when_the_node_stops() {
    let log = Log::keep();
    let (counter, test) = fresh().await;
    catch_up(counter.store.home(), &counter.books).await.expect("it answers");
    test.be_patient(PoolKind::Fire).await;
    let mut holder = test.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE duetime.schedule").execute(&mut *holder).await.unwrap();
    // It is not the master, so it counts nothing.
    let (other, _) = firer(&counter, false);
    let stop = CancellationToken::new();
    let running = spawn_child(other.run(stop.clone()));
    test.until_waiting(1).await;
    stop.cancel();
    running.await.expect("it ends");
    assert_eq!(log.count("could not read due schedules"), 0, "it did not wait for the answer");
    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
}
