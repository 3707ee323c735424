//! The metrics of the loops, one injected struct; each help text explains its number. Rooms that speak to a store
//! keep their own (`StoreMetrics`, `BrokerMetrics`, `CoordinationMetrics`, `HttpMetrics`), in the same registry.

mod families;
mod registrar;
mod sums;

use std::collections::BTreeSet;

use common::{ids::QueueName, limit::Limit, task::verdict::FailureReason, time::UnixMicros};
use prometheus::{IntCounter, IntCounterVec, Registry};

pub use self::{families::Metrics, sums::Lateness};
use crate::{store::PoolKind, supervise::LoopKind};

/// Queues beyond this many share the label `other`: a label must not grow without bound.
const QUEUE_LABELS: usize = 500;

/// So many queues more may have a label of their own because their policies have a `failure_alert_threshold`, which
/// raises no alert without one. A person sets each threshold, so there are seldom as many.
const ALERTING_QUEUE_LABELS: usize = 500;

const OTHER: &str = "other";

/// The sources of tasks.
const SOURCES: [&str; 4] = ["http", "amqp", "sql", "schedule"];

/// The final states of tasks.
const OUTCOMES: [&str; 5] = ["succeeded", "dead", "cancelled", "superseded", "expired"];

/// The reasons why a submission in SQL is no task, by the last part of the problem's type. Any other reason is
/// `other`.
const INBOX_REASONS: [&str; 5] = ["invalid_field", "payload_too_large", "duplicate", "stale_version", "limit"];

