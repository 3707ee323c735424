use proptest::prelude::*;

use super::*;

const EXPONENTIAL: RetryPolicy = RetryPolicy::Exponential { base_ms: 500, factor: 2.0, max_ms: 60_000, jitter: 0.2 };

#[test]
fn the_default_back_off_grows_with_the_fourth_power_of_the_failures() {
    // Number of failures, then the shortest and the longest wait in seconds.
    let ranges =
        [(0, 15, 45), (1, 16, 76), (2, 31, 121), (3, 96, 216), (4, 271, 421), (5, 640, 820), (10, 10_015, 10_345)];
    for (failures, shortest_s, longest_s) in ranges {
        assert_eq!(RetryPolicy::Polynomial.delay(failures, 0.0), Duration::from_secs(shortest_s), "n = {failures}");
        assert_eq!(RetryPolicy::Polynomial.delay(failures, 1.0), Duration::from_secs(longest_s), "n = {failures}");
    }
}

#[test]
fn the_default_budget_of_25_attempts_waits_24_times_and_16_days_and_a_half() {
    let budget = crate::queue::QueuePolicy::default().max_attempts;
    let mut now = UnixMicros::new(0);
    let mut waits = 0;
    for attempt in 1.. {
        match RetryPolicy::Polynomial.decide(attempt, budget, now, 0.5, None) {
            RetryDecision::Retry { at } => now = at,
            RetryDecision::Bury => break,
        }
        waits += 1;
    }
    let days = now.micros() as f64 / 86_400e6;
    assert_eq!((budget, waits), (25, 24));
    assert!((16.5..16.7).contains(&days), "{days} days");
}

#[test]
fn exponential_back_off_doubles_up_to_its_maximum_and_jitter_only_shortens() {
    let wait_ms = |failures, rand01| EXPONENTIAL.delay(failures, rand01).as_millis();
    assert_eq!([0, 1, 2, 6, 7].map(|failures| wait_ms(failures, 0.0)), [500, 1_000, 2_000, 32_000, 60_000]);
    assert_eq!([0, 1, 2, 6, 7].map(|failures| wait_ms(failures, 1.0)), [400, 800, 1_600, 25_600, 48_000]);
}

#[test]
fn fixed_and_immediate_do_not_depend_on_the_failures() {
    for failures in [0, 1, 24, u32::MAX] {
        assert_eq!(RetryPolicy::Fixed { delay_ms: 250 }.delay(failures, 0.7), Duration::from_millis(250));
        assert_eq!(RetryPolicy::Immediate.delay(failures, 0.7), Duration::ZERO);
    }
}

#[test]
fn the_last_attempt_of_the_budget_is_buried() {
    let now = UnixMicros::new(1_000_000);
    let fixed = RetryPolicy::Fixed { delay_ms: 1_000 };
    assert_eq!(fixed.decide(1, 3, now, 0.0, None), RetryDecision::Retry { at: UnixMicros::new(2_000_000) });
    assert_eq!(fixed.decide(2, 3, now, 0.0, None), RetryDecision::Retry { at: UnixMicros::new(2_000_000) });
    assert_eq!(fixed.decide(3, 3, now, 0.0, None), RetryDecision::Bury);
    assert_eq!(fixed.decide(4, 3, now, 0.0, None), RetryDecision::Bury);
    assert_eq!(fixed.decide(1, 1, now, 0.0, None), RetryDecision::Bury);
}

#[test]
fn the_first_failure_counts_as_none_before_it() {
    let now = UnixMicros::new(0);
    assert_eq!(
        RetryPolicy::Polynomial.decide(1, 25, now, 0.0, None),
        RetryDecision::Retry { at: UnixMicros::new(15_000_000) }
    );
    assert_eq!(
        RetryPolicy::Polynomial.decide(3, 25, now, 0.0, None),
        RetryDecision::Retry { at: UnixMicros::new(31_000_000) }
    );
}

#[test]
fn the_consumers_wish_overrides_the_back_off_but_not_the_budget() {
    let now = UnixMicros::new(0);
    let at = |micros| RetryDecision::Retry { at: UnixMicros::new(micros) };
    assert_eq!(RetryPolicy::Polynomial.decide(1, 2, now, 0.0, Some(200)), at(200_000));
    assert_eq!(RetryPolicy::Polynomial.decide(1, 2, now, 0.0, Some(0)), at(0));
    assert_eq!(RetryPolicy::Polynomial.decide(1, 2, now, 0.0, Some(-5)), at(0));
    assert_eq!(
        RetryPolicy::Polynomial.decide(1, 2, now, 0.0, Some(i64::MAX)),
        RetryDecision::Retry { at: UnixMicros::LAST }
    );
    assert_eq!(RetryPolicy::Polynomial.decide(2, 2, now, 0.0, Some(200)), RetryDecision::Bury);
}

