//! Tasks beyond a limit whose keys are looked up, because a stored task may answer for them.

use common::{
    ids::{DatabaseIndex, QueueName, ShardId},
    queue::Placement,
    shard::route::bound_to,
};
use serde_json::{Value, json};
use sqlx::{Postgres, pool::PoolConnection};

use super::{
    Counter, fresh,
    limits::{batch, count_mail, put_queue, statuses, task},
    with_three_databases, with_two_databases,
};
use crate::store::tests::fixture::{self, TestDatabase};

fn keyed(key: &str) -> Value {
    let mut task = task("mail");
    task["key"] = json!(key);
    task
}

/// A key of the queue `mail` whose tasks are on this shard.
fn key_on(shard: u16) -> String {
    let queue = QueueName::new("mail");
    let is_there = |key: &String| {
        bound_to(&queue, Placement::Spread, None, Some(key.as_str()), fixture::SHARDS.into())
            == Some(ShardId::new(shard))
    };
    (0..u32::MAX).map(|number| number.to_string()).find(is_there).expect("each shard has keys")
}

/// Leaves no room in the queue `mail`.
async fn fill(counter: &Counter) {
    put_queue(counter, "mail", json!({ "max_pending": 0 })).await;
    count_mail(counter, 0).await;
}

async fn run(test: &TestDatabase, sql: &'static str) {
    sqlx::raw_sql(sql).execute(&test.pool).await.expect("the statement runs");
}

/// Keeps all statements away from the tasks.
async fn locked_tasks(test: &TestDatabase) -> PoolConnection<Postgres> {
    let mut blocker = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *blocker).await.unwrap();
    sqlx::query("LOCK TABLE duetime.task IN ACCESS EXCLUSIVE MODE").execute(&mut *blocker).await.unwrap();
    blocker
}

#[tokio::test]
async fn every_key_of_a_large_batch_is_looked_up() {
    let (counter, test) = fresh().await;
    let all: Vec<Value> = (0..250).map(|number: u32| keyed(&number.to_string())).collect();
    let stored: Vec<Value> = all.iter().step_by(7).cloned().collect();
    let answers = batch(&counter.desk, stored.clone()).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    fill(&counter).await;
    let answers = statuses(&batch(&counter.desk, all).await);
    let expected: Vec<u16> = (0..250).map(|number| if number % 7 == 0 { 200 } else { 429 }).collect();
    assert_eq!(answers, expected, "none is left for later");
    assert_eq!(test.live().await, i64::try_from(stored.len()).unwrap());
}

#[tokio::test]
async fn a_look_up_reads_the_map_of_the_shards_only_if_the_shard_of_a_key_has_moved() {
    let (counter, [main, east]) = with_two_databases().await;
    fill(&counter).await;
    run(&main, "UPDATE duetime.shard SET status = 'gone', epoch = epoch + 1 WHERE id = 0").await;
    run(&east, "INSERT INTO duetime.shard (id, epoch) VALUES (0, 50)").await;
    let moved = key_on(0);
    let store = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key)
                 VALUES (duetime.mint(now(), 0), 0, 'mail', 'scheduled', now() + '1 h', now() + '1 h', '', 'x', $1)";
    sqlx::query(store).bind(&moved).execute(&east.pool).await.unwrap();
    let place = || counter.store.places().of(ShardId::new(0)).map(|place| place.database);
    let tasks = [1, 63, 64, 127].map(|shard| keyed(&key_on(shard)));
    assert_eq!(statuses(&batch(&counter.desk, tasks).await), [429; 4]);
    // A read of the map waits for each silent database.
    assert_eq!(place(), Some(DatabaseIndex::HOME), "no map was read");
    let answers = batch(&counter.desk, [keyed(&key_on(1)), keyed(&moved)]).await;
    assert_eq!(statuses(&answers), [429, 200]);
    assert!(answers[1].as_ref().expect("answered").duplicate);
    assert_eq!(place(), Some(DatabaseIndex::new(1)));
}

#[tokio::test]
async fn a_silent_database_keeps_no_other_from_answering_for_a_key() {
    let (counter, [main, ..]) = with_three_databases().await;
    fill(&counter).await;
    // By the map of this node, shards from 84 on are in the third database. They are in the second.
    let tasks = [10, 70, 100].map(|shard| keyed(&key_on(shard)));
    let _blocker = locked_tasks(&main).await;
    assert_eq!(statuses(&batch(&counter.desk, tasks).await), [503, 429, 429]);
}

