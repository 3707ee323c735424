//! Tests of what consumers answer: each further attempt has a cause, and each end agrees with the answers.

use super::{
    history::Answered,
    tests::{DUE_MS, Story, only},
    *,
};

const DEADLINE_US: i64 = 5_000_000;
const REJECT: Retries = Retries::AfterRejection { deadline_us: DEADLINE_US };
const RESULT: Retries = Retries::AfterFailureOrSilence { deadline_us: DEADLINE_US };

impl Story {
    fn of(retries: Retries) -> Self {
        let story = Self::new();
        story.ledger.retries("q", retries);
        story
    }

    fn answers(&self, number: Number, attempt: u32, reply: Reply, at_ms: i64) {
        let message_id = format!("t{number}:{attempt}");
        self.ledger.record(Event::Answered(Answered { message_id, reply, at_us: at_ms * 1_000 }));
    }

    /// A second attempt that is due so long after the first.
    fn arrives_again(&self, number: Number, after_ms: i64) {
        let due_ms = DUE_MS + after_ms;
        self.ledger.delivered(Delivery { due_ms: Some(due_ms), ..self.message(number, 2, due_ms + 10) });
    }

    fn cancelled_at(&self, number: Number, at_ms: i64) {
        let outcome = "no_further_attempts".to_owned();
        self.ledger.record(Event::Cancelled { number, outcome, at_us: Some(at_ms * 1_000) });
    }

    fn ends_as(&self, number: Number, attempt: u32, state: &str) -> Verdict {
        self.ledger.tables(vec![Row {
            task: format!("t{number}"),
            queue: "q".into(),
            state: state.into(),
            attempt,
            due_us: DUE_MS * 1_000,
            number: Some(number),
            ..Row::default()
        }]);
        self.ledger.judge()
    }
}

/// A second attempt, 500 ms after a first one with this answer.
fn after(retries: Retries, reply: Option<Reply>) -> Verdict {
    let story = Story::of(retries);
    let number = story.task();
    story.arrives(number, 1, DUE_MS);
    if let Some(reply) = reply {
        story.answers(number, 1, reply, DUE_MS + 1);
    }
    story.arrives_again(number, 500);
    story.ledger.judge()
}

#[test]
fn a_further_attempt_follows_a_failure_and_nothing_else() {
    for reply in [Reply::Rejected, Reply::Failed, Reply::Discarded, Reply::Requeued] {
        after(REJECT, Some(reply)).assert_holds();
        after(RESULT, Some(reply)).assert_holds();
        only(&after(Retries::Never, Some(reply)), |verdict| &mut verdict.attempts);
    }
    for reply in [None, Some(Reply::Acked), Some(Reply::Succeeded)] {
        for retries in [REJECT, RESULT, Retries::Never] {
            only(&after(retries, reply), |verdict| &mut verdict.attempts);
        }
    }
}

#[test]
fn a_failure_that_is_answered_later_is_no_cause() {
    let story = Story::of(REJECT);
    let number = story.task();
    story.arrives(number, 1, DUE_MS);
    story.arrives_again(number, 500);
    story.answers(number, 1, Reply::Rejected, DUE_MS + 600);
    only(&story.ledger.judge(), |verdict| &mut verdict.attempts);
}

#[test]
fn silence_until_the_deadline_is_a_cause_where_a_report_is_due() {
    for (retries, after_ms, holds) in [(RESULT, 5_000, true), (RESULT, 4_999, false), (REJECT, 5_000, false)] {
        let story = Story::of(retries);
        let number = story.task();
        story.arrives(number, 1, DUE_MS);
        story.answers(number, 1, Reply::Acked, DUE_MS);
        story.arrives_again(number, after_ms);
        assert_eq!(story.ledger.judge().holds(), holds, "{retries:?} after {after_ms} ms");
    }
}

