use std::{collections::BTreeMap, time::Duration};

use super::*;
use crate::{
    ids::{QueueName, ShardId, TaskId},
    queue::Settle,
    task::{Content, Envelope},
};

const NOW: UnixMicros = UnixMicros::new(1_000_000_000);
const FIXED: RetryPolicy = RetryPolicy::Fixed { delay_ms: 1_000 };

fn after_ms(wait_ms: u64) -> UnixMicros {
    NOW.plus(Duration::from_millis(wait_ms))
}

fn policy(settle: Settle) -> QueuePolicy {
    QueuePolicy { settle, max_attempts: 3, retry: FIXED, timeout_ms: 60_000, ..QueuePolicy::default() }
}

/// A task on its second of three attempts.
fn snapshot(state: TaskState, policy: &QueuePolicy) -> TaskSnapshot<'_> {
    TaskSnapshot {
        state,
        attempt: Attempt::new(2),
        attempts_base: Attempt::NONE,
        max_attempts: None,
        timeout_ms: None,
        retry: None,
        stopping: false,
        predates_reports: false,
        policy,
    }
}

fn report(json: &str) -> ResultBody {
    ResultBody::parse(json).unwrap()
}

const IN_FLIGHT: [TaskState; 3] = [TaskState::Dispatching, TaskState::Delivered, TaskState::Running];

fn delivery(timeout_ms: Option<i64>, envelope: Option<Envelope>) -> Delivery {
    Delivery {
        id: TaskId::mint(uuid::Uuid::nil(), ShardId::new(1)),
        attempt: Attempt::new(2),
        attempts_base: Attempt::NONE,
        queue: QueueName::new("q"),
        due_at: NOW,
        content: Content { payload: Vec::new(), content_type: String::new(), headers: BTreeMap::new() },
        priority: 3,
        key: None,
        partition_key: None,
        version: 0,
        max_attempts: None,
        timeout_ms,
        redelivered: false,
        envelope: envelope.map(Box::new),
    }
}

#[test]
fn a_confirm_finishes_the_task_or_opens_the_time_to_answer() {
    use AfterConfirm::{Deliver, Succeed};
    let forwarded = || Some(Envelope::default());
    for (settle, own_timeout_ms, envelope, expected) in [
        (Settle::Confirm, None, None, Succeed { keep_ms: 7 }),
        (Settle::Confirm, Some(5), forwarded(), Succeed { keep_ms: 7 }),
        (Settle::Reject, None, None, Deliver { timeout_ms: 60_000 }),
        (Settle::Reject, Some(5), None, Deliver { timeout_ms: 5 }),
        (Settle::Reject, Some(5), forwarded(), Succeed { keep_ms: 7 }),
        (Settle::Result, None, None, Deliver { timeout_ms: 60_000 }),
        (Settle::Result, Some(5), None, Deliver { timeout_ms: 5 }),
        (Settle::Result, None, forwarded(), Succeed { keep_ms: 7 }),
    ] {
        let policy = QueuePolicy { keep_succeeded_ms: 7, ..policy(settle) };
        assert_eq!(after_confirm(&delivery(own_timeout_ms, envelope), &policy), expected, "{settle:?}");
    }
}

#[test]
fn only_dead_tasks_are_kept_for_the_time_of_failures() {
    let policy = QueuePolicy { keep_succeeded_ms: 1, keep_dead_ms: 2, ..policy(Settle::Result) };
    for state in TaskState::ALL.into_iter().filter(|state| state.is_final()) {
        assert_eq!(keep_ms(state, &policy), if state == TaskState::Dead { 2 } else { 1 }, "{state}");
    }
}

#[test]
fn a_forwarded_message_that_returns_follows_its_delay_exchange_or_is_set_aside() {
    assert_eq!(forwarded_unroutable(Some(Unroutable::Drop)), Unroutable::Drop);
    assert_eq!(forwarded_unroutable(None), Unroutable::SetAside);
}

