//! Reports that were held while a shard was closed, and deadlines that passed meanwhile.

use super::*;

impl Moving {
    /// Whether deadlines wait for reports in the source, and in the target.
    fn hears_first(&self) -> [bool; 2] {
        [&self.ends.source, &self.ends.target].map(|database| database.hearing.lock().must_ask())
    }

    /// Copies and closes the shard, as a node that dies in its cut. Returns the epoch of the close.
    async fn close(&mut self) -> Epoch {
        self.copy().await;
        let closed = self.ends.source.sql.move_close(SHARD, self.epoch, CloseWait::Plain).await.unwrap();
        closed.expect("the owner closes it")
    }
}

#[tokio::test]
async fn where_an_interrupted_cut_opens_its_shard_deadlines_wait_for_the_reports_that_were_held() {
    let mut moving = Moving::new().await;
    let closed = moving.close().await;
    moving.work.finish_cut(&moving.ends, closed).await.unwrap();
    assert_eq!(moving.statuses().await, [ShardStatus::Gone, ShardStatus::Here]);
    assert_eq!(moving.hears_first(), [false, true]);

    let mut moving = Moving::new().await;
    let (_, closed) = moving.refused().await;
    moving.work.finish_cut(&moving.ends, closed).await.unwrap();
    assert_eq!(moving.statuses().await, [ShardStatus::Leaving, ShardStatus::Arriving]);
    assert_eq!(moving.hears_first(), [true, false]);
}

#[tokio::test]
async fn where_a_node_finds_that_it_has_opened_a_shard_without_an_answer_deadlines_wait_for_reports() {
    let mut moving = Moving::new().await;
    let closed = moving.close().await;
    let (me, target) = (moving.work.shared.me.clone(), Arc::clone(&moving.ends.target.sql));
    target.move_open(SHARD, moving.epoch, closed, &me).await.unwrap().expect("it arrives");
    let fence = target.move_fence(SHARD).await.unwrap().expect("it is there");
    assert!(moving.work.take_over_opened(&moving.ends, &fence));
    assert_eq!(moving.hears_first(), [false, true]);

    let mut moving = Moving::new().await;
    moving.ask().await;
    let closed = moving.close().await;
    let me = moving.work.shared.me.clone();
    assert!(moving.ends.target.sql.move_refuse_open(SHARD, closed).await.unwrap());
    moving.ends.source.sql.move_reopen(SHARD, closed, &me).await.unwrap().expect("it is closed");
    moving.step().await.unwrap();
    assert_eq!(moving.hears_first(), [true, false]);
}

#[tokio::test]
async fn after_a_cut_that_nothing_interrupts_no_deadline_waits_whether_the_target_takes_the_shard_or_not() {
    for takes_it in [true, false] {
        let mut moving = Moving::new().await;
        moving.copy().await;
        moving.ends.source.sql.task_submit(&[new_task(fixture::fresh_id_of(SHARD))], Sending::First).await.unwrap();
        if !takes_it {
            sqlx::raw_sql(REFUSE_ROWS).execute(&moving.tests[1].pool).await.unwrap();
        }
        let (ends, epoch) = (moving.ends.clone(), moving.epoch);
        let cut = moving.work.cut_without_claims(&ends, epoch, Instant::now()).await.unwrap();
        assert_eq!(moving.hears_first(), [false, false], "{cut:?}");
    }
}