#[test]
fn an_attempt_that_is_due_before_the_wait_after_a_failure_is_over_is_a_violation() {
    // Of the second attempt: when the first one was rejected, if it was, and when this one is due.
    for (retries, rejected_ms, after_ms, holds) in [
        (REJECT, Some(50), 250, true),
        (REJECT, Some(50), 249, false),
        // After silence. A rejection that came too late is no cause.
        (RESULT, None, 5_200, true),
        (RESULT, None, 5_199, false),
        (RESULT, Some(5_100), 5_200, true),
    ] {
        let story = Story::of(retries);
        story.ledger.waits("q", 200);
        let number = story.task();
        story.arrives(number, 1, DUE_MS);
        if let Some(rejected_ms) = rejected_ms {
            story.answers(number, 1, Reply::Rejected, DUE_MS + rejected_ms);
        }
        story.arrives_again(number, after_ms);
        if holds {
            story.ledger.judge().assert_holds();
        } else {
            only(&story.ledger.judge(), |verdict| &mut verdict.attempts);
        }
        // By another clock.
        story.ledger.record(Event::ClockAhead { shards: [3].into(), ahead_us: 0, at_us: 0 });
        story.ledger.judge().assert_holds();
    }
}

#[test]
fn a_policy_with_a_fixed_wait_says_how_long_it_is() {
    assert_eq!(fixed_wait_of(&serde_json::json!({ "retry": { "kind": "fixed", "delay_ms": 200 } })), Some(200));
    assert_eq!(fixed_wait_of(&serde_json::json!({ "retry": { "kind": "immediate" } })), None);
    assert_eq!(fixed_wait_of(&serde_json::json!({})), None);
}

/// The verdict on a second attempt after the deadline of a first one, whose success was kept then.
fn again_after_a_success_kept_at(kept_ms: i64, prepare: impl Fn(&Story, Number)) -> Verdict {
    let story = Story::of(RESULT);
    let number = story.task();
    story.arrives(number, 1, DUE_MS);
    story.answers(number, 1, Reply::Succeeded, DUE_MS + 1);
    story.answers(number, 1, Reply::Kept, kept_ms);
    story.answers(number, 1, Reply::Acked, kept_ms);
    prepare(&story, number);
    story.arrives_again(number, 5_000);
    story.ledger.judge()
}

#[test]
fn a_success_that_rabbitmq_kept_in_time_leaves_no_further_attempt() {
    only(&again_after_a_success_kept_at(DUE_MS + 1_000, |_, _| {}), |verdict| &mut verdict.attempts);
    // Too late to be sure, and beside a copy that failed.
    again_after_a_success_kept_at(DUE_MS + 1_001, |_, _| {}).assert_holds();
    again_after_a_success_kept_at(DUE_MS + 1_000, |story, number| story.answers(number, 1, Reply::Failed, DUE_MS))
        .assert_holds();
}

#[test]
fn a_fault_excuses_a_kept_success_only_if_it_lasts_until_the_deadline() {
    // The deadline is at 6,000 ms, the second attempt comes at 6,010 ms, and the grace is 1,000 ms.
    for (from_ms, until_ms, holds) in
        [(0, Some(4_999), false), (0, Some(5_000), true), (6_010, None, true), (6_011, None, false)]
    {
        let verdict = again_after_a_success_kept_at(DUE_MS + 1, |story, _| story.window(from_ms, until_ms));
        if holds {
            verdict.assert_holds();
        } else {
            only(&verdict, |verdict| &mut verdict.attempts);
        }
    }
}

#[test]
fn a_success_whose_report_was_not_kept_may_be_lost() {
    let story = Story::of(RESULT);
    let number = story.task();
    story.arrives(number, 1, DUE_MS);
    story.answers(number, 1, Reply::Succeeded, DUE_MS + 1);
    story.arrives_again(number, 5_000);
    story.ledger.judge().assert_holds();
}

#[test]
fn after_a_second_attempt_that_a_fault_excuses_a_kept_success_leaves_no_third_one() {
    let story = Story::of(RESULT);
    let number = story.task();
    story.window(0, Some(5_000));
    story.arrives(number, 1, DUE_MS);
    story.answers(number, 1, Reply::Succeeded, DUE_MS);
    story.answers(number, 1, Reply::Kept, DUE_MS);
    story.arrives_again(number, 5_000);
    story.ledger.judge().assert_holds();
    story.ledger.delivered(Delivery { due_ms: Some(11_000), ..story.message(number, 3, 11_010) });
    only(&story.ledger.judge(), |verdict| &mut verdict.attempts);
}

#[test]
fn a_clock_that_is_set_back_shortens_the_deadline() {
    let story = Story::of(RESULT);
    let number = story.task();
    story.ledger.clock_ahead([3].into(), Duration::from_secs(2));
    story.arrives(number, 1, DUE_MS);
    story.arrives_again(number, 3_000);
    story.ledger.judge().assert_holds();
}

