use std::{collections::BTreeSet, time::Instant};

use common::ids::ShardId;
use futures::FutureExt;

use super::*;
use crate::{
    clock,
    loops::tests::{DELIVER, LONG, Loops, SUCCEED, confirmed, until},
    store::{PoolKind, tests::fixture},
    supervise::{LoopKind, Pulse, spawn_child},
};

#[tokio::test]
async fn confirms_are_gathered_until_no_due_message_waits_to_be_sent_or_the_window_is_half_full() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let lanes = Arc::<Lanes>::default();
    lanes.backlog.note(true, 1, clock::instant());
    let (settlements, mut confirms) = Settlements::channel(100);
    settlements.confirmed(vec![confirmed(ids[1], SUCCEED)]).await;
    let mut batch = vec![confirmed(ids[0], SUCCEED)];

    loops.database().owned_shards.begin(ids);
    let full = loops.settler(ids.len(), &lanes);
    assert!(full.give_way(&mut batch, &mut confirms).now_or_never().is_some(), "the window needs its places");
    assert_eq!(batch.len(), 1);

    let roomy = loops.settler(ids.len() * 2, &lanes);
    {
        let mut way = std::pin::pin!(roomy.give_way(&mut batch, &mut confirms));
        assert!(way.as_mut().now_or_never().is_none(), "a due message waits to be sent");
        lanes.backlog.note(false, 0, clock::instant());
        assert!(way.now_or_never().is_some());
    }
    assert_eq!(batch.len(), 2, "what came meanwhile is written together");
}

