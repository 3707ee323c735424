//! The statements that the loops of dispatch and outcome run, as the loops see them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use common::{
    ids::{Attempt, DatabaseName, Epoch, QueueName, ShardId, TaskId},
    queue::Queue,
    time::UnixMicros,
};

use super::{
    Database, DatabaseClock, Error,
    claim::Claimed,
    depend::{ReleaseCheck, Succeeded},
    lane::{LaneCounts, Pick, Walks},
    preload::Key,
    quarantine::Quarantined,
    queues::QueueChanges,
    settle::{Deliver, Extend, Finish, Finished, Retry, StandingRow},
    watch::Nudge,
};

/// Generates the trait and its implementation for the node's own database, which passes each call on.
macro_rules! statements {
    ($(async fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> $answer:ty;)*) => {
        /// The statements of one database from a task's claim to its end. The method of the same name on [`Database`]
        /// has the contract of each.
        ///
        /// A node runs its loops on an `Arc<Database>`. The simulation runs them on a table in memory.
        pub trait Statements: Clone + Debug + Send + Sync + 'static {
            fn name(&self) -> &DatabaseName;

            /// The database's clock, as far as its answers have told it.
            fn clock(&self) -> &DatabaseClock;

            /// Looks whether the server in use was replaced. Returns whether there are several to look at.
            fn look_at_servers(&self) -> impl Future<Output = bool> + Send;

            $(fn $name(&self $(, $argument: $type)*) -> impl Future<Output = Result<$answer, Error>> + Send;)*
        }

        impl Statements for Arc<Database> {
            fn name(&self) -> &DatabaseName {
                Database::name(self)
            }

            fn clock(&self) -> &DatabaseClock {
                Database::clock(self)
            }

            async fn look_at_servers(&self) -> bool {
                let are_several = self.has_several_servers();
                if are_several {
                    self.look_out().await;
                }
                are_several
            }

            $(async fn $name(&self $(, $argument: $type)*) -> Result<$answer, Error> {
                Database::$name(self $(, $argument)*).await
            })*
        }
    };
}

statements! {
    async fn ping(&self) -> ();
    async fn shard_held(&self, fences: &BTreeMap<ShardId, Epoch>) -> Vec<ShardId>;
    async fn task_preload(
        &self, shards: &[ShardId], from: UnixMicros, until: UnixMicros, most_per_shard: i64
    ) -> Vec<Key>;
    async fn task_takeover(&self, fences: &BTreeMap<ShardId, Epoch>, most_per_shard: i64) -> Vec<TaskId>;
    async fn task_claim(
        &self,
        ids: &[TaskId],
        fences: &BTreeMap<ShardId, Epoch>,
        ahead: Duration,
        closed: &BTreeSet<QueueName>,
        known: i64
    ) -> Claimed;
    async fn task_rescue(&self, ids: &[TaskId], fences: &BTreeMap<ShardId, Epoch>) -> Claimed;
    async fn ready_queues(&self) -> Vec<QueueName>;
    async fn ready_oldest(&self, queue: &QueueName, from: Option<UnixMicros>) -> UnixMicros;
    async fn lane_read(
        &self, queue: &QueueName, shards: &[ShardId], most: usize, limit: Option<i64>, from: Option<UnixMicros>
    ) -> LaneCounts;
    async fn task_pick(&self, pick: &Pick<'_>) -> (Claimed, Walks);
    async fn task_pick_candidates(&self, pick: &Pick<'_>) -> Vec<TaskId>;
    async fn task_deliver(&self, tasks: &[Deliver]) -> ();
    async fn task_finish(&self, tasks: &[Finish]) -> Finished;
    async fn task_retry(&self, tasks: &[Retry]) -> Vec<TaskId>;
    async fn task_extend(&self, tasks: &[Extend]) -> Vec<TaskId>;
    async fn task_prolong(&self, attempts: &[(TaskId, Attempt)], time_ms: i64) -> Vec<TaskId>;
    async fn task_standing(&self, ids: &[TaskId]) -> Vec<StandingRow>;
    async fn task_held(&self, ids: &[TaskId]) -> Vec<TaskId>;
    async fn task_release(&self, ids: &[TaskId], succeeded: &[Succeeded]) -> ReleaseCheck;
    async fn task_release_dependents(&self, succeeded: &[Succeeded], after: Option<TaskId>, most: u16) -> ReleaseCheck;
    async fn task_set_aside(&self, id: TaskId, attempt: Attempt) -> ();
    async fn quarantine_add(&self, messages: &[Quarantined]) -> ();
    async fn queue_read(&self) -> (i64, Vec<Queue>);
    async fn queue_changes(&self, revision: i64) -> QueueChanges;
    async fn tell(&self, nudge: &Nudge) -> ();
}
