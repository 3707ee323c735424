//! A node's connection to the simulated database, which may lie about the outcome of a statement.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{Attempt, DatabaseName, Epoch, QueueName, ShardId, TaskId},
    queue::Queue,
    task::TaskState,
    time::UnixMicros,
};

use super::{
    lanes,
    mutant::Mutant,
    plan::Kind,
    row::Row,
    statement::{self, Statement},
    world::World,
};
use crate::{
    clock,
    store::{
        Asked, DatabaseClock, Effect, Error, Statements, StoreOp,
        claim::{Claimed, LOOK_AGAIN_AFTER, TAKEOVER_LOOK_BACK},
        depend::{ReleaseCheck, Succeeded},
        lane::{LaneCounts, Pick, Walks},
        preload::Key,
        quarantine::Quarantined,
        queues::QueueChanges,
        settle::{Deliver, Extend, Finish, Finished, Retry, StandingRow},
        watch::Nudge,
    },
    supervise::spawn_child,
};

/// The time window in which a pick has to begin, from its sending on.
const PICKED_WITHIN: Duration = Duration::from_secs(2);

/// The latest time at which a statement still runs whose sender has given up.
const LATEST_MS: u64 = 20_000;

/// The longest wait of a node for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The interval between two looks of a node at what it follows.
const GLANCE_EVERY: Duration = Duration::from_millis(400);

#[derive(Clone, Debug)]
pub struct SimulatedDatabase {
    pub world: Arc<World>,
    pub node: usize,
    pub incarnation: u32,
    name: DatabaseName,
    clock: Arc<DatabaseClock>,
}

/// What becomes of a statement.
enum Fate {
    Honest,
    Refused,
    /// The answer is lost. The statement runs after so long, if at all.
    Lost(Option<Duration>),
    /// The server is silent until another one takes its place.
    Unanswered {
        runs: bool,
    },
}

impl SimulatedDatabase {
    pub fn new(world: &Arc<World>, node: usize, incarnation: u32) -> Self {
        let name = DatabaseName::new("main");
        Self { world: Arc::clone(world), node, incarnation, name, clock: Arc::default() }
    }

    /// Reads the clock whenever it is unknown, as the looker of a node does.
    pub async fn follow_clock(self) {
        loop {
            if self.clock.at(clock::instant()).is_none() {
                // The next look repeats it.
                let _ = self.ping().await;
            }
            tokio::time::sleep(GLANCE_EVERY).await;
        }
    }

    pub fn forget_clock(&self) {
        self.clock.forget();
    }

    fn fate(&self) -> Fate {
        let world = &self.world;
        if world.has(Kind::Promoted) {
            return Fate::Unanswered { runs: world.strikes(Kind::Promoted) };
        }
        if world.strikes(Kind::Refused { node: self.node }) {
            return Fate::Refused;
        }
        if !world.strikes(Kind::AnswersLost { node: self.node }) {
            return Fate::Honest;
        }
        let dice = &world.state().dice;
        Fate::Lost(match dice.index(3) {
            0 => None,
            1 => Some(Duration::ZERO),
            _ => Some(dice.millis(1, LATEST_MS)),
        })
    }

    fn error(&self, op: StoreOp, effect: Effect) -> Error {
        Error { database: self.name.clone(), op, effect, source: None }
    }

    /// Sends a statement, and waits for its answer as long as the process runs.
    async fn send<T: Send + 'static>(
        &self,
        op: StoreOp,
        run: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        self.world.alive(self.node, self.incarnation).await;
        let answer = match self.fate() {
            Fate::Refused => Err(self.error(op, Effect::None)),
            Fate::Honest => {
                self.world.lag().await;
                // A server goes on with a statement whose client has died.
                Ok(spawn_child(run).await.expect("a statement does not panic"))
            }
            Fate::Unanswered { runs } => {
                let promoted = self.world.promoted.notified();
                if runs {
                    drop(spawn_child(run));
                }
                // A node gives up by itself, too.
                let _ = tokio::time::timeout(PATIENCE, promoted).await;
                Err(self.error(op, Effect::Unknown))
            }
            Fate::Lost(after) => {
                if let Some(after) = after {
                    drop(spawn_child(async move {
                        tokio::time::sleep(after).await;
                        drop(run.await);
                    }));
                }
                let patience = self.world.state().dice.millis(0, 200);
                tokio::time::sleep(patience).await;
                Err(self.error(op, Effect::Unknown))
            }
        };
        self.world.lag().await;
        self.world.alive(self.node, self.incarnation).await;
        answer
    }

    async fn write<T: Send + 'static>(&self, op: StoreOp, statement: Statement<T>) -> Result<T, Error> {
        let (world, node) = (Arc::clone(&self.world), self.node);
        self.send(op, async move { world.execute(node, op.text(), statement).await }).await
    }

    /// Sends a statement that claims, and reads the clock from its answer.
    async fn claim<T: Send + 'static>(&self, op: StoreOp, statement: Statement<T>) -> Result<T, Error> {
        let (world, node) = (Arc::clone(&self.world), self.node);
        let asked = self.clock.ask(clock::instant());
        let run = async move { (world.execute(node, op.text(), statement).await, world.now(), clock::instant()) };
        let (answer, now, read_at) = self.send(op, run).await?;
        self.observe(now, read_at, asked);
        Ok(answer)
    }

    /// Notes an answer for which the server's clock was read at `read_at` and showed `now`.
    fn observe(&self, now: UnixMicros, read_at: Instant, asked: Asked) {
        let ahead = if self.world.is(Mutant::ClockReadAhead) { Duration::from_millis(500) } else { Duration::ZERO };
        self.clock.observe(now.plus(ahead), asked, clock::instant());
        self.world.note_clock_reading(self.node, asked.sent, read_at);
    }

    /// Sends a statement that reads.
    async fn read<T: Send + 'static>(
        &self,
        op: StoreOp,
        read: impl FnOnce(&World) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let world = Arc::clone(&self.world);
        self.send(op, async move { read(&world) }).await
    }
}

