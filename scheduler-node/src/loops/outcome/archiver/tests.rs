//! The archiver over a database with a partition that does not go.

use common::{ids::QueueName, task::NewTask};
use sqlx::{Executor, Postgres, pool::PoolConnection};

use super::*;
use crate::{
    loops::tests::{LONG, Loops, POISON, until},
    store::{
        submit::Sending,
        tests::{changed, fixture, new_task},
    },
    supervise::spawn_child,
    working_set::failures::tests::Log,
};

fn archiver(loops: &Loops) -> Archiver {
    Archiver {
        database: loops.database().clone(),
        books: Arc::clone(&loops.counter.books),
        metrics: Arc::clone(&loops.metrics),
        audit: Some(Audit { keep_days: 1 }),
    }
}

/// Makes a partition whose day is over, and opens a transaction that keeps it.
async fn keep_a_partition(loops: &Loops) -> PoolConnection<Postgres> {
    let make = "CREATE TABLE duetime.archive_20200101 PARTITION OF duetime.archive FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')";
    loops.test.pool.execute(make).await.unwrap();
    let mut reader = loops.test.pool.acquire().await.unwrap();
    reader.execute("BEGIN; SELECT count(*) FROM duetime.archive").await.unwrap();
    reader
}

#[tokio::test]
async fn old_audit_notes_are_deleted_while_a_partition_does_not_go() {
    let loops = Loops::new().await;
    let pool = &loops.test.pool;
    pool.execute(
        "INSERT INTO duetime.audit (id, at, who, what, target, status, node)
         VALUES (gen_random_uuid(), now() - interval '3 days', 'ops', 'queue.pause', 'mails', 200, 'a')",
    )
    .await
    .unwrap();
    let mut reader = keep_a_partition(&loops).await;
    spawn_child(archiver(&loops).run(CancellationToken::new()));
    let left = "SELECT count(*) FROM duetime.audit";
    until(|| async { sqlx::query_scalar::<_, i64>(left).fetch_one(pool).await.unwrap() == 0 }).await;
    reader.execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn a_partition_that_does_not_go_is_named_in_one_line_of_the_log() {
    let log = Log::keep();
    let loops = Loops::new().await;
    let mut reader = keep_a_partition(&loops).await;
    let (archiver, mut turns) = (archiver(&loops), Turns::default());
    for lines in [0, 1, 1] {
        assert_eq!(archiver.turn(&[1].into(), &mut turns).await, Some(TURN_AGAIN));
        assert_eq!(log.count("partition=\"archive_20200101\""), lines);
    }
    reader.execute("COMMIT").await.unwrap();
    assert_eq!(archiver.turn(&[1].into(), &mut turns).await, Some(TURN_EVERY));
    assert_eq!(log.count("archive partitions can be created and dropped again"), 1);
}

#[tokio::test]
async fn one_run_brings_the_quarantine_of_every_database_back_to_its_bound() {
    let loops = Loops::new().await;
    let pool = &loops.test.pool;
    let (first, further) = (archiver(&loops), Archiver { audit: None, ..archiver(&loops) });
    for archiver in [first, further] {
        pool.execute(
            "INSERT INTO duetime.quarantine (source, reason) SELECT 'results', 'no JSON' FROM generate_series(1, 15000)",
        )
        .await
        .unwrap();
        assert!(archiver.forget(&CancellationToken::new()).await, "nothing is left for the next pass");
        let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.quarantine").fetch_one(pool).await.unwrap();
        assert_eq!(kept, quarantine::KEEP_ROWS);
    }
}

#[tokio::test]
async fn a_stop_waits_for_one_page_of_expired_tasks_at_most() {
    let loops = Loops::new().await;
    let task = |_| {
        let new = new_task(fixture::fresh_id_of(ShardId::new(0)));
        changed(new, |task| task.expires_at = Some(UnixMicros::new(1)))
    };
    for _ in 0..3 {
        let page: Vec<NewTask> = (0..EXPIRED_PER_PASS).map(task).collect();
        loops.test.database.task_submit(&page, Sending::First).await.unwrap();
    }
    let (archiver, stop) = (archiver(&loops), CancellationToken::new());
    let (mut refused, mut searches) = (RefusedTasks::default(), Searches::default());
    stop.cancel();
    archiver.expire(&mut refused, &mut searches, &stop).await.unwrap();
    assert_eq!(loops.test.live().await, 2 * EXPIRED_PER_PASS);
    archiver.expire(&mut refused, &mut searches, &CancellationToken::new()).await.unwrap();
    assert_eq!(loops.test.live().await, 0, "without a stop, none is left");
}

#[tokio::test]
async fn an_expired_task_whose_partition_is_not_made_yet_keeps_no_other_from_being_archived() {
    let loops = Loops::new().await;
    loops.three(|task| task.expires_at = Some(UnixMicros::new(1))).await;
    loops.keep_longer();
    let (mut refused, mut searches) = (RefusedTasks::default(), Searches::default());
    // The rows of the failed statement may be locked a moment longer than until its answer.
    let archived = async {
        while loops.test.live().await > 1 {
            archiver(&loops).expire(&mut refused, &mut searches, &CancellationToken::new()).await.unwrap();
        }
    };
    tokio::time::timeout(LONG, archived).await.expect("the others are archived");
    assert_eq!(loops.test.live().await, 1);
}

#[tokio::test]
async fn a_crowd_of_refused_tasks_holds_up_no_task_behind_it_and_each_is_in_the_quarantine_once() {
    const CROWD: i64 = 1_600;
    let loops = Loops::new().await;
    let pool = &loops.test.pool;
    loops.test.refuse("INSERT", "archive", "queue", POISON).await;
    let task = |queue: &str, expires_at| {
        let new = new_task(fixture::fresh_id_of(ShardId::new(0)));
        changed(new, |task| {
            task.queue = QueueName::new(queue);
            task.expires_at = Some(UnixMicros::new(expires_at));
        })
    };
    // Of two moments, each with more tasks than a page.
    let mut tasks: Vec<NewTask> = (0..CROWD).map(|number| task(POISON, 1 + number * 2 / CROWD)).collect();
    tasks.push(task("orders", 10));
    for page in tasks.chunks(500) {
        loops.test.database.task_submit(page, Sending::First).await.unwrap();
    }
    let (archiver, stop) = (archiver(&loops), CancellationToken::new());
    let (mut refused, mut searches) = (RefusedTasks::default(), Searches::default());
    // One round takes four passes.
    for _ in 0..5 {
        archiver.expire(&mut refused, &mut searches, &stop).await.unwrap();
    }
    assert_eq!(loops.test.live().await, CROWD, "the task behind them is archived");
    let kept = "SELECT count(*), count(DISTINCT message_id) FROM duetime.quarantine";
    let (kept, tasks): (i64, i64) = sqlx::query_as(kept).fetch_one(pool).await.unwrap();
    assert!(kept == tasks && kept <= CROWD, "{kept} rows of {tasks} tasks");
}
