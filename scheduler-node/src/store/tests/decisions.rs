//! Decisions about many schedules, in one statement.

use std::{collections::BTreeSet, time::Duration};

use common::{
    ids::{ShardId, TaskId},
    time::UnixMicros,
};

use super::{
    explain::plan,
    fixture::{self, TestDatabase, database},
    schedules::{HOUR_US, added, decided, standing, turn},
    until_waiting,
};
use crate::{
    store::{
        Database, PoolKind,
        schedules::{ScheduleRecord, ScheduleTurn, TurnOutcome},
    },
    supervise::spawn_child,
};

/// Decides that hour 1 of each schedule fires.
async fn decide(database: &Database, read: &[ScheduleRecord], ids: &[TaskId]) -> Vec<TurnOutcome> {
    let decision = turn();
    let turns = read.iter().zip(ids).map(|(record, id)| ScheduleTurn {
        name: &record.name,
        read: record.revision,
        decision: &decision,
        ids: std::slice::from_ref(id),
    });
    database.schedule_turns(&turns.collect::<Vec<_>>(), Duration::ZERO).await.unwrap()
}

async fn all_added(test: &TestDatabase, names: &[&str]) -> (Vec<ScheduleRecord>, Vec<TaskId>) {
    let mut read = Vec::new();
    for name in names {
        read.push(added(test, name).await);
    }
    let ids = read.iter().map(|_| fixture::fresh_id()).collect();
    (read, ids)
}

/// The tasks of the decided fire times are these.
async fn assert_decided(test: &TestDatabase, ids: &[TaskId]) {
    let expected: BTreeSet<uuid::Uuid> = ids.iter().map(|id| id.uuid()).collect();
    assert_eq!(decided(test).await.into_iter().collect::<BTreeSet<_>>(), expected);
}

#[tokio::test]
async fn of_many_that_are_postponed_the_one_that_a_transaction_holds_is_told_and_no_other_waits_for_it() {
    let test = database().await;
    let (read, _) = all_added(&test, &["a", "b", "c"]).await;
    let mut holder = test.pool.acquire().await.unwrap();
    let hold = "BEGIN; SELECT FROM duetime.schedule WHERE name = 'b' FOR SHARE";
    sqlx::raw_sql(hold).execute(&mut *holder).await.unwrap();
    let all: Vec<_> = read.iter().map(|record| (&record.name, record.revision)).collect();
    let held = test.database.schedule_postpone(&all, Duration::from_secs(60)).await.unwrap();
    assert_eq!(held, [read[1].revision]);
    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
    let due = test.database.schedule_due(Duration::ZERO, 10, &[], &[], None).await.unwrap();
    assert!(due.first_wake_at.is_some_and(|first| first < due.now));
    let due: Vec<_> = due.schedules.into_iter().map(|read| read.unwrap().record.name).collect();
    assert_eq!(due, [read[1].name.clone()]);
}

/// Otherwise each node would sort all of them, twice a second.
#[tokio::test]
async fn of_very_many_that_are_overdue_the_first_are_found_by_their_moment() {
    let test = database().await;
    let fill = "INSERT INTO duetime.schedule (name, rules, payload, since, wake_at, last_task)
                SELECT 's' || g, '{}', '', now(), now() - interval '1 h' + g * interval '1 ms', $1
                  FROM generate_series(1, 20000) AS g ORDER BY random()";
    sqlx::query(fill).bind(fixture::fresh_id_of(ShardId::new(64)).uuid()).execute(&test.pool).await.unwrap();
    sqlx::query("ANALYZE duetime.schedule").execute(&test.pool).await.unwrap();
    let mut connection = fixture::planned(&test.pool).await;
    let types = "interval, bigint, bigint[], timestamptz, int[], interval, interval";
    let values = "'5 s', 500, '{7}', '-infinity', '{64,65}', '1 s', '5 s'";
    let plan = plan(&mut connection, include_str!("../queries/schedule_overdue.sql"), types, values).await;
    assert!(plan.contains("schedule_wake") && !plan.contains("Bitmap") && !plan.contains("Sort"), "{plan}");
}

