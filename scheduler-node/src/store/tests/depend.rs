//! Tasks that wait for others: in every order of arrival, and with other writes at the same moment.

use common::{
    ids::{Attempt, QueueName, ShardId, TaskId},
    task::{
        BusinessKey, Dependency, NewTask, OnDuplicate, TaskState,
        bulk::{BulkAction, Target},
    },
    time::UnixMicros,
    wire::{TaskFilter, ValidChange},
};
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use super::{
    change::keep,
    changed, claim,
    fixture::{self, TestDatabase, database},
    new_task, own, state_of, until_waiting,
};
use crate::{
    store::{
        PoolKind,
        bulk::Walk,
        depend::{DEPENDENTS_AT_ONCE, Succeeded},
        put::{PutOutcome, Retention},
        settle::{Finish, Finished, Report},
    },
    supervise::spawn_child,
};

pub(super) const DAY_MS: i64 = 86_400_000;
const HOLD: Retention = Retention { window_ms: DAY_MS, keep_ms: DAY_MS };

fn dependency(key: &str) -> Dependency {
    Dependency { queue: QueueName::new("orders"), key: key.to_owned() }
}

/// A task of partition `p` with this key (`-`: without one), which waits for `others`.
pub(super) fn task(key: &str, others: &[&str]) -> NewTask {
    let keyed = BusinessKey { key: key.to_owned(), version: 0, on_duplicate: OnDuplicate::Version };
    changed(new_task(fixture::fresh_id_of(ShardId::new(0))), |task| {
        task.keyed = (key != "-").then_some(keyed);
        task.partition_key = Some("p".to_owned());
        task.depends_on = others.iter().map(|key| dependency(key)).collect();
    })
}

pub(super) async fn put(test: &TestDatabase, task: &NewTask) -> PutOutcome {
    test.database.task_put(std::slice::from_ref(task), &[HOLD]).await.unwrap().remove(0).outcome
}

pub(super) async fn written(test: &TestDatabase, key: &str, others: &[&str]) -> TaskId {
    let task = task(key, others);
    assert_eq!(put(test, &task).await, PutOutcome::Created);
    task.id
}

pub(super) async fn look(test: &TestDatabase, id: TaskId) -> bool {
    let released = test.database.task_release(&[id], &[]).await.unwrap().released;
    released.iter().any(|task| task.id == id)
}

pub(super) async fn end(test: &TestDatabase, id: TaskId, final_state: TaskState) -> Finished {
    let fences = own(test, "a").await;
    assert_eq!(claim(test, &[id], &fences).await.deliveries.len(), 1);
    let attempt = test.database.task_read(id).await.unwrap().unwrap().attempt;
    finish(test, id, attempt, final_state).await
}

pub(super) async fn finish(test: &TestDatabase, id: TaskId, attempt: Attempt, final_state: TaskState) -> Finished {
    let (was, report) = (&[TaskState::Dispatching], Report::default());
    let finish = Finish { id, attempt, final_state, was, keep_ms: DAY_MS, report, entry: None, at_deadline: false };
    test.database.task_finish(&[finish]).await.unwrap()
}

async fn state(test: &TestDatabase, id: TaskId) -> String {
    state_of(&test.pool, id).await.unwrap()
}

#[tokio::test]
async fn a_task_is_let_go_by_the_last_success_it_waits_for() {
    let test = database().await;
    let [one, other] = [written(&test, "a", &[]).await, written(&test, "b", &[]).await];
    let (keyed, plain) = (written(&test, "c", &["a", "b"]).await, written(&test, "-", &["b", "a"]).await);
    let of_one = end(&test, one, TaskState::Succeeded).await.succeeded;
    assert_eq!(of_one, [Succeeded { name: "orders a".into(), partition_key: Some("p".into()), shard: one.shard() }]);
    assert!(test.database.task_release(&[], &of_one).await.unwrap().released.is_empty());
    assert_eq!([state(&test, keyed).await, state(&test, plain).await], ["waiting", "waiting"]);
    let of_other = end(&test, other, TaskState::Succeeded).await.succeeded;
    let mut released: Vec<TaskId> =
        test.database.task_release(&[], &of_other).await.unwrap().released.into_iter().map(|task| task.id).collect();
    released.sort_unstable();
    let mut both = [keyed, plain];
    both.sort_unstable();
    assert_eq!(released, both);
    assert_eq!([state(&test, keyed).await, state(&test, plain).await], ["scheduled", "scheduled"]);
}

