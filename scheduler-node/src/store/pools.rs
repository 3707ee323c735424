//! Assigns each statement to a pool of connections.
//!
//! A node has three pools of connections to each database. A statement waits only for those of its own pool, so
//! neither readers nor a flood of submissions delay a claim.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    StoreOp,
    lender::Lender,
    trust::{Doubts, Trust},
    writer::Writer,
};

common::labelled! {
    /// A group of statements that share connections.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PoolKind {
        /// The loops that dispatch tasks: everything between the preload of a due time and the settlement of its
        /// outcome.
        Fire = "fire",
        /// Submissions, and changes of single tasks, queues, schedules and tokens.
        Write = "write",
        /// Lookups, lists, exports and counts, and the walks of bulk actions.
        Read = "read",
    }
}

impl PoolKind {
    /// The pool's part of the `total` connections to one database: a half for `fire`, a
    /// quarter for each of the others.
    pub const fn share(self, total: u32) -> u32 {
        let quarter = if total < 8 { 1 } else { total / 4 };
        match self {
            Self::Fire => total.saturating_sub(2 * quarter),
            Self::Write | Self::Read => quarter,
        }
    }
}

impl StoreOp {
    /// The pool from which this statement takes its connection. Statements that clients can
    /// repeat at will stay out of `Fire`.
    pub const fn pool(self) -> PoolKind {
        use StoreOp::*;
        match self {
            Ping | Glance | WarmFire | ReplicationRead | SchemaRead | RealmHold | RealmRead | ShardAcquire
            | ShardHeld | ShardMapRead => PoolKind::Fire,
            // Tasks wait for the cut of a move.
            MoveFence | MoveLeave | MoveArrive | MoveFill | MoveChanges | MoveForget | MoveWrite => PoolKind::Fire,
            MoveTurns | MoveTurnsWrite | MoveNumbers | MoveClose | MoveReopen | MoveOpen => PoolKind::Fire,
            MoveReturn | MoveDrop => PoolKind::Fire,
            TaskPreload | TaskClaim | TaskPick | ReadyOldest | LaneRead | ReadyQueues | TaskRescue | TaskTakeover => {
                PoolKind::Fire
            }
            TaskDeliver | TaskFinish | TaskRetry | TaskExtend | TaskProlong => PoolKind::Fire,
            TaskSetAside | TaskStanding => PoolKind::Fire,
            TaskHeld | TaskExpire | TaskExpired | TaskRelease | QuarantineAdd | Nudge | PresenceRead => PoolKind::Fire,
            QueueRead | QueueChanges | TokenRevision | TokenBook | ReceiptKeys => PoolKind::Fire,
            ScheduleTurn | SchedulePostpone | ScheduleDue | ScheduleOverdue | ScheduleCount => PoolKind::Fire,
            ScheduleWake | FireTake | FireDone | FireFound => PoolKind::Fire,

            TaskSubmit | TaskPut | QueueAdd | PositionMark | WarmWrite => PoolKind::Write,
            InboxRead | InboxLeave | InboxDelete | InboxRefuse | InboxStanding | InboxForget => PoolKind::Write,
            TaskCollect | TaskCollectKeyed | TaskCollectCancelled | ReceivedForget | ReceivedRefuse | QueueCopy => {
                PoolKind::Write
            }
            TaskChange | TaskCancel | TaskStop | TaskRun | TaskRevive => PoolKind::Write,
            QueuePut | QueueDelete | QueuePause | QueueTurn => PoolKind::Write,
            ScheduleAdd | ScheduleChange | ScheduleDelete => PoolKind::Write,
            TokenAdd | TokenRevoke | TokenForget | AuditAdd | AuditForget | QuarantineForget => PoolKind::Write,
            MoveAdd | MoveCallOff | DatabaseStandingPut | DatabaseStandingRemove => PoolKind::Write,
            ProducerReturn | ProducerRevoke => PoolKind::Write,
            PartitionRead | PartitionMake | PartitionDrop => PoolKind::Write,
            MoveProbe | MoveNote | MoveEnd | MoveGuard | MoveGuardLeft | MoveSweep => PoolKind::Write,

            TaskRead | TaskFind | TaskDependencies | TaskList | TaskCensus | TaskOutlook | DeadGroups => PoolKind::Read,
            BulkLook | BulkQueue | BulkCancel | BulkRun | BulkMove | BulkRevive | ExportRead => PoolKind::Read,
            QueueFind | QueuePage | QueueCounts | QueueRules | TokenList | AuditList | InboxFind => PoolKind::Read,
            ScheduleRead | ScheduleNames => PoolKind::Read,
            ServerSettings | ShardRead | QueueUsage | QueueAwaited | QueueLook | MoveList | MoveEndedList
            | DatabaseStandingList | ShardWeights => PoolKind::Read,
            MovePage | MoveEstimate => PoolKind::Read,
        }
    }
}

