//! Actions on many tasks: walks that meet each task once, and batches that pass over rows that other transactions
//! hold. `conformance` checks that a batch does the same to a task in each state as a request for that task alone.

use std::{collections::BTreeMap, time::Duration};

use common::{
    ids::{Attempt, QueueName, ShardId, TaskId},
    task::{
        BusinessKey, NewTask, OnDuplicate, TaskState,
        bulk::{BulkAction, BulkCandidate, Target},
    },
    time::UnixMicros,
    wire::TaskFilter,
};
use sqlx::AssertSqlSafe;

use super::{claim, fixture, fixture::TestDatabase, lapse, new_task, own, state_of, submitted, until_waiting};
use crate::{
    store::{
        PoolKind,
        bulk::{BulkChange, FoundTask, Walk},
        change::{Guarded, Keep},
        settle::{Finish, Report},
        submit::Sending,
    },
    supervise::spawn_child,
};

const DAY_MS: i64 = 86_400_000;
const LIVE: Walk = Walk::Live { moved: None };
const FAILED: Walk = Walk::Failed { before: None };

fn keep() -> Keep {
    Keep { default_ms: DAY_MS, others: std::sync::Arc::default() }
}

/// Submits tasks to three queues, a minute apart. The first two of each are overdue.
async fn filled(test: &TestDatabase) -> Vec<NewTask> {
    let now = fixture::now(&test.pool).await;
    let mut tasks = Vec::new();
    for queue in ["a", "b", "c"] {
        for nth in 0..10 {
            let mut task = new_task(fixture::fresh_id());
            (task.queue, task.due_now) = (QueueName::new(queue), false);
            task.due_at = now.shifted((nth - 2) * 60_000 + 1);
            tasks.push(task);
        }
    }
    test.database.task_submit(&tasks, Sending::First).await.unwrap();
    tasks
}

/// Applies the action to all tasks that the filter finds, `most` at a time. Returns
/// how often the walk met each task.
async fn act_on_all(test: &TestDatabase, act: BulkAction, filter: &TaskFilter, most: usize) -> BTreeMap<TaskId, usize> {
    let (mut met, mut place) = (BTreeMap::new(), None);
    loop {
        let step =
            test.database.bulk_look(Walk::of(act, UnixMicros::LAST), filter, place.as_ref(), most).await.unwrap();
        assert!(step.found.len() <= most);
        step.found.iter().for_each(|found| *met.entry(found.seen.id).or_default() += 1);
        let done = test.database.bulk_act(act, &step.found, &keep()).await.unwrap();
        assert_eq!(done.len(), step.found.len(), "no statement holds one of them");
        place = step.next;
        assert!(met.len() < 1_000, "it comes to an end");
        if place.is_none() {
            return met;
        }
    }
}

async fn due_at(test: &TestDatabase, id: TaskId) -> UnixMicros {
    test.database.task_read(id).await.unwrap().expect("it is there").due_at
}

async fn found(test: &TestDatabase, walk: Walk, filter: &TaskFilter) -> Vec<FoundTask> {
    test.database.bulk_look(walk, filter, None, 1_000).await.unwrap().found
}