#[test]
fn the_attempts_of_a_queue_whose_policy_is_unknown_need_no_cause() {
    let story = Story::new();
    let number = story.task();
    story.arrives(number, 1, DUE_MS);
    story.arrives_again(number, 500);
    story.ledger.judge().assert_holds();
}

#[test]
fn a_policy_says_what_causes_further_attempts() {
    let of = |policy| Retries::of(&policy);
    assert_eq!(of(serde_json::json!({ "settle": "confirm", "timeout_ms": 1 })), Retries::Never);
    assert_eq!(of(serde_json::json!({ "settle": "result", "timeout_ms": 5_000 })), RESULT);
    assert_eq!(of(serde_json::json!({ "timeout_ms": 5_000 })), REJECT);
    let usual = Retries::AfterRejection { deadline_us: 1_800_000_000 };
    assert_eq!(of(serde_json::json!({})), usual);
}

#[test]
fn an_attempt_that_begins_after_the_answer_that_there_is_none_is_a_violation() {
    for (cancelled_ms, holds) in [(DUE_MS + 520, true), (DUE_MS + 400, false)] {
        let story = Story::of(REJECT);
        let number = story.task();
        story.arrives(number, 1, DUE_MS);
        story.answers(number, 1, Reply::Rejected, DUE_MS);
        story.arrives_again(number, 500);
        story.cancelled_at(number, cancelled_ms);
        if holds {
            story.ledger.judge().assert_holds();
        } else {
            only(&story.ledger.judge(), |verdict| &mut verdict.after_cancel);
        }
    }
}

#[test]
fn a_copy_or_what_failed_by_silence_may_come_after_the_answer_that_there_is_no_further_attempt() {
    let story = Story::of(REJECT);
    let number = story.task();
    story.arrives(number, 1, DUE_MS);
    story.cancelled_at(number, DUE_MS + 10);
    story.ledger.delivered(Delivery { by_broker: true, ..story.message(number, 1, DUE_MS + 20) });
    story.ledger.judge().assert_holds();
    let story = Story::of(RESULT);
    let number = story.task();
    story.cancelled_at(number, DUE_MS - 10);
    story.arrives(number, 1, DUE_MS);
    story.ledger.judge().assert_holds();
}

#[test]
fn a_success_without_a_report_is_a_violation_where_one_is_due() {
    let story = Story::of(RESULT);
    let number = story.task();
    story.arrives(number, 1, DUE_MS);
    story.answers(number, 1, Reply::Acked, DUE_MS);
    only(&story.ends_as(number, 1, "succeeded"), |verdict| &mut verdict.tables);
    story.answers(number, 1, Reply::Succeeded, DUE_MS);
    story.ledger.judge().assert_holds();
}

/// The verdict on a task whose only attempt was rejected then, and that succeeded.
fn rejected_at(at_ms: i64, prepare: impl Fn(&Story, Number)) -> Verdict {
    let story = Story::of(REJECT);
    let number = story.task();
    story.arrives(number, 1, DUE_MS);
    story.answers(number, 1, Reply::Rejected, at_ms);
    prepare(&story, number);
    story.ends_as(number, 1, "succeeded")
}

#[test]
fn a_rejection_in_time_that_changes_nothing_is_a_violation() {
    only(&rejected_at(DUE_MS + 1_000, |_, _| {}), |verdict| &mut verdict.tables);
    // Too late to be sure, near a fault, and beside a copy that was acked.
    rejected_at(DUE_MS + 1_001, |_, _| {}).assert_holds();
    rejected_at(DUE_MS + 1_000, |story, _| story.window(5_900, None)).assert_holds();
    rejected_at(DUE_MS + 1_000, |story, _| story.window(0, Some(1_500))).assert_holds();
    rejected_at(DUE_MS + 1_000, |story, number| story.answers(number, 1, Reply::Acked, DUE_MS)).assert_holds();
}

