use std::time::Instant;

use uuid::Uuid;

use super::*;
use crate::{by_database::ByDatabase, store::tests::fixture};

fn places(shard_count: Option<u16>) -> Places {
    let places = Places::new(ByDatabase::default());
    shard_count.map(|shard_count| places.learn_shard_count(shard_count));
    places
}

#[tokio::test]
async fn a_database_joins_under_one_name_only() {
    let test = fixture::database().await;
    let ours = test.database.schema_check().await.expect("it fits").cluster;
    let places = places(Some(128));
    for (name, refused) in [("west", None), ("west", None), ("east", Some("the same database under two names"))] {
        let why = why_not(&fixture::awaiting_schema(name, &test.url), &places, Some(ours)).await;
        let is_as_expected = match refused {
            Some(words) => why.as_ref().is_some_and(|why| why.contains(words)),
            None => why.is_none(),
        };
        assert!(is_as_expected, "{name}: {why:?}");
    }
}

#[tokio::test]
async fn a_newcomer_joins_when_it_answers_has_the_schema_and_belongs_to_the_cluster() {
    let test = fixture::database().await;
    let ours = test.database.schema_check().await.expect("it fits").cluster;
    let newcomer = fixture::awaiting_schema("main", &test.url);
    let (of_128, of_64, unread) = (places(Some(128)), places(Some(64)), places(None));
    assert_eq!(why_not(&newcomer, &of_128, Some(ours)).await, None);
    let other = ClusterId::new(Uuid::from_u128(9));
    for (places, cluster, words) in [
        (&of_128, None, "has answered yet"),
        (&of_128, Some(other), "belongs to cluster"),
        (&of_64, Some(ours), "of 128 shards"),
        (&unread, Some(ours), "has answered yet"),
    ] {
        let why = why_not(&newcomer, places, cluster).await.expect("refused");
        assert!(why.contains(words), "{why}");
    }
    assert!(newcomer.queue_read().await.is_err(), "a look lets no statement through");
    sqlx::raw_sql("DROP SCHEMA duetime CASCADE").execute(&test.pool).await.unwrap();
    let why = why_not(&newcomer, &of_128, Some(ours)).await.expect("refused");
    assert!(why.contains("duetime migrate"), "{why}");
    let away = fixture::unreachable_database("away");
    assert!(why_not(&away, &of_128, Some(ours)).await.is_some());
}

#[tokio::test]
async fn a_newcomer_is_looked_at_until_what_is_wrong_with_it_is_mended() {
    let test = fixture::database().await;
    let ours = test.database.schema_check().await.expect("it fits").cluster;
    let (cluster, known) = watch::channel(None);
    let newcomer = Arc::new(fixture::awaiting_schema("main", &test.url));
    let joining = until_fit(newcomer, places(Some(128)), known);
    let began = Instant::now();
    let mend = async {
        tokio::task::yield_now().await;
        cluster.send_replace(Some(ours));
    };
    let within = tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(joining, mend).0 });
    let joined = within.await.unwrap_or_else(|_| panic!("it has not joined after {:?}", began.elapsed()));
    assert_eq!(joined.name().as_str(), "main");
}