#[tokio::test]
async fn what_comes_after_the_success_finds_it_and_what_comes_before_the_task_itself_waits_for_it() {
    let test = database().await;
    let first = written(&test, "-", &["later"]).await;
    assert!(!look(&test, first).await, "no task has this key");
    let dependencies = test.database.task_dependencies(first).await.unwrap();
    assert_eq!((dependencies[0].key.as_str(), dependencies[0].state), ("later", None));
    let later = written(&test, "later", &[]).await;
    assert!(!look(&test, first).await);
    end(&test, later, TaskState::Succeeded).await;
    assert!(look(&test, first).await);
    let after = written(&test, "-", &["later"]).await;
    assert!(look(&test, after).await);
}

#[tokio::test]
async fn a_dependency_that_failed_is_told_and_the_newest_task_with_its_key_counts() {
    let test = database().await;
    let dead = written(&test, "a", &[]).await;
    let waiting = written(&test, "-", &["a"]).await;
    assert!(end(&test, dead, TaskState::Dead).await.succeeded.is_empty());
    assert!(!look(&test, waiting).await);
    assert_eq!(test.database.task_dependencies(waiting).await.unwrap()[0].state, Some(TaskState::Dead));
    test.database.task_revive(dead).await.unwrap();
    assert!(!look(&test, waiting).await);
    end(&test, dead, TaskState::Succeeded).await;
    let newer = changed(task("a", &[]), |task| task.keyed.as_mut().unwrap().version = 1);
    assert_eq!(put(&test, &newer).await, PutOutcome::Created);
    assert!(!look(&test, waiting).await, "a newer version has not succeeded yet");
    end(&test, newer.id, TaskState::Succeeded).await;
    assert!(look(&test, waiting).await);
    assert!(test.database.task_dependencies(waiting).await.unwrap().is_empty(), "it waits no longer");
}

#[tokio::test]
async fn a_dependency_that_succeeded_counts_although_it_is_dropped_after_its_time() {
    let test = database().await;
    let [first, second] = [written(&test, "a", &[]).await, written(&test, "b", &[]).await];
    let waiting = written(&test, "-", &["a", "b"]).await;
    let succeeded = end(&test, first, TaskState::Succeeded).await.succeeded;
    assert!(test.database.task_release(&[], &succeeded).await.unwrap().released.is_empty());
    sqlx::query("DELETE FROM duetime.archive").execute(&test.pool).await.unwrap();
    let dependencies = test.database.task_dependencies(waiting).await.unwrap();
    let told: Vec<_> = dependencies.iter().map(|one| (one.key.as_str(), one.state)).collect();
    assert_eq!(told, [("a", Some(TaskState::Succeeded)), ("b", Some(TaskState::Scheduled))]);
    let succeeded = end(&test, second, TaskState::Succeeded).await.succeeded;
    assert_eq!(test.database.task_release(&[], &succeeded).await.unwrap().released.len(), 1);
}

