//! The reading of one queue: by one consumer, and by a second one while the node holds more messages than usual.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinHandle, time::Instant};

use super::{
    connection::Link,
    error::Error,
    subscription::{Arrived, Subscription},
};
use crate::supervise::spawn_child;

/// The prefetch of the second consumer: so many messages may wait for a database that no node reaches. RabbitMQ
/// delivers those that were given back first, so with fewer they would soon stand before all others. The hold bounds
/// their bytes.
pub(super) const EXTRA_PREFETCH: u16 = 20_000;

/// The pause before a queue that did not answer is asked for a second consumer again. The first one is not read while
/// the node waits for that answer.
const ASK_AGAIN: Duration = Duration::from_secs(10);

pub(super) struct Reading {
    link: Arc<Link>,
    queue: String,
    usual: Subscription,
    /// Present while the node holds more.
    extra: Option<Subscription>,
    /// The end of the last second consumer. The next one waits for it, so that no third one's messages are held.
    ending: Option<JoinHandle<()>>,
    /// When the queue is asked again for a second consumer. Present while the last answer is missing.
    ask_at: Option<Instant>,
    holds_more: watch::Receiver<bool>,
}

impl Reading {
    pub(super) async fn open(
        link: &Arc<Link>,
        queue: String,
        prefetch: u16,
        holds_more: &watch::Sender<bool>,
    ) -> Result<Self, Error> {
        let usual = Subscription::open(link, queue.clone(), prefetch).await?;
        let holds_more = holds_more.subscribe();
        let link = Arc::clone(link);
        let mut this = Self { link, queue, usual, extra: None, ending: None, ask_at: None, holds_more };
        this.follow().await?;
        Ok(this)
    }

    /// Opens or ends the second consumer. Must not be dropped on its way: RabbitMQ would deliver to a consumer that
    /// this node does not read.
    pub(super) async fn follow(&mut self) -> Result<(), Error> {
        let holds_more = *self.holds_more.borrow_and_update();
        let was_silent = self.ask_at.take().is_some();
        if holds_more && self.extra.is_none() && self.ending.is_none() {
            self.extra = match Subscription::open(&self.link, self.queue.clone(), EXTRA_PREFETCH).await {
                Ok(extra) => Some(extra),
                // A queue without a leader keeps silent. The connection serves others.
                Err(silence @ Error::Silent { .. }) if self.link.is_connected() => {
                    if !was_silent {
                        let (queue, why) = (&self.queue, silence.explained());
                        tracing::warn!(queue, why, "a database is away, but more of a queue cannot be read; retrying");
                    }
                    self.ask_at = Some(Instant::now() + ASK_AGAIN);
                    None
                }
                Err(error) => return Err(error),
            };
        }
        if !holds_more && let Some(extra) = self.extra.take() {
            // It ends when the last of its messages is answered. While the broker does not answer to its end, it may
            // have sent messages that this node has not handed over.
            let link = Arc::clone(&self.link);
            self.ending = Some(spawn_child(async move {
                tokio::select! {
                    () = extra.end_once_answered() => {}
                    _ = link.over() => {}
                }
            }));
        }
        Ok(())
    }

    /// The next message; an error when the reading is over. `None` asks for [`Self::follow`]. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Option<Arrived>, Error> {
        tokio::select! {
            // A change does not wait behind a queue full of messages.
            biased;
            Ok(()) = self.holds_more.changed() => Ok(None),
            () = end_of(&mut self.ending) => Ok(None),
            () = reached(self.ask_at) => Ok(None),
            arrived = self.usual.next() => arrived.map(Some),
            arrived = next_of(self.extra.as_mut()) => arrived.map(Some),
        }
    }

    /// Ends in order, as a subscription does.
    pub(super) async fn end(self) -> Result<(), Error> {
        let Self { usual, extra, .. } = self;
        let extra = async { if let Some(extra) = extra { extra.end().await } else { Ok(()) } };
        tokio::try_join!(usual.end(), extra).map(drop)
    }
}

/// Waits for an end, and forgets it; without one it never comes. Cancel safe.
async fn end_of(ending: &mut Option<JoinHandle<()>>) {
    match ending {
        Some(end) => drop(end.await),
        None => std::future::pending().await,
    }
    *ending = None;
}

/// Waits for a moment; without one it never comes. Cancel safe.
async fn reached(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// The next message of a subscription; without one it never comes.
async fn next_of(subscription: Option<&mut Subscription>) -> Result<Arrived, Error> {
    match subscription {
        Some(subscription) => subscription.next().await,
        None => std::future::pending().await,
    }
}
