//! Tasks with a business key: the outcome of a second task with the key, and of two at the same moment.

use std::time::Duration;

use common::{
    ids::{Attempt, ShardId, TaskId},
    task::{BusinessKey, Dependency, NewTask, OnDuplicate, TaskState},
};

use super::{
    LONG, changed, claim,
    fixture::{self, TestDatabase, database},
    lapse, new_task, own, state_of, until_waiting,
};
use crate::{
    coordination::tests::soon,
    store::{
        PoolKind,
        change::Keep,
        lane::Pick,
        put::{Put, PutOutcome, Retention},
        settle::{Finish, Report, Retry},
    },
    supervise::spawn_child,
};

const DAY_MS: i64 = 86_400_000;
const HOLD: Retention = Retention { window_ms: DAY_MS, keep_ms: DAY_MS };

/// A task of shard 0 with the key `k`.
fn keyed(on_duplicate: OnDuplicate, version: i64) -> NewTask {
    with_key("k", on_duplicate, version)
}

fn with_key(key: &str, on_duplicate: OnDuplicate, version: i64) -> NewTask {
    let keyed = BusinessKey { key: key.to_owned(), version, on_duplicate };
    changed(new_task(fixture::fresh_id_of(ShardId::new(0))), |task| task.keyed = Some(keyed))
}

async fn put(test: &TestDatabase, task: &NewTask) -> Put {
    put_held(test, task, HOLD).await
}

async fn put_held(test: &TestDatabase, task: &NewTask, hold: Retention) -> Put {
    test.database.task_put(std::slice::from_ref(task), &[hold]).await.unwrap().remove(0)
}

async fn end(test: &TestDatabase, id: TaskId, final_state: TaskState) {
    let (attempt, was) = (Attempt::new(1), &[TaskState::Dispatching]);
    let report = Report::default();
    let finish = Finish { id, attempt, final_state, was, keep_ms: DAY_MS, report, entry: None, at_deadline: false };
    assert_eq!(test.database.task_finish(&[finish]).await.unwrap().ids, [id]);
}

async fn set(test: &TestDatabase, id: TaskId, state: TaskState) {
    sqlx::query("UPDATE duetime.task SET state = $2::duetime.task_state WHERE id = $1")
        .bind(id.uuid())
        .bind(state.text())
        .execute(&test.pool)
        .await
        .unwrap();
}

/// Brings a task that was just written into `state`.
async fn bring(test: &TestDatabase, id: TaskId, state: TaskState) {
    let keep = Keep { default_ms: DAY_MS, others: std::sync::Arc::default() };
    match state {
        TaskState::Scheduled => {}
        TaskState::Waiting | TaskState::Ready => set(test, id, state).await,
        TaskState::Cancelled => drop(test.database.task_cancel(id, &keep).await.unwrap()),
        _ => {
            let fences = own(test, "a").await;
            assert_eq!(claim(test, &[id], &fences).await.deliveries.len(), 1);
            if state.is_final() {
                return end(test, id, state).await;
            }
            set(test, id, state).await;
        }
    }
    assert_eq!(state_of(&test.pool, id).await.as_deref(), Some(state.text()));
}

/// The expected outcome of a second task with the key, while the first (version 5) is in `state`.
fn expected(state: TaskState, mode: OnDuplicate, version: i64) -> PutOutcome {
    use OnDuplicate::{Keep, Reject, Replace, Version};
    use PutOutcome::{Created, Existing, Refused, Replaced, Stale};
    let unclaimed = matches!(state, TaskState::Waiting | TaskState::Scheduled | TaskState::Ready);
    let holds = !matches!(state, TaskState::Cancelled | TaskState::Superseded | TaskState::Expired);
    match mode {
        Version if version < 5 => Stale,
        Version if version > 5 => Created,
        Version if unclaimed => Replaced,
        Version if holds && state != TaskState::Dead => Existing,
        Version => Created,
        _ if !holds => Created,
        Keep => Existing,
        Reject => Refused,
        Replace if unclaimed => Replaced,
        Replace => Refused,
    }
}