impl Statements for SimulatedDatabase {
    fn name(&self) -> &DatabaseName {
        &self.name
    }

    fn clock(&self) -> &DatabaseClock {
        &self.clock
    }

    async fn look_at_servers(&self) -> bool {
        false
    }

    async fn ping(&self) -> Result<(), Error> {
        let asked = self.clock.ask(clock::instant());
        let (now, read_at) = self.read(StoreOp::Ping, |world| (world.now(), clock::instant())).await?;
        self.observe(now, read_at, asked);
        Ok(())
    }

    async fn shard_held(&self, fences: &BTreeMap<ShardId, Epoch>) -> Result<Vec<ShardId>, Error> {
        let fences = fences.clone();
        self.read(StoreOp::ShardHeld, move |world| {
            let table = &world.state().table;
            fences.into_iter().filter(|(shard, epoch)| table.fences.get(shard) == Some(epoch)).map(|(s, _)| s).collect()
        })
        .await
    }

    async fn task_preload(
        &self,
        shards: &[ShardId],
        from: UnixMicros,
        until: UnixMicros,
        most_per_shard: i64,
    ) -> Result<Vec<Key>, Error> {
        let shards = shards.to_vec();
        self.read(StoreOp::TaskPreload, move |world| {
            let is_swept = !world.is(Mutant::NoSweeper);
            let rows = world.state().table.preload(&shards, from, until, most_per_shard);
            rows.iter().filter(|row| is_swept || row.state != TaskState::Dispatching).map(Row::key).collect()
        })
        .await
    }

    async fn task_takeover(
        &self,
        fences: &BTreeMap<ShardId, Epoch>,
        most_per_shard: i64,
    ) -> Result<Vec<TaskId>, Error> {
        let fences = fences.clone();
        self.read(StoreOp::TaskTakeover, move |world| {
            if world.is(Mutant::NoSweeper) {
                return Vec::new();
            }
            let now = world.now();
            let (from, until) = (now.minus(TAKEOVER_LOOK_BACK), now.plus(LOOK_AGAIN_AFTER));
            world.state().table.left_claimed(&fences, from, until, most_per_shard)
        })
        .await
    }

    async fn task_claim(
        &self,
        ids: &[TaskId],
        fences: &BTreeMap<ShardId, Epoch>,
        ahead: Duration,
        closed: &BTreeSet<QueueName>,
        _known: i64,
    ) -> Result<Claimed, Error> {
        self.claim(StoreOp::TaskClaim, statement::claim(ids, fences, ahead, closed)).await
    }

    async fn task_rescue(&self, ids: &[TaskId], fences: &BTreeMap<ShardId, Epoch>) -> Result<Claimed, Error> {
        let mut statement = statement::rescue(ids, fences);
        if self.world.is(Mutant::RevertedOnTimeout) {
            statement = super::broken::reverted(statement);
        } else if self.world.is(Mutant::RescueUnmarked) {
            statement = super::broken::unmarked(statement);
        }
        self.claim(StoreOp::TaskRescue, statement).await
    }

    async fn ready_queues(&self) -> Result<Vec<QueueName>, Error> {
        self.read(StoreOp::ReadyQueues, |world| {
            let state = world.state();
            let ready = state.table.rows.values().filter(|row| row.state == TaskState::Ready);
            ready.map(|row| row.queue.clone()).collect::<BTreeSet<_>>().into_iter().collect()
        })
        .await
    }

