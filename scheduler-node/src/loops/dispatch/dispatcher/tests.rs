mod crowds;

use common::{
    delay::Hearing,
    ids::{QueueName, ShardId},
    queue::{Queue, QueueBook, QueuePolicy, Settle},
    wire::amqp::REJECTED,
};
use futures::FutureExt;
use lapin::{BasicProperties, options::QueuePurgeOptions};

use super::*;
use crate::{
    broker::{AmqpSettings, BrokerMetrics, Login, tests::bench::Bench},
    loops::tests::{DELIVER, LONG, Loops, POISON, ids_of, until},
    store::{PoolKind, depend::Succeeded, tests::fixture},
    supervise::spawn_child,
};

#[tokio::test]
async fn a_task_that_another_transaction_holds_at_its_deadline_delays_no_other_and_ends_later() {
    for (settle, then) in [(Settle::Reject, "succeeded"), (Settle::Result, "scheduled")] {
        let loops = Loops::new().await;
        let policy = QueuePolicy { settle, ..QueuePolicy::default() };
        let queue = |name| Queue { policy: policy.clone(), ..Queue::with_defaults(QueueName::new(name)) };
        loops.counter.books.store(Arc::new(QueueBook::new(1, ["orders", POISON].map(queue))));
        let ids = loops.claimed().await;
        loops.settle(ids, DELIVER).await;
        let overdue = "UPDATE duetime.task SET wake_at = now() - interval '1 s'";
        sqlx::raw_sql(overdue).execute(&loops.test.pool).await.unwrap();
        let lock = loops.test.lock_row(ids[1]).await;

        let (_dispatches, stop) = loops.dispatch(WakeKind::Deadline, &ids);
        for id in [ids[0], ids[2]] {
            until(|| async { loops.test.state_of(id).await.as_deref() == Some(then) }).await;
        }
        assert_eq!(loops.test.state_of(ids[1]).await.as_deref(), Some("delivered"));
        lock.release().await;
        until(|| async { loops.test.state_of(ids[1]).await.as_deref() == Some(then) }).await;
        stop.cancel();
    }
}

#[tokio::test]
async fn while_many_messages_wait_to_be_sent_only_what_comes_due_is_claimed() {
    let loops = Loops::new().await;
    let [overdue, _, coming] = loops.three(|_| ()).await;
    let (claims, mut dispatches) = loops.claims();
    let (now, minute) = (clock::instant(), Duration::from_secs(60));
    let mut lead = Lead::new(2 * minute, now);
    lead.took(2 * minute, now);
    let wakes = [(overdue, claims.now().minus(minute)), (coming, claims.now().plus(minute))];
    let entries = wakes.map(|(id, wake_at)| Entry { wake_at, id, kind: WakeKind::Claim });
    claims.database.owned_shards.offer(entries);
    let dispatcher = loops.dispatcher(claims, lead);
    let lanes = Arc::clone(&dispatcher.lanes);
    lanes.backlog.note(true, usize::MAX, now + minute);

    spawn_child(dispatcher.run(CancellationToken::new()));
    let mut next = async || tokio::time::timeout(LONG, dispatches.recv()).await.unwrap().unwrap().delivery.id;
    assert_eq!(next().await, coming);
    assert_eq!(loops.test.state_of(overdue).await.as_deref(), Some("scheduled"));
    lanes.backlog.note(false, 0, now);
    assert_eq!(next().await, overdue);
}

/// A broker whose keeper does not run, so it takes nothing.
fn silent() -> Broker {
    let amqp = AmqpSettings {
        login: Login::new("amqp://127.0.0.1:1".to_owned().into()),
        consume: false,
        delay_exchanges: Vec::new(),
        cluster: None,
    };
    Broker::new(amqp, Arc::new(BrokerMetrics::register(&prometheus::Registry::new()).unwrap())).0
}

