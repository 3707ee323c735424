//! Cancels and changes of due times that share a statement.

use std::{sync::Arc, time::Duration};

use common::{
    ids::{Attempt, QueueName, ShardId, TaskId},
    task::{BusinessKey, NewTask, OnDuplicate, TaskState},
    time::UnixMicros,
    wire::ValidChange,
};
use sqlx::AssertSqlSafe;
use tokio::task::JoinHandle;

use super::{
    change::{CLAIM, keep, later, word},
    changed, claim, fixture,
    fixture::TestDatabase,
    new_task, own, state_of, submitted, until_waiting,
};
use crate::{
    store::{
        Error, Fault, PoolKind,
        change::{CANCEL_NEW, Cancelled, Guarded, Keep},
        put::{PutOutcome, Retention},
        rows::TaskRecord,
        shared_change::CANCEL_NEW as SHARED_CANCEL_NEW,
        submit::Sending,
    },
    supervise::spawn_child,
};

/// Nothing slow comes before the wait.
const GATHERED_WITHIN: Duration = Duration::from_secs(60);

fn cancelling(test: &TestDatabase, id: TaskId, keep: Keep) -> JoinHandle<Result<Guarded<Cancelled>, Error>> {
    let database = test.database.clone();
    spawn_child(async move { database.task_cancel(id, &keep).await })
}

fn moving(test: &TestDatabase, id: TaskId, due_at: UnixMicros) -> JoinHandle<Result<Guarded<TaskRecord>, Error>> {
    let (database, change) = (test.database.clone(), ValidChange { due_at: Some(due_at), ..ValidChange::default() });
    spawn_child(async move { database.task_change(id, &change).await })
}

/// Submits a task of shard 0 with the key `k`, due at once, which supersedes those of lower versions.
async fn keyed(test: &TestDatabase, partition_key: Option<&str>, version: i64) -> NewTask {
    let keyed = BusinessKey { key: "k".to_owned(), version, on_duplicate: OnDuplicate::Version };
    let task = changed(new_task(fixture::fresh_id_of(ShardId::new(0))), |task| {
        (task.keyed, task.partition_key) = (Some(keyed), partition_key.map(str::to_owned));
    });
    let hold = Retention { window_ms: keep().default_ms, keep_ms: keep().default_ms };
    let put = test.database.task_put(std::slice::from_ref(&task), &[hold]).await.unwrap().remove(0);
    assert_eq!(put.outcome, PutOutcome::Created);
    task
}

/// Cancels by the key of `task`. Returns the id of the task that was cancelled.
fn cancelling_by_key(test: &TestDatabase, task: &NewTask) -> JoinHandle<Option<TaskId>> {
    let (database, task) = (test.database.clone(), task.clone());
    spawn_child(async move {
        let key = task.full_key().expect("it has a key");
        database.task_cancel_key(key, &keep()).await.unwrap().map(|(id, _)| id)
    })
}

fn moving_by_key(test: &TestDatabase, task: &NewTask, due_at: UnixMicros) -> JoinHandle<Option<TaskRecord>> {
    let (database, task) = (test.database.clone(), task.clone());
    spawn_child(async move {
        let key = task.full_key().expect("it has a key");
        database.task_change_key(key, due_at).await.unwrap()
    })
}

