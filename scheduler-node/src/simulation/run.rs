//! One run: starts the nodes, lets clients, consumers and faults act, and asks the judge.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use common::{
    delay::heap::{Entry, WakeKind},
    ids::{Attempt, QueueName, ShardId, TaskId},
    task::{
        TaskState,
        report::{ReportStatus, ResultBody},
    },
    time::UnixMicros,
};
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    dice::seed_the_node,
    mutant::Mutant,
    node::{LEASE_TTL, Node},
    plan::{Fault, Kind, NODES, Plan, PlannedTask, Rule, SHARDS},
    row::Row,
    statement,
    world::{Arrival, World},
};
use crate::{broker::BrokerState, supervise::spawn_child, working_set::owned_shards::Stop};

/// The longest time after the last fault until every task has ended: the broker's confirm deadline, the time after
/// which a claimed row is looked at, and the longest pauses of lanes and retries, several times.
const PROGRESS_WITHIN: Duration = Duration::from_secs(300);

/// The interval between two looks of the judge at the whole.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The interval between two searches for expired tasks.
const EXPIRED_EVERY: Duration = Duration::from_secs(1);

/// The longest time for which a cut stops the claims.
const CUT_WITHIN: Duration = Duration::from_millis(450);

/// The number of the sender of statements that no node sends.
const CLIENT: usize = NODES;

/// The attempt from which on consumers succeed, so that each run ends.
const LAST_FAILURE: i32 = 4;

/// What one run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub broken: Option<String>,
    pub trace: u64,
    pub steps: u64,
    pub copies: u64,
    pub took: Duration,
}