/// RabbitMQ holds reports back while it is short of memory, and tells only those who publish.
#[tokio::test]
async fn while_the_broker_takes_no_messages_a_deadline_ends_nothing() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    loops.settle(ids, DELIVER).await;
    let overdue = "UPDATE duetime.task SET wake_at = now() - interval '1 s'";
    sqlx::raw_sql(overdue).execute(&loops.test.pool).await.unwrap();
    let lead = Lead::new(Duration::ZERO, clock::instant());
    let dispatcher = Dispatcher { sounded: Some(silent()), ..loops.dispatcher(loops.claims().0, lead) };

    dispatcher.deadlines(ids.map(|id| (id, UnixMicros::FIRST)).to_vec()).await;
    for id in ids {
        assert_eq!(loops.test.state_of(id).await.as_deref(), Some("delivered"), "a report may still come");
    }
    let now = dispatcher.claims.now();
    assert!(loops.database().owned_shards.next_due().is_some_and(|due| due > now), "the deadlines come again");

    Dispatcher { sounded: None, ..dispatcher }.deadlines(ids.map(|id| (id, UnixMicros::FIRST)).to_vec()).await;
    for id in ids {
        assert_eq!(loops.test.state_of(id).await.as_deref(), Some("succeeded"));
    }
}

/// Delivered tasks whose deadlines have passed.
async fn overdue(loops: &Loops) -> [TaskId; 3] {
    let ids = loops.claimed().await;
    loops.settle(ids, DELIVER).await;
    let overdue = "UPDATE duetime.task SET wake_at = now() - interval '1 s'";
    sqlx::raw_sql(overdue).execute(&loops.test.pool).await.unwrap();
    ids
}

async fn all_wait(loops: &Loops, ids: [TaskId; 3]) {
    for id in ids {
        let state = loops.test.state_of(id).await;
        assert_eq!(state.as_deref(), Some("delivered"), "a rejection may still come");
    }
}

/// Wakes the deadlines of these tasks in a dispatcher. They are put back, and end no attempt.
async fn put_back(loops: &Loops, ids: [TaskId; 3]) -> CancellationToken {
    let (_dispatches, stop) = loops.dispatch(WakeKind::Deadline, &ids);
    until_put_back(loops, ids).await;
    stop
}

async fn until_put_back(loops: &Loops, ids: [TaskId; 3]) {
    let owned_shards = Arc::clone(&loops.database().owned_shards);
    let now = loops.claims().0.now();
    until(|| async { owned_shards.in_flight() == 0 && owned_shards.next_due().is_none_or(|due| due > now) }).await;
    all_wait(loops, ids).await;
}

/// A rejection may wait at the broker for the end of the outage in which its deadline passed.
#[tokio::test]
async fn after_an_outage_a_rejection_that_waits_comes_before_a_deadline_that_has_passed() {
    let loops = Loops::new().await;
    let ids = overdue(&loops).await;
    let owned_shards = Arc::clone(&loops.database().owned_shards);
    loops.database().hearing.lock().begin_again(clock::instant());
    let stop = put_back(&loops, ids).await;
    *loops.database().hearing.lock() = Hearing::default();
    owned_shards.offer(ids.map(|id| Entry { wake_at: UnixMicros::FIRST, id, kind: WakeKind::Deadline }));
    for id in ids {
        until(|| async { loops.test.state_of(id).await.as_deref() == Some("succeeded") }).await;
    }
    stop.cancel();
}

