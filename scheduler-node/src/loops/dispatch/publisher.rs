//! Publishes claimed tasks at their due instants, batch by batch for each lane, and passes on the outcome of each.
//!
//! Messages wait in the outbox, some milliseconds for their due instants, and due ones for a batch. A lane has a few
//! batches out at a time, each on a channel of its own; a slow lane fills up without delaying the others. A
//! task without a confirm stays `dispatching` and comes back through a rescue. If this loop stops, this node publishes
//! nothing.

mod prepare;
mod returned;
mod shape;
#[cfg(test)]
mod tests;
mod trace;
#[cfg(feature = "failpoints")]
mod unclaim;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{Attempt, QueueName, TaskId},
    outbox::{Dispatch, Outbox},
    outcome::Outcome,
    queue::Queue,
    task::{
        Delivery, Envelope,
        verdict::{AfterConfirm, after_confirm},
    },
    time::UnixMicros,
    wire::format::Shaped,
};
use tokio::{sync::mpsc, task::JoinSet};

use self::{prepare::Preparations, returned::are_repeats, shape::Fit};
use crate::{
    alarm::Alarm,
    broker::{Broker, BrokerState, NotTaken, Outgoing, Publish, Published, QueueDeclaration, Route},
    by_database::ByDatabase,
    clock, dice,
    history::{self, History},
    loops::{
        outcome::{
            reporter::Reporter,
            settler::{Confirmed, Settlements, gives_way},
        },
        upkeep::queue_reader::Books,
    },
    metrics::Metrics,
    receipt::{ReceiptKeys, Receipts},
    store::{Database, Statements},
    supervise::at_work,
    traces::{self, Hop, Traces},
    working_set::{
        database::{DatabaseIndex, LOOK_AGAIN, NodeDatabases},
        delay_rules::DelayRules,
        lanes::{Lanes, Unreached},
        set_aside::for_log,
    },
};

/// A message whose claim is older than this is not published before its row has been read again: by now another
/// node may own the shard. With a short lease the limit is lower; see [`longest_hold`].
const LONGEST_HOLD: Duration = Duration::from_secs(5);

/// While the broker is away, messages with an unknown outcome are looked at again after this long.
const BROKER_PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct Publisher<S = Arc<Database>, B = Broker> {
    pub databases: NodeDatabases<S>,
    pub broker: B,
    /// Wakes it at the due instants.
    pub alarm: Alarm,
    pub books: Books,
    pub lanes: Arc<Lanes>,
    /// One settler for each database.
    pub settlements: ByDatabase<Settlements>,
    pub reporter: Reporter<S>,
    pub metrics: Arc<Metrics>,
    pub traces: Traces,
    pub history: History,
    pub receipts: Receipts,
    /// How long after its claim a message may be published.
    pub longest_hold: Duration,
    pub delay_rules: DelayRules,
}

/// A batch that has ended.
#[derive(Debug)]
struct Ended {
    queue: QueueName,
    messages: usize,
    /// How long the broker took, if it has confirmed a message.
    took: Option<Duration>,
}

impl<S: Statements, B: Publish> Publisher<S, B> {
    /// Runs until the dispatchers are gone and everything they claimed has been published or given back.
    pub async fn run(self, mut claimed: mpsc::Receiver<Dispatch>) {
        let this = Arc::new(self);
        let mut outbox = Outbox::default();
        let mut batches: JoinSet<Ended> = JoinSet::new();
        let mut preparations = Preparations::default();
        let mut open = true;
        while open || !outbox.is_empty() {
            let next = outbox.next_look();
            tokio::select! {
                biased;
                () = reached(&this.alarm, next), if next.is_some() => {}
                Some(ended) = batches.join_next(), if !batches.is_empty() => {
                    let Ended { queue, messages, took } = ended.expect("a batch does not panic");
                    outbox.ended(&queue, messages, took, clock::instant());
                    this.start(&queue, &mut outbox, &mut batches);
                    this.note_backlog(open, &outbox);
                    continue;
                }
                Some(ended) = preparations.under_way.join_next(), if !preparations.under_way.is_empty() => {
                    ended.expect("a preparation does not panic");
                }
                dispatch = claimed.recv(), if open => match dispatch {
                    Some(dispatch) => this.add(dispatch, &mut outbox, &mut preparations),
                    None => open = false,
                },
            }
            while let Ok(dispatch) = claimed.try_recv() {
                this.add(dispatch, &mut outbox, &mut preparations);
            }
            let now = clock::instant();
            while let Some(queue) = outbox.look(now) {
                this.start(&queue, &mut outbox, &mut batches);
            }
            this.prepare(&outbox, &mut preparations);
            this.note_backlog(open, &outbox);
        }
        this.lanes.backlog.note(false, 0, clock::instant());
    }

