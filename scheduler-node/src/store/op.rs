//! The name of every statement: the same word in its file name, the metrics' label and the log.

use std::{fmt, time::Instant};

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

use super::Effect;

common::labelled! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum StoreOp {
        Ping = "ping",
        Glance = "glance",
        WarmFire = "warm_fire",
        WarmWrite = "warm_write",
        SchemaRead = "schema_read",
        ServerSettings = "server_settings",
        ShardAcquire = "shard_acquire",
        ShardHeld = "shard_held",
        ShardRead = "shard_read",
        ShardMapRead = "shard_map_read",
        MoveProbe = "move_probe",
        MoveNote = "move_note",
        MoveEnd = "move_end",
        MoveFence = "move_fence",
        MoveGuard = "move_guard",
        MoveGuardLeft = "move_guard_left",
        MoveEstimate = "move_estimate",
        MoveLeave = "move_leave",
        MoveArrive = "move_arrive",
        MoveFill = "move_fill",
        MovePage = "move_page",
        MoveChanges = "move_changes",
        MoveNumbers = "move_numbers",
        MoveForget = "move_forget",
        MoveTurns = "move_turns",
        MoveTurnsWrite = "move_turns_write",
        MoveWrite = "move_write",
        MoveClose = "move_close",
        MoveReopen = "move_reopen",
        MoveOpen = "move_open",
        MoveReturn = "move_return",
        MoveDrop = "move_drop",
        MoveSweep = "move_sweep",
        TaskSubmit = "task_submit",
        TaskPut = "task_put",
        TaskFind = "task_find",
        TaskRelease = "task_release",
        TaskDependencies = "task_dependencies",
        TaskPreload = "task_preload",
        TaskClaim = "task_claim",
        TaskPick = "task_pick",
        ReadyOldest = "ready_oldest",
        LaneRead = "lane_read",
        TaskRescue = "task_rescue",
        TaskTakeover = "task_takeover",
        TaskDeliver = "task_deliver",
        TaskFinish = "task_finish",
        TaskRetry = "task_retry",
        TaskExtend = "task_extend",
        TaskProlong = "task_prolong",
        TaskExpire = "task_expire",
        TaskExpired = "task_expired",
        TaskSetAside = "task_set_aside",
        TaskStanding = "task_standing",
        TaskHeld = "task_held",
        TaskRead = "task_read",
        TaskList = "task_list",
        TaskCensus = "task_census",
        TaskOutlook = "task_outlook",
        DeadGroups = "dead_groups",
        TaskChange = "task_change",
        TaskCancel = "task_cancel",
        TaskStop = "task_stop",
        TaskRun = "task_run",
        TaskRevive = "task_revive",
        BulkLook = "bulk_look",
        BulkQueue = "bulk_queue",
        BulkCancel = "bulk_cancel",
        BulkRun = "bulk_run",
        BulkMove = "bulk_move",
        BulkRevive = "bulk_revive",
        ExportRead = "export_read",
        ReadyQueues = "ready_queues",
        QueueRead = "queue_read",
        QueueFind = "queue_find",
        QueuePage = "queue_page",
        QueueChanges = "queue_changes",
        QueuePut = "queue_put",
        QueueAdd = "queue_add",
        QueueDelete = "queue_delete",
        QueuePause = "queue_pause",
        QueueTurn = "queue_turn",
        QueueRules = "queue_rules",
        QueueCounts = "queue_counts",
        QueueAwaited = "queue_awaited",
        QueueLook = "queue_look",
        QueueUsage = "queue_usage",
        ScheduleRead = "schedule_read",
        ScheduleAdd = "schedule_add",
        ScheduleChange = "schedule_change",
        ScheduleTurn = "schedule_turn",
        SchedulePostpone = "schedule_postpone",
        ScheduleDue = "schedule_due",
        ScheduleOverdue = "schedule_overdue",
        ScheduleDelete = "schedule_delete",
        ScheduleCount = "schedule_count",
        ScheduleNames = "schedule_names",
        ScheduleWake = "schedule_wake",
        TokenRevision = "token_revision",
        TokenBook = "token_book",
        TokenList = "token_list",
        TokenAdd = "token_add",
        TokenRevoke = "token_revoke",
        TokenForget = "token_forget",
        ReceiptKeys = "receipt_keys",
        AuditAdd = "audit_add",
        AuditList = "audit_list",
        AuditForget = "audit_forget",
        FireTake = "fire_take",
        FireDone = "fire_done",
        FireFound = "fire_found",
        QuarantineAdd = "quarantine_add",
        QuarantineForget = "quarantine_forget",
        PartitionRead = "partition_read",
        PartitionMake = "partition_make",
        PartitionDrop = "partition_drop",
        InboxRead = "inbox_read",
        InboxLeave = "inbox_leave",
        InboxDelete = "inbox_delete",
        InboxRefuse = "inbox_refuse",
        InboxFind = "inbox_find",
        InboxStanding = "inbox_standing",
        InboxForget = "inbox_forget",
        TaskCollect = "task_collect",
        TaskCollectKeyed = "task_collect_keyed",
        TaskCollectCancelled = "task_collect_cancelled",
        ReceivedForget = "received_forget",
        ReceivedRefuse = "received_refuse",
        QueueCopy = "queue_copy",
        Nudge = "nudge",
        PresenceRead = "presence_read",
        MoveAdd = "move_add",
        MoveList = "move_list",
        MoveCallOff = "move_call_off",
        MoveEndedList = "move_ended_list",
        DatabaseStandingList = "database_standing_list",
        DatabaseStandingPut = "database_standing_put",
        DatabaseStandingRemove = "database_standing_remove",
        ProducerReturn = "producer_return",
        ProducerRevoke = "producer_revoke",
        ShardWeights = "shard_weights",
        PositionMark = "position_mark",
        ReplicationRead = "replication_read",
        RealmHold = "realm_hold",
        RealmRead = "realm_read",
    }
}

