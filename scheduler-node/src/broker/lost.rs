//! Finds confirms that RabbitMQ will never send, long before the confirm deadline.
//!
//! RabbitMQ 3.10 may neither confirm nor refuse what was on its way to a quorum queue while that was deleted, and may read nothing more of a
//! connection one of whose channels waits for such a queue. The second is found by opening a channel. For the first: a queue answers
//! in the order of arrival, so a later message that is answered shows that the confirms before it are lost. Where no later message is
//! sent, a copy of one message without a confirm is that message. A queue that is merely slow answers neither: the batch waits on, and
//! the queue gets one copy of one message at a time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::outcome::Outcome;

use super::{
    flight::Awaited,
    message::Outgoing,
    publisher::{Published, Publisher},
    routes::{Lane, Route},
};
use crate::supervise::spawn_child;

/// A confirm that has not come by then is doubted. A healthy queue confirms in milliseconds, one that elects a leader
/// within about a second.
pub(super) const DOUBTED_AFTER: Duration = Duration::from_secs(3);

/// Confirms of several channels overtake one another by some milliseconds, and by more after a freeze: a later answer proves nothing before.
const GRACE: Duration = Duration::from_secs(1);

/// How often a batch that waits is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

impl Publisher {
    /// Ready when the confirm that the batch waits for is known to be lost; with the outcome of the copy that showed it, if one was sent.
    pub(super) async fn lost(
        self: &Arc<Self>,
        route: &Route,
        batch: &[Outgoing],
        lane: &Lane,
        awaited: &Awaited,
    ) -> Option<(usize, Published)> {
        // Messages with routing keys of their own may be for different queues: one says nothing of another.
        let share_a_queue = batch.iter().all(|outgoing| outgoing.delivery.envelope.is_none());
        // A copy was tried while this one was awaited; the next one is due then.
        let mut tried: Option<(Instant, Instant)> = None;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some((index, since)) = awaited.now() else { continue };
            let again_at = tried.filter(|(of, _)| *of == since).map_or(since + DOUBTED_AFTER, |(_, again_at)| again_at);
            if Instant::now() < again_at {
                continue;
            }
            // A broker that takes no messages answers none.
            if self.link.is_blocked() {
                continue;
            }
            if self.heard.silence() >= DOUBTED_AFTER {
                // Nothing comes at all. A channel that waits for a queue may keep RabbitMQ from reading the connection.
                let channels = Arc::clone(&self.channels);
                let is_read = spawn_child(async move { channels.add().await.is_ok() }).await.unwrap_or(false);
                if !is_read {
                    return None;
                }
                self.heard.now();
            }
            let copy = if share_a_queue && lane.has_answered_since(since) {
                None
            } else {
                let Ok(_turn) = lane.copy.try_lock() else { continue };
                let copy = self.send_copy(route, &batch[index]).await;
                let Some(copy) = copy.filter(|copy| !matches!(copy.outcome, Outcome::Unknown(_))) else {
                    // It could not be sent, or its confirm is missing too.
                    tried = Some((since, Instant::now() + DOUBTED_AFTER));
                    continue;
                };
                Some((index, copy))
            };
            tokio::time::sleep(GRACE).await;
            if awaited.now() == Some((index, since)) {
                report(batch, since);
                return copy;
            }
        }
    }

    /// To its end even if the batch's own confirms come meanwhile: a message that was begun needs its channel.
    async fn send_copy(self: &Arc<Self>, route: &Route, of: &Outgoing) -> Option<Published> {
        let mut copy = of.clone();
        copy.delivery.redelivered = true;
        let (this, route) = (Arc::clone(self), route.clone());
        spawn_child(async move { this.publish_copy(&route, copy).await }).await.ok().flatten()
    }
}

fn report(batch: &[Outgoing], since: Instant) {
    let queue = batch.first().map(|outgoing| outgoing.delivery.queue.to_string());
    tracing::warn!(
        queue,
        messages = batch.len(),
        waited_ms = since.elapsed().as_millis() as u64,
        "confirms are lost: RabbitMQ answered a later message; what has no confirm is published again"
    );
}
