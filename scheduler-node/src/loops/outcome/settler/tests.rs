use std::{collections::BTreeSet, time::Instant};

use common::{
    delay::heap::{Entry, WakeKind},
    ids::{ScheduleName, ShardId},
    time::UnixMicros,
};

use super::*;
use crate::{
    clock,
    loops::tests::{DELIVER, LONG, Loops, SUCCEED, confirmed, until},
    store::{PoolKind, tests::fixture},
    supervise::{LoopKind, Pulse, spawn_child},
    working_set::owned_shards::{OwnedShards, Stop},
};

#[tokio::test]
async fn confirms_give_way_until_no_due_message_waits_to_be_sent_or_the_window_is_almost_full() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let lanes = Arc::<Lanes>::default();
    let confirms = |nth: usize| vec![confirmed(ids[nth], SUCCEED)];
    loops.database().owned_shards.begin(ids);
    let (full, roomy) = (loops.settler(ids.len(), &lanes), loops.settler(ids.len() * 2, &lanes));
    let mut unwritten = Unwritten::default();
    assert_eq!(roomy.give_way(confirms(0), &mut unwritten).len(), 1, "no message waits to be sent");
    // It is young for longer than this test lasts.
    lanes.backlog.note(true, 1, clock::instant() + LONG);
    assert_eq!(full.give_way(confirms(0), &mut unwritten).len(), 1, "the window needs its places");
    assert!(roomy.give_way(confirms(0), &mut unwritten).is_empty(), "a due message waits to be sent");
    assert!(roomy.give_way(confirms(1), &mut unwritten).is_empty());
    lanes.backlog.note(false, 0, clock::instant());
    assert_eq!(roomy.give_way(Vec::new(), &mut unwritten).len(), 2, "what came meanwhile is written together");
    assert!(unwritten.waiting.is_empty() && unwritten.due.is_empty());
}

/// So many confirms of no task, at this moment.
fn strangers(confirms: usize, at: Instant) -> Vec<Confirmed> {
    let stranger = |_| Confirmed { at, ..confirmed(fixture::fresh_id_of(ShardId::new(0)), SUCCEED) };
    (0..confirms).map(stranger).collect()
}

#[tokio::test]
async fn confirms_that_something_waits_for_are_written_with_the_next_statement_however_many_have_waited() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let lanes = Arc::<Lanes>::default();
    let settler = loops.settler(100, &lanes);
    let now = clock::instant();
    // It is young for longer than this test lasts.
    lanes.backlog.note(true, 1, now + LONG);
    let urgent = |id: TaskId| vec![Confirmed { gives_way: false, at: now, ..confirmed(id, SUCCEED) }];
    let mut unwritten = Unwritten { waiting: strangers(2 * BATCH, now - LONGEST_WAIT), ..Unwritten::default() };
    let last = unwritten.waiting[2 * BATCH - 1].id;
    for id in [ids[0], ids[1]] {
        let next = settler.give_way(urgent(id), &mut unwritten);
        assert_eq!((next.len(), next[0].id), (BATCH, id));
    }
    assert!(settler.give_way(strangers(1, now), &mut unwritten).iter().any(|one| one.id == last), "all wait no longer");
    assert_eq!((unwritten.waiting.len(), unwritten.due.len()), (1, 0));

    // More than the database writes, on either side.
    let many = strangers(2 * BATCH, now).into_iter().map(|one| Confirmed { gives_way: false, ..one });
    let mut unwritten = Unwritten { due: strangers(2 * BATCH, now - OLD), ..Unwritten::default() };
    assert!(settler.give_way(urgent(ids[2]), &mut unwritten).iter().any(|one| one.id == ids[2]), "old ones leave room");
    let next = settler.give_way(many.collect(), &mut unwritten);
    assert_eq!(next.iter().filter(|one| one.at == now).count(), BATCH - OLD_PART, "old ones do not wait for all newer");
}

/// The lock holds up the first statement until the confirm that something waits for has come. Most others stand in the
/// channel before it, many small batches of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirm_that_something_waits_for_is_written_before_the_rest_of_those_that_have_waited() {
    let loops = Loops::new().await;
    let [last, urgent, _] = loops.claimed().await;
    let mut hold = loops.test.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE duetime.task IN ACCESS EXCLUSIVE MODE").execute(&mut *hold).await.unwrap();
    let (settlements, confirms) = Settlements::channel(10 * BATCH);
    let send_many = async |last: Vec<Confirmed>| {
        for few in strangers(3 * BATCH, clock::instant()).chunks(BATCH / 100) {
            settlements.confirmed(few.to_vec()).await;
        }
        settlements.confirmed(last).await;
    };
    send_many(Vec::new()).await;
    let settling = spawn_child(loops.settler(100, &Arc::default()).run(confirms, CancellationToken::new()));
    loops.test.until_waiting(1).await;
    send_many(vec![confirmed(last, SUCCEED)]).await;
    settlements.confirmed(vec![Confirmed { gives_way: false, ..confirmed(urgent, SUCCEED) }]).await;
    drop(settlements);
    sqlx::raw_sql("COMMIT").execute(&mut *hold).await.unwrap();
    tokio::time::timeout(LONG, settling).await.expect("it ends once all is written").unwrap();
    let is_first = "SELECT (SELECT finished_at FROM duetime.archive WHERE id = $1) < (SELECT finished_at FROM duetime.archive WHERE id = $2)";
    let is_first = sqlx::query_scalar::<_, Option<bool>>(is_first).bind(urgent.uuid()).bind(last.uuid());
    assert_eq!(is_first.fetch_one(&loops.test.pool).await.unwrap(), Some(true));
}