    /// Notes what waits to be sent. Nothing gives way to it once no more is claimed: a node that stops has little time
    /// to settle what it has sent.
    fn note_backlog(&self, open: bool, outbox: &Outbox) {
        self.lanes.backlog.note(open && outbox.has_due(), outbox.waiting(), clock::instant());
    }

    /// Sends the lane's messages, as long as they may leave.
    fn start(self: &Arc<Self>, queue: &QueueName, outbox: &mut Outbox, batches: &mut JoinSet<Ended>) {
        let now = clock::instant();
        while let Some(batch) = outbox.next_batch(queue, now) {
            let messages = batch.len();
            let (this, work) = (Arc::clone(self), at_work());
            let queue = queue.clone();
            batches.spawn(async move {
                let took = this.publish(&queue, batch).await;
                drop(work);
                Ended { queue, messages, took }
            });
        }
    }

    /// Publishes the messages that fit their queue's format, and ends the tasks of the others. Returns how long the
    /// broker took, if it has confirmed a message.
    async fn publish(&self, queue: &QueueName, batch: Vec<Dispatch>) -> Option<Duration> {
        let mut batch = self.fresh(batch, |dispatch| dispatch);
        if batch.is_empty() {
            return None;
        }
        let Some(keys) = self.receipt_keys().await else {
            // No consumer could answer a delivery without a receipt.
            self.give_back(&batch);
            return None;
        };
        let policy = self.books.load().get(queue);
        let hops = self.begin_hops(&mut batch);
        let (fit, unfit) = shape::shape(batch, &policy);
        if unfit.is_empty() {
            return self.send(fit, &policy, &hops, &keys).await;
        }
        // Side by side: a database that is slow to end a task delays no message, and a slow broker no end of a task.
        let (took, ()) = tokio::join!(self.send(fit, &policy, &hops, &keys), Box::pin(self.give_up(queue, unfit)));
        took
    }

    /// Sends messages and settles their outcomes. Returns how long the broker took, if it has confirmed a message.
    async fn send(
        &self,
        batch: Vec<Fit>,
        policy: &Queue,
        hops: &HashMap<TaskId, Hop>,
        keys: &ReceiptKeys,
    ) -> Option<Duration> {
        let queue = &policy.name;
        if let Some(held) = held_before_publish() {
            tokio::time::sleep(held).await;
        }
        // A process that was stopped meanwhile continues here, perhaps after its lease.
        let batch = self.fresh(batch, |(dispatch, _)| dispatch);
        if batch.is_empty() {
            return None;
        }
        let place = |dispatch: &Dispatch| Place::of(dispatch, policy, hops.get(&dispatch.delivery.id).copied());
        let places: HashMap<TaskId, Place> =
            batch.iter().map(|(dispatch, _)| (dispatch.delivery.id, place(dispatch))).collect();
        let outgoing = |(dispatch, shaped): (Dispatch, _)| Outgoing {
            send_before: self.send_before(&dispatch),
            ..outgoing(dispatch.delivery, shaped, policy, keys)
        };
        let outgoing: Vec<Outgoing> = batch.into_iter().map(outgoing).collect();
        let messages = outgoing.len();
        self.history.record_all(
            outgoing
                .iter()
                .map(|one| history::Step::Published { task: one.delivery.id, attempt: one.delivery.attempt }),
        );
        let route = route(policy, outgoing.first().and_then(|first| first.delivery.envelope.as_deref()));
        let began = clock::instant();
        self.lanes.sent(queue, messages, began);
        self.metrics.published(queue, messages as u64);
        let published = self.broker.publish(&route, outgoing).await;
        let took = clock::instant().saturating_duration_since(began);
        let is_confirmed = published.iter().any(|one| matches!(one.outcome, Outcome::Done(())));
        fail::fail_point!("after_confirm", |_| std::process::abort());
        self.history.record_all(published.iter().map(outcome_of));
        self.end_hops(queue, &route.exchange, &places, &published);
        self.settle(policy, &places, published, began, &route.exchange).await;
        is_confirmed.then_some(took)
    }