/// The usage of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    pub open: u32,
    /// The open connections that no statement uses.
    pub idle: usize,
    /// The limit of open connections.
    pub most: u32,
}

/// The pools of one database, all to the same server. They are replaced together: a server that is silent in one is
/// silent in all.
#[derive(Debug)]
pub(super) struct Pools {
    fire: Lender,
    write: Lender,
    read: Lender,
    /// The place of their server in the URL.
    pub(super) server: usize,
    /// Whether the next statement must look for the writer first. Its counts and `ended` are separate on purpose: a
    /// statement that passes between a doubt and its notice fails like one that was sent a moment before.
    trust: Trust,
    /// Ends the statements under way, because these pools lead to a server that is not the writer any more.
    ended: CancellationToken,
    made_at: Instant,
    /// The time of the last look that confirmed the server.
    trusted_at: Mutex<Instant>,
    /// The time at which the server was last seen to work on a statement for too long.
    worked_at: Mutex<Option<Instant>>,
}

impl Pools {
    /// Pools to one of several servers are used after a look only.
    pub(super) fn new(writer: &Writer, server: usize) -> Self {
        let ended = CancellationToken::new();
        let pool = |kind| Lender::new(writer.pool(kind, server, &ended));
        Self {
            fire: pool(PoolKind::Fire),
            write: pool(PoolKind::Write),
            read: pool(PoolKind::Read),
            server,
            trust: Trust::new(writer.has_several_servers()),
            ended,
            made_at: Instant::now(),
            trusted_at: Mutex::new(Instant::now()),
            worked_at: Mutex::new(None),
        }
    }

    /// Whether a statement may use these pools without a look at the servers.
    pub(super) fn are_trusted(&self) -> bool {
        self.trust.is_whole() && !self.ended.is_cancelled()
    }

    pub(super) fn doubt(&self) {
        self.trust.doubt();
    }

    /// The doubts to answer by a look that begins now.
    pub(super) fn doubts(&self) -> Doubts {
        self.trust.doubts()
    }

    /// A look has confirmed the server, and answers these doubts.
    pub(super) fn trust(&self, doubts: Doubts) {
        *self.trusted_at.lock() = Instant::now();
        self.trust.answer(doubts);
    }

    pub(super) fn age(&self) -> Duration {
        self.made_at.elapsed()
    }

    pub(super) fn age_of_trust(&self) -> Duration {
        self.trusted_at.lock().elapsed()
    }

    /// The server works on a statement that should have ended.
    pub(super) fn note_work(&self) {
        *self.worked_at.lock() = Some(Instant::now());
    }

    pub(super) fn worked_since(&self, moment: Instant) -> bool {
        self.worked_at.lock().is_some_and(|at| at >= moment)
    }

    pub(super) const fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    pub(super) const fn of(&self, kind: PoolKind) -> &Lender {
        match kind {
            PoolKind::Fire => &self.fire,
            PoolKind::Write => &self.write,
            PoolKind::Read => &self.read,
        }
    }

    pub(super) fn connections(&self, kind: PoolKind) -> Connections {
        self.of(kind).tidy()
    }

    #[cfg(test)]
    pub(super) async fn close(&self) {
        for kind in PoolKind::ALL {
            self.of(kind).close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_the_pools_add_up_and_none_is_empty() {
        for total in 4..=1_000 {
            let shares = PoolKind::ALL.map(|kind| kind.share(total));
            assert_eq!(shares.iter().sum::<u32>(), total);
            assert!(shares.iter().all(|share| *share >= 1) && shares[0] >= 2, "{total}: {shares:?}");
        }
        assert_eq!(PoolKind::ALL.map(|kind| kind.share(20)), [10, 5, 5]);
    }
}