impl StoreOp {
    /// Whether the statement passes although the database counts as away: it finds out whether that may end.
    pub(super) const fn needs_no_schema(self) -> bool {
        matches!(self, Self::SchemaRead | Self::Ping | Self::ReplicationRead | Self::RealmHold | Self::RealmRead)
    }
}

impl fmt::Display for StoreOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The two metric families that all databases share.
pub type StoreFamilies = (HistogramVec, IntCounterVec);

/// Latency and failures of one database's statements.
#[derive(Debug)]
pub struct StoreMetrics {
    seconds: HistogramVec,
    failures: IntCounterVec,
    database: String,
}

impl StoreMetrics {
    /// Registers the two metric families that all databases share. Call this once.
    pub fn families(registry: &Registry) -> prometheus::Result<StoreFamilies> {
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                "duetime_database_statement_seconds",
                "time of a statement, from the request for a connection to the answer",
            )
            .buckets(vec![0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0]),
            &["database", "op"],
        )?;
        let failures = IntCounterVec::new(
            Opts::new(
                "duetime_database_statement_failures_total",
                "statements that failed; effect `unknown`: the statement may have taken effect",
            ),
            &["database", "op", "effect"],
        )?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(failures.clone()))?;
        Ok((seconds, failures))
    }

    pub fn new((seconds, failures): StoreFamilies, database: &str) -> Self {
        for op in StoreOp::ALL {
            let _ = seconds.with_label_values(&[database, op.text()]);
            for effect in ["none", "unknown"] {
                let _ = failures.with_label_values(&[database, op.text(), effect]);
            }
        }
        Self { seconds, failures, database: database.to_owned() }
    }

    pub(super) fn start(&self, op: StoreOp) -> Timer<'_> {
        Timer { metrics: self, op, started: Instant::now() }
    }
}

pub(super) struct Timer<'a> {
    metrics: &'a StoreMetrics,
    op: StoreOp,
    started: Instant,
}

impl Timer<'_> {
    pub(super) fn done(&self) {
        let labels = [self.metrics.database.as_str(), self.op.text()];
        self.metrics.seconds.with_label_values(&labels).observe(self.started.elapsed().as_secs_f64());
    }

    pub(super) fn failed(&self, effect: Effect) {
        let effect = match effect {
            Effect::None => "none",
            Effect::Unknown => "unknown",
        };
        let labels = [self.metrics.database.as_str(), self.op.text(), effect];
        self.metrics.failures.with_label_values(&labels).inc();
    }
}
