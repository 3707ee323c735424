//! A policy is in force for every task accepted after its change was answered. The tests run a claim and a
//! change of the queue in both orders. The race between them also runs without the rule, which shows that the
//! rule is what protects the queue.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    time::Duration,
};

use common::{
    ids::{Attempt, Epoch, QueueName, ShardId, TaskId},
    priority::Levels,
    queue::{Format, Placement, QueuePolicy, Settle},
    task::{BusinessKey, Dependency, NewTask, OnDuplicate},
};
use futures::poll;
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use super::{
    fixture::{self, TestDatabase},
    new_task, own, state_of, submitted, until_waiting,
};
use crate::{
    clock,
    coordination::tests::soon,
    store::{
        PoolKind,
        lane::Pick,
        put::{PutOutcome, Retention},
        queues::QueueRevisions,
        settle::Deliver,
        submit::{KnownRevisions, Sending, Window},
    },
    supervise::spawn_child,
};

const CLAIM: &str = include_str!("../queries/task_claim.sql");

/// The rule as written in the claim.
const RULE: &str = "AND t.queue <> ALL(ARRAY(SELECT q.queue FROM turned AS q))";

fn orders() -> QueueName {
    QueueName::new("orders")
}

/// Pauses the queue of [`submitted`] and returns the revision.
async fn paused(test: &TestDatabase) -> i64 {
    let put = test.database.queue_put(&orders(), &QueuePolicy::default(), Some(true), 10).await.unwrap();
    put.expect("there is room").turn.revision
}

#[tokio::test]
async fn who_does_not_know_a_queues_newest_policy_claims_nothing_of_it_and_everything_else() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let revision = paused(&test).await;
    let mut ids = submitted(&test, 2).await;
    let mut other = new_task(fixture::fresh_id_of(ShardId::new(0)));
    other.queue = QueueName::new("mails");
    test.database.task_submit(std::slice::from_ref(&other), Sending::First).await.unwrap();
    ids.push(other.id);
    let old = test.database.task_claim(&ids, &fences, Duration::ZERO, &BTreeSet::new(), revision - 1).await.unwrap();
    assert!(old.turned);
    assert_eq!(old.deliveries.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [other.id]);
    assert_eq!(old.passed.iter().map(|key| key.id).collect::<BTreeSet<_>>(), ids[..2].iter().copied().collect());
    let closed = BTreeSet::from([orders()]);
    let known = test.database.task_claim(&ids, &fences, Duration::ZERO, &closed, revision).await.unwrap();
    assert_eq!((known.turned, known.held_back.len()), (false, 2));
    let (queue, wanted): (_, Levels) = (orders(), [0, 0, 2, 0, 0]);
    for (known, started) in [(revision - 1, 0), (revision, 2)] {
        let pick = Pick { known, ..Pick::of(&queue, &fences, wanted) };
        let (claimed, _) = test.database.task_pick_open(&pick).await.unwrap();
        assert_eq!((claimed.deliveries.len(), claimed.turned), (started, started == 0));
    }
}

#[tokio::test]
async fn a_database_that_joined_later_refuses_old_policies_once_it_knows_the_turns_of_another() {
    let (home, joined) = (fixture::database().await, fixture::database().await);
    let fences = own(&joined, "a").await;
    let revision = paused(&home).await;
    let ids = submitted(&joined, 2).await;
    let claim = async |known| {
        let closed = BTreeSet::new();
        joined.database.task_claim(&ids[..1], &fences, Duration::ZERO, &closed, known).await.unwrap()
    };
    assert!(!claim(revision - 1).await.turned, "the database was not told of the change");
    let turns = home.database.move_turns(&(0, String::new())).await.unwrap();
    let last = turns.last().expect("the queue has turned");
    assert_eq!(last, (revision, orders().to_string()));
    // A newer turn stays.
    joined
        .database
        .queue_turn(&QueueName::new("mails"), QueueRevisions { revision: 9_000, ..QueueRevisions::default() })
        .await
        .unwrap();
    home.database
        .queue_turn(&QueueName::new("mails"), QueueRevisions { revision: 8_000, ..QueueRevisions::default() })
        .await
        .unwrap();
    for place in [(0, String::new()), last] {
        let turns = home.database.move_turns(&place).await.unwrap();
        joined.database.move_turns_write(&turns).await.unwrap();
    }
    let old = joined.database.task_claim(&ids[1..], &fences, Duration::ZERO, &BTreeSet::new(), revision - 1).await;
    let old = old.unwrap();
    assert!(old.turned && old.deliveries.is_empty(), "{old:?}");
    let kept: i64 = sqlx::query_scalar("SELECT revision FROM duetime.queue_turn WHERE queue = 'mails'")
        .fetch_one(&joined.pool)
        .await
        .unwrap();
    assert_eq!(kept, 9_000);
}