/// Waits until so many cancels and changes of due times wait for their statements.
async fn until_gathered(test: &TestDatabase, cancels: usize, changes: usize) {
    let gathered = async {
        while (test.database.cancels.waiting(), test.database.due_times.waiting()) != (cancels, changes) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(GATHERED_WITHIN, gathered).await.expect("they wait for their statements");
}

/// Fails if the shared statements wait for rows that another transaction holds.
#[tokio::test]
async fn a_task_that_a_client_holds_delays_no_other_cancel_or_change() {
    let test = fixture::database().await;
    let ids = submitted(&test, 4).await;
    test.be_patient(PoolKind::Write).await;
    let mut client = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *client).await.unwrap();
    sqlx::query("SELECT FROM duetime.task WHERE id = ANY($1) FOR UPDATE")
        .bind([ids[0].uuid(), ids[1].uuid()])
        .execute(&mut *client)
        .await
        .unwrap();
    let (cancel, change) = (cancelling(&test, ids[0], keep()), moving(&test, ids[1], later(&test, 60).await));
    until_waiting(&test.pool, 2).await;
    assert_eq!(word(&cancelling(&test, ids[2], keep()).await.unwrap().unwrap()), "done");
    assert_eq!(word(&moving(&test, ids[3], later(&test, 60).await).await.unwrap().unwrap()), "done");
    assert!(!cancel.is_finished() && !change.is_finished(), "they still wait");
    sqlx::query("COMMIT").execute(&mut *client).await.unwrap();
    assert_eq!((word(&cancel.await.unwrap().unwrap()), word(&change.await.unwrap().unwrap())), ("done", "done"));
}

#[tokio::test]
async fn each_of_the_cancels_that_share_a_statement_gets_its_own_answer() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 3).await;
    claim(&test, &ids[1..2], &fences).await;
    let turn = test.database.cancels.hold().await;
    let asked = [ids[0], ids[0], ids[1], ids[2], fixture::fresh_id()];
    let cancels = asked.map(|id| cancelling(&test, id, keep()));
    until_gathered(&test, 5, 0).await;
    drop(turn);
    let mut words = Vec::new();
    for cancel in cancels {
        words.push(word(&cancel.await.unwrap().unwrap()));
    }
    words[..2].sort_unstable();
    assert_eq!(words, ["cancelled", "done", "dispatching", "done", "missing"]);
}

#[tokio::test]
async fn changes_that_share_a_statement_each_set_their_own_due_time_and_none_beyond_the_expiry() {
    let test = fixture::database().await;
    let mut tasks: Vec<_> = (0..3).map(|_| new_task(fixture::fresh_id())).collect();
    tasks[2].expires_at = Some(later(&test, 3_600).await);
    test.database.task_submit(&tasks, Sending::First).await.unwrap();
    let due_at = [later(&test, 600).await, later(&test, 1_200).await, later(&test, 7_200).await];
    let turn = test.database.due_times.hold().await;
    let asked = [(0, due_at[0]), (1, due_at[1]), (2, due_at[2]), (0, due_at[1])];
    let changes = asked.map(|(task, due_at)| moving(&test, tasks[task].id, due_at));
    until_gathered(&test, 0, 4).await;
    drop(turn);
    let mut answers = Vec::new();
    for change in changes {
        answers.push(match change.await.unwrap().unwrap() {
            Guarded::Done(task) => Some(task.due_at),
            Guarded::Refused(_) | Guarded::Missing => None,
        });
    }
    assert_eq!(answers, [Some(due_at[0]), Some(due_at[1]), None, Some(due_at[1])]);
    let stored = test.database.task_read(tasks[0].id).await.unwrap().unwrap();
    assert!([due_at[0], due_at[1]].contains(&stored.due_at));
}

#[tokio::test]
async fn a_cancel_that_the_database_refuses_keeps_no_other_from_being_done() {
    let test = fixture::database().await;
    let mut tasks: Vec<_> = (0..2).map(|_| new_task(fixture::fresh_id())).collect();
    tasks[0].queue = QueueName::new("long");
    test.database.task_submit(&tasks, Sending::First).await.unwrap();
    // The archive has no partition for that day.
    let kept_ms = 400 * keep().default_ms;
    let keep = Keep { others: Arc::new([(QueueName::new("long"), kept_ms)]), ..keep() };
    let turn = test.database.cancels.hold().await;
    let cancels = [0, 1].map(|task: usize| cancelling(&test, tasks[task].id, keep.clone()));
    until_gathered(&test, 2, 0).await;
    drop(turn);
    let [refused, done] = cancels;
    let refused = refused.await.unwrap().expect_err("there is no partition");
    assert_eq!((refused.sqlstate().as_deref(), refused.fault()), (Some("23514"), Fault::Outage), "{refused:?}");
    assert_eq!(word(&done.await.unwrap().unwrap()), "done");
    assert_eq!(state_of(&test.pool, tasks[0].id).await.as_deref(), Some("scheduled"));
    assert_eq!(state_of(&test.pool, tasks[1].id).await.as_deref(), Some("cancelled"));
}