/// After some hours there may be 200,000 of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_outage_a_deadline_that_has_passed_ends_nothing_while_many_rejections_wait() {
    let (loops, bench) = (Loops::new().await, Bench::new().await);
    let (ids, hand) = (overdue(&loops).await, bench.hand().await);
    // The bench reads as many as a node does, and acks none.
    for _ in 0..1_200 {
        hand.publish(REJECTED, b"", BasicProperties::default()).await;
    }
    until(|| async { hand.depth(REJECTED).await > 600 }).await;
    let lead = Lead::new(Duration::ZERO, clock::instant());
    let dispatcher = Dispatcher { sounded: Some(bench.broker.clone()), ..loops.dispatcher(loops.claims().0, lead) };
    let end_after_a_minute = async || {
        // What RabbitMQ answers serves for a moment: waiting for it below would look like a stop of the node.
        bench.broker.has_many_reports().await;
        bench.broker.takes_messages().await;
        {
            let mut hearing = loops.database().hearing.lock();
            hearing.runs(clock::instant());
            hearing.begin_again(clock::instant() - LONG);
        }
        dispatcher.count_what_waits(&bench.broker).await;
        dispatcher.deadlines(ids.map(|id| (id, UnixMicros::FIRST)).to_vec()).await;
    };

    end_after_a_minute().await;
    all_wait(&loops, ids).await;
    hand.channel.queue_purge(REJECTED.into(), QueuePurgeOptions::default()).await.unwrap();
    // The last answer serves for a moment.
    until(|| async {
        end_after_a_minute().await;
        !loops.database().hearing.lock().must_ask()
    })
    .await;
    all_wait(&loops, ids).await;
    end_after_a_minute().await;
    for id in ids {
        let state = loops.test.state_of(id).await;
        assert_eq!(state.as_deref(), Some("succeeded"), "nothing has been left for a while");
    }
}

/// An answer may take seconds, and claims need their places meanwhile.
#[tokio::test]
async fn while_rabbitmq_is_asked_how_many_reports_are_left_deadlines_hold_no_place_of_a_claim_and_end_nothing() {
    let loops = Loops::new().await;
    let ids = overdue(&loops).await;
    loops.database().hearing.lock().begin_again(clock::instant() - LONG);
    let lead = Lead::new(Duration::ZERO, clock::instant());
    let dispatcher = Dispatcher { sounded: Some(silent()), ..loops.dispatcher(loops.claims().0, lead) };
    let now = dispatcher.claims.now();
    let (asks, mut children) = (Arc::new(Semaphore::new(ASKS_IN_FLIGHT)), JoinSet::new());
    for _ in 0..2 {
        let kinds = [WakeKind::Deadline, WakeKind::Claim];
        let entries = kinds.map(|kind| Entry { wake_at: UnixMicros::FIRST, id: ids[0], kind }).into();
        let mut batch = Batch { entries, ahead: Duration::ZERO, is_full: false, each: 100, places: 1 };
        dispatcher.begin_ask(&mut batch, &asks, &mut children);
        assert!(batch.entries.iter().map(|entry| entry.kind).eq([WakeKind::Claim]), "{batch:?}");
    }
    assert_eq!(children.len(), 1, "two asks are under way");
    assert!(loops.database().owned_shards.next_due().is_some_and(|due| due > now), "the deadlines come again");
    all_wait(&loops, ids).await;
}

/// Reports are not read before the first database has answered, which may be long after this one.
#[tokio::test]
async fn while_the_queues_are_not_read_no_rejection_is_and_then_it_comes_before_a_deadline_that_has_passed() {
    let loops = Loops::new().await;
    let ids = overdue(&loops).await;
    let book = loops.counter.books.swap(Arc::default());
    loops.database().hearing.lock().begin_again(clock::instant() - LONG);
    let stop = CancellationToken::new();
    let dispatcher = loops.dispatcher(loops.claims().0, Lead::new(Duration::ZERO, clock::instant()));
    let mut running = Box::pin(dispatcher.run(stop.clone()));
    assert!(running.as_mut().now_or_never().is_none(), "it waits for the queues");
    loops.counter.books.store(book);
    let deadlines = ids.map(|id| Entry { wake_at: UnixMicros::FIRST, id, kind: WakeKind::Deadline });
    loops.database().owned_shards.offer(deadlines);
    spawn_child(running);
    until_put_back(&loops, ids).await;
    stop.cancel();
}