#[test]
fn silence_is_consent_unless_a_report_is_due() {
    let failed = Verdict::RetryAt { at: after_ms(1_000), reason: FailureReason::Timeout };
    for (settle, expected) in Settle::ALL.into_iter().zip([Verdict::SUCCEEDED, Verdict::SUCCEEDED, failed]) {
        let policy = policy(settle);
        for state in [TaskState::Delivered, TaskState::Running] {
            assert_eq!(snapshot(state, &policy).after_deadline(NOW, NOW, 0.0), expected, "{settle:?} {state}");
        }
        for state in TaskState::ALL.into_iter().filter(|s| !matches!(s, TaskState::Delivered | TaskState::Running)) {
            assert_eq!(snapshot(state, &policy).after_deadline(NOW, NOW, 0.0), Verdict::Ignore, "{settle:?} {state}");
        }
    }
}

#[test]
fn a_change_to_reports_fails_no_attempt_that_went_to_consumers_without_them() {
    let policy = policy(Settle::Result);
    let verdict = |state| {
        let task = TaskSnapshot { predates_reports: true, ..snapshot(state, &policy) };
        task.after_deadline(NOW, NOW, 0.0)
    };
    assert_eq!(verdict(TaskState::Delivered), Verdict::SUCCEEDED);
    let failed = Verdict::RetryAt { at: after_ms(1_000), reason: FailureReason::Timeout };
    assert_eq!(verdict(TaskState::Running), failed, "this consumer reports");
}

#[test]
fn a_deadline_that_was_moved_is_ignored() {
    let policy = policy(Settle::Result);
    let verdict = snapshot(TaskState::Running, &policy).after_deadline(after_ms(1), NOW, 0.0);
    assert_eq!(verdict, Verdict::Ignore);
}

#[test]
fn a_rejection_fails_no_task_of_a_queue_that_settles_by_confirms() {
    let policy = policy(Settle::Confirm);
    for state in TaskState::ALL {
        let verdict = snapshot(state, &policy).after_rejection(Attempt::new(2), NOW, 0.0);
        assert_eq!(verdict, Verdict::Ignore, "{state}");
    }
}

#[test]
fn a_rejection_of_the_newest_attempt_fails_it_wherever_it_is() {
    let policy = policy(Settle::Reject);
    for state in TaskState::ALL {
        let verdict = snapshot(state, &policy).after_rejection(Attempt::new(2), NOW, 0.0);
        let failed = Verdict::RetryAt { at: after_ms(1_000), reason: FailureReason::Rejected };
        let expected = if IN_FLIGHT.contains(&state) { failed } else { Verdict::Ignore };
        assert_eq!(verdict, expected, "{state}");
        for other in [0, 1, 3] {
            assert_eq!(snapshot(state, &policy).after_rejection(Attempt::new(other), NOW, 0.0), Verdict::Ignore);
        }
    }
}

