//! Statements that execute later than their senders expect. Each race uses two connections and a lock.

use std::time::Duration;

use common::{
    ids::{Attempt, ShardId, TaskId},
    task::{BusinessKey, NewTask, OnDuplicate, TaskState},
    time::UnixMicros,
    wire::TaskFilter,
};

use super::{acquire_begun, changed, claim, commit_during, fixture, new_task, own, state_of, until_waiting};
use crate::{
    store::{
        Effect, Fault, PoolKind,
        bulk::Walk,
        lane::Pick,
        put::{PutOutcome, Retention},
        settle::{Finish, Report},
        submit::{KnownRevisions, Sending, Window},
    },
    supervise::spawn_child,
};

const HOLD: Retention = Retention { window_ms: 86_400_000, keep_ms: 86_400_000 };

fn finish(id: TaskId) -> Finish {
    Finish {
        id,
        attempt: Attempt::new(1),
        final_state: TaskState::Succeeded,
        was: &[TaskState::Dispatching],
        keep_ms: 60_000,
        report: Report::default(),
        entry: None,
        at_deadline: false,
    }
}

/// The window of a sending, which ends at `until`, and the window of the next sending.
fn windows(until: UnixMicros) -> [Window; 2] {
    let first = Window { after: None, until };
    [first, Window { after: Some(until), until: until.plus(Duration::from_secs(3_600)) }]
}

#[tokio::test]
async fn a_first_sending_that_executes_after_its_task_has_finished_does_not_insert_it_anew() {
    let test = fixture::database().await;
    let epoch = own(&test, "a").await[&ShardId::new(0)];
    test.be_patient(PoolKind::Write).await;
    let task = new_task(fixture::fresh_id_of(ShardId::new(0)));
    let [first, again] = windows(fixture::now(&test.pool).await);
    // The insert waits for the fence, which another node is acquiring. Its sender gives up and sends again.
    let acquiring = acquire_begun(&test).await;
    let (database, late) = (test.database.clone(), task.clone());
    let sending = spawn_child(async move {
        database
            .task_submit_claimed(&[late], &[Some(epoch)], KnownRevisions { claims: i64::MAX, routes: i64::MAX }, first)
            .await
    });
    until_waiting(&test.pool, 1).await;
    test.database.task_submit_within(std::slice::from_ref(&task), Sending::Again, again, i64::MAX).await.unwrap();
    sqlx::query(
        "WITH gone AS (DELETE FROM duetime.task RETURNING id, shard)
         INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, finished_at, drop_on)
         SELECT id, shard, 'orders', 'cancelled', now(), now(), '', 'x', now(), current_date + 1 FROM gone",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    let error = commit_during(&test, acquiring, sending, true).await.expect_err("its time is over");
    assert_eq!((error.fault(), error.effect), (Fault::Contention, Effect::None));
    assert_eq!((test.live().await, state_of(&test.pool, task.id).await.as_deref()), (0, Some("cancelled")));
}

#[tokio::test]
async fn a_sending_again_does_nothing_before_the_time_of_the_first_is_over() {
    let test = fixture::database().await;
    let task = new_task(fixture::fresh_id());
    let [_, again] = windows(fixture::now(&test.pool).await.plus(Duration::from_secs(3_600)));
    let error = test.database.task_submit_within(std::slice::from_ref(&task), Sending::Again, again, i64::MAX).await;
    assert_eq!(error.expect_err("it may still come").fault(), Fault::Contention);
    let error = test.database.task_put_within(&[task], &[HOLD], again, i64::MAX).await;
    assert_eq!(error.expect_err("it may still come").fault(), Fault::Contention);
    assert_eq!(test.live().await, 0);
}

