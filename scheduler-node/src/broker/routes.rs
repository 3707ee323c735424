//! The routes of messages, and the state of each that this connection knows.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};

use super::{
    connection::Link,
    error::Error,
    flight::Flight,
    route::{QueueDeclaration, Route},
    topology::{Strangers, declare_invalid, declare_task_queue},
};

/// The most declarations at a time: enough to bring a thousand queues back in seconds, few enough for a broker
/// that has just started.
const DECLARATIONS: usize = 8;

/// The time for which a queue found missing stays missing. RabbitMQ notifies the consumers of a deleted quorum
/// queue only if the queue is still gone a moment later. After a re-creation within 20 ms no consumer was
/// notified (3.10), and each waited for ever.
const REST: Duration = Duration::from_secs(1);

/// The number of routes from which on those without messages are forgotten: queues are made and deleted while a
/// connection lives.
const ROUTES_KEPT: usize = 4_096;

/// A route without messages for so long may be forgotten: its queue is declared again with the next one. Longer than
/// anything that is known of a route counts.
const UNUSED_AFTER: Duration = Duration::from_secs(600);

/// How long the messages of a route go alone after the broker refused one of them: longer than a closed lane waits.
const ALONE_FOR: Duration = Duration::from_secs(60);

/// The routes on which the broker lately refused a message, and when. It outlives a connection: such a refusal, met by
/// a large batch, can cost one.
#[derive(Default)]
pub(super) struct Refusals(Mutex<HashMap<(String, String), Instant>>);

impl Refusals {
    pub(super) fn note(&self, route: &Route) {
        let mut refusals = self.0.lock();
        refusals.retain(|_, at| at.elapsed() < ALONE_FOR);
        refusals.insert(key(route), Instant::now());
    }

    pub(super) fn has_recent(&self, route: &Route) -> bool {
        self.0.lock().get(&key(route)).is_some_and(|at| at.elapsed() < ALONE_FOR)
    }
}

fn key(route: &Route) -> (String, String) {
    (route.exchange.clone(), route.routing_key.clone())
}

/// The states of the routes over one connection. A new connection starts without any.
pub(super) struct Routes {
    link: Arc<Link>,
    lanes: Mutex<KnownLanes>,
    declarations: Semaphore,
    strangers: Arc<Strangers>,
}

/// One lane for each route that was published to over the connection, but for those that were not used for long.
#[derive(Default)]
struct KnownLanes {
    /// Each with the moment at which it was last asked for.
    lanes: HashMap<(String, String), (Arc<Lane>, Instant)>,
    /// The number of lanes with which unused ones are looked for, if it is more than [`ROUTES_KEPT`].
    look_at: usize,
}

impl KnownLanes {
    fn lane(&mut self, route: &Route, now: Instant) -> Arc<Lane> {
        if self.lanes.len() >= self.look_at.max(ROUTES_KEPT) {
            self.lanes.retain(|_, (lane, used_at)| {
                Arc::strong_count(lane) > 1 || now.saturating_duration_since(*used_at) < UNUSED_AFTER
            });
            // Where all are in use, not each new one looks at all of them.
            self.look_at = 2 * self.lanes.len();
        }
        let (lane, used_at) = self.lanes.entry(key(route)).or_insert_with(|| (Arc::default(), now));
        *used_at = now;
        Arc::clone(lane)
    }
}

/// The known state of one route.
#[derive(Default)]
pub(super) struct Lane {
    declared: Mutex<Option<QueueDeclaration>>,
    /// The last time at which no queue was bound for the route.
    missing_at: Mutex<Option<Instant>>,
    /// Held during a declaration: one batch declares, the others of the lane wait for it, other lanes do not.
    turn: AsyncMutex<()>,
    /// Whether the broker has confirmed a message on the route since the route last failed.
    is_proven: AtomicBool,
    /// The start of the latest batch for which all confirms came.
    answered: Mutex<Option<Instant>>,
    /// Held while a copy of an unconfirmed message is on its way: one at a time.
    pub(super) copy: AsyncMutex<()>,
}

