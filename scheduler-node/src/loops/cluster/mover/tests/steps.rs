//! Steps of a move that begins anew, or that is called off.

use common::wire::shard::MoveOutcome;

use super::*;

impl Moving {
    pub(super) async fn call_off(&mut self) {
        self.ends.source.sql.move_call_off(&[SHARD].into_iter().collect()).await.unwrap();
        self.work.shared.look().await;
    }

    /// The number of notes of changes in the source.
    async fn notes(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM duetime.move_change");
        count.fetch_one(&self.tests[0].pool).await.unwrap()
    }

    pub(super) async fn step(&mut self) -> Result<Stepped, crate::store::Error> {
        let plan = self.work.plan().expect("the move has not ended");
        self.work.step(&plan).await
    }
}

#[tokio::test]
async fn a_copy_that_begins_anew_is_noted_with_its_first_page() {
    let mut moving = Moving::new().await;
    moving.work.shared.look().await;
    // As after a target that was restored from before the move.
    moving.work.page = PageCursor::Done;
    moving.step().await.unwrap();
    let noted = moving.ends.source.sql.move_list().await.unwrap().remove(0);
    assert_eq!(noted.page, Some(PageCursor::FIRST));
}

#[tokio::test]
async fn a_shard_leaves_although_its_rows_cannot_be_estimated() {
    let mut moving = Moving::new().await;
    moving.work.shared.look().await;
    // The estimate reads this column.
    let away = "ALTER TABLE duetime.task RENAME COLUMN wake_at TO away";
    sqlx::raw_sql(away).execute(&moving.tests[0].pool).await.unwrap();
    for _ in ["it arrives in the target", "it leaves the source"] {
        moving.step().await.unwrap();
    }
    assert_eq!(moving.statuses().await, [ShardStatus::Leaving, ShardStatus::Arriving]);
    assert_eq!(moving.work.rows_total, None);
}

/// Notes as of a long hold-up.
const MANY_NOTES: &str = "
    INSERT INTO duetime.move_change (shard, guarded, id) SELECT 0, 'task', gen_random_uuid() FROM generate_series(1, 20000)";

/// A return that refuses to delete more notes than a page has.
const RETURN_OF_FEW_NOTES: &str = "
    ALTER FUNCTION duetime.move_return(integer, bigint, bigint) RENAME TO move_return_few;
    CREATE FUNCTION duetime.move_return(p_shard integer, p_epoch bigint, p_write bigint) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        IF (SELECT count(*) FROM duetime.move_change) > 2000 THEN
            RAISE EXCEPTION 'a test refuses to delete so many notes at once';
        END IF;
        RETURN duetime.move_return_few(p_shard, p_epoch, p_write);
    END $$;
";

#[tokio::test]
async fn a_shard_with_many_notes_of_changes_is_given_back_page_by_page() {
    let mut moving = Moving::new().await;
    moving.work.shared.look().await;
    moving.copy().await;
    for sql in [MANY_NOTES, RETURN_OF_FEW_NOTES] {
        sqlx::raw_sql(sql).execute(&moving.tests[0].pool).await.unwrap();
    }
    moving.call_off().await;
    moving.step().await.unwrap();
    assert_eq!((moving.statuses().await, moving.notes().await), ([ShardStatus::Here, ShardStatus::Arriving], 0));
}

/// The return in turn leaves notes.
#[tokio::test]
async fn notes_that_a_return_has_left_go_page_by_page_with_the_copy_in_the_target() {
    let mut moving = Moving::new().await;
    moving.work.shared.look().await;
    moving.copy().await;
    for sql in [MANY_NOTES, RETURN_OF_FEW_NOTES, "UPDATE duetime.shard SET status = 'here' WHERE id = 0"] {
        sqlx::raw_sql(sql).execute(&moving.tests[0].pool).await.unwrap();
    }
    moving.call_off().await;
    moving.step().await.unwrap();
    assert_eq!((moving.statuses().await, moving.notes().await), ([ShardStatus::Here, ShardStatus::Gone], 0));
}

