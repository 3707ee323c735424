//! The world around the nodes: the tables, the faults in force, the broker's queues, and the judge.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use common::{
    ids::{Epoch, ShardId, TaskId},
    time::UnixMicros,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    dice::Dice,
    judge::Judge,
    mutant::Mutant,
    plan::{Fault, Kind, NODES, Plan},
    statement::Statement,
    table::{Locks, Rows, Table},
};
use crate::{broker::BrokerState, store::DatabaseClock};

/// The database's time at the start of each run. It is far from the nodes' wall clock, which decides nothing.
const EPOCH: UnixMicros = UnixMicros::new(1_000_000_000_000_000);

/// The time for which an honest statement, a commit or an answer takes, at the most.
const QUICK_MS: u64 = 4;

/// The time for which a slow statement takes, at the most. The server ends a statement after 5 s.
const SLOW_MS: u64 = 2_000;

/// A message at a consumer.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub id: TaskId,
    pub attempt: i32,
    pub wants_report: bool,
}

#[derive(Debug)]
pub struct World {
    state: Mutex<State>,
    /// A statement has ended: locks are free, rows have changed.
    pub committed: Notify,
    /// Another server has taken the database's place.
    pub promoted: Notify,
    /// Messages for the consumers.
    pub arrivals: tokio::sync::mpsc::Sender<Arrival>,
    broker: Mutex<Broker>,
    lives: Mutex<[Life; NODES]>,
    /// The life of a node has changed.
    lives_changed: Notify,
    start: Instant,
    pub mutant: Option<Mutant>,
    plan: Plan,
}

/// The state of the broker, and a channel for each loop that watches it. One channel for all would wake them in an
/// order that does not follow from the seed.
#[derive(Debug)]
struct Broker {
    state: BrokerState,
    watchers: Vec<watch::Sender<BrokerState>>,
}

/// Whether the process of a node runs. `incarnation` counts its starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    pub incarnation: u32,
    pub is_frozen: bool,
    pub is_dead: bool,
}

#[derive(Debug)]
pub struct State {
    pub table: Table,
    pub judge: Judge,
    pub dice: Dice,
    /// How far the database's clock was set forward.
    shift_us: i64,
    set_back: Vec<SetBack>,
}

/// A moment at which the clock was set back.
#[derive(Debug)]
struct SetBack {
    at: Duration,
    by: Duration,
    /// The part of it that each node may not have noticed.
    unnoticed: [Duration; NODES],
}

/// For so long a node may still go by the clock as it was before it was set back: until the answer to a statement
/// that it sent afterwards, and answers may be slow. Later no answer from before arrives that shows the clock ahead,
/// because the clock is set back by no more than this.
const REMEMBERED: Duration = Duration::from_secs(3);

