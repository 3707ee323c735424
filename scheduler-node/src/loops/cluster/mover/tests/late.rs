//! Cuts that are late.

use super::*;

/// A move with a last task to write, which takes the target more time than a first cut has.
async fn behind_slow_writes() -> (Moving, TaskId) {
    let mut moving = Moving::new().await;
    moving.copy().await;
    let id = fixture::fresh_id_of(SHARD);
    moving.ends.source.sql.task_submit(&[new_task(id)], Sending::First).await.unwrap();
    sqlx::raw_sql(SLOW_WRITES).execute(&moving.tests[1].pool).await.unwrap();
    (moving, id)
}

#[tokio::test]
async fn a_cut_that_was_too_late_has_more_time_when_it_comes_again() {
    let (mut moving, id) = behind_slow_writes().await;
    let (ends, mut epoch, mut late) = (moving.ends.clone(), moving.epoch, 0);
    while let Cut::Reopened(reopened, why) = moving.work.cut_without_claims(&ends, epoch, Instant::now()).await.unwrap()
    {
        late += 1;
        assert!(late < 20, "{why}, again and again");
        // The late write still has the fence, and the target waits for it only a short time.
        let arrived = async { while moving.work.fill_target(&ends, reopened).await.is_err() {} };
        soon("the end of the late write", arrived).await;
        epoch = reopened;
    }
    assert!(late > 0, "the first cut is given up");
    assert_eq!(moving.statuses().await, [ShardStatus::Gone, ShardStatus::Here]);
    assert_eq!(moving.tests[1].state_of(id).await.as_deref(), Some("scheduled"), "the last change came over");
}

/// As while a queue of RabbitMQ hangs.
#[tokio::test]
async fn cuts_that_tasks_in_flight_made_late_give_the_last_changes_no_more_time() {
    let (mut moving, id) = behind_slow_writes().await;
    let (ends, epoch) = (moving.ends.clone(), moving.epoch);
    ends.source.owned_shards.begin([id]);
    for _ in 0..4 {
        let cut = moving.work.cut_without_claims(&ends, epoch, Instant::now()).await.unwrap();
        assert!(matches!(cut, Cut::GivenUp(_)), "{cut:?}");
    }
    ends.source.owned_shards.end([id]);
    let cut = moving.work.cut_without_claims(&ends, epoch, Instant::now()).await.unwrap();
    assert!(matches!(cut, Cut::Reopened(..)), "its writes had a second and more: {cut:?}");
}
