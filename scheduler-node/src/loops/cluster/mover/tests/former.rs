//! A former owner of a shard that goes on late, and what an earlier move has left.

use common::wire::shard::MoveOutcome;

use super::*;

#[tokio::test]
async fn a_target_that_was_read_after_the_source_had_another_owner_does_not_begin_to_receive() {
    let mut moving = Moving::new().await;
    moving.work.shared.look().await;
    let plan = moving.work.plan().expect("it is asked for");
    let source = moving.ends.source.sql.move_fence(SHARD).await.unwrap().expect("it is here");
    // This node stands still, and others take the shard to the target and away from there.
    moving.ends.source.sql.shard_acquire(&[SHARD], &node("other")).await.unwrap();
    let left = "INSERT INTO duetime.shard (id, status, epoch) VALUES (0, 'gone', 2000)";
    sqlx::raw_sql(left).execute(&moving.tests[1].pool).await.unwrap();
    let target = moving.ends.target.sql.move_fence(SHARD).await.unwrap();
    let stepped = moving.work.arrive(&plan, &moving.ends, &source, target.as_ref()).await.unwrap();
    let expected = [ShardStatus::Here, ShardStatus::Gone];
    assert_eq!(moving.statuses().await, expected, "the shard has been there and away again");
    assert!(matches!(stepped, Stepped::Ended), "{stepped:?}");
}

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

#[tokio::test]
async fn a_leave_that_comes_once_its_move_is_called_off_does_nothing() {
    let mut moving = Moving::new().await;
    moving.work.shared.look().await;
    moving.step().await.unwrap();
    let source = Arc::clone(&moving.ends.source.sql);
    source.move_guard(&[SHARD], false).await.unwrap();
    // It is sent, and held up.
    let late = moving.work.next_write();
    moving.call_off().await;
    moving.step().await.unwrap();
    assert_eq!(moving.statuses().await, [ShardStatus::Here, ShardStatus::Gone], "the copy is deleted");
    assert!(!source.move_leave(SHARD, moving.epoch, late).await.unwrap());
    assert_eq!(moving.statuses().await, [ShardStatus::Here, ShardStatus::Gone]);
}

/// The shard may have left without an answer by then, and a complete copy is cut.
#[tokio::test]
async fn a_target_is_emptied_once_its_copy_is_noted_as_not_begun() {
    let mut moving = Moving::new().await;
    let (source, target) = (moving.tests[0].pool.clone(), moving.tests[1].pool.clone());
    moving.work.shared.look().await;
    moving.step().await.unwrap();
    sqlx::raw_sql(LEFT_TASK).execute(&target).await.unwrap();
    // As after a loss in the source.
    moving.work.page = PageCursor::Done;
    assert!(moving.work.note(None, None).await);
    sqlx::raw_sql(REFUSE_NOTES).execute(&source).await.unwrap();
    let stepped = moving.step().await.unwrap();
    assert!(matches!(stepped, Stepped::HeldUp(_)), "{stepped:?}");
    assert_eq!(moving.tests[1].live().await, 1);
    sqlx::raw_sql("DROP TRIGGER refuse_note ON duetime.move").execute(&source).await.unwrap();
    let no_leave = "ALTER FUNCTION duetime.move_leave(integer, bigint, bigint) RENAME TO away";
    sqlx::raw_sql(no_leave).execute(&source).await.unwrap();
    moving.step().await.expect_err("it cannot leave");
    assert_eq!(moving.tests[1].live().await, 0);
    let noted = moving.ends.source.sql.move_list().await.unwrap().remove(0);
    assert_eq!(noted.page, Some(PageCursor::FIRST));
}

#[tokio::test]
async fn a_move_whose_target_still_awaits_the_shard_ends_once_it_is_called_off_if_a_third_database_has_it() {
    let (counter, tests) = with_three_databases().await;
    let (me, shard) = (node("owner"), ShardId::new(64));
    let (home, east) = (&counter.databases[DatabaseIndex::HOME], &counter.databases[DatabaseIndex::new(1)]);
    east.owned_shards.adopt(&east.sql.shard_acquire(&[shard], &me).await.unwrap());
    let gone = "INSERT INTO duetime.shard (id, status, epoch) VALUES (64, 'gone', 5)";
    sqlx::raw_sql(gone).execute(&tests[0].pool).await.unwrap();
    let arriving = "INSERT INTO duetime.shard (id, status, move_epoch) VALUES (64, 'arriving', 4)";
    sqlx::raw_sql(arriving).execute(&tests[2].pool).await.unwrap();
    assert_eq!(home.sql.move_add(&[asked(shard, "west")], "a test").await.unwrap(), MovesAdded::All);
    let shared = mover(me, counter.databases.clone()).shared;
    shared.look().await;
    let plan = shared.plans.load()[&shard].clone();
    let mut work = Work::new(Arc::clone(&shared), &plan, CancellationToken::new());
    let stepped = work.step(&plan).await.unwrap();
    assert!(matches!(&stepped, Stepped::HeldUp(why) if why.contains("contradict")), "{stepped:?}");
    home.sql.move_call_off(&[shard].into_iter().collect()).await.unwrap();
    shared.look().await;
    let plan = work.plan().expect("it has not ended");
    work.step(&plan).await.unwrap();
    assert_eq!(home.sql.move_list().await.unwrap(), []);
}
