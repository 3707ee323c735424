//! The table of the loops' metrics: each field with its type, its name, its help text and its labels.

use std::collections::BTreeSet;

use common::ids::QueueName;
use parking_lot::RwLock;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};

use super::registrar::Registrar;

/// Fine enough to read 1 ms and 100 ms off it.
pub(super) const LATENESS_BUCKETS_S: &[f64] = &[
    0.000_25, 0.000_5, 0.000_75, 0.001, 0.001_25, 0.001_5, 0.002, 0.002_5, 0.003, 0.004, 0.005, 0.007_5, 0.01, 0.012,
    0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0,
];

/// Sizes of batches: 1 to the largest claim.
const BATCH_BUCKETS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0];

/// Around the half second that a cut may take.
const CUT_BUCKETS_S: &[f64] = &[0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 5.0];

/// Makes the struct and its constructor from one table, so that a metric is described in one place.
macro_rules! families {
    ($($(#[$doc:meta])* $visibility:vis $field:ident: $type:ty = $make:ident($($argument:expr),* $(,)?);)*) => {
        /// The metrics of the loops.
        #[derive(Debug)]
        pub struct Metrics {
            /// The queues that have a label of their own.
            pub(super) known: RwLock<BTreeSet<QueueName>>,
            $($(#[$doc])* $visibility $field: $type,)*
        }

        impl Metrics {
            /// Registers every family, without any series of labels.
            pub(super) fn families(registry: &Registry) -> prometheus::Result<Self> {
                let registrar = Registrar { registry };
                Ok(Self { known: RwLock::default(), $($field: registrar.$make($($argument),*)?,)* })
            }
        }
    };
}

families! {
    // Queues: what became of their tasks.
    pub(super) submitted: IntCounterVec = counters(
        "duetime_tasks_submitted_total",
        "tasks accepted and durable",
        &["queue", "source"],
    );
    pub(super) lateness: HistogramVec = histograms(
        "duetime_lateness_seconds",
        "publish time minus due time, on the database's clock; never negative",
        LATENESS_BUCKETS_S,
    );
    pub(super) published: IntCounterVec = counters(
        "duetime_publishes_total",
        "messages handed to the broker, every copy of every attempt",
        &["queue"],
    );
    pub(super) finished: IntCounterVec = counters(
        "duetime_tasks_finished_total",
        "tasks that reached a final state",
        &["queue", "outcome"],
    );
    pub(super) failed: IntCounterVec = counters(
        "duetime_attempts_failed_total",
        "attempts that failed",
        &["queue", "reason"],
    );
    pub failure_alert_threshold: IntGaugeVec = gauges(
        "duetime_queue_failure_alert_threshold",
        "tasks of the queue that may die in 15 minutes before an alert fires, from its policy",
        &["queue"],
    );

    // Claims.
    /// Tasks claimed, by how: by their own insert, due, after waiting for room, or rescued.
    pub claimed: IntCounterVec = counters(
        "duetime_tasks_claimed_total",
        "tasks claimed, by how: with their insert, when due, after waiting for room, or as a rescue",
        &["how"],
    );
    pub held_back: IntCounter = counter(
        "duetime_tasks_held_back_total",
        "due tasks that became ready because their lane was closed",
    );
    pub passed_over: IntCounter = counter(
        "duetime_tasks_passed_over_total",
        "tasks that a claim did not take: locked by another transaction, moved, or of a queue with a newer policy",
    );
    pub fence_refusals: IntCounter = counter("duetime_fence_refusals_total", "shards that a claim found at another node");
    pub claim_batch: Histogram = histogram("duetime_claim_batch_tasks", "tasks requested in one claim", BATCH_BUCKETS);
    pub claim_ahead_s: GaugeVec = float_gauges(
        "duetime_claim_ahead_seconds",
        "how long before its due time a task is claimed, from the recent duration of claims",
        &["database"],
    );
    pub lanes_closed: IntGauge = gauge("duetime_lanes_closed", "queues with a closed lane: their tasks are not claimed for now");

    // Publishes.
    pub publish_unknown: IntCounter = counter(
        "duetime_publish_unknown_total",
        "publishes with an unknown outcome; each is repeated",
    );
    pub publish_unroutable: IntCounter = counter(
        "duetime_publish_unroutable_total",
        "publishes that the broker could route to no queue or refuses, without the dropped ones",
    );
    pub publish_dropped: IntCounter = counter(
        "duetime_publish_dropped_total",
        "unroutable publishes dropped because of `unroutable` = `drop` in the queue or delay exchange",
    );
    pub publish_nacked: IntCounter = counter(
        "duetime_publish_nacked_total",
        "publishes that the broker refused because the queue is full",
    );

    // Messages and rows that come in.
    pub reports_stale: IntCounter = counter(
        "duetime_reports_stale_total",
        "reports and rejections about attempts that are over",
    );
    /// Messages kept in the quarantine for a person, by source.
    pub quarantined: IntCounterVec = counters(
        "duetime_messages_quarantined_total",
        "reports and rejections in the quarantine, which were not trusted or could not be read in full",
        &["source"],
    );
    pub submissions_invalid: IntCounter = counter(
        "duetime_submissions_invalid_total",
        "messages that cannot be tasks, set aside in duetime.submit.invalid",
    );
    pub(super) limited: IntCounterVec = counters(
        "duetime_limited_total",
        "tasks, queues, schedules and requests refused because a limit of a queue or of a token is reached",
        &["limit"],
    );
    pub(super) inbox_refused: IntCounterVec = counters(
        "duetime_inbox_refused_total",
        "submissions in SQL that cannot be tasks; they stay in duetime.inbox with the reason",
        &["reason"],
    );
    pub(super) inbox_rows: IntGaugeVec = gauges(
        "duetime_inbox_rows",
        "submissions in SQL that are not collected yet; none while this node cannot count them",
        &["database"],
    );
    pub(super) inbox_oldest_s: GaugeVec = float_gauges(
        "duetime_inbox_oldest_seconds",
        "age of the oldest submission in SQL that is not collected yet; none while this node cannot look",
        &["database"],
    );

    // Schedules.
    pub schedules: IntGauge = gauge(
        "duetime_schedules",
        "schedules in the cluster, counted by the master; 0 on other nodes",
    );
    /// Fire times, by outcome.
    pub schedule_fires: IntCounterVec = counters(
        "duetime_schedule_fires_total",
        "fire times this node decided: made into a task, skipped because the last task was unfinished, or missed",
        &["outcome"],
    );

    // The configuration.
    pub(super) config_reload_successful: IntGauge = gauge(
        "duetime_config_last_reload_successful",
        "1 if the configuration could be used when it was last read, 0 if it has a mistake and changed nothing",
    );
    pub(super) config_reloaded_at: Gauge = float_gauge(
        "duetime_config_last_reload_success_timestamp_seconds",
        "when a configuration was last read that could be used, in Unix time",
    );

    // Moves of shards.
    pub moves_under_way: IntGauge = gauge(
        "duetime_moves_under_way",
        "moves of shards that this node works on",
    );
    pub moves_held_up: IntGauge = gauge(
        "duetime_moves_held_up",
        "moves of shards that this node works on and that do not get on; the list of moves says why",
    );
    pub move_rows: IntCounter = counter(
        "duetime_move_rows_copied_total",
        "rows that moves of shards have copied, those written again after a change included",
    );
    pub move_cut: Histogram = histogram(
        "duetime_move_cut_seconds",
        "how long the tasks of a shard were not claimed at the cut of its move",
        CUT_BUCKETS_S,
    );

    // Databases and loops.
    pub heap_entries: IntGaugeVec = gauges("duetime_heap_entries", "keys in the heap", &["database"]);
    pub in_flight: IntGaugeVec = gauges(
        "duetime_tasks_in_flight",
        "claimed tasks whose outcome is not written yet",
        &["database"],
    );
    pub overdue_s: GaugeVec = float_gauges(
        "duetime_database_overdue_seconds",
        "how overdue the oldest claimable task of this node's shards is; grows while they cannot be read",
        &["database"],
    );
    pub oldest_overdue_s: Gauge = float_gauge(
        "duetime_oldest_overdue_seconds",
        "how overdue the oldest claimable task of this node's shards is, over all databases; grows while they cannot be read",
    );
    pub database_up: IntGaugeVec = gauges(
        "duetime_database_up",
        "1 while the database answers and has the right schema",
        &["database"],
    );
    pub database_missing_bytes: IntGaugeVec = gauges(
        "duetime_database_missing_bytes",
        "bytes of acknowledged commits that the server of the database may lack, so that it is not used; 0: none",
        &["database"],
    );
    pub database_unreplicated: IntGaugeVec = gauges(
        "duetime_database_unreplicated",
        "1 while no task is accepted because no synchronous standby confirms commits",
        &["database"],
    );
    pub database_failovers: IntCounterVec = counters(
        "duetime_database_failovers_total",
        "changes of the server or the timeline that takes this node's writes",
        &["database"],
    );
    pub database_server: IntGaugeVec = gauges(
        "duetime_database_server",
        "1 for the server that this node uses, by its place in the URL",
        &["database", "server"],
    );
    pub pool_connections: IntGaugeVec = gauges(
        "duetime_database_connections",
        "connections of this node to a database, by pool",
        &["database", "pool", "state"],
    );
    pub pool_connections_max: IntGaugeVec = gauges(
        "duetime_database_connections_max",
        "most connections that the pool may open",
        &["database", "pool"],
    );
    pub loop_stalled: IntGaugeVec = gauges(
        "duetime_loop_stalled",
        "1 while a unit of work of the loop has made no progress for longer than its bound",
        &["loop"],
    );
}
