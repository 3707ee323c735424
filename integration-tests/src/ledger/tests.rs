//! Tests of the judge: each question gets a history that violates it, and no other question.

use super::{verdict::Findings, *};

pub(super) const DUE_MS: i64 = 1_000;

/// A made-up history; the test chooses the times.
pub(super) struct Story {
    pub(super) ledger: Ledger,
}

impl Story {
    pub(super) fn new() -> Self {
        Self { ledger: Ledger::with_grace(Duration::from_secs(1)) }
    }

    /// Accepted, due at [`DUE_MS`], named after its number.
    pub(super) fn task(&self) -> Number {
        let number = self.ledger.submitting("q", DUE_MS);
        self.ledger.accepted(number, &format!("t{number}"));
        number
    }

    pub(super) fn message(&self, number: Number, attempt: u32, at_ms: i64) -> Delivery {
        Delivery {
            at_us: at_ms * 1_000,
            queue: "q".into(),
            message_id: format!("t{number}:{attempt}"),
            task: format!("t{number}"),
            attempt,
            due_ms: Some(DUE_MS),
            number: Some(number),
            ..Delivery::default()
        }
    }

    pub(super) fn arrives(&self, number: Number, attempt: u32, at_ms: i64) {
        self.ledger.delivered(self.message(number, attempt, at_ms));
    }

    pub(super) fn arrives_marked(&self, number: Number, attempt: u32, at_ms: i64) {
        self.ledger.delivered(Delivery { marked: true, ..self.message(number, attempt, at_ms) });
    }

    pub(super) fn window(&self, from_ms: i64, until_ms: Option<i64>) {
        self.ledger.history.lock().windows.push(Window {
            what: "a fault".into(),
            from_us: from_ms * 1_000,
            until_us: until_ms.map(|ms| ms * 1_000),
            void: None,
        });
    }
}

/// Checks that exactly this one question has one violation.
pub(super) fn only(verdict: &Verdict, pick: impl Fn(&mut Verdict) -> &mut Findings) {
    let mut rest = verdict.clone();
    let found = std::mem::take(pick(&mut rest));
    assert_eq!(found.count, 1, "{verdict}");
    assert_eq!(found.examples.len(), 1, "{verdict}");
    assert!(rest.holds(), "{verdict}");
    assert!(!verdict.holds());
    assert!(verdict.to_string().contains(&found.examples[0]));
}

#[test]
fn a_history_in_which_each_task_arrives_once_in_time_holds() {
    let story = Story::new();
    for _ in 0..10 {
        let number = story.task();
        story.arrives(number, 1, DUE_MS + 3);
    }
    let verdict = story.ledger.judge();
    verdict.assert_holds();
    assert_eq!((verdict.accepted, verdict.delivered, verdict.messages), (10, 10, 10));
    assert_eq!(verdict.lateness.count, 10);
}

#[test]
fn an_accepted_task_that_never_arrives_is_lost() {
    let story = Story::new();
    story.task();
    only(&story.ledger.judge(), |verdict| &mut verdict.lost);
}

#[test]
fn what_was_refused_unknown_cancelled_or_may_lapse_need_not_arrive() {
    let story = Story::new();
    story.ledger.refused(story.ledger.submitting("q", DUE_MS));
    story.ledger.unknown(story.ledger.submitting("q", DUE_MS));
    story.ledger.submitting("q", DUE_MS);
    story.ledger.cancelled(story.task(), "cancelled");
    story.ledger.cancel_unknown(story.task());
    story.ledger.may_lapse(story.task());
    let verdict = story.ledger.judge();
    verdict.assert_holds();
    assert_eq!((verdict.accepted, verdict.refused, verdict.unknown, verdict.cancelled), (3, 1, 2, 1));
}

#[test]
fn a_task_without_further_attempts_must_have_arrived() {
    let story = Story::new();
    story.ledger.cancelled(story.task(), "no_further_attempts");
    only(&story.ledger.judge(), |verdict| &mut verdict.lost);
}

#[test]
fn a_task_of_unknown_outcome_may_arrive_but_not_as_two() {
    let story = Story::new();
    let number = story.ledger.submitting("q", DUE_MS);
    story.ledger.unknown(number);
    story.arrives(number, 1, DUE_MS);
    story.ledger.judge().assert_holds();
    let mut twin = story.message(number, 1, DUE_MS);
    twin.task = "other".into();
    twin.message_id = "other:1".into();
    story.ledger.delivered(twin);
    only(&story.ledger.judge(), |verdict| &mut verdict.unexpected);
}

