use std::time::Instant;

use uuid::Uuid;

use super::*;
use crate::{by_database::ByDatabase, store::tests::fixture};

#[tokio::test]
async fn a_newcomer_joins_when_it_answers_has_the_schema_and_belongs_to_the_cluster() {
    let test = fixture::database().await;
    let ours = test.database.schema_check().await.expect("it fits").cluster;
    let newcomer = fixture::awaiting_schema("main", &test.url);
    assert_eq!(why_not(&newcomer, Some(128), Some(ours)).await, None);
    let other = ClusterId::new(Uuid::from_u128(9));
    for (shards, cluster, words) in [
        (Some(128), None, "has answered yet"),
        (Some(128), Some(other), "belongs to cluster"),
        (Some(64), Some(ours), "of 128 shards"),
        (None, Some(ours), "has answered yet"),
    ] {
        let why = why_not(&newcomer, shards, cluster).await.expect("refused");
        assert!(why.contains(words), "{why}");
    }
    assert!(newcomer.queue_read().await.is_err(), "a look lets no statement through");
    sqlx::raw_sql("DROP SCHEMA duetime CASCADE").execute(&test.pool).await.unwrap();
    let why = why_not(&newcomer, Some(128), Some(ours)).await.expect("refused");
    assert!(why.contains("duetime migrate"), "{why}");
    let away = fixture::unreachable_database("away");
    assert!(why_not(&away, Some(128), Some(ours)).await.is_some());
}

#[tokio::test]
async fn a_newcomer_is_looked_at_until_what_is_wrong_with_it_is_mended() {
    let test = fixture::database().await;
    let ours = test.database.schema_check().await.expect("it fits").cluster;
    let (cluster, known) = watch::channel(None);
    let places = Places::new(ByDatabase::default());
    places.learn_shard_count(128);
    let joining = until_fit(Arc::new(fixture::awaiting_schema("main", &test.url)), places, known);
    let began = Instant::now();
    let mend = async {
        tokio::task::yield_now().await;
        cluster.send_replace(Some(ours));
    };
    let within = tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(joining, mend).0 });
    let joined = within.await.unwrap_or_else(|_| panic!("it has not joined after {:?}", began.elapsed()));
    assert_eq!(joined.name().as_str(), "main");
}