    async fn ready_oldest(&self, queue: &QueueName, from: Option<UnixMicros>) -> Result<UnixMicros, Error> {
        let queue = queue.clone();
        let now = self.clock.at(clock::instant()).unwrap_or(UnixMicros::FIRST);
        self.read(StoreOp::ReadyOldest, move |world| lanes::oldest(&world.state().table.rows, &queue, from, now)).await
    }

    async fn lane_read(
        &self,
        queue: &QueueName,
        shards: &[ShardId],
        most: usize,
        limit: Option<i64>,
        from: Option<UnixMicros>,
    ) -> Result<LaneCounts, Error> {
        let (queue, shards) = (queue.clone(), shards.to_vec());
        self.read(StoreOp::LaneRead, move |world| {
            let mut counts = lanes::read(&world.state().table.rows, &queue, &shards, most, (limit, from));
            if world.is(Mutant::LimitIgnored) {
                counts.out = 0;
            }
            counts
        })
        .await
    }

    async fn task_pick(&self, pick: &Pick<'_>) -> Result<(Claimed, Walks), Error> {
        let now = self.clock.at(clock::instant()).unwrap_or(UnixMicros::FIRST);
        let ordered = pick.ordered && !self.world.is(Mutant::OrderIgnored);
        let pick = Pick { ordered, ..pick.clone() };
        self.claim(StoreOp::TaskPick, lanes::pick(&pick, now.plus(PICKED_WITHIN))).await
    }

    async fn task_pick_candidates(&self, _pick: &Pick<'_>) -> Result<Vec<TaskId>, Error> {
        unreachable!("the simulated database refuses no row")
    }

    async fn task_deliver(&self, tasks: &[Deliver]) -> Result<(), Error> {
        let mut statement = statement::deliver(tasks);
        if self.world.is(Mutant::BlindSettle) {
            statement = super::broken::blind(statement, tasks.iter().map(|task| task.id).collect());
        }
        self.write(StoreOp::TaskDeliver, statement).await
    }

    async fn task_finish(&self, tasks: &[Finish]) -> Result<Finished, Error> {
        self.write(StoreOp::TaskFinish, statement::finish(tasks)).await
    }

    async fn task_retry(&self, tasks: &[Retry]) -> Result<Vec<TaskId>, Error> {
        let mut statement = statement::retry(tasks);
        if self.world.is(Mutant::DeadWithAttemptsLeft) {
            statement = super::broken::buried(statement);
        }
        self.write(StoreOp::TaskRetry, statement).await
    }

    async fn task_extend(&self, tasks: &[Extend]) -> Result<Vec<TaskId>, Error> {
        self.write(StoreOp::TaskExtend, statement::extend(tasks)).await
    }

    async fn task_prolong(&self, _attempts: &[(TaskId, Attempt)], _time_ms: i64) -> Result<Vec<TaskId>, Error> {
        unreachable!("no statement of the simulated database gives up on a lock")
    }

    async fn task_standing(&self, ids: &[TaskId]) -> Result<Vec<StandingRow>, Error> {
        let ids = ids.to_vec();
        self.read(StoreOp::TaskStanding, move |world| {
            let now = world.now();
            let state = world.state();
            ids.iter().filter_map(|id| state.table.rows.get(id)).map(|row| row.standing(now)).collect()
        })
        .await
    }

    async fn task_held(&self, _ids: &[TaskId]) -> Result<Vec<TaskId>, Error> {
        unreachable!("no statement of the simulated database gives up on a lock")
    }

    async fn task_release(&self, _ids: &[TaskId], _succeeded: &[Succeeded]) -> Result<ReleaseCheck, Error> {
        Ok(ReleaseCheck::default())
    }

    async fn task_release_dependents(
        &self,
        _succeeded: &[Succeeded],
        _after: Option<TaskId>,
        _most: u16,
    ) -> Result<ReleaseCheck, Error> {
        Ok(ReleaseCheck::default())
    }

    async fn task_set_aside(&self, _id: TaskId, _attempt: Attempt) -> Result<(), Error> {
        unreachable!("the simulated database refuses no row")
    }

    async fn quarantine_add(&self, _messages: &[Quarantined]) -> Result<(), Error> {
        unreachable!("the simulated database refuses no row")
    }

    async fn queue_read(&self) -> Result<(i64, Vec<Queue>), Error> {
        unreachable!("no policy changes during a run")
    }

    async fn queue_changes(&self, _revision: i64) -> Result<QueueChanges, Error> {
        unreachable!("no policy changes during a run")
    }

    async fn tell(&self, _nudge: &Nudge) -> Result<(), Error> {
        Ok(())
    }
}