#[test]
fn what_nobody_submitted_or_what_was_refused_is_unexpected() {
    let story = Story::new();
    let mut stray = story.message(7, 1, DUE_MS);
    story.ledger.delivered(stray.clone());
    only(&story.ledger.judge(), |verdict| &mut verdict.unexpected);

    let story = Story::new();
    stray.number = None;
    story.ledger.delivered(stray);
    only(&story.ledger.judge(), |verdict| &mut verdict.unexpected);

    let story = Story::new();
    let number = story.ledger.submitting("q", DUE_MS);
    story.ledger.refused(number);
    story.arrives(number, 1, DUE_MS);
    only(&story.ledger.judge(), |verdict| &mut verdict.unexpected);
}

#[test]
fn a_foreign_id_queue_or_message_id_is_unexpected() {
    let break_it: [fn(&mut Delivery); 3] = [
        |delivery| {
            delivery.task = "other".into();
            delivery.message_id = "other:1".into();
        },
        |delivery| delivery.queue = "elsewhere".into(),
        |delivery| delivery.message_id = "t0:9".into(),
    ];
    for break_it in break_it {
        let story = Story::new();
        let number = story.task();
        let mut delivery = story.message(number, 1, DUE_MS);
        break_it(&mut delivery);
        story.ledger.delivered(delivery);
        only(&story.ledger.judge(), |verdict| &mut verdict.unexpected);
    }
}

#[test]
fn one_microsecond_before_its_due_time_is_early() {
    let story = Story::new();
    let number = story.task();
    story.ledger.delivered(Delivery { at_us: DUE_MS * 1_000 - 1, ..story.message(number, 1, 0) });
    only(&story.ledger.judge(), |verdict| &mut verdict.early);
}

#[test]
fn the_header_of_a_retry_counts_as_its_due_time() {
    let story = Story::new();
    let number = story.task();
    story.arrives(number, 1, DUE_MS);
    story.ledger.delivered(Delivery { due_ms: Some(5_000), ..story.message(number, 2, 4_999) });
    only(&story.ledger.judge(), |verdict| &mut verdict.early);
}

#[test]
fn a_header_earlier_than_what_was_asked_for_excuses_nothing() {
    let story = Story::new();
    let number = story.task();
    story.ledger.delivered(Delivery { due_ms: Some(DUE_MS - 10), ..story.message(number, 1, DUE_MS - 10) });
    only(&story.ledger.judge(), |verdict| &mut verdict.early);
}

#[test]
fn an_acknowledged_move_counts_and_a_run_allows_to_be_sooner() {
    let story = Story::new();
    let later = story.task();
    story.ledger.moved(later, 3_000);
    story.arrives(later, 1, 2_000);
    only(&story.ledger.judge(), |verdict| &mut verdict.early);

    let story = Story::new();
    let sooner = story.task();
    story.ledger.may_move(sooner, 500);
    story.ledger.delivered(Delivery { due_ms: Some(500), ..story.message(sooner, 1, 600) });
    story.ledger.judge().assert_holds();
}

#[test]
fn nothing_may_arrive_of_what_was_cancelled_for_good() {
    let story = Story::new();
    let number = story.task();
    story.ledger.cancelled(number, "cancelled");
    story.arrives(number, 1, DUE_MS);
    only(&story.ledger.judge(), |verdict| &mut verdict.after_cancel);
}

#[test]
fn a_marked_copy_near_a_fault_is_allowed_and_counted() {
    let story = Story::new();
    let number = story.task();
    story.window(1_050, Some(1_100));
    story.arrives(number, 1, DUE_MS);
    story.arrives_marked(number, 1, 1_900);
    let verdict = story.ledger.judge();
    verdict.assert_holds();
    assert_eq!((verdict.marked_copies, verdict.delivered, verdict.messages), (1, 1, 2));
}

#[test]
fn a_late_first_copy_of_a_frozen_owner_may_follow_its_marked_rescue() {
    let story = Story::new();
    let number = story.task();
    story.window(900, None);
    story.arrives_marked(number, 1, 1_500);
    story.arrives(number, 1, 1_700);
    story.ledger.judge().assert_holds();
}

#[test]
fn a_copy_without_a_mark_is_a_violation_even_near_a_fault() {
    let story = Story::new();
    let number = story.task();
    story.window(900, None);
    story.arrives(number, 1, DUE_MS);
    story.arrives(number, 1, 1_100);
    only(&story.ledger.judge(), |verdict| &mut verdict.unmarked);
}

#[test]
fn a_copy_is_a_violation_before_a_fault_and_after_its_grace() {
    for (from_ms, until_ms) in [(1_200, None), (900, Some(95)), (0, Some(99))] {
        let story = Story::new();
        let number = story.task();
        story.window(from_ms, until_ms);
        story.arrives(number, 1, DUE_MS);
        story.arrives_marked(number, 1, 1_100);
        only(&story.ledger.judge(), |verdict| &mut verdict.outside);
    }
}