#[tokio::test]
async fn notes_of_changes_are_deleted_without_a_look_at_the_rows_that_they_are_about() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    let source = moving.tests[0].pool.clone();
    sqlx::raw_sql(MANY_NOTES).execute(&source).await.unwrap();
    let fence = moving.ends.source.sql.move_fence(SHARD).await.unwrap().expect("it leaves");
    // No statement can read a task any more.
    sqlx::raw_sql("ALTER TABLE duetime.task RENAME TO away").execute(&source).await.unwrap();
    assert!(moving.work.forget_changes(&moving.ends, &fence).await.unwrap());
    assert_eq!(moving.notes().await, 0);
}

#[tokio::test]
async fn notes_of_changes_under_another_fence_stay() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    let source = Arc::clone(&moving.ends.source.sql);
    source.task_submit(&[new_task(fixture::fresh_id_of(SHARD))], Sending::First).await.unwrap();
    let before = source.move_fence(SHARD).await.unwrap().expect("it leaves");
    // The next owner.
    source.shard_acquire(&[SHARD], &node("other")).await.unwrap();
    assert!(!moving.work.forget_changes(&moving.ends, &before).await.unwrap());
    assert_eq!(moving.notes().await, 1);
}

#[tokio::test]
async fn a_move_that_is_called_off_while_its_target_is_away_gives_its_shard_back_and_ends_when_the_target_is_back() {
    let mut moving = Moving::new().await;
    moving.work.shared.look().await;
    let source = Arc::clone(&moving.ends.source.sql);
    source.task_submit(&[new_task(fixture::fresh_id_of(SHARD))], Sending::First).await.unwrap();
    moving.copy().await;
    source.task_submit(&[new_task(fixture::fresh_id_of(SHARD))], Sending::First).await.unwrap();
    assert_eq!((moving.tests[1].live().await, moving.notes().await), (1, 1));
    // No move can read the fences of the target any more.
    let east = moving.tests[1].pool.clone();
    sqlx::raw_sql("ALTER TABLE duetime.shard RENAME TO away").execute(&east).await.unwrap();
    moving.call_off().await;
    moving.step().await.unwrap();
    let fence = source.move_fence(SHARD).await.unwrap().expect("it is in the source");
    assert_eq!((fence.status, moving.notes().await), (ShardStatus::Here, 0));
    moving.step().await.expect_err("the target still has a copy");
    sqlx::raw_sql("ALTER TABLE duetime.away RENAME TO shard").execute(&east).await.unwrap();
    for _ in ["the copy is deleted", "the move ends"] {
        moving.step().await.unwrap();
    }
    assert_eq!(source.move_list().await.unwrap(), []);
    assert_eq!(source.move_ended_list().await.unwrap()[0].outcome, MoveOutcome::CalledOff);
    assert_eq!(moving.tests[1].live().await, 0);
}

/// As after a failover that lost the acquire of the owner before.
#[tokio::test]
async fn a_move_ends_although_its_epoch_had_another_owner_who_wrote_more() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    for test in &moving.tests {
        sqlx::raw_sql("UPDATE duetime.shard SET move_write = 1000000 WHERE id = 0").execute(&test.pool).await.unwrap();
    }
    moving.call_off().await;
    for _ in ["the shard is given back", "the copy is deleted", "the move ends"] {
        moving.step().await.unwrap();
    }
    let ended = moving.ends.source.sql.move_ended_list().await.unwrap();
    assert_eq!(ended.first().map(|ended| ended.outcome), Some(MoveOutcome::CalledOff));
}

#[tokio::test]
async fn a_return_that_does_nothing_is_not_sent_again_at_once() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    let refuse = "
        CREATE OR REPLACE FUNCTION duetime.move_return(p_shard integer, p_epoch bigint, p_write bigint)
        RETURNS boolean LANGUAGE sql AS 'SELECT false'";
    sqlx::raw_sql(refuse).execute(&moving.tests[0].pool).await.unwrap();
    moving.call_off().await;
    let stepped = moving.step().await.unwrap();
    assert!(matches!(stepped, Stepped::Ended), "{stepped:?}");
}