#[tokio::test]
async fn a_second_task_with_the_key_is_treated_as_its_request_says_in_every_state_of_the_first() {
    let test = database().await;
    for state in TaskState::ALL {
        for mode in OnDuplicate::ALL {
            for version in [4, 5, 6] {
                let case = format!("{state} {mode:?} {version}");
                let keyed = |mode, version| with_key(&case, mode, version);
                let first = keyed(OnDuplicate::Keep, 5);
                assert_eq!(put(&test, &first).await.outcome, PutOutcome::Created);
                bring(&test, first.id, state).await;
                let mut second = keyed(mode, version);
                second.content.payload = b"\"second\"".to_vec();
                let answer = put(&test, &second).await;
                let expected = expected(state, mode, version);
                assert_eq!(answer.outcome, expected, "{case}");
                let created = expected == PutOutcome::Created;
                assert_eq!(answer.id, if created { second.id } else { first.id }, "{case}");
                let there = test.database.task_read(answer.id).await.unwrap().unwrap();
                let is_second = matches!(expected, PutOutcome::Created | PutOutcome::Replaced);
                assert_eq!(there.payload.as_deref() == Some(b"\"second\""), is_second, "{case}");
                assert_eq!((there.state, there.version), (answer.state, answer.version), "{case}");
                let first_now = state_of(&test.pool, first.id).await.unwrap();
                let unclaimed = matches!(state, TaskState::Waiting | TaskState::Scheduled | TaskState::Ready);
                assert_eq!(
                    first_now == "superseded",
                    state == TaskState::Superseded || (created && unclaimed),
                    "{case}"
                );
                let again = put(&test, &second).await;
                assert!(
                    !created || (again.outcome, again.id) == (PutOutcome::Created, second.id),
                    "{case}: sent again"
                );
            }
        }
    }
}

#[tokio::test]
async fn tasks_of_one_batch_with_one_key_are_applied_in_its_order_whatever_their_versions() {
    let test = database().await;
    let batch = [keyed(OnDuplicate::Replace, 2), keyed(OnDuplicate::Replace, 1)];
    let puts = test.database.task_put(&batch, &[HOLD, HOLD]).await.unwrap();
    assert_eq!(puts.iter().map(|put| put.outcome).collect::<Vec<_>>(), [PutOutcome::Created, PutOutcome::Replaced]);
    assert_eq!((puts[1].id, puts[1].version), (batch[0].id, 1));
}

#[tokio::test]
async fn a_finished_task_holds_its_key_no_longer_than_the_window() {
    let test = database().await;
    let (first, second) = (keyed(OnDuplicate::Keep, 0), keyed(OnDuplicate::Keep, 0));
    put(&test, &first).await;
    bring(&test, first.id, TaskState::Succeeded).await;
    assert_eq!(put(&test, &second).await.outcome, PutOutcome::Existing);
    let after = put_held(&test, &second, Retention { window_ms: 0, ..HOLD }).await;
    assert_eq!((after.outcome, after.id), (PutOutcome::Created, second.id));
}

/// The sweep of expired tasks may come later.
#[tokio::test]
async fn a_task_whose_expiry_has_passed_holds_its_key_no_longer() {
    let test = database().await;
    for state in [TaskState::Waiting, TaskState::Scheduled, TaskState::Ready] {
        for mode in OnDuplicate::ALL {
            let case = format!("{state} {mode:?}");
            let first = with_key(&case, OnDuplicate::Keep, 5);
            put(&test, &first).await;
            bring(&test, first.id, state).await;
            lapse(&test.pool, first.id).await;
            let again = put(&test, &first).await;
            assert_eq!((again.outcome, again.id), (PutOutcome::Created, first.id), "{case}: sent again");
            let second = with_key(&case, mode, 5);
            let answer = put(&test, &second).await;
            assert_eq!((answer.outcome, answer.id, answer.superseded), (PutOutcome::Created, second.id, 0), "{case}");
            assert_eq!(state_of(&test.pool, first.id).await.as_deref(), Some("expired"), "{case}");
            lapse(&test.pool, second.id).await;
            let stale = put(&test, &with_key(&case, OnDuplicate::Version, 4)).await;
            assert_eq!((stale.outcome, stale.state), (PutOutcome::Stale, TaskState::Expired), "{case}: in its order");
        }
    }
}