#[tokio::test]
async fn confirms_do_not_wait_for_longer_because_a_backlog_ends_and_begins_again() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let lanes = Arc::<Lanes>::default();
    let settler = loops.settler(100, &lanes);
    lanes.backlog.note(true, 1, clock::instant() + LONG);
    let old = Confirmed { at: clock::instant() - LONGEST_WAIT, ..confirmed(ids[0], SUCCEED) };
    let mut unwritten = Unwritten { waiting: vec![old], ..Unwritten::default() };
    assert_eq!(settler.give_way(vec![confirmed(ids[1], SUCCEED)], &mut unwritten).len(), 2);
    assert!(unwritten.waiting.is_empty());
}

#[tokio::test]
async fn confirms_that_wait_are_written_when_a_drain_begins() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    loops.database().owned_shards.begin(ids);
    let lanes = Arc::<Lanes>::default();
    // It is young for longer than this test lasts.
    lanes.backlog.note(true, 1, clock::instant() + LONG);
    let settler = loops.settler(100, &lanes);
    let (shard, owned_shards) = (ShardId::new(0), Arc::clone(&loops.database().owned_shards));
    let cut = |owned_shards: &OwnedShards| owned_shards.stop_claiming(&[shard], Stop::Cut);
    let release = |owned_shards: &OwnedShards| owned_shards.begin_release(&[shard]);
    let drains: [&dyn Fn(&OwnedShards); 2] = [&cut, &release];
    for drain in drains {
        let mut unwritten = Unwritten { waiting: vec![confirmed(ids[0], SUCCEED)], ..Unwritten::default() };
        assert!(settler.give_way(Vec::new(), &mut unwritten).is_empty(), "nothing needs the places");
        drain(&owned_shards);
        let elsewhere = |_| confirmed(fixture::fresh_id_of(ShardId::new(1)), SUCCEED);
        unwritten.due = (0..BATCH).map(elsewhere).collect();
        let next = settler.give_way(Vec::new(), &mut unwritten);
        assert_eq!((next.len(), next[0].id), (BATCH, ids[0]), "those that the drain waits for come first");
        owned_shards.resume_claiming(shard, owned_shards.owned()[&shard], Stop::Cut);
    }
}

#[tokio::test]
async fn a_confirm_gives_way_unless_something_waits_for_it_or_its_task_wakes_again() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    loops.database().owned_shards.begin(ids);
    let lanes = Arc::<Lanes>::default();
    let settler = loops.settler(100, &lanes);
    // It is young for longer than this test lasts.
    lanes.backlog.note(true, 1, clock::instant() + LONG);
    let written = |batch: Vec<Confirmed>| batch.into_iter().map(|confirmed| confirmed.id).collect::<Vec<_>>();
    let mut unwritten = Unwritten::default();
    let urgent = Confirmed { gives_way: false, ..confirmed(ids[1], SUCCEED) };
    let new = vec![confirmed(ids[0], DELIVER), urgent, confirmed(ids[2], DELIVER)];
    assert_eq!(written(settler.give_way(new, &mut unwritten)), [ids[1]]);
    let now = fixture::now(&loops.test.pool).await;
    loops.database().owned_shards.offer([Entry { wake_at: now, id: ids[2], kind: WakeKind::Claim }]);
    // As after a pause.
    unwritten.looked_at = None;
    assert_eq!(written(settler.give_way(Vec::new(), &mut unwritten)), [ids[2]], "it is to be tried again");
    assert_eq!(written(unwritten.waiting), [ids[0]]);
}

#[tokio::test]
async fn a_confirm_whose_task_wakes_again_is_written_before_the_rest_of_those_that_wait_no_longer() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let owned_shards = &loops.database().owned_shards;
    owned_shards.begin(ids);
    let settler = loops.settler(100, &Arc::default());
    let now = fixture::now(&loops.test.pool).await;
    let wakes = |id: TaskId| owned_shards.offer([Entry { wake_at: now, id, kind: WakeKind::Claim }]);
    let mut unwritten = Unwritten { due: strangers(3 * BATCH, clock::instant()), ..Unwritten::default() };
    unwritten.due.push(confirmed(ids[0], SUCCEED));
    wakes(ids[1]);
    let next = settler.give_way(vec![confirmed(ids[1], SUCCEED)], &mut unwritten);
    assert_eq!((next.len(), next[0].id), (BATCH, ids[1]), "a new one is looked at as it comes");
    wakes(ids[0]);
    unwritten.looked_at = Some(clock::instant() + LONG);
    assert!(settler.give_way(Vec::new(), &mut unwritten).iter().all(|one| one.id != ids[0]), "not with each statement");
    // As after a pause.
    unwritten.looked_at = None;
    let next = settler.give_way(Vec::new(), &mut unwritten);
    assert_eq!((next.len(), next[0].id), (BATCH, ids[0]));
}

