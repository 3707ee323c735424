//! Judges each step of a run by the guarantees, and remembers the first that is broken.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use common::{
    ids::{Epoch, ShardId, TaskId},
    task::{
        TaskState,
        oracle::{Event, transition},
    },
    time::UnixMicros,
};

use super::{
    plan::Rule,
    row::Row,
    table::{Rows, Table},
};

/// An attempt of a task: what a message id names.
pub type Message = (TaskId, i32);

#[derive(Debug, Default)]
pub struct Judge {
    /// The first broken guarantee, in words.
    pub broken: Option<String>,
    /// Each step, as a number: two runs of one seed have the same.
    pub trace: u64,
    pub steps: u64,
    pub copies: u64,
    /// The copies of each message that have arrived, and those of them without a mark.
    arrived: BTreeMap<Message, (u32, u32)>,
    accepted: BTreeSet<TaskId>,
    /// The attempts after which a client's cancel was acknowledged.
    cancelled: BTreeMap<TaskId, i32>,
    /// The node that took each epoch of a shard.
    owners: BTreeMap<(ShardId, Epoch), usize>,
    /// The tasks of which a consumer has reported a success.
    succeeded: BTreeSet<TaskId>,
    /// The messages that some node has handed to the broker.
    handed_over: BTreeSet<Message>,
    /// The claimed tasks that their owners do not have in flight, and since when.
    unattended: BTreeMap<Message, Duration>,
    has_faults: bool,
}

/// The longest time for which a claimed task may be in no node's hands once all faults are over: the rest of a queue
/// after a lost pick (8 s), and a look.
const ATTENDED_WITHIN: Duration = Duration::from_secs(10);

/// The same for a task whose message was handed to the broker: it may wait as long as a lane pauses (15 s).
const PUBLISHED_AGAIN_WITHIN: Duration = Duration::from_secs(20);

/// Whether an event leads from one state to the other, by the product's own table.
fn is_allowed(from: TaskState, to: TaskState) -> bool {
    from == to || Event::ALL.iter().any(|event| transition(from, *event) == Ok(to))
}

impl Judge {
    pub fn new(has_faults: bool) -> Self {
        Self { has_faults, ..Self::default() }
    }

