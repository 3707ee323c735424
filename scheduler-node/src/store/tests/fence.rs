//! The fence, in both orders, each with the proof that the lock is what makes it hold.

use common::ids::ShardId;
use sqlx::Row;

use super::{
    FENCE_LOCK, acquire_begun, claim, commit_during, fixture::database, own, submitted, takeover_during, unlocked,
};
use crate::supervise::spawn_child;

/// The statement as it is, and without the lock that it is all about.
const CLAIM: &str = include_str!("../queries/task_claim.sql");

/// Runs a claim of everything on shard 0 as plain SQL and returns how many tasks it took.
async fn claim_with(sql: String, pool: sqlx::PgPool, ids: Vec<uuid::Uuid>, epoch: i64) -> usize {
    let second = sqlx::postgres::types::PgInterval { months: 0, days: 0, microseconds: 1_000_000 };
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(&ids)
        .bind(vec![0_i32; ids.len()])
        .bind(vec![epoch; ids.len()])
        .bind(second)
        .bind(second)
        .bind(Vec::<String>::new())
        .fetch_all(&pool)
        .await
        .unwrap();
    rows.iter().filter(|row| row.get::<Option<uuid::Uuid>, _>("id").is_some()).count()
}

/// A claim under way (held up by a locked row) while another node acquires. Returns what the claim took in the end and
/// what the new owner found to take over.
async fn acquire_during_claim(sql: String) -> (usize, usize) {
    let test = database().await;
    let fences = own(&test, "old").await;
    let ids = submitted(&test, 3).await;
    let mut blocker = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *blocker).await.unwrap();
    sqlx::query("SELECT 1 FROM duetime.task WHERE id = $1 FOR UPDATE")
        .bind(ids[0].uuid())
        .execute(&mut *blocker)
        .await
        .unwrap();

    let waits = sql.contains(FENCE_LOCK);
    let uuids: Vec<_> = ids.iter().map(|id| id.uuid()).collect();
    let claiming = spawn_child(claim_with(sql, test.pool.clone(), uuids, fences[&ShardId::new(0)].number()));
    let found = takeover_during(&test, blocker, waits).await;
    (claiming.await.unwrap(), found)
}

#[tokio::test]
async fn an_acquire_waits_for_a_claim_in_flight_and_takes_over_all_of_it() {
    assert_eq!(acquire_during_claim(CLAIM.to_owned()).await, (3, 3));
}

#[tokio::test]
async fn without_the_lock_a_claim_in_flight_would_be_missed_by_the_new_owner() {
    assert_eq!(acquire_during_claim(unlocked(CLAIM)).await, (3, 0));
}

/// An acquire under way while the old owner claims. Returns what the claim took.
async fn claim_during_acquire(sql: String) -> usize {
    let test = database().await;
    let fences = own(&test, "old").await;
    let ids = submitted(&test, 3).await;
    let acquiring = acquire_begun(&test).await;
    let waits = sql.contains(FENCE_LOCK);
    let uuids: Vec<_> = ids.iter().map(|id| id.uuid()).collect();
    let claiming = spawn_child(claim_with(sql, test.pool.clone(), uuids, fences[&ShardId::new(0)].number()));
    commit_during(&test, acquiring, claiming, waits).await
}

#[tokio::test]
async fn a_claim_waits_for_an_acquire_in_flight_and_takes_nothing() {
    assert_eq!(claim_during_acquire(CLAIM.to_owned()).await, 0);
}

#[tokio::test]
async fn without_the_lock_a_dead_epoch_would_claim() {
    assert_eq!(claim_during_acquire(unlocked(CLAIM)).await, 3);
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
async fn each_acquire_mints_a_higher_epoch() {
    let test = database().await;
    let first = own(&test, "a").await[&ShardId::new(0)];
    let second = own(&test, "b").await[&ShardId::new(0)];
    assert!(second > first);
    let row = &test.database.shards_read().await.unwrap()[0];
    assert_eq!((row.epoch, row.owner.as_deref()), (second, Some("b")));
}
