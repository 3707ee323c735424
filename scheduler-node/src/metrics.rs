//! The metrics of the loops, one injected struct; each help text explains its number. Rooms that speak to a store
//! keep their own (`StoreMetrics`, `BrokerMetrics`, `CoordinationMetrics`, `HttpMetrics`), in the same registry.

mod sums;

use std::collections::BTreeSet;

use common::{
    ids::QueueName,
    limit::Limit,
    task::{TaskState, verdict::FailureReason},
};
use parking_lot::RwLock;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

pub use self::sums::Lateness;
use crate::{store::PoolKind, supervise::LoopKind};

/// Queues beyond this many share the label `other`: a label must not grow without bound.
const QUEUE_LABELS: usize = 500;

const OTHER: &str = "other";

/// The sources of tasks.
const SOURCES: [&str; 4] = ["http", "amqp", "sql", "schedule"];

/// The reasons why a submission in SQL is no task, by the last part of the problem's type. Any other reason is
/// `other`.
const INBOX_REASONS: [&str; 5] = ["invalid_field", "payload_too_large", "duplicate", "stale_version", "limit"];

/// Fine enough to read 1 ms and 100 ms off it.
const LATENESS_BUCKETS_S: &[f64] = &[
    0.000_25, 0.000_5, 0.000_75, 0.001, 0.001_25, 0.001_5, 0.002, 0.002_5, 0.003, 0.004, 0.005, 0.007_5, 0.01, 0.012,
    0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0,
];

/// Sizes of batches: 1 to the largest claim.
const BATCH_BUCKETS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0];

#[derive(Debug)]
pub struct Metrics {
    known: RwLock<BTreeSet<QueueName>>,
    submitted: IntCounterVec,
    lateness: HistogramVec,
    published: IntCounterVec,
    finished: IntCounterVec,
    failed: IntCounterVec,
    /// Tasks claimed, by how: by their own insert, due, after waiting for room, or rescued.
    pub claimed: IntCounterVec,
    pub held_back: IntCounter,
    pub passed_over: IntCounter,
    pub fence_refusals: IntCounter,
    pub publish_unknown: IntCounter,
    pub publish_unroutable: IntCounter,
    pub publish_dropped: IntCounter,
    pub publish_nacked: IntCounter,
    pub claim_batch: Histogram,
    pub claim_ahead_s: GaugeVec,
    pub reports_stale: IntCounter,
    /// Messages kept in the quarantine for a person, by source.
    pub quarantined: IntCounterVec,
    pub submissions_invalid: IntCounter,
    limited: IntCounterVec,
    inbox_refused: IntCounterVec,
    inbox_rows: IntGaugeVec,
    inbox_oldest_s: GaugeVec,
    pub lanes_closed: IntGauge,
    pub failure_alert_threshold: IntGaugeVec,
    pub schedules: IntGauge,
    /// Fire times, by outcome.
    pub schedule_fires: IntCounterVec,
    pub heap_entries: IntGaugeVec,
    pub in_flight: IntGaugeVec,
    pub overdue_s: GaugeVec,
    pub oldest_overdue_s: Gauge,
    pub database_up: IntGaugeVec,
    pub pool_connections: IntGaugeVec,
    pub pool_connections_max: IntGaugeVec,
    pub loop_stalled: IntGaugeVec,
}

