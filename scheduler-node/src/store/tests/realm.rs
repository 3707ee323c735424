//! A database serves one realm at a time.

use common::{cluster::realm::Realms, ids::RealmId};
use uuid::Uuid;

use super::fixture::{self, TestDatabase};

fn realm() -> RealmId {
    RealmId::new(Uuid::new_v4())
}

/// What a node knows that has found these, one after the other.
fn known(found: &[RealmId]) -> Realms {
    let mut realms = Realms::default();
    found.iter().for_each(|realm| realms.found(*realm));
    realms
}

/// Lets the note be as old as if its nodes had been silent for that long.
async fn silent_for(test: &TestDatabase, seconds: i32) {
    sqlx::query("UPDATE duetime.realm SET seen_at = clock_timestamp() - $1 * interval '1 s'")
        .bind(seconds)
        .execute(&test.pool)
        .await
        .unwrap();
}

async fn age_ms(test: &TestDatabase) -> i64 {
    let age = "SELECT (extract(epoch FROM clock_timestamp() - seen_at) * 1000)::bigint FROM duetime.realm";
    sqlx::query_scalar(age).fetch_one(&test.pool).await.unwrap()
}

#[tokio::test]
async fn another_realm_gets_a_database_only_after_a_silence() {
    let test = fixture::database().await;
    let (ours, other) = (realm(), realm());
    let hold = async |found: &[RealmId]| test.database.realm_hold(&known(found)).await.unwrap();
    assert_eq!(test.database.realm_read().await.unwrap(), None);
    assert_eq!(hold(&[]).await, None);
    assert_eq!(hold(&[ours]).await, Some(ours));
    assert_eq!(hold(&[other]).await, Some(ours));
    silent_for(&test, 25).await;
    assert_eq!(hold(&[other]).await, Some(ours), "the silence is too short");
    assert_eq!(test.database.realm_read().await.unwrap(), Some(ours));
    assert_eq!(hold(&[ours]).await, Some(ours));
    assert!(age_ms(&test).await < 20_000, "a node refreshes its note");

    silent_for(&test, 31).await;
    assert_eq!(test.database.realm_read().await.unwrap(), None);
    assert_eq!(hold(&[other]).await, Some(other));
    assert_eq!(hold(&[ours]).await, Some(other), "a node that was silent comes back");
}

#[tokio::test]
async fn a_node_that_knew_the_realm_before_takes_the_database_along_at_once() {
    let test = fixture::database().await;
    let (before, after, other) = (realm(), realm(), realm());
    let hold = async |found: &[RealmId]| test.database.realm_hold(&known(found)).await.unwrap();
    assert_eq!(hold(&[before]).await, Some(before));
    // A node that started after etcd lost its data waits for one that ran meanwhile.
    assert_eq!(hold(&[after]).await, Some(before));
    assert_eq!(hold(&[other, after]).await, Some(before));
    assert_eq!(hold(&[before, after]).await, Some(after));
    assert_eq!(hold(&[after]).await, Some(after));
}

#[tokio::test]
async fn a_note_of_the_future_does_not_shut_its_own_realm_out() {
    let test = fixture::database().await;
    let ours = realm();
    let hold = async |found: &[RealmId]| test.database.realm_hold(&known(found)).await.unwrap();
    hold(&[ours]).await;
    // After a failover to a server whose clock is behind.
    silent_for(&test, -3_600).await;
    assert_eq!(hold(&[realm()]).await, Some(ours));
    assert_eq!(hold(&[ours]).await, Some(ours));
    assert!(age_ms(&test).await >= 0);
}

#[tokio::test]
async fn of_many_realms_that_come_at_once_one_gets_the_database() {
    let test = fixture::database().await;
    let realms: Vec<RealmId> = (0..8).map(|_| realm()).collect();
    let holds = realms.iter().map(|realm| async { test.database.realm_hold(&known(&[*realm])).await.unwrap() });
    let found = futures::future::join_all(holds).await;
    let serving = test.database.realm_read().await.unwrap().unwrap();
    // A node that came at the same moment may see nothing yet, and looks again.
    assert!(found.iter().flatten().all(|found| *found == serving), "{found:?}, {serving}");
    assert!(found.contains(&Some(serving)));
}

#[tokio::test]
async fn a_database_that_lets_nothing_through_still_answers_about_its_realm() {
    let test = fixture::database().await;
    let database = fixture::awaiting_schema("main", &test.url);
    let ours = realm();
    assert_eq!(database.realm_hold(&known(&[ours])).await.unwrap(), Some(ours));
    assert_eq!(database.realm_read().await.unwrap(), Some(ours));
}