#[test]
fn a_rejection_that_leads_to_another_attempt_or_to_the_end_holds() {
    let story = Story::of(REJECT);
    let number = story.task();
    story.arrives(number, 1, DUE_MS);
    story.answers(number, 1, Reply::Rejected, DUE_MS);
    story.ledger.max_attempts("q", 1);
    story.ends_as(number, 1, "dead").assert_holds();
    let story = Story::of(REJECT);
    let number = story.task();
    story.arrives(number, 1, DUE_MS);
    story.answers(number, 1, Reply::Rejected, DUE_MS);
    story.arrives_again(number, 200);
    story.answers(number, 2, Reply::Acked, DUE_MS + 200);
    story.ends_as(number, 2, "succeeded").assert_holds();
}

/// The verdict on a task of two attempts that is dead after its first one, which had this answer.
fn dead_with_an_attempt_left(reply: Reply, prepare: impl Fn(&Story, Number)) -> Verdict {
    let story = Story::of(RESULT);
    story.ledger.max_attempts("q", 2);
    let number = story.task();
    story.arrives(number, 1, DUE_MS);
    story.answers(number, 1, reply, DUE_MS);
    story.answers(number, 1, Reply::Acked, DUE_MS);
    prepare(&story, number);
    story.ends_as(number, 1, "dead")
}

#[test]
fn a_death_with_attempts_left_is_a_violation_unless_the_consumer_discarded_the_task() {
    only(&dead_with_an_attempt_left(Reply::Failed, |_, _| {}), |verdict| &mut verdict.tables);
    only(&dead_with_an_attempt_left(Reply::Succeeded, |_, _| {}), |verdict| &mut verdict.tables);
    dead_with_an_attempt_left(Reply::Discarded, |_, _| {}).assert_holds();
    // A fault excuses what RabbitMQ may return near it, and nothing else.
    only(&dead_with_an_attempt_left(Reply::Failed, |story, _| story.window(0, None)), |verdict| &mut verdict.tables);
    let returned = |from_ms| {
        move |story: &Story, number| {
            story.ledger.may_repeat(number);
            story.window(from_ms, None);
        }
    };
    dead_with_an_attempt_left(Reply::Failed, returned(DUE_MS + 1_000)).assert_holds();
    only(&dead_with_an_attempt_left(Reply::Failed, returned(DUE_MS + 1_001)), |verdict| &mut verdict.tables);
}

/// Two tasks of a sequence. The first one fails and gets a second attempt 500 ms later.
fn of_a_sequence(story: &Story) -> (Number, Number) {
    let (first, second) = (story.task(), story.task());
    story.ledger.expect_order(first, "customer", 1);
    story.ledger.expect_order(second, "customer", 2);
    story.arrives(first, 1, DUE_MS);
    story.answers(first, 1, Reply::Failed, DUE_MS + 1);
    (first, second)
}

#[test]
fn a_task_between_two_attempts_of_the_one_before_it_is_out_of_order() {
    for (second_ms, holds) in [(DUE_MS + 400, false), (DUE_MS + 520, true)] {
        let story = Story::of(RESULT);
        let (first, second) = of_a_sequence(&story);
        story.arrives_again(first, 500);
        story.arrives(second, 1, second_ms);
        if holds {
            story.ledger.judge().assert_holds();
        } else {
            only(&story.ledger.judge(), |verdict| &mut verdict.order);
        }
    }
}

#[test]
fn an_attempt_that_comes_after_a_late_success_of_an_earlier_one_holds_up_no_other_task() {
    let story = Story::of(RESULT);
    let (first, second) = of_a_sequence(&story);
    story.answers(first, 1, Reply::Succeeded, DUE_MS + 300);
    story.arrives(second, 1, DUE_MS + 400);
    story.arrives_again(first, 500);
    story.ledger.judge().assert_holds();
}

#[test]
fn a_policy_says_how_many_attempts_a_task_has() {
    assert_eq!(attempts_of(&serde_json::json!({ "max_attempts": 5 })), 5);
    assert_eq!(attempts_of(&serde_json::json!({})), 25);
}

#[test]
fn a_journal_of_an_older_run_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("history.ndjson");
    let lines = [
        r#"{"event":"submitting","number":0,"queue":"q","at_us":1,"due_us":2}"#,
        r#"{"event":"cancelled","number":0,"outcome":"cancelled"}"#,
        r#"{"event":"fires","queue":"pulse","every_us":1000000}"#,
    ];
    std::fs::write(&file, lines.join("\n")).unwrap();
    let verdict = Ledger::replay(&file).unwrap().judge();
    verdict.assert_holds();
    assert_eq!(verdict.cancelled, 1);
}
