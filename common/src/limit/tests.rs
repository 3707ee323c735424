use std::time::{Duration, Instant};

use super::*;

const TEN: PendingLimits = PendingLimits { tasks: Some(10), bytes: None };
const ALL: CountCoverage = CountCoverage { whole: true, bytes: true };
const ONE: Usage = Usage { tasks: 1, bytes: 100 };

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn tasks(tasks: i64) -> Usage {
    Usage { tasks, bytes: tasks * 100 }
}

/// Records a count that ended at `now` and took `cost`.
fn counted(tally: &mut UsageCounter, usage: Usage, now: Instant, cost: Duration) {
    tally.count_begins(now.checked_sub(cost).expect("the clock is older"));
    tally.counted(usage, ALL, now);
}

fn start() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}

#[test]
fn nothing_is_decided_before_the_first_count() {
    let (mut tally, now) = (UsageCounter::default(), start());
    assert_eq!(tally.admit(TEN, ONE, now, false), LimitDecision::CountFirst);
    assert_eq!(tally.used(), Usage::default(), "and no room is taken");
    counted(&mut tally, tasks(9), now, ms(1));
    assert_eq!(tally.admit(TEN, ONE, now, true), LimitDecision::Fits);
    let full = Excess { by: Measure::Tasks, most: 10, used: 10 };
    assert_eq!(tally.admit(TEN, ONE, now, true), LimitDecision::Exceeds(full));
}

#[test]
fn what_is_admitted_takes_room_until_a_later_count_sees_it() {
    let (mut tally, now) = (UsageCounter::default(), start());
    counted(&mut tally, tasks(0), now, ms(1));
    tally.admit(TEN, tasks(4), now, false);
    tally.admit(TEN, tasks(5), now, false);
    tally.answered(tasks(4));
    assert_eq!(tally.used().tasks, 9);
    tally.count_begins(now);
    tally.answered(tasks(5));
    tally.counted(tasks(4), ALL, now);
    assert_eq!(tally.used().tasks, 9, "a count may miss tasks that were in flight at its start");
    counted(&mut tally, tasks(2), now, ms(1));
    assert_eq!(tally.used().tasks, 2, "tasks that finished make room");
    tally.admit(TEN, tasks(3), now, false);
    tally.withdraw(tasks(3));
    assert_eq!(tally.used().tasks, 2, "tasks refused elsewhere took no room");
}

#[test]
fn a_refusal_stands_on_a_fresh_count_and_counting_stays_cheap() {
    let (mut tally, now) = (UsageCounter::default(), start());
    counted(&mut tally, tasks(10), now, ms(1));
    assert!(matches!(tally.admit(TEN, ONE, now + ms(100), false), LimitDecision::Exceeds(_)));
    assert_eq!(tally.admit(TEN, ONE, now + ms(101), false), LimitDecision::CountFirst);
    counted(&mut tally, tasks(10), now, ms(50));
    assert!(
        matches!(tally.admit(TEN, ONE, now + ms(1_000), false), LimitDecision::Exceeds(_)),
        "twenty times its cost"
    );
    assert_eq!(tally.admit(TEN, ONE, now + ms(1_001), false), LimitDecision::CountFirst);
}

#[test]
fn a_count_that_takes_long_refuses_for_good_only_what_it_found_full() {
    let (mut tally, now) = (UsageCounter::default(), start());
    counted(&mut tally, tasks(9), now, ms(5_000));
    assert_eq!(tally.admit(TEN, ONE, now, false), LimitDecision::Fits);
    tally.answered(ONE);
    assert!(matches!(tally.admit(TEN, ONE, now + ms(1_000), false), LimitDecision::Exceeds(_)));
    assert_eq!(tally.admit(TEN, ONE, now + ms(1_001), false), LimitDecision::Unknown, "others may have ended");
    assert_eq!(tally.admit(TEN, ONE, now + ms(20_001), false), LimitDecision::CountFirst, "four times its cost");
    assert_eq!(tally.admit(TEN, ONE, now + ms(20_001), true), LimitDecision::Unknown);

    counted(&mut tally, tasks(10), now, ms(5_000));
    assert!(matches!(tally.admit(TEN, ONE, now + ms(20_000), false), LimitDecision::Exceeds(_)), "it was full");
    assert_eq!(tally.admit(TEN, ONE, now + ms(20_001), false), LimitDecision::CountFirst);
    assert_eq!(tally.admit(TEN, ONE, now + ms(20_001), true), LimitDecision::Unknown);

    let hundred = PendingLimits { tasks: Some(100), ..TEN };
    for (found, is_final) in [(96, true), (90, false)] {
        counted(&mut tally, tasks(found), now, ms(5_000));
        assert_eq!(tally.admit(hundred, tasks(100 - found), now, false), LimitDecision::Fits);
        tally.answered(tasks(100 - found));
        let ruling = tally.admit(hundred, ONE, now + ms(10_000), false);
        assert_eq!(matches!(ruling, LimitDecision::Exceeds(_)), is_final, "{found} of 100: {ruling:?}");
    }
}

