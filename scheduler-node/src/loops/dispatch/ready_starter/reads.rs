//! Reads of the queues that have tasks waiting for room. They find what an owner before left, and what became `ready`
//! by a claim whose answer was lost.
//!
//! Beside an old transaction a read passes the index entries of all tasks that were started since the transaction
//! began, and may run out of its time. So no look waits for a read. After one that ran out of its time, all queues are
//! looked at: a look has a floor of its own, which a read over all queues cannot have.

use std::time::{Duration, Instant};

use common::{delay::rest, ids::QueueName};
use tokio::task::JoinSet;

use super::ReadyStarter;
use crate::{
    clock,
    store::{Error, Statements},
    supervise::at_work,
};

/// The shortest pause between two reads.
const READ_EVERY: Duration = Duration::from_secs(5);

/// The longest pause: nine times as long as the server lets a statement run. A read seems longer where the machine
/// stood still.
const LONGEST_PAUSE: Duration = Duration::from_secs(45);

/// The time between two queues when all are looked at. There may be thousands of them, and looks that come due
/// meanwhile have their turns in between.
const QUEUES_APART: Duration = Duration::from_millis(5);

/// The result of a read, and how long it took.
type EndedRead = (Result<Vec<QueueName>, Error>, Duration);

/// The reads. At most one is under way; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Reads {
    pub(super) under_way: JoinSet<EndedRead>,
    /// When the next one may begin. `None`: the end of the one under way decides.
    pub(super) next_at: Option<Instant>,
}

impl Reads {
    pub fn new(now: Instant) -> Self {
        Self { under_way: JoinSet::new(), next_at: Some(now) }
    }

    /// Asks for a read that begins from now on. One under way may miss what an owner before left in a gained shard.
    pub fn ask(&mut self, now: Instant) {
        self.next_at = Some(now);
    }

    /// Waits for the end of the read under way; `None`: there is none.
    pub async fn ended(&mut self) -> Option<EndedRead> {
        self.under_way.join_next().await.map(|ended| ended.expect("a read does not panic"))
    }
}

impl<S: Statements> ReadyStarter<S> {
    /// Begins a read if it is time for one and none is under way.
    pub(super) fn begin_read(&self, reads: &mut Reads, now: Instant) {
        if !reads.under_way.is_empty() || reads.next_at.is_none_or(|at| now < at) {
            return;
        }
        reads.next_at = None;
        let (database, work) = (self.claims.database.sql.clone(), at_work());
        reads.under_way.spawn(async move {
            let began = clock::instant();
            let read = database.ready_queues().await;
            drop(work);
            (read, clock::instant().saturating_duration_since(began))
        });
    }

    /// Has queues looked at after a read. What it found of shards that have left meanwhile does no harm: a look reads
    /// the shards that the node owns by then.
    pub(super) fn end_read(&self, reads: &mut Reads, (read, took): EndedRead) {
        let now = clock::instant();
        let pause = rest(took).clamp(READ_EVERY, LONGEST_PAUSE);
        match read {
            Ok(queues) => {
                self.claims.database.ready_queues.add(queues, now);
                reads.next_at = reads.next_at.or(Some(now + pause));
            }
            Err(error) => {
                tracing::debug!(database = %self.claims.database.name(), error = &error as &dyn std::error::Error, "could not read which queues wait for room");
                if error.is_out_of_time() {
                    self.look_at_all(now);
                    // The looks find what a read that was asked for meanwhile would find.
                    reads.next_at = Some(now + pause);
                } else {
                    reads.next_at = reads.next_at.or(Some(now + READ_EVERY));
                }
            }
        }
    }

    /// Has all queues looked at, one after another. Those with an order, a limit, a rate or a pause come first: most
    /// tasks that wait for room are theirs.
    fn look_at_all(&self, now: Instant) {
        let book = self.books.load();
        let held = book.held();
        let others = book.iter().map(|queue| &queue.name).filter(|queue| !held.contains(*queue));
        for (queue, before) in held.iter().chain(others).zip(0_u32..) {
            self.claims.database.ready_queues.add([queue.clone()], now + QUEUES_APART * before);
        }
    }
}
