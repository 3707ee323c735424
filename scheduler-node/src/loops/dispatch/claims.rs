//! The parts that every claim of one database shares: the fences it presents, the meaning of its answer, and the
//! way to the publisher.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    delay::{
        PartSize, again,
        heap::{Entry, WakeKind},
    },
    ids::{Epoch, ShardId, TaskId},
    outbox::Dispatch,
    task::Delivery,
    time::UnixMicros,
};
use tokio::sync::mpsc;

use super::publisher;
use crate::{
    clock,
    metrics::Metrics,
    store::{Database, Effect, Error, Statements, claim::Claimed, preload::Key},
    working_set::database::{DatabaseIndex, LOOK_AGAIN, NodeDatabase},
};

/// The pause before keys are tried again whose claim certainly did nothing.
pub const TRY_AGAIN: Duration = Duration::from_millis(250);

/// A statement that had no answer for so long had too much to do, or the database was away. A failover cuts others
/// short.
const UNANSWERED_FOR: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct ClaimHandler<S = Arc<Database>> {
    pub database: NodeDatabase<S>,
    /// The index of the database among all databases.
    pub index: DatabaseIndex,
    pub publisher: mpsc::Sender<Dispatch>,
    pub metrics: Arc<Metrics>,
    /// How long after its claim a message may be published.
    pub longest_hold: Duration,
}

impl<S: Statements> ClaimHandler<S> {
    /// Notes how a statement of so many tasks ended that began then: in time, too late for its messages, or out of its
    /// time. `of`: the most tasks of any statement.
    pub fn note_end(
        &self,
        size: &mut PartSize,
        of: usize,
        tasks: usize,
        began: Instant,
        answer: Result<&Claimed, &Error>,
    ) {
        let now = clock::instant();
        let is_unanswered = || now.saturating_duration_since(began) >= UNANSWERED_FOR;
        match answer {
            Ok(claimed) => {
                let took = now.saturating_duration_since(claimed.sent_at);
                let bytes: i64 = claimed.deliveries.iter().map(|delivery| delivery.content.usage().bytes).sum();
                if !PartSize::is_too_late(took, bytes, self.longest_hold) {
                    size.passed(tasks, bytes, took, self.longest_hold, now);
                } else if !claimed.deliveries.is_empty() {
                    // An answer without payloads was late because of something else, such as a lock.
                    size.came_too_late(claimed.deliveries.len(), bytes, now);
                }
            }
            Err(error) if error.is_out_of_time() || (error.is_unanswered() && is_unanswered()) => {
                size.ran_out_of_time(tasks, of, began, now);
            }
            Err(_) => {}
        }
    }

    /// The epochs to present for the shards of `ids`.
    pub fn fences(&self, ids: &[TaskId]) -> BTreeMap<ShardId, Epoch> {
        self.database.owned_shards.epochs(ids.iter().map(|id| id.shard()))
    }

    /// Handles the answer of a claim: refused fences, tasks that were passed over, queues that have turned. Hands the
    /// claimed tasks to the publisher. `ahead`: how far ahead of their due times the tasks were claimed.
    pub async fn received(
        &self,
        how: &str,
        asked: &[TaskId],
        fences: &BTreeMap<ShardId, Epoch>,
        ahead: Duration,
        claimed: Claimed,
    ) {
        if claimed.refused {
            self.refused(fences).await;
        }
        self.metrics.claimed.with_label_values(&[how]).inc_by(claimed.deliveries.len() as u64);
        let came: BTreeSet<TaskId> = claimed.deliveries.iter().map(|delivery| delivery.id).collect();
        self.database.owned_shards.begin(came.iter().copied());
        self.database.owned_shards.end_unclaimed(asked.iter().copied().filter(|id| !came.contains(id)));
        self.offer_again(&claimed.passed, ahead);
        if claimed.turned {
            self.database.outdated.notify_one();
        }
        if !claimed.held_back.is_empty() {
            self.metrics.held_back.inc_by(claimed.held_back.len() as u64);
            let ready = claimed.held_back.iter().map(|held| (&held.queue, held.due_at));
            self.database.ready_queues.add_ready(ready, clock::instant());
        }
        self.hand_over(claimed).await;
    }

