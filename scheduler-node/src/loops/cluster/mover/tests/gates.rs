//! Gates after their last moves.

use super::*;
use crate::loops::cluster::mover::gates::{Gates, LOOK_AFTER, next_look};

/// The tables whose gate guards a shard that does not move.
async fn guarded(test: &TestDatabase) -> Vec<String> {
    let read = "SELECT guarded FROM duetime.gate WHERE NOT isempty(shards) ORDER BY guarded";
    sqlx::query_scalar(read).fetch_all(&test.pool).await.unwrap()
}

#[tokio::test]
async fn a_shard_leaves_the_gate_although_a_transaction_was_in_the_way_when_its_move_ended() {
    let moving = Moving::new().await;
    let (source, shared) = (&moving.tests[0], &moving.work.shared);
    moving.ends.source.sql.move_guard(&[SHARD], false).await.unwrap();
    shared.plans.store(Arc::new(BTreeMap::from([(SHARD, plan(SHARD, "east"))])));
    let (mut gates, start, stop) = (Gates::default(), Instant::now(), CancellationToken::new());
    let mut rounds = 0;
    let mut after_a_while = async |gates: &mut Gates| {
        rounds += 1;
        gates.round(shared, start + LOOK_AFTER * 2 * rounds, &stop).await;
    };
    after_a_while(&mut gates).await;
    after_a_while(&mut gates).await;
    assert_eq!(guarded(source).await.len(), 3, "a move is asked for");

    shared.plans.store(Arc::default());
    let mut writer = source.pool.acquire().await.unwrap();
    for step in ["BEGIN", "LOCK TABLE duetime.task IN ROW EXCLUSIVE MODE"] {
        sqlx::query(step).execute(&mut *writer).await.unwrap();
    }
    after_a_while(&mut gates).await;
    assert_eq!(guarded(source).await, ["task"], "the writer is in the way of one table only");
    sqlx::query("COMMIT").execute(&mut *writer).await.unwrap();
    after_a_while(&mut gates).await;
    assert!(guarded(source).await.is_empty(), "it comes again");
    assert!(!moving.ends.source.sql.move_guard_left().await.unwrap());
}

#[tokio::test]
async fn shards_that_move_stay_in_the_gate_and_are_not_left_there() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    for database in [&moving.ends.source.sql, &moving.ends.target.sql] {
        assert!(!database.move_guard_left().await.unwrap());
        database.move_guard(&[], true).await.unwrap();
    }
    assert_eq!(guarded(&moving.tests[0]).await.len(), 3);
}

#[tokio::test]
async fn a_node_that_stops_begins_with_no_other_gate() {
    let moving = Moving::new().await;
    let (source, shared) = (&moving.tests[0], &moving.work.shared);
    moving.ends.source.sql.move_guard(&[SHARD], false).await.unwrap();
    let (mut gates, start, stop) = (Gates::default(), Instant::now(), CancellationToken::new());
    gates.round(shared, start, &stop).await;
    stop.cancel();
    let due = start + LOOK_AFTER * 2;
    gates.round(shared, due, &stop).await;
    assert_eq!(guarded(source).await.len(), 3);
    gates.round(shared, due, &CancellationToken::new()).await;
    assert!(guarded(source).await.is_empty(), "it was due");
}

#[test]
fn nodes_look_at_a_gate_one_after_the_other() {
    let end = Instant::now();
    let looks: BTreeSet<Instant> = std::iter::repeat_with(|| next_look(end)).take(9).collect();
    assert_eq!(looks.len(), 9);
    assert!(looks.iter().all(|look| (end + LOOK_AFTER..=end + LOOK_AFTER * 2).contains(look)));
}
