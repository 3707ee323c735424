//! The archive's daily partitions.

use std::time::Duration;

use chrono::{Days, NaiveDate};
use common::task::TaskState;
use integration_tests::sandbox::shared;
use sqlx::{Connection, Executor, PgConnection, PgPool, Postgres, pool::PoolConnection};

use super::{
    change::{keep, word},
    claim, failover,
    fixture::{self, TestDatabase},
    inbox,
    migrate::last_release,
    own,
    settle::finish,
    submitted,
};
use crate::store::{
    partition::{DEFAULT_KEEP_DAYS, Turned},
    settle::Finish,
};

/// Makes the partition of a day that has passed. Returns its name.
async fn passed(test: &TestDatabase, days_ago: u64) -> String {
    let today: NaiveDate =
        sqlx::query_scalar("SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date").fetch_one(&test.pool).await.unwrap();
    let past = today.checked_sub_days(Days::new(days_ago)).unwrap();
    let name = format!("archive_{}", past.format("%Y%m%d"));
    let create = format!(
        "CREATE TABLE duetime.{name} PARTITION OF duetime.archive FOR VALUES FROM ('{past}') TO ('{}')",
        past.succ_opt().unwrap()
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(&test.pool).await.unwrap();
    name
}

async fn exists(test: &TestDatabase, partition: &str) -> bool {
    sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
        .bind(format!("duetime.{partition}"))
        .fetch_one(&test.pool)
        .await
        .unwrap()
}

/// Opens a transaction that has read the archive.
async fn read_the_archive(test: &TestDatabase) -> PoolConnection<Postgres> {
    let mut reader = test.pool.acquire().await.unwrap();
    reader.execute("BEGIN; SELECT count(*) FROM duetime.archive; SELECT count(*) FROM duetime.task").await.unwrap();
    reader
}

/// Turns the partitions by clocks that agree.
async fn turn(test: &TestDatabase, keep_days: u64) -> Turned {
    test.database.partitions_turn(&[keep_days].into(), crate::clock::now()).await.unwrap()
}

#[track_caller]
fn assert_turned(turned: &Turned, made: usize, dropped: usize) {
    assert!(turned.failed.is_none() && (turned.made, turned.dropped) == (made, dropped), "{turned:?}");
}

#[tokio::test]
async fn partitions_are_made_ahead_once_and_dropped_when_their_day_has_passed() {
    let test = fixture::database().await;
    let name = passed(&test, 2).await;
    assert_turned(&turn(&test, 1).await, 0, 1);
    assert!(!exists(&test, &name).await);
    let further = turn(&test, 60).await;
    assert!(further.made > 0);
    assert_turned(&turn(&test, 60).await, 0, 0);
}

#[tokio::test]
async fn an_archive_without_partitions_gets_those_that_it_needs() {
    let test = fixture::database().await;
    test.drop_partitions().await;
    assert!(test.database.partition_days().await.unwrap().is_empty());
    assert_turned(&turn(&test, 1).await, 6, 0);
}

#[tokio::test]
async fn the_days_that_a_longer_retention_needs_now_are_made_before_those_between() {
    let test = fixture::database().await;
    let today = crate::clock::now().to_utc().date_naive();
    let day = |days| today.checked_add_days(Days::new(days)).unwrap();
    // No partition can be made of it.
    let between = format!("archive_{}", day(50).format("%Y%m%d"));
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("CREATE TABLE duetime.{between} (id int)")))
        .execute(&test.pool)
        .await
        .unwrap();
    let turned = test.database.partitions_turn(&[1, 60, 80].into(), crate::clock::now()).await.unwrap();
    assert_eq!(turned.failed.expect("a day between is left").0, between);
    let days = test.database.partition_days().await.unwrap();
    // Midnight may have passed.
    assert!([61, 81].iter().all(|needed| days.contains(&day(*needed))) && !days.contains(&day(70)), "{days:?}");
}

/// A node makes the days of a longer retention shortly after the change of the queue.
#[tokio::test]
async fn what_is_cancelled_in_sql_is_kept_for_as_long_as_the_archive_has_days() {
    let test = fixture::database().await;
    let queue = "INSERT INTO duetime.queue (name, policy) VALUES ('orders', '{\"keep_succeeded_ms\": 5184000000}')";
    sqlx::raw_sql(queue).execute(&test.pool).await.unwrap();
    let [task, row] = [submitted(&test, 1).await[0], inbox::submit(&test, "'orders', '{}'").await];
    for id in [task, row] {
        sqlx::query("SELECT duetime.cancel($1)").bind(id.uuid()).execute(&test.pool).await.unwrap();
    }
    let kept = "SELECT drop_on FROM duetime.archive WHERE state = 'cancelled'";
    let kept: Vec<NaiveDate> = sqlx::query_scalar(kept).fetch_all(&test.pool).await.unwrap();
    let last = test.database.partition_days().await.unwrap().pop().expect("some days");
    assert_eq!(kept, [last, last]);
}