    /// Waits for the receipt keys. They are missing only while a node that has just started cannot reach the first
    /// database.
    async fn receipt_keys(&self) -> Option<Arc<ReceiptKeys>> {
        let mut receipts = self.receipts.clone();
        let known = tokio::time::timeout(LOOK_AGAIN, receipts.wait_for(Option::is_some)).await;
        known.ok()?.ok()?.clone()
    }

    /// The instant from which a message of this claim must not be sent.
    fn send_before(&self, dispatch: &Dispatch) -> Option<Instant> {
        if seeded!(StalePublish) { None } else { Some(dispatch.claimed_at + self.longest_hold) }
    }

    /// Keeps the fresh messages. Those claimed too long ago go back to be looked at again.
    fn fresh<T>(&self, batch: Vec<T>, dispatch: impl Fn(&T) -> &Dispatch) -> Vec<T> {
        let now = clock::instant();
        let is_fresh = |of: &T| self.send_before(dispatch(of)).is_none_or(|before| now < before);
        let (fresh, old): (Vec<T>, Vec<T>) = batch.into_iter().partition(is_fresh);
        self.give_back(old.iter().map(dispatch));
        fresh
    }

    /// Leaves messages that are not sent to a rescue.
    fn give_back<'a>(&self, batch: impl IntoIterator<Item = &'a Dispatch>) {
        for dispatch in batch {
            self.databases[dispatch.database].look_again([dispatch.delivery.id], LOOK_AGAIN);
        }
    }

    /// Leaves a message to a rescue at its due time if it comes due only once its claim is too old: the database's
    /// clock was set back. Here it would wait for an instant that is wrong once the clock is corrected. Returns whether
    /// it did.
    fn put_off(&self, dispatch: &Dispatch) -> bool {
        let is_late = self.send_before(dispatch).is_some_and(|before| before <= dispatch.publish_at);
        if is_late {
            let Delivery { id, due_at, .. } = &dispatch.delivery;
            self.databases[dispatch.database].owned_shards.end_unknown([*id], *due_at);
        }
        is_late
    }

    /// Settles the outcomes of messages that were sent at `sent_at`.
    async fn settle(
        &self,
        policy: &Queue,
        places: &HashMap<TaskId, Place>,
        published: Vec<Published>,
        sent_at: Instant,
        exchange: &str,
    ) {
        let queue = &policy.name;
        let are_repeats = are_repeats(policy, places, &published);
        let (returned, published) = self.take_returned(policy, places, published, are_repeats);
        let mut confirmed: BTreeMap<DatabaseIndex, Vec<Confirmed>> = BTreeMap::new();
        let mut open: Vec<(DatabaseIndex, TaskId)> = Vec::new();
        let mut late = Vec::new();
        let messages = published.len();
        let reason = published.iter().find_map(|one| why_not_taken(&one.outcome)).map(|why| for_log(why).to_owned());
        for one in published {
            let place = &places[&one.id];
            if let (Some(sent_at), false) = (one.sent_at, place.redelivered) {
                late.push(sent_at.saturating_duration_since(place.publish_at).as_secs_f64());
            }
            if let Outcome::Done(()) = one.outcome {
                let (trace_id, span_id) = traces::ids(place.hop.map(|hop| hop.context));
                tracing::debug!(task = %one.id, attempt = %one.attempt, %queue, trace_id, span_id, "task confirmed");
                let some = confirmed.entry(place.database).or_default();
                some.push(place.confirmed(one.id, one.attempt, queue));
            } else {
                self.count(queue, one.id, one.attempt, &one.outcome);
                seeded!(UnclaimOnNack, self.unclaim(place.database, &one).await);
                open.push((place.database, one.id));
            }
        }
        if !late.is_empty() {
            self.metrics.late_by(queue, late);
        }
        let all = returned.len() + messages;
        if self.is_up() && self.is_left(queue, places, exchange) {
            // A probe is published for the first time.
            let has_probe = places.values().any(|place| !place.redelivered);
            self.lanes.passed_by(queue, all, has_probe.then(clock::instant));
            self.look_again_alone(queue, exchange, places, open);
        } else if are_repeats {
            self.lanes.returned_again(queue, all, sent_at, clock::instant());
        } else {
            let pause = self.pause(queue, all, all - open.len(), reason.as_deref());
            for (database, id) in open {
                // Spread over time: a full queue makes room for some of them after the other.
                self.databases[database].look_again([id], pause.mul_f64(0.5 + dice::roll()));
            }
        }
        for (database, confirmed) in confirmed {
            self.settlements[database].confirmed(confirmed).await;
        }
        self.end_returned(queue, exchange, returned).await;
    }

    fn count(&self, queue: &QueueName, id: TaskId, attempt: Attempt, outcome: &Outcome<(), NotTaken>) {
        match outcome {
            Outcome::Refused(NotTaken::Unroutable | NotTaken::Unacceptable { .. }) => {
                self.metrics.publish_unroutable.inc();
            }
            Outcome::Refused(NotTaken::Nacked) => self.metrics.publish_nacked.inc(),
            Outcome::Done(()) | Outcome::Unknown(_) => self.metrics.publish_unknown.inc(),
        }
        tracing::debug!(task = %id, %attempt, %queue, ?outcome, "task not confirmed; publishing it again");
    }

    fn is_up(&self) -> bool {
        matches!(*self.broker.state().borrow(), BrokerState::Up { .. })
    }

    /// The back-off of messages without a confirm, the first of them for this reason. A broker that is away says
    /// nothing about the lane.
    fn pause(&self, queue: &QueueName, messages: usize, taken: usize, reason: Option<&str>) -> Duration {
        if taken < messages && !self.is_up() {
            self.lanes.lost(queue, messages);
            return BROKER_PAUSE;
        }
        let pause = self.lanes.heard(queue, messages, taken, clock::instant());
        // A full queue with slow consumers opens and closes its lane about once a second.
        if taken < messages && self.lanes.note_unreached(queue, Unreached::Full) {
            tracing::warn!(%queue, taken, messages, reason, pause_ms = pause.as_millis() as u64, "the queue does not accept messages; its due tasks wait");
        }
        pause
    }
}