#[test]
fn the_success_of_any_attempt_so_far_finishes_a_task_that_is_not_finished() {
    let policy = policy(Settle::Result);
    let report = report(r#"{"status":"succeeded"}"#);
    for state in TaskState::ALL {
        for attempt in [-1, 0, 1, 2, 3] {
            let verdict = snapshot(state, &policy).after_report(Attempt::new(attempt), &report, NOW, 0.0);
            let open = state.is_in_flight() || matches!(state, TaskState::Scheduled | TaskState::Ready);
            let expected = if open && (1..=2).contains(&attempt) { Verdict::SUCCEEDED } else { Verdict::Ignore };
            assert_eq!(verdict, expected, "{state}, attempt {attempt}");
        }
    }
}

#[test]
fn a_task_that_was_never_claimed_cannot_succeed() {
    let policy = policy(Settle::Result);
    let fresh = TaskSnapshot { attempt: Attempt::NONE, ..snapshot(TaskState::Scheduled, &policy) };
    let report = report(r#"{"status":"succeeded"}"#);
    assert_eq!(fresh.after_report(Attempt::NONE, &report, NOW, 0.0), Verdict::Ignore);
}

#[test]
fn other_reports_count_only_for_the_newest_attempt_and_only_while_it_is_out() {
    let policy = policy(Settle::Result);
    for json in [r#"{"status":"failed"}"#, r#"{"status":"running"}"#, r#"{"status":"discard"}"#] {
        let report = report(json);
        for state in TaskState::ALL {
            for attempt in [0, 1, 2, 3] {
                let verdict = snapshot(state, &policy).after_report(Attempt::new(attempt), &report, NOW, 0.0);
                let applies = state.is_in_flight() && attempt == 2;
                assert_eq!(verdict != Verdict::Ignore, applies, "{json} {state} {attempt}");
            }
        }
    }
}

#[test]
fn only_a_success_counts_before_the_confirm_that_finishes_the_task() {
    let policy = policy(Settle::Confirm);
    for status in ["succeeded", "failed", "running", "discard"] {
        let report = report(&format!(r#"{{"status":"{status}"}}"#));
        for state in IN_FLIGHT {
            let verdict = snapshot(state, &policy).after_report(Attempt::new(2), &report, NOW, 0.0);
            let counts = status == "succeeded" || state != TaskState::Dispatching;
            assert_eq!(verdict != Verdict::Ignore, counts, "{status} of a {state} task");
        }
    }
}

#[test]
fn a_failure_report_may_say_when_to_try_again() {
    let policy = policy(Settle::Result);
    let snapshot = snapshot(TaskState::Running, &policy);
    let failed = |json| snapshot.after_report(Attempt::new(2), &report(json), NOW, 0.0);
    let retry_at = |at| Verdict::RetryAt { at, reason: FailureReason::Failed };
    assert_eq!(failed(r#"{"status":"failed"}"#), retry_at(after_ms(1_000)));
    assert_eq!(failed(r#"{"status":"failed","retry_in_ms":70}"#), retry_at(after_ms(70)));
}

#[test]
fn a_heartbeat_moves_the_deadline_and_carries_progress() {
    let policy = policy(Settle::Result);
    let report = report(r#"{"status":"running","progress":40,"worker":"w-1"}"#);
    let expected = Verdict::Extend { timeout_ms: 60_000, progress: Some(40), worker: Some("w-1".to_owned()) };
    for state in IN_FLIGHT {
        assert_eq!(snapshot(state, &policy).after_report(Attempt::new(2), &report, NOW, 0.0), expected, "{state}");
    }
}

#[test]
fn a_discarded_task_is_dead_with_attempts_left() {
    let policy = policy(Settle::Result);
    let verdict = snapshot(TaskState::Running, &policy).after_report(
        Attempt::new(2),
        &report(r#"{"status":"discard"}"#),
        NOW,
        0.0,
    );
    assert_eq!(verdict, Verdict::Archive { state: TaskState::Dead, reason: Some(FailureReason::Discarded) });
}

#[test]
fn the_last_attempt_of_the_present_budget_buries_the_task() {
    let policy = policy(Settle::Reject);
    let dead = Verdict::Archive { state: TaskState::Dead, reason: Some(FailureReason::Rejected) };
    let rejected = |attempt: i32, base: i32| {
        let (attempt, attempts_base) = (Attempt::new(attempt), Attempt::new(base));
        let snapshot = TaskSnapshot { attempt, attempts_base, ..snapshot(TaskState::Delivered, &policy) };
        snapshot.after_rejection(attempt, NOW, 0.0)
    };
    assert_eq!(rejected(3, 0), dead);
    assert_ne!(rejected(3, 1), dead);
    assert_eq!(rejected(6, 3), dead);
    assert_ne!(rejected(5, 3), dead);
}

#[test]
fn a_success_with_former_content_or_from_before_a_death_finishes_nothing() {
    let policy = policy(Settle::Result);
    let (attempt, attempts_base) = (Attempt::new(3), Attempt::new(2));
    let task = TaskSnapshot { attempt, attempts_base, ..snapshot(TaskState::Delivered, &policy) };
    let success = report(r#"{"status":"succeeded"}"#);
    assert_eq!(task.after_report(attempts_base, &success, NOW, 0.0), Verdict::Ignore);
    assert_eq!(task.after_report(attempt, &success, NOW, 0.0), Verdict::SUCCEEDED);
}

#[test]
fn back_off_starts_anew_with_a_new_budget() {
    let policy = QueuePolicy { retry: RetryPolicy::Polynomial, max_attempts: 25, ..policy(Settle::Reject) };
    let attempt = Attempt::new(8);
    let snapshot = TaskSnapshot { attempt, attempts_base: Attempt::new(7), ..snapshot(TaskState::Delivered, &policy) };
    let first = Verdict::RetryAt { at: after_ms(15_000), reason: FailureReason::Rejected };
    assert_eq!(snapshot.after_rejection(attempt, NOW, 0.0), first);
}

#[test]
fn what_the_task_says_for_itself_goes_before_its_queue() {
    let policy = policy(Settle::Reject);
    let own = TaskSnapshot {
        max_attempts: Some(2),
        timeout_ms: Some(5),
        retry: Some(RetryPolicy::Immediate),
        ..snapshot(TaskState::Dispatching, &policy)
    };
    let heartbeat = own.after_report(Attempt::new(2), &report(r#"{"status":"running"}"#), NOW, 0.0);
    assert_eq!(heartbeat, Verdict::Extend { timeout_ms: 5, progress: None, worker: None });
    let dead = Verdict::Archive { state: TaskState::Dead, reason: Some(FailureReason::Rejected) };
    assert_eq!(own.after_rejection(Attempt::new(2), NOW, 0.0), dead);
    let more = TaskSnapshot { max_attempts: Some(9), ..own };
    let retry = Verdict::RetryAt { at: NOW, reason: FailureReason::Rejected };
    assert_eq!(more.after_rejection(Attempt::new(2), NOW, 0.0), retry);
}

#[test]
fn every_verdict_is_a_transition_that_the_table_allows() {
    use crate::task::oracle::{Event, transition};
    for settle in Settle::ALL {
        let policy = policy(settle);
        for (state, attempt) in TaskState::ALL.into_iter().flat_map(|state| [(state, 1), (state, 2)]) {
            let snapshot = snapshot(state, &policy);
            let attempt = Attempt::new(attempt);
            let mut verdicts =
                vec![snapshot.after_deadline(NOW, NOW, 0.0), snapshot.after_rejection(attempt, NOW, 0.0)];
            verdicts.extend(["succeeded", "failed", "running", "discard"].map(|status| {
                snapshot.after_report(attempt, &report(&format!(r#"{{"status":"{status}"}}"#)), NOW, 0.0)
            }));
            for verdict in verdicts {
                let event = match &verdict {
                    Verdict::Archive { state: TaskState::Succeeded, .. } => Event::Succeed,
                    Verdict::Archive { .. } => Event::Bury,
                    Verdict::RetryAt { .. } => Event::Retry,
                    Verdict::Extend { .. } => Event::Start,
                    Verdict::Ignore => continue,
                };
                assert!(transition(state, event).is_ok(), "{settle:?} {state}: {verdict:?}");
            }
        }
    }
}

#[test]
fn a_task_that_is_to_stop_ends_cancelled_unless_it_succeeds() {
    let policy = policy(Settle::Result);
    for state in IN_FLIGHT {
        let snapshot = TaskSnapshot { stopping: true, ..snapshot(state, &policy) };
        let told = |json: &str| snapshot.after_report(Attempt::new(2), &report(json), NOW, 0.0);
        let cancelled = |reason| Verdict::Archive { state: TaskState::Cancelled, reason: Some(reason) };
        assert_eq!(told(r#"{"status":"failed","retry_in_ms":5}"#), cancelled(FailureReason::Failed));
        assert_eq!(told(r#"{"status":"discard"}"#), cancelled(FailureReason::Discarded));
        assert_eq!(snapshot.after_rejection(Attempt::new(2), NOW, 0.0), cancelled(FailureReason::Rejected));
        assert_eq!(told(r#"{"status":"succeeded"}"#), Verdict::SUCCEEDED);
        assert!(matches!(told(r#"{"status":"running"}"#), Verdict::Extend { .. }), "it may take its time to stop");
        if state != TaskState::Dispatching {
            assert_eq!(snapshot.after_deadline(NOW, NOW, 0.0), cancelled(FailureReason::Timeout));
        }
    }
}

#[test]
fn a_change_of_the_queue_forgets_no_stop_at_the_deadline() {
    let cancelled = Verdict::Archive { state: TaskState::Cancelled, reason: Some(FailureReason::Timeout) };
    for (settle, predates_reports) in [(Settle::Confirm, false), (Settle::Reject, false), (Settle::Result, true)] {
        let policy = policy(settle);
        let task = TaskSnapshot { stopping: true, predates_reports, ..snapshot(TaskState::Delivered, &policy) };
        assert_eq!(task.after_deadline(NOW, NOW, 0.0), cancelled, "{settle:?}");
    }
}

#[test]
fn a_returned_message_ends_its_task_as_the_rule_says_unless_something_was_heard_of_it() {
    let policy = policy(Settle::Result);
    let reason = FailureReason::Unroutable;
    let returned = |state, rule| snapshot(state, &policy).after_return(Attempt::new(2), rule, reason);
    let dead = Verdict::Archive { state: TaskState::Dead, reason: Some(FailureReason::Unroutable) };
    assert_eq!(returned(TaskState::Dispatching, Unroutable::SetAside), dead);
    let dropped = Verdict::Archive { state: TaskState::Cancelled, reason: None };
    assert_eq!(returned(TaskState::Dispatching, Unroutable::Drop), dropped);
    assert_eq!(returned(TaskState::Dispatching, Unroutable::Wait), Verdict::Ignore);
    for rule in [Unroutable::SetAside, Unroutable::Drop] {
        for state in TaskState::ALL.into_iter().filter(|state| *state != TaskState::Dispatching) {
            assert_eq!(returned(state, rule), Verdict::Ignore, "{state}");
        }
        let other = snapshot(TaskState::Dispatching, &policy).after_return(Attempt::new(1), rule, reason);
        assert_eq!(other, Verdict::Ignore);
    }
}

#[test]
fn a_message_that_is_not_sent_ends_its_task_for_its_own_reason_whatever_would_have_settled_it() {
    let reason = FailureReason::Discarded;
    for settle in Settle::ALL {
        let policy = policy(settle);
        let task = snapshot(TaskState::Dispatching, &policy);
        let unsent = |task: TaskSnapshot<'_>| task.after_return(Attempt::new(2), Unroutable::SetAside, reason);
        let ended = |state| Verdict::Archive { state, reason: Some(reason) };
        assert_eq!(unsent(task), ended(TaskState::Dead), "{settle:?}");
        assert_eq!(unsent(TaskSnapshot { stopping: true, ..task }), ended(TaskState::Cancelled), "{settle:?}");
    }
}

#[test]
fn the_states_of_each_write_are_those_in_which_its_event_is_allowed() {
    use crate::task::oracle::{Event, transition};
    for (states, events) in [
        (CONFIRMED_FROM, &[Event::Deliver][..]),
        (FAILED_FROM, &[Event::Retry, Event::Bury, Event::Stop, Event::Start]),
        (SUCCEEDED_FROM, &[Event::Succeed]),
    ] {
        for (state, event) in TaskState::ALL.into_iter().flat_map(|state| events.iter().map(move |e| (state, *e))) {
            assert_eq!(states.contains(&state), transition(state, event).is_ok(), "{event} of a {state} task");
        }
    }
    assert!(TIMED_OUT_FROM.iter().all(|state| FAILED_FROM.contains(state)));
}