#[tokio::test]
async fn an_insert_claims_nothing_of_a_queue_whose_newest_policy_it_does_not_know() {
    let test = fixture::database().await;
    let epoch = own(&test, "a").await[&ShardId::new(0)];
    let revision = paused(&test).await;
    for (known, state) in [(revision - 1, "scheduled"), (revision, "dispatching")] {
        let task = new_task(fixture::fresh_id_of(ShardId::new(0)));
        let (tasks, window) = (std::slice::from_ref(&task), Window::OPEN);
        let written = test
            .database
            .task_submit_claimed(tasks, &[Some(epoch)], KnownRevisions { claims: known, routes: i64::MAX }, window)
            .await
            .unwrap();
        assert_eq!(written.turned.contains(&orders()), state == "scheduled");
        assert_eq!(state_of(&test.pool, task.id).await.as_deref(), Some(state));
    }
}

#[tokio::test]
async fn another_database_hears_of_a_turn_and_an_older_one_does_not_take_its_place() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    test.database.queue_turn(&orders(), QueueRevisions { revision: 7, ..QueueRevisions::default() }).await.unwrap();
    test.database.queue_turn(&orders(), QueueRevisions { revision: 5, ..QueueRevisions::default() }).await.unwrap();
    for (known, claimed) in [(6, 0), (7, 1)] {
        let answer = test.database.task_claim(&ids, &fences, Duration::ZERO, &BTreeSet::new(), known).await.unwrap();
        assert_eq!(answer.deliveries.len(), claimed);
    }
}

/// Runs a claim as plain SQL that knows the queues as of revision `known`. Returns how many tasks it took.
async fn claim_with(connection: &mut PgConnection, sql: String, ids: &[TaskId], epoch: i64, known: i64) -> usize {
    let second = sqlx::postgres::types::PgInterval { months: 0, days: 0, microseconds: 1_000_000 };
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(ids.iter().map(|id| id.uuid()).collect::<Vec<_>>())
        .bind(vec![0_i32; ids.len()])
        .bind(vec![epoch; ids.len()])
        .bind(second)
        .bind(second)
        .bind(Vec::<String>::new())
        .bind(known)
        .fetch_all(connection)
        .await
        .unwrap();
    rows.iter().filter(|row| row.get::<Option<&str>, _>("fate") == Some("taken")).count()
}