impl Metrics {
    /// Registers the metrics. Every series that is known beforehand exists from the start, and those of a database from
    /// [its beginning](Self::begin_database), so that alerts on absence work.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self::families(registry)?;
        metrics.begin_fixed_labels();
        metrics.begin_queue(&QueueName::new(OTHER));
        Ok(metrics)
    }

    /// Begins the series whose labels are the same on every node.
    fn begin_fixed_labels(&self) {
        for kind in LoopKind::ALL {
            self.loop_stalled.with_label_values(&[kind.text()]).set(0);
        }
        for limit in Limit::ALL {
            let _ = self.limited.with_label_values(&[limit.text()]);
        }
        for how in ["submit", "due", "ready", "rescue"] {
            let _ = self.claimed.with_label_values(&[how]);
        }
        for reason in INBOX_REASONS.into_iter().chain([OTHER]) {
            let _ = self.inbox_refused.with_label_values(&[reason]);
        }
        for outcome in ["made", "skipped", "missed"] {
            let _ = self.schedule_fires.with_label_values(&[outcome]);
        }
        for source in ["results", "rejected"] {
            let _ = self.quarantined.with_label_values(&[source]);
        }
    }

    /// Ends the series of a database that has not joined and does not any more.
    pub fn end_database(&self, database: &str) {
        // It is the only series of its own until it joins.
        let _ = self.database_up.remove_label_values(&[database]);
    }

    pub fn begin_database(&self, database: &str) {
        let of_server = [&self.database_missing_bytes, &self.database_unreplicated];
        for gauges in [&self.heap_entries, &self.in_flight, &self.database_up].into_iter().chain(of_server) {
            gauges.with_label_values(&[database]).set(0);
        }
        for gauges in [&self.overdue_s, &self.claim_ahead_s] {
            gauges.with_label_values(&[database]).set(0.0);
        }
        self.inbox_stands(database, 0, 0.0);
        self.database_failovers.with_label_values(&[database]).inc_by(0);
        for pool in PoolKind::ALL.map(PoolKind::text) {
            for state in ["open", "idle"] {
                self.pool_connections.with_label_values(&[database, pool, state]).set(0);
            }
            self.pool_connections_max.with_label_values(&[database, pool]).set(0);
        }
    }

    pub fn submitted(&self, queue: &QueueName, source: &str, tasks: u64) {
        self.with_label(queue, |label| self.submitted.with_label_values(&[label, source]).inc_by(tasks));
    }

    /// Notes by how many seconds each of some messages left late.
    pub fn late_by(&self, queue: &QueueName, seconds: impl IntoIterator<Item = f64>) {
        self.with_label(queue, |label| {
            let lateness = self.lateness.with_label_values(&[label]);
            seconds.into_iter().for_each(|late| lateness.observe(late));
        });
    }

    /// Begins the series of a queue at 0, because an increase shows only in a series that existed before.
    pub fn begin_queue(&self, queue: &QueueName) {
        self.give_label(&mut self.known.write(), queue, QUEUE_LABELS);
    }

    /// Begins the series of a queue whose policy says how many of its tasks may die before an alert fires.
    pub fn begin_alerting_queue(&self, queue: &QueueName, threshold: i64) {
        let mut known = self.known.write();
        if self.give_label(&mut known, queue, QUEUE_LABELS + ALERTING_QUEUE_LABELS) {
            self.failure_alert_threshold.with_label_values(&[queue.as_str()]).set(threshold);
        }
    }

    /// Ends the series of a queue that was deleted, and frees its label.
    pub fn end_queue(&self, queue: &QueueName) {
        let label = queue.as_str();
        let mut known = self.known.write();
        if label == OTHER || !known.remove(queue) {
            return;
        }
        // Each removal fails only where there is no such series.
        for (family, labels) in self.counters(label) {
            let _ = family.remove_label_values(&labels);
        }
        let _ = self.lateness.remove_label_values(&[label]);
        let _ = self.failure_alert_threshold.remove_label_values(&[label]);
    }

    pub fn published(&self, queue: &QueueName, messages: u64) {
        self.with_label(queue, |label| self.published.with_label_values(&[label]).inc_by(messages));
    }

    pub fn finished(&self, queue: &QueueName, outcome: &str, tasks: u64) {
        self.with_label(queue, |label| self.finished.with_label_values(&[label, outcome]).inc_by(tasks));
    }

    /// Notes that the configuration was read, and whether it could be used.
    pub fn config_reloaded(&self, successful: bool, at: UnixMicros) {
        self.config_reload_successful.set(i64::from(successful));
        if successful {
            self.config_reloaded_at.set(at.millis() as f64 / 1_000.0);
        }
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

    /// Ends the gauges of an inbox that this node cannot read.
    pub fn end_inbox(&self, database: &str) {
        // Each removal fails only where there is no such series.
        let _ = self.inbox_rows.remove_label_values(&[database]);
        let _ = self.inbox_oldest_s.remove_label_values(&[database]);
    }

    pub fn failed(&self, queue: &QueueName, reason: FailureReason) {
        self.with_label(queue, |label| self.failed.with_label_values(&[label, reason.text()]).inc());
    }

    /// Counts under the queue's label. The lock is held until then, so that no count begins a series after its end.
    fn with_label(&self, queue: &QueueName, count: impl FnOnce(&str)) {
        let known = self.known.read();
        if known.contains(queue) {
            return count(queue.as_str());
        }
        drop(known);
        let mut known = self.known.write();
        let has_label = self.give_label(&mut known, queue, QUEUE_LABELS);
        count(if has_label { queue.as_str() } else { OTHER });
    }

    /// Whether the queue has a label of its own: it gets one, with all its series, while at most `most` queues have
    /// one.
    fn give_label(&self, known: &mut BTreeSet<QueueName>, queue: &QueueName, most: usize) -> bool {
        if known.contains(queue) {
            return true;
        }
        if known.len() > most {
            return false;
        }
        known.insert(queue.clone());
        let label = queue.as_str();
        for (family, labels) in self.counters(label) {
            let _ = family.with_label_values(&labels);
        }
        let _ = self.lateness.with_label_values(&[label]);
        true
    }

    /// The counters that begin and end with a queue's label: their families and labels.
    fn counters<'a>(&'a self, label: &'a str) -> impl Iterator<Item = (&'a IntCounterVec, Vec<&'a str>)> {
        let submitted = SOURCES.into_iter().map(move |source| (&self.submitted, vec![label, source]));
        let finished = OUTCOMES.into_iter().map(move |outcome| (&self.finished, vec![label, outcome]));
        let failed = FailureReason::ALL.into_iter().map(move |reason| (&self.failed, vec![label, reason.text()]));
        submitted.chain(finished).chain(failed).chain([(&self.published, vec![label])])
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
