//! What looks like a bug: the trouble of a server that passes sets no row aside, and a row that is at fault keeps no
//! neighbour waiting.

use super::*;

/// The SQLSTATE of a damaged row.
const DAMAGED: &str = "XX001";

/// The SQLSTATE of a block that the server cannot read.
const UNREADABLE: &str = "58030";

/// Waits until a row is at fault. Without company since its first failure that takes two minutes.
async fn until_at_fault<F: Future<Output = bool>>(is_at_fault: impl Fn() -> F) {
    let deadline = Instant::now() + 4 * LONG;
    while !is_at_fault().await {
        assert!(Instant::now() < deadline, "never found at fault");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Loops {
    async fn execute(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&self.test.pool).await.unwrap();
    }

    /// Waits until a row is set aside that fails as with a bug.
    async fn until_at_fault(&self, kind: Kind) {
        until_at_fault(|| async { self.database().set_aside.count(kind) > 0 }).await;
        self.until_aside(kind).await;
    }

    async fn until_suspected(&self) {
        until(|| async { self.database().suspects.count() > 0 }).await;
    }
}

#[tokio::test]
async fn a_deadline_that_passes_while_the_archive_is_away_ends_its_task_once_the_archive_is_back() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    loops.settle(ids, DELIVER).await;
    loops.execute("UPDATE duetime.task SET wake_at = now() - interval '1 s'").await;
    loops.execute("ALTER TABLE duetime.archive RENAME TO away").await;
    let (_dispatches, _stop) = loops.dispatch(WakeKind::Deadline, &ids[..1]);
    loops.until_suspected().await;
    loops.execute("ALTER TABLE duetime.away RENAME TO archive").await;
    loops.until_state(ids[0], "succeeded").await;
    assert_eq!(loops.database().set_aside.count(Kind::Deadline), 0);
}

#[tokio::test]
async fn a_submission_in_sql_is_a_task_once_the_table_of_tasks_is_back() {
    let loops = Loops::new().await;
    loops.execute("SELECT duetime.submit('orders', '1'), duetime.submit('orders', '2', key => 'k')").await;
    loops.execute("ALTER TABLE duetime.task RENAME TO away").await;
    spawn_child(loops.sql_intake().run(CancellationToken::new()));
    loops.until_suspected().await;
    loops.execute("ALTER TABLE duetime.away RENAME TO task").await;
    until(|| async { loops.test.live().await == 2 }).await;
    assert_eq!(loops.database().set_aside.count(Kind::Inbox), 0);
}

#[tokio::test]
async fn submissions_in_sql_that_fail_as_with_a_bug_keep_no_other_waiting_and_are_refused() {
    let loops = Loops::new().await;
    loops.test.fail_with(DAMAGED, "INSERT", "task", "queue", POISON).await;
    // More than one pass reads.
    loops.execute("SELECT duetime.submit('poison', to_jsonb(n)) FROM generate_series(1, 300) n").await;
    loops.execute("SELECT duetime.submit('orders', '1')").await;
    spawn_child(loops.sql_intake().run(CancellationToken::new()));
    until(|| async { loops.test.live().await == 1 }).await;
    let refused = "SELECT count(*) FROM duetime.inbox WHERE error IS NOT NULL";
    until_at_fault(|| async { sqlx::query_scalar::<_, i64>(refused).fetch_one(&loops.test.pool).await.unwrap() > 0 })
        .await;
}

#[tokio::test]
async fn a_submission_in_sql_that_meets_an_unreadable_block_is_refused_only_beside_others_that_pass() {
    let loops = Loops::new().await;
    loops.test.fail_with(UNREADABLE, "INSERT", "task", "queue", POISON).await;
    loops.execute("SELECT duetime.submit('poison', '1')").await;
    spawn_child(loops.sql_intake().run(CancellationToken::new()));
    until(|| async { loops.test.refusals().await > 1 }).await;
    assert_eq!(loops.database().suspects.count(), 0, "the disk may fail for every row");
    let refused = "SELECT count(*) FROM duetime.inbox WHERE error IS NOT NULL";
    until_at_fault(|| async {
        loops.execute("SELECT duetime.submit('orders', '1')").await;
        sqlx::query_scalar::<_, i64>(refused).fetch_one(&loops.test.pool).await.unwrap() > 0
    })
    .await;
}