/// Pauses a queue while a claim that does not know the pause is in flight. In the meantime another claim begins,
/// and a task is accepted. Returns how many tasks the second claim took.
async fn claim_during_turn(sql: &str) -> usize {
    let test = fixture::database().await;
    // A minute is enough on any machine: no statement gives up while the first claim is in flight.
    test.pool.execute("ALTER FUNCTION duetime.await_claims() SET lock_timeout = '1min'").await.unwrap();
    let epoch = own(&test, "a").await[&ShardId::new(0)].number();
    let ids = submitted(&test, 2).await;
    let mut first = test.pool.acquire().await.unwrap();
    first.execute("BEGIN").await.unwrap();
    assert_eq!(claim_with(&mut first, sql.to_owned(), &ids[..1], epoch, 0).await, 1);
    let mut pausing = test.pool.acquire().await.unwrap();
    let pausing = spawn_child(async move {
        sqlx::query(include_str!("../queries/queue_put.sql"))
            .bind("orders")
            .bind(sqlx::types::Json(QueuePolicy::default()))
            .bind(Some(true))
            .bind(10_i64)
            .bind(false)
            .bind(None::<chrono::DateTime<chrono::Utc>>)
            .bind(sqlx::types::Json(QueuePolicy::default()))
            .execute(&mut *pausing)
            .await
            .unwrap();
    });
    until_waiting(&test.pool, 1).await;
    assert!(!pausing.is_finished(), "no answer while a claim that does not know it is under way");
    let (pool, statement, second) = (test.pool.clone(), sql.to_owned(), ids[1..].to_vec());
    let claiming = spawn_child(async move {
        let mut connection = pool.acquire().await.unwrap();
        claim_with(&mut connection, statement, &second, epoch, 0).await
    });
    until_waiting(&test.pool, 2).await;
    first.execute("COMMIT").await.unwrap();
    pausing.await.unwrap();
    claiming.await.unwrap()
}

#[tokio::test]
async fn a_change_waits_for_the_claims_in_flight_and_a_claim_that_began_meanwhile_sees_it() {
    assert_eq!(claim_during_turn(CLAIM).await, 0);
}

#[tokio::test]
async fn without_the_rule_a_claim_would_start_tasks_of_a_paused_queue() {
    assert!(CLAIM.contains(RULE), "the rule is written as this test expects");
    assert_eq!(claim_during_turn(&CLAIM.replace(RULE, "")).await, 1);
}

/// Sets the placement of the queue of [`submitted`] and returns the turn.
async fn placed(test: &TestDatabase, placement: Placement) -> QueueRevisions {
    let policy = QueuePolicy { placement, ..QueuePolicy::default() };
    test.database.queue_put(&orders(), &policy, None, 10).await.unwrap().expect("there is room").turn
}

#[tokio::test]
async fn only_a_change_of_the_rules_for_submissions_counts_as_one_and_every_later_turn_remembers_it() {
    let test = fixture::database().await;
    assert_eq!(placed(&test, Placement::Spread).await.placed, 0, "as a queue without a policy");
    let single = placed(&test, Placement::Single).await;
    assert_eq!(single.placed, single.revision);
    assert_eq!(placed(&test, Placement::Single).await.placed, single.placed);
    let (_, resumed) = test.database.queue_pause(&orders(), false).await.unwrap().unwrap();
    assert_eq!(resumed.placed, single.placed);
    let other = QueuePolicy { placement: Placement::Single, max_attempts: 3, ..QueuePolicy::default() };
    let rules = [
        QueuePolicy { dedup_window_ms: 5, ..other.clone() },
        QueuePolicy { format: Format::CloudEvents, dedup_window_ms: 5, ..other.clone() },
        QueuePolicy { max_pending: Some(0), ..other.clone() },
        QueuePolicy { max_pending: Some(5), ..other.clone() },
        QueuePolicy { max_pending_bytes: Some(5), ..other.clone() },
        QueuePolicy { max_submits_per_second: Some(5), ..other.clone() },
        other.clone(),
    ];
    let put = async |policy: &QueuePolicy| {
        test.database.queue_put(&orders(), policy, None, 10).await.unwrap().expect("there is room").turn
    };
    assert_eq!(put(&other).await.placed, single.placed, "no rule for submissions");
    for policy in rules {
        let turn = put(&policy).await;
        assert_eq!(turn.placed, turn.revision, "{policy:?}");
    }
    let last = put(&other).await.placed;
    let schedules = QueuePolicy { max_schedules: Some(5), ..other.clone() };
    assert_eq!(put(&schedules).await.placed, last, "no rule for submissions");
    let gone = test.database.queue_delete(&orders()).await.unwrap().unwrap();
    assert_eq!(gone.placed, gone.revision, "submissions may not create it");
    let limited = put(&QueuePolicy { max_pending: Some(5), ..QueuePolicy::default() }).await;
    assert_eq!(limited.placed, limited.revision, "a queue without a policy has no limit");
}

