//! A pick with an unknown outcome: the queue rests until it has certainly ended, and then what it started is woken.
//!
//! A claim names its tasks, so they can be looked at again when its answer is lost. A pick chooses its tasks itself.
//! Without a look, what it started would hold its places in the queue's limit until the rescue that every claim
//! sets for [`LOOK_AGAIN_AFTER`].

use std::time::{Duration, Instant};

use common::{
    delay::heap::{Entry, WakeKind},
    ids::ShardId,
    task::TaskState,
    time::UnixMicros,
};

use super::ReadyStarter;
use crate::{
    clock,
    store::{Error, Statements, claim::LOOK_AGAIN_AFTER},
};

/// The pause after a pick with an unknown outcome. A pick begins within 2 s or starts nothing, and then takes 5 s at
/// most (`statement_timeout`). Until the end of the pause tasks may still be claimed, so nothing is counted before.
const UNKNOWN_FOR: Duration = Duration::from_secs(8);

/// The most by which this node's reading of the database's clock may be ahead: a claim may seem to be this much older
/// than its pick.
const CLOCK_MARGIN: Duration = Duration::from_secs(3);

/// The most tasks that are woken in one shard. Their own rescues find the others.
const WOKEN_PER_SHARD: i64 = 2_000;

/// A pick whose outcome is unknown.
#[derive(Clone, Debug)]
pub(super) struct Doubt {
    /// When the pick was sent and when it failed, on the database's clock; `None` without a reading of it.
    sent_and_failed_at: Option<(UnixMicros, UnixMicros)>,
    shards: Vec<ShardId>,
    /// The pick has certainly ended.
    pub over_at: Instant,
}

impl Doubt {
    /// Call when a pick of `shards` has failed that was sent at `sent`, at `sent_at` on the database's clock. That
    /// clock may be unknown by now: another server may have taken the database's place.
    pub fn of(sent: Instant, sent_at: Option<UnixMicros>, shards: impl IntoIterator<Item = ShardId>) -> Self {
        let now = clock::instant();
        Self {
            sent_and_failed_at: sent_at.map(|sent_at| (sent_at, sent_at.plus(now.saturating_duration_since(sent)))),
            shards: shards.into_iter().collect(),
            over_at: now + UNKNOWN_FOR,
        }
    }
}

impl<S: Statements> ReadyStarter<S> {
    /// Wakes the tasks that were claimed between the sending and the certain end of a pick and are still `dispatching`.
    /// A rescue publishes those that are not in flight here; it does nothing with the others. Call when the doubt is
    /// over.
    pub(super) async fn wake_started(&self, doubt: &Doubt) -> Result<(), Error> {
        // Without a clock at the sending their own rescues find them.
        let Some((sent_at, failed_at)) = doubt.sent_and_failed_at else { return Ok(()) };
        let now = self.claims.now();
        // A claim moves the wake time to its own time plus this.
        let from = sent_at.minus(CLOCK_MARGIN).plus(LOOK_AGAIN_AFTER);
        let until = failed_at.plus(UNKNOWN_FOR).plus(LOOK_AGAIN_AFTER);
        let keys = self.claims.database.sql.task_preload(&doubt.shards, from, until, WOKEN_PER_SHARD).await?;
        let started = keys.into_iter().filter(|key| key.state == TaskState::Dispatching);
        self.claims.database.owned_shards.offer(started.map(|key| Entry {
            wake_at: now,
            id: key.id,
            kind: WakeKind::Rescue,
        }));
        Ok(())
    }
}