#[test]
fn a_policy_is_spelled_flat_with_its_kind() {
    let spelled = [
        (RetryPolicy::Polynomial, r#"{"kind":"polynomial"}"#),
        (RetryPolicy::Immediate, r#"{"kind":"immediate"}"#),
        (RetryPolicy::Fixed { delay_ms: 9 }, r#"{"kind":"fixed","delay_ms":9}"#),
        (EXPONENTIAL, r#"{"kind":"exponential","base_ms":500,"factor":2.0,"max_ms":60000,"jitter":0.2}"#),
    ];
    for (policy, json) in spelled {
        assert_eq!(serde_json::to_string(&policy).unwrap(), json);
        assert_eq!(serde_json::from_str::<RetryPolicy>(json).unwrap(), policy);
    }
    let short: RetryPolicy = serde_json::from_str(r#"{"kind":"exponential","base_ms":500}"#).unwrap();
    let long = RetryPolicy::Exponential { base_ms: 500, factor: 2.0, max_ms: 86_400_000, jitter: 0.0 };
    assert_eq!(short, long);
}

#[test]
fn a_parameter_that_is_missing_or_of_another_kind_is_named() {
    let refused = [
        (r#"{"kind":"fixed"}"#, "missing field `retry.delay_ms`"),
        (r#"{"kind":"exponential"}"#, "missing field `retry.base_ms`"),
        (r#"{"kind":"polynomial","delay_ms":1}"#, "unknown field `retry.delay_ms`"),
        (r#"{"kind":"immediate","jitter":0.1}"#, "unknown field `retry.jitter`"),
        (r#"{"kind":"fixed","delay_ms":1,"delay":1}"#, "unknown field `delay`"),
        (r#"{"kind":"cubic"}"#, "unknown variant `cubic`"),
        (r#"{"delay_ms":1}"#, "missing field `kind`"),
    ];
    for (json, reason) in refused {
        let error = serde_json::from_str::<RetryPolicy>(json).unwrap_err().to_string();
        assert!(error.contains(reason), "{json}: {error}");
    }
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let exponential = |base_ms, factor, max_ms, jitter| RetryPolicy::Exponential { base_ms, factor, max_ms, jitter };
    let refused = [
        (RetryPolicy::Fixed { delay_ms: 0 }, "retry.delay_ms"),
        (RetryPolicy::Fixed { delay_ms: -1 }, "retry.delay_ms"),
        (RetryPolicy::Fixed { delay_ms: i64::MAX }, "retry.delay_ms"),
        (exponential(0, 2.0, 10, 0.0), "retry.base_ms"),
        (exponential(5, 0.5, 10, 0.0), "retry.factor"),
        (exponential(5, f64::NAN, 10, 0.0), "retry.factor"),
        (exponential(5, 101.0, 10, 0.0), "retry.factor"),
        (exponential(5, 2.0, 4, 0.0), "retry.max_ms"),
        (exponential(5, 2.0, i64::MAX, 0.0), "retry.max_ms"),
        (exponential(5, 2.0, 10, -0.1), "retry.jitter"),
        (exponential(5, 2.0, 10, 1.1), "retry.jitter"),
    ];
    for (policy, field) in refused {
        assert_eq!(policy.validate().unwrap_err().field, field, "{policy:?}");
    }
    for policy in [RetryPolicy::Polynomial, RetryPolicy::Immediate, EXPONENTIAL, exponential(1, 1.0, 1, 1.0)] {
        assert_eq!(policy.validate(), Ok(()));
    }
}

fn policies() -> impl Strategy<Value = RetryPolicy> {
    let exponential = (any::<i64>(), any::<f64>(), any::<i64>(), any::<f64>())
        .prop_map(|(base_ms, factor, max_ms, jitter)| RetryPolicy::Exponential { base_ms, factor, max_ms, jitter });
    prop_oneof![
        Just(RetryPolicy::Polynomial),
        Just(RetryPolicy::Immediate),
        any::<i64>().prop_map(|delay_ms| RetryPolicy::Fixed { delay_ms }),
        exponential,
    ]
}

proptest! {
    #[test]
    fn no_number_of_failures_overflows(policy in policies(), failures: u32, rand01: f64, attempt: i32, micros: i64) {
        let now = UnixMicros::new(micros).min(UnixMicros::LAST);
        policy.delay(failures, rand01);
        if let RetryDecision::Retry { at } = policy.decide(attempt, i32::MAX, now, rand01, None) {
            prop_assert!(at >= now && at <= UnixMicros::LAST);
        }
    }

    #[test]
    fn exponential_waits_stay_between_their_jitter_and_their_maximum(failures in 0_u32..5_000, rand01 in 0.0..=1.0) {
        let wait_ms = EXPONENTIAL.delay(failures, rand01).as_millis();
        prop_assert!((400..=60_000).contains(&wait_ms));
    }
}