/// Claims a task of [`submitted`], and notes its confirm.
async fn delivered(test: &TestDatabase, id: TaskId, fences: &BTreeMap<ShardId, Epoch>) {
    super::claim(test, &[id], fences).await;
    test.database.task_deliver(&[super::deliver(id, Attempt::new(1), 1_000)]).await.unwrap();
}

async fn predate_reports(test: &TestDatabase, ids: &[TaskId]) -> Vec<bool> {
    let standing = test.database.task_standing(ids).await.unwrap();
    ids.iter().map(|id| standing.iter().any(|row| row.id == *id && row.predates_reports)).collect()
}

#[tokio::test]
async fn a_confirm_that_is_written_after_a_change_to_reports_counts_from_when_it_came() {
    let test = fixture::database().await;
    let (ids, fences) = (submitted(&test, 1).await, own(&test, "a").await);
    super::claim(&test, &ids, &fences).await;
    let confirmed_at = clock::instant() - Duration::from_secs(60);
    let policy = QueuePolicy { settle: Settle::Result, ..QueuePolicy::default() };
    test.database.queue_put(&orders(), &policy, None, 10).await.unwrap().expect("there is room");
    let late = Deliver { id: ids[0], attempt: Attempt::new(1), timeout_ms: 1_000, confirmed_at };
    test.database.task_deliver(&[late]).await.unwrap();
    assert_eq!(predate_reports(&test, &ids).await, [true]);
}

/// The time for which the write of a confirm waits here before its queue changes: far more than a statement's way to
/// the server takes, and less than the two seconds for which a pool lets it wait.
const WAIT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_confirm_whose_write_waits_for_a_connection_counts_from_when_it_came() {
    let test = fixture::database().await;
    let (ids, fences) = (submitted(&test, 1).await, own(&test, "a").await);
    super::claim(&test, &ids, &fences).await;
    let put = async |settle| {
        let policy = QueuePolicy { settle, ..QueuePolicy::default() };
        test.database.queue_put(&orders(), &policy, None, 10).await.unwrap().expect("there is room");
    };
    let confirm = Box::pin(async {
        loop {
            put(Settle::Confirm).await;
            let occupied = test.occupy(PoolKind::Fire).await;
            let confirms = [super::deliver(ids[0], Attempt::new(1), 1_000)];
            let mut write = pin!(test.database.task_deliver(&confirms));
            assert!(poll!(&mut write).is_pending(), "no connection is free");
            tokio::time::sleep(WAIT).await;
            put(Settle::Result).await;
            drop(occupied);
            // On a slow machine the pool may give up. Nothing is written then, and the confirm comes again.
            if write.await.is_ok() {
                break;
            }
        }
    });
    soon("a write that waits for a connection and has one in time", confirm).await;
    assert_eq!(predate_reports(&test, &ids).await, [true]);
}

#[tokio::test]
async fn an_attempt_knows_whether_it_was_delivered_before_its_queue_was_reported_on() {
    let test = fixture::database().await;
    let put = async |settle| {
        let policy = QueuePolicy { settle, ..QueuePolicy::default() };
        test.database.queue_put(&orders(), &policy, None, 10).await.unwrap().expect("there is room").turn.reports_since
    };
    let (ids, fences) = (submitted(&test, 3).await, own(&test, "a").await);
    assert_eq!(put(Settle::Confirm).await, None);
    delivered(&test, ids[0], &fences).await;
    let since = put(Settle::Result).await;
    assert!(since.is_some());
    delivered(&test, ids[1], &fences).await;
    assert_eq!(put(Settle::Result).await, since, "as before");
    assert_eq!(test.database.queue_pause(&orders(), false).await.unwrap().unwrap().1.reports_since, since);
    assert_eq!(predate_reports(&test, &ids).await, [true, false, false]);
    put(Settle::Reject).await;
    put(Settle::Result).await;
    assert_eq!(predate_reports(&test, &ids).await, [true, true, false], "the queue was not reported on for a moment");
}