#[tokio::test]
async fn after_a_stop_of_the_node_a_rejection_that_waits_comes_before_a_deadline_that_has_passed() {
    let loops = Loops::new().await;
    let ids = overdue(&loops).await;
    loops.database().hearing.lock().runs(clock::instant() - LONG);
    put_back(&loops, ids).await.cancel();
}

#[tokio::test]
async fn a_stop_of_the_node_while_a_deadline_waits_for_its_moment_lets_a_rejection_come_first() {
    let loops = Loops::new().await;
    let ids = overdue(&loops).await;
    loops.database().sql.ping().await.unwrap();
    let dispatcher = loops.dispatcher(loops.claims().0, Lead::new(Duration::ZERO, clock::instant()));
    let moment = dispatcher.claims.now().plus(Duration::from_secs(5));
    let mut ending = std::pin::pin!(dispatcher.deadlines(ids.map(|id| (id, moment)).to_vec()));
    assert!(ending.as_mut().now_or_never().is_none(), "they wait for their moment");
    loops.database().hearing.lock().runs(clock::instant() - LONG);
    ending.await;
    all_wait(&loops, ids).await;
    let next_due = loops.database().owned_shards.next_due();
    assert!(next_due.is_some_and(|due| due > moment), "the deadlines come again");
}

/// They would hold a place of a claim, and keep their shard from a drain, also once the clock is corrected.
#[tokio::test]
async fn deadlines_that_a_clock_which_was_set_back_has_made_distant_go_back_into_the_heap() {
    let loops = Loops::new().await;
    let ids = overdue(&loops).await;
    loops.database().sql.ping().await.unwrap();
    let dispatcher = loops.dispatcher(loops.claims().0, Lead::new(Duration::ZERO, clock::instant()));
    let moment = dispatcher.claims.now().plus(2 * LONG);
    let ended = dispatcher.deadlines(ids.map(|id| (id, moment)).to_vec());
    tokio::time::timeout(LONG, ended).await.expect("it does not wait for them");
    all_wait(&loops, ids).await;
    let next_due = loops.database().owned_shards.next_due();
    assert!(next_due.is_some_and(|due| due > moment.minus(LONG)), "the deadlines come again");
}

/// So many tasks of one partition that wait for a success that has come.
async fn waiting(loops: &Loops, count: usize) -> Vec<TaskId> {
    let ids: Vec<TaskId> = (0..count).map(|_| fixture::fresh_id_of(ShardId::new(0))).collect();
    let success = "INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, key, partition_key, finished_at, drop_on)
                   VALUES (gen_random_uuid(), 0, 'orders', 'succeeded', now(), now(), '', 'x', 'first', 'p', now(), current_date + 1)";
    sqlx::raw_sql(success).execute(&loops.test.pool).await.unwrap();
    let insert = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, partition_key, depends_on)
                  SELECT id, 0, 'orders', 'waiting', now(), now(), '', 'x', 'p', ARRAY['orders first'] FROM unnest($1::uuid[]) AS made (id)";
    let uuids: Vec<uuid::Uuid> = ids.iter().map(|id| id.uuid()).collect();
    sqlx::query(insert).bind(uuids).execute(&loops.test.pool).await.unwrap();
    ids
}

