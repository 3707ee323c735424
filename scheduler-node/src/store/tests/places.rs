//! The map of the shards, read from the fence rows of two databases, and what counts of a shard that is elsewhere.

use std::{sync::Arc, time::Duration};

use common::{
    ids::{DatabaseIndex, ShardId, TaskId},
    shard::ShardStatus,
    task::{BusinessKey, NewTask, OnDuplicate},
};
use futures::FutureExt;

use super::{
    changed,
    fixture::{self, TestDatabase},
    new_task, node, until_waiting,
};
use crate::{
    clock,
    store::{
        Patience, PoolKind, Store,
        put::{PutOutcome, Retention},
    },
    supervise::spawn_child,
};

const EAST: DatabaseIndex = DatabaseIndex::new(0);
const WEST: DatabaseIndex = DatabaseIndex::new(1);
const SHARD: ShardId = ShardId::new(3);

async fn set(test: &TestDatabase, shards: &str, status: &str) {
    let sql = format!("UPDATE duetime.shard SET status = '{status}' WHERE id {shards}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&test.pool).await.unwrap();
}

/// Shards 0 to 63 in the east and the others in the west.
async fn two_databases() -> (Store, [TestDatabase; 2]) {
    let tests = [fixture::database().await, fixture::database().await];
    set(&tests[0], "> 63", "gone").await;
    set(&tests[1], "< 64", "arriving").await;
    let databases = vec![fixture::named("east", &tests[0].url), fixture::named("west", &tests[1].url)];
    (Store::new(databases), tests)
}

fn place(store: &Store) -> Option<(DatabaseIndex, ShardStatus)> {
    store.places().of(SHARD).map(|place| (place.database, place.status))
}

#[tokio::test]
async fn the_map_follows_a_shard_through_its_move() {
    let (store, [east, west]) = two_databases().await;
    let mut changes = store.places().changes();
    assert!(!store.places().is_read());
    store.places().refresh().await.unwrap();
    assert!(store.places().is_read());
    assert_eq!(place(&store), Some((EAST, ShardStatus::Here)));
    assert_eq!(store.databases()[0].elsewhere(), (64..128).collect::<Vec<_>>());
    assert_eq!(store.databases()[1].elsewhere(), (0..64).collect::<Vec<_>>());
    changes.mark_unchanged();
    store.places().refresh().await.unwrap();
    assert!(!changes.has_changed().unwrap(), "no database has changed");
    for (test, status, expected) in [
        (&east, "leaving", (EAST, ShardStatus::Leaving)),
        (&east, "gone", (EAST, ShardStatus::Gone)),
        (&west, "here", (WEST, ShardStatus::Here)),
    ] {
        set(test, "= 3", status).await;
        store.places().refresh().await.unwrap();
        assert_eq!(place(&store), Some(expected));
        assert_eq!(store.places().has_opened_lately(SHARD), status == "here");
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
    }
    assert!(store.databases()[0].elsewhere().contains(&3) && !store.databases()[1].elsewhere().contains(&3));
    assert_eq!(store.of(SHARD).unwrap().name().as_str(), "west");
}

#[tokio::test]
async fn a_database_that_is_added_later_is_read_and_followed_like_the_first() {
    let [east, west] = [fixture::database().await, fixture::database().await];
    sqlx::raw_sql("DELETE FROM duetime.shard").execute(&west.pool).await.unwrap();
    let store = Store::new(vec![fixture::named("east", &east.url)]);
    store.places().refresh().await.unwrap();
    let (reader, first) = (store.clone(), store.map_fingerprint());
    store.add(fixture::named("west", &west.url));
    store.places().refresh().await.unwrap();
    assert_eq!((place(&reader), reader.databases().len()), (Some((EAST, ShardStatus::Here)), 2));
    assert_eq!(first, store.map_fingerprint(), "it has no shards");
    set(&east, "= 3", "gone").await;
    sqlx::raw_sql("INSERT INTO duetime.shard (id, epoch) VALUES (3, 6)").execute(&west.pool).await.unwrap();
    reader.places().refresh().await.unwrap();
    assert_eq!(place(&store), Some((WEST, ShardStatus::Here)));
    assert_eq!(reader.of(SHARD).unwrap().name().as_str(), "west");
    assert_eq!(reader.databases()[0].elsewhere(), [3]);
    assert_ne!(first, store.map_fingerprint());
}

#[tokio::test]
async fn a_database_tells_the_number_of_shards_and_until_then_nothing_is_guessed() {
    let test = fixture::database().await;
    let store = Store::new(vec![fixture::named("east", &test.url), fixture::unreachable_database("west")]);
    let places = store.places();
    assert_eq!((places.shard_count(), places.of(SHARD)), (None, None));
    assert_eq!(places.known().now_or_never(), None, "it waits");
    let told = store.databases()[0].schema_check().await.unwrap().shard_count;
    assert_eq!(places.learn_shard_count(told), (128, true));
    assert_eq!(places.known().now_or_never(), None, "it waits for the places too");
    assert_eq!(places.learn_shard_count(256), (128, false), "another database does not change it");
    let (known, _) = tokio::join!(places.known(), places.refresh());
    assert_eq!((known, place(&store)), (Some(128), Some((EAST, ShardStatus::Here))));
}

#[tokio::test]
async fn the_fence_of_a_shard_is_taken_in_its_place_only() {
    let (store, [east, _west]) = two_databases().await;
    store.places().refresh().await.unwrap();
    let [in_east, in_west] = [0, 1].map(|index| Arc::clone(&store.databases()[index]));
    let shards = [SHARD, ShardId::new(100)];
    let taken = |taken: Vec<(ShardId, _)>| taken.into_iter().map(|(shard, _)| shard).collect::<Vec<_>>();
    assert_eq!(taken(in_east.shard_acquire(&shards, &node("a")).await.unwrap()), [SHARD]);
    assert_eq!(taken(in_west.shard_acquire(&shards, &node("a")).await.unwrap()), [ShardId::new(100)]);
    // In the last part of a move only the owner that knows of it takes the fence, to finish the move.
    set(&east, "= 3", "gone").await;
    assert_eq!(taken(in_east.shard_acquire(&shards, &node("a")).await.unwrap()), []);
    store.places().refresh().await.unwrap();
    assert_eq!(taken(in_east.shard_acquire(&shards, &node("a")).await.unwrap()), [SHARD]);
}

#[tokio::test]
async fn many_callers_share_a_read_and_a_silent_database_delays_none() {
    let test = fixture::database().await;
    let east = fixture::named("east", &test.url);
    let store = fixture::store(vec![east, fixture::unreachable_database("west")]);
    set(&test, "> 63", "gone").await;
    let callers = (0..50).map(|_| store.places().refresh());
    let read = futures::future::join_all(callers).await;
    assert!(read.iter().all(Result::is_err), "the west cannot be read, and each caller hears of it: {read:?}");
    assert_eq!(place(&store), Some((EAST, ShardStatus::Here)));
    assert_eq!(store.places().of(ShardId::new(100)).unwrap().database, WEST, "its shards stay where they were");
}

#[tokio::test]
async fn a_sender_that_was_refused_first_too_long_ago_gives_up_however_few_tries_it_had() {
    let store = fixture::store(vec![fixture::unreachable_database("west")]);
    let now = clock::instant();
    for (patience, is_over_after) in [(Patience::Short, 1_300), (Patience::Long, 5_500)] {
        let long_ago = now.checked_sub(Duration::from_millis(is_over_after + 1)).unwrap();
        assert!(!store.places().reread_after_move(1, long_ago, patience).await, "{patience:?}");
    }
    assert!(
        store.places().reread_after_move(1, clock::instant(), Patience::Short).await,
        "its patience has just begun"
    );
}

#[tokio::test]
async fn a_submission_in_sql_goes_to_a_shard_that_is_here() {
    let test = fixture::database().await;
    set(&test, "> 3", "gone").await;
    let submit = async || {
        let submitted = sqlx::query_scalar::<_, uuid::Uuid>("SELECT duetime.submit('q', '1')");
        TaskId::from_uuid(submitted.fetch_one(&test.pool).await.unwrap())
    };
    for _ in 0..50 {
        assert!(submit().await.shard().number() <= 3);
    }
    let here = submit().await;
    set(&test, "<= 3", "gone").await;
    assert!(submit().await.shard().number() < 128, "any shard of the cluster");
    // The row waits for a shard that is elsewhere by now, so its cancelled task is made there.
    let cancelled: String =
        sqlx::query_scalar("SELECT duetime.cancel($1)").bind(here.uuid()).fetch_one(&test.pool).await.unwrap();
    let marked: bool = sqlx::query_scalar("SELECT cancelled_at IS NOT NULL FROM duetime.inbox WHERE id = $1")
        .bind(here.uuid())
        .fetch_one(&test.pool)
        .await
        .unwrap();
    assert_eq!((cancelled.as_str(), marked), ("cancelled", true));
    // When the shard comes back, the row is no ordinary row of this database.
    set(&test, "<= 3", "here").await;
    let task = new_task(here);
    assert_eq!(test.database.task_collect(std::slice::from_ref(&task), None).await.unwrap(), []);
    assert_eq!(test.state_of(here).await, None, "it is cancelled, and not a task");
}

const HOLD: Retention = Retention { window_ms: 3_600_000, keep_ms: 3_600_000 };

/// The shard of the tasks since their queue, which had none any more, was placed anew.
const PLACED_ANEW: ShardId = ShardId::new(5);

/// A task with the key `k`.
fn keyed(shard: ShardId, on_duplicate: OnDuplicate, version: i64) -> NewTask {
    let key = BusinessKey { key: "k".to_owned(), version, on_duplicate };
    changed(new_task(fixture::fresh_id_of(shard)), |task| task.keyed = Some(key))
}

async fn put(test: &TestDatabase, task: NewTask) -> PutOutcome {
    test.database.task_put(&[task], &[HOLD]).await.unwrap().remove(0).outcome
}

/// Deletes what a move left of the shard, as its clean-up does.
async fn clean_up(test: &TestDatabase) {
    sqlx::raw_sql("DELETE FROM duetime.task WHERE shard = 3").execute(&test.pool).await.unwrap();
}

#[tokio::test]
async fn a_key_is_busy_while_a_row_that_a_move_left_has_it_and_free_from_then_on() {
    for status in ["gone", "arriving"] {
        let test = fixture::database().await;
        assert_eq!(put(&test, keyed(SHARD, OnDuplicate::Keep, 0)).await, PutOutcome::Created);
        set(&test, "= 3", status).await;
        for mode in [OnDuplicate::Keep, OnDuplicate::Reject, OnDuplicate::Replace, OnDuplicate::Version] {
            let mut batch = [keyed(PLACED_ANEW, mode, 0), keyed(PLACED_ANEW, mode, 0)];
            batch[1].keyed.as_mut().expect("a key").key = mode.text().to_owned();
            let puts = test.database.task_put(&batch, &[HOLD; 2]).await.unwrap();
            let outcomes: Vec<PutOutcome> = puts.iter().map(|put| put.outcome).collect();
            assert_eq!(outcomes, [PutOutcome::Busy, PutOutcome::Created], "{status}, {mode:?}");
        }
        clean_up(&test).await;
        assert_eq!(put(&test, keyed(PLACED_ANEW, OnDuplicate::Keep, 0)).await, PutOutcome::Created);
    }
}

#[tokio::test]
async fn a_busy_submission_of_a_version_that_a_move_left_neither_replaces_nor_supersedes_another() {
    let test = fixture::database().await;
    assert_eq!(put(&test, keyed(SHARD, OnDuplicate::Keep, 2)).await, PutOutcome::Created);
    set(&test, "= 3", "gone").await;
    assert_eq!(put(&test, keyed(PLACED_ANEW, OnDuplicate::Keep, 1)).await, PutOutcome::Created);
    for mode in [OnDuplicate::Replace, OnDuplicate::Version] {
        assert_eq!(put(&test, keyed(PLACED_ANEW, mode, 2)).await, PutOutcome::Busy, "{mode:?}");
    }
    let found = sqlx::query_as("SELECT version, state::text FROM duetime.task WHERE shard = 5");
    let found: (i64, String) = found.fetch_one(&test.pool).await.unwrap();
    assert_eq!(found, (1, "scheduled".to_owned()));
    clean_up(&test).await;
    let superseding = keyed(PLACED_ANEW, OnDuplicate::Version, 2);
    let put = test.database.task_put(&[superseding], &[HOLD]).await.unwrap().remove(0);
    assert_eq!((put.outcome, put.superseded), (PutOutcome::Created, 1));
}

/// A page of the copy may be older than the end of the task in its source.
#[tokio::test]
async fn a_key_that_the_copy_of_a_move_takes_at_the_same_moment_is_busy() {
    let test = fixture::database().await;
    set(&test, "= 3", "arriving").await;
    test.be_patient(PoolKind::Write).await;
    let mut copying = test.pool.acquire().await.unwrap();
    let copy = "BEGIN;
                INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key)
                VALUES (gen_random_uuid(), 3, 'orders', 'scheduled', now(), now(), '', 'x', 'k')";
    sqlx::raw_sql(copy).execute(&mut *copying).await.unwrap();
    let database = Arc::clone(&test.database);
    let submitted = keyed(PLACED_ANEW, OnDuplicate::Keep, 0);
    let putting = spawn_child(async move { database.task_put(&[submitted], &[HOLD]).await });
    until_waiting(&test.pool, 1).await;
    sqlx::query("COMMIT").execute(&mut *copying).await.unwrap();
    assert_eq!(putting.await.unwrap().unwrap().remove(0).outcome, PutOutcome::Busy);
}

#[tokio::test]
async fn a_submission_whose_own_shard_is_closed_while_it_waits_has_moved_and_its_key_is_not_busy() {
    let test = fixture::database().await;
    assert_eq!(put(&test, keyed(SHARD, OnDuplicate::Keep, 0)).await, PutOutcome::Created);
    test.be_patient(PoolKind::Write).await;
    let mut holder = test.pool.acquire().await.unwrap();
    let hold = "SELECT pg_advisory_lock(hashtextextended('orders 0 k', 0))";
    sqlx::raw_sql(hold).execute(&mut *holder).await.unwrap();
    let (database, again) = (Arc::clone(&test.database), keyed(SHARD, OnDuplicate::Keep, 0));
    let putting = spawn_child(async move { database.task_put(&[again], &[HOLD]).await });
    until_waiting(&test.pool, 1).await;
    set(&test, "= 3", "gone").await;
    sqlx::raw_sql("SELECT pg_advisory_unlock_all()").execute(&mut *holder).await.unwrap();
    assert!(putting.await.unwrap().expect_err("its shard has gone").is_moved());
}
