//! Tests of the rows at the end: each agrees with what was answered and with what arrived.

use super::{
    tests::{DUE_MS, Story, only},
    tests_of_runs::row,
    *,
};

fn with_state(row: Row, state: &str) -> Row {
    Row { state: state.into(), attempt: 0, ..row }
}

#[test]
fn rows_that_agree_with_answers_and_arrivals_hold() {
    let story = Story::new();
    let finished = story.finished();
    let cancelled = story.task();
    story.ledger.cancelled(cancelled, "cancelled");
    let refused = story.ledger.submitting("q", DUE_MS);
    story.ledger.refused(refused);
    let rows = vec![finished, with_state(row(cancelled), "cancelled")];
    story.ends_with(rows).assert_holds();
}

#[test]
fn an_unfinished_row_is_a_violation() {
    let story = Story::new();
    let row = Row { live: true, state: "dispatching".into(), ..story.finished() };
    only(&story.ends_with(vec![row]), |verdict| &mut verdict.tables);
}

#[test]
fn an_accepted_task_without_a_row_is_a_violation() {
    let story = Story::new();
    story.finished();
    only(&story.ends_with(Vec::new()), |verdict| &mut verdict.tables);
}

#[test]
fn a_row_of_a_submission_that_was_rolled_back_is_a_violation() {
    let story = Story::new();
    let number = story.ledger.submitting("q", DUE_MS);
    story.ledger.refused(number);
    only(&story.ends_with(vec![with_state(row(number), "cancelled")]), |verdict| &mut verdict.tables);
}

#[test]
fn a_row_without_a_submission_is_a_violation() {
    let story = Story::new();
    only(&story.ends_with(vec![with_state(row(7), "cancelled")]), |verdict| &mut verdict.tables);
}

#[test]
fn a_task_with_two_rows_is_a_violation() {
    let story = Story::new();
    let number = story.ledger.submitting("q", DUE_MS);
    story.ledger.unknown(number);
    story.ledger.may_repeat(number);
    story.window(0, None);
    story.arrives(number, 1, DUE_MS + 10);
    only(&story.ends_with(vec![row(number), Row { database: 1, ..row(number) }]), |verdict| &mut verdict.tables);
}

#[test]
fn a_submission_that_is_two_tasks_is_a_violation_even_if_one_never_arrives() {
    let story = Story::new();
    let first = story.finished();
    let second = with_state(Row { task: "other".into(), ..first.clone() }, "cancelled");
    story.ledger.cancel_unknown(0);
    only(&story.ends_with(vec![first, second]), |verdict| &mut verdict.tables);
}

#[test]
fn two_tasks_of_one_key_and_version_are_a_violation() {
    let story = Story::new();
    let keyed = |row: Row, version: i64| Row { key: Some("k".into()), version, ..row };
    let (first, second, third) = (story.finished(), story.finished(), story.finished());
    only(&story.ends_with(vec![keyed(first, 1), keyed(second, 2), keyed(third, 2)]), |verdict| &mut verdict.tables);
}

#[test]
fn a_superseded_task_without_a_newer_version_is_a_violation() {
    let story = Story::new();
    let superseded = |number, version| Row { key: Some("k".into()), version, ..with_state(row(number), "superseded") };
    let (first, second) = (story.task(), story.finished());
    story.ledger.cancel_unknown(first);
    let newer = |key: &str| Row { key: Some(key.into()), version: 2, ..second.clone() };
    story.ends_with(vec![superseded(first, 1), newer("k")]).assert_holds();
    for (version, key) in [(1, "other"), (2, "k")] {
        let story = Story::new();
        let first = story.task();
        story.ledger.cancel_unknown(first);
        story.finished();
        only(&story.ends_with(vec![superseded(first, version), newer(key)]), |verdict| &mut verdict.tables);
    }
}

#[test]
fn a_success_that_never_arrived_is_a_violation_unless_its_queue_loses_messages() {
    let story = Story::new();
    let number = story.task();
    story.ledger.may_lapse(number);
    let rows = vec![row(number)];
    only(&story.ends_with(rows), |verdict| &mut verdict.tables);
    story.ledger.loses_messages("q");
    story.ledger.judge().assert_holds();
}

#[test]
fn an_arrival_of_a_task_that_was_never_claimed_is_a_violation() {
    let story = Story::new();
    let expired = with_state(story.finished(), "expired");
    story.ledger.may_lapse(0);
    only(&story.ends_with(vec![expired]), |verdict| &mut verdict.tables);
}

#[test]
fn an_attempt_that_its_row_does_not_know_is_a_violation() {
    let story = Story::new();
    let finished = story.finished();
    story.arrives(0, 2, DUE_MS + 20);
    only(&story.ends_with(vec![finished.clone()]), |verdict| &mut verdict.tables);
    let story = Story::new();
    story.finished();
    story.arrives(0, 2, DUE_MS + 20);
    story.ends_with(vec![Row { attempt: 2, ..finished }]).assert_holds();
}

#[test]
fn a_cancelled_task_whose_row_says_otherwise_is_a_violation() {
    let story = Story::new();
    let number = story.task();
    story.ledger.cancelled(number, "cancelled");
    only(&story.ends_with(vec![with_state(row(number), "expired")]), |verdict| &mut verdict.tables);
}

#[test]
fn a_task_that_is_taken_back_between_two_attempts_is_a_violation_unless_a_client_asked_for_it() {
    for state in ["cancelled", "expired"] {
        let story = Story::new();
        let taken_back = Row { attempt: 1, ..with_state(story.finished(), state) };
        only(&story.ends_with(vec![taken_back]), |verdict| &mut verdict.tables);
        story.ledger.cancel_unknown(0);
        story.ledger.judge().assert_holds();
    }
}

#[test]
fn a_task_that_may_lapse_may_expire() {
    let story = Story::new();
    let number = story.task();
    story.ledger.may_lapse(number);
    story.ends_with(vec![with_state(row(number), "expired")]).assert_holds();
}

/// The verdict on a task that was claimed at 2 s, and that depends on one with this row.
fn claimed_after(prepare: impl Fn(&Story), other: impl Fn(Row) -> Row) -> Verdict {
    let story = Story::new();
    prepare(&story);
    let [first, second] = [story.finished(), story.finished()];
    story.ledger.expect_after(1, &[0]);
    story.ends_with(vec![other(first), Row { claimed_us: Some(2_000_000), ..second }])
}

#[test]
fn a_task_that_was_claimed_before_the_success_of_what_it_depends_on_is_a_violation() {
    let finished_at = |finished_us| move |row: Row| Row { finished_us: Some(finished_us), ..row };
    let other_clock = |story: &Story| story.ledger.clock_ahead([0].into(), Duration::from_secs(1));
    claimed_after(|_| {}, finished_at(2_000_000)).assert_holds();
    only(&claimed_after(|_| {}, finished_at(2_000_001)), |verdict| &mut verdict.order);
    only(&claimed_after(|_| {}, |row| Row { state: "dead".into(), ..row }), |verdict| &mut verdict.order);
    claimed_after(other_clock, finished_at(2_000_001)).assert_holds();
    // The row of an older file.
    claimed_after(|_| {}, |row| row).assert_holds();
}