impl Routes {
    pub(super) fn new(link: Arc<Link>, strangers: Arc<Strangers>) -> Self {
        Self { link, lanes: Mutex::default(), declarations: Semaphore::new(DECLARATIONS), strangers }
    }

    pub(super) fn lane(&self, route: &Route) -> Arc<Lane> {
        self.lanes.lock().lane(route, Instant::now())
    }

    /// Declares the lane's queue unless this connection has already done so.
    pub(super) async fn make_ready(&self, lane: &Lane, route: &Route) -> Result<(), Error> {
        let Some(declaration) = &route.declare else {
            return Ok(());
        };
        if lane.has_declared(declaration) {
            return Ok(());
        }
        let _turn = lane.turn.lock().await;
        if lane.has_declared(declaration) {
            return Ok(());
        }
        lane.rest().await;
        let _place = self.declarations.acquire().await.expect("the semaphore is never closed");
        declare_task_queue(&self.link, declaration, &self.strangers).await?;
        *lane.declared.lock() = Some(declaration.clone());
        Ok(())
    }

    /// Whether this connection has declared the queue of the route, or need not.
    pub(super) fn has_declared(&self, route: &Route) -> bool {
        route.declare.as_ref().is_none_or(|declaration| self.lane(route).has_declared(declaration))
    }

    /// Declares the queue for messages that cannot be tasks.
    pub(super) async fn declare_invalid(&self) -> Result<(), Error> {
        declare_invalid(&self.link, &self.strangers).await
    }
}

impl Lane {
    fn has_declared(&self, declaration: &QueueDeclaration) -> bool {
        self.declared.lock().as_ref() == Some(declaration)
    }

    async fn rest(&self) {
        let missing_at = *self.missing_at.lock();
        if let Some(missing_at) = missing_at {
            tokio::time::sleep_until((missing_at + REST).into()).await;
        }
    }

    pub(super) fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Relaxed)
    }

    /// Whether RabbitMQ answered a whole batch that began after `instant`. The queue answers in the order of arrival.
    pub(super) fn has_answered_since(&self, instant: Instant) -> bool {
        self.answered.lock().is_some_and(|begun| begun > instant)
    }

    /// Notes that RabbitMQ answered a whole batch, which began at `begun`.
    pub(super) fn answered(&self, begun: Instant) {
        let mut answered = self.answered.lock();
        *answered = (*answered).max(Some(begun));
    }

    /// Updates the route's state from the outcome of a batch.
    pub(super) fn learn(&self, flight: &Flight) {
        if flight.is_in_trouble() {
            self.is_proven.store(false, Ordering::Relaxed);
        } else if flight.has_confirms() {
            self.is_proven.store(true, Ordering::Relaxed);
        }
        if flight.has_returns() {
            *self.missing_at.lock() = Some(Instant::now());
        }
        if flight.is_in_trouble() || flight.has_returns() {
            // The queue or its binding may be gone: the next batch declares both again.
            *self.declared.lock() = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_routes_that_are_not_used_are_forgotten_and_others_are_not() {
        let (mut known, start) = (KnownLanes::default(), Instant::now());
        let route = |key: String| Route { exchange: "duetime".to_owned(), routing_key: key, declare: None };
        let used = known.lane(&route("used".to_owned()), start);
        for number in 2..ROUTES_KEPT {
            drop(known.lane(&route(number.to_string()), start));
        }
        let later = start + UNUSED_AFTER;
        let recent = known.lane(&route("1".to_owned()), later - Duration::from_secs(1));
        recent.is_proven.store(true, Ordering::Relaxed);
        drop(recent);
        drop(known.lane(&route("new".to_owned()), later));
        assert_eq!(known.lanes.len(), 3);
        assert!(Arc::ptr_eq(&used, &known.lane(&route("used".to_owned()), later)), "a batch has it");
        assert!(known.lane(&route("1".to_owned()), later).is_proven());
    }
}