#[tokio::test]
async fn another_database_hears_since_when_a_queue_is_reported_on_and_allows_for_its_clock() {
    let (home, told, joined) = (fixture::database().await, fixture::database().await, fixture::database().await);
    let policy = QueuePolicy { settle: Settle::Result, ..QueuePolicy::default() };
    let turn = home.database.queue_put(&orders(), &policy, None, 10).await.unwrap().expect("there is room").turn;
    told.database.queue_turn(&orders(), turn).await.unwrap();
    joined.database.move_turns_write(&home.database.move_turns(&(0, String::new())).await.unwrap()).await.unwrap();
    for test in [&told, &joined] {
        let (ids, fences) = (submitted(test, 2).await, own(test, "a").await);
        for (id, ago) in ids.iter().zip(["10 s", "3 s"]) {
            delivered(test, *id, &fences).await;
            let back = "UPDATE duetime.task SET delivered_at = delivered_at - $2::text::interval WHERE id = $1";
            sqlx::query(back).bind(id.uuid()).bind(ago).execute(&test.pool).await.unwrap();
        }
        assert_eq!(predate_reports(test, &ids).await, [true, false]);
    }
}

#[tokio::test]
async fn nothing_is_written_of_a_queue_that_was_placed_anew_since_its_tasks_were_given_their_shards() {
    let test = fixture::database().await;
    let turn = placed(&test, Placement::Single).await;
    for (routes, is_there) in [(turn.placed - 1, false), (turn.placed, true)] {
        let tasks: [_; 2] = std::array::from_fn(|_| new_task(fixture::fresh_id_of(ShardId::new(0))));
        let mut tasks = tasks.to_vec();
        tasks[1].queue = QueueName::new("mails");
        let known = KnownRevisions { claims: i64::MAX, routes };
        let written = test.database.task_submit_claimed(&tasks, &[None, None], known, Window::OPEN).await.unwrap();
        assert_eq!(written.rules_changed.contains(&orders()), !is_there);
        let found =
            [state_of(&test.pool, tasks[0].id).await.is_some(), state_of(&test.pool, tasks[1].id).await.is_some()];
        assert_eq!(found, [is_there, true], "other queues have nothing to do with it");

        let mut keyed = new_task(fixture::fresh_id_of(ShardId::new(0)));
        keyed.keyed = Some(BusinessKey { key: "a".to_owned(), version: 0, on_duplicate: OnDuplicate::Keep });
        let hold = Retention { window_ms: 1_000, keep_ms: 1_000 };
        let put =
            test.database.task_put_within(&[keyed.clone()], &[hold], Window::OPEN, routes).await.unwrap().remove(0);
        assert_eq!(put.outcome, if is_there { PutOutcome::Created } else { PutOutcome::RulesChanged });
        assert_eq!(state_of(&test.pool, keyed.id).await.is_some(), is_there);
    }
}

/// The answer to its first sending was lost.
#[tokio::test]
async fn a_task_with_a_key_that_is_sent_again_after_a_new_placement_is_the_one_that_was_written() {
    let test = fixture::database().await;
    let routes = placed(&test, Placement::Spread).await.revision;
    let mut tasks: [_; 3] = std::array::from_fn(|_| new_task(fixture::fresh_id_of(ShardId::new(0))));
    for (task, key) in tasks.iter_mut().zip(["live", "finished", "new"]) {
        task.keyed = Some(BusinessKey { key: key.to_owned(), version: 0, on_duplicate: OnDuplicate::Keep });
    }
    let mut waiting = new_task(fixture::fresh_id_of(ShardId::new(0)));
    waiting.partition_key = Some("p".to_owned());
    waiting.depends_on = vec![Dependency { queue: orders(), key: "other".to_owned() }];
    let [live, finished, new] = tasks;
    let holds = [Retention { window_ms: 1_000, keep_ms: 1_000 }; 4];
    let send = async |tasks: &[NewTask]| {
        test.database.task_put_within(tasks, &holds[..tasks.len()], Window::OPEN, routes).await.unwrap()
    };
    send(&[live.clone(), finished.clone(), waiting.clone()]).await;
    test.database.task_cancel(finished.id, &super::change::keep()).await.unwrap();
    placed(&test, Placement::Single).await;
    let sent = [live, finished, waiting, new];
    let again = send(&sent).await;
    let outcomes: Vec<PutOutcome> = again.iter().map(|put| put.outcome).collect();
    assert_eq!(outcomes, [PutOutcome::Created, PutOutcome::Created, PutOutcome::Created, PutOutcome::RulesChanged]);
    assert!(again.iter().zip(&sent).all(|(put, task)| put.id == task.id), "{again:?}");
    assert_eq!(state_of(&test.pool, sent[3].id).await, None);
}

