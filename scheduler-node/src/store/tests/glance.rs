//! Glances: one shows each change that a loop follows, and an old one is not relied on.

use std::time::{Duration, Instant};

use common::{ids::QueueName, queue::QueuePolicy};
use sqlx::{AssertSqlSafe, Executor};

use super::{
    explain::{pages, shards},
    fixture,
};
use crate::{
    coordination::tests::{SOON, soon},
    store::{
        Database,
        glance::{FIRES, Glance, SCHEDULES},
    },
    supervise::spawn_child,
};

/// The parts of a glance that a loop acts on.
fn facts(glance: Glance) -> (i64, i64, i64, [bool; 4]) {
    let Glance { queue_revision, token_revision, map_revision, has_moves, .. } = glance;
    let (schedule, fire) = (glance.schedule_wake_at.is_some(), glance.fire_wake_at.is_some());
    (queue_revision, token_revision, map_revision, [has_moves, glance.inbox_oldest.is_some(), schedule, fire])
}

/// Glances until one is relied on: on a busy machine a glance may be too old at its arrival. After a slow one the next
/// ones begin at the marks, a minute before the oldest row.
async fn relied_on(database: &Database) -> Glance {
    let relied_on = async {
        loop {
            let glance = database.look().await.unwrap();
            if database.glance() == Some(glance) {
                return glance;
            }
        }
    };
    soon("a glance is relied on", relied_on).await
}

#[tokio::test]
async fn a_glance_shows_each_change_that_a_loop_follows() {
    let test = fixture::database().await;
    let (queues, tokens, map, nothing) = facts(test.database.look().await.unwrap());
    assert_eq!(nothing, [false; 4]);
    test.database.queue_put(&QueueName::new("a"), &QueuePolicy::default(), None, 10).await.unwrap();
    for change in [
        "UPDATE duetime.meta SET token_revision = token_revision + 1",
        "UPDATE duetime.shard SET status = 'gone' WHERE id = 3",
        "INSERT INTO duetime.move (shard, source, target, requested_by) VALUES (3, 'main', 'west', 'ann')",
    ] {
        sqlx::query(change).execute(&test.pool).await.unwrap();
    }
    let changed = facts(test.database.look().await.unwrap());
    assert_eq!(changed, (queues + 1, tokens + 1, map + 1, [true, false, false, false]));

    super::inbox::submit(&test, "'a', '{}'").await;
    assert_eq!(facts(test.database.look().await.unwrap()).3, [true, true, false, false]);
    sqlx::query("UPDATE duetime.inbox SET error = 'no', refused_at = now()").execute(&test.pool).await.unwrap();
    super::schedules::added(&test, "hourly").await;
    // Were it long past, a glance just after a slow one would leave it to the next one from the head.
    sqlx::query("UPDATE duetime.schedule SET wake_at = now()").execute(&test.pool).await.unwrap();
    let fire = "INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
                SELECT gen_random_uuid(), name, now(), false, rules, payload, now() FROM duetime.schedule";
    sqlx::query(fire).execute(&test.pool).await.unwrap();
    let glance = relied_on(&test.database).await;
    assert_eq!(facts(glance).3, [true, false, true, true], "a refused row waits for nothing");
}

#[tokio::test]
async fn a_glance_that_is_held_up_leaves_the_last_one_to_grow_too_old() {
    let test = fixture::database().await;
    test.database.look().await.unwrap();
    let mut lock = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *lock).await.unwrap();
    sqlx::query("LOCK TABLE duetime.inbox IN ACCESS EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
    let database = std::sync::Arc::clone(&test.database);
    let held_up = spawn_child(async move { database.look().await });
    let too_old = async {
        while test.database.glance().is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, too_old).await.expect("it grows old");
    // What each loop then asks for itself waits for no lock of another one's table.
    test.database.ping().await.unwrap();
    test.database.queue_changes(0).await.unwrap();
    test.database.token_revision().await.unwrap();
    sqlx::query("ROLLBACK").execute(&mut *lock).await.unwrap();
    let _ = held_up.await.unwrap();
    relied_on(&test.database).await;
}

