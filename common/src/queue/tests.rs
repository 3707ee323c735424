use super::*;

#[test]
fn the_default_policy_is_the_agreed_one_and_valid() {
    let policy = QueuePolicy::default();
    assert_eq!(policy.validate(), Ok(()));
    let json = serde_json::to_value(&policy).unwrap();
    let expected = serde_json::json!({
        "settle": "reject", "max_attempts": 25, "retry": {"kind": "polynomial"}, "timeout_ms": 1_800_000,
        "placement": "spread", "max_length": 10_000, "unroutable": "wait", "use_existing": false, "receipt": "optional", "dedup_window_ms": 86_400_000, "keep_succeeded_ms": 86_400_000,
        "keep_dead_ms": 1_209_600_000, "ordered": false, "retry_priority_drop": false, "format": "raw",
    });
    assert_eq!(json, expected);
}

#[test]
fn a_stored_policy_is_read_whatever_it_lacks_or_has_too_much() {
    let policy: QueuePolicy = serde_json::from_str(r#"{"settle":"result","from_the_future":1}"#).unwrap();
    assert_eq!(policy, QueuePolicy { settle: Settle::Result, ..QueuePolicy::default() });
}

#[test]
fn of_a_policy_that_cannot_be_read_the_other_fields_count() {
    let stored = serde_json::json!({ "settle": "on_the_moon", "max_running": "ten", "placement": "single", "new": 1 });
    let (policy, unreadable) = QueuePolicy::salvage(stored).unwrap();
    assert_eq!(policy, QueuePolicy { placement: Placement::Single, ..QueuePolicy::default() });
    assert_eq!(unreadable, ["max_running", "settle"]);
    for stored in [serde_json::json!({ "placement": 1 }), serde_json::json!({ "receipt": "" }), serde_json::json!(7)] {
        assert_eq!(QueuePolicy::salvage(stored), None);
    }
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    let default = QueuePolicy::default;
    let long = "k".repeat(256);
    let refused = [
        ("max_attempts", QueuePolicy { max_attempts: 0, ..default() }),
        ("max_attempts", QueuePolicy { max_attempts: 1_001, ..default() }),
        ("retry.delay_ms", QueuePolicy { retry: RetryPolicy::Fixed { delay_ms: 0 }, ..default() }),
        ("timeout_ms", QueuePolicy { timeout_ms: 0, ..default() }),
        ("timeout_ms", QueuePolicy { timeout_ms: MAX_TIMEOUT_MS + 1, ..default() }),
        ("max_length", QueuePolicy { max_length: 0, ..default() }),
        ("dedup_window_ms", QueuePolicy { dedup_window_ms: -1, ..default() }),
        ("keep_succeeded_ms", QueuePolicy { keep_succeeded_ms: -1, ..default() }),
        ("keep_dead_ms", QueuePolicy { keep_dead_ms: i64::MAX, ..default() }),
        ("failure_alert_threshold", QueuePolicy { failure_alert_threshold: Some(0), ..default() }),
        ("exchange", QueuePolicy { exchange: Some(String::new()), ..default() }),
        ("exchange", QueuePolicy { exchange: Some("duetime.in".to_owned()), ..default() }),
        ("routing_key", QueuePolicy { routing_key: Some(long), ..default() }),
        ("unroutable", QueuePolicy { unroutable: Unroutable::Drop, ..default() }),
        ("unroutable", QueuePolicy { unroutable: Unroutable::SetAside, ..default() }),
    ];
    for (field, policy) in refused {
        let error = policy.validate().unwrap_err();
        assert_eq!(error.field, field);
        assert!(error.detail.contains(field), "{error}");
    }
}

#[test]
fn what_gates_a_queue_is_refused_where_it_cannot_hold() {
    let default = QueuePolicy::default;
    let single = || QueuePolicy { settle: Settle::Result, placement: Placement::Single, ..default() };
    let refused = [
        ("priority_weights", QueuePolicy { priority_weights: Some(vec![]), ..default() }),
        ("priority_weights", QueuePolicy { priority_weights: Some(vec![1; 6]), ..default() }),
        ("priority_weights", QueuePolicy { priority_weights: Some(vec![80, 0]), ..default() }),
        ("priority_weights", QueuePolicy { priority_weights: Some(vec![1_001]), ..default() }),
        ("max_running", QueuePolicy { max_running: Some(0), ..single() }),
        ("max_running", QueuePolicy { max_running: Some(10_001), ..single() }),
        ("max_running", QueuePolicy { max_running: Some(1), settle: Settle::Reject, ..single() }),
        ("max_running", QueuePolicy { max_running: Some(1), placement: Placement::Spread, ..single() }),
        ("rate_per_second", QueuePolicy { rate_per_second: Some(0.0), ..default() }),
        ("rate_per_second", QueuePolicy { rate_per_second: Some(-1.0), ..default() }),
        ("rate_per_second", QueuePolicy { rate_per_second: Some(f64::NAN), ..default() }),
        ("rate_per_second", QueuePolicy { rate_per_second: Some(f64::INFINITY), ..default() }),
        ("ordered", QueuePolicy { ordered: true, ..default() }),
        ("ordered", QueuePolicy { ordered: true, settle: Settle::Confirm, ..default() }),
    ];
    for (field, policy) in refused {
        let error = policy.validate().unwrap_err();
        assert_eq!(error.field, field, "{policy:?}");
        assert!(error.detail.contains(field), "{error}");
    }
    let ordered = QueuePolicy { ordered: true, settle: Settle::Result, ..default() };
    let limited = QueuePolicy { max_running: Some(3), ..single() };
    let slow = QueuePolicy { rate_per_second: Some(0.5), ..default() };
    for policy in [ordered, limited, slow] {
        assert_eq!(policy.validate(), Ok(()));
        assert!(policy.is_gated());
    }
    let weighed = QueuePolicy { priority_weights: Some(vec![80, 20]), retry_priority_drop: true, ..default() };
    assert_eq!((weighed.validate(), weighed.is_gated()), (Ok(()), false));
}

#[test]
fn a_queue_is_named_with_few_characters_only() {
    for name in ["a", "duetime", "amq", "orders.created", "A-Z_09.", &"q".repeat(128)] {
        assert_eq!(check_name(name), Ok(()), "{name}");
    }
    for name in ["", "a b", "ä", "a/b", "a\0", "a\n", "duetime.in", "duetime.", "amq.gen-1", &"q".repeat(129)] {
        assert_eq!(check_name(name).unwrap_err().field, "queue", "{name}");
    }
}

#[test]
fn a_queue_nobody_has_set_has_the_default_policy() {
    let mail = Queue { paused: true, ..Queue::with_defaults(QueueName::new("mail")) };
    let book = QueueBook::new(1, [mail.clone()]);
    assert_eq!(*book.get(&mail.name), mail);
    let other = QueueName::new("other");
    assert_eq!(*book.get(&other), Queue::with_defaults(other.clone()));
    assert!(book.find(&other).is_none());
    assert_eq!((book.len(), book.is_empty()), (1, false));
}

#[test]
fn a_book_with_changes_is_the_book_that_is_read_anew() {
    let queue = |name: &str, paused| Queue { paused, ..Queue::with_defaults(QueueName::new(name)) };
    let before = QueueBook::new(1, [queue("a", false), queue("b", true), queue("c", true)]);
    let changes = [
        QueueChange::Deleted(QueueName::new("b")),
        QueueChange::Deleted(QueueName::new("a")),
        QueueChange::Stored(queue("a", true).into()),
        QueueChange::Stored(queue("c", false).into()),
        QueueChange::Stored(queue("d", false).into()),
    ];
    let after = before.clone().with(5, changes);
    let anew = QueueBook::new(5, [queue("a", true), queue("c", false), queue("d", false)]);
    assert_eq!(after.revision(), 5);
    assert_eq!(after.iter().collect::<Vec<_>>(), anew.iter().collect::<Vec<_>>());
    assert_eq!(after.held(), anew.held());
    assert_eq!(after.held().iter().map(QueueName::as_str).collect::<Vec<_>>(), ["a"]);
    let (changed, gone) = after.since(&before);
    assert_eq!(changed.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(), ["a", "c", "d"]);
    assert_eq!(gone, [QueueName::new("b")]);
    let names = |from: &str| after.after(from).map(|queue| queue.name.to_string()).collect::<Vec<_>>();
    assert_eq!(
        (names(""), names("a"), names("d")),
        (vec!["a".into(), "c".into(), "d".into()], vec!["c".into(), "d".into()], vec![])
    );
}
