//! Reports that were held while a shard was closed, and deadlines that passed meanwhile.

use common::delay::Hearing;

use super::*;
use crate::store::PoolKind;

impl Moving {
    /// Whether deadlines wait for reports in the source, and in the target.
    fn hears_first(&self) -> [bool; 2] {
        [&self.ends.source, &self.ends.target].map(|database| database.hearing.lock().must_ask())
    }

    /// As if no shard had opened.
    fn has_heard(&self) {
        for database in [&self.ends.source, &self.ends.target] {
            *database.hearing.lock() = Hearing::default();
        }
    }

    async fn copy_and_close(&mut self) -> Epoch {
        self.copy().await;
        self.close().await
    }
}

#[tokio::test]
async fn where_an_interrupted_cut_opens_its_shard_deadlines_wait_for_the_reports_that_were_held() {
    let mut moving = Moving::new().await;
    let closed = moving.copy_and_close().await;
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
    let closed = moving.copy_and_close().await;
    let (me, target) = (moving.work.shared.me.clone(), Arc::clone(&moving.ends.target.sql));
    target.move_open(SHARD, moving.epoch, closed, &me).await.unwrap().expect("it arrives");
    let fence = target.move_fence(SHARD).await.unwrap().expect("it is there");
    assert!(moving.work.take_over_opened(&moving.ends, &fence));
    assert_eq!(moving.hears_first(), [false, true]);

    let mut moving = Moving::new().await;
    moving.work.shared.look().await;
    let closed = moving.copy_and_close().await;
    let me = moving.work.shared.me.clone();
    assert!(moving.ends.target.sql.move_refuse_open(SHARD, closed).await.unwrap());
    moving.ends.source.sql.move_reopen(SHARD, closed, &me).await.unwrap().expect("it is closed");
    moving.step().await.unwrap();
    assert_eq!(moving.hears_first(), [true, false]);
}

/// Has each statement that opens a shard wait for a test.
const HOLD_OPENING: &str = "
    CREATE FUNCTION public.hold_opening() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock(4711);
        RETURN NEW;
    END $$;
    CREATE TRIGGER hold_opening BEFORE UPDATE ON duetime.shard FOR EACH ROW
        WHEN (NEW.status IN ('here', 'leaving') AND OLD.status <> NEW.status) EXECUTE FUNCTION public.hold_opening();
";

/// Has the answer to the statement that opens a shard in `database` take as long as deadlines wait.
async fn with_a_late_answer<T>(test: &TestDatabase, database: &NodeDatabase, opening: impl Future<Output = T>) -> T {
    test.be_patient(PoolKind::Fire).await;
    sqlx::raw_sql(HOLD_OPENING).execute(&test.pool).await.unwrap();
    let mut holder = test.pool.acquire().await.unwrap();
    sqlx::raw_sql("SELECT pg_advisory_lock(4711)").execute(&mut *holder).await.unwrap();
    let wait = async {
        eventually("deadlines wait", || database.hearing.lock().must_ask()).await;
        *database.hearing.lock() = Hearing::default();
        sqlx::raw_sql("SELECT pg_advisory_unlock(4711)").execute(&mut *holder).await.unwrap();
    };
    tokio::join!(opening, wait).0
}

#[tokio::test]
async fn an_answer_that_takes_as_long_as_deadlines_wait_has_them_wait_once_more() {
    let mut moving = Moving::new().await;
    let closed = moving.copy_and_close().await;
    let ends = moving.ends.clone();
    with_a_late_answer(&moving.tests[1], &ends.target, Box::pin(moving.work.finish_cut(&ends, closed))).await.unwrap();
    assert_eq!(moving.statuses().await, [ShardStatus::Gone, ShardStatus::Here]);
    assert_eq!(moving.hears_first(), [false, true]);

    let mut moving = Moving::new().await;
    let closed = moving.copy_and_close().await;
    let ends = moving.ends.clone();
    let undoing = Box::pin(moving.work.undo_cut(&ends, closed));
    assert!(with_a_late_answer(&moving.tests[0], &ends.source, undoing).await.unwrap());
    assert_eq!(moving.statuses().await, [ShardStatus::Leaving, ShardStatus::Arriving]);
    assert_eq!(moving.hears_first(), [true, false]);
}

