//! The oracle that ends every scenario.
//!
//! The ledger records each request, each answer and each arrival as it happens, and knows nothing of how the nodes
//! work. [`Ledger::judge`] then always asks the same questions:
//!
//! - Is a task lost, early, or late without a fault?
//! - Did a message arrive that was never submitted, or that was cancelled?
//! - Are copies marked, and near a fault?
//! - Do attempts follow one another, and has each further one a cause?
//! - Did two nodes ever own one shard in one epoch?
//! - Were more messages of a lane in work than its limit allows?
//! - Has a fire time of a schedule one task?
//! - Do the rows that are left agree with all this?
//!
//! With a journal, the record is also a file, which [`Ledger::replay`] reads and judges again.

mod history;
mod journal;
mod judge;
mod verdict;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_answers;
#[cfg(test)]
mod tests_of_rows;
#[cfg(test)]
mod tests_of_runs;

use std::{collections::BTreeSet, fs::File, io::Write, path::Path, sync::OnceLock, time::Duration};

use anyhow::Context;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::clock::now_us;
use history::{Answer, Answered, History, Work};
pub use history::{Delivery, Fault, Reply, Retries, Row, Window, attempts_of, fixed_wait_of};
use journal::Event;
pub use verdict::{Lateness, Verdict};

/// The number of one submission, carried in its payload as `n`.
pub type Number = u64;

