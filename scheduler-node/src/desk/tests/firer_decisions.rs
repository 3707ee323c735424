//! How the firer writes the decisions of a look: how many statements it takes, and what stands in the way of each.

use std::{sync::Arc, time::Duration};

use common::wire::ScheduleRequest;
use sqlx::{Postgres, pool::PoolConnection};

use super::{
    Counter, fresh,
    schedules::{firer, hourly, made, name, set_back},
};
use crate::{
    loops::upkeep::queue_reader::catch_up,
    store::{PoolKind, tests::fixture::TestDatabase},
    supervise::spawn_child,
};

/// A hundred schedules, `s` and `s1` to `s99`, whose last fire time has passed.
async fn with_a_hundred_due() -> (Counter, TestDatabase) {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    let others = "INSERT INTO duetime.schedule (name, rules, payload, since)
                  SELECT 's' || g, rules, payload, since FROM duetime.schedule, generate_series(1, 99) AS g";
    sqlx::query(others).execute(&test.pool).await.unwrap();
    set_back(&test, 1).await;
    (counter, test)
}

/// Counts the statements that change schedules.
async fn count_statements(test: &TestDatabase) {
    let count = "CREATE SEQUENCE public.statements;
        CREATE FUNCTION public.count_statement() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
        BEGIN PERFORM nextval('public.statements'); RETURN NULL; END $$;
        CREATE TRIGGER count AFTER UPDATE ON duetime.schedule
            FOR EACH STATEMENT EXECUTE FUNCTION public.count_statement()";
    sqlx::raw_sql(count).execute(&test.pool).await.unwrap();
}

async fn statements(test: &TestDatabase) -> i64 {
    sqlx::query_scalar("SELECT last_value FROM public.statements").fetch_one(&test.pool).await.unwrap()
}

#[tokio::test]
async fn the_schedules_of_a_look_are_decided_by_one_statement() {
    let (counter, test) = with_a_hundred_due().await;
    count_statements(&test).await;
    let (master, metrics) = firer(&counter, true);
    master.look().await.expect("it answers");
    assert_eq!((made(&metrics), statements(&test).await), (100, 1));
    drop(master.keep_from_making().await);
    assert_eq!(test.live().await, 100);
}

#[tokio::test]
async fn schedules_that_another_statement_holds_are_decided_by_one_once_it_has_ended() {
    let (counter, test) = with_a_hundred_due().await;
    count_statements(&test).await;
    test.be_patient(PoolKind::Fire).await;
    let mut holder = test.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT FROM duetime.schedule FOR SHARE").execute(&mut *holder).await.unwrap();
    let (master, metrics) = firer(&counter, true);
    let looking = spawn_child(async move { master.look().await });
    test.until_waiting(1).await;
    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
    looking.await.expect("it ends").expect("it answers");
    // One finds them held, one waits for the first of them, and one decides the rest.
    assert_eq!((made(&metrics), statements(&test).await), (100, 3));
}

#[tokio::test]
async fn a_schedule_that_a_transaction_holds_keeps_no_other_of_its_look_from_being_decided() {
    let (counter, test) = with_a_hundred_due().await;
    let mut holder = test.pool.acquire().await.unwrap();
    // The look reads it all the same.
    let hold = "BEGIN; SELECT FROM duetime.schedule WHERE name = 's7' FOR SHARE";
    sqlx::raw_sql(hold).execute(&mut *holder).await.unwrap();
    let (master, metrics) = firer(&counter, true);
    master.look().await.expect("it answers");
    assert_eq!(made(&metrics), 99);
    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
    // The first one leaves it alone for a second.
    let (other, metrics) = firer(&counter, true);
    other.look().await.expect("it answers");
    assert_eq!(made(&metrics), 1);
}

/// By the default policy a last task might count as finished.
#[tokio::test]
async fn a_node_that_has_not_read_the_queues_decides_nothing() {
    let (counter, _test) = with_a_hundred_due().await;
    counter.books.store(Arc::default());
    let (master, metrics) = firer(&counter, true);
    assert_eq!(master.look_if_fit().await.expect("it answers"), None);
    assert_eq!(made(&metrics), 0);
    catch_up(counter.store.home(), &counter.books).await.expect("it answers");
    assert_eq!(master.look_if_fit().await.expect("it answers"), Some(Duration::ZERO), "it was a full look");
    assert_eq!(made(&metrics), 100);
}