#[tokio::test]
async fn neighbours_of_a_task_whose_claim_fails_as_with_a_bug_are_claimed_and_it_is_set_aside() {
    let loops = Loops::new().await;
    let ids = loops.three(|_| ()).await;
    loops.test.fail_with(DAMAGED, "UPDATE", "task", "queue", POISON).await;
    let (mut dispatches, _stop) = loops.dispatch(WakeKind::Claim, &ids);
    assert_eq!(ids_of(&mut dispatches, 2).await, BTreeSet::from([ids[0], ids[2]]));
    loops.until_at_fault(Kind::Claim).await;
}

#[tokio::test]
async fn a_claim_that_skips_a_row_because_its_failed_write_is_not_rolled_back_yet_does_not_clear_it() {
    let loops = Loops::new().await;
    let ids = loops.three(|_| ()).await;
    loops.test.fail_with(DAMAGED, "UPDATE", "task", "queue", POISON).await;
    let (_dispatches, _stop) = loops.dispatch(WakeKind::Claim, &ids[1..2]);
    loops.until_suspected().await;
    let lock = loops.test.lock_row(ids[1]).await;
    until(|| async { loops.metrics.passed_over.get() > 0 }).await;
    lock.release().await;
    assert_eq!(loops.database().suspects.count(), 1);
}

#[tokio::test]
async fn neighbours_of_a_ready_task_whose_start_fails_as_with_a_bug_are_started_and_it_is_set_aside() {
    let loops = Loops::new().await;
    let ids = loops.three_ready().await;
    loops.test.fail_with(DAMAGED, "UPDATE", "task", "partition_key", POISON).await;
    let (claims, mut dispatches) = loops.claims();
    spawn_child(loops.ready_starter(claims).run(CancellationToken::new()));
    assert_eq!(ids_of(&mut dispatches, 2).await, BTreeSet::from([ids[0], ids[2]]));
    loops.until_at_fault(Kind::Claim).await;
}