impl World {
    pub fn new(plan: Plan, mutant: Option<Mutant>, arrivals: tokio::sync::mpsc::Sender<Arrival>) -> Arc<Self> {
        let judge = Judge::new(!plan.faults.is_empty());
        let dice = Dice::new(plan.seed ^ 0x5eed);
        let state = State { table: Table::default(), judge, dice, shift_us: 0, set_back: Vec::new() };
        Arc::new(Self {
            state: Mutex::new(state),
            committed: Notify::new(),
            promoted: Notify::new(),
            arrivals,
            broker: Mutex::new(Broker { state: BrokerState::Up { blocked: false }, watchers: Vec::new() }),
            lives: Mutex::default(),
            lives_changed: Notify::new(),
            start: Instant::now(),
            mutant,
            plan,
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The time on the database's clock.
    pub fn now(&self) -> UnixMicros {
        UnixMicros::new(EPOCH.plus(self.elapsed()).micros() + self.state().shift_us)
    }

    /// The latest time by which the node may go: the database's, or that before its clock was set back, as far as the
    /// node cannot have noticed.
    pub fn latest(&self, node: usize) -> UnixMicros {
        let (now, elapsed) = (self.now(), self.elapsed());
        let state = self.state();
        let ahead = |back: &SetBack| if elapsed - back.at < REMEMBERED { back.by } else { back.unnoticed[node] };
        now.plus(state.set_back.iter().map(ahead).sum())
    }

    /// Notes that a node has an answer, which was sent for at `sent` and read the clock at `read`. The node then
    /// notices a set-back, except for as much as lies between these moments (docs/reliability.md). What it does not
    /// notice ends when it drops its older readings.
    pub fn note_clock_reading(&self, node: usize, sent: std::time::Instant, read: std::time::Instant) {
        let elapsed = read.saturating_duration_since(self.start.into_std());
        for back in &mut self.state().set_back {
            if elapsed.saturating_sub(back.at) >= REMEMBERED
                // The client has no share in it.
                && let Some(unnoticed) = back.unnoticed.get_mut(node)
            {
                let is_forgotten = elapsed.saturating_sub(back.at) > REMEMBERED + DatabaseClock::KEPT;
                let trip = read.saturating_duration_since(sent);
                *unnoticed = if is_forgotten { Duration::ZERO } else { trip.min(*unnoticed) };
            }
        }
    }

    pub fn set_clock_forward(&self, by: Duration) {
        self.state().shift_us += i64::try_from(by.as_micros()).expect("it is short");
    }

    pub fn set_clock_back(&self, by: Duration) {
        let at = self.elapsed();
        let mut state = self.state();
        state.shift_us -= i64::try_from(by.as_micros()).expect("it is short");
        state.set_back.push(SetBack { at, by, unnoticed: [by; NODES] });
    }

    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn in_force(&self) -> impl Iterator<Item = &Fault> {
        let now = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.plan.faults.iter().filter(move |fault| (fault.at_ms..fault.at_ms + fault.for_ms).contains(&now))
    }

    /// Whether a fault is in force.
    pub fn has(&self, kind: Kind) -> bool {
        self.in_force().any(|fault| fault.kind == kind)
    }

    /// Whether a fault in force strikes this time: half of the time.
    pub fn strikes(&self, kind: Kind) -> bool {
        self.has(kind) && self.state().dice.is_percent(50)
    }

    pub fn note(&self, step: &str) {
        let now = self.now();
        self.state().judge.note(now, step);
    }

    /// Waits for a short time, or for a long one while the database is slow.
    pub async fn lag(&self) {
        let most = if self.strikes(Kind::Slow) { SLOW_MS } else { QUICK_MS };
        let lag = self.state().dice.millis(0, most);
        if !lag.is_zero() {
            tokio::time::sleep(lag).await;
        }
    }

    /// Runs a statement on the server: takes its snapshot, locks, checks again, and commits. `node`: its sender.
    pub async fn execute<T>(&self, node: usize, what: &'static str, statement: Statement<T>) -> T {
        let Statement { fences, choose, recheck, skips_locked, write } = statement;
        let is_locking = !self.is(Mutant::ClaimKeptOverTakeover);
        let now = self.now();
        let (snapshot, fences) = {
            let mut state = self.state();
            let presented = fences;
            let held = if self.is(Mutant::NoEpochAtClaim) {
                presented.keys().map(|shard| (*shard, state.table.fences[shard])).collect()
            } else {
                presented
            };
            (state.table.rows.clone(), state.table.share(&held, is_locking))
        };
        let mut locks = Locks { rows: Vec::new(), fences };
        for id in choose(&snapshot, &locks.fences, now) {
            if self.lock(id, skips_locked).await {
                let now = self.now();
                let is_fit = self.state().table.rows.get(&id).is_some_and(|row| recheck(row, now));
                if is_fit { locks.rows.push(id) } else { self.unlock(id) }
            }
        }
        self.lag().await;
        self.commit(node, what, &snapshot, &locks, is_locking, write)
    }

    /// Locks a row. Returns whether it is locked; a row that is not free is passed over, or waited for.
    async fn lock(&self, id: TaskId, skips_locked: bool) -> bool {
        loop {
            let freed = self.committed.notified();
            if self.state().table.lock(id) {
                return true;
            }
            if skips_locked {
                return false;
            }
            freed.await;
        }
    }

    fn unlock(&self, id: TaskId) {
        self.state().table.unlock(&Locks { rows: vec![id], fences: BTreeMap::new() }, false);
        self.committed.notify_waiters();
    }

    fn commit<T>(
        &self,
        node: usize,
        what: &'static str,
        snapshot: &Rows,
        locks: &Locks,
        is_locking: bool,
        write: impl FnOnce(&mut Table, &Rows, &Locks, UnixMicros) -> T,
    ) -> T {
        let now = self.now();
        let state = &mut *self.state();
        let before = state.table.rows.clone();
        let answer = write(&mut state.table, snapshot, locks, now);
        for id in &locks.rows {
            let was = before.get(id).and_then(|row| row.claimed_at);
            if let Some(row) = state.table.rows.get(id).filter(|row| row.claimed_at != was) {
                let epoch = row.claim_epoch;
                state.judge.claimed(&state.table, node, *id, epoch);
            }
            state.judge.note(now, &format!("{what} {id} {node}"));
        }
        state.judge.committed(&before, &state.table);
        state.table.unlock(locks, is_locking);
        self.committed.notify_waiters();
        answer
    }

    /// Takes a fence for a node once no claim holds it.
    pub async fn acquire(&self, shard: ShardId, node: usize) -> Epoch {
        self.lag().await;
        loop {
            let freed = self.committed.notified();
            {
                let state = &mut *self.state();
                if !state.table.is_shared(shard) {
                    let epoch = state.table.acquire(shard);
                    state.judge.acquired(shard, epoch, node);
                    return epoch;
                }
            }
            freed.await;
        }
    }

    pub fn life(&self, node: usize) -> Life {
        self.lives.lock()[node]
    }

    pub fn change_life(&self, node: usize, change: impl FnOnce(&mut Life)) {
        change(&mut self.lives.lock()[node]);
        self.lives_changed.notify_waiters();
    }

    /// Waits until the life of a node is as wanted.
    pub async fn until(&self, node: usize, is_wanted: impl Fn(&Life) -> bool) {
        loop {
            let changed = self.lives_changed.notified();
            if is_wanted(&self.life(node)) {
                return;
            }
            changed.await;
        }
    }

    /// Waits until the process of a node runs. Never returns once this incarnation has ended.
    pub async fn alive(&self, node: usize, incarnation: u32) {
        self.until(node, |life| life.incarnation == incarnation && !life.is_frozen && !life.is_dead).await;
    }

    /// Subscribes to the state of the broker.
    pub fn watch_broker(&self) -> watch::Receiver<BrokerState> {
        let mut broker = self.broker.lock();
        let (watcher, receiver) = watch::channel(broker.state.clone());
        broker.watchers.retain(|watcher| !watcher.is_closed());
        broker.watchers.push(watcher);
        receiver
    }

    pub fn set_broker(&self, state: BrokerState) {
        let mut broker = self.broker.lock();
        for watcher in &broker.watchers {
            watcher.send_replace(state.clone());
        }
        broker.state = state;
    }
}