#[tokio::test]
async fn a_success_that_was_noted_and_dropped_counts_when_the_task_is_submitted_again() {
    let test = database().await;
    let [first, second] = [written(&test, "a", &[]).await, written(&test, "b", &[]).await];
    let waiting = written(&test, "c", &["a", "b"]).await;
    let succeeded = end(&test, first, TaskState::Succeeded).await.succeeded;
    assert!(test.database.task_release(&[], &succeeded).await.unwrap().released.is_empty());
    sqlx::query("DELETE FROM duetime.archive").execute(&test.pool).await.unwrap();
    assert_eq!(put(&test, &task("c", &["b", "a"])).await, PutOutcome::Replaced);
    let succeeded = end(&test, second, TaskState::Succeeded).await.succeeded;
    let released = test.database.task_release(&[], &succeeded).await.unwrap().released;
    assert_eq!(released.iter().map(|task| task.id).collect::<Vec<_>>(), [waiting]);
}

/// Dead tasks are kept for longer than succeeded ones.
#[tokio::test]
async fn a_noted_success_counts_when_the_task_is_submitted_again_although_an_older_dead_one_is_kept() {
    let test = database().await;
    let dead = written(&test, "a", &[]).await;
    end(&test, dead, TaskState::Dead).await;
    let newer = written(&test, "a", &[]).await;
    let waiting = written(&test, "c", &["a", "b"]).await;
    let succeeded = end(&test, newer, TaskState::Succeeded).await.succeeded;
    assert!(test.database.task_release(&[], &succeeded).await.unwrap().released.is_empty());
    sqlx::query("DELETE FROM duetime.archive WHERE state = 'succeeded'").execute(&test.pool).await.unwrap();
    assert_eq!(put(&test, &task("c", &["a"])).await, PutOutcome::Replaced);
    assert!(look(&test, waiting).await);
}

/// What is known of the name counts, not the note.
#[tokio::test]
async fn a_task_that_is_submitted_again_waits_for_a_newer_task_with_a_name_that_had_succeeded() {
    let test = database().await;
    let first = written(&test, "a", &[]).await;
    let waiting = written(&test, "c", &["a", "b"]).await;
    let succeeded = end(&test, first, TaskState::Succeeded).await.succeeded;
    assert!(test.database.task_release(&[], &succeeded).await.unwrap().released.is_empty());
    let newer = changed(task("a", &[]), |task| task.keyed.as_mut().unwrap().version = 1);
    assert_eq!(put(&test, &newer).await, PutOutcome::Created);
    assert_eq!(put(&test, &task("c", &["a"])).await, PutOutcome::Replaced);
    assert!(!look(&test, waiting).await);
}

#[tokio::test]
async fn a_success_in_another_partition_or_queue_is_another_ones() {
    let test = database().await;
    let other_partition = changed(task("a", &[]), |task| task.partition_key = Some("other".into()));
    let other_queue = changed(task("a", &[]), |task| task.queue = QueueName::new("mails"));
    let waiting = written(&test, "-", &["a"]).await;
    for other in [other_partition, other_queue] {
        assert_eq!(put(&test, &other).await, PutOutcome::Created);
        let succeeded = end(&test, other.id, TaskState::Succeeded).await.succeeded;
        assert!(test.database.task_release(&[waiting], &succeeded).await.unwrap().released.is_empty());
    }
}

#[tokio::test]
async fn circles_are_refused_however_long() {
    let test = database().await;
    written(&test, "a", &["b"]).await;
    written(&test, "b", &["c", "x"]).await;
    assert_eq!(put(&test, &task("c", &["y", "a"])).await, PutOutcome::Cycle);
    assert_eq!(
        put(&test, &changed(task("c", &["a"]), |task| task.partition_key = Some("q".into()))).await,
        PutOutcome::Created
    );
    let c = written(&test, "c", &["y"]).await;
    let newer = task("c", &["a"]);
    assert_eq!(put(&test, &newer).await, PutOutcome::Cycle, "nor by taking the place of one that waits");
    assert_eq!(test.database.task_dependencies(c).await.unwrap()[0].key, "y");
}