/// A dead task with this key.
async fn dead(test: &TestDatabase, key: Option<&str>) -> TaskId {
    let fences = own(test, "a").await;
    let mut task = new_task(fixture::fresh_id_of(ShardId::new(0)));
    task.keyed = key.map(|key| BusinessKey { key: key.to_owned(), version: 0, on_duplicate: OnDuplicate::Keep });
    test.database.task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    claim(test, &[task.id], &fences).await;
    let finish = Finish {
        id: task.id,
        attempt: Attempt::new(1),
        final_state: TaskState::Dead,
        was: &[TaskState::Dispatching],
        keep_ms: DAY_MS,
        report: Report::default(),
        entry: Some(r#"{"attempt":1,"reason":"failed","error":"no route to host"}"#.to_owned()),
        at_deadline: false,
    };
    assert_eq!(test.database.task_finish(&[finish]).await.unwrap().ids, [task.id]);
    task.id
}

#[tokio::test]
async fn whatever_is_done_along_the_way_each_task_is_met_once() {
    for most in [1, 3, 7, 100] {
        let overdue_too = [
            BulkAction::Move(Target::At(UnixMicros::new(4_000_000_000_000_000))),
            BulkAction::Move(Target::By { shift_ms: 90_000 }),
            BulkAction::Move(Target::By { shift_ms: 86_400_000 }),
            BulkAction::Cancel,
        ];
        for act in overdue_too {
            let test = fixture::database().await;
            let tasks = filled(&test).await;
            let met = act_on_all(&test, act, &TaskFilter::default(), most).await;
            assert_eq!((met.len(), met.values().max()), (tasks.len(), Some(&1)), "{act:?}, {most} at a time");
        }
        // A due task counts as moved already, however far into the past it was to go.
        let to_now = [
            BulkAction::Run,
            BulkAction::Move(Target::At(UnixMicros::new(5))),
            BulkAction::Move(Target::By { shift_ms: -90_000 }),
            BulkAction::Move(Target::By { shift_ms: -86_400_000 }),
        ];
        for act in to_now {
            let test = fixture::database().await;
            let (tasks, now) = (filled(&test).await, fixture::now(&test.pool).await);
            let met = act_on_all(&test, act, &TaskFilter::default(), most).await;
            let waiting = tasks.iter().filter(|task| task.due_at > now.shifted(1_000)).count();
            assert_eq!((met.len(), met.values().max()), (waiting, Some(&1)), "{act:?}, {most} at a time");
        }
    }
}

#[tokio::test]
async fn a_shift_counts_from_where_each_task_is_and_a_move_leads_all_to_one_moment() {
    let test = fixture::database().await;
    let tasks = filled(&test).await;
    let of_a = TaskFilter { queue: Some(QueueName::new("a")), ..TaskFilter::default() };
    act_on_all(&test, BulkAction::Move(Target::By { shift_ms: 600_000 }), &of_a, 3).await;
    let moment = tasks[0].due_at.shifted(DAY_MS);
    let of_b =
        TaskFilter { queue: Some(QueueName::new("b")), due_after: Some(tasks[14].due_at), ..TaskFilter::default() };
    act_on_all(&test, BulkAction::Move(Target::At(moment)), &of_b, 3).await;
    for (nth, task) in tasks.iter().enumerate() {
        let expected = match nth {
            0..10 => task.due_at.shifted(600_000),
            14..20 => moment,
            _ => task.due_at,
        };
        assert_eq!(due_at(&test, task.id).await, expected, "task {nth}");
    }
    let far = BulkAction::Move(Target::By { shift_ms: i64::MAX / 2_000 });
    act_on_all(&test, far, &of_a, 3).await;
    assert_eq!(due_at(&test, tasks[0].id).await, UnixMicros::LAST, "no later than can be written");
}

#[tokio::test]
async fn everything_a_filter_says_must_apply_and_errors_are_searched() {
    let test = fixture::database().await;
    let tasks = filled(&test).await;
    let (dead_one, other) = (dead(&test, None).await, dead(&test, None).await);
    sqlx::query("UPDATE duetime.archive SET status_msg = 'timed out' WHERE id = $1")
        .bind(other.uuid())
        .execute(&test.pool)
        .await
        .unwrap();
    let filter = TaskFilter {
        queue: Some(QueueName::new("b")),
        state: Some(TaskState::Scheduled),
        due_after: Some(tasks[12].due_at),
        due_before: Some(tasks[15].due_at),
        ..TaskFilter::default()
    };
    for walk in [LIVE, Walk::LiveBack] {
        let mut ids: Vec<_> = found(&test, walk, &filter).await.iter().map(|found| found.seen.id).collect();
        ids.sort_unstable();
        let mut expected: Vec<_> = tasks[12..15].iter().map(|task| task.id).collect();
        expected.sort_unstable();
        assert_eq!(ids, expected, "{walk:?}: from the one moment, before the other");
    }
    for (text, expected) in [("no route", vec![dead_one]), ("timed out", vec![other]), ("disk", vec![])] {
        let filter = TaskFilter { error: Some(text.to_owned()), state: Some(TaskState::Dead), ..TaskFilter::default() };
        for walk in [FAILED, Walk::Finished] {
            let ids: Vec<_> = found(&test, walk, &filter).await.iter().map(|found| found.seen.id).collect();
            assert_eq!(ids, expected, "{walk:?}: {text}");
        }
    }
}

/// A claim that another node holds open: one statement that is not committed yet.
const CLAIM: &str =
    "UPDATE duetime.task SET state = 'dispatching', attempt = attempt + 1, claim_epoch = 1, claimed_at = now()
                      WHERE id = $1 AND state = 'scheduled'";

#[tokio::test]
async fn a_task_that_is_being_claimed_is_passed_over_and_holds_nothing_up() {
    for act in [BulkAction::Cancel, BulkAction::Run, BulkAction::Move(Target::By { shift_ms: 1 })] {
        let test = fixture::database().await;
        let ids = submitted(&test, 3).await;
        let seen = found(&test, LIVE, &TaskFilter::default()).await;
        let mut claiming = test.pool.acquire().await.unwrap();
        sqlx::query("BEGIN").execute(&mut *claiming).await.unwrap();
        sqlx::query(CLAIM).bind(ids[1].uuid()).execute(&mut *claiming).await.unwrap();
        // The claim commits only after this batch, so the batch does not wait for the claim.
        let mut done: Vec<_> =
            test.database.bulk_act(act, &seen, &keep()).await.unwrap().iter().map(BulkChange::id).collect();
        sqlx::query("COMMIT").execute(&mut *claiming).await.unwrap();
        done.sort_unstable();
        let mut others = vec![ids[0], ids[2]];
        others.sort_unstable();
        assert_eq!(done, others, "{act:?}");
        assert_eq!(state_of(&test.pool, ids[1]).await.as_deref(), Some("dispatching"));
        assert!(test.database.bulk_act(act, &seen[..], &keep()).await.unwrap().iter().all(|done| done.id() != ids[1]));
    }
}

/// Guarantee G3. The same statement without its guard takes a task that is in flight.
#[tokio::test]
async fn without_its_guard_a_batch_would_cancel_what_may_have_been_published() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let id = submitted(&test, 1).await[0];
    claim(&test, &[id], &fences).await;
    let guarded = include_str!("../queries/bulk_cancel.sql");
    let unguarded = guarded.replace("t.state::text IN ('waiting', 'scheduled', 'ready')", "true");
    for (statement, taken) in [(guarded.to_owned(), 0), (unguarded, 1)] {
        let cancel = sqlx::query(AssertSqlSafe(statement))
            .bind(vec![id.uuid()])
            .bind(DAY_MS)
            .bind(Vec::<String>::new())
            .bind(Vec::<i64>::new());
        assert_eq!(cancel.fetch_all(&test.pool).await.unwrap().len(), taken);
    }
}