#[tokio::test]
async fn a_key_is_of_its_queue_and_partition() {
    let test = database().await;
    let here = keyed(OnDuplicate::Reject, 0);
    let partition = changed(keyed(OnDuplicate::Reject, 0), |task| task.partition_key = Some("p".into()));
    let queue = changed(keyed(OnDuplicate::Reject, 0), |task| task.queue = common::ids::QueueName::new("mails"));
    for task in [&here, &partition, &queue] {
        assert_eq!(put(&test, task).await.outcome, PutOutcome::Created);
        assert_eq!(
            put(&test, &NewTask { id: fixture::fresh_id_of(ShardId::new(0)), ..task.clone() }).await.outcome,
            PutOutcome::Refused
        );
        let (queue, partition_key) = (&task.queue, task.partition_key.as_deref());
        assert_eq!(test.database.task_find(queue, partition_key, "k").await.unwrap(), Some(task.id));
        let read = test.database.task_read_key(queue, partition_key, "k").await.unwrap();
        assert_eq!(read.map(|read| (read.id, read.queue)), Some((task.id, queue.clone())));
    }
}

#[tokio::test]
async fn several_with_one_key_in_a_batch_are_decided_one_after_the_other() {
    let test = database().await;
    let batch: Vec<NewTask> = (0..5).map(|version| keyed(OnDuplicate::Version, version)).collect();
    let answers = test.database.task_put(&batch, &[HOLD; 5]).await.unwrap();
    assert!(answers.iter().all(|answer| answer.outcome == PutOutcome::Created));
    assert_eq!(answers.iter().map(|answer| answer.superseded).sum::<u64>(), 4);
    for (task, state) in batch.iter().zip(["superseded", "superseded", "superseded", "superseded", "scheduled"]) {
        assert_eq!(state_of(&test.pool, task.id).await.as_deref(), Some(state));
    }
}

#[tokio::test]
async fn an_older_version_that_is_out_gets_no_further_attempt() {
    let test = database().await;
    let old = keyed(OnDuplicate::Version, 1);
    put(&test, &old).await;
    bring(&test, old.id, TaskState::Dispatching).await;
    assert_eq!(put(&test, &keyed(OnDuplicate::Version, 2)).await.outcome, PutOutcome::Created);
    let there = test.database.task_read(old.id).await.unwrap().unwrap();
    assert_eq!((there.state, there.max_attempts), (TaskState::Dispatching, Some(1)));
    // A failure that was judged before the newer version came.
    assert_eq!(fail(&test, old.id).await, [], "it is not tried again");
}

/// The first attempt of a task fails, and the next one is due.
async fn fail(test: &TestDatabase, id: TaskId) -> Vec<TaskId> {
    let (attempt, retry_at) = (Attempt::new(1), fixture::now(&test.pool).await);
    let entry = r#"{"attempt":1}"#.to_owned();
    test.database.task_retry(&[Retry { id, attempt, retry_at, entry, at_deadline: false, lower: false }]).await.unwrap()
}

/// The consumer of the first message may report on it after the task has another content.
#[tokio::test]
async fn a_success_with_the_content_that_was_replaced_does_not_end_the_task() {
    let test = database().await;
    let old = keyed(OnDuplicate::Keep, 1);
    put(&test, &old).await;
    bring(&test, old.id, TaskState::Dispatching).await;
    assert_eq!(fail(&test, old.id).await, [old.id]);
    assert_eq!(put(&test, &keyed(OnDuplicate::Replace, 1)).await.outcome, PutOutcome::Replaced);
    let standing = test.database.task_standing(&[old.id]).await.unwrap().remove(0);
    assert_eq!((standing.attempt, standing.attempts_base), (Attempt::new(1), Attempt::new(1)), "a budget of its own");
    let (attempt, final_state, was) = (Attempt::new(1), TaskState::Succeeded, &[TaskState::Scheduled]);
    let report = Report::default();
    let late =
        Finish { id: old.id, attempt, final_state, was, keep_ms: DAY_MS, report, entry: None, at_deadline: false };
    let ended = test.database.task_finish(&[late]).await.unwrap().ids;
    assert_eq!(ended, [], "the success is of other content");
    assert_eq!(state_of(&test.pool, old.id).await.as_deref(), Some("scheduled"));
}