/// `t` and so many more. Each is decided by a statement of its own, since it has more than fifty fire times.
async fn with_many_fire_times(more: i32) -> (Counter, TestDatabase) {
    let (counter, test) = fresh().await;
    let frequent = r#"{"queue":"mails","every_ms":60000,"catch_up_ms":86400000,"overlap":"allow"}"#;
    counter.desk.schedule_put(name("t"), ScheduleRequest::parse(frequent).expect("a schedule")).await.expect("put");
    let others = "INSERT INTO duetime.schedule (name, rules, payload, since)
                  SELECT name || g, rules, payload, since FROM duetime.schedule, generate_series(1, $1) AS g";
    sqlx::query(others).bind(more).execute(&test.pool).await.unwrap();
    set_back(&test, 2).await;
    (counter, test)
}

/// A wait for each of them, four at a time, would take half a minute or more.
#[tokio::test]
async fn schedules_that_an_open_transaction_holds_are_waited_for_once_and_those_behind_them_are_decided() {
    for (counter, test) in [with_a_hundred_due().await, with_many_fire_times(99).await] {
        let mut holder = test.pool.acquire().await.unwrap();
        sqlx::raw_sql("BEGIN; SELECT FROM duetime.schedule FOR SHARE").execute(&mut *holder).await.unwrap();
        let free = "INSERT INTO duetime.schedule (name, rules, payload, next_at, since, wake_at)
                    SELECT 'free', rules, payload, next_at, since, clock_timestamp() - interval '1 min'
                      FROM duetime.schedule LIMIT 1";
        sqlx::query(free).execute(&test.pool).await.unwrap();
        let (master, metrics) = firer(&counter, true);
        let looking = async {
            while made(&metrics) == 0 {
                master.look().await.expect("it answers");
            }
        };
        tokio::time::timeout(Duration::from_secs(20), looking).await.expect("it waits once");
        sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
    }
}

#[tokio::test]
async fn a_look_has_four_statements_under_way() {
    let (counter, test) = with_many_fire_times(15).await;
    test.be_patient(PoolKind::Fire).await;
    let mut holder = test.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT FROM duetime.schedule FOR SHARE").execute(&mut *holder).await.unwrap();
    let (master, metrics) = firer(&counter, true);
    let looking = spawn_child(async move { master.look().await });
    test.until_waiting(4).await;
    let waiting = "SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event_type = 'Lock'";
    for _ in 0..50 {
        assert_eq!(sqlx::query_scalar::<_, i64>(waiting).fetch_one(&test.pool).await.unwrap(), 4);
    }
    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
    looking.await.expect("it ends").expect("it answers");
    assert!(made(&metrics) > 16 * 50, "all of them are decided");
}

/// A hundred due schedules. A trigger on `s7` waits for a row that the transaction holds.
async fn with_a_trigger_that_waits() -> (Counter, TestDatabase, PoolConnection<Postgres>) {
    let (counter, test) = with_a_hundred_due().await;
    let trigger = "CREATE TABLE public.foreign_row (id int PRIMARY KEY);
        INSERT INTO public.foreign_row VALUES (1);
        CREATE FUNCTION public.wait_for_row() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
        BEGIN
            IF NEW.name = 's7' THEN
                PERFORM FROM public.foreign_row FOR UPDATE;
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER wait BEFORE UPDATE ON duetime.schedule FOR EACH ROW EXECUTE FUNCTION public.wait_for_row()";
    sqlx::raw_sql(trigger).execute(&test.pool).await.unwrap();
    let mut holder = test.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT FROM public.foreign_row FOR UPDATE").execute(&mut *holder).await.unwrap();
    (counter, test, holder)
}