#[test]
fn an_admission_stands_on_a_count_that_is_not_outdated() {
    let (mut tally, now) = (UsageCounter::default(), start());
    counted(&mut tally, tasks(0), now, ms(1));
    for (age, ruling) in [
        (ms(1_000), LimitDecision::Fits),
        (ms(1_001), LimitDecision::FitsButCount),
        (ms(10_000), LimitDecision::FitsButCount),
        (ms(10_001), LimitDecision::CountFirst),
    ] {
        assert_eq!(tally.clone().admit(TEN, ONE, now + age, false), ruling, "{age:?}");
    }
    assert_eq!(tally.admit(TEN, ONE, now + ms(10_001), true), LimitDecision::FitsButCount, "no better figure is known");
}

#[test]
fn a_count_that_stopped_at_a_lower_limit_does_not_decide_about_a_higher_one() {
    let (mut tally, now) = (UsageCounter::default(), start());
    tally.count_begins(now);
    tally.counted(tasks(11), CountCoverage { whole: false, ..ALL }, now);
    assert!(matches!(tally.admit(TEN, ONE, now, false), LimitDecision::Exceeds(_)));
    let more = PendingLimits { tasks: Some(1_000), ..TEN };
    assert_eq!(tally.admit(more, ONE, now, false), LimitDecision::CountFirst);
}

#[test]
fn a_count_of_tasks_does_not_decide_about_bytes() {
    let (mut tally, now) = (UsageCounter::default(), start());
    tally.count_begins(now);
    tally.counted(tasks(1), CountCoverage { bytes: false, ..ALL }, now);
    assert_eq!(tally.admit(TEN, ONE, now, false), LimitDecision::Fits);
    let most = PendingLimits { bytes: Some(1_000), ..TEN };
    assert_eq!(tally.admit(most, ONE, now, false), LimitDecision::CountFirst);
}

#[test]
fn while_nothing_can_be_counted_what_is_known_decides() {
    let (mut tally, now) = (UsageCounter::default(), start());
    tally.count_begins(now);
    tally.count_failed(now);
    assert!(!tally.is_counting());
    assert_eq!(tally.admit(TEN, ONE, now, false), LimitDecision::Fits);
    assert_eq!(tally.admit(TEN, ONE, now + ms(1_000), false), LimitDecision::CountFirst, "it is tried again");
    counted(&mut tally, tasks(10), now, ms(1));
    for (later, is_refused) in [(ms(1_000), true), (ms(1_001), false)] {
        tally.count_begins(now + later);
        tally.count_failed(now + later);
        let ruling = tally.admit(TEN, ONE, now + later, false);
        assert_eq!(matches!(ruling, LimitDecision::Exceeds(_)), is_refused, "{later:?}: {ruling:?}");
    }
}