/// Otherwise its lane would wait for it, and it for a task of its lane.
#[tokio::test]
async fn a_started_task_of_an_ordered_lane_that_is_replaced_by_one_that_waits_leaves_its_place() {
    let test = database().await;
    let of_lane = |task: NewTask| changed(task, |task| task.partition_key = Some("p".to_owned()));
    let old = of_lane(keyed(OnDuplicate::Keep, 1));
    put(&test, &old).await;
    let in_order = async || -> Option<bool> {
        let read = sqlx::query_scalar("SELECT in_order FROM duetime.task WHERE id = $1");
        read.bind(old.id.uuid()).fetch_one(&test.pool).await.unwrap()
    };
    sqlx::raw_sql("UPDATE duetime.task SET in_order = true").execute(&test.pool).await.unwrap();
    let other = Dependency { queue: old.queue.clone(), key: "other".to_owned() };
    let waits = changed(of_lane(keyed(OnDuplicate::Replace, 1)), |task| task.depends_on = vec![other]);
    assert_eq!(put(&test, &waits).await.outcome, PutOutcome::Replaced);
    assert_eq!((in_order().await, state_of(&test.pool, old.id).await.as_deref()), (None, Some("waiting")));
}

/// Otherwise its partition key would wait until then.
#[tokio::test]
async fn a_started_task_of_an_ordered_lane_that_is_replaced_by_one_due_later_lets_the_next_one_start() {
    let test = database().await;
    let fences = own(&test, "a").await;
    let of_lane = |task: NewTask| changed(task, |task| task.partition_key = Some("p".to_owned()));
    let (old, next) = (of_lane(keyed(OnDuplicate::Keep, 1)), of_lane(with_key("next", OnDuplicate::Keep, 1)));
    for task in [&old, &next] {
        put(&test, task).await;
    }
    let started = "UPDATE duetime.task SET state = 'ready', in_order = CASE WHEN key = 'k' THEN true END";
    sqlx::raw_sql(started).execute(&test.pool).await.unwrap();
    let in_an_hour = fixture::now(&test.pool).await.plus(Duration::from_secs(3_600));
    let later = changed(of_lane(keyed(OnDuplicate::Replace, 1)), |task| {
        (task.due_now, task.due_at) = (false, in_an_hour);
    });
    assert_eq!(put(&test, &later).await.outcome, PutOutcome::Replaced);
    let pick = Pick { ordered: true, ..Pick::of(&old.queue, &fences, [0, 0, 5, 0, 0]) };
    let (claimed, _) = test.database.task_pick_open(&pick).await.unwrap();
    assert_eq!(claimed.deliveries.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [next.id]);
}

const LOCK: &str = "PERFORM pg_advisory_xact_lock";

/// Submits two tasks with one key, the second while the first is not committed. `locked: false` removes the lock.
/// Returns the second's outcome, and whether it names the first.
async fn second_during_first(locked: bool) -> (PutOutcome, bool) {
    let test = database().await;
    if !locked {
        let source: String = sqlx::query_scalar("SELECT pg_get_functiondef('duetime.task_put'::regproc)")
            .fetch_one(&test.pool)
            .await
            .unwrap();
        let without: String =
            source.lines().filter(|line| !line.contains(LOCK)).map(|line| format!("{line}\n")).collect();
        assert_eq!(without.lines().count() + 1, source.lines().count(), "the lock is written as this test expects");
        sqlx::query(sqlx::AssertSqlSafe(without)).execute(&test.pool).await.unwrap();
    }
    test.be_patient(PoolKind::Write).await;
    let (first, second) = (keyed(OnDuplicate::Keep, 0), keyed(OnDuplicate::Keep, 0));
    let mut connection = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *connection).await.unwrap();
    sqlx::query("SELECT duetime.task_put($1, 0, 'orders', now(), true, 3::smallint, '', 'x', NULL, NULL, NULL, NULL, NULL, NULL, 'k', 0, 'keep', '1 day', 1, NULL)")
        .bind(first.id.uuid())
        .execute(&mut *connection)
        .await
        .unwrap();
    let database = test.database.clone();
    let waiting = spawn_child(async move { database.task_put(&[second], &[HOLD]).await });
    until_waiting(&test.pool, 1).await;
    sqlx::query("COMMIT").execute(&mut *connection).await.unwrap();
    let answer = waiting.await.unwrap().unwrap().remove(0);
    (answer.outcome, answer.id == first.id)
}