#[tokio::test]
async fn requests_by_id_and_by_key_share_a_statement_and_of_two_for_one_task_the_first_is_done() {
    let test = fixture::database().await;
    let (alone, of_partition) = (keyed(&test, None, 1).await, keyed(&test, Some("p"), 1).await);
    let (plain, unknown) = (submitted(&test, 1).await[0], new_task(alone.id));
    let unknown = changed(unknown, |task| (task.queue, task.keyed) = (QueueName::new("other"), alone.keyed.clone()));
    let turn = test.database.cancels.hold().await;
    let by_key = cancelling_by_key(&test, &alone);
    until_gathered(&test, 1, 0).await;
    let by_id = cancelling(&test, alone.id, keep());
    until_gathered(&test, 2, 0).await;
    let first = cancelling(&test, of_partition.id, keep());
    until_gathered(&test, 3, 0).await;
    let others = [cancelling_by_key(&test, &of_partition), cancelling_by_key(&test, &unknown)];
    let of_no_key = cancelling(&test, plain, keep());
    until_gathered(&test, 6, 0).await;
    drop(turn);
    assert_eq!(by_key.await.unwrap(), Some(alone.id));
    assert_eq!(word(&by_id.await.unwrap().unwrap()), "cancelled");
    assert_eq!(word(&first.await.unwrap().unwrap()), "done");
    for other in others {
        assert_eq!(other.await.unwrap(), None);
    }
    assert_eq!(word(&of_no_key.await.unwrap().unwrap()), "done");
}

#[tokio::test]
async fn changes_by_key_each_set_their_own_due_time_and_none_beyond_the_expiry() {
    let test = fixture::database().await;
    let (alone, of_partition) = (keyed(&test, None, 1).await, keyed(&test, Some("p"), 1).await);
    let expiring = keyed(&test, Some("q"), 1).await;
    sqlx::query("UPDATE duetime.task SET expires_at = now() + interval '1 h' WHERE id = $1")
        .bind(expiring.id.uuid())
        .execute(&test.pool)
        .await
        .unwrap();
    let due_at = [later(&test, 600).await, later(&test, 1_200).await, later(&test, 7_200).await];
    let turn = test.database.due_times.hold().await;
    let asked = [(&alone, due_at[0]), (&of_partition, due_at[1]), (&expiring, due_at[2])];
    let changes = asked.map(|(task, due_at)| moving_by_key(&test, task, due_at));
    until_gathered(&test, 0, 3).await;
    drop(turn);
    let mut answers = Vec::new();
    for change in changes {
        answers.push(change.await.unwrap().map(|task| (task.id, task.due_at)));
    }
    assert_eq!(answers, [Some((alone.id, due_at[0])), Some((of_partition.id, due_at[1])), None]);
}

/// Brings a task into `state` that is `scheduled` or `dispatching`, as a claim or a retry would.
async fn bring(test: &TestDatabase, id: TaskId, state: TaskState) {
    let set = "UPDATE duetime.task SET state = $2::duetime.task_state, attempt = 1, claim_epoch = 1 WHERE id = $1";
    sqlx::query(set).bind(id.uuid()).bind(state.text()).execute(&test.pool).await.unwrap();
}