    /// Handles a claim or a rescue that has failed. Tasks with an unknown outcome are left to a rescue.
    pub fn failed(&self, kind: WakeKind, asked: &[TaskId], ahead: Duration, error: &Error) {
        // A pick may have got some of them meanwhile.
        let asked = &self.database.owned_shards.unclaimed(asked)[..];
        match error.effect {
            Effect::None => self.put_back(kind, asked, ahead, error),
            Effect::Unknown => {
                self.unknown(asked, "claim outcome unknown; a rescue will publish the task again", error);
            }
        }
    }

    /// Puts keys that the claim passed over back into the heap. What it found claimed, and this node does not have in
    /// flight, was claimed by a statement that the node has given up on: a rescue publishes it soon.
    fn offer_again(&self, passed: &[Key], ahead: Duration) {
        let now = self.now();
        self.metrics.passed_over.inc_by(passed.len() as u64);
        self.database
            .owned_shards
            .offer(passed.iter().filter_map(|key| again(key.id, key.state, key.wake_at, now, ahead)));
    }

    /// The time on the database's clock. Without a reading, as after a failover, it is so early that an entry leaves
    /// the heap with the first reading.
    pub fn now(&self) -> UnixMicros {
        self.database.sql.clock().at(clock::instant()).unwrap_or(UnixMicros::FIRST)
    }

    /// Puts the keys of a claim that certainly did nothing back into the heap. They leave it a little later, even if as
    /// far ahead as before.
    fn put_back(&self, kind: WakeKind, asked: &[TaskId], ahead: Duration, error: &Error) {
        tracing::debug!(database = %self.database.name(), tasks = asked.len(), ?kind, error = error as &dyn std::error::Error, "claim failed; retrying");
        match kind {
            WakeKind::Rescue => self.database.look_again(asked.iter().copied(), TRY_AGAIN),
            _ => self.later(asked, kind, ahead + TRY_AGAIN),
        }
    }

    /// Takes tasks out of flight, and puts them into the heap to leave it after `pause`.
    pub fn later(&self, ids: &[TaskId], kind: WakeKind, pause: Duration) {
        let wake_at = self.now().plus(pause);
        self.database.owned_shards.end(ids.iter().copied());
        self.database.owned_shards.offer(ids.iter().map(|id| Entry { wake_at, id: *id, kind }));
    }

    /// Leaves tasks to be looked at again after a failure. The log has one warning for all failures of an outage.
    pub fn unknown(&self, ids: &[TaskId], what: &'static str, error: &Error) {
        let (database, error) = (self.database.name(), error as &dyn std::error::Error);
        if self.database.owned_shards.left_open.begin() {
            tracing::warn!(%database, tasks = ids.len(), error, "{what}");
        } else {
            tracing::debug!(%database, tasks = ids.len(), error, "{what}");
        }
        self.database.look_again(ids.iter().copied(), LOOK_AGAIN);
    }

    /// Handles a refused fence: another owner has taken at least one of these shards. Finds out which, and forgets
    /// it.
    async fn refused(&self, fences: &BTreeMap<ShardId, Epoch>) {
        let Ok(held) = self.database.sql.shard_held(fences).await else { return };
        for (shard, epoch) in fences.iter().filter(|(shard, _)| !held.contains(shard)) {
            self.metrics.fence_refusals.inc();
            if self.database.owned_shards.forget_epoch(*shard, *epoch) {
                tracing::info!(database = %self.database.name(), %shard, %epoch, "the fence refused a claim: another node owns the shard now");
            }
        }
    }

    pub async fn hand_over(&self, claimed: Claimed) {
        fail::fail_point!("after_claim", |_| std::process::abort());
        let arrived_by = clock::instant();
        let dispatches = claimed.deliveries.into_iter().map(|delivery| {
            let publish_at = self.publish_at(&delivery, claimed.now, arrived_by);
            Dispatch { database: self.index, delivery, publish_at, claimed_at: claimed.sent_at }
        });
        publisher::hand_over(&self.publisher, dispatches).await;
    }

    /// The instant of the due time on the database's clock; a task is never published before it. `now`: the database's
    /// time in the answer that came by `arrived_by`. It counts alone when the server was replaced meanwhile.
    fn publish_at(&self, delivery: &Delivery, now: UnixMicros, arrived_by: Instant) -> Instant {
        seeded!(EarlyPublish, return arrived_by);
        let alone = || arrived_by + delivery.due_at.since(now);
        self.database.sql.clock().instant_of(delivery.due_at).unwrap_or_else(alone)
    }
}