#[test]
fn tasks_that_ended_since_the_last_count_that_there_is_refuse_no_others() {
    let (mut tally, mut now) = (UsageCounter::default(), start());
    counted(&mut tally, tasks(0), now, ms(1));
    let mut next = |tally: &mut UsageCounter, most| {
        now += ms(900);
        tally.count_begins(now);
        tally.count_failed(now);
        let ruling = tally.admit(most, ONE, now, false);
        if matches!(ruling, LimitDecision::Fits | LimitDecision::FitsButCount) {
            tally.answered(ONE);
        }
        ruling
    };
    for nth in 1..=10 {
        let ruling = next(&mut tally, TEN);
        assert!(matches!(ruling, LimitDecision::Fits | LimitDecision::FitsButCount), "task {nth}: {ruling:?}");
    }
    assert_eq!(next(&mut tally, TEN), LimitDecision::Unknown, "all ten may have ended");
    let none = PendingLimits { tasks: Some(0), ..TEN };
    assert!(matches!(next(&mut tally, none), LimitDecision::Exceeds(_)), "no count makes room");
    assert_eq!(tally.used().tasks, 10, "no room is taken");
    counted(&mut tally, tasks(3), now, ms(1));
    assert_eq!(tally.admit(TEN, ONE, now, false), LimitDecision::Fits, "a count says that there is room");
}

#[test]
fn tasks_and_bytes_are_limited_apart() {
    let most = PendingLimits { tasks: Some(10), bytes: Some(500) };
    assert_eq!(most.exceeded(tasks(4), ONE), None);
    assert_eq!(most.exceeded(tasks(5), ONE), Some(Excess { by: Measure::Bytes, most: 500, used: 500 }));
    let small = Usage { tasks: 10, bytes: 10 };
    assert_eq!(most.exceeded(small, ONE), Some(Excess { by: Measure::Tasks, most: 10, used: 10 }));
    assert_eq!(PendingLimits::default().exceeded(tasks(MAX_COUNT), ONE), None);
}

#[test]
fn a_bucket_holds_the_requests_of_one_second() {
    let (mut bucket, now) = (Bucket::default(), start());
    let mut passed = |at, sent: usize| (0..sent).filter(|_| bucket.take(10, at)).count();
    assert_eq!(passed(now, 50), 10);
    assert_eq!(passed(now + ms(500), 50), 5);
    assert_eq!(passed(now + ms(60_000), 50), 10, "nothing is saved up beyond a second");
    assert!(!bucket.is_full(now + ms(60_000)) && bucket.is_full(now + ms(61_000)));
}

#[test]
fn a_bucket_takes_back_a_request_that_is_not_made_and_holds_no_more_for_it() {
    let (mut bucket, now) = (Bucket::default(), start());
    bucket.give_back();
    assert!((0..2).all(|_| bucket.take(2, now)) && !bucket.take(2, now));
    bucket.give_back();
    assert!(bucket.take(2, now) && !bucket.take(2, now));
    bucket.give_back();
    let later = now + ms(60_000);
    assert!((0..2).all(|_| bucket.take(2, later)) && !bucket.take(2, later));
}

#[test]
fn limits_of_a_token_are_checked_and_read_back() {
    let limits = TokenLimits { requests_per_second: Some(5), pending: Some(0), ..TokenLimits::NONE };
    assert_eq!(limits.validate(), Ok(()));
    let json = serde_json::to_string(&limits).unwrap();
    assert_eq!(json, r#"{"requests_per_second":5,"pending":0}"#);
    assert_eq!(serde_json::from_str::<TokenLimits>(&json).unwrap(), limits);
    assert_eq!((limits.to_string(), TokenLimits::NONE.to_string()), ("5 requests/s, 0 tasks".into(), "none".into()));
    for (limits, field) in [
        (TokenLimits { requests_per_second: Some(0), ..limits }, "limits.requests_per_second"),
        (TokenLimits { pending: Some(-1), ..limits }, "limits.pending"),
        (TokenLimits { pending_bytes: Some(MAX_BYTES + 1), ..limits }, "limits.pending_bytes"),
        (TokenLimits { queues: Some(-1), ..limits }, "limits.queues"),
        (TokenLimits { schedules: Some(MAX_COUNT + 1), ..limits }, "limits.schedules"),
    ] {
        assert_eq!(limits.validate().unwrap_err().field, field);
    }
}

#[test]
fn every_limit_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<&str> = Limit::ALL.iter().map(|limit| limit.text()).collect();
    assert_eq!(names.len(), Limit::ALL.len());
}