/// The moment at which a cut began that took so long.
fn before(took: Duration) -> Instant {
    Instant::now().checked_sub(took).expect("a moment")
}

/// The owner loop may take the shard in its target before the mover has the answer.
#[tokio::test]
async fn a_cut_that_is_slow_before_its_target_opens_has_deadlines_wait_there_from_the_statement_on() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    // Otherwise the last changes have no time left.
    moving.work.late_writes = 100;
    let (ends, epoch) = (moving.ends.clone(), moving.epoch);
    let cutting = Box::pin(moving.work.cut_without_claims(&ends, epoch, before(SOON_LONG)));
    let cut = with_a_late_answer(&moving.tests[1], &ends.target, cutting).await.unwrap();
    assert!(matches!(cut, Cut::Opened(_)), "{cut:?}");
}

#[tokio::test]
async fn after_a_cut_that_nothing_interrupts_deadlines_wait_where_its_shard_opens_if_it_was_long() {
    for (took, takes_it) in [Duration::ZERO, LONG_CUT].into_iter().flat_map(|took| [(took, true), (took, false)]) {
        let mut moving = Moving::new().await;
        moving.copy().await;
        moving.ends.source.sql.task_submit(&[new_task(fixture::fresh_id_of(SHARD))], Sending::First).await.unwrap();
        if !takes_it {
            sqlx::raw_sql(REFUSE_ROWS).execute(&moving.tests[1].pool).await.unwrap();
        }
        let (ends, epoch) = (moving.ends.clone(), moving.epoch);
        let began = Instant::now();
        let cut = moving.work.cut_without_claims(&ends, epoch, began).await.unwrap();
        assert!(began.elapsed() >= SOON_LONG || moving.hears_first() == [false; 2], "it is quick");
        moving.has_heard();
        // A slow machine may undo it, too.
        let has_moved = matches!(cut, Cut::Opened(_));
        assert!(takes_it || !has_moved, "{cut:?}");
        moving.work.end_cut(&ends, epoch, before(took), Ok(cut)).await.unwrap();
        let expected = if took.is_zero() { [false, false] } else { [!has_moved, has_moved] };
        assert_eq!(moving.hears_first(), expected, "after {took:?}");
    }
}

/// Refuses to open a closed shard in its source again.
const REFUSE_REOPEN: &str = "
    CREATE FUNCTION public.refuse_reopen() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'a test refuses to open this shard';
    END $$;
    CREATE TRIGGER refuse_reopen BEFORE UPDATE ON duetime.shard FOR EACH ROW
        WHEN (OLD.status = 'gone') EXECUTE FUNCTION public.refuse_reopen();
";

#[tokio::test]
async fn after_a_long_cut_deadlines_wait_wherever_its_shard_may_have_opened_without_an_answer() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    moving.ends.source.sql.task_submit(&[new_task(fixture::fresh_id_of(SHARD))], Sending::First).await.unwrap();
    sqlx::raw_sql(REFUSE_ROWS).execute(&moving.tests[1].pool).await.unwrap();
    sqlx::raw_sql(REFUSE_REOPEN).execute(&moving.tests[0].pool).await.unwrap();
    let (ends, epoch) = (moving.ends.clone(), moving.epoch);
    let cut = moving.work.cut_without_claims(&ends, epoch, Instant::now()).await;
    assert!(cut.is_err(), "{cut:?}");
    moving.has_heard();
    moving.work.end_cut(&ends, epoch, before(LONG_CUT), cut).await.unwrap_err();
    assert_eq!(moving.hears_first(), [true, true]);

    // The second try of an opening without an answer finds it open.
    moving.has_heard();
    moving.work.end_cut(&ends, epoch, before(LONG_CUT), Ok(Cut::Lost)).await.unwrap();
    assert_eq!(moving.hears_first(), [true, false]);
}
