//! Deadlines that wait for reports which a lock or a missing partition of the archive delays.

use super::*;
use crate::{
    desk::tests::shards::divided,
    store::{settle::Deliver, tests::fixture::TestDatabase},
};

/// Three delivered tasks of such a queue.
async fn delivered(policy: QueuePolicy) -> (Loops, [TaskId; 3]) {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let orders = Queue { policy, ..Queue::with_defaults(QueueName::new("orders")) };
    loops.counter.books.store(Arc::new(QueueBook::new(1, [orders])));
    loops.settle(ids, DELIVER).await;
    (loops, ids)
}

/// Whether the deadline of a delivered task is later than a confirm has it.
async fn is_prolonged(test: &TestDatabase, id: TaskId) -> bool {
    let is_later = sqlx::query_scalar("SELECT wake_at > now() + interval '2 min' FROM duetime.task WHERE id = $1");
    is_later.bind(id.uuid()).fetch_one(&test.pool).await.unwrap()
}

/// Has the deadlines of all tasks pass.
async fn pass_deadlines(loops: &Loops) {
    let passed = "UPDATE duetime.task SET wake_at = now() - interval '1 s'";
    sqlx::raw_sql(passed).execute(&loops.test.pool).await.unwrap();
}

async fn assert_that_no_deadline_ends(loops: &Loops, id: TaskId) {
    let left = loops.reporter().deadlines(DatabaseIndex::HOME, &mut [id]).await;
    assert!(left.failed.is_none(), "{left:?}");
    assert_eq!(loops.test.state_of(id).await.as_deref(), Some("delivered"), "its report decides");
}

/// Silence would be a success, whose partition is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_that_a_locked_partition_delays_comes_before_a_deadline_that_has_passed_meanwhile() {
    let (loops, ids) = delivered(QueuePolicy { keep_dead_ms: 3 * 86_400_000, ..QueuePolicy::default() }).await;
    let mut bench = bench::Bench::new().await;
    pass_deadlines(&loops).await;
    let mut hold = loops.lock_what_is_kept_for_three_days().await;

    let _line = start_line(&loops, &mut bench, &[(ids[0], ReportStatus::Discard)]).await;
    until(|| is_prolonged(&loops.test, ids[0])).await;
    assert_that_no_deadline_ends(&loops, ids[0]).await;
    sqlx::raw_sql("COMMIT").execute(&mut *hold).await.unwrap();
    until(|| async { loops.test.state_of(ids[0]).await.as_deref() == Some("dead") }).await;
}