/// How long after its claim a message may be published, for leases of this time to live. A lease lives at least two
/// thirds of that from any moment on, so while half of it has not passed, no other node owns the shard.
pub fn longest_hold(lease_ttl: Duration) -> Duration {
    LONGEST_HOLD.min(lease_ttl / 2)
}

/// How far ahead of their due times tasks are claimed at most. Half of the time that a message may be held is left for
/// the publishing of a burst.
pub fn longest_lead(claim_ahead: Duration, lease_ttl: Duration) -> Duration {
    claim_ahead.min(longest_hold(lease_ttl) / 2)
}

/// How long a fail point holds messages back between their claim and their publish.
fn held_before_publish() -> Option<Duration> {
    fail::fail_point!("before_publish", |ms| Some(Duration::from_millis(ms?.parse().ok()?)));
    None
}

/// Hands claimed tasks to the publisher. If the publisher is gone, the node stops in disorder, and the next owner
/// publishes them.
pub async fn hand_over(
    publisher: &mpsc::Sender<Dispatch>,
    dispatches: impl IntoIterator<Item = Dispatch, IntoIter: ExactSizeIterator>,
) {
    let mut dispatches = dispatches.into_iter();
    while dispatches.len() > 0 {
        // Room for all of them, or for as many as there can be room for.
        let most = dispatches.len().min(publisher.max_capacity());
        let Ok(room) = publisher.reserve_many(most).await else { return };
        room.zip(&mut dispatches).for_each(|(place, dispatch)| place.send(dispatch));
    }
}