/// Runs a plan in virtual time, on this thread alone.
pub fn run(plan: &Plan, mutant: Option<Mutant>) -> Ended {
    seed_the_node(plan.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime starts");
    runtime.block_on(async {
        let (arrivals, arrived) = mpsc::channel(1_024);
        let cluster = Cluster::new(plan, mutant, arrivals);
        let mut actors = cluster.actors(plan);
        actors.spawn(Arc::clone(&cluster).consume(arrived));
        cluster.until_ended(plan).await
    })
}

/// The nodes, and who owns what.
struct Cluster {
    world: Arc<World>,
    nodes: Mutex<Vec<Arc<Node>>>,
    /// The node that took each shard last.
    takers: Mutex<BTreeMap<ShardId, usize>>,
}

impl Cluster {
    fn new(plan: &Plan, mutant: Option<Mutant>, arrivals: mpsc::Sender<Arrival>) -> Arc<Self> {
        let world = World::new(plan.clone(), mutant, arrivals);
        for shard in (0..SHARDS).map(ShardId::new) {
            world.state().table.fences.insert(shard, common::ids::Epoch::NONE);
        }
        let nodes = (0..NODES).map(|node| Arc::new(Node::start(&world, node, 0))).collect();
        Arc::new(Self { world, nodes: Mutex::new(nodes), takers: Mutex::default() })
    }

    fn actors(self: &Arc<Self>, plan: &Plan) -> JoinSet<()> {
        let mut actors = JoinSet::new();
        actors.spawn(Arc::clone(self).assign());
        actors.spawn(Arc::clone(self).expire());
        for task in &plan.tasks {
            actors.spawn(Arc::clone(self).submit(*task));
        }
        for fault in &plan.faults {
            actors.spawn(Arc::clone(self).strike(*fault));
        }
        actors
    }

    async fn until_ended(&self, plan: &Plan) -> Ended {
        let world = &self.world;
        let healed_at = plan.healed_at();
        loop {
            sleep(LOOK_EVERY).await;
            let unattended = self.unattended();
            let is_over = world.elapsed() > healed_at + PROGRESS_WITHIN;
            let state = &mut *world.state();
            let is_done = world.elapsed() > healed_at + LOOK_EVERY && state.table.rows.is_empty();
            if world.elapsed() > healed_at {
                state.judge.unattended(&unattended, world.elapsed());
            }
            if is_over || is_done {
                state.judge.ended_run(&state.table);
            }
            if is_over || is_done || state.judge.broken.is_some() {
                let judge = &state.judge;
                return Ended {
                    broken: judge.broken.clone(),
                    trace: judge.trace,
                    steps: judge.steps,
                    copies: judge.copies,
                    took: world.elapsed(),
                };
            }
        }
    }

    /// The claimed tasks that the owners of their shards do not have in flight.
    fn unattended(&self) -> Vec<(TaskId, i32)> {
        let takers = self.takers.lock().clone();
        let has = |id: TaskId| {
            takers.get(&id.shard()).is_some_and(|node| self.node(*node).database.owned_shards.is_in_flight(id))
        };
        let state = self.world.state();
        let claimed = state.table.rows.values().filter(|row| row.state == TaskState::Dispatching && !has(row.id));
        claimed.map(|row| (row.id, row.attempt)).collect()
    }

    fn node(&self, node: usize) -> Arc<Node> {
        Arc::clone(&self.nodes.lock()[node])
    }

    fn runs(&self, node: usize) -> bool {
        let life = self.world.life(node);
        !life.is_dead && !life.is_frozen
    }

    /// Gives each shard an owner: at first, and again when its owner is gone for longer than a lease, or has let go.
    async fn assign(self: Arc<Self>) {
        let mut missing: BTreeMap<ShardId, u32> = BTreeMap::new();
        loop {
            for shard in (0..SHARDS).map(ShardId::new) {
                let taker = self.takers.lock().get(&shard).copied();
                let owns =
                    |node: usize| self.runs(node) && self.node(node).database.owned_shards.owned().contains_key(&shard);
                let since = missing.entry(shard).or_default();
                *since = if taker.is_some_and(owns) { 0 } else { *since + 1 };
                let patience = u32::try_from(LEASE_TTL.as_millis() / LOOK_EVERY.as_millis()).unwrap_or(u32::MAX);
                if taker.is_none() || *since > patience {
                    *since = 0;
                    let first = usize::from(shard.number()) % NODES;
                    let node = (0..NODES).map(|next| (first + next) % NODES).find(|node| self.runs(*node));
                    if let Some(node) = node {
                        self.takers.lock().insert(shard, node);
                        let this = Arc::clone(&self);
                        drop(spawn_child(async move { this.take(shard, node).await }));
                    }
                }
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Ends tasks whose expiry has passed, as the archiver does.
    async fn expire(self: Arc<Self>) {
        let shards: Vec<ShardId> = (0..SHARDS).map(ShardId::new).collect();
        loop {
            self.world.execute(CLIENT, "expire", statement::expire(&shards)).await;
            sleep(EXPIRED_EVERY).await;
        }
    }

    /// Has a node take a shard's fence, as its owner loop does.
    async fn take(&self, shard: ShardId, node: usize) {
        self.takers.lock().insert(shard, node);
        let (this, incarnation) = (self.node(node), self.world.life(node).incarnation);
        self.world.alive(node, incarnation).await;
        let epoch = self.world.acquire(shard, node).await;
        self.world.lag().await;
        self.world.alive(node, incarnation).await;
        this.database.owned_shards.adopt(&[(shard, epoch)]);
    }

    /// Submits a task, and cancels or moves it, as its client does.
    async fn submit(self: Arc<Self>, planned: PlannedTask) {
        let world = &self.world;
        sleep(Duration::from_millis(planned.submit_at_ms)).await;
        let id =
            TaskId::mint(uuid::Uuid::from_u128((u128::from(planned.number) + 1) << 64), ShardId::new(planned.shard));
        let due_at = world.now().plus(Duration::from_millis(planned.due_in_ms));
        {
            let state = &mut *world.state();
            state.table.rows.insert(id, planned.row(id, due_at));
            state.judge.accepted(id);
        }
        self.nudge(id, due_at);
        let (cancelling, moving) = (self.cancel(id, planned.cancel_at_ms), self.change(id, planned.move_at_ms));
        tokio::join!(cancelling, moving);
    }

    async fn cancel(&self, id: TaskId, at_ms: Option<u64>) {
        let Some(at_ms) = at_ms else { return };
        tokio::time::sleep(Duration::from_millis(at_ms).saturating_sub(self.world.elapsed())).await;
        let mut statement = statement::cancel(id);
        if self.world.is(Mutant::CancelInFlight) {
            statement.choose = Box::new(move |rows, _, _| rows.contains_key(&id).then_some(id).into_iter().collect());
            statement.recheck = Box::new(|_, _| true);
        }
        if let Some(attempt) = self.world.execute(CLIENT, "cancel", statement).await {
            self.world.state().judge.cancelled(id, attempt);
        }
    }

    async fn change(&self, id: TaskId, at_ms: Option<u64>) {
        let Some(at_ms) = at_ms else { return };
        tokio::time::sleep(Duration::from_millis(at_ms).saturating_sub(self.world.elapsed())).await;
        let by = self.world.state().dice.millis(0, 4_000);
        let due_at = self.world.now().plus(by);
        if self.world.execute(CLIENT, "change", statement::change(id, due_at)).await {
            self.nudge(id, due_at);
        }
    }

    /// Tells the nodes of a row, perhaps late or not at all.
    fn nudge(&self, id: TaskId, wake_at: UnixMicros) {
        for node in 0..NODES {
            if self.world.strikes(Kind::NudgesLost) {
                continue;
            }
            let (node, after) = (self.node(node), self.world.state().dice.millis(0, 300));
            drop(spawn_child(async move {
                sleep(after).await;
                node.database.owned_shards.offer([Entry { wake_at, id, kind: WakeKind::Claim }]);
            }));
        }
    }

    /// Begins a fault, and heals it.
    async fn strike(self: Arc<Self>, fault: Fault) {
        sleep(Duration::from_millis(fault.at_ms)).await;
        let world = &self.world;
        world.note(&format!("{:?}", fault.kind));
        let lasts = Duration::from_millis(fault.for_ms);
        match fault.kind {
            Kind::ClockForward { by_ms } => world.set_clock_forward(Duration::from_millis(by_ms)),
            Kind::ClockBack { by_ms } => world.set_clock_back(Duration::from_millis(by_ms)),
            Kind::BrokerAway => {
                world.set_broker(BrokerState::Down {
                    reason: "the simulated broker is away".into(),
                    since: crate::clock::instant(),
                });
                sleep(lasts).await;
                world.set_broker(BrokerState::Up { blocked: false });
            }
            Kind::TakenOver { shard } => {
                let shard = ShardId::new(shard);
                let owner = self.takers.lock().get(&shard).copied().unwrap_or(0);
                self.take(shard, (owner + 1) % NODES).await;
            }
            Kind::HandedOver { shard } => self.hand_over(ShardId::new(shard)).await,
            Kind::Frozen { node } => {
                world.change_life(node, |life| life.is_frozen = true);
                sleep(lasts).await;
                world.change_life(node, |life| life.is_frozen = false);
            }
            Kind::Killed { node } => self.kill(node, lasts).await,
            Kind::Promoted => {
                sleep(lasts).await;
                world.promoted.notify_waiters();
                (0..NODES).for_each(|node| self.node(node).database.sql.forget_clock());
            }
            Kind::CutGivenUp { shard } => {
                let giving_up = async {
                    loop {
                        self.give_up_cut(ShardId::new(shard)).await;
                        sleep(CUT_WITHIN).await;
                    }
                };
                // The last cut is given up, too.
                let _ = timeout(lasts, giving_up).await;
                self.give_up_cut(ShardId::new(shard)).await;
            }
            _ => {}
        }
    }

    async fn hand_over(&self, shard: ShardId) {
        let owner = self.takers.lock().get(&shard).copied().unwrap_or(0);
        let node = self.node(owner);
        node.database.owned_shards.begin_release(&[shard]);
        let patience = Duration::from_secs(5);
        // Whatever is still out when the patience ends, the next owner publishes again.
        let _ = timeout(patience, node.database.owned_shards.drained(&[shard])).await;
        node.database.owned_shards.forget(&[shard]);
        node.database.owned_shards.end_release([shard]);
        self.take(shard, (owner + 1) % NODES).await;
    }

    /// Stops the claims from a shard as a cut does, and goes on with them.
    async fn give_up_cut(&self, shard: ShardId) {
        let owner = self.takers.lock().get(&shard).copied().unwrap_or(0);
        let owned_shards = Arc::clone(&self.node(owner).database.owned_shards);
        let Some(epoch) = owned_shards.owned().get(&shard).copied() else { return };
        owned_shards.stop_claiming(&[shard], Stop::Cut);
        // What is still out holds a cut up.
        let _ = timeout(CUT_WITHIN, owned_shards.drained(&[shard])).await;
        owned_shards.resume_claiming(shard, epoch, Stop::Cut);
    }

    /// Ends a node's process wherever it is, and starts it anew.
    async fn kill(&self, node: usize, rests: Duration) {
        if self.world.life(node).is_dead {
            return;
        }
        self.world.change_life(node, |life| (life.is_dead, life.incarnation) = (true, life.incarnation + 1));
        let incarnation = self.world.life(node).incarnation;
        self.nodes.lock()[node].kill();
        sleep(rests).await;
        self.nodes.lock()[node] = Arc::new(Node::start(&self.world, node, incarnation));
        self.world.change_life(node, |life| life.is_dead = false);
    }

    /// Takes messages from the broker, and works on them.
    async fn consume(self: Arc<Self>, mut arrived: mpsc::Receiver<Arrival>) {
        while let Some(arrival) = arrived.recv().await {
            if arrival.wants_report {
                drop(spawn_child(Arc::clone(&self).work(arrival)));
            }
        }
    }

    async fn work(self: Arc<Self>, arrival: Arrival) {
        let (takes, luck) = {
            let dice = &self.world.state().dice;
            (dice.millis(0, 2_000), dice.between(0, 99))
        };
        let luck = if arrival.attempt >= LAST_FAILURE { 0 } else { luck };
        let statuses: &[ReportStatus] = match luck {
            0..60 => &[ReportStatus::Succeeded],
            60..75 => &[ReportStatus::Failed],
            75..85 => &[],
            85..93 => &[ReportStatus::Running, ReportStatus::Succeeded],
            _ => &[ReportStatus::Succeeded, ReportStatus::Succeeded],
        };
        for status in statuses {
            sleep(takes).await;
            self.report(arrival, *status).await;
        }
    }

    /// Reports to some node, as often as the report is not acknowledged.
    async fn report(&self, arrival: Arrival, status: ReportStatus) {
        if status == ReportStatus::Succeeded {
            self.world.state().judge.succeeded(arrival.id);
        }
        loop {
            let node = self.world.state().dice.index(NODES);
            if self.runs(node) {
                let (node, attempt) = (self.node(node), Attempt::new(arrival.attempt));
                let reporting =
                    async move { node.reporter.report(arrival.id, attempt, ResultBody::new(status)).await.is_ok() };
                // A node that stands still may go on with a report that was sent again meanwhile.
                if timeout(Duration::from_secs(10), spawn_child(reporting))
                    .await
                    .is_ok_and(|done| done.unwrap_or(false))
                {
                    return;
                }
            }
            sleep(Duration::from_millis(300)).await;
        }
    }
}

impl PlannedTask {
    fn row(&self, id: TaskId, due_at: UnixMicros) -> Row {
        let mut row = Row::new(id, QueueName::new(self.rule.queue()), due_at);
        if self.expires {
            row.expires_at = Some(due_at.plus(Duration::from_secs(2)));
        }
        row.partition_key = match self.rule {
            Rule::Ordered => Some(format!("k{}", self.number % 2)),
            _ => None,
        };
        row
    }
}
