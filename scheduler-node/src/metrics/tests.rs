//! The metrics that all rooms register together, as Prometheus scrapes them.

use std::{
    collections::BTreeSet,
    io::Write as _,
    process::{Command, Stdio},
};

use prometheus::{
    TextEncoder,
    proto::{MetricFamily, MetricType},
};

use super::{families::LATENESS_BUCKETS_S, *};
use crate::{
    broker::BrokerMetrics,
    coordination::CoordinationMetrics,
    http::HttpMetrics,
    store::{StoreMetrics, StoreOp},
};

/// The metrics that alerts use: the name, and the labels that are promised with it.
const PROMISED: &[(&str, &[&str])] = &[
    ("duetime_lateness_seconds", &["queue"]),
    ("duetime_oldest_overdue_seconds", &[]),
    ("duetime_tasks_submitted_total", &["queue", "source"]),
    ("duetime_tasks_finished_total", &["outcome", "queue"]),
    ("duetime_attempts_failed_total", &["queue", "reason"]),
    ("duetime_shards_owned", &[]),
    ("duetime_shards_unowned", &[]),
    ("duetime_master", &[]),
    ("duetime_fence_refusals_total", &[]),
    ("duetime_publish_unknown_total", &[]),
    ("duetime_publish_unroutable_total", &[]),
    ("duetime_lease_renewal_age_seconds", &[]),
    ("duetime_etcd_writable", &[]),
    ("duetime_broker_up", &[]),
    ("duetime_broker_blocked", &[]),
    ("duetime_database_up", &["database"]),
    ("duetime_heap_entries", &[]),
    ("duetime_build_info", &["version"]),
];

const DATABASES: [&str; 2] = ["main", "second"];

/// Everything a node registers, before anything has happened.
fn at_the_start() -> (Registry, Metrics) {
    let registry = Registry::new();
    super::register_process(&registry).unwrap();
    let metrics = Metrics::register(&registry).unwrap();
    DATABASES.iter().for_each(|database| metrics.begin_database(database));
    let families = StoreMetrics::families(&registry).unwrap();
    for database in DATABASES {
        let _ = StoreMetrics::new(families.clone(), database);
    }
    CoordinationMetrics::register(&registry).unwrap();
    BrokerMetrics::register(&registry).unwrap();
    HttpMetrics::register(&registry, &[]).unwrap();
    (registry, metrics)
}

fn text(registry: &Registry) -> String {
    TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
}

fn family(registry: &Registry, name: &str) -> MetricFamily {
    registry.gather().into_iter().find(|family| family.name() == name).unwrap_or_else(|| panic!("{name} exists"))
}

/// The values of one label that a family has series for.
fn values_of(registry: &Registry, name: &str, label: &str) -> BTreeSet<String> {
    let family = family(registry, name);
    let labels = family.get_metric().iter().flat_map(|metric| metric.get_label());
    labels.filter(|pair| pair.name() == label).map(|pair| pair.value().to_owned()).collect()
}

#[test]
fn everything_alerts_stand_on_is_there_from_the_start() {
    let (registry, _) = at_the_start();
    let text = text(&registry);
    for (name, labels) in PROMISED {
        let is_sample = |line: &str| {
            let rest = line.strip_prefix(name).map(|rest| rest.strip_prefix("_count").unwrap_or(rest));
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
        };
        assert!(text.lines().any(is_sample), "{name} has a series in\n{text}");
        let family = family(&registry, name);
        let found: BTreeSet<&str> = family.get_metric()[0].get_label().iter().map(|pair| pair.name()).collect();
        assert!(labels.iter().all(|label| found.contains(label)), "{name} has the labels {labels:?}, not {found:?}");
    }
}

#[test]
fn every_series_whose_labels_are_known_beforehand_is_there_from_the_start() {
    let (registry, _) = at_the_start();
    let set = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<BTreeSet<_>>();
    for name in ["database_up", "heap_entries", "tasks_in_flight", "database_overdue_seconds", "database_connections"] {
        assert_eq!(values_of(&registry, &format!("duetime_{name}"), "database"), set(&DATABASES), "{name}");
    }
    let outcomes = set(&["succeeded", "dead", "cancelled", "superseded", "expired"]);
    assert_eq!(values_of(&registry, "duetime_tasks_finished_total", "outcome"), outcomes);
    let reasons: Vec<&str> = FailureReason::ALL.iter().map(|reason| reason.text()).collect();
    assert_eq!(values_of(&registry, "duetime_attempts_failed_total", "reason"), set(&reasons));
    assert_eq!(values_of(&registry, "duetime_tasks_claimed_total", "how"), set(&["due", "ready", "rescue", "submit"]));
    let ops: Vec<&str> = StoreOp::ALL.iter().map(|op| op.text()).collect();
    assert_eq!(values_of(&registry, "duetime_database_statement_seconds", "op"), set(&ops));
}

#[test]
fn a_queue_seen_for_the_first_time_gets_all_its_series_at_once() {
    let (registry, metrics) = at_the_start();
    metrics.late_by(&QueueName::new("orders"), [0.002]);
    for name in [
        "duetime_lateness_seconds",
        "duetime_publishes_total",
        "duetime_tasks_submitted_total",
        "duetime_tasks_finished_total",
        "duetime_attempts_failed_total",
    ] {
        assert!(values_of(&registry, name, "queue").contains("orders"), "{name}");
    }
}