#[tokio::test]
async fn a_sending_again_that_waits_for_the_first_sees_that_the_task_has_finished_meanwhile() {
    let test = fixture::database().await;
    test.be_patient(PoolKind::Write).await;
    let task = new_task(fixture::fresh_id());
    let [_, again] = windows(fixture::now(&test.pool).await);
    let mut first = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *first).await.unwrap();
    sqlx::query("INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type) VALUES ($1, 0, 'q', 'scheduled', now(), now(), '', '')")
        .bind(task.id.uuid())
        .execute(&mut *first)
        .await
        .unwrap();
    let (database, id) = (test.database.clone(), task.id);
    let sending =
        spawn_child(async move { database.task_submit_within(&[task], Sending::Again, again, i64::MAX).await });
    until_waiting(&test.pool, 1).await;
    // The delete and the archiving are in one transaction, so that the moment in between
    // lasts as long as the race needs.
    sqlx::query("DELETE FROM duetime.task").execute(&mut *first).await.unwrap();
    sqlx::query(
        "INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, finished_at, drop_on)
         VALUES ($1, 0, 'q', 'succeeded', now(), now(), '', 'x', now(), current_date + 1)",
    )
    .bind(id.uuid())
    .execute(&mut *first)
    .await
    .unwrap();
    sqlx::query("COMMIT").execute(&mut *first).await.unwrap();
    assert_eq!(sending.await.unwrap().expect_err("it looks afresh").fault(), Fault::Contention);
    assert_eq!((test.live().await, state_of(&test.pool, id).await.as_deref()), (0, Some("succeeded")));
}

fn keyed(payload: &str, version: i64, on_duplicate: OnDuplicate) -> NewTask {
    changed(new_task(fixture::fresh_id_of(ShardId::new(0))), |task| {
        task.content.payload = payload.as_bytes().to_vec();
        task.keyed = Some(BusinessKey { key: "k".to_owned(), version, on_duplicate });
    })
}

#[tokio::test]
async fn a_replace_that_executes_late_does_not_overwrite_what_came_after_it() {
    let test = fixture::database().await;
    test.database.task_put(&[keyed("1", 0, OnDuplicate::Keep)], &[HOLD]).await.unwrap();
    test.be_patient(PoolKind::Write).await;
    // Another session holds the lock of the key. The sender gives up and sends again.
    let mut holder = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *holder).await.unwrap();
    let late = keyed("2", 0, OnDuplicate::Replace);
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('orders 0 k', 0))").execute(&mut *holder).await.unwrap();
    // The sending has to come to the lock within its window, which closes too early if the machine stands still.
    let (sending, first, again) = loop {
        let [first, again] = windows(fixture::now(&test.pool).await.plus(Duration::from_secs(3)));
        let (database, sent) = (test.database.clone(), late.clone());
        let mut sending = spawn_child(async move { database.task_put_within(&[sent], &[HOLD], first, i64::MAX).await });
        tokio::select! {
            () = until_waiting(&test.pool, 1) => break (sending, first, again),
            ended = &mut sending => {
                assert_eq!(ended.unwrap().expect_err("its time is over").fault(), Fault::Contention);
            }
        }
    };
    while fixture::now(&test.pool).await <= first.until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    sqlx::query("UPDATE duetime.task SET payload = '3'").execute(&test.pool).await.unwrap();
    sqlx::query("COMMIT").execute(&mut *holder).await.unwrap();
    assert_eq!(sending.await.unwrap().expect_err("its time is over").fault(), Fault::Contention);
    let payload = async || -> Vec<u8> {
        sqlx::query_scalar("SELECT payload FROM duetime.task").fetch_one(&test.pool).await.unwrap()
    };
    assert_eq!(payload().await, b"3");
    test.database.task_put_within(&[late], &[HOLD], again, i64::MAX).await.unwrap();
    assert_eq!(payload().await, b"2");
}

