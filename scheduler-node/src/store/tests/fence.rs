//! The fence. The tests run a claim and an acquire in both orders. For each order, another run without the lock
//! shows that the lock is what protects the shard.

use common::ids::ShardId;
use sqlx::Row;

use super::{
    FENCE_LOCK, acquire_begun, claim, commit_during, fixture::database, node, own, submitted, unlocked, until_waiting,
};
use crate::{store::PoolKind, supervise::spawn_child};

/// The claim as the store runs it. The tests also run it without its lock on the fence.
fn claim_text() -> String {
    statement!("task_claim").to_owned()
}

/// Runs a claim of everything on shard 0 as plain SQL and returns how many tasks it took.
async fn claim_with(sql: String, executor: impl sqlx::PgExecutor<'_>, ids: Vec<uuid::Uuid>, epoch: i64) -> usize {
    let second = sqlx::postgres::types::PgInterval { months: 0, days: 0, microseconds: 1_000_000 };
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(&ids)
        .bind(vec![0_i32; ids.len()])
        .bind(vec![epoch; ids.len()])
        .bind(second)
        .bind(second)
        .bind(Vec::<String>::new())
        .bind(i64::MAX)
        .fetch_all(executor)
        .await
        .unwrap();
    rows.iter().filter(|row| row.get::<Option<&str>, _>("fate") == Some("taken")).count()
}

/// Lets another node acquire the shard while a claim is in flight (not committed). Returns how many tasks the claim
/// took and how many the new owner found to take over.
async fn acquire_during_claim(sql: String) -> (usize, usize) {
    let test = database().await;
    let fences = own(&test, "old").await;
    let ids = submitted(&test, 3).await;
    test.be_patient(PoolKind::Fire).await;
    let waits = sql.contains(FENCE_LOCK);
    let uuids: Vec<_> = ids.iter().map(|id| id.uuid()).collect();
    let mut claiming = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *claiming).await.unwrap();
    let claimed = claim_with(sql, &mut *claiming, uuids, fences[&ShardId::new(0)].number()).await;
    let database = test.database.clone();
    let acquiring = spawn_child(async move {
        let taken = database.shard_acquire(&[ShardId::new(0)], &node("new")).await.unwrap();
        database.task_takeover(&taken.into_iter().collect(), 100).await.unwrap().len()
    });
    if waits {
        until_waiting(&test.pool, 1).await;
        sqlx::query("COMMIT").execute(&mut *claiming).await.unwrap();
        return (claimed, acquiring.await.unwrap());
    }
    let found = acquiring.await.unwrap();
    sqlx::query("COMMIT").execute(&mut *claiming).await.unwrap();
    (claimed, found)
}

#[tokio::test]
async fn an_acquire_waits_for_a_claim_in_flight_and_takes_over_all_of_it() {
    assert_eq!(acquire_during_claim(claim_text()).await, (3, 3));
}

#[tokio::test]
async fn without_the_lock_a_claim_in_flight_would_be_missed_by_the_new_owner() {
    assert_eq!(acquire_during_claim(unlocked(&claim_text())).await, (3, 0));
}

/// Lets the old owner claim while an acquire is in flight. Returns how many tasks the claim took.
async fn claim_during_acquire(sql: String) -> usize {
    let test = database().await;
    let fences = own(&test, "old").await;
    let ids = submitted(&test, 3).await;
    let acquiring = acquire_begun(&test).await;
    let waits = sql.contains(FENCE_LOCK);
    let uuids: Vec<_> = ids.iter().map(|id| id.uuid()).collect();
    let (pool, epoch) = (test.pool.clone(), fences[&ShardId::new(0)].number());
    let claiming = spawn_child(async move { claim_with(sql, &pool, uuids, epoch).await });
    commit_during(&test, acquiring, claiming, waits).await
}

#[tokio::test]
async fn a_claim_waits_for_an_acquire_in_flight_and_takes_nothing() {
    assert_eq!(claim_during_acquire(claim_text()).await, 0);
}

#[tokio::test]
async fn without_the_lock_a_dead_epoch_would_claim() {
    assert_eq!(claim_during_acquire(unlocked(&claim_text())).await, 3);
}

/// A rescue under a dead epoch would publish a copy beside that of the new owner.
#[tokio::test]
async fn a_rescue_waits_for_an_acquire_in_flight_and_takes_nothing() {
    let test = database().await;
    let fences = own(&test, "old").await;
    let ids = submitted(&test, 3).await;
    claim(&test, &ids, &fences).await;
    test.be_patient(PoolKind::Fire).await;
    let acquiring = acquire_begun(&test).await;
    let waits = statement!("task_rescue").contains(FENCE_LOCK);
    let database = test.database.clone();
    let rescuing = spawn_child(async move { database.task_rescue(&ids, &fences).await.unwrap().deliveries.len() });
    assert_eq!(commit_during(&test, acquiring, rescuing, waits).await, 0, "a dead epoch rescues nothing");
}

