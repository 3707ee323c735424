mod copied;
mod forget;
mod held;
mod turns;
mod unread;

use common::{
    ids::{Epoch, ShardId},
    queue::{Queue, QueueBook, QueuePolicy},
};
use futures::FutureExt;
use prometheus::{Registry, TextEncoder};

use super::{looks::MANY, *};
use crate::{
    coordination::tests::soon,
    desk::tests::{Counter, fresh, with_two_databases},
    loops::nudger::Nudger,
    store::tests::fixture::{self, TestDatabase},
    working_set::failures::tests::Log,
};

async fn replace(test: &TestDatabase, payload: i32) -> TaskId {
    let submit = "SELECT duetime.submit('orders', to_jsonb($1::int), now() + interval '1 hour', key => 'k',
                                        options => '{\"on_duplicate\": \"replace\"}')";
    TaskId::from_uuid(sqlx::query_scalar(submit).bind(payload).fetch_one(&test.pool).await.unwrap())
}

/// Collects until each row is a task or refused. A failed statement may hold a row for a moment after its answer, and
/// the row is left alone then.
async fn collect_all(intake: &SqlIntake, state: &mut PassState, test: &TestDatabase) {
    let left = "SELECT count(*) FROM duetime.inbox WHERE error IS NULL";
    let all = Box::pin(async {
        while sqlx::query_scalar::<_, i64>(left).fetch_one(&test.pool).await.unwrap() > 0 {
            // As if the pauses had passed.
            state.aside.clear();
            intake.collect(state).await.unwrap();
        }
    });
    soon("each row has an outcome", all).await;
}

/// The intake of the first database's inbox, on a node that knows the queue `orders`.
fn intake(counter: &Counter) -> SqlIntake {
    counter.books.store(Arc::new(QueueBook::new(1, [Queue::with_defaults(QueueName::new("orders"))])));
    SqlIntake {
        index: DatabaseIndex::HOME,
        databases: counter.databases.clone(),
        desk: counter.desk.clone(),
        books: Arc::clone(&counter.books),
        fitness: watch::channel(NodeFitness::default()).1,
        releaser: Releaser::new(Nudger::new(counter.databases.clone(), Duration::from_secs(10))),
        metrics: Arc::new(Metrics::register(&Registry::new()).unwrap()),
    }
}

/// A node that owns all shards.
async fn owner() -> (Counter, TestDatabase, SqlIntake) {
    let (counter, test) = fresh().await;
    let database = &counter.databases.all()[0];
    database.owned_shards.adopt(&fixture::all_shards().iter().map(|id| (id, Epoch::from_store(1))).collect::<Vec<_>>());
    let intake = intake(&counter);
    (counter, test, intake)
}

#[tokio::test]
async fn a_submission_waits_behind_an_earlier_one_of_its_key_that_is_held() {
    let (counter, test) = fresh().await;
    let database = &counter.databases.all()[0];
    database.owned_shards.adopt(&fixture::all_shards().iter().map(|id| (id, Epoch::from_store(1))).collect::<Vec<_>>());
    let (intake, mut state) = (intake(&counter), PassState::default());
    let task = replace(&test, 0).await;
    intake.collect(&mut state).await.unwrap();
    let lock = test.lock_row(task).await;
    let earlier = replace(&test, 1).await;
    intake.collect(&mut state).await.unwrap();
    assert!(state.aside.contains_key(&earlier), "its key is held");
    lock.release().await;
    replace(&test, 2).await;
    intake.collect(&mut state).await.unwrap();
    // As if the pause of the earlier one had passed.
    state.aside.clear();
    intake.collect(&mut state).await.unwrap();
    let made = test.database.task_read(task).await.unwrap().expect("it is there");
    assert_eq!((made.payload.as_deref(), test.live().await), (Some(b"2".as_slice()), 1));
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.inbox").fetch_one(&test.pool).await.unwrap();
    assert_eq!(left, 0);
}