/// The same of one that has replaced another, and so has no task of its own.
#[tokio::test]
async fn a_replacement_that_is_sent_again_after_a_new_placement_has_the_answer_of_its_first_sending() {
    let test = fixture::database().await;
    let routes = placed(&test, Placement::Spread).await.revision;
    let [old, sent] = [OnDuplicate::Keep, OnDuplicate::Replace].map(|on_duplicate| {
        let mut task = new_task(fixture::fresh_id_of(ShardId::new(0)));
        task.keyed = Some(BusinessKey { key: "a".to_owned(), version: 0, on_duplicate });
        task
    });
    let hold = Retention { window_ms: 1_000, keep_ms: 1_000 };
    let put = async |task: &NewTask, window| {
        test.database.task_put_within(std::slice::from_ref(task), &[hold], window, routes).await.unwrap().remove(0)
    };
    put(&old, Window::OPEN).await;
    let first = put(&sent, Window::OPEN).await;
    assert_eq!((first.outcome, first.id), (PutOutcome::Replaced, old.id));
    placed(&test, Placement::Single).await;
    assert_eq!(put(&sent, Window::OPEN_AGAIN).await, first);
}

#[tokio::test]
async fn a_change_of_the_placement_waits_for_the_inserts_in_flight() {
    let test = fixture::database().await;
    test.pool.execute("ALTER FUNCTION duetime.await_claims() SET lock_timeout = '1min'").await.unwrap();
    test.be_patient(PoolKind::Write).await;
    for is_keyed in [false, true] {
        let mut task = new_task(fixture::fresh_id_of(ShardId::new(0)));
        task.keyed = is_keyed.then(|| BusinessKey { key: "a".to_owned(), version: 0, on_duplicate: OnDuplicate::Keep });
        // The insert waits for a session that writes the same id.
        let mut other = test.pool.acquire().await.unwrap();
        other.execute("BEGIN").await.unwrap();
        let same = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
                    VALUES ($1, 0, 'other', 'scheduled', now(), now(), '', 'x')";
        sqlx::query(same).bind(task.id.uuid()).execute(&mut *other).await.unwrap();
        let (database, sent) = (test.database.clone(), task.clone());
        let inserting = spawn_child(async move {
            if is_keyed {
                let hold = Retention { window_ms: 1_000, keep_ms: 1_000 };
                database.task_put_within(&[sent], &[hold], Window::OPEN, i64::MAX).await.map(drop)
            } else {
                database.task_submit_within(&[sent], Sending::First, Window::OPEN, i64::MAX).await.map(drop)
            }
        });
        until_waiting(&test.pool, 1).await;
        let database = test.database.clone();
        let placement = if is_keyed { Placement::Spread } else { Placement::Single };
        let changing = spawn_child(async move {
            let policy = QueuePolicy { placement, ..QueuePolicy::default() };
            database.queue_put(&orders(), &policy, None, 10).await
        });
        until_waiting(&test.pool, 2).await;
        assert!(!changing.is_finished(), "no answer while an insert by the old placement is under way");
        other.execute("ROLLBACK").await.unwrap();
        inserting.await.unwrap().unwrap();
        changing.await.unwrap().unwrap();
    }
}
