//! How the firer writes the decisions of a look: how many statements it takes, and what stands in the way of each.

use common::{
    ids::{DatabaseName, ShardId},
    wire::ScheduleRequest,
};

use super::{
    Counter, fresh,
    schedules::{firer, firer_among, hourly, made, name, set_back},
    with_two_databases,
};
use crate::{
    loops::upkeep::prober::{NodeFitness, Unfit},
    store::{
        PoolKind,
        tests::fixture::{self, TestDatabase},
    },
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

/// `t` to `t7`, each decided by a statement of its own, since it has more than fifty fire times. `s` to `s7` are
/// postponed, because their last tasks are in a database that is away.
async fn with_many_fire_times_and_unknown_last_tasks() -> (Counter, [TestDatabase; 2]) {
    let (counter, tests) = with_two_databases().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    let last = fixture::fresh_id_of(ShardId::new(64)).uuid();
    let unknown = "UPDATE duetime.schedule SET last_task = $1";
    sqlx::query(unknown).bind(last).execute(&tests[0].pool).await.unwrap();
    let frequent = r#"{"queue":"mails","every_ms":60000,"catch_up_ms":86400000,"overlap":"allow"}"#;
    counter.desk.schedule_put(name("t"), ScheduleRequest::parse(frequent).expect("a schedule")).await.expect("put");
    let more = "INSERT INTO duetime.schedule (name, rules, payload, since, last_task)
                SELECT name || g, rules, payload, since, last_task FROM duetime.schedule, generate_series(1, 7) AS g";
    sqlx::query(more).execute(&tests[0].pool).await.unwrap();
    set_back(&tests[0], 2).await;
    tests[0].be_patient(PoolKind::Fire).await;
    (counter, tests)
}

#[tokio::test]
async fn a_look_has_four_statements_under_way_whether_they_decide_or_postpone() {
    for left_out in ["s%", "-"] {
        let (counter, tests) = with_many_fire_times_and_unknown_last_tasks().await;
        let leave_out = "DELETE FROM duetime.schedule WHERE name LIKE $1";
        sqlx::query(leave_out).bind(left_out).execute(&tests[0].pool).await.unwrap();
        let mut holder = tests[0].pool.acquire().await.unwrap();
        sqlx::raw_sql("BEGIN; SELECT FROM duetime.schedule FOR SHARE").execute(&mut *holder).await.unwrap();
        let away = (DatabaseName::new("east"), Unfit::away("cut off".to_owned()));
        let fitness = NodeFitness { unfit: [away].into(), ..NodeFitness::default() };
        let (master, metrics) = firer_among(&counter, true, fitness);
        let looking = spawn_child(async move { master.look().await });
        tests[0].until_waiting(4).await;
        let waiting = "SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND wait_event_type = 'Lock'";
        for _ in 0..50 {
            assert_eq!(sqlx::query_scalar::<_, i64>(waiting).fetch_one(&tests[0].pool).await.unwrap(), 4);
        }
        sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
        looking.await.expect("it ends").expect("it answers");
        assert!(made(&metrics) > 8 * 50, "all of them are decided");
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
