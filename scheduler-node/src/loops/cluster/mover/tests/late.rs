//! Cuts that are late.

use super::*;
use crate::loops::cluster::mover::work::LEAVING_AT_LEAST;

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

#[tokio::test]
async fn a_cut_that_does_not_begin_after_all_lets_its_move_be_called_off() {
    let mut moving = Moving::new().await;
    let (source, target) = (moving.tests[0].pool.clone(), moving.tests[1].pool.clone());
    sqlx::raw_sql(MANY_TASKS).execute(&source).await.unwrap();
    moving.copy().await;
    moving.work.leaving_since = Instant::now().checked_sub(LEAVING_AT_LEAST);
    let (ends, epoch, shared) = (moving.ends.clone(), moving.epoch, Arc::clone(&moving.work.shared));
    let home = Arc::clone(&moving.ends.source.sql);
    let (home_test, mut holder) = (&moving.tests[0], source.acquire().await.unwrap());
    // Another cut has its turn. Meanwhile the shard changes faster than it is copied.
    let turn = shared.cuts.acquire().await.unwrap();
    let changes = async {
        let noted = async { while home.move_list().await.unwrap()[0].step != MovePhase::Cutting {} };
        soon("the note of the cut", noted).await;
        sqlx::raw_sql(SLOW_WRITES).execute(&target).await.unwrap();
        sqlx::raw_sql("UPDATE duetime.task SET priority = 5 WHERE shard = 0").execute(&source).await.unwrap();
        for sql in ["BEGIN", "SELECT FROM duetime.move FOR UPDATE"] {
            sqlx::raw_sql(sql).execute(&mut *holder).await.unwrap();
        }
        drop(turn);
        home_test.until_waiting(1).await;
        assert!(shared.cuts.try_acquire().is_ok(), "no other cut waits for the first database");
        sqlx::raw_sql("COMMIT").execute(&mut *holder).await.unwrap();
    };
    let (stepped, ()) = tokio::join!(Box::pin(moving.work.cut(&ends, epoch)), changes);
    assert!(matches!(stepped, Ok(Stepped::On)), "{stepped:?}");
    let (called_off, _) = home.move_call_off(&[SHARD].into_iter().collect()).await.unwrap();
    assert!(called_off.contains(SHARD));
}