#[tokio::test]
async fn a_task_that_cannot_be_read_keeps_no_other_from_answering_for_a_key() {
    let (counter, test) = fresh().await;
    let answers = batch(&counter.desk, ["good", "bad", "well"].map(keyed)).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    fill(&counter).await;
    run(&test, "UPDATE duetime.task SET headers = '[1]' WHERE key = 'bad'").await;
    let answers = batch(&counter.desk, ["good", "new", "bad", "well", "other"].map(keyed)).await;
    assert_eq!(statuses(&answers), [200, 429, 503, 200, 429]);
}

/// A running first version beside a second one that succeeded; and a fourth version that succeeded before a fifth one
/// was cancelled; and unclaimed first versions beside cancelled fifth ones.
const OF_VERSIONS: &str = "
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key, version, attempt, claim_epoch)
VALUES (duetime.mint(now(), 0), 0, 'mail', 'running', now(), now(), '', 'x', 'overtaken', 1, 1, 1);
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key, version)
SELECT duetime.mint(now(), 0), 0, 'mail', 'scheduled', now() + '1 h', now() + '1 h', '', 'x', f.key, 1
  FROM (VALUES ('next'), ('again')) AS f (key);
INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, key, version, finished_at, drop_on)
SELECT duetime.mint(now(), 0), 0, 'mail', f.state::duetime.task_state, now(), now(), '', 'x', f.key, f.version, now() - f.ago::interval,
       (now() AT TIME ZONE 'UTC')::date + 1
  FROM (VALUES ('overtaken', 'succeeded', 2, '1 min'), ('withdrawn', 'succeeded', 4, '2 min'), ('withdrawn', 'cancelled', 5, '1 min'),
               ('next', 'cancelled', 5, '1 min'), ('again', 'cancelled', 5, '1 min')) AS f (key, state, version, ago)";

fn versioned(key: &str, version: i64) -> Value {
    let mut task = keyed(key);
    (task["on_duplicate"], task["version"]) = (json!("version"), json!(version));
    task
}

#[tokio::test]
async fn a_finished_task_that_would_answer_does_so_though_a_live_one_or_a_cancelled_one_has_its_key_too() {
    let (counter, test) = fresh().await;
    run(&test, OF_VERSIONS).await;
    fill(&counter).await;
    for (sent, status, state) in [
        (versioned("overtaken", 2), 200, Some("succeeded")),
        (versioned("overtaken", 1), 409, None),
        (versioned("overtaken", 3), 429, None),
        (keyed("withdrawn"), 200, Some("succeeded")),
        (versioned("withdrawn", 4), 409, None),
        (versioned("withdrawn", 5), 429, None),
    ] {
        // Each alone, so that no other of its request decides how its key is looked up.
        let answers = batch(&counter.desk, [sent.clone()]).await;
        assert_eq!(statuses(&answers), [status], "{sent}: {answers:?}");
        let answered = answers[0].as_ref().ok().map(|receipt| receipt.state.text());
        assert_eq!(answered, state, "{sent}");
    }
}

#[tokio::test]
async fn a_version_needs_no_room_beside_the_unclaimed_task_that_it_supersedes() {
    let (counter, test) = fresh().await;
    run(&test, OF_VERSIONS).await;
    fill(&counter).await;
    let live = test.live().await;
    for sent in [versioned("next", 6), versioned("again", 5)] {
        let answers = batch(&counter.desk, [sent.clone()]).await;
        assert_eq!(statuses(&answers), [200], "{sent}: {answers:?}");
        assert!(!answers[0].as_ref().expect("answered").duplicate, "{sent}: it is new");
    }
    assert_eq!(test.live().await, live);
    assert_eq!(statuses(&batch(&counter.desk, [versioned("withdrawn", 6)]).await), [429], "it would be one more");
}

#[tokio::test]
async fn a_key_that_comes_with_and_without_a_version_has_the_answers_that_each_has_alone() {
    let (counter, test) = fresh().await;
    run(&test, OF_VERSIONS).await;
    fill(&counter).await;
    let sent = [keyed("withdrawn"), versioned("withdrawn", 5), keyed("withdrawn")];
    assert_eq!(statuses(&batch(&counter.desk, sent).await), [200, 429, 200]);
}