impl Metrics {
    /// Registers the metrics. Every series that is known beforehand exists from the start, so that alerts on
    /// absence work.
    pub fn register(registry: &Registry, databases: &[&str]) -> prometheus::Result<Self> {
        let book = Book { registry };
        let metrics = Self {
            known: RwLock::default(),
            submitted: book.counters(
                "duetime_tasks_submitted_total",
                "tasks accepted and durable",
                &["queue", "source"],
            )?,
            lateness: book.histograms(
                "duetime_lateness_seconds",
                "publish time minus due time, on the database's clock; never negative",
                LATENESS_BUCKETS_S,
            )?,
            published: book.counters(
                "duetime_publishes_total",
                "messages handed to the broker, every copy of every attempt",
                &["queue"],
            )?,
            finished: book.counters(
                "duetime_tasks_finished_total",
                "tasks that reached a final state",
                &["queue", "outcome"],
            )?,
            failed: book.counters("duetime_attempts_failed_total", "attempts that failed", &["queue", "reason"])?,
            claimed: book.counters(
                "duetime_tasks_claimed_total",
                "tasks claimed, by how: with their insert, when due, after waiting for room, or as a rescue",
                &["how"],
            )?,
            held_back: book.counter(
                "duetime_tasks_held_back_total",
                "due tasks that became ready because their lane was closed",
            )?,
            passed_over: book.counter(
                "duetime_tasks_passed_over_total",
                "tasks that a claim did not take: locked by another transaction, moved, or of a queue with a newer \
                 policy",
            )?,
            fence_refusals: book.counter("duetime_fence_refusals_total", "shards that a claim found at another node")?,
            publish_unknown: book.counter(
                "duetime_publish_unknown_total",
                "publishes with an unknown outcome; each is repeated",
            )?,
            publish_unroutable: book
                .counter("duetime_publish_unroutable_total", "publishes that the broker could route to no queue, \
                                                              without the dropped ones")?,
            publish_dropped: book.counter(
                "duetime_publish_dropped_total",
                "unroutable publishes dropped because of `unroutable` = `drop` in the queue or delay exchange",
            )?,
            publish_nacked: book
                .counter("duetime_publish_nacked_total", "publishes that the broker refused because the queue is full")?,
            claim_batch: book.histogram("duetime_claim_batch_tasks", "tasks requested in one claim", BATCH_BUCKETS)?,
            claim_ahead_s: book.float_gauges(
                "duetime_claim_ahead_seconds",
                "how long before its due time a task is claimed, from the recent duration of claims",
                &["database"],
            )?,
            reports_stale: book
                .counter("duetime_reports_stale_total", "reports and rejections about attempts that are over")?,
            quarantined: book.counters(
                "duetime_messages_quarantined_total",
                "messages that could not be read",
                &["source"],
            )?,
            submissions_invalid: book.counter(
                "duetime_submissions_invalid_total",
                "messages that cannot be tasks, set aside in duetime.submit.invalid",
            )?,
            limited: book.counters(
                "duetime_limited_total",
                "tasks, queues, schedules and requests refused because a limit of a queue or of a token is reached",
                &["limit"],
            )?,
            inbox_refused: book.counters(
                "duetime_inbox_refused_total",
                "submissions in SQL that cannot be tasks; they stay in duetime.inbox with the reason",
                &["reason"],
            )?,
            inbox_rows: book.gauges(
                "duetime_inbox_rows",
                "submissions in SQL that are not collected yet",
                &["database"],
            )?,
            inbox_oldest_s: book.float_gauges(
                "duetime_inbox_oldest_seconds",
                "age of the oldest submission in SQL that is not collected yet",
                &["database"],
            )?,
            lanes_closed: book.gauge("duetime_lanes_closed", "queues with a closed lane: their tasks are not claimed \
                                                              for now")?,
            failure_alert_threshold: book.gauges(
                "duetime_queue_failure_alert_threshold",
                "tasks of the queue that may die in 15 minutes before an alert fires, from its policy",
                &["queue"],
            )?,
            schedules: book.gauge("duetime_schedules", "schedules in the cluster, counted by the master; 0 on other \
                                                        nodes")?,
            schedule_fires: book.counters(
                "duetime_schedule_fires_total",
                "fire times this node decided: made into a task, skipped because the last task was unfinished, or missed",
                &["outcome"],
            )?,
            heap_entries: book.gauges("duetime_heap_entries", "keys in the heap", &["database"])?,
            in_flight: book.gauges(
                "duetime_tasks_in_flight",
                "claimed tasks whose outcome is not written yet",
                &["database"],
            )?,
            overdue_s: book.float_gauges(
                "duetime_database_overdue_seconds",
                "how overdue the oldest claimable task of this node's shards is",
                &["database"],
            )?,
            oldest_overdue_s: book.float_gauge(
                "duetime_oldest_overdue_seconds",
                "how overdue the oldest claimable task of this node's shards is, over all databases",
            )?,
            database_up: book.gauges(
                "duetime_database_up",
                "1 while the database answers and has the right schema",
                &["database"],
            )?,
            pool_connections: book.gauges(
                "duetime_database_connections",
                "connections of this node to a database, by pool",
                &["database", "pool", "state"],
            )?,
            pool_connections_max: book.gauges(
                "duetime_database_connections_max",
                "most connections that the pool may open",
                &["database", "pool"],
            )?,
            loop_stalled: book.gauges(
                "duetime_loop_stalled",
                "1 while a unit of work of the loop has made no progress for longer than its bound",
                &["loop"],
            )?,
        };
        for kind in LoopKind::ALL {
            metrics.loop_stalled.with_label_values(&[kind.text()]).set(0);
        }
        for limit in Limit::ALL {
            let _ = metrics.limited.with_label_values(&[limit.text()]);
        }
        for how in ["submit", "due", "ready", "rescue"] {
            let _ = metrics.claimed.with_label_values(&[how]);
        }
        for reason in INBOX_REASONS.into_iter().chain([OTHER]) {
            let _ = metrics.inbox_refused.with_label_values(&[reason]);
        }
        for outcome in ["made", "skipped", "missed"] {
            let _ = metrics.schedule_fires.with_label_values(&[outcome]);
        }
        for source in ["results", "rejected"] {
            let _ = metrics.quarantined.with_label_values(&[source]);
        }
        for database in databases {
            for gauges in [&metrics.heap_entries, &metrics.in_flight, &metrics.database_up] {
                gauges.with_label_values(&[database]).set(0);
            }
            for gauges in [&metrics.overdue_s, &metrics.claim_ahead_s] {
                gauges.with_label_values(&[database]).set(0.0);
            }
            metrics.inbox_stands(database, 0, 0.0);
            for pool in PoolKind::ALL.map(PoolKind::text) {
                for state in ["open", "idle"] {
                    metrics.pool_connections.with_label_values(&[*database, pool, state]).set(0);
                }
                metrics.pool_connections_max.with_label_values(&[*database, pool]).set(0);
            }
        }
        metrics.label_of(&QueueName::new(OTHER));
        Ok(metrics)
    }