#[tokio::test]
async fn an_old_epoch_claims_nothing_and_is_told_so() {
    let test = database().await;
    let old = own(&test, "old").await;
    let new = own(&test, "new").await;
    let ids = submitted(&test, 2).await;
    let refused = claim(&test, &ids, &old).await;
    assert!(refused.refused);
    assert!(refused.deliveries.is_empty());
    assert!(test.database.shard_held(&old).await.unwrap().is_empty());
    let taken = claim(&test, &ids, &new).await;
    assert!(!taken.refused);
    assert_eq!(taken.deliveries.len(), 2);
}

#[tokio::test]
async fn a_contested_shard_does_not_keep_the_others_from_being_acquired() {
    let test = database().await;
    let mut claiming = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *claiming).await.unwrap();
    sqlx::query("SELECT FROM duetime.shard WHERE id = 1 FOR SHARE").execute(&mut *claiming).await.unwrap();
    let shards = [0, 1, 2].map(ShardId::new);
    let mut taken = test.database.shard_acquire_free(&shards, &node("new")).await.unwrap();
    taken.sort();
    assert_eq!(taken.iter().map(|(shard, _)| *shard).collect::<Vec<_>>(), [shards[0], shards[2]]);
    let refused = test.database.shard_acquire(&shards, &node("new")).await;
    assert!(refused.is_err_and(|error| error.is_contention()), "it takes all or none");
    sqlx::query("COMMIT").execute(&mut *claiming).await.unwrap();
    assert_eq!(test.database.shard_acquire(&shards, &node("new")).await.unwrap().len(), 3);
}

/// A claim that comes while an acquire waits for another claim queues up behind the acquire. With the plain
/// statement the claim would pass by, and claims that overlap for ever would keep the acquire out for ever.
#[tokio::test]
async fn claims_that_overlap_do_not_starve_an_acquire() {
    const CLAIM: &str = "SELECT FROM duetime.shard WHERE id = 0 FOR SHARE";
    let test = database().await;
    // Without a timeout, the test decides how long the acquire waits.
    test.be_patient(PoolKind::Fire).await;
    let patient = "ALTER FUNCTION duetime.acquire_in_turn(integer[], text, uuid, integer[]) SET lock_timeout = 0";
    sqlx::query(patient).execute(&test.pool).await.unwrap();
    let mut first = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *first).await.unwrap();
    sqlx::query(CLAIM).execute(&mut *first).await.unwrap();
    let database = test.database.clone();
    let acquiring = spawn_child(async move { database.shard_acquire(&[ShardId::new(0)], &node("new")).await });
    until_waiting(&test.pool, 1).await;
    let pool = test.pool.clone();
    let second = spawn_child(async move { sqlx::query(CLAIM).execute(&pool).await });
    until_waiting(&test.pool, 2).await;
    sqlx::query("COMMIT").execute(&mut *first).await.unwrap();
    assert_eq!(acquiring.await.unwrap().unwrap().len(), 1);
    second.await.unwrap().unwrap();
}

#[tokio::test]
async fn each_acquire_mints_a_higher_epoch() {
    let test = database().await;
    let acquire =
        async |name: &str| test.database.shard_acquire_free(&[ShardId::new(0)], &node(name)).await.unwrap()[0].1;
    let (first, second) = (acquire("a").await, acquire("b").await);
    assert!(second > first);
    let row = &test.database.shards_read().await.unwrap()[0];
    assert_eq!((row.epoch, row.owner.as_deref()), (second, Some("b")));
    assert!(own(&test, "c").await[&ShardId::new(0)] > second, "so does the statement that waits");
}

#[tokio::test]
async fn the_fence_of_a_shard_that_has_moved_away_names_no_owner() {
    let test = database().await;
    own(&test, "a").await;
    for (status, is_shown) in [("here", true), ("leaving", true), ("gone", false), ("arriving", false)] {
        let set = "UPDATE duetime.shard SET status = $1::duetime.shard_status WHERE id = 0";
        sqlx::query(set).bind(status).execute(&test.pool).await.unwrap();
        let rows = test.database.shards_read().await.unwrap();
        assert_eq!(rows.iter().any(|row| row.id == ShardId::new(0)), is_shown, "{status}");
    }
}