#[tokio::test]
async fn of_many_decisions_those_that_are_overtaken_or_whose_schedule_is_held_are_left_and_the_others_are_written() {
    let test = database().await;
    let (read, ids) = all_added(&test, &["a", "b", "c", "d"]).await;
    let change = "UPDATE duetime.schedule SET revision = nextval('duetime.schedule_revision') WHERE name = 'b'";
    sqlx::query(change).execute(&test.pool).await.unwrap();
    let mut holder = test.pool.acquire().await.unwrap();
    let hold = "BEGIN; SELECT FROM duetime.schedule WHERE name = 'c' FOR SHARE";
    sqlx::raw_sql(hold).execute(&mut *holder).await.unwrap();

    use TurnOutcome::{Held, Overtaken, Written};
    assert_eq!(decide(&test.database, &read, &ids).await, [Written, Overtaken, Held, Written]);
    assert_decided(&test, &[ids[0], ids[3]]).await;
    let first = test.database.schedule_read(&read[0].name).await.unwrap().expect("there");
    assert_eq!((first.standing, first.last_task), (standing(2), Some(ids[0])));
    assert_eq!(first.last_fire_at, Some(UnixMicros::new(HOUR_US)));

    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
    assert_eq!(decide(&test.database, &read, &ids).await, [Overtaken, Overtaken, Written, Overtaken]);
    assert_decided(&test, &[ids[0], ids[2], ids[3]]).await;
}

#[tokio::test]
async fn of_two_that_decide_the_same_fire_times_at_the_same_moment_one_does_and_the_other_does_not_wait() {
    let test = database().await;
    let (read, ids) = all_added(&test, &["a", "b"]).await;
    // The first one holds the schedules when it waits.
    let gate = "CREATE FUNCTION public.gate() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    PERFORM pg_advisory_xact_lock(7);
                    RETURN NULL;
                END $$;
                CREATE TRIGGER gate AFTER INSERT ON duetime.fire FOR EACH ROW EXECUTE FUNCTION public.gate()";
    sqlx::raw_sql(gate).execute(&test.pool).await.unwrap();
    test.be_patient(PoolKind::Fire).await;
    let mut holder = test.pool.acquire().await.unwrap();
    sqlx::query("SELECT pg_advisory_lock(7)").execute(&mut *holder).await.unwrap();
    let first = spawn_child({
        let (database, read, ids) = (test.database.clone(), read.clone(), ids.clone());
        async move { decide(&database, &read, &ids).await }
    });
    until_waiting(&test.pool, 1).await;
    let others = [fixture::fresh_id(), fixture::fresh_id()];
    assert_eq!(decide(&test.database, &read, &others).await, [TurnOutcome::Held; 2]);

    sqlx::query("SELECT pg_advisory_unlock(7)").execute(&mut *holder).await.unwrap();
    assert_eq!(first.await.unwrap(), [TurnOutcome::Written; 2]);
    assert_eq!(decide(&test.database, &read, &others).await, [TurnOutcome::Overtaken; 2]);
    assert_decided(&test, &ids).await;
}

/// Otherwise each look reads all schedules, or compares each of its own with all of them.
#[tokio::test]
async fn decisions_find_their_schedules_by_name() {
    let test = database().await;
    for fill in [
        "INSERT INTO duetime.schedule (name, rules, payload, since, wake_at)
         SELECT 's' || g, '{}', '', now(), now() + g * interval '1 s' FROM generate_series(-100, 20000) AS g",
        "ANALYZE duetime.schedule",
    ] {
        sqlx::query(fill).execute(&test.pool).await.unwrap();
    }
    let types = "text[], bigint[], timestamptz[], timestamptz[], timestamptz[], timestamptz[], timestamptz[], uuid[],
                 timestamptz[], uuid[], timestamptz[], boolean[], bigint[], interval";
    let values = format!("{}, '2 s'", ["'{}'"; 13].join(", "));
    let (any, node) = (test.pool.acquire().await.unwrap(), fixture::planned(&test.pool).await);
    for mut connection in [any, node] {
        let plan = plan(&mut connection, include_str!("../queries/schedule_turns.sql"), types, &values).await;
        // Once to lock them, and once to change them.
        assert_eq!(plan.matches("Index Cond: (name = ANY (").count(), 2, "{plan}");
        assert!(plan.contains("schedule_pkey") && !plan.contains("Seq Scan on schedule"), "{plan}");
    }
}
