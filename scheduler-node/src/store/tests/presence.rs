//! Presence locks: a start is present exactly as long as its session lives.

use std::{collections::BTreeSet, time::Duration};

use common::ids::Incarnation;
use uuid::Uuid;

use super::fixture::{self, TestDatabase};
use crate::{
    coordination::tests::{SOON, soon},
    store::watch::Notification,
};

fn start() -> Incarnation {
    Incarnation::new(Uuid::new_v4())
}

/// Ends the session that holds the presence lock, as a restart of the server would.
async fn end_sessions(test: &TestDatabase) {
    sqlx::query(
        "SELECT pg_terminate_backend(pid) FROM pg_locks
          WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .execute(&test.pool)
    .await
    .unwrap();
}

async fn until_present(
    test: &TestDatabase,
    me: Incarnation,
    expected: Option<BTreeSet<Incarnation>>,
    other: Incarnation,
) {
    let wait = async {
        while test.database.present(me, &[other]).await.unwrap() != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.expect("the lock follows the session");
}

#[tokio::test]
async fn a_start_is_present_while_its_session_lives_and_again_after_a_reconnect() {
    let test = fixture::database().await;
    let (me, other) = (start(), start());
    let mine = test.database.nudges(Some(me)).await.unwrap();
    assert_eq!(test.database.present(me, &[other]).await.unwrap(), Some(BTreeSet::new()));
    let mut theirs = test.database.nudges(Some(other)).await.unwrap();
    assert_eq!(test.database.present(me, &[other]).await.unwrap(), Some([other].into()));
    end_sessions(&test).await;
    // This node's session has ended too, so the answer tells nothing about the other one.
    until_present(&test, me, None, other).await;
    assert_eq!(soon("a notification", theirs.next()).await.unwrap(), Notification::Gap);
    drop(mine);
    let _mine = test.database.nudges(Some(me)).await.unwrap();
    assert_eq!(test.database.present(me, &[other]).await.unwrap(), Some([other].into()));
    drop(theirs);
    until_present(&test, me, Some(BTreeSet::new()), other).await;
}

#[tokio::test]
async fn nodes_that_look_at_the_same_time_do_not_see_one_another() {
    let test = fixture::database().await;
    let (me, ended) = (start(), start());
    let _mine = test.database.nudges(Some(me)).await.unwrap();
    let starts = [ended];
    let looks = (0..200).map(|_| test.database.present(me, &starts));
    for look in futures::future::join_all(looks).await {
        assert_eq!(look.unwrap(), Some(BTreeSet::new()));
    }
}
