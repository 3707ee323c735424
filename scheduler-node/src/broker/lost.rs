//! Finds confirms that RabbitMQ will never send, long before the confirm deadline.
//!
//! A quorum queue of RabbitMQ 3.10 that is deleted while messages are on their way to it can cause two faults:
//! 1. RabbitMQ may neither confirm nor refuse these messages. A queue answers in the order of arrival, so an
//!    answer to a later message shows that the missing earlier confirms are lost. Where no later message
//!    follows, the publisher sends a copy of one unconfirmed message for this purpose.
//! 2. RabbitMQ may stop reading a connection while one of its channels waits for such a queue. The publisher
//!    detects this by opening a channel.
//!
//! A queue that is merely slow answers neither the message nor its copy: the batch waits on, and the queue gets
//! one copy of one message at a time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::outcome::Outcome;

use super::{
    flight::Awaited, message::Outgoing, published::Published, publisher::Publisher, route::Route, routes::Lane,
};
use crate::supervise::spawn_child;

/// The age at which a missing confirm is in doubt. A healthy queue confirms in milliseconds, one that elects a
/// leader within about a second.
pub(super) const DOUBTED_AFTER: Duration = Duration::from_secs(3);

/// The wait after a later answer before it proves a loss. Confirms of several channels overtake one another by
/// some milliseconds, and by more after a freeze.
const GRACE: Duration = Duration::from_secs(1);

/// The interval at which a waiting batch is examined.
const LOOK_EVERY: Duration = Duration::from_millis(250);

impl Publisher {
    /// Returns when the confirm for which the batch waits is known to be lost. If a copy showed that, returns
    /// the copy's outcome.
    pub(super) async fn lost(
        self: &Arc<Self>,
        route: &Route,
        batch: &[Outgoing],
        lane: &Lane,
        awaited: &Awaited,
    ) -> Option<(usize, Published)> {
        // Messages with routing keys of their own may be for different queues, and then one proves nothing
        // about another.
        let share_a_queue = batch.iter().all(|outgoing| outgoing.delivery.envelope.is_none());
        // The awaited message of which a copy was tried, and the time at which the next copy is due.
        let mut tried: Option<(Instant, Instant)> = None;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some((index, since)) = awaited.now() else { continue };
            let again_at = tried.filter(|(of, _)| *of == since).map_or(since + DOUBTED_AFTER, |(_, again_at)| again_at);
            if Instant::now() < again_at {
                continue;
            }
            // A blocked broker takes no messages, so it answers none.
            if self.link.is_blocked() {
                continue;
            }
            if self.heard.silence() >= DOUBTED_AFTER {
                // No confirm arrives at all. A channel that waits for a queue may keep RabbitMQ from reading
                // the connection.
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
                if share_a_queue && lane.has_answered_since(since) {
                    // Another batch gave the turn back: its copy has been answered meanwhile.
                    continue;
                }
                let copy = self.send_copy(route, &batch[index]).await;
                let Some(copy) = copy.filter(|copy| !matches!(copy.outcome, Outcome::Unknown(_))) else {
                    // The copy could not be sent, or its confirm is missing too.
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

    /// Sends a copy and runs to its end even if the batch's own confirms come meanwhile: a message half sent
    /// needs its channel.
    async fn send_copy(self: &Arc<Self>, route: &Route, of: &Outgoing) -> Option<Published> {
        let mut copy = of.clone();
        copy.delivery.redelivered = true;
        // A marked copy may follow those of another owner.
        copy.send_before = None;
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
        "confirms are missing: RabbitMQ confirmed a later message; messages without a confirm are published again"
    );
}