#[tokio::test]
async fn a_day_is_dropped_once_the_clocks_of_the_database_and_of_the_node_both_say_that_it_is_over() {
    let test = fixture::database().await;
    let (long_past, past) = (passed(&test, 40).await, passed(&test, 2).await);
    let month = Duration::from_secs(30 * 86_400);
    let now = fixture::now(&test.pool).await;
    // The database's clock is a month ahead.
    let turned = test.database.partitions_turn(&[1].into(), now.minus(month)).await.unwrap();
    assert_turned(&turned, 0, 1);
    assert_eq!(turned.ahead_days, 30);
    assert!(!exists(&test, &long_past).await && exists(&test, &past).await);
    // It is a month behind.
    let turned = test.database.partitions_turn(&[1].into(), now.plus(month)).await.unwrap();
    assert_turned(&turned, 0, 1);
    assert_eq!(turned.ahead_days, -30);
    assert!(!exists(&test, &past).await && !test.database.partition_days().await.unwrap().is_empty());
}

#[tokio::test]
async fn tasks_of_a_database_that_was_just_migrated_end_before_a_node_has_turned_the_partitions() {
    let server = shared::postgres().await.unwrap();
    let url = server.create_database(&shared::unique("first")).await.unwrap();
    failover::migrated(&url).await.unwrap();
    let test = TestDatabase { database: fixture::open(&url), pool: PgPool::connect(&url).await.unwrap(), url };
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 2).await;
    claim(&test, &ids[..1], &fences).await;
    let keep_ms = i64::try_from(DEFAULT_KEEP_DAYS).unwrap() * 86_400_000;
    let dead = Finish { keep_ms, ..finish(ids[0], 1, TaskState::Dead) };
    assert_eq!(test.database.task_finish(&[dead]).await.unwrap().ids, [ids[0]]);
    assert_eq!(word(&test.database.task_cancel(ids[1], &keep()).await.unwrap()), "done");
    // A node makes the same ones.
    assert_turned(&turn(&test, DEFAULT_KEEP_DAYS).await, 0, 0);
}

#[tokio::test]
async fn a_migration_passes_an_archive_that_is_locked_and_the_next_one_makes_its_partitions() {
    let url = last_release().await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    holder.execute("BEGIN; LOCK TABLE duetime.archive IN SHARE UPDATE EXCLUSIVE MODE").await.unwrap();
    failover::migrated(&url).await.unwrap();
    let database = fixture::open(&url);
    assert!(database.partition_days().await.unwrap().is_empty());
    holder.execute("COMMIT").await.unwrap();
    failover::migrated(&url).await.unwrap();
    assert!(!database.partition_days().await.unwrap().is_empty());
}

/// The number of busy tables and of their indexes with expressions, and the least and the largest statistics target.
async fn statistics_targets(test: &fixture::TestDatabase) -> (i64, i32, i32) {
    let spared = "
        WITH busy AS (
            SELECT c.oid FROM pg_class AS c
             WHERE c.oid = ANY(ARRAY['duetime.task', 'duetime.audit']::regclass[])
                OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'duetime.archive'::regclass)
        ), read AS (
            SELECT a.attrelid, a.attstattarget FROM pg_attribute AS a JOIN busy ON busy.oid = a.attrelid
             WHERE a.attnum > 0 AND NOT a.attisdropped
            UNION ALL
            SELECT a.attrelid, a.attstattarget FROM busy
              JOIN pg_index AS i ON i.indrelid = busy.oid
              JOIN pg_attribute AS a ON a.attrelid = i.indexrelid AND i.indkey[a.attnum - 1] = 0
        )
        SELECT count(DISTINCT attrelid), min(coalesce(attstattarget, -1))::int, max(attstattarget)::int FROM read";
    sqlx::query_as(spared).fetch_one(&test.pool).await.unwrap()
}

/// A migration that adds a column or an expression to one of these tables calls `duetime.spare_analyze` for it.
#[tokio::test]
async fn analyze_reads_few_rows_of_busy_tables() {
    let test = fixture::database().await;
    assert!(turn(&test, 60).await.made > 0);
    let (tables, least, most) = statistics_targets(&test).await;
    assert!(tables > 60 && (least, most) == (10, 10), "{tables} tables and indexes, targets {least} to {most}");
}