/// The first half of the batch fails with the refused row, so the second half is written before it.
#[tokio::test]
async fn submissions_of_one_key_keep_their_order_beside_one_that_the_database_refuses() {
    let (counter, test) = fresh().await;
    let database = &counter.databases.all()[0];
    database.owned_shards.adopt(&fixture::all_shards().iter().map(|id| (id, Epoch::from_store(1))).collect::<Vec<_>>());
    let (intake, mut state) = (intake(&counter), PassState::default());
    test.refuse("INSERT", "task", "key", "refused").await;
    let task = replace(&test, 1).await;
    for key in ["refused", "other"] {
        let submit = "SELECT duetime.submit('orders', '0', now() + interval '1 hour', key => $1)";
        sqlx::query(submit).bind(key).execute(&test.pool).await.unwrap();
    }
    replace(&test, 2).await;
    collect_all(&intake, &mut state, &test).await;
    let made = test.database.task_read(task).await.unwrap().expect("it is there");
    assert_eq!((made.payload.as_deref(), test.live().await), (Some(b"2".as_slice()), 2));
}

#[tokio::test]
async fn rows_of_one_key_that_the_database_refuses_do_not_wait_for_one_another() {
    let (counter, test) = fresh().await;
    let database = &counter.databases.all()[0];
    database.owned_shards.adopt(&fixture::all_shards().iter().map(|id| (id, Epoch::from_store(1))).collect::<Vec<_>>());
    let (intake, mut state) = (intake(&counter), PassState::default());
    test.refuse("INSERT", "task", "key", "k").await;
    let [first, later] = [replace(&test, 1).await, replace(&test, 2).await];
    let first_is_refused = Box::pin(async {
        loop {
            intake.collect(&mut state).await.unwrap();
            if !state.aside.contains_key(&first) {
                break;
            }
            // The failed statement held it for a moment after its answer.
            state.aside.clear();
        }
    });
    soon("the first row is refused", first_is_refused).await;
    assert!(!state.aside.contains_key(&later), "it has its turn in the next pass: {:?}", state.aside);
    collect_all(&intake, &mut state, &test).await;
}

/// Both are judged before the earlier one is written.
#[tokio::test]
async fn a_later_submission_of_a_key_takes_the_place_of_one_that_has_the_last_room() {
    let (counter, test) = fresh().await;
    let database = &counter.databases.all()[0];
    database.owned_shards.adopt(&fixture::all_shards().iter().map(|id| (id, Epoch::from_store(1))).collect::<Vec<_>>());
    let intake = intake(&counter);
    let policy = QueuePolicy { max_pending: Some(1), ..QueuePolicy::default() };
    let queue = Queue { policy, ..Queue::with_defaults(QueueName::new("orders")) };
    counter.books.store(Arc::new(QueueBook::new(2, [queue])));
    let task = replace(&test, 0).await;
    replace(&test, 1).await;
    intake.collect(&mut PassState::default()).await.unwrap();
    let made = test.database.task_read(task).await.unwrap().expect("it is there");
    assert_eq!((made.payload.as_deref(), test.live().await), (Some(b"1".as_slice()), 1));
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.inbox").fetch_one(&test.pool).await.unwrap();
    assert_eq!(left, 0);
}

/// A read takes 1 MiB at most.
#[tokio::test]
async fn large_submissions_beyond_one_read_are_collected_without_a_pause() {
    let (counter, test) = fresh().await;
    let database = &counter.databases.all()[0];
    database.owned_shards.adopt(&fixture::all_shards().iter().map(|id| (id, Epoch::from_store(1))).collect::<Vec<_>>());
    let (intake, mut state) = (intake(&counter), PassState::default());
    // Random bytes, which PostgreSQL cannot compress: 250 kB each.
    let submit = "SELECT duetime.submit('orders', to_jsonb(string_agg(encode(uuid_send(gen_random_uuid()), 'base64'), \
                  ''))) FROM generate_series(1, 10400)";
    for _ in 0..6 {
        sqlx::query(submit).execute(&test.pool).await.unwrap();
    }
    assert_eq!(intake.collect(&mut state).await.unwrap(), Left::More);
    assert_eq!(intake.collect(&mut state).await.unwrap(), Left::Fresh);
    // This desk takes no payload beyond 1,000 bytes.
    let refused = "SELECT count(*) FROM duetime.inbox WHERE error IS NOT NULL";
    assert_eq!(sqlx::query_scalar::<_, i64>(refused).fetch_one(&test.pool).await.unwrap(), 6);
}