#[tokio::test]
async fn neighbours_of_an_expired_task_whose_end_fails_as_with_a_bug_expire_and_it_is_set_aside() {
    let loops = Loops::new().await;
    let expired = |task: &mut ValidTask| task.expires_at = Some(UnixMicros::new(1));
    let ids = loops.three(expired).await;
    loops.test.fail_with(DAMAGED, "INSERT", "archive", "queue", POISON).await;
    let archiver = Archiver {
        database: loops.database().clone(),
        books: Arc::clone(&loops.counter.books),
        metrics: Arc::clone(&loops.metrics),
        audit: None,
    };
    spawn_child(archiver.run(CancellationToken::new()));
    for id in [ids[0], ids[2]] {
        loops.until_state(id, "expired").await;
    }
    // Its neighbours may have passed before it was a suspect.
    loops.until_suspected().await;
    let later = loops.three(expired).await;
    loops.until_state(later[0], "expired").await;
    loops.until_at_fault(Kind::Expiry).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_the_database_neither_writes_nor_keeps_stays_at_the_broker_until_it_is_written() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    loops.test.refuse("INSERT", "archive", "queue", POISON).await;
    loops.test.refuse("UPDATE", "task", "queue", POISON).await;
    loops.test.refuse("INSERT", "quarantine", "source", "report").await;
    let hand = bench.hand().await;
    reporter::tests::start(loops.reporter(), bench.take_incoming());
    hand.publish(RESULTS, br#"{"status":"succeeded"}"#, report(ids[1])).await;
    // The report, its attempt and its task. It comes again after a while.
    until(|| async { loops.database().set_aside.count(Kind::Report) >= 3 }).await;
    hand.publish(RESULTS, br#"{"status":"succeeded"}"#, report(ids[0])).await;
    loops.until_state(ids[0], "succeeded").await;
    loops.execute("DROP FUNCTION public.refuse() CASCADE").await;
    loops.until_state(ids[1], "succeeded").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_fails_alone_as_with_a_bug_delays_no_other_for_long_and_its_task_is_set_aside() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    loops.test.fail_with(DAMAGED, "INSERT OR UPDATE OR DELETE", "task", "queue", POISON).await;
    let hand = bench.hand().await;
    reporter::tests::start(loops.reporter(), bench.take_incoming());
    hand.publish(RESULTS, br#"{"status":"succeeded"}"#, report(ids[1])).await;
    loops.until_suspected().await;
    hand.publish(RESULTS, br#"{"status":"succeeded"}"#, report(ids[0])).await;
    loops.until_state(ids[0], "succeeded").await;
    loops.until_at_fault(Kind::Report).await;
    until(|| async { loops.database().owned_shards.aside().contains(&ids[1]) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reports_that_come_while_the_archive_is_away_are_written_once_it_is_back() {
    let loops = Loops::new().await;
    let mut bench = bench::Bench::new().await;
    let mut ids = Vec::new();
    for _ in 0..60 {
        ids.extend(loops.claimed().await);
    }
    loops.execute("ALTER TABLE duetime.archive RENAME TO away").await;
    let hand = bench.hand().await;
    reporter::tests::start(loops.reporter(), bench.take_incoming());
    for id in &ids {
        hand.publish(RESULTS, br#"{"status":"succeeded"}"#, report(*id)).await;
    }
    // More than wait beside the line: some go back to the broker and come again.
    until(|| async { loops.database().suspects.count() > 100 }).await;
    loops.execute("ALTER TABLE duetime.away RENAME TO archive").await;
    for id in ids {
        loops.until_state(id, "succeeded").await;
    }
    assert_eq!(loops.database().set_aside.count(Kind::Report), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirm_that_fails_alone_as_with_a_bug_delays_no_other_for_long_and_its_task_is_set_aside() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    loops.test.fail_with(DAMAGED, "UPDATE", "task", "queue", POISON).await;
    let (settlements, confirms) = Settlements::channel(100);
    settlements.confirmed(vec![confirmed(ids[1], DELIVER)]).await;
    let settler = loops.settler(100, &Arc::default());
    spawn_child(async move { settler.run(confirms, CancellationToken::new()).await });
    loops.until_suspected().await;
    settlements.confirmed(vec![confirmed(ids[0], DELIVER)]).await;
    loops.until_state(ids[0], "delivered").await;
    loops.until_at_fault(Kind::Confirm).await;
    until(|| async { loops.database().owned_shards.aside().contains(&ids[1]) }).await;
}

impl Loops {
    /// The database refuses the end of the poisoned task, and no database sets its attempt aside: its shard moves.
    async fn refuse_end_and_aside(&self) {
        self.test.refuse("INSERT", "archive", "queue", POISON).await;
        self.test.fail_with("DT001", "UPDATE", "task", "queue", POISON).await;
    }

    async fn take_end(&self) {
        self.execute("ALTER TABLE duetime.archive DISABLE TRIGGER USER").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_whose_attempt_no_database_sets_aside_is_applied_once_one_takes_it() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    loops.refuse_end_and_aside().await;
    let hand = bench.hand().await;
    reporter::tests::start(loops.reporter(), bench.take_incoming());
    hand.publish(RESULTS, br#"{"status":"succeeded"}"#, report(ids[1])).await;
    // The database refuses the end with the report's values, without them, and to set the attempt aside; twice each.
    until(|| async { loops.test.refusals().await >= 6 }).await;
    hand.publish(RESULTS, br#"{"status":"succeeded"}"#, report(ids[0])).await;
    loops.until_state(ids[0], "succeeded").await;
    loops.take_end().await;
    loops.until_state(ids[1], "succeeded").await;
    let kept = [format!("{}", ids[1]), format!("{}:1", ids[1])].map(|name| ("report".to_owned(), Some(name)));
    assert_eq!(loops.test.quarantine().await, kept, "the report and its attempt once, however often they are tried");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirm_whose_attempt_no_database_sets_aside_is_written_once_one_takes_it() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    loops.database().owned_shards.begin(ids);
    loops.refuse_end_and_aside().await;
    let (settlements, confirms) = Settlements::channel(100);
    settlements.confirmed(ids.map(|id| confirmed(id, SUCCEED)).to_vec()).await;
    drop(settlements);
    let settler = loops.settler(100, &Arc::default());
    let settling = spawn_child(async move { settler.run(confirms, CancellationToken::new()).await });
    until(|| async { loops.database().owned_shards.in_flight() == 1 }).await;
    // The end, and to set the attempt aside; twice each.
    until(|| async { loops.test.refusals().await >= 4 }).await;
    assert!(loops.database().owned_shards.is_in_flight(ids[1]), "no node may publish it again");
    assert_eq!(loops.database().set_aside.count(Kind::Confirm), 1, "however often it is tried");
    loops.take_end().await;
    tokio::time::timeout(LONG, settling).await.expect("it ends once all is written").unwrap();
    assert_eq!(loops.test.state_of(ids[1]).await.as_deref(), Some("succeeded"));
}
