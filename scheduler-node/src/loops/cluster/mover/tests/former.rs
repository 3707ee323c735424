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