/// The rows of tasks that this connection has read in its transaction.
pub(super) async fn tasks_read(connection: &mut PgConnection) -> i64 {
    let read = "SELECT coalesce(max(seq_tup_read + idx_tup_fetch), 0)::bigint
                  FROM pg_stat_xact_user_tables WHERE relid = 'duetime.task'::regclass";
    sqlx::query_scalar(read).fetch_one(connection).await.unwrap()
}

/// Submits `b`, which waits for `a`, while `a`, which waits for `b`, is not committed yet. `locked` says whether
/// the first transaction takes the partition's lock.
async fn circle_at_one_moment(locked: bool) -> PutOutcome {
    let test = database().await;
    test.be_patient(PoolKind::Write).await;
    let mut connection = test.pool.acquire().await.unwrap();
    connection.execute("BEGIN").await.unwrap();
    if locked {
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('p', 5))").await.unwrap();
    }
    sqlx::query(
        "SELECT duetime.task_put($1, 0, 'orders', now(), true, 3::smallint, '', 'x', NULL, 'p', NULL, NULL, NULL, NULL, 'a', 0, 'keep', \
         '1 day', 1, ARRAY['orders b'])",
    )
    .bind(fixture::fresh_id_of(ShardId::new(0)).uuid())
    .execute(&mut *connection)
    .await
    .unwrap();
    let (database, second) = (test.database.clone(), task("b", &["a"]));
    let coming = spawn_child(async move { database.task_put(&[second], &[HOLD]).await.unwrap().remove(0).outcome });
    if locked {
        until_waiting(&test.pool, 1).await;
        connection.execute("COMMIT").await.unwrap();
        coming.await.unwrap()
    } else {
        let outcome = coming.await.unwrap();
        connection.execute("COMMIT").await.unwrap();
        outcome
    }
}

#[tokio::test]
async fn two_that_would_wait_for_each_other_do_not_come_in_at_one_moment() {
    assert_eq!(circle_at_one_moment(true).await, PutOutcome::Cycle);
}

#[tokio::test]
async fn without_the_partitions_lock_they_would() {
    assert_eq!(circle_at_one_moment(false).await, PutOutcome::Created);
}

/// The task is written but not committed while its dependency succeeds, so the check
/// after the success cannot see it.
#[tokio::test]
async fn a_success_while_the_task_is_being_written_is_found_by_the_look_after_its_commit() {
    let test = database().await;
    let first = written(&test, "a", &[]).await;
    let second = fixture::fresh_id_of(ShardId::new(0));
    let mut connection = test.pool.acquire().await.unwrap();
    connection.execute("BEGIN").await.unwrap();
    sqlx::query(
        "SELECT duetime.task_put($1, 0, 'orders', now(), true, 3::smallint, '', 'x', NULL, 'p', NULL, NULL, NULL, NULL, NULL, 0, 'keep', \
         '1 day', 1, ARRAY['orders a'])",
    )
    .bind(second.uuid())
    .execute(&mut *connection)
    .await
    .unwrap();
    let succeeded = end(&test, first, TaskState::Succeeded).await.succeeded;
    assert!(test.database.task_release(&[], &succeeded).await.unwrap().released.is_empty(), "it cannot be seen yet");
    connection.execute("COMMIT").await.unwrap();
    assert!(look(&test, second).await);
}

#[tokio::test]
async fn a_look_in_vain_comes_again_later_and_later() {
    let test = database().await;
    let id = written(&test, "-", &["a"]).await;
    let next_s = async |waited_s: i32| -> f64 {
        sqlx::query(
            "UPDATE duetime.task SET due_at = now() - make_interval(secs => $2), wake_at = now() WHERE id = $1",
        )
        .bind(id.uuid())
        .bind(waited_s)
        .execute(&test.pool)
        .await
        .unwrap();
        assert!(!look(&test, id).await);
        sqlx::query_scalar(
            "SELECT extract(epoch FROM wake_at - clock_timestamp())::float8 FROM duetime.task WHERE id = $1",
        )
        .bind(id.uuid())
        .fetch_one(&test.pool)
        .await
        .unwrap()
    };
    for (waited_s, low, high) in [(0, 0.0, 1.0), (60, 20.0, 40.0), (1_000, 400.0, 510.0), (36_000, 600.0, 900.0)] {
        let next_s = next_s(waited_s).await;
        assert!(low < next_s && next_s <= high, "{next_s} after {waited_s}");
    }
}