#[tokio::test]
async fn a_key_means_its_newest_live_task_also_if_only_an_older_one_fits() {
    let test = fixture::database().await;
    let old = keyed(&test, None, 1).await;
    bring(&test, old.id, TaskState::Dispatching).await;
    let new = keyed(&test, None, 2).await;
    bring(&test, new.id, TaskState::Dispatching).await;
    bring(&test, old.id, TaskState::Scheduled).await;
    assert_eq!(cancelling_by_key(&test, &new).await.unwrap(), None);
    assert_eq!(moving_by_key(&test, &new, later(&test, 60).await).await.unwrap().map(|task| task.id), None);
    bring(&test, new.id, TaskState::Scheduled).await;
    let moved = moving_by_key(&test, &new, later(&test, 60).await).await.unwrap();
    assert_eq!(moved.map(|task| task.id), Some(new.id));
    assert_eq!(cancelling_by_key(&test, &new).await.unwrap(), Some(new.id));
    assert_eq!(state_of(&test.pool, old.id).await.as_deref(), Some("scheduled"));
}

#[tokio::test]
async fn no_key_is_looked_up_in_rows_that_a_move_left_over() {
    let test = fixture::database().await;
    let task = keyed(&test, None, 1).await;
    test.database.elsewhere.store(Arc::new(vec![0]));
    assert_eq!(cancelling_by_key(&test, &task).await.unwrap(), None);
    assert_eq!(moving_by_key(&test, &task, later(&test, 60).await).await.unwrap().map(|task| task.id), None);
    test.database.elsewhere.store(Arc::default());
    assert_eq!(cancelling_by_key(&test, &task).await.unwrap(), Some(task.id));
}

/// The statement with a wait for an advisory lock between the look-up of the keys and the lock of the rows.
fn halted(statement: &str) -> String {
    let wait = "FROM (SELECT asked.*, pg_advisory_xact_lock_shared(7) FROM asked OFFSET 0) AS asked\n";
    let halted = statement.replace("FROM asked\n", wait);
    assert_ne!(halted, statement, "the statement is written as this test expects");
    halted
}

/// Has a statement cancel by the key of `task`. It waits as [`halted`] does, and meanwhile `event` happens. Returns how
/// many tasks it cancelled.
async fn cancelled_across(test: &TestDatabase, task: &NewTask, statement: &str, event: impl AsyncFnOnce()) -> usize {
    let mut gate = test.pool.acquire().await.unwrap();
    sqlx::query("SELECT pg_advisory_lock(7)").execute(&mut *gate).await.unwrap();
    let cancel = sqlx::query(AssertSqlSafe(halted(statement)))
        .bind(Vec::<uuid::Uuid>::new())
        .bind(vec![task.queue.as_str().to_owned()])
        .bind(Vec::<String>::new())
        .bind(vec!["k"])
        .bind(Vec::<i32>::new())
        .bind(keep().default_ms)
        .bind(Vec::<String>::new())
        .bind(Vec::<i64>::new());
    let pool = test.pool.clone();
    let cancelling = spawn_child(async move { cancel.fetch_all(&pool).await.unwrap().len() });
    until_waiting(&test.pool, 1).await;
    event().await;
    sqlx::query("SELECT pg_advisory_unlock(7)").execute(&mut *gate).await.unwrap();
    cancelling.await.unwrap()
}

const CANCEL_SHARED: &str = include_str!("../queries/task_cancel_shared.sql");

/// Without its guard the statement takes a task that was claimed after the look-up of its key.
#[tokio::test]
async fn a_task_that_is_claimed_after_the_look_up_of_its_key_is_not_cancelled() {
    let unguarded = CANCEL_SHARED.replace("t.state::text IN ('waiting', 'scheduled', 'ready')", "true");
    for (statement, taken) in [(CANCEL_SHARED, 0), (unguarded.as_str(), 1)] {
        let test = fixture::database().await;
        let task = keyed(&test, None, 1).await;
        let claim = async || {
            let claim = sqlx::query(CLAIM).bind(task.id.uuid());
            assert_eq!(claim.execute(&test.pool).await.unwrap().rows_affected(), 1);
        };
        assert_eq!(cancelled_across(&test, &task, statement, claim).await, taken);
    }
}

