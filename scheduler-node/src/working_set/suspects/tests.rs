//! When a row that fails as with a bug is refused.

use common::ids::{DatabaseName, ShardId};

use super::*;
use crate::{store::Error, working_set::retry::try_each};

const SHORT: Duration = Duration::from_secs(1);

fn ids<const N: usize>() -> [TaskId; N] {
    std::array::from_fn(|_| TaskId::mint(uuid::Uuid::now_v7(), ShardId::new(0)))
}

/// Tries `items`, all of which but `passes` fail as with a bug. Returns the refused ones.
async fn refused(suspects: &Suspects, items: &[TaskId], passes: Option<TaskId>) -> Vec<TaskId> {
    let bug = || Error::unreadable(DatabaseName::new("main"), StoreOp::TaskClaim);
    let is_fine = |part: &[TaskId]| part.iter().all(|id| Some(*id) == passes);
    let tried =
        try_each(items, |part| std::future::ready(if is_fine(part) { Ok(part.to_vec()) } else { Err(bug()) })).await;
    let judged = suspects.judge(StoreOp::TaskClaim, tried, |id| *id, Clone::clone);
    judged.refused.iter().map(|refused| *refused.item).collect()
}

/// Tries `items` each second until one is refused. Returns the time that took.
async fn patience(suspects: &Suspects, items: &[TaskId], passes: Option<TaskId>) -> Duration {
    let began = tokio::time::Instant::now();
    loop {
        let refused = refused(suspects, items, passes).await;
        if !refused.is_empty() {
            assert!(!refused.iter().any(|id| Some(*id) == passes));
            return began.elapsed();
        }
        tokio::time::advance(SHORT).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_that_fails_beside_others_is_refused_after_a_while() {
    let [good, bad] = ids();
    assert_eq!(patience(&Suspects::default(), &[good, bad], Some(good)).await, BESIDE_OTHERS);
}

#[tokio::test(start_paused = true)]
async fn a_row_behind_many_that_fail_passes_soon() {
    let (suspects, mut items) = (Suspects::default(), ids::<100>());
    let good = items[99];
    for _ in 0..8 {
        suspects.put_last(StoreOp::TaskClaim, &mut items, |id| *id);
        assert_eq!(refused(&suspects, &items, Some(good)).await, []);
        tokio::time::advance(SHORT).await;
    }
    assert_eq!(suspects.count(), 99, "since it has passed, each of the others was tried alone");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_tried_alone_is_refused_much_later_unless_others_pass_meanwhile() {
    let [good, bad] = ids();
    let suspects = Suspects::default();
    assert_eq!(patience(&suspects, &[bad], None).await, ALONE);
    assert_eq!(refused(&suspects, &[bad], None).await, [], "its next trial begins anew");
    assert_eq!(refused(&suspects, &[good], Some(good)).await, []);
    assert_eq!(patience(&suspects, &[bad], None).await, BESIDE_OTHERS);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_failed_alone_first_is_refused_a_while_after_it_failed_beside_others() {
    let ([bad], suspects) = (ids(), Suspects::default());
    let fails_again = |others_pass| suspects.is_at_fault(StoreOp::TaskPut, bad, others_pass);
    assert!(!fails_again(false) && !fails_again(true));
    tokio::time::advance(BESIDE_OTHERS).await;
    assert!(fails_again(false));
}

#[tokio::test(start_paused = true)]
async fn where_several_rows_fail_and_none_passes_each_is_refused_later() {
    let bad: [TaskId; 3] = ids();
    assert_eq!(patience(&Suspects::default(), &bad, None).await, ALONE * 3);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_has_failed_for_long_when_the_first_of_others_passes_is_given_more_time() {
    let [good, bad] = ids();
    let suspects = Suspects::default();
    for _ in 0..30 {
        assert_eq!(refused(&suspects, &[good, bad], None).await, []);
        tokio::time::advance(SHORT).await;
    }
    assert_eq!(patience(&suspects, &[good, bad], Some(good)).await, BESIDE_OTHERS);
}

#[tokio::test(start_paused = true)]
async fn rows_that_fail_twice_in_different_troubles_are_not_refused() {
    let bad: [TaskId; 2] = ids();
    let suspects = Suspects::default();
    for _ in 0..100 {
        assert_eq!(refused(&suspects, &bad, None).await, []);
        tokio::time::advance(FORGOTTEN_AFTER).await;
    }
    assert_eq!(suspects.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_has_passed_is_no_suspect_any_more() {
    let suspects = Suspects::default();
    let [id] = ids();
    assert_eq!(refused(&suspects, &[id], None).await, []);
    assert_eq!(refused(&suspects, &[id], Some(id)).await, []);
    assert_eq!(suspects.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_a_statement_skips_stays_a_suspect_and_shows_nothing_of_the_server() {
    let suspects = Suspects::default();
    let bad: [TaskId; 1] = ids();
    let began = tokio::time::Instant::now();
    while refused(&suspects, &bad, None).await.is_empty() {
        let tried = try_each(&bad, |_| std::future::ready(Ok(Vec::new()))).await;
        suspects.judge(StoreOp::TaskClaim, tried, |id| *id, Clone::clone);
        tokio::time::advance(SHORT).await;
    }
    assert_eq!(began.elapsed(), ALONE);
}

#[tokio::test(start_paused = true)]
async fn suspects_are_bounded() {
    let suspects = Suspects::default();
    for id in ids::<{ MOST + 1 }>() {
        assert_eq!(refused(&suspects, &[id], None).await, []);
    }
    assert_eq!(suspects.count(), MOST);
}