/// Runs `what` at the end of each change of tasks. It finds the rows in `written`.
async fn at_each_change(loops: &Loops, what: &str) {
    let trigger = format!(
        "CREATE FUNCTION duetime.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {what} RETURN NULL; END $$;
         CREATE TRIGGER slow AFTER UPDATE ON duetime.task REFERENCING NEW TABLE AS written
             FOR EACH STATEMENT EXECUTE FUNCTION duetime.slow()"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(trigger)).execute(&loops.test.pool).await.unwrap();
}

/// As with payloads that are large, over a slow way.
#[tokio::test]
async fn tasks_whose_claim_or_rescue_runs_out_of_its_time_come_again_in_smaller_parts() {
    for kind in [WakeKind::Claim, WakeKind::Rescue] {
        let loops = Loops::new().await;
        let ids = if kind == WakeKind::Claim { loops.three(|_| ()).await } else { loops.claimed().await };
        at_each_change(&loops, &FIVE_AT_A_TIME.replace("> 5", "> 1")).await;
        let (mut dispatches, stop) = loops.dispatch(kind, &ids);
        assert_eq!(ids_of(&mut dispatches, ids.len()).await, ids.into());
        stop.cancel();
    }
}

/// For [`at_each_change`]: a statement that changes more than five tasks runs out of its time.
const FIVE_AT_A_TIME: &str = "
    IF (SELECT count(*) FROM written) > 5 THEN
        RAISE EXCEPTION 'more than five take too long' USING ERRCODE = 'query_canceled';
    END IF;";

#[tokio::test]
async fn waiting_tasks_whose_look_runs_out_of_its_time_are_looked_at_in_smaller_parts() {
    let loops = Loops::new().await;
    let ids = waiting(&loops, 40).await;
    at_each_change(&loops, FIVE_AT_A_TIME).await;
    assert!(looked_at_until(&loops, &ids, 0).await.is_none());
}

/// Looks at these tasks until so many of them wait, and a look fails if some do. Returns its failure. A look passes a
/// row by whose failed write is not rolled back yet.
async fn looked_at_until(loops: &Loops, ids: &[TaskId], waiting: i64) -> Option<Error> {
    let failure = Mutex::new(None);
    until(|| async {
        let (_, failed) = loops.reporter().releaser.look(loops.database(), ids, clock::instant() + LONG).await;
        let has_failed = failed.is_some();
        *failure.lock() = failed;
        let count = "SELECT count(*) FROM duetime.task WHERE state = 'waiting'";
        sqlx::query_scalar::<_, i64>(count).fetch_one(&loops.test.pool).await.unwrap() == waiting
            && has_failed == (waiting > 0)
    })
    .await;
    failure.into_inner()
}

#[tokio::test]
async fn a_waiting_task_whose_look_runs_out_of_its_time_alone_hides_no_release_of_another() {
    let loops = Loops::new().await;
    let ids = waiting(&loops, 40).await;
    let slow = format!(
        "IF EXISTS (SELECT FROM written WHERE id = '{}') THEN
             RAISE EXCEPTION 'it takes too long' USING ERRCODE = 'query_canceled';
         END IF;",
        ids[7].uuid()
    );
    at_each_change(&loops, &slow).await;
    assert!(looked_at_until(&loops, &ids, 1).await.is_some_and(|error| error.is_out_of_time()));
}

/// Writes a task for each of these keys, which waits for the success of that key. Returns those successes.
async fn dependents(loops: &Loops, keys: &[String]) -> Vec<Succeeded> {
    let successes = "INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, key, partition_key, finished_at, drop_on)
                     SELECT gen_random_uuid(), 0, 'orders', 'succeeded', now(), now(), '', 'x', key, 'p', now(), current_date + 1
                       FROM (SELECT DISTINCT unnest($1::text[]) AS key) AS made";
    sqlx::query(successes).bind(keys).execute(&loops.test.pool).await.unwrap();
    let ids: Vec<uuid::Uuid> = keys.iter().map(|_| fixture::fresh_id_of(ShardId::new(0)).uuid()).collect();
    let insert = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, partition_key, depends_on)
                  SELECT id, 0, 'orders', 'waiting', now() + interval '1 h', now(), '', 'x', 'p', ARRAY['orders ' || key]
                    FROM unnest($1::uuid[], $2::text[]) AS made (id, key)";
    sqlx::query(insert).bind(ids).bind(keys).execute(&loops.test.pool).await.unwrap();
    let names: BTreeSet<String> = keys.iter().map(|key| format!("orders {key}")).collect();
    let success = |name| Succeeded { name, partition_key: Some("p".to_owned()), shard: ShardId::new(0) };
    names.into_iter().map(success).collect()
}