#[tokio::test]
async fn submissions_that_are_refused_together_have_one_line_in_the_log() {
    let log = Log::keep();
    let (counter, test) = fresh().await;
    sqlx::raw_sql(
        "INSERT INTO duetime.inbox (id, shard, request, submitted_at)
         SELECT duetime.mint(now(), 0), 0, '{\"queue\": \"orders\", \"priority\": 9}'::jsonb, now() - interval '1 minute'
           FROM generate_series(1, 100)",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    intake(&counter).collect(&mut PassState::default()).await.unwrap();
    assert_eq!(log.count("a submission in SQL cannot be a task"), 100);
    assert_eq!((log.count("submissions in SQL cannot be tasks"), log.count("rows=100")), (1, 1));
}

#[tokio::test]
async fn rows_that_are_refused_and_locked_keep_no_other_row_waiting() {
    let (counter, test) = fresh().await;
    let submit = format!(
        "INSERT INTO duetime.inbox (id, shard, request, submitted_at)
         SELECT duetime.mint(now(), 0), 0,
                '{{\"queue\": \"orders\"}}'::jsonb || CASE WHEN n > 0 THEN '{{\"priority\": 9}}'::jsonb ELSE '{{}}'::jsonb END,
                now() - interval '1 minute' - n * interval '1 ms'
           FROM generate_series(0, {BATCH}) AS n"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(submit)).execute(&test.pool).await.unwrap();
    let mut holder = test.pool.acquire().await.unwrap();
    let lock = "BEGIN; SELECT FROM duetime.inbox WHERE request ? 'priority' FOR UPDATE";
    sqlx::raw_sql(lock).execute(&mut *holder).await.unwrap();
    let (intake, mut state) = (intake(&counter), PassState::default());
    for _ in 0..2 {
        intake.collect(&mut state).await.unwrap();
    }
    assert_eq!(test.live().await, 1, "the row behind them is a task");
    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
    state.aside.clear();
    intake.collect(&mut state).await.unwrap();
    let left = "SELECT count(*) FROM duetime.inbox WHERE error IS NULL";
    assert_eq!(sqlx::query_scalar::<_, i64>(left).fetch_one(&test.pool).await.unwrap(), 0);
}

/// The database of the refused row's shard may have it as a task, and has to say so first.
#[tokio::test]
async fn a_refused_row_whose_database_takes_no_writes_keeps_no_other_row_waiting() {
    let (counter, [main, east]) = with_two_databases().await;
    sqlx::raw_sql(
        "INSERT INTO duetime.inbox (id, shard, request, submitted_at, leaving_at)
         SELECT duetime.mint(now(), r.shard), r.shard, r.request, now() - interval '1 minute', r.leaving_at
           FROM (VALUES (100, '{\"queue\": \"orders\", \"priority\": 9}'::jsonb, now()),
                        (0, '{\"queue\": \"orders\"}'::jsonb, NULL)) AS r (shard, request, leaving_at)",
    )
    .execute(&main.pool)
    .await
    .unwrap();
    east.fill_disk("INSERT", "received").await;
    let (intake, mut state) = (intake(&counter), PassState::default());
    intake.collect(&mut state).await.unwrap();
    assert_eq!(main.live().await, 1);
    assert_eq!(state.avoided.len(), 1, "the refused row is not the first one of each pass");
    intake.collect(&mut state).await.unwrap();

    sqlx::raw_sql("DROP FUNCTION public.fill_disk() CASCADE").execute(&east.pool).await.unwrap();
    // As if the pause of its database had passed.
    state.avoided.clear();
    intake.collect(&mut state).await.unwrap();
    let refused = "SELECT count(*) FROM duetime.inbox WHERE error IS NOT NULL";
    assert_eq!(sqlx::query_scalar::<_, i64>(refused).fetch_one(&main.pool).await.unwrap(), 1);
}

/// The map of the node is older than the move.
#[tokio::test]
async fn a_refused_row_whose_shard_has_moved_on_is_refused_by_the_new_place_and_no_database_is_avoided() {
    let (counter, [main, east]) = with_two_databases().await;
    let places = counter.databases.places();
    sqlx::raw_sql(
        "INSERT INTO duetime.inbox (id, shard, request, submitted_at, leaving_at)
         SELECT duetime.mint(now(), 100), 100, '{\"queue\": \"orders\", \"priority\": 9}'::jsonb,
                now() - interval '1 minute', now();
         INSERT INTO duetime.shard (id, epoch) VALUES (100, 9)",
    )
    .execute(&main.pool)
    .await
    .unwrap();
    east.database.move_guard(&[ShardId::new(100)], false).await.unwrap();
    let close = "UPDATE duetime.shard SET status = 'gone' WHERE id = 100";
    sqlx::raw_sql(close).execute(&east.pool).await.unwrap();
    let _ = places.wanted().notified().now_or_never();
    let (intake, mut state) = (intake(&counter), PassState::default());
    intake.collect(&mut state).await.unwrap();
    assert_eq!(state.avoided.len(), 0, "the rows of its other shards go on");
    assert!(places.wanted().notified().now_or_never().is_some(), "the map is read again");

    places.refresh().await.unwrap();
    intake.collect(&mut state).await.unwrap();
    let refused = "SELECT count(*) FROM duetime.inbox WHERE error IS NOT NULL";
    assert_eq!(sqlx::query_scalar::<_, i64>(refused).fetch_one(&main.pool).await.unwrap(), 1);
}

#[tokio::test]
async fn rows_of_a_shard_that_stays_closed_leave_the_others_their_turn() {
    let (counter, [main, _east]) = with_two_databases().await;
    let (intake, mut state) = (intake(&counter), PassState::default());
    let rows = "INSERT INTO duetime.inbox (id, shard, request, submitted_at)
                SELECT duetime.mint(now(), 1), 1, '{\"queue\": \"orders\"}'::jsonb, now() - interval '1 minute'
                  FROM generate_series(1, $1)";
    sqlx::query(rows).bind(i32::try_from(BATCH).unwrap()).execute(&main.pool).await.unwrap();
    sqlx::raw_sql(
        "UPDATE duetime.shard SET status = 'gone' WHERE id = 1;
         SELECT duetime.submit('orders', '0');
         UPDATE duetime.inbox SET submitted_at = now() - interval '30 s' WHERE shard <> 1",
    )
    .execute(&main.pool)
    .await
    .unwrap();
    counter.databases.places().refresh().await.unwrap();
    intake.collect(&mut state).await.unwrap();
    assert_eq!(main.live().await, 1, "the row behind them is a task");
}

/// Another node refused them a moment ago, by a limit that this one does not find reached, or a pass broke off after
/// it had noted them.
#[tokio::test]
async fn rows_that_were_refused_on_their_way_into_another_database_stay_with_a_reason() {
    let (counter, [main, east]) = with_two_databases().await;
    let submitted: Vec<uuid::Uuid> = sqlx::query_scalar(
        "INSERT INTO duetime.inbox (id, shard, request, submitted_at, leaving_at)
         SELECT duetime.mint(now(), 100), 100, '{\"queue\": \"orders\"}'::jsonb || r.other, now() - interval '1 minute', now()
           FROM (VALUES ('{\"priority\": 9}'::jsonb), ('{}'::jsonb),
                        ((SELECT jsonb_build_object('key', min('k' || n)) FROM generate_series(1, 10000) AS n
                           WHERE duetime.shard_of('orders', false, NULL, 'k' || n, 128) = 100))) AS r (other)
         RETURNING id",
    )
    .fetch_all(&main.pool)
    .await
    .unwrap();
    let ids: Vec<TaskId> = submitted.into_iter().map(TaskId::from_uuid).collect();
    let source = DatabaseName::new("main");
    assert_eq!(east.database.received_refuse(&ids, &source).await.unwrap().len(), 3);
    intake(&counter).collect(&mut PassState::default()).await.unwrap();
    let refused = "SELECT count(*) FROM duetime.inbox WHERE error IS NOT NULL";
    assert_eq!(sqlx::query_scalar::<_, i64>(refused).fetch_one(&main.pool).await.unwrap(), 3);
    assert_eq!(east.live().await, 0);
}

/// A pass broke off after that database had refused them. Since then the desk refuses them too.
#[tokio::test]
async fn rows_that_another_database_has_refused_stay_with_a_reason_also_where_the_desk_refuses_them() {
    let (counter, [main, east]) = with_two_databases().await;
    let submitted = "INSERT INTO duetime.inbox (id, shard, request, submitted_at, leaving_at)
                     SELECT duetime.mint(now(), 100), 100, '{\"queue\": \"orders\", \"priority\": 9}'::jsonb,
                            now() - interval '1 minute', now()
                       FROM generate_series(1, 5) RETURNING id";
    let ids: Vec<uuid::Uuid> = sqlx::query_scalar(submitted).fetch_all(&main.pool).await.unwrap();
    let noted = "INSERT INTO duetime.received (id, source, answer)
                 SELECT n.id, 'main', jsonb_build_object('outcome', n.outcome)
                   FROM unnest($1::uuid[], ARRAY['refused', 'stale', 'cycle', 'deep', 'created']) AS n (id, outcome)";
    sqlx::query(noted).bind(&ids).execute(&east.pool).await.unwrap();
    intake(&counter).collect(&mut PassState::default()).await.unwrap();
    let left = "SELECT id, error IS NOT NULL FROM duetime.inbox ORDER BY id";
    let left: Vec<(uuid::Uuid, bool)> = sqlx::query_as(left).fetch_all(&main.pool).await.unwrap();
    let mut refused: Vec<(uuid::Uuid, bool)> = ids[..4].iter().map(|id| (*id, true)).collect();
    refused.sort_unstable();
    assert_eq!(left, refused, "a task stands for the fifth");
}

#[tokio::test]
async fn rows_of_another_database_leave_an_inbox_whose_own_database_takes_no_tasks() {
    let (counter, [main, east]) = with_two_databases().await;
    sqlx::raw_sql(
        "INSERT INTO duetime.inbox (id, shard, request, submitted_at)
         SELECT duetime.mint(now(), shard), shard, '{\"queue\": \"orders\"}'::jsonb, now() - interval '1 minute'
           FROM unnest(ARRAY[0, 100]) AS r (shard)",
    )
    .execute(&main.pool)
    .await
    .unwrap();
    main.fill_disk("INSERT", "task").await;
    let error = intake(&counter).collect(&mut PassState::default()).await.expect_err("its own row waits");
    assert_eq!(error.op, StoreOp::TaskCollect);
    assert_eq!((main.live().await, east.live().await), (0, 1));
}

#[tokio::test]
async fn a_queue_whose_copy_is_refused_is_one_warning_and_the_others_are_copied() {
    let log = Log::keep();
    let (counter, [_main, east]) = with_two_databases().await;
    let (index, _) = counter.databases.indexed().nth(1).expect("the second database");
    let intake = SqlIntake { index, ..intake(&counter) };
    let queues = ["a", "poison", "z"].map(|name| Queue::with_defaults(QueueName::new(name)));
    counter.books.store(Arc::new(QueueBook::new(2, queues)));
    let gone = "INSERT INTO duetime.queue (name, policy) VALUES ('gone', '{}')";
    sqlx::raw_sql(gone).execute(&east.pool).await.unwrap();
    east.refuse("INSERT", "queue", "name", "poison").await;
    let mut copied = CopiedQueues::default();
    let copy = "SELECT name FROM duetime.queue ORDER BY name";
    for _ in 0..2 {
        intake.copy_queues(&mut copied).await.unwrap();
        let names: Vec<String> = sqlx::query_scalar(copy).fetch_all(&east.pool).await.unwrap();
        assert_eq!(names, ["a", "z"]);
        assert_eq!(log.count("a database refuses the copy of queues"), 1);
        assert_eq!(log.count("database=east queue=poison queues=1"), 1);
        // As if the pause had passed.
        copied.again_at = copied.again_at.map(|_| Instant::now());
    }
    sqlx::raw_sql("DROP FUNCTION public.refuse() CASCADE").execute(&east.pool).await.unwrap();
    intake.copy_queues(&mut copied).await.unwrap();
    let names: Vec<String> = sqlx::query_scalar(copy).fetch_all(&east.pool).await.unwrap();
    assert_eq!(names, ["a", "poison", "z"]);
    assert_eq!(copied.again_at, None);
}

#[tokio::test]
async fn the_gauges_of_an_inbox_that_cannot_be_read_end_and_begin_again_when_it_can() {
    let (counter, test) = fresh().await;
    let registry = Registry::new();
    let metrics = Arc::new(Metrics::register(&registry).unwrap());
    let intake = SqlIntake { metrics, ..intake(&counter) };
    let series = || {
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        ["duetime_inbox_rows{", "duetime_inbox_oldest_seconds{"].map(|name| text.matches(name).count())
    };
    let mut measured = Instant::now();
    intake.measure(&mut measured).await.unwrap();
    assert_eq!(series(), [1, 1]);
    sqlx::raw_sql("ALTER TABLE duetime.inbox RENAME TO away").execute(&test.pool).await.unwrap();
    intake.measure(&mut measured).await.unwrap_err();
    assert_eq!(series(), [1, 1], "one failure makes no gap");
    measured -= Duration::from_secs(60);
    intake.measure(&mut measured).await.unwrap_err();
    assert_eq!(series(), [0, 0]);
    sqlx::raw_sql("ALTER TABLE duetime.away RENAME TO inbox").execute(&test.pool).await.unwrap();
    intake.measure(&mut measured).await.unwrap();
    assert_eq!(series(), [1, 1]);
}

#[tokio::test]
async fn many_rows_in_one_pass_show_that_they_come_quickly() {
    let (counter, test) = fresh().await;
    let database = &counter.databases.all()[0];
    database.owned_shards.adopt(&fixture::all_shards().iter().map(|id| (id, Epoch::from_store(1))).collect::<Vec<_>>());
    let (intake, mut state) = (intake(&counter), PassState::default());
    for (rows, left) in [(MANY - 1, Left::Fresh), (MANY, Left::FreshAfterMany), (BATCH, Left::More)] {
        let submit = format!("SELECT duetime.submit('orders', '{{}}') FROM generate_series(1, {rows})");
        sqlx::raw_sql(sqlx::AssertSqlSafe(submit)).execute(&test.pool).await.unwrap();
        assert_eq!(intake.collect(&mut state).await.unwrap(), left, "{rows} rows");
    }
}

#[tokio::test(start_paused = true)]
async fn a_notification_while_rows_come_quickly_begins_no_pass_and_counts_after_the_next_one() {
    let (inbox, stop, mut glances) = (tokio::sync::Notify::new(), CancellationToken::new(), watch::channel(()).1);
    inbox.notify_one();
    let began = tokio::time::Instant::now();
    assert_eq!(Left::FreshAfterMany.until_look(LOOK_AGAIN, &inbox, &mut glances, &stop).await, LOOK_AGAIN);
    assert!(began.elapsed() >= LOOK_AGAIN, "it did not wait");
    assert_eq!(Left::Fresh.until_look(LOOK_AGAIN, &inbox, &mut glances, &stop).await, LOOK_AGAIN / 2);
}

#[test]
fn an_inbox_is_looked_at_again_until_a_glance_is_as_new() {
    let mut pause = LOOK_AGAIN / 2;
    let mut looks = Vec::new();
    while pause < LOOK_EVERY {
        pause = Left::Nothing.next_look(pause, Duration::ZERO);
        looks.push(pause.as_millis());
    }
    assert_eq!(looks, [40, 80, 160, 320, 500]);
    assert_eq!(Left::Fresh.next_look(LOOK_EVERY, LOOK_AGAIN), LOOK_AGAIN);
    let after_many = |took| Left::FreshAfterMany.next_look(LOOK_EVERY, took);
    assert_eq!(after_many(LOOK_AGAIN / 2), LOOK_AGAIN / 2, "passes begin apart");
    assert_eq!(after_many(LOOK_EVERY), LOOK_AGAIN / 4, "a rest after a long one");
}