#[tokio::test]
async fn confirms_of_schedules_and_of_gated_queues_do_not_give_way() {
    let loops = Loops::new().await;
    let ids = loops.three(|_| ()).await;
    let claimed = loops.test.database.task_claim(&ids, &loops.fences, Duration::ZERO, &BTreeSet::new(), i64::MAX).await;
    let plain = claimed.unwrap().deliveries.remove(0);
    let keyed = |key: String| Delivery { key: Some(key), ..plain.clone() };
    let fired = schedule::key_of(&ScheduleName::new("nightly@eu"), UnixMicros::FIRST);
    let policy = QueuePolicy::default();
    assert!(gives_way(&plain, &policy));
    assert!(gives_way(&keyed("a@b".to_owned()), &policy));
    assert!(!gives_way(&keyed(fired), &policy));
    let limited = QueuePolicy { max_pending: Some(1), ..policy.clone() };
    assert!(gives_way(&plain, &limited));
    for gated in [
        QueuePolicy { ordered: true, ..policy.clone() },
        QueuePolicy { max_running: Some(1), ..policy.clone() },
        QueuePolicy { rate_per_second: Some(1.0), ..policy },
    ] {
        assert!(!gives_way(&plain, &gated), "{gated:?}");
    }
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

/// Each try of the held one takes longer than the interval between two of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_no_more_come_a_confirm_that_a_locked_partition_delays_leaves_time_for_the_rest() {
    let loops = Loops::new().await;
    let [delayed, last, _] = loops.claimed().await;
    let mut hold = loops.test.pool.acquire().await.unwrap();
    // Of all partitions: only what ends goes into the archive.
    sqlx::raw_sql("BEGIN; LOCK TABLE duetime.archive IN SHARE MODE").execute(&mut *hold).await.unwrap();
    let held = vec![confirmed(delayed, SUCCEED)];
    let mut unwritten = Unwritten { held, are_all: true, ..Unwritten::default() };
    let stranger = |one| Confirmed { verdict: DELIVER, ..one };
    unwritten.due.extend(strangers(BATCH, clock::instant()).into_iter().map(stranger));
    unwritten.due.push(confirmed(last, DELIVER));
    let (settler, confirms) = (loops.settler(100, &Arc::default()), Settlements::channel(1).1);
    let settling = spawn_child(settler.write_all(unwritten, confirms, CancellationToken::new()));
    until(|| async { loops.test.state_of(last).await.as_deref() == Some("delivered") }).await;
    assert_eq!(loops.test.state_of(delayed).await.as_deref(), Some("dispatching"));

    sqlx::raw_sql("COMMIT").execute(&mut *hold).await.unwrap();
    tokio::time::timeout(LONG, settling).await.expect("it ends once all is written").unwrap();
    assert_eq!(loops.test.state_of(delayed).await.as_deref(), Some("succeeded"));
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
    let mut hold = loops.lock_what_is_kept_for_three_days().await;
    let (settler, mut held, work) = (loops.settler(100, &Arc::default()), Vec::new(), at_work());
    let free_ones_pass = async {
        for id in free {
            until(|| async { loops.test.state_of(id).await.as_deref() == Some("succeeded") }).await;
        }
        sqlx::raw_sql("COMMIT").execute(&mut *hold).await.unwrap();
    };
    tokio::join!(settler.settle_all(batch, &mut held, true, &work), free_ones_pass);
}

/// As just after the queue got a longer retention.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirm_of_a_task_whose_partition_is_not_made_yet_stays_in_flight_and_other_confirms_are_written() {
    const KEPT_FOR_LONG: AfterConfirm = AfterConfirm::Succeed { keep_ms: 300 * 24 * 3_600 * 1_000 };
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let owned_shards = &loops.database().owned_shards;
    owned_shards.begin(ids);
    let batch = vec![confirmed(ids[0], SUCCEED), confirmed(ids[1], KEPT_FOR_LONG), confirmed(ids[2], SUCCEED)];
    let (settler, mut held, work) = (loops.settler(100, &Arc::default()), Vec::new(), at_work());
    let settling = settler.settle_all(batch, &mut held, false, &work);
    tokio::time::timeout(LONG, settling).await.expect("it ends while the partition is missing");
    for id in [ids[0], ids[2]] {
        assert_eq!(loops.test.state_of(id).await.as_deref(), Some("succeeded"));
    }
    assert_eq!(held.iter().map(|confirmed| confirmed.id).collect::<Vec<_>>(), [ids[1]]);
    assert!(owned_shards.in_flight() == 1 && owned_shards.is_in_flight(ids[1]), "no node may publish it again");
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
