//! Connections that are made ready ahead: their sessions have planned the hot statements.

use futures::future::join_all;
use sqlx::Row;

use super::fixture;
use crate::store::PoolKind;

/// The hot statements that each session of a pool has prepared and planned, by a word of each.
async fn planned(test: &fixture::TestDatabase, kind: PoolKind) -> Vec<Vec<bool>> {
    let pools = test.database.pools.load_full();
    let pool = pools.of(kind);
    let all = join_all((0..pool.most()).map(|_| pool.acquire())).await;
    let mut sessions = Vec::new();
    for connection in all {
        let mut connection = connection.unwrap();
        let words = ["-- The gate to the broker", "-- Reads the keys", "-- Moves finished", "-- Writes a batch"];
        let mut has = Vec::new();
        for word in words {
            let query = "SELECT coalesce(sum(generic_plans), 0)::bigint AS plans FROM pg_prepared_statements
                          WHERE starts_with(statement, $1)";
            let row = sqlx::query(query).bind(word).fetch_one(&mut *connection).await.unwrap();
            has.push(row.get::<i64, _>("plans") > 0);
        }
        sessions.push(has);
    }
    sessions
}

#[tokio::test]
async fn a_node_plans_the_hot_statements_on_each_connection_before_its_first_task() {
    let test = fixture::database().await;
    test.database.warm_up().await.unwrap();
    let (fire, write) = (test.database.connections(PoolKind::Fire), test.database.connections(PoolKind::Write));
    assert_eq!((fire.open, write.open), (fire.most, write.most));
    for session in planned(&test, PoolKind::Fire).await {
        assert_eq!(session, [true, true, true, false]);
    }
    for session in planned(&test, PoolKind::Write).await {
        assert_eq!(session, [false, false, false, true]);
    }
}