#[tokio::test]
async fn the_second_of_two_at_one_moment_is_answered_with_the_first() {
    assert_eq!(second_during_first(true).await, (PutOutcome::Existing, true));
}

#[tokio::test]
async fn without_the_lock_the_second_of_two_at_one_moment_would_be_busy() {
    assert_eq!(second_during_first(false).await, (PutOutcome::Busy, false));
}

#[tokio::test]
async fn a_task_that_is_claimed_while_it_is_being_replaced_is_left_alone() {
    let test = database().await;
    let (first, second) = (keyed(OnDuplicate::Keep, 0), keyed(OnDuplicate::Replace, 0));
    put(&test, &first).await;
    let mut claiming = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *claiming).await.unwrap();
    sqlx::query("UPDATE duetime.task SET state = 'dispatching', attempt = 1, claim_epoch = 1 WHERE id = $1")
        .bind(first.id.uuid())
        .execute(&mut *claiming)
        .await
        .unwrap();
    let database = test.database.clone();
    let replacing = spawn_child(async move { sent_until_answered(&database, second).await });
    until_asleep(&test.pool).await;
    sqlx::query("COMMIT").execute(&mut *claiming).await.unwrap();
    let answer = replacing.await.unwrap();
    assert_eq!((answer.outcome, answer.state), (PutOutcome::Refused, TaskState::Dispatching));
}

/// Sends a task again until no other transaction is in its way.
async fn sent_until_answered(database: &crate::store::Database, task: NewTask) -> Put {
    let answered = async {
        loop {
            let put = database.task_put(std::slice::from_ref(&task), &[HOLD]).await.unwrap().remove(0);
            if put.outcome != PutOutcome::Busy {
                return put;
            }
        }
    };
    soon("the other transaction is over", answered).await
}

/// Waits until a session sleeps between two tries for a row, which is how `task_put` waits.
async fn until_asleep(pool: &sqlx::PgPool) {
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    let sleeps = async {
        while sqlx::query_scalar::<_, i64>(asleep).fetch_one(pool).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, sleeps).await.expect("a session waits for a row");
}

#[tokio::test]
async fn a_key_whose_task_another_transaction_holds_is_busy_and_its_neighbours_go_in() {
    for on_duplicate in [OnDuplicate::Replace, OnDuplicate::Version] {
        let test = database().await;
        let first = keyed(OnDuplicate::Keep, 0);
        put(&test, &first).await;
        let mut application = test.pool.acquire().await.unwrap();
        sqlx::query("BEGIN").execute(&mut *application).await.unwrap();
        sqlx::query("SELECT duetime.cancel($1)").bind(first.id.uuid()).execute(&mut *application).await.unwrap();
        let version = i64::from(on_duplicate == OnDuplicate::Version);
        let batch = [keyed(on_duplicate, version), with_key("neighbour", on_duplicate, version)];
        let puts = test.database.task_put(&batch, &[HOLD, HOLD]).await.unwrap();
        assert_eq!(puts.iter().map(|put| put.outcome).collect::<Vec<_>>(), [PutOutcome::Busy, PutOutcome::Created]);
        sqlx::query("ROLLBACK").execute(&mut *application).await.unwrap();
        let again = put(&test, &batch[0]).await;
        assert!(again.is_written(), "{again:?}");
    }
}

#[tokio::test]
async fn a_submission_does_not_overtake_a_busy_one_of_its_batch() {
    let test = database().await;
    let first = keyed(OnDuplicate::Keep, 0);
    put(&test, &first).await;
    let lock = test.lock_row(first.id).await;
    let mut batch = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *batch).await.unwrap();
    let replace = "SELECT outcome FROM duetime.task_put(gen_random_uuid(), 0, $1, now(), false, 3::smallint, '', 'x', NULL, NULL, NULL, NULL, NULL, NULL,
                                                        'k', 0, 'replace', interval '1 hour', 1000, NULL)";
    let mut replaced = async || -> String {
        sqlx::query_scalar(replace).bind(first.queue.as_str()).fetch_one(&mut *batch).await.unwrap()
    };
    assert_eq!(replaced().await, "busy");
    lock.release().await;
    assert_eq!(replaced().await, "busy", "the other transaction has ended, but the earlier submission waits");
    sqlx::query("COMMIT").execute(&mut *batch).await.unwrap();
    assert!(put(&test, &keyed(OnDuplicate::Replace, 0)).await.is_written(), "another batch");
}