#[tokio::test]
async fn a_glance_reads_ends_of_indexes_however_large_the_tables_are() {
    let test = fixture::database().await;
    sqlx::raw_sql(
        "INSERT INTO duetime.inbox (id, shard, request, submitted_at)
         SELECT gen_random_uuid(), g % 128, '{}', now() + g * interval '1 ms' FROM generate_series(1, 20000) AS g;
         ANALYZE duetime.inbox",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    super::schedules::added(&test, "hourly").await;
    for copy in [
        "INSERT INTO duetime.schedule (name, revision, rules, payload, wake_at, since)
         SELECT 's' || g, 1, rules, payload, now() + g * interval '1 s', since
           FROM duetime.schedule, generate_series(1, 20000) AS g",
        "INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
         SELECT gen_random_uuid(), name, now(), false, rules, payload, wake_at FROM duetime.schedule",
        "ANALYZE duetime.schedule, duetime.fire",
    ] {
        sqlx::query(AssertSqlSafe(copy)).execute(&test.pool).await.unwrap();
    }
    let mut connection = test.pool.acquire().await.unwrap();
    let sql = include_str!("../queries/glance.sql");
    let plan =
        super::explain::plan(&mut connection, sql, "timestamptz, timestamptz, timestamptz", "now(), now(), now()")
            .await;
    for index in ["inbox_waiting", "schedule_wake", "fire_wake"] {
        assert!(plan.contains(index), "{plan}");
    }
}

/// A page of an index or a table is 8 KiB. From the head, each statement reads a thousand of them or more.
const FEW_PAGES: u64 = 100;

#[tokio::test]
async fn looks_after_one_from_the_head_do_not_pass_what_an_open_snapshot_keeps() {
    let test = fixture::database().await;
    let mut old = test.pool.acquire().await.unwrap();
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM duetime.meta").await.unwrap();
    for fired in [
        "INSERT INTO duetime.schedule (name, rules, payload, since, wake_at)
         SELECT 's' || g, '{}', '', now(), now() - interval '1 h' + g * interval '1 ms' FROM generate_series(1, 100000) AS g",
        "INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
         SELECT gen_random_uuid(), 's', now(), false, '{}', '', wake_at FROM duetime.schedule",
        "DELETE FROM duetime.schedule",
        "DELETE FROM duetime.fire",
    ] {
        test.pool.execute(fired).await.unwrap();
    }
    let glance = test.database.look().await.unwrap();
    assert_eq!((glance.schedule_wake_at, glance.fire_wake_at), (None, None));
    // At the moment at which it was sent, the next one would begin at the mark, however long it took.
    let marks = test.database.heads.lock().map(|head| head.from(glance.asked).expect("it rests"));
    let marks = marks.map(|mark| format!("'{mark}'"));
    let head = "'-infinity'";
    let mut connection = test.pool.acquire().await.unwrap();
    let mut read = async |sql, types, values: String| pages(&mut connection, sql, types, &values).await;
    let (sql, types) = (include_str!("../queries/glance.sql"), "timestamptz, timestamptz, timestamptz");
    assert!(read(sql, types, format!("{head}, {head}, {head}")).await > 5 * FEW_PAGES);
    assert!(read(sql, types, marks.join(", ")).await < FEW_PAGES);
    let (sql, types) = (include_str!("../queries/schedule_due.sql"), "interval, bigint, bigint[], timestamptz, int[]");
    let due = |from: &str| format!("'0 s', 100, '{{}}', {from}, '{{}}'");
    assert!(read(sql, types, due(head)).await > 5 * FEW_PAGES);
    assert!(read(sql, types, due(&marks[SCHEDULES])).await < FEW_PAGES);
    let sql = include_str!("../queries/schedule_overdue.sql");
    let types = "interval, bigint, bigint[], timestamptz, int[], interval, interval";
    let overdue = |from: &str| format!("{}, '1 s', '5 s'", due(from));
    assert!(read(sql, types, overdue(head)).await > 5 * FEW_PAGES);
    assert!(read(sql, types, overdue(&marks[SCHEDULES])).await < FEW_PAGES);
    let (sql, types) = (include_str!("../queries/fire_take.sql"), "interval, bigint, int[], timestamptz");
    let take = |from: &str| format!("'2 s', 100, {}, {from}", shards());
    assert!(read(sql, types, take(head)).await > 5 * FEW_PAGES);
    assert!(read(sql, types, take(&marks[FIRES])).await < FEW_PAGES);
    old.execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn a_schedule_or_a_fire_time_before_the_mark_is_read_after_the_next_look_from_the_head() {
    let test = fixture::database().await;
    let now = fixture::now(&test.pool).await;
    let long = Duration::from_secs(3_600);
    let note = || test.database.heads.lock().iter_mut().for_each(|head| head.note(None, now, long, Instant::now()));
    note();
    super::schedules::added(&test, "hourly").await;
    let fire = "INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
                SELECT $1, name, now(), false, rules, payload, wake_at FROM duetime.schedule";
    sqlx::query(fire).bind(fixture::fresh_id().uuid()).execute(&test.pool).await.unwrap();
    let shards: Vec<_> = fixture::all_shards().iter().collect();
    let read = async || {
        let due = test.database.schedule_due(Duration::ZERO, 10, &[], &[], None).await.unwrap();
        (due.schedules.len(), test.database.fire_take(Duration::ZERO, 10, &shards).await.unwrap().len())
    };
    let glance = test.database.look().await.unwrap();
    assert_eq!((glance.schedule_wake_at, glance.fire_wake_at), (None, None));
    assert_eq!(read().await, (0, 0));

    *test.database.heads.lock() = Default::default();
    let glance = test.database.look().await.unwrap();
    assert!(glance.schedule_wake_at.is_some() && glance.fire_wake_at.is_some());
    assert_eq!(read().await, (1, 1));
    let now = fixture::now(&test.pool).await;
    let due = test.database.schedule_due(Duration::ZERO, 10, &[], &[], Some(now)).await.unwrap();
    assert!(due.schedules.is_empty(), "a short look begins later");
}