#[tokio::test]
async fn a_batch_moves_nothing_past_its_expiry() {
    let test = fixture::database().await;
    let mut task = new_task(fixture::fresh_id());
    (task.due_now, task.due_at) = (false, fixture::now(&test.pool).await.plus(Duration::from_secs(60)));
    task.expires_at = Some(task.due_at.shifted(1_000));
    test.database.task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    let seen = found(&test, LIVE, &TaskFilter::default()).await;
    for (shift_ms, moved) in [(1_000, 0), (999, 1)] {
        let act = BulkAction::Move(Target::By { shift_ms });
        assert_eq!(test.database.bulk_act(act, &seen, &keep()).await.unwrap().len(), moved, "by {shift_ms} ms");
    }
}

#[tokio::test]
async fn a_batch_runs_nothing_whose_expiry_has_passed() {
    let test = fixture::database().await;
    let ids = submitted(&test, 2).await;
    let seen = found(&test, LIVE, &TaskFilter::default()).await;
    lapse(&test.pool, ids[0]).await;
    let run = test.database.bulk_act(BulkAction::Run, &seen, &keep()).await.unwrap();
    assert_eq!(run.iter().map(BulkChange::id).collect::<Vec<_>>(), ids[1..]);
}

#[tokio::test]
async fn of_dead_tasks_with_one_key_one_lives_again_and_none_beside_a_newer_task() {
    let test = fixture::database().await;
    let (first, second, plain) = (dead(&test, Some("k")).await, dead(&test, Some("k")).await, dead(&test, None).await);
    let taken = dead(&test, Some("taken")).await;
    let mut newer = new_task(fixture::fresh_id());
    newer.keyed = Some(BusinessKey { key: "taken".to_owned(), version: 0, on_duplicate: OnDuplicate::Keep });
    test.database.task_submit(&[newer], Sending::First).await.unwrap();
    let seen = found(&test, FAILED, &TaskFilter::default()).await;
    let known: Vec<_> = seen.iter().filter(|found| found.seen.key_taken).map(|found| found.seen.id).collect();
    assert_eq!(known, [first, taken], "of two the newer one may live again");
    let done: Vec<_> =
        test.database.bulk_act(BulkAction::Retry, &seen, &keep()).await.unwrap().iter().map(BulkChange::id).collect();
    assert_eq!(done.len(), 2, "{done:?}");
    assert!(done.contains(&plain) && done.contains(&second), "of two the newer one");
    assert_eq!(state_of(&test.pool, first).await.as_deref(), Some("dead"));
    // A request for the task alone is refused for the same reason, and the task stays dead.
    for id in [first, taken] {
        assert!(test.database.task_revive(id).await.expect_err("its key is taken").is_key_taken());
        assert_eq!(state_of(&test.pool, id).await.as_deref(), Some("dead"));
    }
}

