//! Messages that the broker returned because no queue is bound for them, those that it refuses whatever the queue, and
//! those for an exchange that their delay exchange has left. Each is handled by itself: it closes no lane for others.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use common::{
    ids::{Attempt, QueueName, TaskId},
    outcome::Outcome,
    queue::{Queue, Unroutable},
    task::verdict::{FailureReason, forwarded_unroutable},
    time::UnixMicros,
};

use super::{LONGEST_HOLD, Place, Publisher, route};
use crate::{
    broker::{NotTaken, Publish, Published},
    clock,
    loops::outcome::reporter::AttemptEvent,
    store::Statements,
    working_set::{
        database::{DatabaseIndex, NodeDatabase},
        lanes::Unreached,
    },
};

/// The bounds of the wait of a returned message for a binding. It is published again after as long as it is late by
/// then. A forgotten binding is found at once; one that never comes costs two publishes a minute.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The ends of attempts whose messages reach no consumer, by the databases of their tasks.
pub(super) type Ending = BTreeMap<DatabaseIndex, Vec<(TaskId, AttemptEvent)>>;

/// A returned or refused message, and the fate of its task.
#[derive(Debug)]
pub(super) struct Returned {
    id: TaskId,
    attempt: Attempt,
    database: DatabaseIndex,
    due_at: UnixMicros,
    routing_key: String,
    rule: Unroutable,
    /// The broker's words, if it refuses the message.
    refusal: Option<String>,
}

impl Returned {
    fn why(&self, exchange: &str) -> String {
        match &self.refusal {
            Some(refusal) => format!("RabbitMQ refuses the message: {refusal}"),
            None => format!("no queue is bound to `{exchange}` for the routing key `{}`", self.routing_key),
        }
    }

    const fn unreached(&self) -> Unreached {
        match self.rule {
            _ if self.refusal.is_some() => Unreached::Refused,
            Unroutable::Wait => Unreached::Waiting,
            Unroutable::Drop => Unreached::Dropped,
            Unroutable::SetAside => Unreached::SetAside,
        }
    }
}

/// Whether all of these messages wait for a binding of the queue's own exchange, and none is sent for the first time.
/// An exchange may route by more than the routing key, so they say nothing about the lane: others may find a queue. If
/// there is none at all, messages that are sent for the first time close the lane.
pub(super) fn are_repeats(queue: &Queue, places: &HashMap<TaskId, Place>, published: &[Published]) -> bool {
    let is_repeat = |one: &Published| {
        let place = &places[&one.id];
        let is_returned = matches!(one.outcome, Outcome::Refused(NotTaken::Unroutable));
        is_returned && place.redelivered && place.own_key.is_none()
    };
    let may_wait = queue.policy.exchange.is_some() && queue.policy.unroutable() == Unroutable::Wait;
    may_wait && published.iter().all(is_repeat)
}

impl<S: Statements, B: Publish> Publisher<S, B> {
    /// Takes the returned and the refused messages out of a batch's outcomes, so that they do not count against its
    /// lane. `are_repeats`: see [`are_repeats`].
    pub(super) fn take_returned(
        &self,
        queue: &Queue,
        places: &HashMap<TaskId, Place>,
        published: Vec<Published>,
        are_repeats: bool,
    ) -> (Vec<Returned>, Vec<Published>) {
        let is_any_taken = published.iter().any(|one| matches!(one.outcome, Outcome::Done(())));
        let (mut returned, mut others) = (Vec::new(), Vec::with_capacity(published.len()));
        for one in published {
            let place = &places[&one.id];
            let refusal = match &one.outcome {
                Outcome::Refused(NotTaken::Unacceptable { reason }) => Some(reason.clone()),
                _ => None,
            };
            // No queue would make the broker take a message that it refuses.
            let rule = if refusal.is_some() { Unroutable::SetAside } else { self.rule(queue, place) };
            // With one routing key for all, a return of everything means that the route is gone: the lane waits as
            // a whole. A queue that Duetime declares is declared again.
            let waits_alone = queue.policy.exchange.is_some() && (is_any_taken || are_repeats);
            let is_one_route = place.own_key.is_none() && !waits_alone;
            let waits_as_one = rule == Unroutable::Wait && is_one_route;
            let is_returned = refusal.is_some() || matches!(one.outcome, Outcome::Refused(NotTaken::Unroutable));
            if waits_as_one || !is_returned {
                others.push(one);
                continue;
            }
            returned.push(Returned {
                id: one.id,
                attempt: one.attempt,
                database: place.database,
                due_at: place.due_at,
                routing_key: routing_key(queue, place.own_key.clone()),
                rule,
                refusal,
            });
        }
        (returned, others)
    }

    /// The rule for a returned message.
    fn rule(&self, queue: &Queue, place: &Place) -> Unroutable {
        if place.own_key.is_some() {
            return forwarded_unroutable(self.delay_rules.unroutable(&queue.name));
        }
        queue.policy.unroutable()
    }