#[tokio::test]
async fn a_busy_table_that_a_vacuum_holds_is_left_out_and_spared_later() {
    let test = fixture::database().await;
    let unspare = "ALTER TABLE duetime.task ALTER COLUMN id SET STATISTICS -1;
                   ALTER TABLE duetime.audit ALTER COLUMN id SET STATISTICS -1";
    sqlx::raw_sql(unspare).execute(&test.pool).await.unwrap();
    let mut vacuum = test.pool.acquire().await.unwrap();
    // A vacuum takes this lock, and PostgreSQL ends none that a person runs.
    vacuum.execute("BEGIN; LOCK TABLE duetime.task IN SHARE UPDATE EXCLUSIVE MODE").await.unwrap();
    let spared: i32 = sqlx::query_scalar("SELECT duetime.spare_busy_tables()").fetch_one(&test.pool).await.unwrap();
    assert_eq!(spared, 1);
    vacuum.execute("COMMIT").await.unwrap();
    assert_eq!(statistics_targets(&test).await.1, -1);
    test.database.partitions_spare().await.unwrap();
    assert_eq!(statistics_targets(&test).await.1, 10);
}

/// As during the migration: nodes drop partitions whose days have passed.
#[tokio::test]
async fn a_partition_that_is_dropped_while_a_busy_table_is_waited_for_is_left_out() {
    let test = fixture::database().await;
    let name = passed(&test, 2).await;
    test.pool.execute("ALTER TABLE duetime.task ALTER COLUMN id SET STATISTICS -1").await.unwrap();
    let mut vacuum = test.pool.acquire().await.unwrap();
    vacuum.execute("BEGIN; LOCK TABLE duetime.task IN SHARE UPDATE EXCLUSIVE MODE").await.unwrap();
    let pool = test.pool.clone();
    let spare = async move { sqlx::query("SELECT duetime.spare_busy_tables()").execute(&pool).await };
    let sparing = crate::supervise::spawn_child(spare);
    test.until_waiting(1).await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("DROP TABLE duetime.{name}"))).execute(&test.pool).await.unwrap();
    vacuum.execute("COMMIT").await.unwrap();
    sparing.await.unwrap().expect("it passes over the dropped one");
    assert!(!exists(&test, &name).await);
}

#[tokio::test]
async fn turning_partitions_waits_for_no_reader_and_no_writer() {
    let test = fixture::database().await;
    let mut reader = read_the_archive(&test).await;
    // The server's lock timeout is 2 s: a lock that conflicts with the reader's would fail.
    let turned = turn(&test, 80).await;
    assert!(turned.made > 0 && turned.failed.is_none(), "{turned:?}");
    reader.execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn a_partition_that_an_open_transaction_keeps_goes_after_its_end_and_others_are_made_meanwhile() {
    let test = fixture::database().await;
    let (earlier, later) = (passed(&test, 4).await, passed(&test, 2).await);
    let mut reader = read_the_archive(&test).await;
    let turned = turn(&test, 80).await;
    assert!(turned.made > 0 && turned.dropped == 0, "{turned:?}");
    assert_eq!(turned.failed.expect("one is kept").0, earlier);

    reader.execute("COMMIT").await.unwrap();
    assert_turned(&turn(&test, 80).await, 0, 2);
    assert!(!exists(&test, &earlier).await && !exists(&test, &later).await);
}

#[tokio::test]
async fn a_partition_whose_drop_broke_off_after_its_detach_goes_all_the_same() {
    let test = fixture::database().await;
    let name = passed(&test, 2).await;
    let detach = format!(
        "ALTER TABLE duetime.archive DETACH PARTITION duetime.{name};
         CREATE TABLE duetime.archive_20261399 ()"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(detach)).execute(&test.pool).await.unwrap();
    assert_turned(&turn(&test, 1).await, 0, 1);
    assert!(!exists(&test, &name).await && exists(&test, "archive_20261399").await);
}

#[tokio::test]
async fn a_partition_that_is_half_detached_goes_before_an_older_one() {
    let test = fixture::database().await;
    let half = passed(&test, 2).await;
    let mut reader = read_the_archive(&test).await;
    turn(&test, 1).await.failed.expect("it is kept");
    reader.execute("COMMIT").await.unwrap();
    let is_half = "SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = ('duetime.' || $1)::regclass";
    assert!(sqlx::query_scalar::<_, bool>(is_half).bind(&half).fetch_one(&test.pool).await.unwrap());
    let older = passed(&test, 4).await;
    assert_turned(&turn(&test, 1).await, 0, 2);
    assert!(!exists(&test, &half).await && !exists(&test, &older).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_make_the_same_partitions_at_once_do_not_fail() {
    let test = fixture::database().await;
    let before = test.database.partition_days().await.unwrap().len();
    let nodes = std::iter::repeat_with(|| fixture::open(&test.url)).take(4);
    let making =
        nodes.map(|node| crate::supervise::spawn_child(async move { fixture::make_partitions(&node, 60).await }));
    futures::future::try_join_all(making.collect::<Vec<_>>()).await.unwrap();
    let after = test.database.partition_days().await.unwrap().len();
    assert!(before < 60 && after > 60, "{before} days before, {after} after");
}