#[test]
fn what_the_broker_hands_out_again_is_not_our_copy() {
    let story = Story::new();
    let number = story.task();
    story.arrives(number, 1, DUE_MS);
    story.ledger.delivered(Delivery { by_broker: true, ..story.message(number, 1, 1_100) });
    let verdict = story.ledger.judge();
    verdict.assert_holds();
    assert_eq!((verdict.broker_copies, verdict.marked_copies), (1, 0));
}

#[test]
fn attempts_leave_none_out_and_keep_their_order_and_limit() {
    let arrivals: [&[(u32, i64)]; 4] = [
        &[(2, 1_000)],
        &[(1, 1_000), (3, 1_100)],
        &[(2, 1_000), (1, 1_100)],
        &[(1, 1_000), (2, 1_100), (3, 1_200), (4, 1_300)],
    ];
    for arrivals in arrivals {
        let story = Story::new();
        let number = story.task();
        story.ledger.expect_attempts(number, 3);
        for (attempt, at_ms) in arrivals {
            story.arrives(number, *attempt, *at_ms);
        }
        only(&story.ledger.judge(), |verdict| &mut verdict.attempts);
    }
}

#[test]
fn attempts_may_be_missing_where_messages_vanish_but_stay_in_order() {
    let story = Story::new();
    story.ledger.loses_messages("q");
    let number = story.task();
    story.arrives(number, 2, 1_000);
    story.arrives(number, 4, 1_100);
    story.ledger.judge().assert_holds();
    story.arrives(number, 5, 1_050);
    only(&story.ledger.judge(), |verdict| &mut verdict.attempts);
}

#[test]
fn a_sequence_out_of_order_is_a_violation() {
    let story = Story::new();
    let (first, second) = (story.task(), story.task());
    story.ledger.expect_order(first, "customer", 1);
    story.ledger.expect_order(second, "customer", 2);
    story.arrives(first, 1, 1_100);
    story.arrives(second, 1, 1_050);
    only(&story.ledger.judge(), |verdict| &mut verdict.order);
}

#[test]
fn a_task_before_the_last_attempt_of_what_it_depends_on_is_a_violation() {
    let story = Story::new();
    let (first, second) = (story.task(), story.task());
    story.ledger.expect_after(second, &[first]);
    story.arrives(first, 1, 1_050);
    story.arrives(first, 2, 1_200);
    story.arrives(second, 1, 1_100);
    only(&story.ledger.judge(), |verdict| &mut verdict.order);
    let story = Story::new();
    let (first, second) = (story.task(), story.task());
    story.ledger.expect_after(second, &[first]);
    story.arrives(first, 1, 1_050);
    story.arrives(second, 1, 1_100);
    story.ledger.judge().assert_holds();
}

#[test]
fn what_succeeded_with_its_confirm_may_be_read_a_little_after_its_dependent_and_in_trouble_long_after_it() {
    for (retries, has_fault, late_ms, holds) in [
        (Some(Retries::Never), true, 2_000, true),
        (Some(Retries::Never), false, 2_000, false),
        (Some(Retries::Never), false, 1_900, true),
        (None, true, 2_000, false),
        (None, false, 100, false),
    ] {
        let story = Story::new();
        let (first, second) = (story.task(), story.task());
        story.ledger.expect_after(second, &[first]);
        if let Some(retries) = retries {
            story.ledger.retries("q", retries);
        }
        story.arrives(second, 1, 1_100);
        story.arrives(first, 1, 1_100 + late_ms);
        if has_fault {
            story.window(1_000, Some(1_150));
        }
        let is_in_order = story.ledger.judge().order.count == 0;
        assert_eq!(is_in_order, holds, "{retries:?}, a fault: {has_fault}, {late_ms} ms later");
    }
}

#[test]
fn two_owners_in_one_epoch_are_a_violation_and_in_two_epochs_are_not() {
    let story = Story::new();
    story.ledger.owner_seen(3, 7, "a");
    story.ledger.owner_seen(3, 7, "a");
    story.ledger.owner_seen(3, 8, "b");
    story.ledger.judge().assert_holds();
    story.ledger.owner_seen(3, 8, "a");
    only(&story.ledger.judge(), |verdict| &mut verdict.owners);
}

#[test]
fn many_violations_keep_a_few_examples_and_the_whole_count() {
    let story = Story::new();
    for _ in 0..50 {
        story.task();
    }
    let verdict = story.ledger.judge();
    assert_eq!((verdict.lost.count, verdict.lost.examples.len()), (50, 5));
    assert!(verdict.to_string().contains("and 45 more"));
}

#[tokio::test]
async fn waiting_ends_when_all_that_must_arrive_has() {
    let story = Story::new();
    let number = story.task();
    story.ledger.cancelled(story.task(), "cancelled");
    assert!(!story.ledger.wait_all(Duration::from_millis(30)).await);
    assert_eq!(story.ledger.outstanding(), 1);
    story.arrives(number, 1, DUE_MS);
    assert!(story.ledger.wait_all(Duration::from_secs(5)).await);
}
