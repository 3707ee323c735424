use std::time::Duration;

use common::ids::{QueueName, TaskId};
use sqlx::Executor;

use super::*;
use crate::store::{Effect, StoreOp, tests::fixture};

const MINUTE: Duration = Duration::from_secs(60);

/// The tasks that expired up to `last`.
fn expired(count: i64, last: UnixMicros) -> Result<Vec<Expired>, Error> {
    let earlier = |number| last.minus(Duration::from_secs(u64::try_from(number).unwrap()));
    let task = |number| Expired {
        id: TaskId::mint(uuid::Uuid::now_v7(), ShardId::new(1)),
        queue: QueueName::new("q"),
        expires_at: earlier(number),
    };
    Ok((0..count).map(task).collect())
}

#[test]
fn after_a_slow_search_the_next_ones_begin_at_what_it_has_left_until_a_shard_is_gained() {
    let (start, at) = (Instant::now(), UnixMicros::new(1_000_000_000_000_000));
    let (one, two) = ([ShardId::new(1)], [ShardId::new(1), ShardId::new(2)]);
    let mut searches = Searches::default();
    let search = searches.begin(&one, start);
    assert_eq!(search.from, None);

    let (slow, last) = (start + Duration::from_secs(3), at.minus(MINUTE * 30));
    searches.end(&search, &expired(EXPIRED_PER_PASS, last), at, slow);
    let search = searches.begin(&one, slow);
    assert_eq!(search.from, Some(last.minus(MINUTE)), "a full page leaves what expired after its last one");
    searches.end(&search, &expired(EXPIRED_PER_PASS - 1, at), at, slow);
    assert_eq!(searches.begin(&one, slow).from, Some(at.minus(MINUTE)), "nothing is left");

    assert_eq!(searches.begin(&two, slow).from, None, "the new shard may have older ones");
    let search = searches.begin(&two, slow);
    searches.end(&search, &expired(0, at), at, slow + Duration::from_secs(3));
    let from = Some(at.minus(MINUTE));
    assert_eq!(searches.begin(&one, slow + Duration::from_secs(3)).from, from, "one that leaves brings none");
    assert_eq!(searches.begin(&one, slow + Duration::from_secs(31)).from, None);
}

#[tokio::test]
async fn a_search_in_a_gained_shard_that_runs_out_of_time_hides_nothing_that_the_others_have_left() {
    let test = fixture::database().await;
    let cancelled = "DO $$ BEGIN RAISE EXCEPTION 'too long' USING ERRCODE = 'query_canceled'; END $$";
    let source = test.pool.execute(cancelled).await.expect_err("it raises");
    let (database, op) = (test.database.name().clone(), StoreOp::TaskExpire);
    let out_of_time = Err(Error { database, op, effect: Effect::None, source: Some(source.into()) });

    let (start, at) = (Instant::now(), UnixMicros::new(1_000_000_000_000_000));
    let (one, two) = ([ShardId::new(1)], [ShardId::new(1), ShardId::new(2)]);
    let (mut searches, last) = (Searches::default(), at.minus(MINUTE * 30));
    let (slow, slower) = (start + Duration::from_secs(3), start + Duration::from_secs(8));
    let search = searches.begin(&one, start);
    searches.end(&search, &expired(EXPIRED_PER_PASS, last), at, slow);
    let search = searches.begin(&two, slow);
    assert_eq!(search.from, None);
    searches.end(&search, &out_of_time, at, slower);
    assert_eq!(searches.begin(&two, slower).from, Some(last.minus(MINUTE)));
}