/// The statement skips schedules that are held. It waits for what a trigger on one of them waits for.
#[tokio::test]
async fn a_schedule_whose_trigger_waits_for_a_lock_keeps_fewer_others_from_being_decided_with_each_look() {
    let (counter, _test, mut holder) = with_a_trigger_that_waits().await;
    let (master, metrics) = firer(&counter, true);
    master.look().await.expect("it answers");
    assert_eq!(made(&metrics), 50, "one half");
    assert_eq!(master.left_alone_for(Duration::from_secs(1)), 50, "otherwise each look would wait");
    // Another node leaves nothing alone yet.
    let (other, metrics) = firer(&counter, true);
    other.look().await.expect("it answers");
    assert_eq!(made(&metrics), 25, "half of the other half");
    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
}

#[tokio::test]
async fn after_a_wait_for_what_a_trigger_waits_for_a_look_waits_for_no_schedule_that_is_held() {
    let (counter, test, mut holder) = with_a_trigger_that_waits().await;
    let mut other_holder = test.pool.acquire().await.unwrap();
    // They are in the other half.
    let hold = "BEGIN; SELECT FROM duetime.schedule WHERE name IN ('s80', 's81', 's82') FOR SHARE";
    sqlx::raw_sql(hold).execute(&mut *other_holder).await.unwrap();
    let (master, metrics) = firer(&counter, true);
    master.look().await.expect("it answers");
    assert_eq!(made(&metrics), 47);
    assert_eq!(master.left_alone_for(Duration::from_secs(1)), 50, "none of the three was waited for");
    for holder in [&mut holder, &mut other_holder] {
        sqlx::query("ROLLBACK").execute(&mut **holder).await.unwrap();
    }
}

/// A node remembers a thousand.
#[tokio::test]
async fn schedules_that_a_node_cannot_read_are_postponed_for_all_by_one_statement_only_where_it_cannot_remember_them() {
    let (counter, test) = with_a_hundred_due().await;
    let one = counter.store.home().schedule_read(&name("s")).await.unwrap().expect("there");
    let unreadable = "UPDATE duetime.schedule SET rules = '{}' WHERE name <> 's'";
    sqlx::query(unreadable).execute(&test.pool).await.unwrap();
    count_statements(&test).await;
    let postponed = async || {
        let postponed = "SELECT count(*) FROM duetime.schedule WHERE wake_at > now() AND name <> 's'";
        sqlx::query_scalar::<_, i64>(postponed).fetch_one(&test.pool).await.unwrap()
    };
    let (master, _) = firer(&counter, true);
    master.leave_alone(one.revision, Duration::from_secs(600));
    master.look().await.expect("it answers");
    assert_eq!(postponed().await, 0, "a node of a newer version decides them");
    let (master, _) = firer(&counter, true);
    for _ in 0..1_000 {
        master.leave_alone(one.revision, Duration::from_secs(600));
    }
    master.look().await.expect("it answers");
    assert_eq!((postponed().await, statements(&test).await), (99, 1));
}

#[tokio::test]
async fn a_schedule_whose_decision_is_refused_again_is_in_the_quarantine_once_until_it_changes() {
    let (counter, test) = fresh().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    test.refuse("INSERT", "fire", "schedule", "s").await;
    let (master, _) = firer(&counter, true);
    let change = "UPDATE duetime.schedule SET revision = nextval('duetime.schedule_revision')";
    for (before, kept) in [(None, 1), (None, 1), (Some(change), 2)] {
        if let Some(change) = before {
            sqlx::query(change).execute(&test.pool).await.unwrap();
        }
        // The back-off is over.
        set_back(&test, 1).await;
        master.look().await.expect("it answers");
        assert_eq!(test.quarantine().await.len(), kept);
    }
}

#[tokio::test]
async fn a_schedule_whose_decision_is_refused_or_fails_keeps_no_other_of_its_look_from_being_decided() {
    // The second seems an outage.
    for sqlstate in ["22023", "53100", "XX001"] {
        let (counter, test) = with_a_hundred_due().await;
        test.fail_with(sqlstate, "UPDATE", "schedule", "name", "s7").await;
        let (master, metrics) = firer(&counter, true);
        master.look().await.expect("it answers");
        assert_eq!(made(&metrics), 99, "{sqlstate}");
        assert_eq!(test.quarantine().await.len(), usize::from(sqlstate == "22023"), "{sqlstate}");
    }
}
