//! The oracle that ends every scenario.
//!
//! The ledger records each request, each answer and each arrival as it happens, and knows nothing of how the nodes
//! work. [`Ledger::judge`] then always asks the same questions:
//!
//! - Is a task lost, or early?
//! - Did a message arrive that was never submitted, or that was cancelled?
//! - Are copies marked, and near a fault?
//! - Do attempts follow one another?
//! - Did two nodes ever own one shard in one epoch?

mod history;
mod judge;
mod verdict;

#[cfg(test)]
mod tests;

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::clock::now_us;
use history::{Answer, Cancel, Entry, History, Window};
pub use history::{Delivery, Fault};
pub use verdict::{Lateness, Verdict};

/// The number of one submission, carried in its payload as `n`.
pub type Number = u64;

/// How long after a fault is healed its copies may still arrive: a lease, a confirm that never comes, a retry.
const GRACE: Duration = Duration::from_secs(20);

/// Counts of tasks so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub submitted: usize,
    pub accepted: usize,
    /// Not refused, and due by now.
    pub due: usize,
    pub delivered: usize,
}

/// The record of a scenario, shared by all its clients and consumers.
#[derive(Debug)]
pub struct Ledger {
    history: Mutex<History>,
    grace_us: i64,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::with_grace(GRACE)
    }
}

impl Ledger {
    pub fn with_grace(grace: Duration) -> Self {
        Self {
            history: Mutex::default(),
            grace_us: i64::try_from(grace.as_micros()).expect("a grace is not that long"),
        }
    }

    /// Records a submission; to be called before the request is sent. The number goes into its payload.
    pub fn submitting(&self, queue: &str, due_ms: i64) -> Number {
        let mut history = self.history.lock();
        history.entries.push(Entry {
            queue: queue.to_owned(),
            invoked_us: now_us(),
            due_us: due_ms * 1_000,
            answer: Answer::Open,
            cancel: Cancel::Never,
            max_attempts: None,
            may_lapse: false,
            order: None,
            after: Vec::new(),
        });
        history.entries.len() as Number - 1
    }

    pub fn accepted(&self, number: Number, task: &str) {
        let mut history = self.history.lock();
        history.by_task.insert(task.to_owned(), number);
        history.entry(number).answer = Answer::Accepted(task.to_owned());
    }

    pub fn refused(&self, number: Number) {
        self.history.lock().entry(number).answer = Answer::Refused;
    }

    /// Records that there was no answer: the task may exist or not.
    pub fn unknown(&self, number: Number) {
        self.history.lock().entry(number).answer = Answer::Unknown;
    }

    /// No attempt beyond this may arrive.
    pub fn expect_attempts(&self, number: Number, most: u32) {
        self.history.lock().entry(number).max_attempts = Some(most);
    }

    /// The task need not arrive.
    pub fn may_lapse(&self, number: Number) {
        self.history.lock().entry(number).may_lapse = true;
    }

    /// Within `sequence` first arrivals must come in the order of `place`.
    pub fn expect_order(&self, number: Number, sequence: &str, place: u64) {
        self.history.lock().entry(number).order = Some((sequence.to_owned(), place));
    }

    /// The task must not arrive before the last attempt of each of `others` has.
    pub fn expect_after(&self, number: Number, others: &[Number]) {
        self.history.lock().entry(number).after = others.to_vec();
    }

    /// Records a cancel that was acknowledged with this outcome.
    pub fn cancelled(&self, number: Number, outcome: &str) {
        self.history.lock().entry(number).cancel =
            if outcome == "cancelled" { Cancel::Final } else { Cancel::NoFurther };
    }

    pub fn cancel_unknown(&self, number: Number) {
        self.history.lock().entry(number).cancel = Cancel::Unknown;
    }

    /// Records a new due time that was acknowledged.
    pub fn moved(&self, number: Number, due_ms: i64) {
        self.history.lock().entry(number).due_us = due_ms * 1_000;
    }