/// Whether the task has this due time, and is looked at again within some hours.
async fn is_looked_at_soon(test: &TestDatabase, id: TaskId, due_at: UnixMicros) -> bool {
    let soon =
        "SELECT due_at = $2 AND wake_at <= clock_timestamp() + interval '6 hours' FROM duetime.task WHERE id = $1";
    sqlx::query_scalar(soon).bind(id.uuid()).bind(due_at.to_utc()).fetch_one(&test.pool).await.unwrap()
}

/// The look after a success may be lost with its node, and a success may be dropped after a day.
#[tokio::test]
async fn a_task_due_in_days_is_looked_at_within_hours_whatever_has_written_it() {
    let test = database().await;
    let first = written(&test, "a", &[]).await;
    let mut due_at = fixture::now(&test.pool).await.shifted(10 * DAY_MS);
    let [waiting, again] =
        [(); 2].map(|()| changed(task("w", &["a"]), |task| (task.due_now, task.due_at) = (false, due_at)));
    let id = waiting.id;
    for (task, outcome) in [(waiting, PutOutcome::Created), (again, PutOutcome::Replaced)] {
        assert_eq!(put(&test, &task).await, outcome);
        assert!(is_looked_at_soon(&test, id, due_at).await, "{outcome:?}");
    }
    for priority in [None, Some(2)] {
        due_at = due_at.shifted(DAY_MS);
        let change = ValidChange { due_at: Some(due_at), priority, ..ValidChange::default() };
        test.database.task_change(id, &change).await.unwrap();
        assert!(is_looked_at_soon(&test, id, due_at).await, "{change:?}");
    }
    due_at = due_at.shifted(DAY_MS);
    let filter = TaskFilter { state: Some(TaskState::Waiting), ..TaskFilter::default() };
    let found = test.database.bulk_look(Walk::Live { moved: None }, &filter, None, 10).await.unwrap().found;
    let act = BulkAction::Move(Target::At(due_at));
    assert_eq!(test.database.bulk_act(act, &found, &keep()).await.unwrap().len(), 1);
    assert!(is_looked_at_soon(&test, id, due_at).await, "after a move");
    test.pool.execute("UPDATE duetime.task SET wake_at = now() WHERE state = 'waiting'").await.unwrap();
    assert!(!look(&test, id).await);
    assert!(is_looked_at_soon(&test, id, due_at).await, "after a look in vain");
    end(&test, first, TaskState::Succeeded).await;
    assert!(look(&test, id).await);
    assert_eq!(test.database.task_read(id).await.unwrap().unwrap().due_at, due_at);
}

#[tokio::test]
async fn tasks_that_are_moved_by_days_together_are_looked_at_at_different_times() {
    let test = database().await;
    for key in ["v", "w"] {
        written(&test, key, &["a"]).await;
    }
    let act = BulkAction::Move(Target::At(fixture::now(&test.pool).await.shifted(10 * DAY_MS)));
    let filter = TaskFilter { state: Some(TaskState::Waiting), ..TaskFilter::default() };
    let found = test.database.bulk_look(Walk::Live { moved: None }, &filter, None, 10).await.unwrap().found;
    assert_eq!(test.database.bulk_act(act, &found, &keep()).await.unwrap().len(), 2);
    let times = sqlx::query_scalar::<_, i64>("SELECT count(DISTINCT wake_at) FROM duetime.task");
    assert_eq!(times.fetch_one(&test.pool).await.unwrap(), 2);
}

