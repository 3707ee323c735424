//! Statements on a fence that claims hold.

use std::time::Duration;

use super::*;
use crate::coordination::tests::soon;

/// As a claim holds the fence until it commits.
const CLAIM: &str = "SELECT FROM duetime.shard WHERE id = 0 FOR SHARE";

/// Has the plain forms give up at once, and those in turn wait as long as the test decides.
const PATIENT_IN_TURN: &str = "
    ALTER FUNCTION duetime.move_leave(integer, bigint, bigint) SET lock_timeout = '1ms';
    ALTER FUNCTION duetime.move_return(integer, bigint, bigint) SET lock_timeout = '1ms';
    ALTER FUNCTION duetime.move_leave_in_turn(integer, bigint, bigint) SET lock_timeout = 0;
    ALTER FUNCTION duetime.move_return_in_turn(integer, bigint, bigint) SET lock_timeout = 0;
";

/// Whether a statement waits for its turn in this database.
const IN_TURN: &str = "
    SELECT EXISTS (
           SELECT FROM pg_locks
            WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
              AND relation = 'duetime.shard'::regclass AND mode = 'ExclusiveLock' AND NOT granted)";

/// A claim that comes later waits behind them, so claims that overlap for ever keep them out for a moment only.
#[tokio::test]
async fn claims_that_overlap_starve_neither_the_begin_of_a_move_nor_the_end_of_one_that_is_called_off() {
    let (pair, _) = Pair::here().await;
    pair.source.be_patient(PoolKind::Fire).await;
    let pool = pair.source.pool.clone();
    sqlx::raw_sql(PATIENT_IN_TURN).execute(&pool).await.unwrap();
    pair.source.database.move_guard(&[SHARD], false).await.unwrap();
    for (leaves, status) in [(true, ShardStatus::Leaving), (false, ShardStatus::Here)] {
        let mut first = begun(&pool).await;
        sqlx::query(CLAIM).execute(&mut *first).await.unwrap();
        let (database, epoch, number) = (pair.source.database.clone(), pair.epoch, pair.next_write());
        let step = spawn_child(async move {
            if leaves {
                database.move_leave(SHARD, epoch, number).await
            } else {
                database.move_return(SHARD, epoch, number).await
            }
        });
        let its_turn = async {
            while !sqlx::query_scalar::<_, bool>(IN_TURN).fetch_one(&pool).await.unwrap() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("a statement that waits for its turn", its_turn).await;
        let claims = pool.clone();
        let second = spawn_child(async move { sqlx::query(CLAIM).execute(&claims).await });
        until_waiting(&pool, 2).await;
        sqlx::query("COMMIT").execute(&mut *first).await.unwrap();
        assert!(step.await.unwrap().unwrap());
        second.await.unwrap().unwrap();
        assert_eq!(Pair::status(&pair.source).await, Some(status));
    }
}