async fn does_none_wait(loops: &Loops) -> bool {
    let count = "SELECT count(*) FROM duetime.task WHERE state = 'waiting'";
    sqlx::query_scalar::<_, i64>(count).fetch_one(&loops.test.pool).await.unwrap() == 0
}

#[tokio::test]
async fn thousands_of_tasks_that_wait_for_a_success_are_released_in_parts() {
    let loops = Loops::new().await;
    let keys: Vec<String> = (0..2_500).map(|n| if n == 0 { "b" } else { "a" }.to_owned()).collect();
    let succeeded = dependents(&loops, &keys).await;
    let first = loops.test.database.task_release_dependents(&succeeded, None, 500).await.unwrap();
    assert_eq!((first.released.len(), first.more_after.is_some()), (500, true));
    loops.reporter().releaser.succeeded(loops.database(), &succeeded).await;
    until(|| does_none_wait(&loops)).await;
}

/// Tells of the successes until none waits for them.
async fn until_released(loops: &Loops, succeeded: &[Succeeded]) {
    let releaser = loops.reporter().releaser;
    // A statement passes over a row whose failed write is not rolled back yet.
    until(|| async {
        releaser.succeeded(loops.database(), succeeded).await;
        does_none_wait(loops).await
    })
    .await;
}

#[tokio::test]
async fn successes_whose_dependents_run_out_of_their_time_are_divided() {
    let loops = Loops::new().await;
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let succeeded = dependents(&loops, &keys).await;
    at_each_change(&loops, FIVE_AT_A_TIME).await;
    until_released(&loops, &succeeded).await;
}

#[tokio::test]
async fn dependents_of_one_success_that_run_out_of_their_time_are_released_in_smaller_parts() {
    let loops = Loops::new().await;
    let succeeded = dependents(&loops, &["a"; 40].map(str::to_owned)).await;
    at_each_change(&loops, FIVE_AT_A_TIME).await;
    until_released(&loops, &succeeded).await;
}

#[tokio::test]
async fn a_look_at_waiting_tasks_begins_no_part_after_its_end() {
    let loops = Loops::new().await;
    let ids = waiting(&loops, 2 * LOOKED_AT_ONCE).await;
    at_each_change(&loops, "PERFORM pg_sleep(2.5);").await;
    // A part that sleeps while the machine stands still does not run out of time.
    loops.test.be_patient(PoolKind::Fire).await;
    let (mut released, mut failed) = (Vec::new(), None);
    for _ in 0..5 {
        // A machine that stands still until the end begins no part at all.
        if released.is_empty() && failed.is_none() {
            let end = clock::instant() + Duration::from_secs(2);
            (released, failed) = loops.reporter().releaser.look(loops.database(), &ids, end).await;
        }
    }
    assert!(failed.is_none(), "{failed:?}");
    assert_eq!(released.len(), LOOKED_AT_ONCE);
}

#[tokio::test]
async fn looks_without_a_place_go_back_into_the_heap_and_hold_no_place_of_a_claim() {
    let loops = Loops::new().await;
    let ids = waiting(&loops, 3).await;
    let dispatcher = loops.dispatcher(loops.claims().0, Lead::new(Duration::ZERO, clock::instant()));
    let now = dispatcher.claims.now();
    let entries = ids.iter().map(|id| Entry { wake_at: UnixMicros::FIRST, id: *id, kind: WakeKind::Look }).collect();
    let (mut batch, mut children) =
        (Batch { entries, ahead: Duration::ZERO, is_full: false, each: 100, places: 1 }, JoinSet::new());
    assert!(!dispatcher.begin_looks(&mut batch, &Arc::new(Semaphore::new(0)), &mut children));
    assert!(batch.entries.is_empty() && children.is_empty());
    assert!(loops.database().owned_shards.next_due().is_some_and(|due| due > now));
}