#[tokio::test]
async fn a_settler_whose_database_hangs_is_stalled_until_it_goes_on() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let pulse = Pulse::with_bound(|_| Duration::from_millis(300));
    assert_eq!(pulse.stalled(Instant::now() + LONG), BTreeSet::new(), "it has no work yet");
    let mut hold = loops.test.pool.acquire().await.unwrap();
    let begin = "BEGIN; LOCK TABLE duetime.task IN ACCESS EXCLUSIVE MODE";
    sqlx::raw_sql(begin).execute(&mut *hold).await.unwrap();
    let go_on = async {
        until(|| async { pulse.stalled(Instant::now()) == BTreeSet::from([LoopKind::Settler]) }).await;
        assert!(pulse.reasons(Instant::now())[0].contains("settler"));
        sqlx::raw_sql("COMMIT").execute(&mut *hold).await.unwrap();
    };
    tokio::join!(pulse.run(LoopKind::Settler, loops.settle(ids, SUCCEED)), go_on);
    assert_eq!(pulse.stalled(Instant::now() + LONG), BTreeSet::new(), "all is written");
    assert_eq!(loops.test.state_of(ids[0]).await.as_deref(), Some("succeeded"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_another_transaction_holds_stays_in_flight_and_other_confirms_are_written() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    loops.database().owned_shards.begin(ids);
    let lock = loops.test.lock_row(ids[1]).await;
    let (settlements, confirms) = Settlements::channel(100);
    settlements.confirmed(vec![confirmed(ids[1], SUCCEED)]).await;
    let settling = spawn_child(loops.settler(100, &Arc::default()).run(confirms, CancellationToken::new()));
    loops.test.until_waiting(1).await;

    settlements.confirmed(vec![confirmed(ids[0], SUCCEED), confirmed(ids[2], DELIVER)]).await;
    until(|| async { loops.test.state_of(ids[0]).await.as_deref() == Some("succeeded") }).await;
    until(|| async { loops.test.state_of(ids[2]).await.as_deref() == Some("delivered") }).await;
    let owned_shards = &loops.database().owned_shards;
    until(|| async { owned_shards.in_flight() == 1 }).await;
    assert!(owned_shards.is_in_flight(ids[1]), "no node may publish it again");
    assert_eq!(loops.test.state_of(ids[1]).await.as_deref(), Some("dispatching"));

    drop(settlements);
    lock.release().await;
    tokio::time::timeout(LONG, settling).await.expect("it ends once all is written").unwrap();
    assert_eq!(loops.test.state_of(ids[1]).await.as_deref(), Some("succeeded"));
    assert_eq!(owned_shards.in_flight(), 0);
}

/// No one holds the row itself, so each try of its confirm waits for the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirm_that_a_locked_partition_delays_leaves_time_for_other_confirms() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let mut hold = loops.test.pool.acquire().await.unwrap();
    // Of all partitions: only what ends goes into the archive.
    sqlx::raw_sql("BEGIN; LOCK TABLE duetime.archive IN SHARE MODE").execute(&mut *hold).await.unwrap();
    let (settlements, confirms) = Settlements::channel(100);
    settlements.confirmed(vec![confirmed(ids[0], SUCCEED)]).await;
    let settling = spawn_child(loops.settler(100, &Arc::default()).run(confirms, CancellationToken::new()));
    loops.test.until_waiting(1).await;

    settlements.confirmed(vec![confirmed(ids[1], DELIVER)]).await;
    until(|| async { loops.test.state_of(ids[1]).await.as_deref() == Some("delivered") }).await;
    assert_eq!(loops.test.state_of(ids[0]).await.as_deref(), Some("dispatching"));

    drop(settlements);
    sqlx::raw_sql("COMMIT").execute(&mut *hold).await.unwrap();
    tokio::time::timeout(LONG, settling).await.expect("it ends once all is written").unwrap();
    assert_eq!(loops.test.state_of(ids[0]).await.as_deref(), Some("succeeded"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_partition_delays_no_confirm_of_a_task_that_goes_into_another_one() {
    const KEPT_FOR_DAYS: AfterConfirm = AfterConfirm::Succeed { keep_ms: 3 * 24 * 3_600 * 1_000 };
    let loops = Loops::new().await;
    let (mut batch, mut free) = (Vec::new(), Vec::new());
    // More delayed ones than are tried alone, each with a free one behind it.
    for _ in 0..10 {
        let [delayed, other, _] = loops.claimed().await;
        batch.extend([confirmed(delayed, KEPT_FOR_DAYS), confirmed(other, SUCCEED)]);
        free.push(other);
    }
    let mut hold = loops.test.pool.acquire().await.unwrap();
    // Of two days, as midnight may pass.
    let lock = "BEGIN;
        DO $$ BEGIN
            EXECUTE (SELECT 'LOCK TABLE ' || string_agg('duetime.archive_' || to_char(
                        now() AT TIME ZONE 'UTC' + days * interval '1 day', 'YYYYMMDD'), ', ') || ' IN SHARE MODE'
                       FROM generate_series(4, 5) AS days);
        END $$";
    sqlx::raw_sql(lock).execute(&mut *hold).await.unwrap();
    let (settler, mut held, work) = (loops.settler(100, &Arc::default()), Vec::new(), at_work());
    let free_ones_pass = async {
        for id in free {
            until(|| async { loops.test.state_of(id).await.as_deref() == Some("succeeded") }).await;
        }
        sqlx::raw_sql("COMMIT").execute(&mut *hold).await.unwrap();
    };
    tokio::join!(settler.settle_all(batch, &mut held, true, &work), free_ones_pass);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settler_that_is_stopped_waits_for_no_other_transaction() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let _lock = loops.test.lock_row(ids[1]).await;
    let ((settlements, confirms), stop) = (Settlements::channel(100), CancellationToken::new());
    settlements.confirmed(ids.map(|id| confirmed(id, SUCCEED)).to_vec()).await;
    drop(settlements);
    let settling = spawn_child(loops.settler(100, &Arc::default()).run(confirms, stop.clone()));
    for id in [ids[0], ids[2]] {
        until(|| async { loops.test.state_of(id).await.as_deref() == Some("succeeded") }).await;
    }
    assert!(!settling.is_finished(), "one confirm is not written");
    stop.cancel();
    tokio::time::timeout(LONG, settling).await.expect("it ends").unwrap();
    assert_eq!(loops.test.state_of(ids[1]).await.as_deref(), Some("dispatching"));
}

/// A shard may leave its database once none of its tasks is in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_in_flight_until_those_that_wait_for_it_are_released_and_others_end_before() {
    let loops = Loops::new().await;
    let ([id, _, delivered], waiting) = (loops.claimed().await, fixture::fresh_id_of(ShardId::new(0)));
    // A confirm of a task that has ended meanwhile is one as well.
    let elsewhere = fixture::fresh_id_of(ShardId::new(1));
    let name = sqlx::query("UPDATE duetime.task SET key = 'first', partition_key = 'p' WHERE id = $1").bind(id.uuid());
    name.execute(&loops.test.pool).await.unwrap();
    let insert = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, partition_key, depends_on)
                  VALUES ($1, 0, 'orders', 'waiting', now() + interval '1 h', now(), '', 'x', 'p', ARRAY['orders first'])";
    sqlx::query(insert).bind(waiting.uuid()).execute(&loops.test.pool).await.unwrap();
    // The release is the only statement here that has tasks scheduled.
    let gate = "CREATE FUNCTION public.gate() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    PERFORM pg_advisory_xact_lock(7);
                    RETURN NULL;
                END $$;
                CREATE TRIGGER gate AFTER UPDATE ON duetime.task FOR EACH ROW WHEN (NEW.state = 'scheduled')
                    EXECUTE FUNCTION public.gate()";
    sqlx::raw_sql(gate).execute(&loops.test.pool).await.unwrap();
    loops.test.be_patient(PoolKind::Fire).await;
    let mut holder = loops.test.pool.acquire().await.unwrap();
    sqlx::raw_sql("SELECT pg_advisory_lock(7)").execute(&mut *holder).await.unwrap();

    let owned_shards = &loops.database().owned_shards;
    owned_shards.begin([id, delivered, elsewhere]);
    let batch = vec![confirmed(id, SUCCEED), confirmed(delivered, DELIVER), confirmed(elsewhere, SUCCEED)];
    let (settler, mut held, work) = (loops.settler(100, &Arc::default()), Vec::new(), at_work());
    let meanwhile = async {
        loops.test.until_waiting(1).await;
        assert_eq!(loops.test.state_of(id).await.as_deref(), Some("succeeded"));
        assert_eq!(owned_shards.in_flight(), 1);
        assert!(owned_shards.is_in_flight(id));
        sqlx::raw_sql("SELECT pg_advisory_unlock(7)").execute(&mut *holder).await.unwrap();
    };
    tokio::join!(settler.settle_all(batch, &mut held, false, &work), meanwhile);
    assert_eq!(loops.test.state_of(waiting).await.as_deref(), Some("scheduled"));
    assert_eq!(owned_shards.in_flight(), 0);
}
