//! Statements of one pool do not wait for those of another.

use std::{sync::Arc, time::Duration};

use integration_tests::sandbox::{Proxy, shared};
use tokio::{task::JoinSet, time::timeout};

use super::{LONG, claim, fixture, own, submitted};
use crate::store::{Connections, Database, Effect, PoolKind, StoreOp};

/// Runs many more statements than there are connections, one after another until the returned set is dropped. Each
/// holds its connection for nearly as long as the server allows.
async fn fill(database: &Arc<Database>, op: StoreOp) -> JoinSet<()> {
    let mut slow = JoinSet::new();
    for _ in 0..40 {
        let database = Arc::clone(database);
        slow.spawn(async move {
            loop {
                let asleep =
                    database.run(op, |pool| async move { sqlx::query("SELECT pg_sleep(4.5)").execute(&pool).await });
                // Most of the statements get no connection.
                let _ = asleep.await;
            }
        });
    }
    until(database, op, |now| now.open == now.most && now.idle == 0).await;
    slow
}

async fn until(database: &Database, op: StoreOp, wanted: impl Fn(Connections) -> bool) {
    let seen = async {
        while !wanted(database.connections(op.pool())) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let seen = timeout(LONG, seen).await;
    assert!(seen.is_ok(), "the pool of {op} stays {:?}", database.connections(op.pool()));
}

#[tokio::test]
async fn readers_delay_neither_a_claim_nor_a_submission() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    let _readers = fill(&test.database, StoreOp::TaskList).await;
    assert_eq!(claim(&test, &ids, &fences).await.deliveries.len(), 1);
    submitted(&test, 1).await;
}

#[tokio::test]
async fn submissions_delay_no_claim() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 1).await;
    let _submissions = fill(&test.database, StoreOp::TaskSubmit).await;
    assert_eq!(claim(&test, &ids, &fences).await.deliveries.len(), 1);
}

#[tokio::test]
async fn the_connections_of_a_silent_server_are_left_behind_in_every_pool() {
    let test = fixture::database().await;
    let server = shared::postgres().await.unwrap();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let name = test.url.rsplit('/').next().unwrap();
    let database = fixture::open(&server.url_through(proxy.port(), name));
    let each = [StoreOp::TaskClaim, StoreOp::TaskSubmit, StoreOp::TaskList];
    let ask = async |op| database.run(op, |pool| async move { sqlx::query("SELECT 1").execute(&pool).await }).await;
    for op in each {
        ask(op).await.unwrap();
        // A connection returns to its pool in the background.
        until(&database, op, |now| (now.open, now.idle) == (1, 1)).await;
    }
    proxy.cut();
    assert_eq!(ask(StoreOp::TaskList).await.unwrap_err().effect, Effect::Unknown);
    assert_eq!(PoolKind::ALL.map(|kind| database.connections(kind).open), [0, 0, 0]);
    proxy.heal();
    for op in each {
        ask(op).await.unwrap();
    }
}

/// Otherwise it would wait for ever: its server sends nothing, and it has nothing to send.
#[tokio::test]
async fn the_connection_for_nudges_notices_that_its_server_has_vanished() {
    let test = fixture::database().await;
    let server = shared::postgres().await.unwrap();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let name = test.url.rsplit('/').next().unwrap();
    let database = fixture::open(&server.url_through(proxy.port(), name));
    let mut nudges = database.nudges(None).await.unwrap();
    proxy.cut();
    timeout(LONG, nudges.next()).await.expect("it asks").expect_err("there is no answer");
}