/// The walk meets the first to have been due first, in a step before that of the others.
#[tokio::test]
async fn of_dead_tasks_with_one_key_a_walk_in_small_steps_brings_back_the_last() {
    let test = fixture::database().await;
    let last = [dead(&test, Some("k")).await, dead(&test, Some("k")).await, dead(&test, Some("k")).await][2];
    let (mut fit, mut place) = (Vec::new(), None);
    loop {
        let step = test.database.bulk_look(FAILED, &TaskFilter::default(), place.as_ref(), 1).await.unwrap();
        let free: Vec<_> = step.found.into_iter().filter(|found| !found.seen.key_taken).collect();
        let done = test.database.bulk_act(BulkAction::Retry, &free, &keep()).await.unwrap();
        fit.extend(done.iter().map(BulkChange::id));
        place = step.next;
        if place.is_none() {
            break;
        }
    }
    assert_eq!(fit, [last]);
}

#[tokio::test]
async fn a_key_that_is_taken_while_dead_tasks_are_revived_loses_none_of_them() {
    let test = fixture::database().await;
    let (keyed, plain) = (dead(&test, Some("k")).await, dead(&test, None).await);
    let seen = found(&test, FAILED, &TaskFilter::default()).await;
    test.be_patient(PoolKind::Read).await;
    let mut taking = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *taking).await.unwrap();
    sqlx::query(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key)
         VALUES ($1, 0, 'orders', 'scheduled', now(), now(), '{}', 'application/json', 'k')",
    )
    .bind(fixture::fresh_id().uuid())
    .execute(&mut *taking)
    .await
    .unwrap();
    let database = test.database.clone();
    let reviving = spawn_child(async move { database.bulk_act(BulkAction::Retry, &seen, &keep()).await.unwrap() });
    until_waiting(&test.pool, 1).await;
    sqlx::query("COMMIT").execute(&mut *taking).await.unwrap();
    assert_eq!(reviving.await.unwrap(), [], "all are left for one request each");
    assert!(test.database.task_revive(keyed).await.expect_err("its key is taken").is_key_taken());
    assert!(matches!(test.database.task_revive(plain).await.unwrap(), Guarded::Done(_)));
}