/// The answer to its first sending was lost, and others saw what it wrote before it was sent again.
#[tokio::test]
async fn a_replacement_that_is_sent_again_writes_nothing_whatever_became_of_the_task() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let hold = Retention { window_ms: 0, ..HOLD };
    let put = async |task: &NewTask, window| {
        test.database.task_put_within(std::slice::from_ref(task), &[hold], window, i64::MAX).await.unwrap().remove(0)
    };
    for (mode, final_state) in [(OnDuplicate::Replace, TaskState::Succeeded), (OnDuplicate::Version, TaskState::Dead)] {
        let [old, sent, newer] = ["1", "2", "3"].map(|payload| keyed(payload, 0, mode));
        put(&old, Window::OPEN).await;
        let first = put(&sent, Window::OPEN).await;
        assert_eq!((first.outcome, first.id), (PutOutcome::Replaced, old.id));
        put(&newer, Window::OPEN).await;
        assert_eq!(put(&sent, Window::OPEN_AGAIN).await, first, "{mode:?}: replaced once more");
        let there = test.database.task_read(old.id).await.unwrap().unwrap();
        assert_eq!(there.payload.as_deref(), Some(&b"3"[..]), "{mode:?}");
        assert_eq!(claim(&test, &[old.id], &fences).await.deliveries.len(), 1);
        assert_eq!(put(&sent, Window::OPEN_AGAIN).await, first, "{mode:?}: in flight");
        test.database.task_finish(&[Finish { final_state, ..finish(old.id) }]).await.unwrap();
        assert_eq!(put(&sent, Window::OPEN_AGAIN).await, first, "{mode:?}: finished");
        assert_eq!(test.live().await, 0, "{mode:?}: there is no second task");
        test.database.replaced_forget(Duration::ZERO).await.unwrap();
        assert_eq!(put(&sent, Window::OPEN_AGAIN).await.outcome, PutOutcome::Created, "{mode:?}: forgotten");
        sqlx::query("DELETE FROM duetime.task").execute(&test.pool).await.unwrap();
    }
}

/// Otherwise a fifth of the notes is dead before a vacuum begins, and each search for old ones passes them.
#[tokio::test]
async fn tables_that_are_emptied_as_they_fill_are_vacuumed_alike() {
    let test = fixture::database().await;
    let alike = "SELECT relname::text FROM pg_class
                  WHERE relnamespace = 'duetime'::regnamespace AND relkind = 'r'
                    AND reloptions @> '{autovacuum_vacuum_scale_factor=0.02,autovacuum_vacuum_cost_delay=0}'
                  ORDER BY relname";
    let alike: Vec<String> = sqlx::query_scalar(alike).fetch_all(&test.pool).await.unwrap();
    assert_eq!(alike, ["inbox", "move_change", "received", "task"]);
}

#[tokio::test]
async fn a_replacement_that_is_sent_again_while_its_first_sending_commits_is_known_by_it() {
    let test = fixture::database().await;
    test.database.task_put(&[keyed("1", 0, OnDuplicate::Keep)], &[HOLD]).await.unwrap();
    test.be_patient(PoolKind::Write).await;
    let sent = keyed("2", 0, OnDuplicate::Replace);
    let mut first = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *first).await.unwrap();
    sqlx::query("SELECT duetime.task_put($1, 0, 'orders', now(), true, 3::smallint, '2', 'x', NULL, NULL, NULL, NULL, NULL, NULL, 'k', 0, 'replace', '1 d', 1, NULL, '-infinity')")
        .bind(sent.id.uuid())
        .execute(&mut *first)
        .await
        .unwrap();
    let database = test.database.clone();
    let sending = spawn_child(async move {
        database.task_put_within(&[sent], &[HOLD], Window::OPEN_AGAIN, i64::MAX).await.map(|puts| puts[0].outcome)
    });
    until_waiting(&test.pool, 1).await;
    // Stands for a later submission, which has its turn before the second sending.
    sqlx::query("UPDATE duetime.task SET payload = '3'").execute(&mut *first).await.unwrap();
    sqlx::query("COMMIT").execute(&mut *first).await.unwrap();
    assert_eq!(sending.await.unwrap().unwrap(), PutOutcome::Replaced);
    let payload: Vec<u8> = sqlx::query_scalar("SELECT payload FROM duetime.task").fetch_one(&test.pool).await.unwrap();
    assert_eq!(payload, b"3");
}

