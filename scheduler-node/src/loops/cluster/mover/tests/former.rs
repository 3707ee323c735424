//! A former owner of a shard that goes on late, and what an earlier move has left.

use common::wire::shard::MoveOutcome;

use super::*;

#[tokio::test]
async fn a_cut_that_was_interrupted_is_over_once_its_move_has_ended() {
    let mut moving = Moving::new().await;
    assert!(!moving.work.is_over().await);
    let home = Arc::clone(&moving.ends.source.sql);
    home.move_end(SHARD, moving.work.requested_at, MoveOutcome::Moved).await.unwrap();
    assert!(moving.work.is_over().await);
}

/// A task as a copy leaves it in the target.
const LEFT_TASK: &str = "
    SELECT set_config('duetime.mover', 'on', true);
    INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
    SELECT duetime.mint(now(), 0), 0, 'q', 'scheduled', now(), now(), '', ''";

#[tokio::test]
async fn tasks_that_an_earlier_copy_has_left_in_the_target_go_before_the_shard_leaves() {
    let mut moving = Moving::new().await;
    moving.work.shared.look().await;
    moving.step().await.unwrap();
    sqlx::raw_sql(LEFT_TASK).execute(&moving.tests[1].pool).await.unwrap();
    assert_eq!(moving.tests[1].live().await, 1);
    moving.step().await.unwrap();
    assert_eq!(moving.statuses().await, [ShardStatus::Leaving, ShardStatus::Arriving]);
    assert_eq!(moving.tests[1].live().await, 0, "such a task may have ended in the source");
}