/// How long after a fault is healed its copies may still arrive: a lease, a confirm that never comes, a retry.
pub const GRACE: Duration = Duration::from_secs(20);

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
    journal: OnceLock<File>,
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
            journal: OnceLock::new(),
            grace_us: i64::try_from(grace.as_micros()).expect("a grace is not that long"),
        }
    }

    /// Writes each event from now on to a new file as well, before it counts.
    pub fn keep_journal(&self, path: &Path) -> anyhow::Result<()> {
        let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
        self.journal.set(file).map_err(|_| anyhow::anyhow!("the ledger has a journal"))
    }

    /// The ledger of a journal.
    pub fn replay(path: &Path) -> anyhow::Result<Self> {
        let ledger = Self::default();
        *ledger.history.lock() = journal::read(path)?;
        Ok(ledger)
    }

    fn record(&self, event: Event) {
        self.write(&mut self.history.lock(), event);
    }

    fn write(&self, history: &mut History, event: Event) {
        if let Some(mut journal) = self.journal.get() {
            journal.write_all(event.line().as_bytes()).expect("the journal takes a line");
        }
        history.apply(event);
    }

    /// Records how the run was made.
    pub fn run(&self, facts: Value) {
        self.record(Event::Run { facts });
    }

    /// How the run was made; null unless recorded.
    pub fn facts(&self) -> Value {
        self.history.lock().facts.clone()
    }

    /// Records a submission; to be called before the request is sent. The number goes into its payload.
    pub fn submitting(&self, queue: &str, due_ms: i64) -> Number {
        let mut history = self.history.lock();
        let number = history.entries.len() as Number;
        let (at_us, due_us) = (now_us(), due_ms * 1_000);
        self.write(&mut history, Event::Submitting { number, queue: queue.to_owned(), at_us, due_us });
        number
    }

    /// Records a positive answer. When it repeats, each time the same task must be named.
    pub fn accepted(&self, number: Number, task: &str) {
        self.record(Event::Accepted { number, task: task.to_owned(), at_us: now_us() });
    }

    /// Records a positive answer that does not name the task: RabbitMQ's confirm.
    pub fn taken(&self, number: Number) {
        self.record(Event::Taken { number, at_us: now_us() });
    }

    pub fn refused(&self, number: Number) {
        self.record(Event::Refused { number });
    }

    /// Records that the client took its submission back itself: like [`Self::refused`], but no fault of the cluster.
    pub fn withdrawn(&self, number: Number) {
        self.record(Event::Withdrawn { number });
    }

    /// Records that there was no answer: the task may exist or not.
    pub fn unknown(&self, number: Number) {
        self.record(Event::Unknown { number });
    }

    /// No attempt beyond this may arrive.
    pub fn expect_attempts(&self, number: Number, most: u32) {
        self.record(Event::Attempts { number, most });
    }

    /// The task need not arrive.
    pub fn may_lapse(&self, number: Number) {
        self.record(Event::MayLapse { number });
    }

    /// A fault near the submission may make it a second task.
    pub fn may_repeat(&self, number: Number) {
        self.record(Event::MayRepeat { number });
    }

    /// Within `sequence` tasks must come in the order of `place`, each after all attempts of the one before it.
    pub fn expect_order(&self, number: Number, sequence: &str, place: u64) {
        self.record(Event::Order { number, sequence: sequence.to_owned(), place });
    }

    /// The task must not arrive before the last attempt of each of `others` has.
    pub fn expect_after(&self, number: Number, others: &[Number]) {
        self.record(Event::After { number, others: others.to_vec() });
    }

    /// Records a cancel that was acknowledged with this outcome.
    pub fn cancelled(&self, number: Number, outcome: &str) {
        self.record(Event::Cancelled { number, outcome: outcome.to_owned(), at_us: Some(now_us()) });
    }

    pub fn cancel_unknown(&self, number: Number) {
        self.record(Event::CancelUnknown { number });
    }

    /// Records a new due time that was acknowledged.
    pub fn moved(&self, number: Number, due_ms: i64) {
        self.record(Event::Moved { number, due_us: due_ms * 1_000 });
    }

    /// The task may now arrive from `due_ms` on if that is earlier: after a move whose outcome is unknown, or a
    /// requested run.
    pub fn may_move(&self, number: Number, due_ms: i64) {
        self.record(Event::MayMove { number, due_us: due_ms * 1_000 });
    }

    pub fn delivered(&self, delivery: Delivery) {
        self.record(Event::Delivered(delivery));
    }

    /// A consumer is about to answer a message.
    pub fn answers(&self, message_id: &str, reply: Reply) {
        self.record(Event::Answered(Answered { message_id: message_id.to_owned(), reply, at_us: now_us() }));
    }

    /// A further attempt of the queue's tasks needs one of these causes. All answers must come from consumers that
    /// record them.
    pub fn retries(&self, queue: &str, retries: Retries) {
        self.record(Event::Retries { queue: queue.to_owned(), retries });
    }

    /// A task of the queue has so many attempts: it dies after the last of them, or when its consumer discards it.
    pub fn max_attempts(&self, queue: &str, most: u32) {
        self.record(Event::QueueAttempts { queue: queue.to_owned(), most });
    }

    /// A further attempt of the queue's tasks is due so long after the failure of the one before, and no sooner. No
    /// client may run or change these tasks, and no report may ask for another time.
    pub fn waits(&self, queue: &str, wait_ms: i64) {
        self.record(Event::QueueWait { queue: queue.to_owned(), wait_ms });
    }

    /// Opens the window of a fault that is about to be injected.
    pub fn fault(&self, what: &str) -> Fault {
        let mut history = self.history.lock();
        self.write(&mut history, Event::Fault { what: what.to_owned(), at_us: now_us() });
        Fault(history.windows.len() - 1)
    }

    /// Nothing is broken from now until the next fault: most submissions must be accepted.
    pub fn calm(&self) {
        self.record(Event::Calm { at_us: now_us() });
    }

    /// Closes the window of a fault that is healed.
    pub fn heal(&self, fault: Fault) {
        self.record(Event::Healed { fault: fault.0, at_us: now_us() });
    }

    /// Records that a fault had no effect.
    pub fn void(&self, fault: Fault, why: &str) {
        self.record(Event::Void { fault: fault.0, why: why.to_owned() });
    }

    /// The faults so far, in the order in which they began.
    pub fn windows(&self) -> Vec<Window> {
        self.history.lock().windows.clone()
    }

    /// The clock of the database that has these shards is about to be set ahead by so much.
    pub fn clock_ahead(&self, shards: BTreeSet<u32>, by: Duration) {
        let ahead_us = i64::try_from(by.as_micros()).expect("a clock is not set that far");
        self.record(Event::ClockAhead { shards, ahead_us, at_us: now_us() });
    }

    /// All clocks have been set back.
    pub fn clock_back(&self) {
        self.record(Event::ClockBack { at_us: now_us() });
    }

    /// Records that a node was seen to own `shard` in `epoch`.
    pub fn owner_seen(&self, shard: u32, epoch: i64, owner: &str) {
        let mut history = self.history.lock();
        let is_known = history.owners.get(&(shard, epoch)).is_some_and(|owners| owners.contains(owner));
        if !is_known {
            self.write(&mut history, Event::Owner { shard, epoch, owner: owner.to_owned() });
        }
    }

    /// Tasks of this queue have nothing to wait for once they are due: while nothing is broken, each comes soon.
    pub fn prompt(&self, queue: &str) {
        self.record(Event::Prompt { queue: queue.to_owned() });
    }

    /// The scenario takes messages of this queue out of RabbitMQ, so attempts may be missing. Tasks may not.
    pub fn loses_messages(&self, queue: &str) {
        self.record(Event::QueueLosesMessages { queue: queue.to_owned() });
    }

    /// At most so many messages of `lane` may be in work at a time.
    pub fn limit(&self, lane: &str, most: usize) {
        self.record(Event::Limit { lane: lane.to_owned(), most });
    }

    /// A consumer begins the work of a message.
    pub fn begins(&self, lane: &str, message_id: &str) {
        self.works(lane, message_id, true);
    }

    /// A consumer is about to report the end of the work.
    pub fn ends(&self, lane: &str, message_id: &str) {
        self.works(lane, message_id, false);
    }

    fn works(&self, lane: &str, message_id: &str, begins: bool) {
        let (lane, message_id) = (lane.to_owned(), message_id.to_owned());
        self.record(Event::Works(Work { lane, message_id, begins, at_us: now_us() }));
    }

    /// The tasks of `queue` without a number are those of one schedule with this interval, which is in force. Each fire
    /// time from now on must have one.
    pub fn fires(&self, queue: &str, every: Duration) {
        let every_us = i64::try_from(every.as_micros()).expect("an interval is not that long");
        self.record(Event::Fires { queue: queue.to_owned(), every_us, from_us: Some(now_us()) });
    }

    /// The schedule of `queue` is about to be paused.
    pub fn fires_until(&self, queue: &str) {
        self.record(Event::FiresUntil { queue: queue.to_owned(), at_us: now_us() });
    }

    /// The latest due time of the messages that have arrived on `queue`, in milliseconds.
    pub fn last_due_ms(&self, queue: &str) -> Option<i64> {
        let history = self.history.lock();
        history.deliveries.iter().filter(|one| one.queue == queue).filter_map(|one| one.due_ms).max()
    }

    /// Records the rows of all databases, after everything has ended.
    pub fn tables(&self, rows: Vec<Row>) {
        rows.into_iter().for_each(|row| self.record(Event::Row(row)));
        self.record(Event::Tables);
    }

    /// Records that a node does not know an accepted task.
    pub fn missing(&self, number: Number) {
        self.record(Event::Missing { number, at_us: now_us() });
    }

    /// Records a violation that the run itself saw.
    pub fn wrong(&self, what: &str) {
        self.record(Event::Wrong { what: what.to_owned() });
    }

    /// The task of a submission, once accepted.
    pub fn task(&self, number: Number) -> Option<String> {
        match &self.history.lock().entries[number as usize].answer {
            Answer::Accepted(task) => Some(task.clone()),
            Answer::Open | Answer::Taken | Answer::Refused | Answer::Unknown => None,
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

    /// How many submissions for `queue` there are from the number `first` on, and how many of them were accepted.
    pub fn accepted_since(&self, queue: &str, first: Number) -> (usize, usize) {
        let history = self.history.lock();
        let sent = history.entries.iter().skip(first as usize).filter(|entry| entry.queue == queue);
        sent.fold((0, 0), |(sent, accepted), entry| (sent + 1, accepted + usize::from(entry.is_accepted())))
    }

    /// The current counts, for a live view.
    pub fn progress(&self) -> Progress {
        let history = self.history.lock();
        let now_us = now_us();
        let accepted = history.entries.iter().filter(|entry| entry.is_accepted());
        let may_come = history.entries.iter().filter(|entry| !matches!(entry.answer, Answer::Refused));
        Progress {
            submitted: history.entries.len(),
            accepted: accepted.count(),
            due: may_come.filter(|entry| entry.due_us <= now_us).count(),
            delivered: history.arrived.len(),
        }
    }

    /// Due time and first arrival, in microseconds, of each task of these queues that has arrived. A task cannot be due
    /// before its submission.
    pub fn first_arrivals(&self, queues: &[&str]) -> Vec<(i64, i64)> {
        judge::first_arrivals(&self.history.lock())
            .filter(|(entry, _)| queues.contains(&entry.queue.as_str()))
            .map(|(entry, at_us)| (entry.due_us.max(entry.invoked_us), at_us))
            .collect()
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