    /// The task may now arrive from `due_ms` on if that is earlier: after a move whose outcome is unknown, or a
    /// requested run.
    pub fn may_move(&self, number: Number, due_ms: i64) {
        let mut history = self.history.lock();
        let entry = history.entry(number);
        entry.due_us = entry.due_us.min(due_ms * 1_000);
    }

    pub fn delivered(&self, delivery: Delivery) {
        let mut history = self.history.lock();
        if let Some(number) = delivery.number {
            history.arrived.insert(number);
        }
        history.deliveries.push(delivery);
    }

    /// Opens the window of a fault that is about to be injected.
    pub fn fault(&self, what: &str) -> Fault {
        let mut history = self.history.lock();
        history.windows.push(Window { what: what.to_owned(), from_us: now_us(), until_us: None });
        Fault(history.windows.len() - 1)
    }

    /// Closes the window of a fault that is healed.
    pub fn heal(&self, fault: Fault) {
        self.history.lock().windows[fault.0].until_us = Some(now_us());
    }

    /// Records that a node was seen to own `shard` in `epoch`.
    pub fn owner_seen(&self, shard: u32, epoch: i64, owner: &str) {
        self.history.lock().owners.entry((shard, epoch)).or_default().insert(owner.to_owned());
    }

    /// The scenario takes messages out of RabbitMQ, so attempts may be missing. Tasks may not.
    pub fn messages_may_vanish(&self) {
        self.history.lock().messages_may_vanish = true;
    }

    /// The task of a submission, once accepted.
    pub fn task(&self, number: Number) -> Option<String> {
        match &self.history.lock().entries[number as usize].answer {
            Answer::Accepted(task) => Some(task.clone()),
            Answer::Open | Answer::Refused | Answer::Unknown => None,
        }
    }

    /// All deliveries of one submission, in order.
    pub fn deliveries(&self, number: Number) -> Vec<Delivery> {
        self.history.lock().deliveries.iter().filter(|delivery| delivery.number == Some(number)).cloned().collect()
    }

    /// All deliveries.
    pub fn arrivals(&self) -> Vec<Delivery> {
        self.history.lock().deliveries.clone()
    }

    /// Waits until `count` messages of one submission have arrived, or fails with those that have.
    pub async fn wait_delivered(
        &self,
        number: Number,
        count: usize,
        within: Duration,
    ) -> anyhow::Result<Vec<Delivery>> {
        let deadline = Instant::now() + within;
        loop {
            let found = self.deliveries(number);
            if found.len() >= count {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                anyhow::bail!("task {number}: {} of {count} deliveries within {within:?}: {found:?}", found.len());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until all tasks that must arrive have, at most `within`. The judge then finds the missing ones.
    pub async fn wait_all(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while self.outstanding() > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        true
    }

    /// How many tasks must arrive and have not.
    pub fn outstanding(&self) -> usize {
        let history = self.history.lock();
        history
            .entries
            .iter()
            .zip(0..)
            .filter(|(entry, number)| entry.must_arrive() && !history.arrived.contains(number))
            .count()
    }

    /// The current counts, for a live view.
    pub fn progress(&self) -> Progress {
        let history = self.history.lock();
        let now_us = now_us();
        let accepted = history.entries.iter().filter(|entry| matches!(entry.answer, Answer::Accepted(_)));
        let may_come = history.entries.iter().filter(|entry| !matches!(entry.answer, Answer::Refused));
        Progress {
            submitted: history.entries.len(),
            accepted: accepted.count(),
            due: may_come.filter(|entry| entry.due_us <= now_us).count(),
            delivered: history.arrived.len(),
        }
    }

    pub fn judge(&self) -> Verdict {
        judge::judge(&self.history.lock(), self.grace_us)
    }

    /// The lateness of messages whose due time lies in `[from_us, until_us)`, by the consumer's clock; first arrivals
    /// of first attempts only.
    pub fn lateness(&self, from_us: i64, until_us: i64) -> Lateness {
        judge::lateness(&self.history.lock(), from_us, until_us)
    }
}
