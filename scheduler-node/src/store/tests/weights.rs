//! Estimates of what shards carry: exact while a table is small, bounded in its cost and near the truth beyond.

use common::ids::ShardId;
use sqlx::Executor;

use super::{fixture, list_plans::Plan};
use crate::store::weights::{ShardWeight, WEIGHT_PAGES};

/// 200,000 unfinished tasks on some 4,000 pages; shard 7 has every second one. 100,000 finished ones in ten partitions,
/// a third of them from the last day.
const FILL: &str = "
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
SELECT gen_random_uuid(), CASE WHEN g % 2 = 0 THEN 7 ELSE g % 128 END, 'q', 'scheduled', now(), now(), convert_to(repeat('x', 100), 'UTF8'), 'application/json'
  FROM generate_series(1, 200000) AS g;
INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, finished_at, drop_on)
SELECT gen_random_uuid(), g % 128, 'q', 'succeeded', now(), now(), '{}', 'application/json', now() - (g % 3) * interval '25 h',
       (now() AT TIME ZONE 'UTC')::date + 1 + g % 10
  FROM generate_series(1, 100000) AS g;
ANALYZE duetime.task;
ANALYZE duetime.archive;
";

#[tokio::test]
async fn what_few_shards_carry_is_counted_exactly() {
    let test = fixture::database().await;
    assert!(test.database.shard_weights().await.unwrap().is_empty());
    let fill = "
        INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
        SELECT gen_random_uuid(), g % 2, 'q', 'scheduled', now(), now(), convert_to(repeat('x', 50), 'UTF8'), 'x' FROM generate_series(1, 10) AS g;
        INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, finished_at, drop_on)
        SELECT gen_random_uuid(), 1, 'q', 'dead', now(), now(), '', 'x', now() - g * interval '20 h', (now() AT TIME ZONE 'UTC')::date + 3
          FROM generate_series(0, 2) AS g";
    test.pool.execute(fill).await.unwrap();
    let weights = test.database.shard_weights().await.unwrap();
    let shards: Vec<u16> = weights.keys().map(|shard| shard.number()).collect();
    assert_eq!(shards, [0, 1]);
    let one = weights[&ShardId::new(1)];
    assert_eq!((one.tasks, one.finished, one.finished_lately), (5, 3, 2));
    assert!((1_800..3_000).contains(&one.bytes), "{one:?}");
    assert_eq!((one.weight().rows, one.weight().rate), (8, 2));
}

#[tokio::test]
async fn many_are_estimated_from_a_bounded_number_of_pages() {
    let test = fixture::database().await;
    test.pool.execute(FILL).await.unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    for mode in ["force_custom_plan", "force_generic_plan"] {
        let sql = include_str!("../queries/shard_weights.sql");
        let plan = Plan::of(&mut connection, mode, sql, "float8, bigint", "50, 200").await;
        // Each of the two samples has 50 pages on average, and the sizes of the partitions are looked up.
        assert!(plan.buffers() < 1_000, "{mode}: {} buffers", plan.buffers());
        assert!(plan.rows_touched() < 20_000, "{mode}: {} rows", plan.rows_touched());
    }
    let weights = test.database.shard_weights().await.unwrap();
    let all = weights.values().copied().fold(ShardWeight::default(), ShardWeight::plus);
    let near = |found: i64, expected: i64| (found - expected).abs() < expected / 4;
    assert!(near(all.tasks, 200_000) && near(all.finished, 100_000), "{all:?} from {WEIGHT_PAGES} pages");
    assert!(near(weights[&ShardId::new(7)].tasks, 100_781), "{:?}", weights[&ShardId::new(7)]);
    assert!(near(all.finished_lately, 33_333), "{all:?}");
}