#[tokio::test]
async fn a_task_that_ends_a_second_time_keeps_its_first_end_and_holds_up_no_neighbour() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = super::submitted(&test, 3).await;
    claim(&test, &ids, &fences).await;
    let ends: Vec<Finish> = ids.iter().map(|id| finish(*id)).collect();
    test.database.task_finish(&ends[1..2]).await.unwrap();
    sqlx::query("INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, attempt, claim_epoch) VALUES ($1, 0, 'orders', 'dispatching', now(), now(), 'again', '', 1, 1)")
        .bind(ids[1].uuid())
        .execute(&test.pool)
        .await
        .unwrap();
    let finished = test.database.task_finish(&ends).await.unwrap();
    assert_eq!(finished.ids, [ids[0], ids[2]]);
    assert_eq!(test.live().await, 0, "and the second copy is gone");
    let kept: Vec<Vec<u8>> = sqlx::query_scalar("SELECT payload FROM duetime.archive WHERE id = $1")
        .bind(ids[1].uuid())
        .fetch_all(&test.pool)
        .await
        .unwrap();
    assert_eq!(kept, [b"{}"]);
}

#[tokio::test]
async fn a_replace_with_the_version_of_a_task_that_is_out_is_refused_and_its_neighbours_are_written() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let out = keyed("0", 0, OnDuplicate::Version);
    test.database.task_put(std::slice::from_ref(&out), &[HOLD]).await.unwrap();
    claim(&test, &[out.id], &fences).await;
    test.database.task_put(&[keyed("1", 1, OnDuplicate::Version)], &[HOLD]).await.unwrap();
    let mut neighbour = keyed("n", 0, OnDuplicate::Keep);
    neighbour.keyed.as_mut().unwrap().key = "other".to_owned();
    let puts = test.database.task_put(&[keyed("2", 0, OnDuplicate::Replace), neighbour], &[HOLD; 2]).await.unwrap();
    assert_eq!((puts[0].outcome, puts[0].id, puts[0].state), (PutOutcome::Refused, out.id, TaskState::Dispatching));
    assert_eq!(puts[1].outcome, PutOutcome::Created);
}

#[tokio::test]
async fn the_same_task_twice_in_one_batch_has_one_answer_for_both() {
    let test = fixture::database().await;
    let task = keyed("1", 0, OnDuplicate::Keep);
    let puts = test.database.task_put(&[task.clone(), task.clone()], &[HOLD; 2]).await.unwrap();
    assert_eq!((puts[0].id, puts[1].id, test.live().await), (task.id, task.id, 1));
}

/// Ends `task` as dead.
async fn die(test: &fixture::TestDatabase, task: &NewTask) {
    let fences = own(test, "a").await;
    test.database.task_put(std::slice::from_ref(task), &[HOLD]).await.unwrap();
    assert_eq!(claim(test, &[task.id], &fences).await.deliveries.len(), 1);
    test.database.task_finish(&[Finish { final_state: TaskState::Dead, ..finish(task.id) }]).await.unwrap();
}

#[tokio::test]
async fn a_dead_version_is_not_revived_beside_a_newer_one_alone_or_in_bulk() {
    let test = fixture::database().await;
    let (old, new) = (keyed("old", 1, OnDuplicate::Version), keyed("new", 2, OnDuplicate::Version));
    die(&test, &old).await;
    test.database.task_put(std::slice::from_ref(&new), &[HOLD]).await.unwrap();
    let revive = async || test.database.task_revive(old.id).await.expect_err("a newer version is there").is_key_taken();
    let bulk = async || -> Vec<uuid::Uuid> {
        let rows: Vec<(uuid::Uuid, chrono::DateTime<chrono::Utc>)> =
            sqlx::query_as(include_str!("../queries/bulk_revive.sql"))
                .bind(vec![day(&test, old.id).await])
                .bind(vec![old.id.uuid()])
                .fetch_all(&test.pool)
                .await
                .unwrap();
        rows.into_iter().map(|row| row.0).collect()
    };
    let seen = async || {
        let step =
            test.database.bulk_look(Walk::Failed { before: None }, &TaskFilter::default(), None, 10).await.unwrap();
        step.found.iter().map(|found| (found.seen.id, found.seen.key_taken)).collect::<Vec<_>>()
    };
    assert!(revive().await && bulk().await.is_empty(), "it is scheduled");
    assert_eq!(seen().await, [(old.id, true)]);
    let fences = own(&test, "a").await;
    claim(&test, &[new.id], &fences).await;
    test.database.task_deliver(&[super::deliver(new.id, Attempt::new(1), 1)]).await.unwrap();
    assert!(revive().await && bulk().await.is_empty(), "it is out");
    test.database.task_finish(&[Finish { was: &[TaskState::Delivered], ..finish(new.id) }]).await.unwrap();
    assert!(revive().await && bulk().await.is_empty(), "it has finished");
    assert_eq!(seen().await, [(old.id, true)]);
}