    pub fn submitted(&self, queue: &QueueName, source: &str, tasks: u64) {
        self.with_label(queue, |label| self.submitted.with_label_values(&[label, source]).inc_by(tasks));
    }

    pub fn late_by(&self, queue: &QueueName, seconds: f64) {
        self.with_label(queue, |label| self.lateness.with_label_values(&[label]).observe(seconds));
    }

    /// Begins the series of a queue at 0, because an increase shows only in a series that existed before. Returns
    /// whether the queue has a label of its own.
    pub fn begin(&self, queue: &QueueName) -> bool {
        if !self.has_label_of_its_own(queue) {
            return false;
        }
        self.published(queue, 0);
        self.finished(queue, TaskState::Dead.text(), 0);
        self.with_label(queue, |label| {
            for reason in FailureReason::ALL {
                self.failed.with_label_values(&[label, reason.text()]).inc_by(0);
            }
        });
        true
    }

    /// Whether the queue has a label of its own, or will get one.
    fn has_label_of_its_own(&self, queue: &QueueName) -> bool {
        let known = self.known.read();
        known.len() <= QUEUE_LABELS || known.contains(queue)
    }

    pub fn published(&self, queue: &QueueName, messages: u64) {
        self.with_label(queue, |label| self.published.with_label_values(&[label]).inc_by(messages));
    }

    pub fn finished(&self, queue: &QueueName, outcome: &str, tasks: u64) {
        self.with_label(queue, |label| self.finished.with_label_values(&[label, outcome]).inc_by(tasks));
    }

    /// Counts refusals because this limit is reached.
    pub fn limited(&self, limit: Limit) -> IntCounter {
        self.limited.with_label_values(&[limit.text()])
    }

    pub fn inbox_refused(&self, reason: &str) {
        let known = INBOX_REASONS.into_iter().find(|known| *known == reason);
        self.inbox_refused.with_label_values(&[known.unwrap_or(OTHER)]).inc();
    }

    pub fn inbox_stands(&self, database: &str, rows: i64, oldest_s: f64) {
        self.inbox_rows.with_label_values(&[database]).set(rows);
        self.inbox_oldest_s.with_label_values(&[database]).set(oldest_s);
    }

    pub fn failed(&self, queue: &QueueName, reason: FailureReason) {
        self.with_label(queue, |label| self.failed.with_label_values(&[label, reason.text()]).inc());
    }

    fn with_label(&self, queue: &QueueName, count: impl FnOnce(&str)) {
        if self.known.read().contains(queue) {
            return count(queue.as_str());
        }
        count(&self.label_of(queue));
    }

    /// The queue's own label while there is room for it. A queue seen for the first time gets all its series.
    fn label_of(&self, queue: &QueueName) -> String {
        let mut known = self.known.write();
        if known.len() > QUEUE_LABELS && !known.contains(queue) {
            return OTHER.to_owned();
        }
        let label = queue.as_str();
        if known.insert(queue.clone()) {
            for source in SOURCES {
                let _ = self.submitted.with_label_values(&[label, source]);
            }
            for outcome in ["succeeded", "dead", "cancelled", "superseded", "expired"] {
                let _ = self.finished.with_label_values(&[label, outcome]);
            }
            for reason in FailureReason::ALL {
                let _ = self.failed.with_label_values(&[label, reason.text()]);
            }
            let _ = self.lateness.with_label_values(&[label]);
            let _ = self.published.with_label_values(&[label]);
        }
        label.to_owned()
    }
}

/// Makes and registers a metric in one step.
struct Book<'a> {
    registry: &'a Registry,
}

impl Book<'_> {
    fn keep<T: prometheus::core::Collector + Clone + 'static>(
        &self,
        made: prometheus::Result<T>,
    ) -> prometheus::Result<T> {
        let made = made?;
        self.registry.register(Box::new(made.clone()))?;
        Ok(made)
    }

    fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.keep(IntCounter::new(name, help))
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        self.keep(IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.keep(IntGauge::new(name, help))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        self.keep(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    fn float_gauge(&self, name: &str, help: &str) -> prometheus::Result<Gauge> {
        self.keep(Gauge::new(name, help))
    }

    fn float_gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        self.keep(GaugeVec::new(Opts::new(name, help), labels))
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
        self.keep(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
    }

    fn histograms(&self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<HistogramVec> {
        self.keep(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), &["queue"]))
    }
}

/// Registers the metrics of the process itself.
pub(crate) fn register_process(registry: &Registry) -> anyhow::Result<()> {
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    let info = prometheus::IntGauge::with_opts(
        prometheus::Opts::new("duetime_build_info", "1; the labels name the build")
            .const_label("version", env!("CARGO_PKG_VERSION")),
    )?;
    info.set(1);
    registry.register(Box::new(info))?;
    Ok(())
}

#[cfg(test)]
mod tests;