/// Otherwise a walk over tasks that fail again at once would not end.
#[tokio::test]
async fn what_has_failed_again_since_the_walk_began_is_not_met_again() {
    let test = fixture::database().await;
    let before = dead(&test, None).await;
    let tasks = filled(&test).await;
    let began_at = fixture::now(&test.pool).await;
    let again = dead(&test, None).await;
    let ids = async |walk| -> Vec<TaskId> {
        found(&test, walk, &TaskFilter::default()).await.iter().map(|found| found.seen.id).collect()
    };
    assert_eq!(ids(FAILED).await, [before, again]);
    assert_eq!(ids(Walk::of(BulkAction::Retry, began_at)).await, [before]);
    let claim = "UPDATE duetime.task SET claimed_at = $2 WHERE id = $1";
    let (early, late) = (&tasks[8], &tasks[9]);
    for (task, claimed_at) in [(early, began_at.shifted(-1)), (late, began_at.shifted(1))] {
        sqlx::query(claim).bind(task.id.uuid()).bind(claimed_at.to_utc()).execute(&test.pool).await.unwrap();
    }
    let run = ids(Walk::of(BulkAction::Run, began_at)).await;
    assert!(run.contains(&early.id) && !run.contains(&late.id), "the second failed after a run of this walk");
    assert!(ids(LIVE).await.contains(&late.id), "a cancellation meets it");
    let later = Walk::of(BulkAction::Move(Target::At(began_at.shifted(3_600_000))), began_at);
    assert!(ids(later).await.contains(&late.id), "so does a move to a later time: it has moved none that is claimed");
}

#[tokio::test]
async fn what_is_seen_is_what_is_there() {
    let test = fixture::database().await;
    let id = dead(&test, None).await;
    let dead = found(&test, Walk::Finished, &TaskFilter::default()).await[0];
    let due_at = due_at(&test, id).await;
    assert_eq!(dead.seen, BulkCandidate { id, state: TaskState::Dead, due_at, expires_at: None, key_taken: false });
    assert!(dead.drop_on.is_some() && dead.bytes > 2, "{dead:?}");
    let whole = test.database.export_read(Walk::Finished, &[dead]).await.unwrap().remove(0);
    assert_eq!((whole.record.id, whole.record.history.len()), (id, 1));
}

#[tokio::test]
async fn a_walk_steps_over_more_rows_than_it_looks_at_whose_columns_are_null() {
    let test = fixture::database().await;
    sqlx::raw_sql(super::list::LONG_AND_BARE).execute(&test.pool).await.unwrap();
    let some = |text: &str| Some(text.to_owned());
    let filters = [
        TaskFilter { partition_key: some("p"), ..TaskFilter::default() },
        TaskFilter { key: some("k"), ..TaskFilter::default() },
        TaskFilter { error: some("rare"), ..TaskFilter::default() },
    ];
    for filter in filters {
        for walk in [LIVE, Walk::of(BulkAction::Run, UnixMicros::LAST), Walk::LiveBack, FAILED, Walk::Finished] {
            let (mut found, mut place) = (0, None);
            loop {
                let step = test.database.bulk_look(walk, &filter, place.as_ref(), 500).await.unwrap();
                found += step.found.len();
                place = step.next;
                if place.is_none() {
                    break;
                }
            }
            assert_eq!(found, 1, "{walk:?} {filter:?}");
        }
    }
}