#[tokio::test]
async fn what_comes_from_another_inbox_while_its_key_is_busy_comes_again() {
    let test = database().await;
    let first = keyed(OnDuplicate::Keep, 0);
    put(&test, &first).await;
    let lock = test.lock_row(first.id).await;
    let second = [keyed(OnDuplicate::Replace, 0)];
    let east = common::ids::DatabaseName::new("east");
    let busy = test.database.task_collect_keyed(&second, &[HOLD], Some(&east)).await.unwrap().remove(0);
    assert_eq!(busy.put.outcome, PutOutcome::Busy);
    lock.release().await;
    let taken = test.database.task_collect_keyed(&second, &[HOLD], Some(&east)).await.unwrap().remove(0);
    assert_eq!((taken.put.outcome, taken.first), (PutOutcome::Replaced, true));
}

/// Writes 100,000 finished tasks with the key `often`, which ended as `state` that long `ago`. Each has a version
/// of its own, or all have the same one.
async fn used_often(test: &TestDatabase, state: &str, version: &str, ago: &str) {
    let fill = format!(
        "INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, key, version, created_at, finished_at, drop_on)
         SELECT gen_random_uuid(), 0, 'orders', '{state}', now(), now(), '', 'x', 'often', {version},
                now() - interval '{ago}' - (100000 - g) * interval '1 ms', now() - interval '{ago}' - (100000 - g) * interval '1 ms',
                current_date + 2 + g % 10
           FROM generate_series(1, 100000) AS g;
         ANALYZE duetime.archive"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(fill)).execute(&test.pool).await.unwrap();
}

/// Puts a task with the key `often`. Returns the outcome and the number of finished tasks that the statement read.
async fn put_often(test: &TestDatabase, on_duplicate: &str, version: i64) -> (String, i64) {
    let mut transaction = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *transaction).await.unwrap();
    let outcome: String = sqlx::query_scalar(
        "SELECT outcome FROM duetime.task_put(gen_random_uuid(), 0, 'orders', now(), false, 3::smallint, '', 'x', NULL, NULL, NULL, NULL, NULL, NULL,
                                              'often', $2, $1, interval '1 hour', 1000, NULL)",
    )
    .bind(on_duplicate)
    .bind(version)
    .fetch_one(&mut *transaction)
    .await
    .unwrap();
    let read =
        "SELECT coalesce(sum(coalesce(idx_tup_fetch, 0) + seq_tup_read), 0)::bigint FROM pg_stat_xact_user_tables
                 WHERE schemaname = 'duetime' AND relname LIKE 'archive%'";
    let read = sqlx::query_scalar(read).fetch_one(&mut *transaction).await.unwrap();
    sqlx::query("ROLLBACK").execute(&mut *transaction).await.unwrap();
    (outcome, read)
}

#[tokio::test]
async fn a_key_that_was_used_a_hundred_thousand_times_is_decided_about_as_one_that_was_used_once() {
    for (state, version, ago, [keep, by_version]) in [
        // The deduplication window of these tasks is over.
        ("succeeded", "0", "2 hours", ["created", "created"]),
        ("succeeded", "g", "2 hours", ["created", "created"]),
        // These tasks do not hold the key, but they count in the order of versions.
        ("cancelled", "0", "1 minute", ["created", "created"]),
        ("superseded", "g", "1 minute", ["created", "stale"]),
        // All of these tasks hold the key.
        ("succeeded", "g", "1 minute", ["existing", "stale"]),
    ] {
        let test = database().await;
        used_often(&test, state, version, ago).await;
        for (on_duplicate, expected) in [("keep", keep), ("version", by_version)] {
            let (outcome, read) = put_often(&test, on_duplicate, 5).await;
            let case = format!("{on_duplicate} after {state} {ago} ago, version {version}");
            assert_eq!(outcome, expected, "{case}");
            assert!(read <= 1_000, "{read} finished tasks were read: {case}");
        }
    }
}