#[tokio::test]
async fn a_task_that_is_superseded_after_the_look_up_of_its_key_is_left_and_so_is_the_newer_one() {
    let test = fixture::database().await;
    let old = keyed(&test, None, 1).await;
    let mut new = None;
    let supersede = async || new = Some(keyed(&test, None, 2).await.id);
    assert_eq!(cancelled_across(&test, &old, CANCEL_SHARED, supersede).await, 0);
    assert_eq!(state_of(&test.pool, old.id).await.as_deref(), Some("superseded"));
    assert_eq!(state_of(&test.pool, new.expect("it came")).await.as_deref(), Some("scheduled"));
}

#[tokio::test]
async fn a_cancel_by_key_passes_over_a_task_that_another_transaction_holds() {
    let test = fixture::database().await;
    let task = keyed(&test, None, 1).await;
    let lock = test.lock_row(task.id).await;
    assert_eq!(cancelling_by_key(&test, &task).await.unwrap(), None);
    assert_eq!(moving_by_key(&test, &task, later(&test, 60).await).await.unwrap().map(|task| task.id), None);
    lock.release().await;
    assert_eq!(cancelling_by_key(&test, &task).await.unwrap(), Some(task.id));
}

/// Notes an end of a task that still lives, on each day for which a cancel may keep it now.
async fn end(test: &TestDatabase, id: TaskId) {
    sqlx::query(
        "INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, finished_at, drop_on)
         SELECT id, shard, queue, 'succeeded', wake_at, due_at, payload, content_type, now(), (now() AT TIME ZONE 'UTC')::date + days
           FROM duetime.task, generate_series(2, 3) AS days
          WHERE id = $1",
    )
    .bind(id.uuid())
    .execute(&test.pool)
    .await
    .unwrap();
}

/// The states of a task in both tables.
async fn states(test: &TestDatabase, id: TaskId) -> Vec<String> {
    let read = "SELECT state::text FROM duetime.task WHERE id = $1
                UNION ALL SELECT state::text FROM duetime.archive WHERE id = $1";
    sqlx::query_scalar(read).bind(id.uuid()).fetch_all(&test.pool).await.unwrap()
}

#[tokio::test]
async fn a_cancel_leaves_an_earlier_end_of_its_task_alone_and_cancels_its_neighbours() {
    let test = fixture::database().await;
    let ids = submitted(&test, 4).await;
    for id in &ids[1..] {
        end(&test, *id).await;
    }
    // The first try fails at such an end, and changes nothing.
    let (texts, kept_ms) = (Vec::<String>::new(), Vec::<i64>::new());
    let shared = sqlx::query(*SHARED_CANCEL_NEW)
        .bind([ids[0].uuid(), ids[1].uuid()])
        .bind(&texts)
        .bind(&texts)
        .bind(&texts)
        .bind(Vec::<i32>::new());
    for first in [shared, sqlx::query(*CANCEL_NEW).bind(ids[1].uuid())] {
        let first = first.bind(keep().default_ms).bind(&texts).bind(&kept_ms);
        let failed = first.execute(&test.pool).await.expect_err("an end exists");
        assert!(failed.as_database_error().is_some_and(|answer| answer.is_unique_violation()), "{failed:?}");
    }
    assert_eq!(states(&test, ids[0]).await, ["scheduled"]);
    assert_eq!(states(&test, ids[1]).await, ["scheduled", "succeeded", "succeeded"]);

    let turn = test.database.cancels.hold().await;
    let cancels = [0, 1].map(|task: usize| cancelling(&test, ids[task], keep()));
    until_gathered(&test, 2, 0).await;
    drop(turn);
    for cancel in cancels {
        assert_eq!(word(&cancel.await.unwrap().unwrap()), "done");
    }
    let alone = test.database.task_cancel_once(ids[2], &keep()).await.unwrap().expect("it was scheduled");
    assert_eq!(alone, Cancelled { queue: QueueName::new("orders"), attempt: Attempt::NONE });
    assert_eq!(test.database.bulk_cancel(&ids[3..], &keep()).await.unwrap().len(), 1);
    assert_eq!(states(&test, ids[0]).await, ["cancelled"]);
    for id in &ids[1..] {
        assert_eq!(states(&test, *id).await, ["succeeded", "succeeded"]);
    }
}