/// A live and a dead task with 1,000 failed attempts. Their errors of 1,984 characters differ, and are compressed well.
const LONG_HISTORIES: &str = "
WITH long AS MATERIALIZED (
    SELECT jsonb_agg(jsonb_build_object('attempt', n, 'reason', 'failed', 'claimed_at', NULL, 'ended_at', now(),
                                        'error', repeat(md5(n::text), 62))) AS history
      FROM generate_series(1, 1000) AS n
), live AS (
    INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, history)
    SELECT gen_random_uuid(), 0, 'long', 'scheduled', now(), now(), '', 'text/plain', history FROM long
)
INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, history, finished_at, drop_on)
SELECT gen_random_uuid(), 0, 'long', 'dead', now(), now(), '', 'text/plain', history, now(), (now() AT TIME ZONE 'UTC')::date + 1
  FROM long";

/// The size is never too small, so an export reads no more at once than it may.
#[tokio::test]
async fn a_long_history_is_measured_without_reading_it() {
    let test = fixture::database().await;
    sqlx::raw_sql(LONG_HISTORIES).execute(&test.pool).await.unwrap();
    let sizes = "SELECT pg_column_size(history)::bigint, octet_length(history::text)::bigint FROM duetime.task";
    let (stored, whole): (i64, i64) = sqlx::query_as(sizes).fetch_one(&test.pool).await.unwrap();
    let (stored, whole) = (u64::try_from(stored).unwrap(), u64::try_from(whole).unwrap());
    assert!(whole > 2_000_000 && whole > 4 * stored, "compressed: {stored} bytes of {whole}");
    for walk in [LIVE, FAILED, Walk::Finished] {
        let task = found(&test, walk, &TaskFilter::default()).await[0];
        assert!(task.bytes > whole && task.bytes <= 255 * stored, "{walk:?}: {} bytes for {whole}", task.bytes);
    }
}

/// Makes each look at a history take more than a millisecond, so that a full look takes longer than a statement may. A
/// sequence counts them, with those of statements that ran out of time.
pub(super) const SLOW_HISTORIES: &str = "
ALTER TABLE duetime.task RENAME TO plain_task;
ALTER TABLE duetime.plain_task RENAME COLUMN history TO quick_history;
ALTER TABLE duetime.archive RENAME TO plain_archive;
ALTER TABLE duetime.plain_archive RENAME COLUMN history TO quick_history;
CREATE SEQUENCE duetime.looks;
CREATE FUNCTION duetime.slowly(history jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS
    $$BEGIN PERFORM nextval('duetime.looks'), pg_sleep(0.0015); RETURN history; END$$;
CREATE VIEW duetime.task AS SELECT *, duetime.slowly(quick_history) AS history FROM duetime.plain_task;
CREATE VIEW duetime.archive AS SELECT *, duetime.slowly(quick_history) AS history FROM duetime.plain_archive";

/// The next step begins with as few rows: a bulk request or an export takes many steps.
#[tokio::test]
async fn a_walk_that_runs_out_of_time_goes_on_in_smaller_steps() {
    let test = fixture::database().await;
    sqlx::raw_sql(super::list::LONG_AND_BARE).execute(&test.pool).await.unwrap();
    sqlx::raw_sql(SLOW_HISTORIES).execute(&test.pool).await.unwrap();
    let filter =
        TaskFilter { queue: Some(QueueName::new("long")), state: Some(TaskState::Ready), ..TaskFilter::default() };
    let looks =
        async || -> i64 { sqlx::query_scalar("SELECT nextval('duetime.looks')").fetch_one(&test.pool).await.unwrap() };
    let step = test.database.bulk_look(LIVE, &filter, None, 500).await.unwrap();
    assert!(step.found.is_empty());
    let place = step.next.expect("there are more");
    assert!(place.after.is_some_and(|edge| edge.due_at > UnixMicros::FIRST), "it has come on");
    let before = looks().await;
    let step = test.database.bulk_look(LIVE, &filter, Some(&place), 500).await.unwrap();
    assert!(step.next.is_some_and(|next| next.after != place.after), "it has come on again");
    let rows = looks().await - before;
    // A step of 2,000 rows, and a smaller one where a busy machine takes too long for it.
    assert!(rows < 4_000, "{rows} rows: no try with all of them came first");
}
