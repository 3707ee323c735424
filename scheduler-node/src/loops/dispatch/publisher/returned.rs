//! Messages that the broker returned because no queue is bound for them. Each is handled by itself: it closes no
//! lane for others.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use common::{
    ids::{Attempt, QueueName, TaskId},
    outcome::Outcome,
    queue::{Queue, Unroutable},
    task::verdict::forwarded_unroutable,
    time::UnixMicros,
};

use super::{LONGEST_HOLD, Place, Publisher};
use crate::{
    broker::{NotTaken, Publish, Published},
    clock,
    loops::outcome::reporter::AttemptEvent,
    store::Statements,
    working_set::database::{DatabaseIndex, NodeDatabase},
};

/// The bounds of the wait of a returned message for a binding. It is published again after as long as it is late by
/// then. A forgotten binding is found at once; one that never comes costs two publishes a minute.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A returned message and the fate of its task.
#[derive(Debug)]
pub(super) struct Returned {
    id: TaskId,
    attempt: Attempt,
    database: DatabaseIndex,
    due_at: UnixMicros,
    routing_key: String,
    rule: Unroutable,
}

impl<S: Statements, B: Publish> Publisher<S, B> {
    /// Takes the returned messages out of a batch's outcomes, so that they do not count against its lane.
    pub(super) fn take_returned(
        &self,
        queue: &Queue,
        places: &HashMap<TaskId, Place>,
        published: Vec<Published>,
    ) -> (Vec<Returned>, Vec<Published>) {
        let is_any_taken = published.iter().any(|one| matches!(one.outcome, Outcome::Done(())));
        let (mut returned, mut others) = (Vec::new(), Vec::with_capacity(published.len()));
        for one in published {
            let place = &places[&one.id];
            let rule = self.rule(queue, place);
            // With one routing key for all, a return of everything means that the route is gone: the lane waits as
            // a whole. A queue that Duetime declares is declared again.
            let is_one_route = place.own_key.is_none() && (queue.policy.exchange.is_none() || !is_any_taken);
            let waits_as_one = rule == Unroutable::Wait && is_one_route;
            if waits_as_one || !matches!(one.outcome, Outcome::Refused(NotTaken::Unroutable)) {
                others.push(one);
                continue;
            }
            let key = place.own_key.clone().or_else(|| queue.policy.routing_key.clone());
            returned.push(Returned {
                id: one.id,
                attempt: one.attempt,
                database: place.database,
                due_at: place.due_at,
                routing_key: key.unwrap_or_else(|| queue.name.to_string()),
                rule,
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

    /// Ends the tasks of returned messages as their rule says. Waiting ones are looked at again, each by itself.
    pub(super) async fn end_returned(&self, queue: &QueueName, exchange: &str, returned: Vec<Returned>) {
        let Some(first) = returned.first() else { return };
        let (messages, rule, routing_key) = (returned.len(), first.rule, &first.routing_key);
        tracing::warn!(%queue, exchange, routing_key, messages, ?rule, "the broker returned messages: no queue is bound for them");
        let mut ending: BTreeMap<DatabaseIndex, Vec<(TaskId, AttemptEvent)>> = BTreeMap::new();
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
            let why = format!("no queue is bound to `{exchange}` for the routing key `{}`", one.routing_key);
            let event = AttemptEvent::Returned { attempt: one.attempt, rule: one.rule, why };
            ending.entry(one.database).or_default().push((one.id, event));
        }
        for (index, events) in ending {
            let database = &self.databases[index];
            let ids: Vec<TaskId> = events.iter().map(|(id, _)| *id).collect();
            match self.reporter.returned(events).await {
                Ok(()) => database.owned_shards.end(ids),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(%queue, error, "could not store returned messages; publishing them again");
                    database.look_again(ids, LONGEST_HOLD);
                }
            }
        }
    }
}

fn waiting(database: &NodeDatabase<impl Statements>, due_at: UnixMicros) -> Duration {
    let late = database.sql.clock().at(clock::instant()).map(|now| now.since(due_at));
    late.unwrap_or(SHORTEST_WAIT).clamp(SHORTEST_WAIT, LONGEST_WAIT)
}
