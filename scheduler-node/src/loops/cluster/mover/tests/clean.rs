//! The time between the cut of a move and the deletion of what it leaves.

use super::*;

/// As after the clock of the first database was set back, or ahead, right after the cut.
#[tokio::test]
async fn the_clock_of_the_first_database_does_not_decide_when_a_source_is_cleaned() {
    let moving = Moving::new().await;
    let shared = &moving.work.shared;
    for ended_at in ["now() + interval '1 hour'", "now() - interval '1 hour'"] {
        shared.cuts_ended.lock().clear();
        let end = format!("UPDATE duetime.move SET step = 'cleaning', cut_ended_at = {ended_at}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(end)).execute(&moving.tests[0].pool).await.unwrap();
        shared.look().await;
        assert_eq!(next(shared, &[]), None, "{ended_at}: the maps of other nodes may be older");
        let seen = Instant::now().checked_sub(CLEAN_AFTER).expect("a moment");
        shared.cuts_ended.lock().values_mut().for_each(|at| *at = seen);
        shared.look().await;
        assert_eq!(next(shared, &[]), Some(SHARD), "{ended_at}");
    }
}

#[tokio::test]
async fn the_next_move_of_a_shard_has_five_seconds_of_its_own() {
    let moving = Moving::new().await;
    let shared = &moving.work.shared;
    let ended = |requested_at| MoveRow { has_cut: true, requested_at, ..plan(SHARD, "east") };
    let [first, second] = [1, 2].map(|us| ended(UnixMicros::new(us)));
    shared.note_cuts(std::slice::from_ref(&first));
    let seen = Instant::now().checked_sub(CLEAN_AFTER).expect("a moment");
    shared.cuts_ended.lock().values_mut().for_each(|at| *at = seen);
    assert!(shared.may_clean(&first));
    shared.note_cuts(std::slice::from_ref(&second));
    assert!(!shared.may_clean(&second));
    assert!(!shared.may_clean(&first), "it has ended");
}