async fn day(test: &fixture::TestDatabase, id: TaskId) -> chrono::NaiveDate {
    sqlx::query_scalar("SELECT drop_on FROM duetime.archive WHERE id = $1")
        .bind(id.uuid())
        .fetch_one(&test.pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_revival_waits_for_a_newer_version_that_is_being_written() {
    let test = fixture::database().await;
    let old = keyed("old", 1, OnDuplicate::Version);
    die(&test, &old).await;
    test.be_patient(PoolKind::Write).await;
    let mut putting = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *putting).await.unwrap();
    sqlx::query("SELECT duetime.task_put(gen_random_uuid(), 0, 'orders', now(), true, 3::smallint, '', 'x', NULL, NULL, NULL, NULL, NULL, NULL, 'k', 2, 'version', '1 d', 1, NULL)")
        .execute(&mut *putting)
        .await
        .unwrap();
    let (database, id) = (test.database.clone(), old.id);
    let reviving = spawn_child(async move { database.task_revive(id).await });
    until_waiting(&test.pool, 1).await;
    sqlx::query("COMMIT").execute(&mut *putting).await.unwrap();
    assert!(reviving.await.unwrap().expect_err("it is out of date").is_key_taken());
    assert_eq!(test.live().await, 1);
}

/// Makes a task that waits for room.
async fn ready(test: &fixture::TestDatabase) -> NewTask {
    let waiting = new_task(fixture::fresh_id_of(ShardId::new(0)));
    test.database.task_submit(std::slice::from_ref(&waiting), Sending::First).await.unwrap();
    sqlx::query("UPDATE duetime.task SET state = 'ready'").execute(&test.pool).await.unwrap();
    waiting
}

/// Its node has counted again by then, as if the pick had never been sent.
#[tokio::test]
async fn a_pick_that_was_held_up_beyond_its_window_starts_nothing() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let waiting = ready(&test).await;
    let pick = Pick { counted: true, ..Pick::of(&waiting.queue, &fences, [0, 0, 5, 0, 0]) };
    let now = fixture::now(&test.pool).await;
    for (until, started) in [(now.minus(Duration::from_millis(1)), 0), (now.plus(Duration::from_secs(3_600)), 1)] {
        let window = Window { after: None, until };
        let (claimed, _) = test.database.task_pick_within(&pick, window).await.unwrap();
        assert_eq!((claimed.deliveries.len(), claimed.refused), (started, false), "{until:?}");
    }
}

/// A slow server would never start a task otherwise.
#[tokio::test]
async fn a_pick_that_begins_within_its_window_starts_tasks_however_long_it_takes() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let queue = ready(&test).await.queue.clone();
    test.be_patient(PoolKind::Fire).await;
    let mut holder = test.pool.acquire().await.unwrap();
    let mut started = 0;
    // A machine that stands still for some seconds misses one window or the other.
    for _ in 0..5 {
        sqlx::query("BEGIN").execute(&mut *holder).await.unwrap();
        sqlx::query("SELECT FROM duetime.shard WHERE id = 0 FOR UPDATE").execute(&mut *holder).await.unwrap();
        let until = fixture::now(&test.pool).await.plus(Duration::from_secs(3));
        let (database, queue, fences) = (test.database.clone(), queue.clone(), fences.clone());
        let picking = spawn_child(async move {
            let pick = Pick { counted: true, ..Pick::of(&queue, &fences, [0, 0, 5, 0, 0]) };
            database.task_pick_within(&pick, Window { after: None, until }).await
        });
        until_waiting(&test.pool, 1).await;
        while fixture::now(&test.pool).await <= until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        sqlx::query("COMMIT").execute(&mut *holder).await.unwrap();
        started = picking.await.unwrap().unwrap().0.deliveries.len();
        if started > 0 {
            break;
        }
    }
    assert_eq!(started, 1);
}