/// Silence would be a failure, and the task be tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_success_that_a_locked_partition_delays_comes_before_a_deadline_that_has_passed_meanwhile() {
    let policy = QueuePolicy { settle: Settle::Result, keep_succeeded_ms: 3 * 86_400_000, ..QueuePolicy::default() };
    let (loops, ids) = delivered(policy).await;
    let mut bench = bench::Bench::new().await;
    pass_deadlines(&loops).await;
    let mut hold = loops.lock_what_is_kept_for_three_days().await;

    let _line = start_line(&loops, &mut bench, &[(ids[0], ReportStatus::Succeeded)]).await;
    until(|| is_prolonged(&loops.test, ids[0])).await;
    assert_that_no_deadline_ends(&loops, ids[0]).await;
    sqlx::raw_sql("COMMIT").execute(&mut *hold).await.unwrap();
    until(|| async { loops.test.state_of(ids[0]).await.as_deref() == Some("succeeded") }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_whose_partition_is_not_made_yet_comes_before_a_deadline_that_has_passed_meanwhile() {
    let (loops, ids) = delivered(QueuePolicy { keep_dead_ms: 300 * 86_400_000, ..QueuePolicy::default() }).await;
    let mut bench = bench::Bench::new().await;
    pass_deadlines(&loops).await;

    let _line = start_line(&loops, &mut bench, &[(ids[0], ReportStatus::Discard)]).await;
    until(|| is_prolonged(&loops.test, ids[0])).await;
    assert_that_no_deadline_ends(&loops, ids[0]).await;
    loops.make_what_is_kept_for_300_days().await;
    until(|| async { loops.test.state_of(ids[0]).await.as_deref() == Some("dead") }).await;
}

/// It waits in the line until the pass ends, which may take a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_waits_for_a_report_that_comes_while_a_pass_is_delayed() {
    // It may have come during the pass before, whose end cut its prolonging off.
    for (are_held, has_come) in [(false, false), (true, false), (true, true)] {
        let (loops, ids) = delivered(QueuePolicy::default()).await;
        let mut bench = bench::Bench::new().await;
        let (_line, mut end) = line_with(&mut bench, &[(ids[0], ReportStatus::Discard)]).await;
        let (mut coming, met) = (Vec::new(), watch::Sender::new(false));
        if has_come {
            assert_eq!(end.recv_many(&mut coming, 1).await, 1);
        }
        let pass = async {
            // Where others are held, the pass need not meet the lock itself.
            met.send_replace(!are_held);
            until(|| is_prolonged(&loops.test, ids[0])).await;
        };
        loops.reporter().with_coming(pass, (&mut end, &mut coming), (are_held, &met)).await;
        assert_eq!(coming.iter().map(|report| report.id).collect::<Vec<_>>(), [ids[0]], "the next batch");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_that_came_during_a_delayed_pass_are_applied_after_it_and_the_line_goes_on() {
    let (loops, ids) = delivered(QueuePolicy { keep_dead_ms: 3 * 86_400_000, ..QueuePolicy::default() }).await;
    let mut bench = bench::Bench::new().await;
    let mut hold = loops.lock_what_is_kept_for_three_days().await;
    let line = start_line(&loops, &mut bench, &[(ids[0], ReportStatus::Discard)]).await;
    until(|| is_prolonged(&loops.test, ids[0])).await;

    for (id, status) in [(ids[1], ReportStatus::Succeeded), (ids[2], ReportStatus::Discard)] {
        let (_, mut end) = line_with(&mut bench, &[(id, status)]).await;
        line.send(end.recv().await.expect("it has one")).await.expect("the line goes on");
    }
    until(|| async { loops.test.state_of(ids[1]).await.as_deref() == Some("succeeded") }).await;
    until(|| is_prolonged(&loops.test, ids[2])).await;
    sqlx::raw_sql("COMMIT").execute(&mut *hold).await.unwrap();
    for id in [ids[0], ids[2]] {
        until(|| async { loops.test.state_of(id).await.as_deref() == Some("dead") }).await;
    }
}

/// Each database refuses to read tasks whose shards it does not have, or that are closed, and all others with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_wait_for_reports_on_shards_of_several_databases_beside_one_on_a_closed_shard() {
    const CLOSED: ShardId = ShardId::new(1);
    let (loops, (counter, tests)) = (Loops::new().await, divided().await);
    let mut bench = bench::Bench::new().await;
    let [near, far] = [0, 64].map(|shard| fixture::fresh_id_of(ShardId::new(shard)));
    for id in [near, far] {
        let database = &counter.databases.of(id.shard()).expect("its place is known").1.sql;
        database.task_submit(&[new_task(id)], Sending::First).await.unwrap();
        let attempt = claim(&counter, id).await;
        let delivered = Deliver { id, attempt, timeout_ms: 60_000, confirmed_at: clock::instant() };
        database.task_deliver(&[delivered]).await.unwrap();
    }
    let close = "UPDATE duetime.shard SET status = 'gone', epoch = epoch + 1 WHERE id = 1";
    sqlx::raw_sql(close).execute(&tests[0].pool).await.unwrap();
    counter.databases.places().refresh().await.unwrap();

    let ids = [near, fixture::fresh_id_of(CLOSED), far];
    let (_line, mut end) = line_with(&mut bench, &ids.map(|id| (id, ReportStatus::Discard))).await;
    let mut reports = Vec::new();
    assert_eq!(end.recv_many(&mut reports, ids.len()).await, ids.len());
    Reporter { databases: counter.databases.clone(), ..loops.reporter() }.prolong(&reports).await;
    for (id, test) in [near, far].into_iter().zip(&tests) {
        assert!(is_prolonged(test, id).await);
    }
}