    /// Whether the messages of a batch keep an exchange that their delay exchange has left since. They say nothing
    /// about the lane, whose other messages go elsewhere.
    pub(super) fn is_left(&self, queue: &QueueName, places: &HashMap<TaskId, Place>, exchange: &str) -> bool {
        places.values().any(|place| place.own_key.is_some()) && self.delay_rules.have_left(queue, exchange)
    }

    /// Looks again at the tasks of messages for an exchange that their delay exchange has left: it may be gone for
    /// good.
    pub(super) fn look_again_alone(
        &self,
        queue: &QueueName,
        exchange: &str,
        places: &HashMap<TaskId, Place>,
        open: Vec<(DatabaseIndex, TaskId)>,
    ) {
        if !open.is_empty() {
            let messages = open.len();
            if self.lanes.note_unreached(queue, Unreached::LeftBehind) {
                tracing::warn!(%queue, exchange, messages, "messages that came before `deliver_to` was changed are not confirmed by their exchange; they are published again");
            } else {
                tracing::debug!(%queue, exchange, messages, "messages are not confirmed by their former exchange");
            }
        }
        for (database, id) in open {
            let database = &self.databases[database];
            database.look_again([id], waiting(database, places[&id].due_at));
        }
    }

    /// Ends the tasks of these messages as their rule says. Waiting ones are looked at again, each by itself.
    pub(super) async fn end_returned(&self, queue: &QueueName, exchange: &str, returned: Vec<Returned>) {
        for refused in [false, true] {
            self.log(queue, exchange, returned.iter().filter(|one| one.refusal.is_some() == refused));
        }
        let mut ending = Ending::new();
        for one in returned {
            if one.rule == Unroutable::Drop {
                self.metrics.publish_dropped.inc();
            } else {
                self.metrics.publish_unroutable.inc();
            }
            if one.rule == Unroutable::Wait {
                let database = &self.databases[one.database];
                database.look_again([one.id], waiting(database, one.due_at));
                continue;
            }
            let event = AttemptEvent::Returned {
                attempt: one.attempt,
                rule: one.rule,
                reason: FailureReason::Unroutable,
                why: one.why(exchange),
            };
            ending.entry(one.database).or_default().push((one.id, event));
        }
        self.end_undelivered(queue, ending).await;
    }

    /// Ends attempts whose messages reach no consumer. Those whose end cannot be written now are published again.
    pub(super) async fn end_undelivered(&self, queue: &QueueName, ending: Ending) {
        for (index, mut events) in ending {
            let database = &self.databases[index];
            let left = match self.reporter.undelivered(index, &mut events).await {
                Some((left, error)) => {
                    let (name, error) = (database.name(), &error as &dyn std::error::Error);
                    if database.owned_shards.left_open.begin() {
                        tracing::warn!(database = %name, %queue, tasks = left.len(), error, "could not store the end of undelivered messages; trying them again");
                    } else {
                        tracing::debug!(database = %name, %queue, tasks = left.len(), error, "could not store the end of undelivered messages");
                    }
                    left
                }
                None => Vec::new(),
            };
            database.owned_shards.end(events.iter().map(|(id, _)| *id).filter(|id| !left.contains(id)));
            database.look_again(left, LONGEST_HOLD);
        }
    }

    /// Logs messages that are all returned, or all refused. A queue may have more of them with each batch.
    fn log<'a>(&self, queue: &QueueName, exchange: &str, mut messages: impl Iterator<Item = &'a Returned>) {
        let Some(first) = messages.next() else { return };
        let (Returned { rule, routing_key, .. }, messages) = (first, 1 + messages.count());
        match (&first.refusal, self.lanes.note_unreached(queue, first.unreached())) {
            (Some(reason), true) => {
                tracing::warn!(%queue, exchange, routing_key, messages, reason, "the broker refuses messages; their tasks end");
            }
            (Some(reason), false) => {
                tracing::debug!(%queue, exchange, routing_key, messages, reason, "the broker refused messages again");
            }
            (None, true) => {
                tracing::warn!(%queue, exchange, routing_key, messages, ?rule, "the broker returned messages: no queue is bound for them");
            }
            (None, false) => {
                tracing::debug!(%queue, exchange, routing_key, messages, "the broker returned messages again");
            }
        }
    }
}

/// The routing key of a message: its own, or that of its queue's route.
pub(super) fn routing_key(queue: &Queue, own_key: Option<String>) -> String {
    own_key.unwrap_or_else(|| route(queue, None).routing_key)
}

fn waiting(database: &NodeDatabase<impl Statements>, due_at: UnixMicros) -> Duration {
    let late = database.sql.clock().at(clock::instant()).map(|now| now.since(due_at));
    late.unwrap_or(SHORTEST_WAIT).clamp(SHORTEST_WAIT, LONGEST_WAIT)
}