/// The facts kept about a message while it is with the broker.
#[derive(Debug)]
struct Place {
    database: DatabaseIndex,
    publish_at: Instant,
    due_at: UnixMicros,
    redelivered: bool,
    /// The routing key of a message that is forwarded as it came.
    own_key: Option<String>,
    after_confirm: AfterConfirm,
    gives_way: bool,
    /// Only for a task whose trace is recorded.
    hop: Option<Hop>,
}

impl Place {
    fn of(dispatch: &Dispatch, queue: &Queue, hop: Option<Hop>) -> Self {
        Self {
            database: dispatch.database,
            publish_at: dispatch.publish_at,
            due_at: dispatch.delivery.due_at,
            own_key: dispatch
                .delivery
                .envelope
                .as_ref()
                .map(|own| String::from_utf8_lossy(&own.routing_key.0).into_owned()),
            redelivered: dispatch.delivery.redelivered,
            after_confirm: after_confirm(&dispatch.delivery, &queue.policy),
            gives_way: gives_way(&dispatch.delivery, &queue.policy),
            hop,
        }
    }

    fn confirmed(&self, id: TaskId, attempt: Attempt, queue: &QueueName) -> Confirmed {
        let (verdict, gives_way) = (self.after_confirm, self.gives_way);
        Confirmed { id, attempt, queue: queue.clone(), verdict, at: clock::instant(), gives_way }
    }
}

/// Why the broker did not take a message, for the log.
fn why_not_taken(outcome: &Outcome<(), NotTaken>) -> Option<&str> {
    match outcome {
        Outcome::Done(()) => None,
        Outcome::Unknown(reason) | Outcome::Refused(NotTaken::Unacceptable { reason }) => Some(reason),
        Outcome::Refused(NotTaken::Nacked) => Some("RabbitMQ refused it (nack), as a full queue does"),
        Outcome::Refused(NotTaken::Unroutable) => Some("no queue is bound for it"),
    }
}

/// The step that a publish ended with.
fn outcome_of(one: &Published) -> history::Step {
    let (task, attempt) = (one.id, one.attempt);
    match &one.outcome {
        Outcome::Done(()) => history::Step::Confirmed { task, attempt },
        Outcome::Refused(NotTaken::Unroutable | NotTaken::Unacceptable { .. }) => {
            history::Step::Returned { task, attempt }
        }
        Outcome::Refused(NotTaken::Nacked) => history::Step::Nacked { task, attempt },
        Outcome::Unknown(_) => history::Step::Unknown { task, attempt },
    }
}

fn outgoing(delivery: Delivery, shaped: Option<Shaped>, queue: &Queue, keys: &ReceiptKeys) -> Outgoing {
    Outgoing {
        // A message forwarded as it came gets no receipt, because its consumers do not report.
        receipt: if delivery.envelope.is_none() { keys.receipt(delivery.message_id()) } else { None },
        max_attempts: delivery.max_attempts.unwrap_or(queue.policy.max_attempts),
        wants_result: queue.policy.settle.needs_report(),
        delivery,
        shaped,
        send_before: None,
    }
}

/// The route of a message. With an envelope it is the envelope's exchange, otherwise the queue's own exchange and
/// key, if its policy names an exchange. Otherwise it is Duetime's exchange with the queue's name as key, and
/// Duetime declares the queue.
fn route(queue: &Queue, envelope: Option<&Envelope>) -> Route {
    if let Some(envelope) = envelope {
        // Each message has a routing key of its own.
        return Route { exchange: envelope.exchange.clone(), routing_key: String::new(), declare: None };
    }
    let name = queue.name.as_str();
    let routing_key = queue.policy.routing_key.clone().unwrap_or_else(|| name.to_owned());
    match &queue.policy.exchange {
        Some(exchange) => Route { exchange: exchange.clone(), routing_key, declare: None },
        None => Route {
            exchange: "duetime".to_owned(),
            routing_key: name.to_owned(),
            declare: Some(QueueDeclaration {
                queue: queue.name.clone(),
                max_length: queue.policy.max_length,
                use_existing: queue.policy.use_existing,
            }),
        },
    }
}

async fn reached(alarm: &Alarm, instant: Option<Instant>) {
    match instant {
        Some(instant) => alarm.at(instant).await,
        None => std::future::pending().await,
    }
}