#[tokio::test]
async fn without_a_key_it_is_the_id_that_comes_once() {
    let test = database().await;
    let waiting = task("-", &["a"]);
    for _ in 0..2 {
        assert_eq!(put(&test, &waiting).await, PutOutcome::Created);
    }
    let first = written(&test, "a", &[]).await;
    end(&test, first, TaskState::Succeeded).await;
    assert!(look(&test, waiting.id).await);
    end(&test, waiting.id, TaskState::Succeeded).await;
    assert_eq!(put(&test, &waiting).await, PutOutcome::Created);
    assert_eq!(state(&test, waiting.id).await, "succeeded");
}

#[tokio::test]
async fn a_waiting_task_that_another_transaction_holds_is_passed_over_and_its_neighbours_are_looked_at() {
    let test = fixture::database().await;
    let first = written(&test, "a", &[]).await;
    let held = written(&test, "b", &["a"]).await;
    let free = written(&test, "c", &["a"]).await;
    let lock = test.lock_row(held).await;
    let succeeded = end(&test, first, TaskState::Succeeded).await.succeeded;
    let looked = test.database.task_release(&[], &succeeded).await.unwrap();
    assert_eq!(looked.released.iter().map(|task| task.id).collect::<Vec<_>>(), [free]);
    assert_eq!(looked.held, [held], "it is to be checked again");
    lock.release().await;
    assert!(look(&test, held).await);
}

/// The rule as written in the look.
const RULE: &str = " AND t.xmin::text = c.seen";

/// A look has found that `a` succeeded. Before it comes to the row of `b`, a newer `a` comes in, and `b` is written
/// again. Returns the state of `b`, and whether the look asks for it again.
async fn written_during_a_look(statement: &str) -> (String, bool) {
    let test = database().await;
    let first = written(&test, "a", &[]).await;
    end(&test, first, TaskState::Succeeded).await;
    let waiting = written(&test, "b", &["a"]).await;
    let mut gate = test.pool.acquire().await.unwrap();
    gate.execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let paused = "FROM (SELECT pg_advisory_xact_lock_shared(7) OFFSET 0) AS gate, candidate AS c";
    assert!(statement.contains("FROM candidate AS c\n      JOIN duetime.task AS t ON t.id = c.id\n     WHERE"));
    let statement = statement.replacen("FROM candidate AS c", paused, 1);
    let pool = test.pool.clone();
    let looking = spawn_child(async move {
        let look = sqlx::query(AssertSqlSafe(statement)).bind(vec![waiting.uuid()]).bind(Vec::<String>::new());
        let look = look.bind(Vec::<Option<String>>::new()).bind(Vec::<i32>::new()).bind(uuid::Uuid::nil());
        let rows = look.bind(i64::from(DEPENDENTS_AT_ONCE)).bind(Vec::<i32>::new()).fetch_all(&pool).await.unwrap();
        rows.iter().any(|row| row.get("held"))
    });
    until_waiting(&test.pool, 1).await;
    let newer = changed(task("a", &[]), |task| task.keyed.as_mut().expect("it has a key").version = 1);
    put(&test, &newer).await;
    let again = sqlx::query("UPDATE duetime.task SET priority = 2 WHERE id = $1").bind(waiting.uuid());
    again.execute(&test.pool).await.unwrap();
    gate.execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    let is_held = looking.await.unwrap();
    (state(&test, waiting).await, is_held)
}

#[tokio::test]
async fn a_look_judges_no_row_that_was_written_since_its_snapshot() {
    let look = include_str!("../queries/task_release.sql");
    assert_eq!(written_during_a_look(look).await, ("waiting".to_owned(), true));
    assert!(look.contains(RULE));
    assert_eq!(
        written_during_a_look(&look.replace(RULE, "")).await,
        ("scheduled".to_owned(), false),
        "without the rule"
    );
}