#[test]
fn names_say_what_is_counted_in_which_unit() {
    const NOT_BASE: &[&str] =
        &["ms", "millis", "milliseconds", "us", "micros", "ns", "minutes", "hours", "days", "kb", "mb", "percent"];
    let (registry, _) = at_the_start();
    for family in registry.gather() {
        let name = family.name();
        let ours = name.strip_prefix("duetime_");
        assert!(ours.is_some() || name.starts_with("process_"), "{name} says whose it is");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{name} is plain");
        assert!(!family.help().is_empty(), "{name} says what it means");
        let counts = family.get_field_type() == MetricType::COUNTER;
        assert_eq!(name.ends_with("_total"), counts, "{name}: counters end in _total, and nothing else does");
        assert!(
            !["_count", "_sum", "_bucket", "_info"]
                .iter()
                .any(|end| name.ends_with(end) && name != "duetime_build_info")
        );
        assert!(!name.split('_').any(|word| NOT_BASE.contains(&word)), "{name} is in base units");
        for pair in family.get_metric().iter().flat_map(|metric| metric.get_label()) {
            assert!(!pair.value().is_empty(), "{name}: the label {} has a value", pair.name());
            assert_ne!(pair.name(), "le", "{name}: the name is taken");
        }
    }
}

#[test]
fn queues_beyond_the_bound_share_one_label_and_those_before_keep_theirs() {
    let (registry, metrics) = at_the_start();
    let queue = |number: usize| QueueName::new(format!("q{number}"));
    for number in 0..QUEUE_LABELS + 20 {
        metrics.published(&queue(number), 1);
    }
    metrics.published(&queue(0), 1);
    let labels = values_of(&registry, "duetime_publishes_total", "queue");
    assert_eq!(labels.len(), QUEUE_LABELS + 1, "each its own, and the one they share");
    assert!(!labels.contains(queue(QUEUE_LABELS).as_str()));
    let count = |label: &str| metrics.published.with_label_values(&[label]).get();
    assert_eq!((count("q0"), count("q1"), count(OTHER)), (2, 1, 20), "nothing is lost in sharing");
}

#[test]
fn one_millisecond_and_a_hundred_can_be_read_off_the_lateness() {
    assert!(LATENESS_BUCKETS_S.is_sorted_by(|a, b| a < b));
    let (registry, metrics) = at_the_start();
    metrics.late_by(&QueueName::new("orders"), [0.001, 0.001_1, 0.1, 0.100_1]);
    let family = family(&registry, "duetime_lateness_seconds");
    let orders = family.get_metric().iter().find(|metric| metric.get_label()[0].value() == "orders").unwrap();
    let within = |edge_s: f64| {
        let buckets = orders.get_histogram().get_bucket();
        buckets.iter().find(|bucket| bucket.upper_bound() == edge_s).map(|bucket| bucket.cumulative_count())
    };
    assert_eq!((within(0.001), within(0.1)), (Some(1), Some(3)), "a bucket includes its edge");
}

/// Checks the metrics with Prometheus' own tool, where it is installed.
#[test]
fn promtool_finds_nothing_to_say_about_them() {
    let (registry, metrics) = at_the_start();
    metrics.late_by(&QueueName::new("orders"), [0.002]);
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else { return };
    // Dropped at the end of the statement: promtool reads until then and prints nothing before.
    promtool.stdin.take().expect("it is piped").write_all(text(&registry).as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "{out}{err}");
}

#[test]
fn queues_without_number_have_labels_in_number_and_some_more_where_they_have_an_alert_limit() {
    let (registry, metrics) = at_the_start();
    let queue = |kind: &str, number: usize| QueueName::new(format!("{kind}{number}"));
    let labelled = |metric| values_of(&registry, metric, "queue").len();
    for number in 0..QUEUE_LABELS * 10 {
        metrics.begin_queue(&queue("plain", number));
    }
    assert_eq!(labelled("duetime_tasks_finished_total"), QUEUE_LABELS + 1, "and the one they share");
    metrics.finished(&queue("plain", QUEUE_LABELS), "dead", 1);
    assert_eq!(metrics.finished_by_queue().get(OTHER), Some(&1));
    for number in 0..QUEUE_LABELS * 10 {
        metrics.begin_alerting_queue(&queue("alerting", number), 5);
    }
    assert_eq!(labelled("duetime_queue_failure_alert_threshold"), ALERTING_QUEUE_LABELS);
    metrics.finished(&queue("alerting", 0), "dead", 3);
    assert_eq!(metrics.finished.with_label_values(&["alerting0", "dead"]).get(), 3, "the alert reads both");
}

#[test]
fn a_deleted_queue_leaves_no_series_and_its_label_to_another() {
    let (registry, metrics) = at_the_start();
    let queue = |number: usize| QueueName::new(format!("q{number}"));
    (0..QUEUE_LABELS).for_each(|number| metrics.begin_queue(&queue(number)));
    metrics.begin_alerting_queue(&queue(0), 5);
    metrics.submitted(&queue(0), "http", 1);
    metrics.late_by(&queue(0), [0.1]);
    metrics.end_queue(&queue(0));
    metrics.end_queue(&QueueName::new(OTHER));
    assert!(!text(&registry).contains("\"q0\""), "{}", text(&registry));
    metrics.published(&queue(QUEUE_LABELS), 1);
    metrics.published(&queue(QUEUE_LABELS + 1), 1);
    let labels = values_of(&registry, "duetime_publishes_total", "queue");
    assert!(labels.contains(queue(QUEUE_LABELS).as_str()), "it got the free label");
    assert!(!labels.contains(queue(QUEUE_LABELS + 1).as_str()));
    assert!(labels.contains(OTHER), "a queue of that name shares its label");
}