    fn breaks(&mut self, guarantee: &str, what: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(format!("{guarantee}: {}", what()));
        }
    }

    /// Notes a step in the trace (FNV-1a).
    pub fn note(&mut self, at: UnixMicros, step: &str) {
        self.steps += 1;
        for byte in at.micros().to_le_bytes().iter().chain(step.as_bytes()) {
            self.trace = (self.trace ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub fn accepted(&mut self, id: TaskId) {
        self.accepted.insert(id);
    }

    pub fn cancelled(&mut self, id: TaskId, attempt: i32) {
        self.cancelled.insert(id, attempt);
    }

    /// Notes that a consumer reports a success, of any attempt.
    pub fn succeeded(&mut self, id: TaskId) {
        self.succeeded.insert(id);
    }

    pub fn acquired(&mut self, shard: ShardId, epoch: Epoch, node: usize) {
        if let Some(other) = self.owners.insert((shard, epoch), node) {
            self.breaks("G4", || format!("nodes {other} and {node} both took epoch {epoch} of shard {shard}"));
        }
    }

    /// Judges a claim of `node` at its commit.
    pub fn claimed(&mut self, table: &Table, node: usize, id: TaskId, presented: Option<Epoch>) {
        let shard = id.shard();
        let in_force = table.fences.get(&shard).copied();
        if presented != in_force || in_force.is_none_or(|epoch| self.owners.get(&(shard, epoch)) != Some(&node)) {
            self.breaks("G4", || {
                format!("node {node} claimed {id} under epoch {presented:?}; in force is {in_force:?}")
            });
        }
    }

    /// Judges a message at its arrival. `latest`: the latest time by which its publisher may go.
    pub fn arrived(&mut self, message: Message, redelivered: bool, due_at: UnixMicros, latest: UnixMicros) {
        let (id, attempt) = message;
        if latest < due_at {
            self.breaks("G2", || format!("{id}:{attempt} arrived at {latest:?}, due at {due_at:?}"));
        }
        if let Some(last) = self.cancelled.get(&id).filter(|last| attempt > **last) {
            let last = *last;
            self.breaks("G3", || format!("{id}:{attempt} arrived after its cancel at attempt {last}"));
        }
        let (copies, unmarked) = self.arrived.entry(message).or_default();
        *copies += 1;
        *unmarked += u32::from(!redelivered);
        let (copies, unmarked) = (*copies, *unmarked);
        self.copies += u64::from(copies > 1);
        if unmarked > 1 {
            self.breaks("G5", || format!("{unmarked} copies of {id}:{attempt} are not marked"));
        }
        if copies > 1 && !self.has_faults {
            self.breaks("G5", || format!("{id}:{attempt} has a copy without a fault"));
        }
    }

    pub fn handed_over(&mut self, message: Message) {
        self.handed_over.insert(message);
    }

    /// Judges the claimed tasks that their owners do not have in flight.
    pub fn unattended(&mut self, messages: &[Message], now: Duration) {
        let before = std::mem::take(&mut self.unattended);
        for message in messages {
            let since = before.get(message).copied().unwrap_or(now);
            self.unattended.insert(*message, since);
            let is_out = self.handed_over.contains(message);
            if now - since > if is_out { PUBLISHED_AGAIN_WITHIN } else { ATTENDED_WITHIN } {
                let (id, attempt) = message;
                self.breaks("lateness", || format!("{id}:{attempt} is claimed and in no node's hands since {since:?}"));
            }
        }
    }

    pub fn has_arrived(&self, message: Message) -> bool {
        self.arrived.contains_key(&message)
    }

    /// Judges a commit: each row before and after it, and the queues as a whole.
    pub fn committed(&mut self, before: &Rows, table: &Table) {
        for (id, row) in before {
            match (table.rows.get(id), table.archive.get(id)) {
                (Some(now), None) => self.changed(row, now, before),
                (None, Some((state, attempt))) => self.ended(row, *state, *attempt),
                (None, None) => self.breaks("G1", || format!("{id} is gone")),
                (Some(_), Some(_)) => self.breaks("G1", || format!("{id} is finished and unfinished")),
            }
        }
        self.queues(table);
    }

    fn changed(&mut self, before: &Row, now: &Row, rows: &Rows) {
        let (id, attempt) = (now.id, now.attempt);
        let is_claim = before.state != TaskState::Dispatching && now.state == TaskState::Dispatching;
        if attempt != before.attempt + i32::from(is_claim) {
            let earlier = before.attempt;
            self.breaks("attempts", || format!("{id} went from attempt {earlier} to {attempt}"));
        }
        let is_settled = matches!(now.state, TaskState::Delivered | TaskState::Running)
            || before.state.is_in_flight() && !now.state.is_in_flight();
        if before.state != now.state && is_settled && !self.has_arrived((id, attempt)) {
            self.breaks("G2", || format!("{id}:{attempt} became {} before the broker had it", now.state));
        }
        if !is_allowed(before.state, now.state) {
            self.breaks("states", || format!("{id}:{attempt} went from {} to {}", before.state, now.state));
        }
        if is_claim && now.queue.as_str() == Rule::Ordered.queue() {
            self.in_order(now, rows);
        }
    }

    /// Judges a start in order: no task of its key is in flight or comes first.
    fn in_order(&mut self, started: &Row, before: &Rows) {
        let of_key = |row: &&Row| {
            row.id != started.id && row.queue == started.queue && row.partition_key == started.partition_key
        };
        let begun = |row: &&Row| row.attempt > 0;
        if let Some(other) = before.values().filter(of_key).find(begun) {
            let id = other.id;
            self.breaks("G8", || format!("{} started before {id} was finished", started.id));
        }
    }

    fn ended(&mut self, before: &Row, state: TaskState, attempt: i32) {
        let id = before.id;
        if !is_allowed(before.state, state) {
            self.breaks("states", || format!("{id}:{attempt} went from {} to {state}", before.state));
        }
        let needs_arrival = matches!(state, TaskState::Succeeded | TaskState::Dead);
        // The late success of an earlier attempt ends the task, whatever has become of its newest one.
        let is_reported = state == TaskState::Succeeded && self.succeeded.contains(&id);
        if needs_arrival && !is_reported && !self.has_arrived((id, attempt)) {
            self.breaks("G2", || format!("{id}:{attempt} became {state} before the broker had it"));
        }
        // No consumer discards a task, and no queue has an exchange of its own that could return one for good.
        if state == TaskState::Dead && attempt < super::node::MAX_ATTEMPTS {
            self.breaks("attempts", || format!("{id}:{attempt} became dead with attempts left"));
        }
        if !needs_arrival && before.state.is_in_flight() {
            self.breaks("G3", || format!("{id}:{attempt} became {state} although it was claimed"));
        }
    }

    fn queues(&mut self, table: &Table) {
        let is_out = |row: &&Row| row.queue.as_str() == Rule::Limited.queue() && row.state.is_in_flight();
        let out = table.rows.values().filter(is_out).count();
        if out > super::node::MAX_RUNNING {
            self.breaks("G8", || format!("{out} tasks of the limited queue are out"));
        }
    }

    /// Judges the end: every accepted task has ended, once.
    pub fn ended_run(&mut self, table: &Table) {
        for id in self.accepted.clone() {
            if !table.archive.contains_key(&id) {
                let row = table.rows.get(&id).cloned();
                let guarantee = if row.is_some() { "progress" } else { "G1" };
                self.breaks(guarantee, || format!("{id} has not ended: {row:?}"));
            }
        }
    }
}
