//! Rows that open transactions lock, in numbers, or that have no partition yet, and databases that are away: neighbours
//! go on.

use std::sync::atomic::Ordering;

use common::queue::{Placement, QueuePolicy};
use sqlx::AssertSqlSafe;

use super::*;
use crate::desk::tests::hide_queues;

/// More rows than one pass of the intake reads.
const ROWS: i64 = 300;

impl Loops {
    /// Has the poisoned queue keep its tasks for 300 days, for which the archive has no partitions yet.
    pub(in crate::loops) fn keep_longer(&self) {
        let policy = QueuePolicy { keep_succeeded_ms: 300 * 86_400_000, ..QueuePolicy::default() };
        let longer = Queue { policy, ..Queue::with_defaults(QueueName::new(POISON)) };
        let orders = Queue::with_defaults(QueueName::new("orders"));
        self.counter.books.store(Arc::new(QueueBook::new(1, [orders, longer])));
    }

    /// Makes the partitions of the archive for what ends now and is kept for 300 days.
    pub(in crate::loops) async fn make_what_is_kept_for_300_days(&self) {
        let today = clock::now().to_utc().date_naive();
        // Two days, as midnight may pass.
        let days: Vec<_> = (301..303).filter_map(|days| today.checked_add_days(chrono::Days::new(days))).collect();
        self.test.database.partitions_make(&days).await.unwrap();
    }

    /// Locks the partition of the archive for what ends now and is kept for three days, until the connection commits.
    pub(in crate::loops) async fn lock_what_is_kept_for_three_days(
        &self,
    ) -> sqlx::pool::PoolConnection<sqlx::Postgres> {
        let mut hold = self.test.pool.acquire().await.unwrap();
        // Of two days, as midnight may pass.
        let lock = "BEGIN;
            DO $$ BEGIN
                EXECUTE (SELECT 'LOCK TABLE ' || string_agg('duetime.archive_' || to_char(
                            now() AT TIME ZONE 'UTC' + days * interval '1 day', 'YYYYMMDD'), ', ') || ' IN SHARE MODE'
                           FROM generate_series(4, 5) AS days);
            END $$";
        sqlx::raw_sql(lock).execute(&mut *hold).await.unwrap();
        hold
    }
}

#[tokio::test]
async fn rows_of_an_inbox_that_are_locked_or_whose_key_is_keep_no_other_waiting() {
    let loops = Loops::new().await;
    let execute =
        async |sql: &str| sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&loops.test.pool).await.unwrap();
    execute("SELECT duetime.submit('orders', '1', now() + interval '1 hour', key => 'k')").await;
    spawn_child(loops.sql_intake().run(CancellationToken::new()));
    until(|| async { loops.test.live().await == 1 }).await;
    let id: uuid::Uuid = sqlx::query_scalar("SELECT id FROM duetime.task").fetch_one(&loops.test.pool).await.unwrap();
    let keyed = loops.test.lock_row(TaskId::from_uuid(id)).await;
    // The intake may take some of these rows before their holder locks them.
    let mut holder = loops.test.pool.acquire().await.unwrap();
    let locked = format!(
        "BEGIN; SELECT duetime.submit('orders', to_jsonb(n)) FROM generate_series(1, {ROWS}) n; COMMIT AND CHAIN;
         SELECT FROM duetime.inbox FOR UPDATE"
    );
    sqlx::raw_sql(AssertSqlSafe(locked)).execute(&mut *holder).await.unwrap();
    let replace = r#"options => '{"on_duplicate": "replace"}'"#;
    execute(&format!(
        "SELECT duetime.submit('orders', to_jsonb(n), now() + interval '1 hour', key => 'k', {replace})
           FROM generate_series(1, {ROWS}) n"
    ))
    .await;
    execute("SELECT duetime.submit('orders', '\"last\"', now() + interval '1 hour')").await;
    let last = "SELECT EXISTS (SELECT FROM duetime.task WHERE payload = '\"last\"')";
    until(|| async { sqlx::query_scalar::<_, bool>(last).fetch_one(&loops.test.pool).await.unwrap() }).await;
    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
    keyed.release().await;
    let left = "SELECT count(*) FROM duetime.inbox";
    until(|| async { sqlx::query_scalar::<_, i64>(left).fetch_one(&loops.test.pool).await.unwrap() == 0 }).await;
}

#[tokio::test]
async fn a_row_of_an_inbox_whose_queue_cannot_be_read_is_a_task_once_it_can() {
    let loops = Loops::new().await;
    let orders = Queue::with_defaults(QueueName::new("orders"));
    loops.counter.books.store(Arc::new(QueueBook::new(0, [orders])));
    let single = QueuePolicy { placement: Placement::Single, ..QueuePolicy::default() };
    loops.test.database.queue_add(&[QueueName::new("one")], &single, None).await.unwrap();
    let rows = r#"SELECT duetime.submit('one', '1', key => 'b', options => '{"depends_on": ["a"]}'),
                         duetime.submit('orders', '2', now() + interval '1 hour')"#;
    sqlx::raw_sql(rows).execute(&loops.test.pool).await.unwrap();
    hide_queues(&loops.test, true).await;
    spawn_child(loops.sql_intake().run(CancellationToken::new()));
    until(|| async { loops.test.live().await == 1 }).await;
    let waiting = "SELECT count(*) FROM duetime.inbox WHERE error IS NULL";
    let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&loops.test.pool).await.unwrap();
    assert_eq!(waiting, 1, "the row is neither refused nor a task");
    hide_queues(&loops.test, false).await;
    until(|| async { loops.test.live().await == 2 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_go_back_to_the_broker_while_their_database_is_away_and_are_applied_afterwards() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    // The disk is full for these tasks: an outage of a part of the database.
    loops.test.fail_with("53100", "INSERT", "archive", "queue", "orders").await;
    let hand = bench.hand().await;
    let (incoming, arrivals) = bench.counted();
    reporter::tests::start(loops.reporter(), incoming);
    hand.publish(RESULTS, br#"{"status":"succeeded"}"#, report(ids[0])).await;
    // It comes again after it went back, so another node would get it too.
    until(|| async { arrivals.load(Ordering::Relaxed) > 1 }).await;
    sqlx::raw_sql("DROP FUNCTION public.refuse() CASCADE").execute(&loops.test.pool).await.unwrap();
    loops.until_state(ids[0], "succeeded").await;
}
