//! Cancels and changes of due times that share a statement.

use std::{sync::Arc, time::Duration};

use common::{
    ids::{QueueName, TaskId},
    time::UnixMicros,
    wire::ValidChange,
};
use tokio::task::JoinHandle;

use super::{
    change::{keep, later, word},
    claim, fixture,
    fixture::TestDatabase,
    new_task, own, state_of, submitted, until_waiting,
};
use crate::{
    store::{
        Error, Fault, PoolKind,
        change::{Cancelled, Guarded, Keep},
        rows::TaskRecord,
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
